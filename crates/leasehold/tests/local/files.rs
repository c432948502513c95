//! Files that are not a store, or not any more: the error says what is wrong and what to do, and
//! there is never a lease.

use std::time::Duration;

use leasehold::node::NodeError;
use leasehold::{Client, Error, NodeOutcome, Options};
use leasehold_testkit::setup::LONG;
use rusqlite::Connection;

use super::store::Store;
use super::{client, forever, lock};

/// Checks that a client of this file gets an error with these words, both for a lock and when it
/// waits for the store.
async fn check_refused(store: &Store, client: &Client, words: &[&str]) {
    let locked = client.mutex("a").with_options(forever).lock().await;
    let error = locked.expect_err("never a lease").to_string();
    let ready = client.ready(LONG).await;
    let unready = ready.expect_err("not ready").to_string();
    for word in words {
        assert!(error.contains(word), "`{word}` is not in: {error}");
        assert!(unready.contains(word), "`{word}` is not in: {unready}");
    }
    let label = store.url();
    assert!(error.contains(&label), "the file is not named: {error}");
    let seen = client.inspect("a").await.expect("a name");
    assert!(!seen.is_conclusive());
}

fn build(store: &Store) -> Client {
    let builder = Client::builder().node(store.url());
    builder.build().expect("the file is not opened yet")
}

/// Once the cause is removed, the same client works.
async fn check_works_without_the_file(store: &Store, client: &Client) {
    for end in ["", "-wal", "-shm", "-journal"] {
        let _ = std::fs::remove_file(store.beside(end));
    }
    let locked = client.mutex("a").with_options(forever).lock().await;
    locked.expect("a lease").release().await;
}

/// Another process has the store locked, as one that was stopped in the middle of a transaction.
#[tokio::test]
async fn a_store_that_stays_locked_is_reported() {
    let store = Store::new();
    let client = client(&store.url()).await;
    let other = store.sql();
    other.execute_batch("BEGIN EXCLUSIVE").expect("locked");
    let short = |options: Options| options.node_timeout(Duration::from_millis(100));
    let tried = client.mutex("a").with_options(short).try_lock().await;
    let error = tried.expect_err("the store is locked");
    let NodeOutcome::Failed(node) = &error.nodes()[0].outcome else {
        panic!("{error:?}");
    };
    assert!(
        matches!(node, NodeError::StoreUnavailable { .. }),
        "{node:?}"
    );
    assert!(node.had_no_effect() && !node.is_permanent(), "{node:?}");
    assert_eq!(
        node.to_string(),
        "the store cannot be used now: another process keeps it locked (is that process stopped?)"
    );
    other.execute_batch("COMMIT").expect("unlocked");
    lock(&client, "a").await.release().await;
}

const WHAT_TO_DO: &str = "move it away";

#[tokio::test]
async fn random_bytes_are_refused() {
    let store = Store::new();
    let bytes: Vec<u8> = (0..20_000).map(|_| fastrand::u8(..)).collect();
    std::fs::write(store.path(), &bytes).expect("written");
    let client = build(&store);
    check_refused(&store, &client, &["not a database", WHAT_TO_DO]).await;
    let left = std::fs::read(store.path()).expect("the file");
    assert_eq!(left, bytes, "the foreign file is unchanged");
    check_works_without_the_file(&store, &client).await;
}

/// A store that was in use, with some names in it and no files beside it.
async fn used() -> Store {
    let store = Store::new();
    let user = client(&store.url()).await;
    for number in 0..300 {
        let name = format!("{number}-{}", "x".repeat(300));
        let mutex = user.mutex(name).with_options(forever);
        mutex.lock().await.expect("a lease").release().await;
    }
    user.shutdown(LONG).await;
    drop(user);
    // The client's threads end after the client. With this journal mode the store is one file
    // without others beside it, and the change succeeds only when no other connection is open.
    let sql = store.sql();
    let mode = || {
        sql.pragma_update_and_check(None, "journal_mode", "delete", |row| row.get(0))
            .unwrap_or_else(|_| "busy".to_owned())
    };
    while mode() != "delete" {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(sql);
    store
}

#[tokio::test]
async fn a_truncated_store_is_refused() {
    let store = used().await;
    let bytes = std::fs::read(store.path()).expect("the file");
    // In the middle, within the first page, and within the header.
    for length in [bytes.len() / 2, 2_000, 50] {
        std::fs::write(store.path(), &bytes[..length]).expect("written");
        let client = build(&store);
        check_refused(&store, &client, &["the store cannot be used", WHAT_TO_DO]).await;
        check_works_without_the_file(&store, &client).await;
    }
}

#[tokio::test]
async fn a_store_with_damaged_pages_is_refused() {
    let store = used().await;
    let mut bytes = std::fs::read(store.path()).expect("the file");
    // All but the first page, which identifies the file and contains its size.
    let page = usize::from(u16::from_be_bytes([bytes[16], bytes[17]]));
    for byte in &mut bytes[page..] {
        *byte = 0x5a;
    }
    std::fs::write(store.path(), &bytes).expect("written");
    let client = build(&store);
    check_refused(&store, &client, &["malformed", WHAT_TO_DO]).await;
    check_works_without_the_file(&store, &client).await;
}

#[tokio::test]
async fn the_database_of_another_program_is_refused() {
    let store = Store::new();
    let theirs = Connection::open(store.path()).expect("a database");
    theirs
        .execute_batch("CREATE TABLE recipes (name TEXT); INSERT INTO recipes VALUES ('soup')")
        .expect("a table");
    let client = build(&store);
    let words = ["not a store of leasehold", WHAT_TO_DO];
    check_refused(&store, &client, &words).await;
    let tables = "SELECT group_concat(name) FROM sqlite_schema";
    let tables: String = theirs
        .query_row(tables, [], |row| row.get(0))
        .expect("a table");
    assert_eq!(tables, "recipes", "nothing was added");
    let mode: String = theirs
        .pragma_query_value(None, "journal_mode", |row| row.get(0))
        .expect("a mode");
    assert_eq!(mode, "delete", "nothing was changed");
    // A database with the id of another program.
    theirs
        .execute_batch("DROP TABLE recipes; PRAGMA application_id = 77")
        .expect("changed");
    check_refused(&store, &client, &words).await;
    drop(theirs);
    check_works_without_the_file(&store, &client).await;
}

#[tokio::test]
async fn a_store_of_a_newer_or_older_leasehold_is_refused() {
    let store = used().await;
    let version = store
        .sql()
        .pragma_query_value(None, "user_version", |row| row.get::<_, i32>(0));
    let version = version.expect("a number");
    let set = |version: i32| {
        let set = store.sql().pragma_update(None, "user_version", version);
        set.expect("changed");
    };
    set(99);
    let client = build(&store);
    let words = ["a newer leasehold", "format 99", "update this one"];
    check_refused(&store, &client, &words).await;
    set(1);
    let client = build(&store);
    let words = ["an older leasehold", "format 1", WHAT_TO_DO];
    check_refused(&store, &client, &words).await;
    set(version);
    let locked = client.mutex("a").with_options(forever).lock().await;
    locked.expect("a lease").release().await;
}

/// The header is correct, but the content is missing.
#[tokio::test]
async fn a_store_without_its_tables_is_refused() {
    let store = used().await;
    store
        .sql()
        .execute_batch("DROP TABLE names")
        .expect("changed");
    let client = build(&store);
    let locked = client.mutex("a").with_options(forever).try_lock().await;
    let error = locked.expect_err("never a lease").to_string();
    assert!(error.contains("no such table: names"), "{error}");
    assert!(error.contains(WHAT_TO_DO), "{error}");
}

#[tokio::test]
async fn a_directory_in_place_of_a_file_is_refused() {
    let store = Store::new();
    std::fs::create_dir(store.path()).expect("a directory");
    let client = build(&store);
    let words = ["the store cannot be opened", "check the path"];
    check_refused(&store, &client, &words).await;
    std::fs::remove_dir(store.path()).expect("removed");
    check_works_without_the_file(&store, &client).await;
}

/// The holder keeps its lock, and no other client acquires it. Removing the file to start anew
/// ends the lease.
#[tokio::test]
async fn a_store_that_is_overwritten_grants_no_second_lease() {
    let store = Store::new();
    let holder = client(&store.url()).await;
    let lease = lock(&holder, "a").await;
    for end in ["", "-wal"] {
        let length = std::fs::metadata(store.beside(end)).expect("a file").len();
        let rubbish = vec![0x5a; usize::try_from(length).expect("small")];
        std::fs::write(store.beside(end), rubbish).expect("written");
    }
    let other = build(&store);
    let tried = other.mutex("a").with_options(forever).try_lock().await;
    let error = tried.expect_err("never a lease").to_string();
    assert!(error.contains(WHAT_TO_DO), "{error}");
    for end in ["", "-wal", "-shm"] {
        std::fs::remove_file(store.beside(end)).expect("deleted");
    }
    assert!(lock(&other, "a").await.token() > lease.token());
    assert!(lease.extend().await.is_err());
}

async fn invalid(urls: &[&str]) -> String {
    let built = Client::builder().nodes(urls.iter().copied()).build();
    match built.expect_err("the URL is invalid") {
        Error::Invalid(invalid) => invalid.to_string(),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn invalid_urls_are_refused() {
    let absolute = "must be absolute";
    for (url, words) in [
        ("local:locks.db", [absolute, "`local:/path/to/file.db`"]),
        ("local:./locks.db", [absolute, "`local:/path/to/file.db`"]),
        ("local:/", [absolute, "`local:/path/to/file.db`"]),
        (
            "local:/no/such/dir/a.db",
            ["does not exist", "create it first"],
        ),
    ] {
        let error = invalid(&[url]).await;
        for word in words {
            assert!(error.contains(word), "{url}: {error}");
        }
    }
    let dir = Store::new();
    for others in [&dir.url()[..], "redis://127.0.0.1:1"] {
        let error = invalid(&[&dir.url(), others]).await;
        assert!(error.contains("must be the only node"), "{error}");
    }
    assert!(!dir.path().exists(), "nothing was created");
}
