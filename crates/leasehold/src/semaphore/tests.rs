use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

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
