use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use crate::Client;
use crate::node::{Call, Node};

/// A node that takes a ticket for the claim of a lock, and counts requests.
struct Confused {
    waits: Arc<AtomicU32>,
}

impl Node for Confused {
    fn label(&self) -> &str {
        "confused"
    }

    fn has_semaphores(&self) -> bool {
        true
    }

    fn submit(&self, call: Call) {
        let vote = match call.verb() {
            Verb::Wait => {
                self.waits.fetch_add(1, Ordering::SeqCst);
                Vote::Granted
            }
            Verb::Release { .. } => Vote::Released { held: false },
            _ => Vote::held(crate::Holder::default(), None, 0, 0),
        };
        call.answer(Ok(vote));
    }
}

/// Found by the simulator: such a client sent WAIT without end, and never returned to its runtime.
#[tokio::test]
async fn a_ticket_that_is_granted_does_not_cause_requests_without_end() {
    let waits = Arc::new(AtomicU32::new(0));
    let node = Confused {
        waits: Arc::clone(&waits),
    };
    let client = Client::builder().custom_node(node).build().expect("valid");
    let semaphore = client.semaphore("a", 2);
    let acquired = semaphore.acquire_timeout(Duration::from_millis(500)).await;
    assert!(
        matches!(acquired, Err(Error::NoMajority(_))),
        "{acquired:?}"
    );
    let waits = waits.load(Ordering::SeqCst);
    assert!((1..50).contains(&waits), "{waits} times");
}

/// A node on which a permit is free. It refuses the first token for it if `fence` is above that.
struct Scripted {
    fence: u64,
    verbs: Arc<Mutex<Vec<Verb>>>,
}

impl Node for Scripted {
    fn label(&self) -> &str {
        "scripted"
    }

    fn has_semaphores(&self) -> bool {
        true
    }

    fn submit(&self, call: Call) {
        let mut verbs = self.verbs.lock().unwrap();
        let vote = match call.verb() {
            Verb::Wait => Vote::Free { permit: 0 },
            Verb::Release { .. } => Vote::Released { held: false },
            // The guess, which is refused, so that the client stands in line.
            _ if verbs.is_empty() => Vote::held(crate::Holder::default(), None, 0, 0),
            _ if call.claim().token() > self.fence => Vote::Granted,
            _ => Vote::Stale {
                fence: self.fence,
                now: self.fence,
            },
        };
        if !matches!(call.verb(), Verb::Release { .. }) {
            verbs.push(call.verb());
        }
        drop(verbs);
        call.answer(Ok(vote));
    }
}

/// Found by the simulator: a node that granted a permit has removed the ticket from the line. Without
/// another WAIT, the request with the next token found the waiters behind it first in line.
#[tokio::test]
async fn a_ticket_joins_the_line_again_after_a_split_vote() {
    let far_ahead = u64::try_from(
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_micros(),
    )
    .unwrap()
        + 5_000_000;
    let verbs = Arc::new(Mutex::new(Vec::new()));
    let mut builder = Client::builder();
    for (fence, verbs) in [(0, Arc::clone(&verbs)), (far_ahead, Arc::default())] {
        builder = builder.custom_node(Scripted { fence, verbs });
    }
    let client = builder.build().expect("valid");
    let permit = client.semaphore("a", 2).acquire().await.expect("acquired");
    assert_eq!(permit.permit(), Some(0));
    let verbs = verbs.lock().unwrap().clone();
    assert!(
        verbs.starts_with(&[
            Verb::Acquire,
            Verb::Wait,
            Verb::Acquire,
            Verb::Wait,
            Verb::Acquire
        ]),
        "{verbs:?}"
    );
}
