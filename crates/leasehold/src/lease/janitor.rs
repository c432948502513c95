//! The janitor releases claims in the background: those of dropped leases, of cancelled and failed
//! attempts, and those whose release a node did not confirm.
//!
//! A claim can be queued from any thread, also outside of a runtime and in `Drop`. The janitor's
//! task sends the releases, and repeats them on nodes that failed until the claim has expired
//! there. A call that is about to acquire a name sends the queued releases first
//! ([`Janitor::send_queued`]), so that its ACQUIRE does not overtake a release of this client.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::base::backoff::{Backoff, Pauses};
use crate::base::clock::{Clock, Moment};
use crate::base::name::Name;
use crate::node::seat::Seat;
use crate::node::{Call, Claim, DEAD_AFTER, HANDED_OVER, NodeError, Tally, Verb, Vote};
use crate::observe::sight::RequestWatch;
use crate::quorum::{Broadcast, NodeSet, Nodes, Question};

/// The pauses before a release is repeated.
const RETRIES: Pauses = Pauses::doubling(Duration::from_millis(20), Duration::from_secs(1));

/// A handle for the janitor's task. When it is dropped, the task sends the outstanding releases and
/// ends.
pub(crate) struct Janitor {
    shared: Arc<Shared>,
}

struct Shared {
    nodes: Arc<Nodes>,
    clock: Clock,
    /// For the jitter of repeats.
    seed: u64,
    queue: Mutex<Queue>,
    /// How many releases are in the queue, or were taken from it and not sent yet.
    queued: AtomicUsize,
    /// Locked from taking a release from the queue until it has been sent. No code that a node's
    /// answer calls locks it.
    sending: Mutex<()>,
    posted: Notify,
    /// The handle was dropped: no more claims will be queued.
    closed: AtomicBool,
    /// How many releases are not confirmed yet, counted per node.
    owed: AtomicUsize,
    all_confirmed: Notify,
}

#[derive(Default)]
struct Queue {
    releases: VecDeque<PendingRelease>,
    /// The key is when the repeat is due, and a number that makes it unique.
    repeats: BTreeMap<(Moment, u64), Repeat>,
    /// How many of them are for each node.
    on_node: Vec<usize>,
    next_number: u64,
    /// The task ended with its runtime: nothing is sent any more.
    abandoned: bool,
}

impl Queue {
    fn insert(&mut self, at: Moment, repeat: Repeat) {
        let on_node = &mut self.on_node;
        on_node.resize(on_node.len().max(repeat.node + 1), 0);
        on_node[repeat.node] += 1;
        self.repeats.insert((at, self.next_number), repeat);
        self.next_number += 1;
    }

    fn remove(&mut self, key: (Moment, u64)) -> Option<Repeat> {
        let repeat = self.repeats.remove(&key)?;
        self.on_node[repeat.node] -= 1;
        Some(repeat)
    }

    /// The repeats for a name, or for a permit of a semaphore, on nodes that are not known to fail.
    /// There may be thousands for a node that stopped answering, so these are not even looked at.
    fn repeats_of(&self, name: &Name, failing: NodeSet) -> Vec<(Moment, u64)> {
        let fails = |node: usize| failing.contains(node);
        let mut waited_for = self.on_node.iter().enumerate();
        if waited_for.all(|(node, repeats)| *repeats == 0 || fails(node)) {
            return Vec::new();
        }
        let of_name = |(_, repeat): &(_, &Repeat)| {
            let claim = &repeat.releasing.claim;
            let semaphore = claim.seat().map(Seat::semaphore);
            (claim.name == *name || semaphore == Some(name)) && !fails(repeat.node)
        };
        let found = self.repeats.iter().filter(of_name);
        found.map(|(key, _)| *key).collect()
    }
}

/// A claim to release.
pub(crate) struct PendingRelease {
    pub(crate) claim: Arc<Claim>,
    /// Until when the name stays taken.
    pub(crate) keep_until: Option<Moment>,
    pub(crate) timeout: Duration,
    /// Nodes that certainly do not have the claim.
    pub(crate) skip: NodeSet,
    /// Nodes that have answered all earlier requests for the claim.
    pub(crate) nothing_in_flight: NodeSet,
    /// When the claim has expired on all nodes.
    pub(crate) until: Moment,
}

impl PendingRelease {
    /// Creates the release, on all nodes, of a claim whose last request was sent at `last_sent` or
    /// before. What that request set has expired a TTL later. A claim that may stand in line leaves
    /// it after `DEAD_AFTER`, and a lock that was handed over to it by then after `HANDED_OVER`.
    pub(crate) fn new(claim: Arc<Claim>, timeout: Duration, last_sent: Moment) -> Self {
        Self {
            until: last_sent + claim.ttl.max(DEAD_AFTER + HANDED_OVER) + timeout,
            claim,
            keep_until: None,
            timeout,
            skip: NodeSet::default(),
            nothing_in_flight: NodeSet::default(),
        }
    }
}

/// A release that a node did not confirm, to be repeated.
struct Repeat {
    node: usize,
    releasing: Arc<Releasing>,
}

impl Janitor {
    /// Starts the janitor's task on the current runtime.
    pub(crate) fn start(nodes: Arc<Nodes>, clock: Clock, seed: u64) -> Self {
        let shared = Arc::new(Shared {
            nodes,
            clock,
            seed,
            queue: Mutex::default(),
            queued: AtomicUsize::new(0),
            sending: Mutex::default(),
            posted: Notify::new(),
            closed: AtomicBool::new(false),
            owed: AtomicUsize::new(0),
            all_confirmed: Notify::new(),
        });
        tokio::spawn(run(TaskGuard {
            shared: Arc::clone(&shared),
        }));
        Self { shared }
    }

    /// Queues a claim for release. Does no I/O and never blocks.
    pub(crate) fn post(&self, item: PendingRelease) {
        self.shared.owe(1);
        self.shared.post(|queue| queue.releases.push_back(item));
    }

    /// Sends the queued releases that an acquire of this name, or of a permit of this semaphore, must
    /// not overtake. A node processes calls in the order in which they are submitted.
    pub(crate) fn send_queued(&self, name: &Name) {
        let shared = &self.shared;
        if shared.queued.load(Ordering::Acquire) > 0 {
            shared.send_releases();
            // A node that is known to fail gets its repeat when that is due.
            let nodes = shared.nodes.iter().enumerate();
            let failing = nodes.filter(|(_, node)| matches!(node.status(), Some(Err(_))));
            let failing = failing.map(|(index, _)| index).collect();
            let repeats = shared.queue().repeats_of(name, failing);
            shared.send_repeats(repeats);
        }
    }

    /// Releases a claim now. The caller may wait for the votes. In any case, the janitor repeats
    /// the release on nodes that fail.
    pub(crate) fn release(&self, item: PendingRelease) -> Arc<Broadcast> {
        release(&self.shared, item)
    }

    /// Waits until all releases are confirmed.
    ///
    /// Cancel safety: dropping the future has no effect.
    pub(crate) async fn all_confirmed(&self) {
        loop {
            let mut confirmed = std::pin::pin!(self.shared.all_confirmed.notified());
            confirmed.as_mut().enable();
            if self.shared.owed.load(Ordering::Acquire) == 0 {
                return;
            }
            confirmed.await;
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
    /// Counts releases that are not confirmed yet.
    fn owe(&self, releases: usize) {
        self.owed.fetch_add(releases, Ordering::AcqRel);
    }

    /// Counts releases as confirmed, or as abandoned.
    fn confirm(&self, releases: usize) {
        if self.owed.fetch_sub(releases, Ordering::AcqRel) == releases {
            self.all_confirmed.notify_waiters();
            if self.closed.load(Ordering::Acquire) {
                self.posted.notify_one();
            }
        }
    }

    /// Queues a release that was counted with `owe`.
    fn post(&self, enter: impl FnOnce(&mut Queue)) {
        let mut queue = self.queue();
        if queue.abandoned {
            drop(queue);
            // The runtime has ended. The claim expires after its TTL.
            return self.confirm(1);
        }
        self.queued.fetch_add(1, Ordering::AcqRel);
        enter(&mut queue);
        drop(queue);
        self.posted.notify_one();
    }

    /// Sends the releases of all queued claims.
    fn send_releases(self: &Arc<Self>) {
        loop {
            let _sending = self.sending();
            // The queue must not be locked while a call is submitted: the node may answer
            // immediately with an error, and the repeat is then queued.
            let Some(item) = self.queue().releases.pop_front() else {
                return;
            };
            release(self, item);
            self.queued.fetch_sub(1, Ordering::AcqRel);
            self.confirm(1);
        }
    }

    /// Sends these repeats, except those that another task has sent.
    fn send_repeats(&self, keys: Vec<(Moment, u64)>) {
        for key in keys {
            let _sending = self.sending();
            let repeat = self.queue().remove(key);
            let Some(Repeat { node, releasing }) = repeat else {
                continue;
            };
            let (verb, timeout) = (releasing.repeated_verb(node), releasing.timeout);
            let claim = Arc::clone(&releasing.claim);
            let watched = Arc::new(Watched {
                watch: self.nodes.sight.watch_request(),
                verb,
                to: releasing,
            });
            self.nodes.sight.requested(node);
            self.nodes[node].submit(Call::new(verb, claim, timeout, watched, node));
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

fn release(shared: &Arc<Shared>, mut item: PendingRelease) -> Arc<Broadcast> {
    item.claim.mark_released();
    if item.claim.was_sent_twice() {
        item.skip = NodeSet::default();
    }
    shared.owe(shared.nodes.len() - item.skip.len());
    let releasing = Arc::new(Releasing {
        shared: Arc::clone(shared),
        keep_until: item.keep_until,
        claim: Arc::clone(&item.claim),
        timeout: item.timeout,
        until: item.until,
        without_result: Mutex::default(),
        backoff: Mutex::new(Backoff::new(RETRIES, shared.seed ^ item.claim.token)),
    });
    let question = Question {
        verb: releasing.verb(),
        claim: &item.claim,
        timeout: item.timeout,
        skip: item.skip,
        nothing_in_flight: item.nothing_in_flight,
        also: Some(releasing),
    };
    Broadcast::send(&shared.nodes, question)
}

/// Counts the answer to a release that was repeated.
struct Watched {
    verb: Verb,
    watch: RequestWatch,
    to: Arc<Releasing>,
}

impl Tally for Watched {
    fn count(self: Arc<Self>, node: usize, answer: Result<Vote, NodeError>) {
        self.watch
            .answered(|| self.verb, node, answer.as_ref().err());
        Arc::clone(&self.to).count(node, answer);
    }
}

/// The releases of one claim, until each node has confirmed.
struct Releasing {
    shared: Arc<Shared>,
    keep_until: Option<Moment>,
    claim: Arc<Claim>,
    timeout: Duration,
    until: Moment,
    /// The nodes that have no room for the result.
    without_result: Mutex<NodeSet>,
    backoff: Mutex<Backoff>,
}

impl Releasing {
    /// The request. The time to keep the name is computed anew for every repeat.
    fn verb(&self) -> Verb {
        let now = self.shared.clock.now();
        let keep = self
            .keep_until
            .map(|until| until.saturating_duration_since(now));
        Verb::Release {
            keep: keep.filter(|keep| !keep.is_zero()),
        }
    }

    /// The request to a node that has failed. A node that has no room for the result cannot store it,
    /// but it can release the lock, so that the next in line runs.
    fn repeated_verb(&self, node: usize) -> Verb {
        match self.without_result().contains(node) {
            true => Verb::Release { keep: None },
            false => self.verb(),
        }
    }

    fn without_result(&self) -> MutexGuard<'_, NodeSet> {
        let nodes = self.without_result.lock();
        nodes.unwrap_or_else(PoisonError::into_inner)
    }

    /// How long to wait before the next repeat.
    fn pause(&self) -> Duration {
        let backoff = self.backoff.lock();
        backoff.unwrap_or_else(PoisonError::into_inner).pause()
    }
}

impl Tally for Releasing {
    fn count(self: Arc<Self>, node: usize, answer: Result<Vote, NodeError>) {
        let Err(error) = answer else {
            return self.shared.confirm(1);
        };
        if error == NodeError::OutOfMemory && self.claim.has_result() {
            let mut nodes = self.without_result();
            *nodes = nodes.union([node].into_iter().collect());
        }
        let at = self.shared.clock.now() + self.pause();
        if at >= self.until {
            // The claim has expired, or will before a repeat could help.
            return self.shared.confirm(1);
        }
        tracing::debug!(name = %self.claim.name, node, %error, "a release failed; repeating it");
        let shared = Arc::clone(&self.shared);
        let repeat = Repeat {
            node,
            releasing: self,
        };
        shared.post(|queue| queue.insert(at, repeat));
    }
}

/// The task's reference to the shared state. Notes when the task has ended.
struct TaskGuard {
    shared: Arc<Shared>,
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        queue.abandoned = true;
        let (releases, repeats) = (
            std::mem::take(&mut queue.releases),
            std::mem::take(&mut queue.repeats),
        );
        drop(queue);
        let dropped = releases.len() + repeats.len();
        if dropped > 0 {
            self.shared.queued.fetch_sub(dropped, Ordering::AcqRel);
            self.shared.confirm(dropped);
        }
    }
}

async fn run(guard: TaskGuard) {
    let shared = &guard.shared;
    loop {
        shared.send_releases();
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

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(feature = "redis")]
    use crate::node::Node;
    #[cfg(feature = "redis")]
    use crate::observe::Sight;

    /// Counts the releases that it gets.
    #[cfg(feature = "redis")]
    struct Counting(Arc<AtomicUsize>);

    #[cfg(feature = "redis")]
    impl Node for Counting {
        fn label(&self) -> &str {
            "counting"
        }

        fn submit(&self, call: Call) {
            self.0.fetch_add(1, Ordering::SeqCst);
            call.answer(Ok(Vote::Released { held: false }));
        }
    }

    /// A node that refused the second copy of a request may still grant the first.
    #[cfg(feature = "redis")]
    #[tokio::test]
    async fn a_claim_that_was_sent_twice_is_released_on_all_nodes() {
        let released = Arc::new(AtomicUsize::new(0));
        let node: Arc<dyn Node> = Arc::new(Counting(Arc::clone(&released)));
        let sight = Arc::new(Sight::new(Clock::default(), 1, Vec::new(), None));
        let nodes = Arc::new(Nodes::new(vec![node], sight));
        let janitor = Janitor::start(nodes, Clock::default(), 1);
        for (twice, count) in [(false, 0), (true, 1)] {
            let ttl = Duration::from_secs(10);
            let claim = Arc::new(Claim::new(Name::new("a").unwrap(), *b"x", 16, ttl));
            if twice {
                claim.mark_sent_twice();
            }
            janitor.release(PendingRelease {
                skip: NodeSet::all().intersect([0].into_iter().collect()),
                ..PendingRelease::new(claim, ttl, Moment::from_nanos(1))
            });
            assert_eq!(released.load(Ordering::SeqCst), count, "twice: {twice}");
        }
    }

    #[test]
    fn a_release_is_repeated_until_no_node_can_have_the_claim() {
        let now = Moment::from_nanos(1);
        let timeout = Duration::from_millis(20);
        for (ttl, lasts) in [
            (Duration::from_millis(100), DEAD_AFTER + HANDED_OVER),
            (Duration::from_secs(60), Duration::from_secs(60)),
        ] {
            let claim = Arc::new(Claim::new(Name::new("a").unwrap(), *b"x", 16, ttl));
            let release = PendingRelease::new(claim, timeout, now);
            assert_eq!(release.until, now + lasts + timeout, "{ttl:?}");
        }
    }
}
