use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use super::*;
use crate::node::{Call, Node};
use crate::{Client, Wait};

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

/// A node that names a permit that does not exist.
struct Generous(Arc<AtomicU32>);

impl Node for Generous {
    fn label(&self) -> &str {
        "generous"
    }

    fn has_semaphores(&self) -> bool {
        true
    }

    fn submit(&self, call: Call) {
        self.0.fetch_add(1, Ordering::SeqCst);
        let vote = match call.verb() {
            Verb::Release { .. } => Vote::Released { held: false },
            _ => Vote::Free { permit: 7 },
        };
        call.answer(Ok(vote));
    }
}

#[tokio::test]
async fn a_permit_that_does_not_exist_does_not_cause_requests_without_end() {
    let asked = Arc::new(AtomicU32::new(0));
    let node = Generous(Arc::clone(&asked));
    let client = Client::builder().custom_node(node).build().expect("valid");
    let semaphore = client.semaphore("a", 2);
    let acquired = semaphore.acquire_timeout(Duration::from_millis(500)).await;
    assert!(acquired.is_err(), "{acquired:?}");
    let asked = asked.load(Ordering::SeqCst);
    assert!((1..100).contains(&asked), "{asked} times");
}

/// A client's own release is not overtaken by its next call.
#[tokio::test]
async fn a_dropped_permit_can_be_acquired_again_at_once() {
    let client = Client::in_memory();
    let semaphore = client.semaphore("a", 1);
    for _ in 0..10 {
        let permit = semaphore.try_acquire().await.expect("a majority");
        drop(permit.expect("free again"));
    }
}

/// [`Options::min_hold`] keeps what a call acquired, neither what it only tried to, nor the lock that
/// lets one client at a time collect permits.
#[tokio::test]
async fn only_acquired_permits_are_kept() {
    let client = Client::in_memory();
    let keeping = client
        .semaphore("a", 4)
        .with_options(|options| options.min_hold(Duration::from_secs(60)).wait(Wait::No));
    let other = client.semaphore("a", 4);
    let one = other.acquire().await.expect("a permit");
    let refused = keeping.acquire_many(4).await;
    assert!(matches!(refused, Err(Error::Held(_))), "{refused:?}");
    one.release().await;
    let free = |count| {
        let other = other.clone();
        async move {
            let free =
                other.with_options(|options| options.wait(Wait::For(Duration::from_secs(20))));
            free.acquire_many(count).await
        }
    };
    free(4).await.expect("all four").release().await;
    keeping.acquire_many(2).await.expect("two").release().await;
    free(2).await.expect("the other two").release().await;
    let refused = keeping.clone().acquire_many(3).await;
    assert!(matches!(refused, Err(Error::Held(_))), "{refused:?}");
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

/// Only one client at a time collects permits. Others learn of that, and not of the key of its lock.
#[tokio::test]
async fn a_call_that_waits_for_a_collector_names_the_semaphore() {
    let client = Client::in_memory();
    let semaphore = client.semaphore("x", 2);
    let _one = semaphore.acquire().await.expect("a permit");
    let collecting = tokio::spawn(semaphore.acquire_many(2));
    tokio::time::sleep(Duration::from_millis(50)).await;
    let hasty = semaphore.with_options(|options| options.wait(Wait::No));
    let refused = hasty.acquire_many(2).await;
    let Err(Error::Held(refusal)) = &refused else {
        panic!("{refused:?}");
    };
    assert!(refusal.collecting);
    assert_eq!(refusal.name, Some(Name::new("x").expect("a name")));
    collecting.abort();
}

/// A node with this number of permits on record.
struct Recorded(u32);

impl Node for Recorded {
    fn label(&self) -> &str {
        "recorded"
    }

    fn has_semaphores(&self) -> bool {
        true
    }

    fn submit(&self, call: Call) {
        let vote = match call.verb() {
            Verb::Release { .. } => Vote::Released { held: false },
            _ => Vote::OtherPermits { permits: self.0 },
        };
        call.answer(Ok(vote));
    }
}

/// Nodes that have different numbers on record do not say which number is right.
#[tokio::test]
async fn another_number_counts_if_a_majority_agrees_on_it() {
    for (numbers, agreed) in [([3, 3, 4], Some(3)), ([3, 4, 5], None)] {
        let nodes = numbers.into_iter().map(Recorded);
        let builder = nodes.fold(Client::builder(), |builder, node| builder.custom_node(node));
        let client = builder.build().expect("valid");
        let semaphore = client
            .semaphore("a", 2)
            .with_options(|options| options.outage_patience(Duration::from_millis(100)));
        let refused = semaphore.try_acquire().await;
        match (agreed, &refused) {
            (Some(number), Err(Error::Invalid(Invalid::OtherPermits { theirs, .. }))) => {
                assert_eq!(*theirs, number);
            }
            (None, Err(Error::NoMajority(_))) => {}
            _ => panic!("{numbers:?}: {refused:?}"),
        }
    }
}
