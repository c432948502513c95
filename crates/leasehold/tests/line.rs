//! Waiting in line on several nodes, on a paused clock: regression tests for bugs that the
//! simulator found.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::node::{Call, Claim, HANDED_OVER, Node, NodeError, Notifier, Verb, Vote, Watch};
use leasehold::{Client, MemoryNode, Name, TimeSource};
use leasehold_testkit::RuntimeClock;

/// A node that answers after a delay, counts its requests, and can become unreachable.
#[derive(Clone)]
struct Far {
    node: MemoryNode,
    delay: Duration,
    waits: Arc<AtomicUsize>,
    releases: Arc<AtomicUsize>,
    away: Arc<AtomicBool>,
}

impl Far {
    fn new(node: &MemoryNode, ms: u64) -> Self {
        Self {
            node: node.clone(),
            delay: Duration::from_millis(ms),
            waits: Arc::default(),
            releases: Arc::default(),
            away: Arc::default(),
        }
    }
}

impl Node for Far {
    fn label(&self) -> &str {
        self.node.label()
    }

    fn floor(&self) -> u64 {
        self.node.floor()
    }

    fn submit(&self, call: Call) {
        if self.away.load(Ordering::SeqCst) {
            let why = "no connection".into();
            return call.answer(Err(NodeError::Unreachable { why }));
        }
        match call.verb() {
            Verb::Wait => self.waits.fetch_add(1, Ordering::SeqCst),
            Verb::Release { .. } => self.releases.fetch_add(1, Ordering::SeqCst),
            _ => 0,
        };
        let delay = self.delay;
        self.node.submit(call.relay(move |call, answer| {
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                call.answer(answer);
            });
        }));
    }
}

fn memory(clock: RuntimeClock, count: usize) -> Vec<MemoryNode> {
    let node = |n| MemoryNode::with_time_source(format!("n{n}"), Arc::new(clock));
    (0..count).map(node).collect()
}

fn client(clock: RuntimeClock, nodes: &[MemoryNode]) -> Client {
    client_of(clock, nodes.iter().cloned())
}

fn client_of<N: Node>(clock: RuntimeClock, nodes: impl Iterator<Item = N>) -> Client {
    let builder = Client::builder().time_source(clock).without_restart_guard();
    let builder = nodes.fold(builder, |builder, node| builder.custom_node(node));
    builder.build().expect("a client")
}

/// Simulator seed 42: a waiter that acquired the lease on a majority released it only on the
/// nodes that had granted it. On the other nodes its place in the line remained, and the lock was
/// reserved for it again and again until the node dropped it as silent.
#[tokio::test(start_paused = true)]
async fn a_waiters_lease_is_released_on_every_node() {
    let clock = RuntimeClock::start();
    let nodes = memory(clock, 3);
    let far: Vec<_> = nodes.iter().map(|node| Far::new(node, 1)).collect();
    let mut builder = Client::builder().time_source(clock).without_restart_guard();
    for node in &far {
        builder = builder.custom_node(node.clone());
    }
    let (one, two) = (client(clock, &nodes), builder.build().expect("a client"));
    // Time must pass before there are tokens to issue.
    tokio::time::sleep(Duration::from_secs(20)).await;
    let held = one.mutex("a").lock().await.expect("a lease");
    let mutex = two.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    // A client of another library holds the lock on one node.
    let name = Name::new("a").expect("a name");
    nodes[2].set(&name, b"foreign", None);
    held.release().await;
    let lease = waiting.await.expect("no panic").expect("a lease");
    let releases = || [0, 1, 2].map(|node: usize| far[node].releases.load(Ordering::SeqCst));
    let before = releases();
    lease.release().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(releases(), before.map(|count| count + 1));
}

/// Simulator seed 89: a majority was unreachable, and the remaining nodes answered "your turn" to
/// every WAIT. Each late answer without news caused another request, so the number of requests
/// grew without bound.
#[tokio::test(start_paused = true)]
async fn an_answer_without_news_does_not_cause_another_request() {
    let clock = RuntimeClock::start();
    let nodes = memory(clock, 7);
    let waits = Arc::new(AtomicUsize::new(0));
    let (gone, here) = (Arc::new(AtomicBool::new(false)), Arc::default());
    let mut builder = Client::builder().time_source(clock).without_restart_guard();
    for (index, node) in nodes.iter().enumerate() {
        builder = builder.custom_node(Far {
            waits: Arc::clone(&waits),
            away: Arc::clone(if index < 4 { &gone } else { &here }),
            ..Far::new(node, 700 - 50 * index as u64)
        });
    }
    let far = builder.build().expect("a client");
    tokio::time::sleep(Duration::from_secs(20)).await;
    let held = client(clock, &nodes).mutex("a").lock().await;
    let held = held.expect("a lease");
    let mutex = far.mutex("a").with_options(|options| {
        options
            .outage_patience(Duration::from_secs(60))
            .node_timeout(Duration::from_secs(2))
    });
    let waiting = tokio::spawn(async move { mutex.lock().await });
    tokio::time::sleep(Duration::from_secs(3)).await;
    gone.store(true, Ordering::SeqCst);
    held.release().await;
    let before = waits.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(20)).await;
    // A waiter without notifications polls each node about ten times a second.
    let asked = waits.load(Ordering::SeqCst) - before;
    assert!((300..1_200).contains(&asked), "asked {asked} times");
    waiting.abort();
}

/// A node that refuses every EXTEND and counts the ACQUIRE requests.
#[derive(Clone)]
struct Rigid {
    node: MemoryNode,
    acquires: Arc<AtomicUsize>,
}

impl Node for Rigid {
    fn label(&self) -> &str {
        self.node.label()
    }

    fn floor(&self) -> u64 {
        self.node.floor()
    }

    fn watch(&self, claim: &Claim, notifier: &Notifier) -> Option<Watch> {
        self.node.watch(claim, notifier)
    }

    fn submit(&self, call: Call) {
        match call.verb() {
            Verb::Extend => {
                let why = "no".into();
                return call.answer(Err(NodeError::Refused { why }));
            }
            Verb::Acquire => {
                self.acquires.fetch_add(1, Ordering::SeqCst);
            }
            _ => {}
        }
        self.node.submit(call);
    }
}

/// A holder releases the lock to a waiter whose last WAIT was sent `ago` earlier. Returns the
/// waiter's lease.
async fn handed_over(ago: Duration, renewal: bool) -> (RuntimeClock, Rigid, leasehold::Lease) {
    let clock = RuntimeClock::start();
    let node = MemoryNode::with_time_source("n", Arc::new(clock));
    let rigid = Rigid {
        node: node.clone(),
        acquires: Arc::default(),
    };
    let builder = Client::builder().time_source(clock);
    let waiter = builder
        .custom_node(rigid.clone())
        .build()
        .expect("a client");
    tokio::time::sleep(Duration::from_secs(20)).await;
    let held = client(clock, &[node]).mutex("a").lock().await;
    let held = held.expect("a lease");
    let mutex = waiter.mutex("a").with_options(|options| {
        let options = options.ttl(Duration::from_secs(30));
        match renewal {
            true => options,
            false => options.without_renewal(),
        }
    });
    let waiting = tokio::spawn(async move { mutex.lock().await });
    tokio::time::sleep(ago).await;
    rigid.acquires.store(0, Ordering::SeqCst);
    held.release().await;
    let lease = waiting.await.expect("no panic").expect("a lease");
    (clock, rigid, lease)
}

/// Rule: the validity of a lease that was handed over counts from the last moment at which the
/// waiter knew that the lock was not granted yet. The lease is then extended at once, or soon
/// lost.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_handed_over_counts_from_the_last_request() {
    let ago = Duration::from_millis(700);
    let (_, rigid, lease) = handed_over(ago, true).await;
    assert_eq!(
        rigid.acquires.load(Ordering::SeqCst),
        0,
        "no ACQUIRE was sent"
    );
    let (left, most) = (lease.remaining(), HANDED_OVER - ago);
    assert!(
        left < most && left > most - Duration::from_millis(50),
        "{left:?}"
    );
    let since = tokio::time::Instant::now();
    lease.lost().await;
    assert!(
        since.elapsed() < left,
        "the loss is reported before the deadline"
    );
}

/// Without renewal nothing would extend the lease, so the waiter sends an ACQUIRE and gets the
/// whole TTL.
#[tokio::test(start_paused = true)]
async fn a_lease_without_renewal_is_not_handed_over() {
    let (_, rigid, lease) = handed_over(Duration::from_millis(700), false).await;
    assert_eq!(rigid.acquires.load(Ordering::SeqCst), 1);
    assert!(lease.remaining() > Duration::from_secs(29));
}

/// Where the nodes accept the EXTEND, the lease has its whole TTL at once.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_handed_over_is_extended_soon() {
    let clock = RuntimeClock::start();
    let nodes = memory(clock, 1);
    let (one, two) = (client(clock, &nodes), client(clock, &nodes));
    tokio::time::sleep(Duration::from_secs(20)).await;
    let held = one.mutex("a").lock().await.expect("a lease");
    let mutex = two
        .mutex("a")
        .with_options(|options| options.ttl(Duration::from_secs(30)));
    let waiting = tokio::spawn(async move { mutex.lock().await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    held.release().await;
    let lease = waiting.await.expect("no panic").expect("a lease");
    assert!(lease.remaining() < HANDED_OVER);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(lease.remaining() > Duration::from_secs(29));
}

/// A node far away: messages take `way` in each direction and stay in order.
struct Distant {
    node: MemoryNode,
    calls: Pipe<Call>,
    answers: Pipe<Answered>,
}

type Answered = (Call, Result<Vote, NodeError>);

/// Delivers each item after a delay, in order.
struct Pipe<T>(
    tokio::sync::mpsc::UnboundedSender<(tokio::time::Instant, T)>,
    Duration,
);

impl<T: Send + 'static> Pipe<T> {
    fn new(way: Duration, deliver: impl Fn(T) + Send + 'static) -> Self {
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some((at, item)) = receiver.recv().await {
                tokio::time::sleep_until(at).await;
                deliver(item);
            }
        });
        Self(sender, way)
    }

    fn put(&self, item: T) {
        let at = tokio::time::Instant::now() + self.1;
        // When the runtime of a test ends, this task may end before those that still send.
        let _ = self.0.send((at, item));
    }
}

impl<T> Clone for Pipe<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), self.1)
    }
}

impl Distant {
    fn new(node: &MemoryNode, way: Duration) -> Self {
        let to = node.clone();
        Self {
            node: node.clone(),
            calls: Pipe::new(way, move |call| to.submit(call)),
            answers: Pipe::new(way, |(call, answer): Answered| call.answer(answer)),
        }
    }
}

impl Node for Distant {
    fn label(&self) -> &str {
        self.node.label()
    }

    fn floor(&self) -> u64 {
        self.node.floor()
    }

    fn watch(&self, claim: &Claim, notifier: &Notifier) -> Option<Watch> {
        self.node.watch(claim, notifier)
    }

    fn submit(&self, call: Call) {
        let answers = self.answers.clone();
        let answered = move |call, answer| answers.put((call, answer));
        self.calls.put(call.relay(answered));
    }
}

/// Runs a client at distance `way` from `nodes` for 15 s, while `rivals` nearby clients hold the
/// lock for a millisecond each, again and again. Returns how many leases the far client got, and
/// its longest wait.
async fn far_among_near(nodes: usize, way: Duration, rivals: usize) -> (usize, Duration) {
    let clock = RuntimeClock::start();
    let nodes = memory(clock, nodes);
    let far = client_of(clock, nodes.iter().map(|node| Distant::new(node, way)));
    tokio::time::sleep(Duration::from_secs(20)).await;
    for _ in 0..rivals {
        let near = client_of(clock, nodes.iter().map(|node| Distant::new(node, NEAR)));
        tokio::spawn(async move {
            loop {
                let lease = near.mutex("a").lock().await.expect("a lease");
                tokio::time::sleep(Duration::from_millis(1)).await;
                lease.release().await;
            }
        });
    }
    let (start, mut leases, mut longest) = (clock.now(), 0, Duration::ZERO);
    while clock.now() < start + Duration::from_secs(15) {
        let asked = clock.now();
        let waited = far.mutex("a").lock_timeout(Duration::from_secs(15)).await;
        longest = longest.max(clock.now().saturating_duration_since(asked));
        let Ok(lease) = waited else { break };
        leases += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
        lease.release().await;
    }
    (leases, longest)
}

/// The distance of a nearby client.
const NEAR: Duration = Duration::from_micros(100);

/// A far client's ticket used to be overtaken each time while its request travelled, so it never
/// acquired the lock.
#[tokio::test(start_paused = true)]
async fn a_far_client_gets_a_contended_lock() {
    for (nodes, way_ms, rivals) in [(1, 40, 3), (1, 120, 10), (3, 40, 3), (5, 120, 10)] {
        let way = Duration::from_millis(way_ms);
        let (leases, longest) = far_among_near(nodes, way, rivals).await;
        eprintln!("{nodes} node(s), {way:?} away, {rivals} near: {leases}, {longest:?}");
        assert!(leases >= 15, "{leases} leases, {nodes} nodes, {way:?}");
        assert!(longest < 20 * way, "{longest:?}, {nodes} nodes, {way:?}");
    }
}

/// A node that records its requests, and reports once that a waiter's ticket was overtaken.
#[derive(Clone)]
struct Overtaking {
    node: MemoryNode,
    asked: Arc<Mutex<Vec<(Verb, u64)>>>,
    overtakes: Arc<AtomicBool>,
}

impl Node for Overtaking {
    fn label(&self) -> &str {
        self.node.label()
    }

    fn floor(&self) -> u64 {
        self.node.floor()
    }

    fn submit(&self, call: Call) {
        let (verb, token) = (call.verb(), call.claim().token());
        self.asked.lock().unwrap().push((verb, token));
        if verb == Verb::Wait && self.overtakes.swap(false, Ordering::SeqCst) {
            let fence = token + 160;
            let now = token + 5_000_000;
            return call.answer(Ok(Vote::Stale { fence, now }));
        }
        self.node.submit(call);
    }
}

/// The requests that a waiter sends after its ticket was overtaken.
async fn asked_when_overtaken() -> Vec<(Verb, u64)> {
    let clock = RuntimeClock::start();
    let nodes = memory(clock, 1);
    let node = Overtaking {
        node: nodes[0].clone(),
        asked: Arc::default(),
        overtakes: Arc::default(),
    };
    let waiter = client_of(clock, std::iter::once(node.clone()));
    tokio::time::sleep(Duration::from_secs(20)).await;
    let held = client(clock, &nodes).mutex("a").lock().await;
    let held = held.expect("a lease");
    let waiting = tokio::spawn(async move { waiter.mutex("a").lock().await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    node.asked.lock().unwrap().clear();
    node.overtakes.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let asked = std::mem::take(&mut *node.asked.lock().unwrap());
    held.release().await;
    let lease = waiting.await.expect("no panic").expect("a lease");
    lease.release().await;
    asked
}

/// Rule: a waiter joins with its new ticket before it leaves its old place, and takes the lowest
/// ticket that can win. Otherwise the waiters behind it would be served in between.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_is_overtaken_joins_again_before_it_leaves() {
    let asked = asked_when_overtaken().await;
    let (wait, release) = (Verb::Wait, Verb::Release { keep: None });
    let ticket = asked[0].1;
    let verbs: Vec<_> = asked.iter().map(|(verb, _)| *verb).collect();
    assert_eq!(verbs[..3], [wait, wait, release], "{asked:?}");
    assert_eq!(asked[2].1, ticket, "{asked:?}");
    // A millisecond above the fence, which is how far a token may move it, and far below the
    // clock.
    let lead = asked[1].1 - ticket;
    assert!((160..2_000).contains(&lead), "{asked:?}");
}

#[cfg(feature = "planted-bugs")]
#[tokio::test(start_paused = true)]
async fn the_test_detects_leaving_before_joining() {
    use leasehold::planted::{Bug, plant};
    plant(Some(Bug::LeavesBeforeItJoins));
    let asked = asked_when_overtaken().await;
    plant(None);
    assert!(matches!(asked[1].0, Verb::Release { .. }), "{asked:?}");
}

#[cfg(feature = "planted-bugs")]
#[tokio::test(start_paused = true)]
async fn without_a_lead_a_far_client_never_gets_the_lock() {
    use leasehold::planted::{Bug, plant};
    plant(Some(Bug::NoLead));
    let (leases, _) = far_among_near(1, Duration::from_millis(40), 3).await;
    plant(None);
    assert!(leases < 5, "{leases}");
}
