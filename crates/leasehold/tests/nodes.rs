//! Nodes that people write: the contract, and what becomes of nodes that strain it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::node::{Call, Node, NodeError, Verb, Vote};
use leasehold::{Client, Error, Released, Story};

/// A node that answers on the spot, as its closure says.
struct Scripted<F>(F);

impl<F> Node for Scripted<F>
where
    F: Fn(Verb) -> Result<Vote, NodeError> + Send + Sync + 'static,
{
    fn label(&self) -> &str {
        "scripted"
    }

    fn submit(&self, call: Call) {
        let answer = (self.0)(call.verb());
        call.answer(answer);
    }
}

fn client(answer: impl Fn(Verb) -> Result<Vote, NodeError> + Send + Sync + 'static) -> Client {
    let node = Scripted(answer);
    Client::builder()
        .custom_node(node)
        .build()
        .expect("a client")
}

/// Runs on a thread of its own, so that a deadlock is found and not just waited for.
fn within_a_minute(test: impl AsyncFnOnce() + Send + 'static) {
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime")
            .block_on(test());
        done.send(()).expect("somebody waits");
    });
    wait.recv_timeout(Duration::from_secs(60))
        .expect("it ends, and ends well");
}

/// A node may answer within `submit`, also with an error: the janitor, which then has to
/// ask again, must not be in its own way.
#[test]
fn a_release_that_fails_on_the_spot_is_repeated() {
    within_a_minute(async || {
        let releases = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&releases);
        let client = client(move |verb| match verb {
            Verb::Release { .. } if count.fetch_add(1, Ordering::SeqCst) < 3 => {
                Err(NodeError::Refused {
                    why: "not now".into(),
                })
            }
            Verb::Release { .. } => Ok(Vote::Released { held: true }),
            _ => Ok(Vote::Granted),
        });
        drop(client.mutex("a").lock().await.expect("granted"));
        assert_eq!(client.shutdown(Duration::from_secs(30)).await, 0);
        assert_eq!(releases.load(Ordering::SeqCst), 4);
    });
}

/// A release that a node never confirms is given up when the lock has expired by itself.
#[test]
fn a_release_is_not_repeated_for_ever() {
    within_a_minute(async || {
        let client = client(|verb| match verb {
            Verb::Release { .. } => Err(NodeError::Refused {
                why: "never".into(),
            }),
            _ => Ok(Vote::Granted),
        });
        let ttl = Duration::from_millis(300);
        let mutex = client.mutex("a").with_options(|o| o.ttl(ttl));
        let lease = mutex.lock().await.expect("granted");
        // Unconfirmed, but it was held to the end as far as anybody knows.
        assert_eq!(lease.release().await, Released::Released);
        assert_eq!(client.shutdown(Duration::from_secs(30)).await, 0);
    });
}

/// A call that is dropped is answered: by an error.
#[tokio::test]
async fn a_dropped_call_is_an_answer() {
    struct Forgetful;
    impl Node for Forgetful {
        fn label(&self) -> &str {
            "forgetful"
        }
        fn submit(&self, _: Call) {}
    }
    let client = Client::builder().custom_node(Forgetful).build().unwrap();
    let error = client.mutex("a").try_lock().await.expect_err("no vote");
    let story = &error.nodes()[0].story;
    assert_eq!(*story, Story::Failed(NodeError::Unanswered));
}

/// `Call::serve` bounds a store that never answers.
#[tokio::test]
async fn a_future_that_hangs_is_cut_off() {
    struct Slow;
    impl Node for Slow {
        fn label(&self) -> &str {
            "slow"
        }
        fn submit(&self, call: Call) {
            tokio::spawn(call.serve(std::future::pending()));
        }
    }
    let client = Client::builder().custom_node(Slow).build().unwrap();
    let timeout = Duration::from_millis(30);
    let mutex = client.mutex("a").with_options(|o| o.node_timeout(timeout));
    let error = mutex.try_lock().await.expect_err("no vote");
    let story = &error.nodes()[0].story;
    assert_eq!(
        *story,
        Story::Failed(NodeError::TimedOut { after: timeout })
    );
}

/// A node that says yes to everything but grants nothing of use is only as good as its
/// votes: those of another verb do not count.
#[tokio::test]
async fn a_vote_for_something_else_does_not_count() {
    let client = client(|verb| match verb {
        Verb::Acquire => Ok(Vote::Released { held: true }),
        _ => Ok(Vote::Granted),
    });
    let error = client.mutex("a").try_lock().await.expect_err("no grant");
    assert!(matches!(error, Error::NoMajority(_)), "{error:?}");
}

/// A client that is overtaken again and again stops asking for a larger token: others are quicker,
/// so the lock is contended.
#[tokio::test]
async fn nodes_that_want_ever_larger_tokens_are_not_asked_for_ever() {
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
