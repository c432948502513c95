//! Custom nodes: the contract of the trait, and how the library handles nodes that strain it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::node::{Call, Node, NodeError, Verb, Vote};
use leasehold::{Client, Error, Released, Story};

/// A node that answers at once, with the result of its closure.
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

/// The janitor stops retrying a release that a node never confirms once the lock has expired.
#[test]
fn a_release_is_not_retried_for_ever() {
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
        // The release is unconfirmed, but as far as is known the lock was held to the end.
        assert_eq!(lease.release().await, Released::Released);
        assert_eq!(client.shutdown(Duration::from_secs(30)).await, 0);
    });
}

/// Dropping a call answers it with an error.
#[tokio::test]
async fn a_dropped_call_is_answered_with_an_error() {
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
