//! Waiters are woken, in whatever process they are, and cost nothing until then.

use std::time::Duration;

use leasehold::Client;
use leasehold_testkit::process;

use super::puppet::{Puppet, since_boot};
use super::store::{Store, median};
use super::{client, forever};

/// Far below the second after which waiters send WAIT by themselves. It is a bound for the median
/// of several measurements, because any of them may be delayed by a busy machine.
const PROMPT: Duration = Duration::from_millis(200);

/// Passes the lock back and forth between two processes.
fn hand_overs(store: &Store, times: usize) -> Vec<Duration> {
    let (mut holder, mut other) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    let mut last = holder.lock("a").token;
    let mut took = Vec::new();
    for _ in 0..times {
        other.send_lock("a");
        store.until_waiters(1);
        let released = holder.release("a");
        let got = other.receive_lease();
        assert!(got.token > last);
        last = got.token;
        took.push(got.at.saturating_sub(released));
        std::mem::swap(&mut holder, &mut other);
    }
    took
}

#[test]
fn a_release_wakes_a_waiter_in_another_process() {
    let took = hand_overs(&Store::new(), 20);
    assert!(median(took.clone()) <= PROMPT, "{took:?}");
}

/// The path of a socket is limited to 108 bytes.
#[test]
fn a_release_wakes_a_waiter_in_a_directory_with_a_long_path() {
    let below = vec!["d".repeat(100); 4].join("/");
    let store = Store::within(&below);
    assert!(store.path().as_os_str().len() > 400);
    let took = hand_overs(&store, 10);
    assert!(median(took.clone()) <= PROMPT, "{took:?}");
}

async fn hand_over_within(store: &Store, one: &Client, other: &Client) -> Vec<Duration> {
    let mut took = Vec::new();
    for _ in 0..10 {
        let mutex = one.mutex("a").with_options(forever);
        let lease = mutex.lock().await.expect("a lease");
        let waiting = other.mutex("a").with_options(forever);
        let waiting = tokio::spawn(async move {
            let lease = waiting.lock().await.expect("a lease");
            (std::time::Instant::now(), lease)
        });
        store.until_waiters(1);
        let released = std::time::Instant::now();
        lease.release().await;
        let (got, lease) = waiting.await.expect("no panic");
        took.push(got.saturating_duration_since(released));
        lease.release().await;
        store.until_waiters(0);
    }
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_a_waiter_in_the_same_process() {
    let store = Store::new();
    let one = client(&store.url()).await;
    let another = client(&store.url()).await;
    let took = hand_over_within(&store, &one, &another).await;
    assert!(median(took.clone()) <= PROMPT, "{took:?}");
}

#[test]
fn the_death_of_a_holder_wakes_a_waiter() {
    let store = Store::new();
    let mut other = Puppet::of(&store.url());
    let mut took = Vec::new();
    for _ in 0..7 {
        let mut holder = Puppet::of(&store.url());
        holder.lock("a");
        other.send_lock("a");
        store.until_waiters(1);
        let killed = since_boot();
        holder.kill();
        took.push(other.receive_lease().at.saturating_sub(killed));
        other.release("a");
        store.until_waiters(0);
    }
    assert!(median(took.clone()) <= PROMPT, "{took:?}");
}

#[test]
fn waiting_uses_almost_no_processor_time() {
    let store = Store::new();
    let (mut holder, mut other) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    holder.lock("a");
    other.send_lock("a");
    store.until_waiters(1);
    let before = process::cpu_time(other.pid());
    let wall = Duration::from_secs(3);
    other.is_silent_for(wall);
    let used = process::cpu_time(other.pid()) - before;
    assert!(used < wall / 20, "{used:?} in {wall:?}");
}

#[test]
fn a_waiter_that_was_killed_does_not_keep_the_next_from_being_woken() {
    let store = Store::new();
    let (mut holder, mut next) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    store.until_in_order();
    let mut took = Vec::new();
    for _ in 0..5 {
        holder.lock("a");
        let mut first = Puppet::of(&store.url());
        first.send_lock("a");
        store.until_waiters(1);
        let sockets = store.sockets();
        next.send_lock("a");
        store.until_waiters(2);
        first.kill();
        first.reap();
        let stale = format!("{}-", first.pid());
        assert!(sockets.iter().any(|name| name.starts_with(&stale)));
        let released = holder.release("a");
        let got = next.receive_lease();
        took.push(got.at.saturating_sub(released));
        // Nothing is left of the dead waiter.
        store.until_waiters(0);
        let left = store.sockets();
        let stale = |name: &String| name.starts_with(&stale);
        assert!(!left.iter().any(stale), "{left:?}");
        next.release("a");
    }
    assert!(median(took.clone()) <= PROMPT, "{took:?}");
}

/// A stopped waiter cannot be distinguished from a slow one. It is woken without effect, and the
/// next one sends WAIT by itself a little later.
#[test]
fn a_waiter_that_is_stopped_does_not_keep_the_lock_from_the_next() {
    let store = Store::new();
    let mut puppets: Vec<_> = (0..3).map(|_| Puppet::of(&store.url())).collect();
    let [holder, first, next] = &mut puppets[..] else {
        unreachable!()
    };
    holder.lock("a");
    first.send_lock("a");
    store.until_waiters(1);
    next.send_lock("a");
    store.until_waiters(2);
    first.stop();
    holder.release("a");
    let second = next.receive_lease();
    first.resume();
    next.release("a");
    assert!(first.receive_lease().token > second.token);
}

/// A waiter that was woken and is killed before it has acquired the lock must not delay the next
/// one for longer than the interval at which waiters send WAIT.
#[test]
fn a_waiter_that_is_killed_as_it_is_woken_does_not_keep_the_lock_from_the_next() {
    let store = Store::new();
    let (mut holder, mut next) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    for _ in 0..3 {
        holder.lock("a");
        let mut first = Puppet::of(&store.url());
        first.send_lock("a");
        store.until_waiters(1);
        next.send_lock("a");
        store.until_waiters(2);
        holder.release("a");
        first.kill();
        next.receive_lease();
        next.release("a");
    }
    // The rows of dead waiters are removed at the next release at the latest.
    holder.lock("a");
    holder.release("a");
    store.until_waiters(0);
}
