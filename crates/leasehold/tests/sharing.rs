//! Tasks of one process that want the same name: one place in the line, and a claim that is
//! passed on from task to task.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::node::{Call, Node, NodeError, Verb};
use leasehold::{
    Client, Error, Lease, MemoryNode, Moment, Mutex, Name, Options, Released, TimeSource,
};
use tokio::task::JoinHandle;

/// A node that counts what it is asked, and is out of order when told so.
#[derive(Clone)]
struct Counted {
    node: MemoryNode,
    acquires: Arc<AtomicUsize>,
    broken: Arc<AtomicUsize>,
}

impl Counted {
    fn new() -> Self {
        Self {
            node: MemoryNode::new("counted"),
            acquires: Arc::default(),
            broken: Arc::default(),
        }
    }

    fn client(&self) -> Client {
        let builder = Client::builder().custom_node(self.clone());
        builder.build().expect("a client")
    }

    fn acquires(&self) -> usize {
        self.acquires.load(Ordering::SeqCst)
    }

    fn is_free(&self) -> bool {
        self.node.get(&Name::new("a").expect("a name")).is_none()
    }
}

impl Node for Counted {
    fn label(&self) -> &str {
        "counted"
    }

    fn floor(&self) -> u64 {
        self.node.floor()
    }

    fn watch(
        &self,
        claim: &leasehold::node::Claim,
        notifier: &leasehold::node::Notifier,
    ) -> Option<leasehold::node::Watch> {
        self.node.watch(claim, notifier)
    }

    fn submit(&self, call: Call) {
        if self.broken.load(Ordering::SeqCst) > 0 {
            let why = "out of order".into();
            return call.answer(Err(NodeError::Unreachable { why }));
        }
        if matches!(call.verb(), Verb::Acquire | Verb::Wait) {
            self.acquires.fetch_add(1, Ordering::SeqCst);
        }
        self.node.submit(call);
    }
}

/// A task that waits in this process: `lock` has been called and has not returned.
async fn waiting(mutex: Mutex) -> JoinHandle<Result<Lease, Error>> {
    let waiter = tokio::spawn(async move { mutex.lock().await });
    // Polled once, it is in the queue: the runtime has one thread.
    tokio::task::yield_now().await;
    assert!(!waiter.is_finished());
    waiter
}

async fn lease(waiter: JoinHandle<Result<Lease, Error>>) -> Lease {
    waiter.await.expect("no panic").expect("a lease")
}

async fn until(what: &str, so: impl Fn() -> bool) {
    let waiting = async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), waiting).await;
    assert!(waited.is_ok(), "never: {what}");
}

/// A clock that stands still: however slow the machine is, no time passes.
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
async fn a_claim_is_passed_on_without_asking_and_with_a_larger_token() {
    let node = Counted::new();
    let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let unix_us = u64::try_from(unix.expect("after 1970").as_micros()).expect("small");
    let builder = Client::builder().time_source(Still(Moment::now(), unix_us));
    let client = builder.custom_node(node.clone()).build().expect("a client");
    let held = client.mutex("a").lock().await.expect("free");
    let (token, before) = (held.token(), node.acquires());
    let next = waiting(client.mutex("a")).await;
    assert_eq!(held.release().await, Released::Released);
    let next = lease(next).await;
    assert_eq!(next.token(), token + 1);
    assert_eq!(node.acquires(), before, "no node was asked");
    assert!(next.is_valid());
    // It is a lease like any other: extended, detached, and given back.
    next.extend().await.expect("extended");
    let detached = next.detach().await.expect("held");
    assert_eq!(detached.token(), token + 1, "the token that it has used");
    let released = detached.release().await.expect("a majority");
    assert_eq!(released, Released::Released);
    assert!(node.is_free());
}

/// Others must get their turn: not more often than there are tokens in a block.
#[tokio::test]
async fn a_claim_is_not_passed_on_for_ever() {
    let node = Counted::new();
    let client = node.client();
    let held = client.mutex("a").lock().await.expect("free");
    let mut waiters = Vec::new();
    for _ in 0..40 {
        waiters.push(waiting(client.mutex("a")).await);
    }
    let first = held.token();
    let mut last = first;
    held.release().await;
    for waiter in waiters {
        let lease = lease(waiter).await;
        assert!(lease.token() > last, "tokens grow");
        last = lease.token();
        lease.release().await;
    }
    assert!(last >= first + 32, "three claims at least");
    assert!(node.is_free());
}

#[tokio::test]
async fn who_has_gone_away_is_passed_over() {
    let node = Counted::new();
    let client = node.client();
    let held = client.mutex("a").lock().await.expect("free");
    let gone = waiting(client.mutex("a")).await;
    let next = waiting(client.mutex("a")).await;
    gone.abort();
    assert!(gone.await.is_err());
    held.release().await;
    lease(next).await.release().await;
    // Nobody is left: what is passed on to nobody is given back.
    let held = client.mutex("a").lock().await.expect("free");
    let gone = waiting(client.mutex("a")).await;
    gone.abort();
    assert!(gone.await.is_err());
    drop(held);
    until("given back", || node.is_free()).await;
    let again = client.mutex("a").lock().await.expect("free");
    again.release().await;
}

/// A task that hears of its turn and is cancelled before it can take it.
#[tokio::test]
async fn a_turn_that_nobody_takes_goes_on() {
    let node = Counted::new();
    let client = node.client();
    let held = client.mutex("a").lock().await.expect("free");
    let gone = waiting(client.mutex("a")).await;
    let next = waiting(client.mutex("a")).await;
    // The claim is on its way to the task when that is aborted.
    drop(held);
    gone.abort();
    let _ = gone.await;
    lease(next).await.release().await;
    until("given back", || node.is_free()).await;
}

/// A lease that is lost stands in nobody's way, though its guard is still there.
#[tokio::test]
async fn the_turn_of_a_lost_lease_is_over() {
    let node = Counted::new();
    let client = node.client();
    let short = |o: Options| o.ttl(Duration::from_millis(300)).without_renewal();
    let mutex = client.mutex("a").with_options(short);
    let held = mutex.lock().await.expect("free");
    let next = lease(waiting(client.mutex("a")).await).await;
    assert!(!held.is_valid() && held.loss().is_some());
    assert!(next.token() > held.token());
}

#[tokio::test]
async fn a_claim_with_other_options_is_given_back() {
    let node = Counted::new();
    let client = node.client();
    let held = client.mutex("a").lock().await.expect("free");
    let labelled = client.mutex("a").with_options(|o| o.label("other"));
    let next = waiting(labelled).await;
    let token = held.token();
    held.release().await;
    assert!(
        lease(next).await.token() >= token + 16,
        "a claim of its own"
    );
}

/// `min_hold` keeps the name taken: for those of the same process, too.
#[tokio::test]
async fn min_hold_is_not_passed_over() {
    let node = Counted::new();
    let client = node.client();
    let least = Duration::from_millis(300);
    let mutex = client.mutex("a").with_options(|o| o.min_hold(least));
    let started = std::time::Instant::now();
    let held = mutex.lock().await.expect("free");
    let next = waiting(client.mutex("a")).await;
    held.release().await;
    lease(next).await.release().await;
    assert!(started.elapsed() >= least);
}

/// One after the other they would each ride the outage out by themselves.
#[tokio::test]
async fn all_hear_of_an_outage_at_the_same_time() {
    let node = Counted::new();
    let client = node.client();
    let patience = Duration::from_millis(400);
    let patient = |o: Options| o.outage_patience(patience);
    node.broken.store(1, Ordering::SeqCst);
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
    // And when it is over, it is over.
    node.broken.store(0, Ordering::SeqCst);
    drop(client.mutex("a").lock().await.expect("a lease"));
}

#[tokio::test]
async fn who_waits_here_gives_up_in_time_and_says_who_was_in_the_way() {
    let client = Counted::new().client();
    let _held = client.mutex("a").lock().await.expect("free");
    let wait = Duration::from_millis(100);
    match client.mutex("a").lock_timeout(wait).await {
        Err(Error::TimedOut { waited, refusal }) => {
            assert!(waited >= wait);
            assert!(refusal.holder().is_some());
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_shutdown_ends_the_wait() {
    let client = Counted::new().client();
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
