//! The file is deleted or replaced while it is in use: all clients switch to the new one, and
//! tokens keep growing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::{Client, Lease};

use super::puppet::Puppet;
use super::store::Store;
use super::{client, forever, lock};

/// Whether another client holds the lock.
async fn is_held(client: &Client) -> bool {
    let tried = client.mutex("a").with_options(forever).try_lock().await;
    tried.expect("an answer").is_none()
}

/// Checks that an old client and a new one exclude each other, now and later.
async fn check_clients_exclude_each_other(store: &Store, old: &Client, lease: Lease) {
    let new = client(&store.url()).await;
    let second = lock(&new, "a").await;
    assert!(second.token() > lease.token(), "tokens keep growing");
    let lost = lease.extend().await.expect_err("the lease has ended");
    assert!(lost.to_string().contains("was lost"), "{lost}");
    assert!(!lease.is_valid());
    assert!(is_held(old).await, "the clients use different stores");
    let mut last = second.token();
    second.release().await;
    for _ in 0..3 {
        for (one, other) in [(old, &new), (&new, old)] {
            let lease = lock(one, "a").await;
            assert!(lease.token() > last);
            last = lease.token();
            assert!(is_held(other).await, "there are two holders");
            lease.extend().await.expect("still held");
            lease.release().await;
        }
    }
    let sound: String = store
        .sql()
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .expect("an answer");
    assert_eq!(sound, "ok");
}

async fn check_replaced(replace: impl AsyncFnOnce(&Store)) {
    let store = Store::new();
    let old = client(&store.url()).await;
    let lease = lock(&old, "a").await;
    replace(&store).await;
    check_clients_exclude_each_other(&store, &old, lease).await;
}

#[tokio::test]
async fn clients_agree_after_all_files_are_deleted() {
    check_replaced(async |store: &Store| {
        delete(store, &["", "-wal", "-shm"]);
    })
    .await;
}

/// As a user does who does not know of the files beside it.
#[tokio::test]
async fn clients_agree_after_only_the_file_is_deleted() {
    check_replaced(async |store: &Store| {
        std::fs::remove_file(store.path()).expect("deleted");
    })
    .await;
}

#[tokio::test]
async fn clients_agree_after_the_file_is_moved_away() {
    check_replaced(async |store: &Store| {
        std::fs::rename(store.path(), store.beside(".old")).expect("moved");
    })
    .await;
}

#[tokio::test]
async fn clients_agree_after_the_directory_is_replaced() {
    let store = Store::within("inner");
    let old = client(&store.url()).await;
    let lease = lock(&old, "a").await;
    let away = store.dir().with_extension("old");
    std::fs::rename(store.dir(), away).expect("moved");
    std::fs::create_dir(store.dir()).expect("made");
    check_clients_exclude_each_other(&store, &old, lease).await;
}

fn back_up(store: &Store) -> PathBuf {
    let backup = store.beside(".backup");
    let path = backup.to_str().expect("a path of text");
    let copied = store.sql().execute("VACUUM INTO ?", [path]);
    copied.expect("copied");
    backup
}

fn restore(store: &Store, backup: &Path) {
    delete(store, &["-wal", "-shm"]);
    std::fs::rename(backup, store.path()).expect("moved");
}

/// Deletes the file (`""`) or files beside it.
fn delete(store: &Store, ends: &[&str]) {
    for end in ends {
        std::fs::remove_file(store.beside(end)).expect("deleted");
    }
}

/// A backup replaces the file, without anything that came after the backup.
#[tokio::test]
async fn clients_agree_after_an_older_copy_replaces_the_file() {
    let store = Store::new();
    let old = client(&store.url()).await;
    lock(&old, "a").await.release().await;
    let backup = back_up(&store);
    let lease = lock(&old, "a").await;
    restore(&store, &backup);
    check_clients_exclude_each_other(&store, &old, lease).await;
}

/// A lock that a backup restores has no holder. It ends with its TTL or its process, and the next
/// token is above it all the same.
#[tokio::test]
async fn clients_agree_after_a_copy_with_the_lock_replaces_the_file() {
    let store = Store::new();
    let old = client(&store.url()).await;
    let lease = lock(&old, "a").await;
    let backup = back_up(&store);
    restore(&store, &backup);
    // The copy may be of any age, so the lease has ended although the copy contains it.
    let lost = lease.extend().await.expect_err("the lease has ended");
    assert!(lost.to_string().contains("was lost"), "{lost}");
    let token = lease.token();
    drop(lease);
    let new = client(&store.url()).await;
    assert!(lock(&new, "a").await.token() > token);
}

/// The same between processes, which share the files beside the store in other ways than the
/// threads of one process do.
fn check_processes_exclude_each_other(deleted: &[&str], others: usize) {
    let store = Store::new();
    let mut old: Vec<_> = (0..=others).map(|_| Puppet::of(&store.url())).collect();
    let held = old[0].lock("a");
    for puppet in &mut old[1..] {
        assert!(puppet.finds_held("a"));
    }
    delete(&store, deleted);
    let mut new = Puppet::of(&store.url());
    let got = new.lock("a");
    assert!(got.token > held.token, "tokens keep growing");
    let said = old[0].request("extend a");
    assert!(said.contains("was lost"), "{said}");
    for puppet in &mut old {
        assert!(puppet.finds_held("a"), "the clients use different stores");
    }
    new.release("a");
    let mut last = got.token;
    for puppet in old.iter_mut().chain([&mut new]) {
        let got = puppet.lock("a");
        assert!(got.token > last);
        last = got.token;
        puppet.release("a");
    }
}

#[test]
fn processes_agree_after_all_files_are_deleted() {
    check_processes_exclude_each_other(&["", "-wal", "-shm"], 2);
}

#[test]
fn processes_agree_after_only_the_file_is_deleted() {
    check_processes_exclude_each_other(&[""], 2);
}

/// While a process has the old file open, the new one may not work yet, because the index of the
/// old one is still beside it. There must never be a second lease.
#[test]
fn processes_with_open_stores_agree_once_all_have_noticed() {
    let store = Store::new();
    let mut puppets: Vec<_> = (0..3).map(|_| Puppet::of(&store.url())).collect();
    let held = puppets[0].lock("a");
    for puppet in &mut puppets[1..] {
        assert!(puppet.finds_held("a"));
    }
    std::fs::remove_file(store.path()).expect("deleted");
    let mut new = Puppet::new();
    assert_eq!(new.request(&format!("build {}", store.url())), "built");
    puppets.push(new);
    // Each process sends one request, and notices the change.
    let said = puppets[0].request("extend a");
    assert!(said.starts_with("error "), "{said}");
    let mut last = held.token;
    for puppet in &mut puppets[1..] {
        let said = puppet.request("try a 3600000");
        if said.starts_with("token ") {
            puppet.release("a");
        }
    }
    for puppet in &mut puppets {
        let got = puppet.lock("b");
        assert!(got.token > last);
        last = got.token;
        puppet.release("b");
    }
    let said = puppets[0].request("extend a");
    assert!(said.contains("was lost"), "{said}");
}

/// Waiters notice that the store they wait on is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_switch_to_the_new_store_too() {
    let store = Store::new();
    let (holder, other) = (client(&store.url()).await, client(&store.url()).await);
    let lease = lock(&holder, "a").await;
    let waiting = tokio::spawn(async move { lock(&other, "a").await });
    store.until_waiters(1);
    delete(&store, &["", "-wal", "-shm"]);
    let second = waiting.await.expect("no panic");
    assert!(second.token() > lease.token());
    assert!(lease.extend().await.is_err());
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(is_held(&holder).await);
}
