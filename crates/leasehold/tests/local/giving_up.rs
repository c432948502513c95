//! Waiters that give up leave nothing behind.

use std::time::Duration;

use leasehold::{Client, Error};
use leasehold_testkit::setup::blocking::until;
use leasehold_testkit::setup::{LONG, Waiter, lease_of, spawn_lock};

use super::puppet::Puppet;
use super::store::Store;
use super::{client, forever};

#[test]
fn a_process_that_gives_up_leaves_no_row_and_no_socket() {
    let store = Store::new();
    let (mut holder, mut other) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    holder.lock("a");
    other.send("wait a 3600000 1200");
    store.until_waiters(1);
    assert_eq!(store.sockets().len(), 1);
    assert_eq!(other.receive(), "timed out");
    assert_eq!(other.request("shutdown"), "0 owed");
    assert_eq!(store.waiters(), 0);
    assert_eq!(store.sockets(), [""; 0]);
    holder.release("a");
}

/// A client that waits for a lock, and the process that holds it.
async fn waiting(store: &Store) -> (Client, Waiter, Puppet) {
    let mut holder = Puppet::of(&store.url());
    holder.lock("a");
    let client = client(&store.url()).await;
    let waiting = spawn_lock(client.mutex("a").with_options(forever));
    store.until_waiters(1);
    (client, waiting, holder)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_future_leaves_no_row_and_no_socket() {
    let store = Store::new();
    let (client, waiting, mut holder) = waiting(&store).await;
    assert_eq!(store.sockets().len(), 1);
    waiting.abort();
    assert!(waiting.await.expect_err("cancelled").is_cancelled());
    assert_eq!(client.shutdown(LONG).await, 0);
    assert_eq!(store.waiters(), 0);
    assert_eq!(store.sockets(), [""; 0]);
    // Nor has it acquired the lock that it no longer waits for.
    holder.release("a");
    assert!(!Puppet::of(&store.url()).finds_held("a"));
}

/// A waiter is woken even after another waiter of the same process has given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_gives_up_keeps_the_socket_of_another() {
    let store = Store::new();
    let mut holder = Puppet::of(&store.url());
    holder.lock("a");
    let client = client(&store.url()).await;
    let mutex = client.mutex("a").with_options(forever);
    let short = mutex.lock_timeout(Duration::from_millis(300)).await;
    assert!(matches!(short, Err(Error::TimedOut { .. })), "{short:?}");
    let waiting = spawn_lock(mutex);
    let other = client.mutex("a").with_options(forever);
    store.until_waiters(1);
    let short = other.lock_timeout(Duration::from_millis(300)).await;
    assert!(matches!(short, Err(Error::TimedOut { .. })), "{short:?}");
    store.until_waiters(1);
    holder.release("a");
    drop(lease_of(waiting).await);
}

/// Even without a shutdown, as long as the process lives.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_dropped_tidies_up() {
    let store = Store::new();
    let (client, waiting, _holder) = waiting(&store).await;
    waiting.abort();
    drop(client);
    until("no rows, no sockets", || {
        store.waiters() == 0 && store.sockets().is_empty()
    });
}
