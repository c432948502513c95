//! The janitor gives claims back when nobody else does: those of dropped leases, of
//! cancelled and failed attempts, and those that a node did not confirm.
//!
//! Clean-up outlives the caller. A claim is posted from any thread, also outside of a
//! runtime and in `Drop`; the janitor's task sends the releases and repeats them where
//! a node failed, until the claim has expired there by itself. Whoever is about to acquire a
//! name sends them first ([`Janitor::send_queued`]), so that no acquire overtakes a release that
//! this client owes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::base::clock::{Clock, Moment};
use crate::base::name::Name;
use crate::node::{Call, Claim, Node, NodeError, Tally, Verb, Vote};
use crate::quorum::{Broadcast, NodeSet, Question};

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
    queue: Mutex<Queue>,
    /// How much is in the queue, or has been taken from it and not been sent yet.
    queued: AtomicUsize,
    /// Held from taking something from the queue until it has been sent. Nothing that a node's
    /// answer calls takes it.
    sending: Mutex<()>,
    posted: Notify,
    /// No more claims will be posted.
    closed: AtomicBool,
    /// Releases that are not confirmed yet, counted per node.
    owed: AtomicUsize,
    settled: Notify,
}

#[derive(Default)]
struct Queue {
    returns: VecDeque<Return>,
    /// By when they are due, and a number that makes the key unique.
    repeats: BTreeMap<(Moment, u64), Repeat>,
    next_number: u64,
    /// The task is gone, with its runtime: nothing is sent any more.
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

/// A release that a node did not confirm.
struct Repeat {
    node: usize,
    chore: Arc<Chore>,
}

impl Janitor {
    /// Starts the janitor's task on the current runtime.
    pub(crate) fn start(nodes: Arc<[Arc<dyn Node>]>, clock: Clock) -> Self {
        let shared = Arc::new(Shared {
            nodes,
            clock,
            queue: Mutex::default(),
            queued: AtomicUsize::new(0),
            sending: Mutex::default(),
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
        self.shared.post(|queue| queue.returns.push_back(item));
    }

    /// Sends what is queued for release, as far as an acquire of this name must not overtake it.
    /// A node takes calls in the order in which they are submitted.
    pub(crate) fn send_queued(&self, name: &Name) {
        let shared = &self.shared;
        if shared.queued.load(Ordering::Acquire) > 0 {
            shared.send_returns();
            // Not to a node that is known to fail: its turn comes when the repeat is due.
            let repeats: Vec<_> = {
                let queue = shared.queue();
                let of_name = |(_, repeat): &(_, &Repeat)| {
                    let fails = || matches!(shared.nodes[repeat.node].status(), Some(Err(_)));
                    repeat.chore.claim.name == *name && !fails()
                };
                let found = queue.repeats.iter().filter(of_name);
                found.map(|(key, _)| *key).collect()
            };
            shared.send_repeats(repeats);
        }
    }

    /// Gives a claim back now; the votes can be awaited. What fails is repeated by
    /// the janitor, whether they are awaited or not.
    pub(crate) fn give_back(&self, item: Return) -> Arc<Broadcast> {
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

    /// Queues something that is owed.
    fn post(&self, enter: impl FnOnce(&mut Queue)) {
        let mut queue = self.queue();
        if queue.abandoned {
            drop(queue);
            // The runtime is gone; the TTL ends the claim.
            return self.settle(1);
        }
        self.queued.fetch_add(1, Ordering::AcqRel);
        enter(&mut queue);
        drop(queue);
        self.posted.notify_one();
    }

    /// Sends the releases of all claims that were posted.
    fn send_returns(self: &Arc<Self>) {
        loop {
            let _sending = self.sending();
            // The queue must not be locked while a node is asked, which may answer on the spot,
            // with an error that is queued.
            let Some(item) = self.queue().returns.pop_front() else {
                return;
            };
            give_back(self, item);
            self.queued.fetch_sub(1, Ordering::AcqRel);
            self.settle(1);
        }
    }

    /// Sends these repeats, unless another task has done so.
    fn send_repeats(&self, keys: Vec<(Moment, u64)>) {
        for key in keys {
            let _sending = self.sending();
            let repeat = self.queue().repeats.remove(&key);
            let Some(Repeat { node, chore }) = repeat else {
                continue;
            };
            let (verb, timeout) = (chore.verb(), chore.timeout);
            let claim = Arc::clone(&chore.claim);
            self.nodes[node].submit(Call::new(verb, claim, timeout, chore, node));
            self.queued.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sending(&self) -> MutexGuard<'_, ()> {
        self.sending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn give_back(shared: &Arc<Shared>, item: Return) -> Arc<Broadcast> {
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
    Broadcast::send(&shared.nodes, question)
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
        let repeat = Repeat { node, chore: self };
        shared.post(|queue| {
            let number = queue.next_number;
            queue.next_number += 1;
            queue.repeats.insert((at, number), repeat);
        });
    }
}

/// The task's own hold on the shared state: notes when the task is gone.
struct Rounds {
    shared: Arc<Shared>,
}

impl Drop for Rounds {
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        queue.abandoned = true;
        let (returns, repeats) = (
            std::mem::take(&mut queue.returns),
            std::mem::take(&mut queue.repeats),
        );
        drop(queue);
        let dropped = returns.len() + repeats.len();
        if dropped > 0 {
            self.shared.queued.fetch_sub(dropped, Ordering::AcqRel);
            self.shared.settle(dropped);
        }
    }
}

async fn run(rounds: Rounds) {
    let shared = &rounds.shared;
    loop {
        shared.send_returns();
        let due = ..=(shared.clock.now(), u64::MAX);
        let due = shared
            .queue()
            .repeats
            .range(due)
            .map(|(key, _)| *key)
            .collect();
        shared.send_repeats(due);
        if shared.closed.load(Ordering::Acquire) && shared.owed.load(Ordering::Acquire) == 0 {
            return;
        }
        let next = shared
            .queue()
            .repeats
            .first_key_value()
            .map(|(key, _)| key.0);
        tokio::select! {
            biased;
            () = shared.posted.notified() => {}
            () = shared.clock.sleep_until(next.unwrap_or(Moment::FAR)), if next.is_some() => {}
        }
    }
}
