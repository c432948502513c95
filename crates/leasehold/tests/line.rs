//! Standing in line on several nodes, on a paused clock: what the simulator found, told by
//! itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::node::{Bell, Call, Claim, HANDED_OVER, Node, NodeError, Verb, Watch};
use leasehold::{Client, MemoryNode, Moment, Name, TimeSource};

/// Time as the paused runtime has it.
#[derive(Clone, Copy)]
struct Paused(tokio::time::Instant);

impl TimeSource for Paused {
    fn now(&self) -> Moment {
        Moment::from_origin(Duration::from_secs(1_000) + self.0.elapsed())
    }

    fn unix_us(&self) -> u64 {
        1_800_000_000_000_000 + self.0.elapsed().as_micros() as u64
    }
}

/// A node whose answers take a while, which counts what it is asked, and which may go away.
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

fn memory(clock: Paused, count: usize) -> Vec<MemoryNode> {
    let node = |n| MemoryNode::with_time_source(format!("n{n}"), Arc::new(clock));
    (0..count).map(node).collect()
}

fn client(clock: Paused, nodes: &[MemoryNode]) -> Client {
    let mut builder = Client::builder().time_source(clock);
    for node in nodes {
        builder = builder.custom_node(node.clone());
    }
    builder.build().expect("a client")
}

/// Seed 42 of its time: who had waited, and got the lease from a majority, gave it back only
/// where it had been granted. Where it had not, its place in the line stayed, and the lock was
/// reserved for it, again and again, until it was taken for dead.
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_waited_for_is_given_back_everywhere() {
    let clock = Paused(tokio::time::Instant::now());
    let nodes = memory(clock, 3);
    let far: Vec<_> = nodes.iter().map(|node| Far::new(node, 1)).collect();
    let mut builder = Client::builder().time_source(clock).without_restart_guard();
    for node in &far {
        builder = builder.custom_node(node.clone());
    }
    let (one, two) = (client(clock, &nodes), builder.build().expect("a client"));
    // So that there are tokens to give.
    tokio::time::sleep(Duration::from_secs(20)).await;
    let held = one.mutex("a").lock().await.expect("a lease");
    let mutex = two.mutex("a");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    // Another library has the lock of one node.
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

/// Seed 89 of its time: a majority was away, and the nodes that were left said "your turn" to
/// every question. Those answers came late, each that told nothing new made another question,
/// and there were more of them each time.
#[tokio::test(start_paused = true)]
async fn answers_that_tell_nothing_new_do_not_make_more_questions() {
    let clock = Paused(tokio::time::Instant::now());
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
    // Each node about ten times a second, which is how often one asks who is told nothing.
    let asked = waits.load(Ordering::SeqCst) - before;
    assert!((300..1_200).contains(&asked), "asked {asked} times");
    waiting.abort();
}

/// A node that extends nothing, and counts how often it is asked for the lock.
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

    fn watch(&self, claim: &Claim, bell: &Bell) -> Option<Watch> {
        self.node.watch(claim, bell)
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

/// One who holds the lock, one who waits for it and has asked `ago`, and the waiter's lease.
async fn handed_over(ago: Duration, renewal: bool) -> (Paused, Rigid, leasehold::Lease) {
    let clock = Paused(tokio::time::Instant::now());
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

/// Rule: the validity of a lease that is handed over counts from the last moment at which the
/// waiter knew that it was not granted yet; and it is extended at once, or soon lost.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_handed_over_counts_from_the_last_question() {
    let ago = Duration::from_millis(700);
    let (_, rigid, lease) = handed_over(ago, true).await;
    assert_eq!(rigid.acquires.load(Ordering::SeqCst), 0, "nobody has asked");
    let (left, most) = (lease.remaining(), HANDED_OVER - ago);
    assert!(
        left < most && left > most - Duration::from_millis(50),
        "{left:?}"
    );
    let since = tokio::time::Instant::now();
    lease.lost().await;
    assert!(since.elapsed() < left, "it is told before the deadline");
}

/// Nobody would extend it: so it is asked for, and has its TTL.
#[tokio::test(start_paused = true)]
async fn a_lease_that_nobody_renews_is_not_handed_over() {
    let (_, rigid, lease) = handed_over(Duration::from_millis(700), false).await;
    assert_eq!(rigid.acquires.load(Ordering::SeqCst), 1);
    assert!(lease.remaining() > Duration::from_secs(29));
}

/// Where nodes extend it, it has its TTL in a moment.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_handed_over_is_extended_soon() {
    let clock = Paused(tokio::time::Instant::now());
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
