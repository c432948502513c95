//! The janitor gives claims back when nobody else does: those of dropped leases, of
//! cancelled and failed attempts, and those that a node did not confirm.
//!
//! Clean-up outlives the caller. A claim is posted from any thread, also outside of a
//! runtime and in `Drop`; the janitor's task sends the releases and repeats them where
//! a node failed, until the claim has expired there by itself.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::{Clock, Moment};
use crate::node::{Call, Claim, Node, NodeError, Tally, Verb, Vote};
use crate::quorum::{Canvass, NodeSet, Question};

const FIRST_RETRY: Duration = Duration::from_millis(20);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// The owner of the janitor. When it is dropped, the janitor finishes what is owed
/// and ends.
pub(crate) struct Janitor {
    shared: Arc<Shared>,
}

struct Shared {
    nodes: Arc<[Arc<dyn Node>]>,
    clock: Clock,
    inbox: Mutex<Inbox>,
    posted: Notify,
    /// No more claims will be posted.
    closed: AtomicBool,
    /// Releases that are not confirmed yet, counted per node.
    owed: AtomicUsize,
    settled: Notify,
}

#[derive(Default)]
struct Inbox {
    errands: Vec<Errand>,
    /// The task is gone, with its runtime: nobody will look in here again.
    abandoned: bool,
}

/// A claim to give back.
pub(crate) struct Return {
    pub(crate) claim: Arc<Claim>,
    /// The name is to stay taken until then.
    pub(crate) keep_until: Option<Moment>,
    pub(crate) timeout: Duration,
    /// The nodes where the claim cannot be.
    pub(crate) skip: NodeSet,
    /// The nodes where nothing of it is on its way.
    pub(crate) settled: NodeSet,
    /// The claim has expired everywhere by then.
    pub(crate) until: Moment,
}

enum Errand {
    Return(Return),
    Repeat {
        at: Moment,
        node: usize,
        chore: Arc<Chore>,
    },
}

impl Janitor {
    /// Starts the janitor's task on the current runtime.
    pub(crate) fn start(nodes: Arc<[Arc<dyn Node>]>, clock: Clock) -> Self {
        let shared = Arc::new(Shared {
            nodes,
            clock,
            inbox: Mutex::default(),
            posted: Notify::new(),
            closed: AtomicBool::new(false),
            owed: AtomicUsize::new(0),
            settled: Notify::new(),
        });
        tokio::spawn(run(Rounds {
            shared: Arc::clone(&shared),
        }));
        Self { shared }
    }

    /// Leaves a claim for the janitor to give back. Does no I/O, never blocks.
    pub(crate) fn post(&self, item: Return) {
        self.shared.owe(1);
        self.shared.post(Errand::Return(item));
    }

    /// Gives a claim back now; the votes can be awaited. What fails is repeated by
    /// the janitor, whether they are awaited or not.
    pub(crate) fn give_back(&self, item: Return) -> Arc<Canvass> {
        give_back(&self.shared, item)
    }

    /// Waits until nothing is owed any more.
    ///
    /// Cancel safety: leaves nothing behind.
    pub(crate) async fn settled(&self) {
        loop {
            let mut settled = std::pin::pin!(self.shared.settled.notified());
            settled.as_mut().enable();
            if self.shared.owed.load(Ordering::Acquire) == 0 {
                return;
            }
            settled.await;
        }
    }

    pub(crate) fn owed(&self) -> usize {
        self.shared.owed.load(Ordering::Acquire)
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.posted.notify_one();
    }
}

impl Shared {
    fn owe(&self, releases: usize) {
        self.owed.fetch_add(releases, Ordering::AcqRel);
    }

    fn settle(&self, releases: usize) {
        if self.owed.fetch_sub(releases, Ordering::AcqRel) == releases {
            self.settled.notify_waiters();
            if self.closed.load(Ordering::Acquire) {
                self.posted.notify_one();
            }
        }
    }

    /// Each errand counts as one that is owed.
    fn post(&self, errand: Errand) {
        let mut inbox = self.inbox();
        if inbox.abandoned {
            drop(inbox);
            // The runtime is gone; the TTL ends the claim.
            return self.settle(1);
        }
        inbox.errands.push(errand);
        drop(inbox);
        self.posted.notify_one();
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn give_back(shared: &Arc<Shared>, item: Return) -> Arc<Canvass> {
    item.claim.give_back();
    shared.owe(shared.nodes.len() - item.skip.len());
    let chore = Arc::new(Chore {
        shared: Arc::clone(shared),
        keep_until: item.keep_until,
        claim: Arc::clone(&item.claim),
        timeout: item.timeout,
        until: item.until,
        failures: AtomicUsize::new(0),
    });
    let question = Question {
        verb: chore.verb(),
        claim: &item.claim,
        timeout: item.timeout,
        skip: item.skip,
        settled: item.settled,
        also: Some(chore),
    };
    Canvass::send(&shared.nodes, question)
}

/// One claim's releases, until each node has confirmed.
struct Chore {
    shared: Arc<Shared>,
    keep_until: Option<Moment>,
    claim: Arc<Claim>,
    timeout: Duration,
    until: Moment,
    failures: AtomicUsize,
}

impl Chore {
    /// What is left of the time to keep is counted anew for every repetition.
    fn verb(&self) -> Verb {
        let now = self.shared.clock.now();
        let keep = self
            .keep_until
            .map(|until| until.saturating_duration_since(now));
        Verb::Release {
            keep: keep.filter(|keep| !keep.is_zero()),
        }
    }
}

impl Tally for Chore {
    fn count(self: Arc<Self>, node: usize, answer: Result<Vote, NodeError>) {
        let Err(error) = answer else {
            return self.shared.settle(1);
        };
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).min(16);
        let pause = FIRST_RETRY.saturating_mul(1 << failures).min(LONGEST_RETRY);
        let at = self.shared.clock.now() + pause;
        if at >= self.until {
            // It has expired by itself, or will before another try could help.
            return self.shared.settle(1);
        }
        tracing::debug!(name = %self.claim.name, node, %error, "a release failed; to be repeated");
        let shared = Arc::clone(&self.shared);
        let chore = self;
        shared.post(Errand::Repeat { at, node, chore });
    }
}

/// A repetition that is due at a time; ordered by it.
struct Due(Moment, usize, Arc<Chore>);

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(&other.0)
    }
}

/// The task's own hold on the shared state: notes when the task is gone.
struct Rounds {
    shared: Arc<Shared>,
}

impl Drop for Rounds {
    fn drop(&mut self) {
        let mut inbox = self.shared.inbox();
        inbox.abandoned = true;
        let errands = std::mem::take(&mut inbox.errands);
        drop(inbox);
        if !errands.is_empty() {
            self.shared.settle(errands.len());
        }
    }
}

async fn run(rounds: Rounds) {
    let shared = &rounds.shared;
    let mut repeats: BinaryHeap<Reverse<Due>> = BinaryHeap::new();
    loop {
        // Taken before the loop: the inbox must not be locked while a node is asked, which
        // may answer at once, with an error that is posted here.
        let errands = std::mem::take(&mut shared.inbox().errands);
        for errand in errands {
            match errand {
                Errand::Return(item) => {
                    give_back(shared, item);
                    shared.settle(1);
                }
                Errand::Repeat { at, node, chore } => repeats.push(Reverse(Due(at, node, chore))),
            }
        }
        let now = shared.clock.now();
        while repeats.peek().is_some_and(|Reverse(due)| due.0 <= now) {
            let Some(Reverse(Due(_, node, chore))) = repeats.pop() else {
                break;
            };
            let (verb, timeout) = (chore.verb(), chore.timeout);
            let claim = Arc::clone(&chore.claim);
            shared.nodes[node].submit(Call::new(verb, claim, timeout, chore, node));
        }
        if shared.closed.load(Ordering::Acquire) && shared.owed.load(Ordering::Acquire) == 0 {
            return;
        }
        let next = repeats.peek().map_or(Moment::FAR, |Reverse(due)| due.0);
        tokio::select! {
            biased;
            () = shared.posted.notified() => {}
            () = shared.clock.sleep_until(next), if next < Moment::FAR => {}
        }
    }
}
