//! Waiting in line on several nodes, on a paused clock: regression tests for bugs that the
//! simulator found.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::node::{Call, HANDED_OVER, Node, NodeError, Verb, Vote};
use leasehold::{Lease, MemoryNode, Name, TimeSource};
use leasehold_testkit::setup::{lease_of, spawn_lock};
use leasehold_testkit::{RuntimeClock, TestNode};

/// A node that answers after a delay, and cannot notify.
fn far(node: &MemoryNode, ms: u64) -> TestNode {
    let delay = Duration::from_millis(ms);
    let node = TestNode::new(node).without_notifications();
    node.answering_after(move |_| delay)
}

/// Tokens are issued only some time after a node was created.
async fn until_nodes_issue_tokens() {
    tokio::time::sleep(Duration::from_secs(20)).await;
}

/// Simulator seed 42: a waiter that acquired the lease on a majority released it only on the
/// nodes that had granted it. On the other nodes it remained the first in line, so no other claim
/// could acquire the lock there until the node removed it as silent.
#[tokio::test(start_paused = true)]
async fn a_waiters_lease_is_released_on_every_node() {
    let clock = RuntimeClock::start();
    let nodes = clock.nodes(3);
    let far: Vec<_> = nodes.iter().map(|node| far(node, 1)).collect();
    let (one, two) = (clock.client(nodes.clone()), clock.client(far.clone()));
    until_nodes_issue_tokens().await;
    let held = one.mutex("a").lock().await.expect("a lease");
    let waiting = spawn_lock(two.mutex("a"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    // A client of another library holds the lock on one node.
    let name = Name::new("a").expect("a name");
    nodes[2].set(&name, b"foreign", None);
    held.release().await;
    let lease = lease_of(waiting).await;
    let is_release = |verb| matches!(verb, Verb::Release { .. });
    let releases = || [0, 1, 2].map(|node: usize| far[node].count(is_release));
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
    let nodes = clock.nodes(7);
    let delays = (0..).map(|index| 700 - 50 * index);
    let far: Vec<_> = nodes.iter().zip(delays).map(|(n, ms)| far(n, ms)).collect();
    let client = clock.client(far.clone());
    until_nodes_issue_tokens().await;
    let held = clock.client(nodes).mutex("a").lock().await;
    let held = held.expect("a lease");
    let mutex = client.mutex("a").with_options(|options| {
        options
            .outage_patience(Duration::from_secs(60))
            .node_timeout(Duration::from_secs(2))
    });
    let waiting = spawn_lock(mutex);
    tokio::time::sleep(Duration::from_secs(3)).await;
    far[..4].iter().for_each(|node| node.set_unreachable(true));
    held.release().await;
    let waits = || -> usize {
        let waits = far.iter().map(|node| node.count(|verb| verb == Verb::Wait));
        waits.sum()
    };
    let before = waits();
    tokio::time::sleep(Duration::from_secs(20)).await;
    // A waiter without notifications polls each node about ten times a second.
    let asked = waits() - before;
    assert!((300..1_200).contains(&asked), "asked {asked} times");
    waiting.abort();
}

/// A holder releases the lock to a waiter whose last WAIT was sent `ago` earlier. Returns the
/// waiter's lease, and how many ACQUIRE requests it sent. Its node refuses every EXTEND.
async fn handed_over(ago: Duration, renewal: bool) -> (usize, Lease) {
    let clock = RuntimeClock::start();
    let nodes = clock.nodes(1);
    let rigid = TestNode::new(&nodes[0]).submit_with(|node, call| match call.verb() {
        Verb::Extend => call.answer(Err(NodeError::refused("no"))),
        _ => node.submit(call),
    });
    let waiter = clock.client([rigid.clone()]);
    until_nodes_issue_tokens().await;
    let held = clock.client(nodes).mutex("a").lock().await;
    let held = held.expect("a lease");
    let waiting = spawn_lock(waiter.mutex("a").with_options(|options| {
        let options = options.ttl(Duration::from_secs(30));
        match renewal {
            true => options,
            false => options.without_renewal(),
        }
    }));
    tokio::time::sleep(ago).await;
    let _ = rigid.take_requests();
    held.release().await;
    let lease = lease_of(waiting).await;
    (rigid.count(|verb| verb == Verb::Acquire), lease)
}

/// Rule: the validity of a lease that was handed over counts from the last moment at which the
/// waiter knew that the lock was not granted yet. The lease is then extended at once, or soon
/// lost.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_handed_over_counts_from_the_last_request() {
    let ago = Duration::from_millis(700);
    let (acquires, lease) = handed_over(ago, true).await;
    assert_eq!(acquires, 0, "no ACQUIRE was sent");
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
    let (acquires, lease) = handed_over(Duration::from_millis(700), false).await;
    assert_eq!(acquires, 1);
    assert!(lease.remaining() > Duration::from_secs(29));
}

/// Nor is it passed on by another task of the process.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_handed_over_is_not_passed_on_to_a_task_without_renewal() {
    let clock = RuntimeClock::start();
    let nodes = clock.nodes(1);
    let (one, two) = (clock.client(nodes.clone()), clock.client(nodes));
    until_nodes_issue_tokens().await;
    let held = one.mutex("a").lock().await.expect("a lease");
    let mutex = two.mutex("a");
    let mutex = mutex.with_options(|options| options.ttl(Duration::from_secs(30)));
    let first = spawn_lock(mutex.clone());
    tokio::time::sleep(Duration::from_millis(500)).await;
    let second = spawn_lock(mutex.with_options(leasehold::Options::without_renewal));
    tokio::time::sleep(Duration::from_millis(500)).await;
    held.release().await;
    let handed_over = lease_of(first).await;
    assert!(handed_over.remaining() < HANDED_OVER);
    handed_over.release().await;
    let lease = lease_of(second).await;
    assert!(lease.remaining() > Duration::from_secs(29));
}

/// Where the nodes accept the EXTEND, the lease has its whole TTL at once.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_handed_over_is_extended_soon() {
    let clock = RuntimeClock::start();
    let nodes = clock.nodes(1);
    let (one, two) = (clock.client(nodes.clone()), clock.client(nodes));
    until_nodes_issue_tokens().await;
    let held = one.mutex("a").lock().await.expect("a lease");
    let mutex = two
        .mutex("a")
        .with_options(|options| options.ttl(Duration::from_secs(30)));
    let waiting = spawn_lock(mutex);
    tokio::time::sleep(Duration::from_millis(500)).await;
    held.release().await;
    let lease = lease_of(waiting).await;
    assert!(lease.remaining() < HANDED_OVER);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(lease.remaining() > Duration::from_secs(29));
}

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

/// A node far away: messages take `way` in each direction and stay in order.
fn distant(node: &MemoryNode, way: Duration) -> TestNode {
    let to = node.clone();
    let calls = Pipe::new(way, move |call| to.submit(call));
    type Answered = (Call, Result<Vote, NodeError>);
    let answers = Pipe::new(way, |(call, answer): Answered| call.answer(answer));
    TestNode::new(node).submit_with(move |_, call| {
        let answers = answers.clone();
        calls.put(call.relay(move |call, answer| answers.put((call, answer))));
    })
}

/// Runs a client at distance `way` from `nodes` for 15 s, while `rivals` nearby clients hold the
/// lock for a millisecond each, again and again. Returns how many leases the far client got, and
/// its longest wait.
async fn far_among_near(nodes: usize, way: Duration, rivals: usize) -> (usize, Duration) {
    let clock = RuntimeClock::start();
    let nodes = clock.nodes(nodes);
    let far = clock.client(nodes.iter().map(|node| distant(node, way)));
    until_nodes_issue_tokens().await;
    for _ in 0..rivals {
        let near = clock.client(nodes.iter().map(|node| distant(node, NEAR)));
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

/// The requests that a waiter sends after its ticket was overtaken.
async fn asked_when_overtaken() -> Vec<(Verb, u64)> {
    let clock = RuntimeClock::start();
    let nodes = clock.nodes(1);
    // Reports once that the waiter's ticket was overtaken.
    let overtakes = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&overtakes);
    let node = TestNode::new(&nodes[0]).without_notifications();
    let node = node.submit_with(move |node, call| {
        let token = call.claim().token();
        match call.verb() == Verb::Wait && now.swap(false, Ordering::SeqCst) {
            true => call.answer(Ok(Vote::Stale {
                fence: token + 160,
                now: token + 5_000_000,
            })),
            false => node.submit(call),
        }
    });
    let waiter = clock.client([node.clone()]);
    until_nodes_issue_tokens().await;
    let held = clock.client(nodes).mutex("a").lock().await;
    let held = held.expect("a lease");
    let waiting = spawn_lock(waiter.mutex("a"));
    tokio::time::sleep(Duration::from_millis(500)).await;
    let _ = node.take_requests();
    overtakes.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let asked = node.take_requests();
    held.release().await;
    lease_of(waiting).await.release().await;
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

/// Simulator seed 435889026470: a far client was handed the lock by notifications, and had less time
/// left than its extension took. So it lost the lease that it had just acquired.
#[tokio::test(start_paused = true)]
async fn a_far_client_does_not_rely_on_a_hand_over_that_it_cannot_extend() {
    let clock = RuntimeClock::start();
    let nodes = clock.nodes(1);
    let round_trip = Duration::from_millis(900);
    let far = TestNode::new(&nodes[0]).answering_after(move |_| round_trip);
    let (near, far) = (clock.client(nodes), clock.client(vec![far]));
    until_nodes_issue_tokens().await;
    let held = near.mutex("a").lock().await.expect("a lease");
    let mutex = far.mutex("a");
    let waiting = spawn_lock(mutex.with_options(|options| options.node_timeout(round_trip * 2)));
    // ACQUIRE takes one round trip, and WAIT another.
    tokio::time::sleep(round_trip + Duration::from_millis(1_300)).await;
    held.release().await;
    let lease = lease_of(waiting).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(lease.is_valid(), "{:?}", lease.loss());
}
