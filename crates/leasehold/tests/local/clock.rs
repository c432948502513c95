//! The machine's clock is set back or ahead, and the store is tidied up meanwhile.

use std::time::Duration;

use leasehold::{Client, Moment};
use leasehold_testkit::ShiftedClock;
use leasehold_testkit::setup::LONG;

use super::store::Store;
use super::{client, lock};

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

async fn client_of(store: &Store, clock: &ShiftedClock) -> Client {
    let builder = Client::builder().node(store.url()).connect_timeout(LONG);
    let connected = builder.time_source(clock.clone()).connect().await;
    connected.expect("the store works")
}

/// Locks a name `times` times, and returns the tokens.
async fn tokens(client: &Client, name: &str, times: usize) -> Vec<u64> {
    let mut tokens = Vec::new();
    for _ in 0..times {
        let lease = lock(client, name).await;
        lease.extend().await.expect("still held");
        tokens.push(lease.token());
        lease.release().await;
    }
    tokens
}

fn check_grow(tokens: &[u64]) {
    let grow = tokens.windows(2).all(|pair| pair[0] < pair[1]);
    assert!(grow, "{tokens:?}");
}

#[tokio::test]
async fn names_used_before_can_be_locked_and_tokens_keep_growing() {
    let (store, clock) = (Store::new(), ShiftedClock::default());
    let same = client_of(&store, &clock).await;
    let mut all = tokens(&same, "a", 3).await;
    clock.set_ahead_by(-HOUR);
    // The client that saw the change, and one that did not.
    all.extend(tokens(&same, "a", 3).await);
    let new = client_of(&store, &clock).await;
    all.extend(tokens(&new, "a", 3).await);
    all.extend(tokens(&same, "a", 3).await);
    // And a name that was never used.
    check_grow(&tokens(&new, "b", 3).await);
    // The clock is corrected.
    all.extend(tokens(&client(&store.url()).await, "a", 3).await);
    all.extend(tokens(&new, "a", 3).await);
    check_grow(&all);
}

/// A held lock ends neither early nor an hour late because of it.
#[tokio::test]
async fn a_held_lock_lasts_for_its_ttl() {
    let (store, clock) = (Store::new(), ShiftedClock::default());
    let (holder, other) = (
        client_of(&store, &clock).await,
        client_of(&store, &clock).await,
    );
    let before = Moment::now();
    let mutex = holder.mutex("a");
    let mutex = mutex.with_options(|o| super::with_ttl(o, 1_500).without_renewal());
    let lease = mutex.lock().await.expect("a lease");
    clock.set_ahead_by(-HOUR);
    let next = lock(&other, "a").await;
    // The client releases a lost lease a little before its TTL has passed.
    let early = before + Duration::from_millis(1_300);
    assert!(Moment::now() >= early, "too early");
    assert!(!lease.is_valid(), "there are two holders");
    assert!(next.token() > lease.token());
}

/// The store was created while the clock was a year behind. The clock was corrected later.
#[tokio::test]
async fn the_clock_may_be_behind_when_the_store_is_created() {
    let (store, clock) = (Store::new(), ShiftedClock::default());
    clock.set_ahead_by(-365 * DAY);
    let client = client_of(&store, &clock).await;
    let mut all = tokens(&client, "a", 3).await;
    all.extend(tokens(&super::client(&store.url()).await, "a", 3).await);
    check_grow(&all);
}

/// A client that only inspected while the clock was ahead has begun an epoch in the future, and
/// no token was granted. Locks can be acquired all the same when the clock is correct again.
#[tokio::test]
async fn an_epoch_ahead_of_the_clock_does_not_block_clients() {
    let (store, clock) = (Store::new(), ShiftedClock::default());
    clock.set_ahead_by(HOUR);
    let ahead = client_of(&store, &clock).await;
    assert!(
        ahead
            .inspect_all()
            .await
            .expect("it works")
            .locks
            .is_empty()
    );
    clock.set_ahead_by(0);
    check_grow(&tokens(&client_of(&store, &clock).await, "a", 3).await);
}

/// Makes the log so large that the store is tidied up, and waits for that.
async fn tidy(store: &Store, clock: &ShiftedClock) {
    let client = client_of(store, clock).await;
    let filler = "INSERT INTO names (name, fence, fence_until_us) VALUES (zeroblob(1200000), 1, 1)";
    store.sql().execute(filler, []).expect("written");
    assert_eq!(client.shutdown(LONG).await, 0);
    // The filler was overdue, so its removal shows that the store was tidied up.
    let left: i64 = store
        .sql()
        .query_row(
            "SELECT count(*) FROM names WHERE length(name) > 9999",
            [],
            |row| row.get(0),
        )
        .expect("a number");
    assert_eq!(left, 0, "the store was not tidied up");
}

/// A clock that is set ahead by days makes fences look old, but not the locks that belong to
/// them.
#[tokio::test]
async fn a_clock_that_is_set_ahead_does_not_free_locks() {
    let (store, clock) = (Store::new(), ShiftedClock::default());
    let client = client_of(&store, &clock).await;
    let lease = lock(&client, "a").await;
    clock.set_ahead_by(3 * DAY);
    tidy(&store, &clock).await;
    let other = client_of(&store, &clock).await;
    assert!(
        other
            .mutex("a")
            .try_lock()
            .await
            .expect("it works")
            .is_none()
    );
    lease.extend().await.expect("still held");
}

/// A lock of another boot is removed when it has expired by the wall clock, and not before. The
/// time since boot in its row belongs to the other boot.
#[tokio::test]
async fn locks_of_another_boot_are_removed_by_the_wall_clock() {
    let (store, clock) = (Store::new(), ShiftedClock::default());
    let client = client_of(&store, &clock).await;
    let _leases = (lock(&client, "held").await, lock(&client, "over").await);
    let rewrite = |name: &str, boot_ns: i64, unix_us: i64| {
        let set = "UPDATE names SET clock = 'another/time:[1]', expires_boot_ns = ?,
                   expires_unix_us = ?, fence_until_us = 1 WHERE name = CAST(? AS BLOB)";
        let changed = store
            .sql()
            .execute(set, rusqlite::params![boot_ns, unix_us, name]);
        assert_eq!(changed, Ok(1));
    };
    rewrite("held", 1, i64::MAX);
    rewrite("over", i64::MAX, 1);
    tidy(&store, &clock).await;
    let names = "SELECT group_concat(CAST(name AS TEXT)) FROM names";
    let names = store.sql().query_row(names, [], |row| row.get(0));
    assert_eq!(names, Ok("held".to_owned()));
}

/// Other users may write the file. The name of a socket in it must not lead to another file.
#[tokio::test]
async fn a_socket_name_cannot_lead_to_another_file() {
    let (store, clock) = (Store::new(), ShiftedClock::default());
    let client = client_of(&store, &clock).await;
    let precious = store.dir().join("precious.sock");
    std::fs::write(&precious, "x").expect("written");
    for socket in [precious.to_str().expect("text"), "../precious.sock"] {
        let enter = "INSERT INTO waiters (name, owner, ticket, clock, asked_boot_ns,
                                          asked_unix_us, socket, id)
                     VALUES (x'61', CAST(?1 AS BLOB), 1 << 52, 'elsewhere', 0, ?2, ?1, 1)";
        let now_us = leasehold_testkit::unix_us() as i64;
        store
            .sql()
            .execute(enter, (socket, now_us))
            .expect("written");
    }
    let mark = "INSERT INTO names (name, line) VALUES (x'61', 1)";
    store.sql().execute(mark, []).expect("written");
    lock(&client, "a").await.release().await;
    tidy(&store, &clock).await;
    assert!(precious.exists());
    assert_eq!(store.waiters(), 0);
}
