//! Those who wait are woken, in whatever process they are, and cost nothing until then.

use std::time::Duration;

use leasehold::Client;

use super::puppet::{Puppet, since_boot};
use super::store::{Store, median};
use super::{client, forever, until};

/// Far below the second after which those who wait ask again by themselves. The median of
/// several, because any one of them may meet a busy machine.
const PROMPT: Duration = Duration::from_millis(200);

/// Hands the lock to and fro between two processes.
fn hand_overs(store: &Store, times: usize) -> Vec<Duration> {
    let (mut holder, mut other) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    let mut last = holder.lock("a").token;
    let mut took = Vec::new();
    for _ in 0..times {
        other.say_lock("a");
        store.until_waiters(1);
        let released = holder.release("a");
        let got = other.hear_got();
        assert!(got.token > last);
        last = got.token;
        took.push(got.at.saturating_sub(released));
        std::mem::swap(&mut holder, &mut other);
    }
    took
}

#[test]
fn a_release_wakes_who_waits_in_another_process() {
    let took = hand_overs(&Store::new(), 20);
    assert!(median(took.clone()) <= PROMPT, "{took:?}");
}

/// The path of a socket may have 108 bytes.
#[test]
fn it_does_so_in_a_directory_with_a_long_path() {
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
async fn a_release_wakes_who_waits_in_the_same_process() {
    let store = Store::new();
    let one = client(&store.url()).await;
    let another = client(&store.url()).await;
    let took = hand_over_within(&store, &one, &another).await;
    assert!(median(took.clone()) <= PROMPT, "{took:?}");
}

#[test]
fn a_death_wakes_who_waits() {
    let store = Store::new();
    let mut other = Puppet::of(&store.url());
    let mut took = Vec::new();
    for _ in 0..7 {
        let mut holder = Puppet::of(&store.url());
        holder.lock("a");
        other.say_lock("a");
        store.until_waiters(1);
        let killed = since_boot();
        holder.kill();
        took.push(other.hear_got().at.saturating_sub(killed));
        other.release("a");
        store.until_waiters(0);
    }
    assert!(median(took.clone()) <= PROMPT, "{took:?}");
}

#[test]
fn waiting_costs_next_to_nothing() {
    let store = Store::new();
    let (mut holder, mut other) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    holder.lock("a");
    other.say_lock("a");
    store.until_waiters(1);
    let before = other.cpu_time();
    let wall = Duration::from_secs(3);
    other.is_silent_for(wall);
    let used = other.cpu_time() - before;
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
        first.say_lock("a");
        store.until_waiters(1);
        let sockets = store.sockets();
        next.say_lock("a");
        store.until_waiters(2);
        first.kill();
        first.bury();
        let stale = format!("{}-", first.pid());
        assert!(sockets.iter().any(|name| name.starts_with(&stale)));
        let released = holder.release("a");
        let got = next.hear_got();
        took.push(got.at.saturating_sub(released));
        // Nothing of the dead one is left.
        store.until_waiters(0);
        let left = store.sockets();
        let stale = |name: &String| name.starts_with(&stale);
        assert!(!left.iter().any(stale), "{left:?}");
        next.release("a");
    }
    assert!(median(took.clone()) <= PROMPT, "{took:?}");
}

/// A stopped one cannot be told from a slow one: it is woken in vain, and the next asks by
/// itself a little later.
#[test]
fn a_waiter_that_is_stopped_does_not_keep_the_lock_from_the_next() {
    let store = Store::new();
    let mut puppets: Vec<_> = (0..3).map(|_| Puppet::of(&store.url())).collect();
    let [holder, first, next] = &mut puppets[..] else {
        unreachable!()
    };
    holder.lock("a");
    first.say_lock("a");
    store.until_waiters(1);
    next.say_lock("a");
    store.until_waiters(2);
    first.stop();
    holder.release("a");
    let second = next.hear_got();
    first.resume();
    next.release("a");
    assert!(first.hear_got().token > second.token);
}

/// Somebody who was woken and is killed before it has taken the lock must not take the ring
/// with it into the grave for longer than those who wait ask again.
#[test]
fn a_waiter_that_is_killed_as_it_is_woken_does_not_keep_the_lock_from_the_next() {
    let store = Store::new();
    let (mut holder, mut next) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    for _ in 0..3 {
        holder.lock("a");
        let mut first = Puppet::of(&store.url());
        first.say_lock("a");
        store.until_waiters(1);
        next.say_lock("a");
        store.until_waiters(2);
        holder.release("a");
        first.kill();
        next.hear_got();
        next.release("a");
    }
    // The rows of the dead go with the next release at the latest.
    holder.lock("a");
    holder.release("a");
    until("no rows", || store.waiters() == 0);
}
