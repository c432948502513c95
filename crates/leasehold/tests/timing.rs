//! Late answers, on a paused clock: whether they count, and what must be cleaned up after them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::node::{Call, Node, NodeError, Verb};
use leasehold::{Client, Error, Loss, MemoryNode, Name, Options, TimeSource};
use leasehold_testkit::RuntimeClock;

const SECOND: Duration = Duration::from_secs(1);

/// A node on a slow connection: requests arrive at once, answers are delayed.
#[derive(Clone)]
struct Slow {
    node: MemoryNode,
    /// The delays of ACQUIRE and EXTEND.
    delays: Arc<Mutex<(Duration, Duration)>>,
    released: Arc<AtomicBool>,
    /// Whether the node is unreachable.
    down: Arc<AtomicBool>,
}

impl Slow {
    fn new(clock: RuntimeClock, acquire: Duration) -> Self {
        Self {
            node: MemoryNode::with_time_source("slow", Arc::new(clock)),
            delays: Arc::new(Mutex::new((acquire, Duration::ZERO))),
            released: Arc::default(),
            down: Arc::default(),
        }
    }

    fn delay_extend(&self, by: Duration) {
        self.delays.lock().unwrap().1 = by;
    }

    fn holds(&self, name: &str) -> bool {
        self.node.get(&Name::new(name).unwrap()).is_some()
    }
}

impl Node for Slow {
    fn label(&self) -> &str {
        "slow"
    }

    fn floor(&self) -> u64 {
        self.node.floor()
    }

    fn submit(&self, call: Call) {
        if self.down.load(Ordering::SeqCst) {
            let why = "down".into();
            return call.answer(Err(NodeError::Unreachable { why }));
        }
        let (acquire, extend) = *self.delays.lock().unwrap();
        let delay = match call.verb() {
            Verb::Acquire | Verb::Wait => acquire,
            Verb::Extend => extend,
            Verb::Release { .. } => {
                self.released.store(true, Ordering::SeqCst);
                Duration::ZERO
            }
        };
        let late = call.relay(move |call, answer| {
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                call.answer(answer);
            });
        });
        self.node.submit(late);
    }
}

fn patient(options: Options) -> Options {
    options.node_timeout(8 * SECOND)
}

async fn client(clock: RuntimeClock, nodes: &[Slow]) -> Client {
    // A token must lie between the floor and the cap. The distance between them is the time since
    // the nodes were created.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let builder = Client::builder().time_source(clock).without_restart_guard();
    let builder = nodes
        .iter()
        .fold(builder, |builder, node| builder.custom_node(node.clone()));
    builder.build().expect("a client")
}

/// `validity = ttl − elapsed − drift`, counted from before the first byte was sent.
#[tokio::test(start_paused = true)]
async fn a_slow_grant_is_a_shorter_lease() {
    let clock = RuntimeClock::start();
    let node = Slow::new(clock, 3 * SECOND);
    let client = client(clock, std::slice::from_ref(&node)).await;
    let before = clock.now();
    let lease = client
        .mutex("a")
        .with_options(patient)
        .lock()
        .await
        .unwrap();
    assert!(clock.now() >= before + 3 * SECOND);
    assert_eq!(lease.deadline(), before + Duration::from_millis(9_898));
}

/// The same for EXTEND.
#[tokio::test(start_paused = true)]
async fn a_slow_extend_counts_from_its_own_send() {
    let clock = RuntimeClock::start();
    let node = Slow::new(clock, Duration::ZERO);
    let client = client(clock, std::slice::from_ref(&node)).await;
    let mutex = client
        .mutex("a")
        .with_options(|o| patient(o).without_renewal());
    let lease = mutex.lock().await.unwrap();
    tokio::time::sleep(2 * SECOND).await;
    node.delay_extend(4 * SECOND);
    let before = clock.now();
    lease.extend().await.expect("in time");
    assert_eq!(lease.deadline(), before + Duration::from_millis(9_898));
}

/// After the deadline the lease is lost, whatever a server answers later.
#[tokio::test(start_paused = true)]
async fn an_extend_that_is_answered_too_late_does_not_save_the_lease() {
    let clock = RuntimeClock::start();
    let node = Slow::new(clock, Duration::ZERO);
    let client = client(clock, std::slice::from_ref(&node)).await;
    let mutex = client
        .mutex("a")
        .with_options(|o| patient(o).without_renewal());
    let lease = mutex.lock().await.unwrap();
    let deadline = lease.deadline();
    tokio::time::sleep(5 * SECOND).await;
    node.delay_extend(6 * SECOND);
    let outcome = lease.extend().await;
    assert!(matches!(outcome, Err(Error::Lost { .. })), "{outcome:?}");
    assert_eq!(lease.deadline(), deadline);
    // The node did extend the lock. The client releases it instead of letting it expire.
    tokio::time::sleep(SECOND).await;
    assert!(!node.holds("a"));
}

/// A failed attempt releases the grants that it received, including those that arrive after the
/// failure.
#[tokio::test(start_paused = true)]
async fn the_grants_of_a_failed_attempt_are_released() {
    let clock = RuntimeClock::start();
    let nodes: Vec<_> = [0, 0, 0, 0, 5]
        .map(|seconds| Slow::new(clock, seconds * SECOND))
        .to_vec();
    // Other clients hold three of five nodes. Of the two free nodes, one answers late.
    for node in &nodes[..3] {
        node.node.set(&Name::new("a").unwrap(), b"others", None);
    }
    let client = client(clock, &nodes).await;
    let refused = client.mutex("a").with_options(patient).try_lock().await;
    assert!(refused.expect("a majority").is_none());
    tokio::time::sleep(SECOND).await;
    assert!(!nodes[3].holds("a") && !nodes[4].holds("a"));
    assert!(nodes[3].released.load(Ordering::SeqCst));
    assert!(nodes[4].released.load(Ordering::SeqCst));
    // Where a node refused, there is nothing to release, and the other holder keeps its lock.
    assert!(!nodes[0].released.load(Ordering::SeqCst));
    assert!(nodes[..3].iter().all(|node| node.holds("a")));
}

/// A late grant of a successful attempt belongs to the lease and is released with it.
#[tokio::test(start_paused = true)]
async fn a_late_grant_is_released_with_the_lease() {
    let clock = RuntimeClock::start();
    let start = clock.now();
    let nodes: Vec<_> = [0, 0, 5]
        .map(|seconds| Slow::new(clock, seconds * SECOND))
        .to_vec();
    let client = client(clock, &nodes).await;
    let lease = client
        .mutex("a")
        .with_options(patient)
        .lock()
        .await
        .unwrap();
    assert!(
        clock.now() < start + SECOND,
        "the acquire waited for the slow node"
    );
    assert!(nodes.iter().all(|node| node.holds("a")));
    lease.release().await;
    assert!(nodes.iter().all(|node| !node.holds("a")));
}

/// A grant that arrives when the validity has run out makes no lease, and is released.
#[tokio::test(start_paused = true)]
async fn a_grant_that_arrives_after_the_validity_is_no_lease() {
    let clock = RuntimeClock::start();
    let node = Slow::new(clock, Duration::from_millis(9_899));
    let client = client(clock, std::slice::from_ref(&node)).await;
    let mutex = client
        .mutex("a")
        .with_options(|o| o.node_timeout(10 * SECOND));
    let outcome = mutex.try_lock().await;
    assert!(matches!(outcome, Err(Error::NoMajority(_))), "{outcome:?}");
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(!node.holds("a") && node.released.load(Ordering::SeqCst));
}

/// Two of three nodes have forgotten a lease of 10 s, one of these answers late, and the third
/// node is unreachable. Returns how and when the lease is lost.
async fn taken_away_during_an_outage() -> (Option<Loss>, Duration) {
    let clock = RuntimeClock::start();
    let nodes: Vec<_> = [0, 0, 0].map(|_| Slow::new(clock, Duration::ZERO)).to_vec();
    let client = client(clock, &nodes).await;
    let lease = client.mutex("a").lock().await.unwrap();
    nodes[0].node.forget();
    nodes[1].down.store(true, Ordering::SeqCst);
    nodes[2].node.forget();
    nodes[2].delay_extend(Duration::from_millis(20));
    let start = clock.now();
    lease.lost().await;
    let took = clock.now().saturating_duration_since(start);
    (lease.loss(), took)
}

/// One node refuses the renewal and another one fails before the third, whose answer decides.
#[tokio::test(start_paused = true)]
async fn a_lease_that_a_majority_forgot_is_lost_at_once_though_a_node_fails() {
    let (loss, took) = taken_away_during_an_outage().await;
    assert_eq!(loss, Some(Loss::TakenAway));
    assert!(took < Duration::from_millis(3_500), "{took:?}");
}

#[cfg(feature = "planted-bugs")]
#[tokio::test(start_paused = true)]
async fn the_test_detects_a_renewal_that_is_decided_too_early() {
    use leasehold::planted::{Bug, plant};
    plant(Some(Bug::DecidesTooEarly));
    let (loss, took) = taken_away_during_an_outage().await;
    plant(None);
    assert_eq!(loss, Some(Loss::NotRenewed));
    assert!(took > 9 * SECOND, "{took:?}");
}

/// The same for an explicit `extend`, and for a release.
#[tokio::test(start_paused = true)]
async fn an_extend_and_a_release_wait_for_the_answers_that_decide() {
    for extends in [true, false] {
        let clock = RuntimeClock::start();
        let nodes: Vec<_> = [0, 0, 0].map(|_| Slow::new(clock, Duration::ZERO)).to_vec();
        let client = client(clock, &nodes).await;
        let lease = client.mutex("a").lock().await.unwrap();
        nodes[0].node.forget();
        nodes[1].down.store(true, Ordering::SeqCst);
        nodes[2].node.forget();
        nodes[2].delay_extend(Duration::from_millis(20));
        match extends {
            true => {
                let outcome = lease.extend().await;
                assert!(matches!(outcome, Err(Error::Lost { .. })), "{outcome:?}");
            }
            false => assert_eq!(lease.release().await, leasehold::Released::WasLost),
        }
    }
}
