use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::node::{Call, Node, NodeError, Verb};
use crate::{Client, MemoryNode, Wait};

const PERIOD: Duration = Duration::from_secs(3600);

async fn run(once: &Once, bytes: &[u8]) -> Result<Done, OnceError<()>> {
    once.run(async |_| Ok(bytes.to_vec())).await
}

fn client(nodes: &[MemoryNode]) -> Client {
    let builder = nodes.iter().fold(Client::builder(), |builder, node| {
        builder.custom_node(node.clone())
    });
    builder.without_restart_guard().build().unwrap()
}

/// A minority may keep a result whose release did not reach the others. It is never shown, and the
/// work is done again.
#[tokio::test]
async fn a_result_of_a_minority_does_not_count() {
    let nodes = ["a", "b", "c"].map(MemoryNode::new);
    let one = client(&nodes);
    let done = run(&one.once("x", PERIOD), b"old").await.unwrap();
    for node in &nodes[1..] {
        node.forget();
    }
    // Nothing up to the floor is granted.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let once = client(&nodes).once("x", PERIOD);
    assert!(once.peek().await.unwrap().is_none());
    let again = run(&once, b"new").await.unwrap();
    assert!(again.ran_here && again.token > done.token);
}

/// How a node answers.
#[derive(Clone, Copy)]
enum Manner {
    AtOnce,
    Late,
    Failing,
}

/// A node whose requests are counted.
struct Counted {
    node: MemoryNode,
    asked: Arc<AtomicUsize>,
    manner: Manner,
}

impl Counted {
    fn new(node: MemoryNode, manner: Manner) -> Self {
        Self {
            node,
            asked: Arc::default(),
            manner,
        }
    }
}

impl Node for Counted {
    fn label(&self) -> &str {
        self.node.label()
    }

    fn submit(&self, call: Call) {
        if !matches!(call.verb(), Verb::Release { .. }) {
            self.asked.fetch_add(1, Ordering::SeqCst);
        }
        match self.manner {
            Manner::AtOnce => self.node.submit(call),
            Manner::Failing => call.answer(Err(NodeError::Unanswered)),
            Manner::Late => self.node.submit(call.relay(|call, answer| {
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    call.answer(answer);
                });
            })),
        }
    }
}

/// A finished period costs one round trip and no place in line, however soon the next call is.
#[tokio::test]
async fn a_finished_period_costs_one_request() {
    let node = Counted::new(MemoryNode::new("a"), Manner::AtOnce);
    let asked = Arc::clone(&node.asked);
    let client = Client::builder().custom_node(node).build().unwrap();
    let once = client.once("x", PERIOD);
    run(&once, b"").await.unwrap();
    let before = asked.load(Ordering::SeqCst);
    for _ in 0..10 {
        assert!(!run(&once, b"").await.unwrap().ran_here);
    }
    assert_eq!(asked.load(Ordering::SeqCst), before + 10);
}

/// A node that fails at once ends each round before the last node has answered. The result counts
/// all the same.
#[tokio::test]
async fn a_result_counts_though_a_node_fails_faster_than_others_answer() {
    let nodes = ["a", "b", "c"].map(MemoryNode::new);
    let client = || {
        let manners = [Manner::Failing, Manner::AtOnce, Manner::Late];
        let nodes = nodes.iter().zip(manners);
        let builder = nodes.fold(Client::builder(), |builder, (node, manner)| {
            builder.custom_node(Counted::new(node.clone(), manner))
        });
        builder.without_restart_guard().build().unwrap()
    };
    run(&client().once("x", PERIOD), b"fine").await.unwrap();
    let options = |o: Options| o.wait(Wait::For(Duration::from_millis(500)));
    let once = client().once("x", PERIOD).with_options(options);
    assert_eq!(&*run(&once, b"").await.unwrap().bytes, b"fine");
    let skipping = client().once("x", PERIOD).skip();
    assert_eq!(&*run(&skipping, b"").await.unwrap().bytes, b"fine");
}

/// Nodes that fail while the result is stored, for less than the lease lasts, cost only time. The
/// first request may have taken effect, and its reply was lost.
#[tokio::test]
async fn a_result_is_stored_though_the_nodes_fail_for_a_while() {
    for takes_effect in [true, false] {
        let node = Stalling {
            node: MemoryNode::new("a"),
            releases: AtomicUsize::new(0),
            takes_effect,
        };
        let client = Client::builder().custom_node(node).build().unwrap();
        let once = client.once("x", PERIOD);
        let done = run(&once, b"fine").await.expect("stored");
        assert!(done.ran_here);
        assert_eq!(&*once.peek().await.unwrap().expect("stored").bytes, b"fine");
    }
}

/// A node that does not answer the first three releases.
struct Stalling {
    node: MemoryNode,
    releases: AtomicUsize,
    takes_effect: bool,
}

impl Node for Stalling {
    fn label(&self) -> &str {
        self.node.label()
    }

    fn submit(&self, call: Call) {
        let is_release = matches!(call.verb(), Verb::Release { .. });
        if !is_release || self.releases.fetch_add(1, Ordering::SeqCst) >= 3 {
            return self.node.submit(call);
        }
        match self.takes_effect {
            true => self
                .node
                .submit(call.relay(|call, _| call.answer(Err(NodeError::Unanswered)))),
            false => call.answer(Err(NodeError::Unanswered)),
        }
    }
}

/// An outage is found out once, not by one task after the other.
#[tokio::test]
async fn tasks_share_an_outage() {
    let failing = Counted::new(MemoryNode::new("a"), Manner::Failing);
    let client = Client::builder().custom_node(failing).build().unwrap();
    let calls = (0..100).map(|_| {
        let once = client.once("x", PERIOD);
        tokio::spawn(async move { run(&once, b"").await })
    });
    let calls: Vec<_> = calls.collect();
    let before = Moment::now();
    for call in calls {
        let error = call.await.unwrap().unwrap_err();
        assert!(matches!(error, OnceError::Lease(Error::NoMajority(_))));
    }
    let took = Moment::now().saturating_duration_since(before);
    assert!(took < Duration::from_secs(30), "{took:?}");
}

/// The result of a lease that was lost before it was stored does not count.
#[tokio::test]
async fn a_result_of_a_lost_lease_is_not_stored() {
    let client = client(&[MemoryNode::new("a")]);
    let once = client.once("x", PERIOD);
    let lost = once.run(async |lease| {
        let id = lease.owner_id();
        assert!(client.break_lock("x", &id).await.unwrap());
        Ok::<_, ()>(b"late".to_vec())
    });
    let error = lost.await.unwrap_err();
    assert!(
        matches!(error, OnceError::Lease(Error::Lost { .. })),
        "{error:?}"
    );
    assert!(once.peek().await.unwrap().is_none());
}
