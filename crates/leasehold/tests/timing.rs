//! Answers that come late, on a paused clock: what they may count for, and what must be
//! cleaned up after them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::node::{Call, Node, NodeError, Verb};
use leasehold::{Client, Error, Loss, MemoryNode, Moment, Name, Options, TimeSource};

const SECOND: Duration = Duration::from_secs(1);

/// Time as the paused runtime has it.
#[derive(Clone, Copy)]
struct Paused(tokio::time::Instant);

impl TimeSource for Paused {
    fn now(&self) -> Moment {
        Moment::from_origin(self.0.elapsed())
    }

    fn unix_us(&self) -> u64 {
        1_800_000_000_000_000 + self.0.elapsed().as_micros() as u64
    }
}

/// A node behind a slow line: requests arrive at once, answers take their time.
#[derive(Clone)]
struct Slow {
    node: MemoryNode,
    /// For ACQUIRE and for EXTEND.
    delays: Arc<Mutex<(Duration, Duration)>>,
    released: Arc<AtomicBool>,
    /// It cannot be reached.
    down: Arc<AtomicBool>,
}

impl Slow {
    fn new(clock: Paused, acquire: Duration) -> Self {
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

async fn client(clock: Paused, nodes: &[Slow]) -> Client {
    // Tokens must be above the floor and within the cap: between them lies the time since
    // the nodes were made.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let builder = Client::builder().time_source(clock).without_restart_guard();
    let builder = nodes
        .iter()
        .fold(builder, |builder, node| builder.custom_node(node.clone()));
    builder.build().expect("a client")
}

/// `validity = ttl − elapsed − drift`, from before the first byte was sent.
#[tokio::test(start_paused = true)]
async fn a_slow_grant_is_a_shorter_lease() {
    let clock = Paused(tokio::time::Instant::now());
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

/// The same for an EXTEND.
#[tokio::test(start_paused = true)]
async fn a_slow_extend_counts_from_its_own_send() {
    let clock = Paused(tokio::time::Instant::now());
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

/// Past the deadline the lease is lost, whatever a server says later.
#[tokio::test(start_paused = true)]
async fn an_extend_that_is_answered_too_late_saves_nothing() {
    let clock = Paused(tokio::time::Instant::now());
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
    // The node did extend it; that is given back, not left to the TTL.
    tokio::time::sleep(SECOND).await;
    assert!(!node.holds("a"));
}

/// A failed attempt gives back what it got, and what it gets after it has failed.
#[tokio::test(start_paused = true)]
async fn what_a_failed_attempt_was_granted_is_given_back() {
    let clock = Paused(tokio::time::Instant::now());
    let nodes: Vec<_> = [0, 0, 0, 0, 5]
        .map(|seconds| Slow::new(clock, seconds * SECOND))
        .to_vec();
    // Others hold three of five; of the two that are free, one answers late.
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
    // Where it was refused, nothing needs to be given back, and nothing was taken away.
    assert!(!nodes[0].released.load(Ordering::SeqCst));
    assert!(nodes[..3].iter().all(|node| node.holds("a")));
}

/// A straggler of an attempt that was won belongs to the lease: released with the rest.
#[tokio::test(start_paused = true)]
async fn a_straggler_is_released_with_the_rest() {
    let clock = Paused(tokio::time::Instant::now());
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
        clock.now() < Moment::from_origin(SECOND),
        "it waited for the slow one"
    );
    assert!(nodes.iter().all(|node| node.holds("a")));
    lease.release().await;
    assert!(nodes.iter().all(|node| !node.holds("a")));
}

/// A grant that comes when nothing of the lease is left is no lease, and is given back.
#[tokio::test(start_paused = true)]
async fn a_grant_at_the_very_end_is_no_lease() {
    let clock = Paused(tokio::time::Instant::now());
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

/// How and when a lease of 10 s is lost that two of three nodes have forgotten, one of which
/// answers late, while the third cannot be reached.
async fn taken_away_during_an_outage() -> (Option<Loss>, Duration) {
    let clock = Paused(tokio::time::Instant::now());
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

/// One node refuses the renewal and another fails before the third has answered, which decides.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_taken_away_is_lost_at_once_though_a_node_fails() {
    let (loss, took) = taken_away_during_an_outage().await;
    assert_eq!(loss, Some(Loss::TakenAway));
    assert!(took < Duration::from_millis(3_500), "{took:?}");
}

#[cfg(feature = "planted-bugs")]
#[tokio::test(start_paused = true)]
async fn a_renewal_that_is_decided_too_early_is_seen() {
    use leasehold::planted::{Bug, plant};
    plant(Some(Bug::DecidesTooEarly));
    let (loss, took) = taken_away_during_an_outage().await;
    plant(None);
    assert_eq!(loss, Some(Loss::NotRenewed));
    assert!(took > 9 * SECOND, "{took:?}");
}

/// The same for an extend that the holder asks for, and for a release.
#[tokio::test(start_paused = true)]
async fn an_extend_and_a_release_wait_for_the_answers_that_decide() {
    for extends in [true, false] {
        let clock = Paused(tokio::time::Instant::now());
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
