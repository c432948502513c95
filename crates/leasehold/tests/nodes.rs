//! Custom nodes: the contract of the trait, and how the library handles nodes that strain it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::node::{Call, Node, NodeError, Verb, Vote};
use leasehold::{Client, Error, MemoryNode, NodeOutcome, OnceStart, Released};
use leasehold_testkit::TestNode;
use leasehold_testkit::setup::{patient, until};

/// A node that passes each call to its closure.
struct Scripted<F>(F);

impl<F: Fn(Call) + Send + Sync + 'static> Node for Scripted<F> {
    fn label(&self) -> &str {
        "scripted"
    }

    fn submit(&self, call: Call) {
        (self.0)(call);
    }
}

fn client_of(submit: impl Fn(Call) + Send + Sync + 'static) -> Client {
    let builder = Client::builder().custom_node(Scripted(submit));
    builder.build().expect("a client")
}

/// A client of a node that answers at once, with the result of the closure.
fn client(answer: impl Fn(Verb) -> Result<Vote, NodeError> + Send + Sync + 'static) -> Client {
    client_of(move |call| {
        let answer = answer(call.verb());
        call.answer(answer);
    })
}

/// Runs the test on a separate thread, so that a deadlock fails instead of hanging.
fn within_a_minute(test: impl AsyncFnOnce() + Send + 'static) {
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
            .block_on(test());
        done.send(()).expect("the test waits");
    });
    wait.recv_timeout(Duration::from_secs(60))
        .expect("the test ends in time and without a panic");
}

/// A node may answer within `submit`, even with an error. The janitor, which must then retry,
/// must not deadlock.
#[test]
fn a_release_that_fails_at_once_is_retried() {
    within_a_minute(async || {
        let releases = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&releases);
        let client = client(move |verb| match verb {
            Verb::Release { .. } if count.fetch_add(1, Ordering::SeqCst) < 3 => {
                Err(NodeError::refused("not now"))
            }
            Verb::Release { .. } => Ok(Vote::Released { held: true }),
            _ => Ok(Vote::Granted),
        });
        drop(client.mutex("a").lock().await.expect("granted"));
        assert_eq!(client.shutdown(Duration::from_secs(30)).await, 0);
        assert_eq!(releases.load(Ordering::SeqCst), 4);
    });
}

/// The janitor stops retrying a release that a node never confirms once the lock has expired.
#[test]
fn a_release_is_not_retried_for_ever() {
    within_a_minute(async || {
        let client = client(|verb| match verb {
            Verb::Release { .. } => Err(NodeError::refused("never")),
            _ => Ok(Vote::Granted),
        });
        let ttl = Duration::from_millis(300);
        let mutex = client.mutex("a").with_options(|o| o.ttl(ttl));
        let lease = mutex.lock().await.expect("granted");
        // The release is unconfirmed, but as far as is known the lock was held to the end.
        assert_eq!(lease.release().await, Released::Released);
        assert_eq!(client.shutdown(Duration::from_secs(30)).await, 0);
    });
}

/// Dropping a call answers it with an error.
#[tokio::test]
async fn a_dropped_call_is_answered_with_an_error() {
    let client = client_of(drop);
    let error = client.mutex("a").try_lock().await.expect_err("no vote");
    let outcome = &error.nodes()[0].outcome;
    assert_eq!(*outcome, NodeOutcome::Failed(NodeError::Unanswered));
}

/// `Call::serve` bounds a store that never answers.
#[tokio::test]
async fn a_future_that_hangs_is_cut_off() {
    let client = client_of(|call| drop(tokio::spawn(call.serve(std::future::pending()))));
    let timeout = Duration::from_millis(30);
    let mutex = client.mutex("a").with_options(|o| o.node_timeout(timeout));
    let error = mutex.try_lock().await.expect_err("no vote");
    let outcome = &error.nodes()[0].outcome;
    assert_eq!(*outcome, NodeOutcome::Failed(NodeError::timed_out(timeout)));
}

/// A node that accepts everything but answers with the vote of another verb: such votes do not
/// count.
#[tokio::test]
async fn a_vote_for_another_verb_does_not_count() {
    let client = client(|verb| match verb {
        Verb::Acquire => Ok(Vote::Released { held: true }),
        _ => Ok(Vote::Granted),
    });
    let error = client.mutex("a").try_lock().await.expect_err("no grant");
    assert!(matches!(error, Error::NoMajority(_)), "{error:?}");
}

/// A client that is overtaken again and again stops asking for a larger token. Other clients are
/// faster, so the lock counts as contended.
#[tokio::test]
async fn a_client_stops_asking_for_ever_larger_tokens() {
    let fence = AtomicUsize::new(1);
    let client = client(move |verb| match verb {
        Verb::Acquire => {
            let fence = (1 << 52) + fence.fetch_add(1 << 20, Ordering::SeqCst) as u64;
            Ok(Vote::Stale { fence, now: 0 })
        }
        _ => Ok(Vote::Released { held: false }),
    });
    let lease = client.mutex("a").try_lock().await.expect("contention");
    assert!(lease.is_none(), "{lease:?}");
}

/// A process may exit after a break. A request that has not reached a node by then never does.
#[tokio::test]
async fn a_break_waits_for_the_slowest_node() {
    let nodes = ["a", "b", "c"].map(|name| TestNode::new(&MemoryNode::new(name)));
    let [one, two, slow] = nodes;
    let slow = slow.submit_with(|node, call| match call.verb() {
        Verb::Release { .. } => {
            let node = node.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                node.submit(call);
            });
        }
        _ => node.submit(call),
    });
    let builder = Client::builder().custom_node(one).custom_node(two);
    let client = builder.custom_node(slow.clone()).build().expect("a client");
    let lease = client.mutex("a").lock().await.expect("a lease");
    let id = lease.owner_id();
    lease.detach().await.expect("detached");
    assert!(slow.holds("a"));
    assert!(client.break_lock("a", &id).await.expect("a majority"));
    assert!(!slow.holds("a"), "the slowest node still holds the lock");
}

/// The node keeps the name, and the answer is lost. When the request is repeated, the node does not
/// recognise a reader, or a lock without a token: that does not mean that the lease was lost.
#[tokio::test]
async fn a_kept_name_whose_answer_was_lost_is_not_a_lost_lease() {
    let node = TestNode::new(&MemoryNode::new("a"));
    let is_first = AtomicBool::new(true);
    let node = node.submit_with(move |node, call| match call.verb() {
        Verb::Release { keep: Some(_) } if is_first.swap(false, Ordering::SeqCst) => {
            let lost = NodeError::unreachable("the answer was lost");
            node.submit(call.relay(|call, _| call.answer(Err(lost))));
        }
        _ => node.submit(call),
    });
    let client = Client::builder().custom_node(node).build();
    let client = client.expect("a client");
    let reading = client.rw_lock("a").read().await.expect("a lease");
    let kept = reading.release_keeping(Duration::from_secs(60)).await;
    assert!(matches!(kept, Err(Error::NoMajority(_))), "{kept:?}");
}

/// A node that has no room for a result must not keep the lock instead.
#[tokio::test]
async fn a_result_that_is_refused_leaves_the_lock_free() {
    let node = TestNode::new(&MemoryNode::new("full"));
    let node = node.submit_with(|node, call| match call.verb() {
        Verb::Release { keep: Some(_) } => call.answer(Err(NodeError::OutOfMemory)),
        _ => node.submit(call),
    });
    let builder = Client::builder().custom_node(node.clone());
    let client = builder.build().expect("a client");
    let once = client.once("a", Duration::from_secs(60));
    let OnceStart::Turn(turn) = once.with_options(patient).begin().await.expect("a turn") else {
        panic!("no turn");
    };
    let stored = turn.store(b"result").await;
    assert!(matches!(stored, Err(Error::NoMajority(_))), "{stored:?}");
    until("the lock is free", || !node.holds("a")).await;
}
