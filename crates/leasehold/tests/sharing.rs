//! Tasks of one process that wait for the same name: they share one place in the line, and pass
//! one claim on from task to task.

use std::time::Duration;

use leasehold::node::Verb;
use leasehold::{Client, Error, MemoryNode, Moment, Mutex, Options, Released, TimeSource};
use leasehold_testkit::setup::{Waiter, lease_of, spawn_lock, until};
use leasehold_testkit::{TestNode, unix_us};

/// A node in memory, and a client of it.
fn counted() -> (TestNode, Client) {
    let node = TestNode::new(&MemoryNode::new("counted"));
    let client = Client::builder().custom_node(node.clone()).build();
    (node, client.expect("a client"))
}

/// A task that waits in this process: it has called `lock`, which has not returned.
async fn waiting(mutex: Mutex) -> Waiter {
    let waiter = spawn_lock(mutex);
    // The runtime has one thread, so after one poll the task is in the queue.
    tokio::task::yield_now().await;
    assert!(!waiter.is_finished());
    waiter
}

/// A clock that stands still: no time passes, however slow the machine is.
struct Still(Moment, u64);

impl TimeSource for Still {
    fn now(&self) -> Moment {
        self.0
    }

    fn unix_us(&self) -> u64 {
        self.1
    }
}

#[tokio::test]
async fn a_claim_is_passed_on_without_a_request_and_with_a_larger_token() {
    let node = TestNode::new(&MemoryNode::new("counted"));
    let builder = Client::builder().time_source(Still(Moment::now(), unix_us()));
    let client = builder.custom_node(node.clone()).build().expect("a client");
    let held = client.mutex("a").lock().await.expect("free");
    let acquires = || node.count(|verb| matches!(verb, Verb::Acquire | Verb::Wait));
    let (token, before) = (held.token(), acquires());
    let next = waiting(client.mutex("a")).await;
    assert_eq!(held.release().await, Released::Released);
    let next = lease_of(next).await;
    assert_eq!(next.token(), token + 1);
    assert_eq!(acquires(), before, "no ACQUIRE was sent");
    assert!(next.is_valid());
    // It is a lease like any other: it can be extended, detached and released.
    next.extend().await.expect("extended");
    let detached = next.detach().await.expect("held");
    assert_eq!(detached.token(), token + 1, "the token of the lease");
    let released = detached.release().await.expect("a majority");
    assert_eq!(released, Released::Released);
    assert!(!node.holds("a"));
}

/// Other processes must get their turn: a claim is passed on at most as often as there are tokens
/// in a block.
#[tokio::test]
async fn a_claim_is_not_passed_on_for_ever() {
    let (node, client) = counted();
    let held = client.mutex("a").lock().await.expect("free");
    let mut waiters = Vec::new();
    for _ in 0..40 {
        waiters.push(waiting(client.mutex("a")).await);
    }
    let first = held.token();
    let mut last = first;
    held.release().await;
    for waiter in waiters {
        let lease = lease_of(waiter).await;
        assert!(lease.token() > last, "tokens grow");
        last = lease.token();
        lease.release().await;
    }
    assert!(last >= first + 32, "at least three claims");
    assert!(!node.holds("a"));
}

#[tokio::test]
async fn a_waiter_that_left_is_skipped() {
    let (node, client) = counted();
    let held = client.mutex("a").lock().await.expect("free");
    let gone = waiting(client.mutex("a")).await;
    let next = waiting(client.mutex("a")).await;
    gone.abort();
    assert!(gone.await.is_err());
    held.release().await;
    lease_of(next).await.release().await;
    // When no waiter is left to pass the claim on to, it is released.
    let held = client.mutex("a").lock().await.expect("free");
    let gone = waiting(client.mutex("a")).await;
    gone.abort();
    assert!(gone.await.is_err());
    drop(held);
    until("released", || !node.holds("a")).await;
    let again = client.mutex("a").lock().await.expect("free");
    again.release().await;
}

/// A task is notified of its turn and cancelled before it can take it.
#[tokio::test]
async fn a_turn_that_is_not_taken_goes_to_the_next_waiter() {
    let (node, client) = counted();
    let held = client.mutex("a").lock().await.expect("free");
    let gone = waiting(client.mutex("a")).await;
    let next = waiting(client.mutex("a")).await;
    // The claim is on its way to the task when the task is aborted.
    drop(held);
    gone.abort();
    let _ = gone.await;
    lease_of(next).await.release().await;
    until("released", || !node.holds("a")).await;
}

/// A lost lease does not block the other tasks, though its guard still exists.
#[tokio::test]
async fn a_lost_lease_does_not_block_other_tasks() {
    let (_, client) = counted();
    let short = |o: Options| o.ttl(Duration::from_millis(300)).without_renewal();
    let mutex = client.mutex("a").with_options(short);
    let held = mutex.lock().await.expect("free");
    let next = lease_of(waiting(client.mutex("a")).await).await;
    assert!(!held.is_valid() && held.loss().is_some());
    assert!(next.token() > held.token());
}

#[tokio::test]
async fn a_claim_with_other_options_is_released() {
    let (_, client) = counted();
    let held = client.mutex("a").lock().await.expect("free");
    let labelled = client.mutex("a").with_options(|o| o.label("other"));
    let next = waiting(labelled).await;
    let token = held.token();
    held.release().await;
    assert!(
        lease_of(next).await.token() >= token + 16,
        "a separate claim"
    );
}

/// `min_hold` keeps the name taken for tasks of the same process, too.
#[tokio::test]
async fn min_hold_also_applies_within_the_process() {
    let (_, client) = counted();
    let least = Duration::from_millis(300);
    let mutex = client.mutex("a").with_options(|o| o.min_hold(least));
    let started = std::time::Instant::now();
    let held = mutex.lock().await.expect("free");
    let next = waiting(client.mutex("a")).await;
    held.release().await;
    lease_of(next).await.release().await;
    assert!(started.elapsed() >= least);
}

/// Otherwise each waiter would wait out the outage separately, one after the other.
#[tokio::test]
async fn an_outage_is_reported_to_all_waiters_at_once() {
    let (node, client) = counted();
    let patience = Duration::from_millis(400);
    let patient = |o: Options| o.outage_patience(patience);
    node.set_unreachable(true);
    let started = std::time::Instant::now();
    let mut waiters = Vec::new();
    for _ in 0..50 {
        let mutex = client.mutex("a").with_options(patient);
        waiters.push(tokio::spawn(async move { mutex.lock().await }));
    }
    for waiter in waiters {
        let refused = waiter.await.expect("no panic");
        assert!(matches!(refused, Err(Error::NoMajority(_))), "{refused:?}");
    }
    let lasted = started.elapsed();
    assert!(lasted >= patience && lasted < patience * 25, "{lasted:?}");
    // When the outage ends, the lock can be acquired again.
    node.set_unreachable(false);
    drop(client.mutex("a").lock().await.expect("a lease"));
}

#[tokio::test]
async fn a_local_waiter_times_out_and_names_the_holder() {
    let (_, client) = counted();
    let _held = client.mutex("a").lock().await.expect("free");
    let wait = Duration::from_millis(100);
    match client.mutex("a").lock_timeout(wait).await {
        Err(Error::TimedOut {
            waited, refusal, ..
        }) => {
            assert!(waited >= wait);
            assert!(refusal.holder().is_some());
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_shutdown_ends_the_wait() {
    let (_, client) = counted();
    let _held = client.mutex("a").lock().await.expect("free");
    let waiters = [
        waiting(client.mutex("a")).await,
        waiting(client.mutex("a")).await,
    ];
    client.shutdown(Duration::ZERO).await;
    for waiter in waiters {
        let refused = waiter.await.expect("no panic");
        assert!(matches!(refused, Err(Error::ShutDown)), "{refused:?}");
    }
}
