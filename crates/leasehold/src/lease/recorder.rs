//! The recorder writes the history of names, for clients that [record one](crate::Builder::history). Other
//! clients have no recorder.
//!
//! A lease is recorded when it ends, and before that once it has been held for [`HELD_FOR`], so that the
//! lease of a process that crashes is in the history, too. All of it happens in the background: each
//! node has a task with a bounded queue, so that a node that fails delays neither a caller nor the other
//! nodes. No lock depends on what is written.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{self, Receiver, Sender};

use crate::base::backoff::{Backoff, Pauses};
use crate::base::clock::{Clock, Moment};
use crate::base::holder::pid_at_host;
use crate::base::name::Name;
use crate::base::past_lease::{LeaseEnd, Recorded};
use crate::lease::state::Held;
use crate::node::{Claim, HistoryEntry, Node, NodeError, Sighting};

/// A lease that is held for less is recorded once, when it ends. A longer one is recorded twice.
const HELD_FOR: Duration = Duration::from_secs(1);
/// How many entries may wait for a node. Further ones are dropped.
const QUEUE: usize = 1024;
/// How many entries are written together.
const BATCH: usize = 128;
/// The pauses before entries are written again, if a node failed.
const RETRIES: Pauses = Pauses::doubling(Duration::from_millis(50), Duration::from_secs(5));
/// How often they are written again: for about a minute.
const MAX_RETRIES: usize = 18;

pub(crate) struct Recorder {
    begun: Sender<(Moment, Weak<Held>)>,
    nodes: Vec<NodeQueue>,
    clock: Clock,
}

/// The entries for one node.
struct NodeQueue {
    entries: Sender<HistoryEntry>,
    state: Arc<NodeState>,
}

#[derive(Default)]
struct NodeState {
    /// How many entries the node has not been sent yet.
    unsent: AtomicUsize,
    /// No entry will be sent any more. Then the number means nothing.
    closed: AtomicBool,
    all_sent: Notify,
    /// Why entries were not written, until one is written again.
    failure: Mutex<Option<NodeError>>,
}

impl NodeState {
    fn failure(&self) -> MutexGuard<'_, Option<NodeError>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sent(&self, entries: usize) {
        if self.unsent.fetch_sub(entries, Ordering::AcqRel) == entries {
            self.all_sent.notify_waiters();
        }
    }

    /// Waits until the node has answered for every entry, with success or not, or until none will be
    /// sent any more.
    async fn until_sent(&self) {
        loop {
            let mut all_sent = std::pin::pin!(self.all_sent.notified());
            all_sent.as_mut().enable();
            if self.closed.load(Ordering::Acquire) || self.unsent.load(Ordering::Acquire) == 0 {
                return;
            }
            all_sent.await;
        }
    }
}

impl Recorder {
    /// Starts the tasks on the current runtime. They end when the recorder is dropped and all entries
    /// have been written.
    pub(crate) fn start(nodes: &[Arc<dyn Node>], clock: &Clock, seed: u64) -> Self {
        let (begun, begun_leases) = mpsc::channel(QUEUE);
        tokio::spawn(record_held(begun_leases, clock.clone()));
        let start = |node: &Arc<dyn Node>| {
            let (entries, inbox) = mpsc::channel(QUEUE);
            let state = Arc::new(NodeState::default());
            let writer = Writer {
                node: Arc::clone(node),
                state: Arc::clone(&state),
                clock: clock.clone(),
                backoff: Backoff::new(RETRIES, seed),
            };
            tokio::spawn(writer.run(inbox));
            NodeQueue { entries, state }
        };
        Self {
            begun,
            nodes: nodes.iter().map(start).collect(),
            clock: clock.clone(),
        }
    }

    /// Records the lease if it is still held in a second.
    pub(crate) fn begun(&self, held: &Arc<Held>) {
        let at = self.clock.now() + HELD_FOR;
        // If too many leases begin, some are recorded only when they end.
        let _ = self.begun.try_send((at, Arc::downgrade(held)));
    }

    /// Records that a lease is held, or how it has ended.
    pub(crate) fn record(&self, claim: &Claim, token: u64, acquired: Moment, end: &LeaseEnd) {
        let now = SystemTime::now();
        let ago = self.clock.now().saturating_duration_since(acquired);
        let recorded = Recorded {
            end,
            by: "",
            acquired_at: now.checked_sub(ago),
            ended_at: (*end != LeaseEnd::StillHeld).then_some(now),
            owner: &claim.owner,
            permit: None,
            token,
        };
        self.post(entry(&claim.name, recorded));
    }

    /// Records the end of a lease that another process acquired.
    pub(crate) fn record_end(&self, claim: &Claim, token: u64, end: &LeaseEnd) {
        let recorded = Recorded {
            end,
            by: "",
            acquired_at: None,
            ended_at: Some(SystemTime::now()),
            owner: &claim.owner,
            permit: None,
            token,
        };
        self.post(entry(&claim.name, recorded));
    }

    /// Queues an entry. Does no I/O and never blocks.
    fn post(&self, entry: Option<HistoryEntry>) {
        let Some(entry) = entry else { return };
        for node in &self.nodes {
            node.state.unsent.fetch_add(1, Ordering::AcqRel);
            let why = match node.entries.try_send(entry.clone()) {
                Ok(()) => continue,
                Err(TrySendError::Full(_)) => "entries come faster than the node stores them",
                Err(TrySendError::Closed(_)) => "the runtime that records them has ended",
            };
            node.state.sent(1);
            *node.state.failure() = Some(NodeError::unavailable(why));
        }
    }

    /// Waits until each node has stored all entries, or has failed to.
    ///
    /// Cancel safety: dropping the future has no effect.
    pub(crate) async fn all_sent(&self) {
        for node in &self.nodes {
            node.state.until_sent().await;
        }
    }

    /// Returns, for each node, why the latest entries are not in its history.
    pub(crate) fn failures(&self) -> impl Iterator<Item = Option<NodeError>> {
        self.nodes.iter().map(|node| node.state.failure().clone())
    }
}

/// The entry of a lease. `None` for the locks that this library acquires for its own purposes: that of a
/// client that collects permits, and the arrivals at a latch.
fn entry(key: &Name, recorded: Recorded<'_>) -> Option<HistoryEntry> {
    if key.as_gate().is_some() || key.as_arrival().is_some() {
        return None;
    }
    // The permits of a semaphore have one history.
    let (name, permit) = match key.as_permit() {
        Some((semaphore, permit)) => (semaphore, Some(permit)),
        None => (key.clone(), None),
    };
    let recorded = Recorded { permit, ..recorded };
    Some(HistoryEntry::new(name, recorded.to_text()))
}

/// The entry of a lock that this process has broken. `None` for locks of other libraries, and for names
/// that are kept taken after a release.
pub(crate) fn broken(key: &Name, seen: &Sighting) -> Option<HistoryEntry> {
    let token = seen.holder.token.filter(|_| !seen.holder.kept)?;
    let recorded = Recorded {
        end: &LeaseEnd::Broken { by: None },
        by: pid_at_host(),
        acquired_at: seen.since(),
        ended_at: Some(SystemTime::now()),
        owner: &seen.value,
        permit: None,
        token,
    };
    entry(key, recorded)
}

/// Records leases that are still held [`HELD_FOR`] after they began.
async fn record_held(mut begun: Receiver<(Moment, Weak<Held>)>, clock: Clock) {
    while let Some((at, held)) = begun.recv().await {
        clock.sleep_until(at).await;
        if let Some(held) = held.upgrade() {
            held.record_held();
        }
    }
}

/// Writes the entries for one node.
struct Writer {
    node: Arc<dyn Node>,
    state: Arc<NodeState>,
    clock: Clock,
    backoff: Backoff,
}

impl Drop for Writer {
    /// The runtime has ended, or all entries are written: no call waits for more.
    fn drop(&mut self) {
        self.state.closed.store(true, Ordering::Release);
        self.state.all_sent.notify_waiters();
    }
}

impl Writer {
    async fn run(mut self, mut inbox: Receiver<HistoryEntry>) {
        let mut batch = Vec::new();
        while inbox.recv_many(&mut batch, BATCH).await > 0 {
            self.write(std::mem::take(&mut batch)).await;
        }
    }

    /// Writes entries, and again while the node fails in a way that passes.
    async fn write(&mut self, entries: Vec<HistoryEntry>) {
        let mut unsent = entries.len();
        self.backoff.reset();
        for _ in 0..=MAX_RETRIES {
            let written = self.node.write_history(entries.clone()).await;
            let error = written.err();
            let again = error.as_ref().is_some_and(may_pass);
            if let Some(error) = &error {
                let node = self.node.label();
                tracing::warn!(node, %error, "the history was not written");
            }
            *self.state.failure() = error;
            self.state.sent(std::mem::take(&mut unsent));
            if !again {
                return;
            }
            self.clock.sleep(self.backoff.pause()).await;
        }
    }
}

/// Whether a later attempt may succeed.
fn may_pass(error: &NodeError) -> bool {
    let unanswered = matches!(
        error,
        NodeError::TimedOut { .. }
            | NodeError::Unreachable { .. }
            | NodeError::Disconnected { .. }
            | NodeError::Unanswered
    );
    unanswered || error.is_passing()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::holder::new_owner;
    use crate::node::memory::MemoryNode;

    /// A limit for what takes no time.
    const LONG: Duration = Duration::from_secs(60);

    fn runtime() -> tokio::runtime::Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap()
    }

    fn is_all_sent(recorder: &Recorder) -> bool {
        let waiting = async { tokio::time::timeout(LONG, recorder.all_sent()).await };
        runtime().block_on(waiting).is_ok()
    }

    #[test]
    fn entries_after_the_end_of_the_runtime_are_not_waited_for() {
        let nodes = [Arc::new(MemoryNode::new("a")) as Arc<dyn Node>];
        let first = runtime();
        let clock = Clock::default();
        let recorder = first.block_on(async { Recorder::start(&nodes, &clock, 1) });
        // One call has counted its entry, and has not queued it yet.
        let state = &recorder.nodes[0].state;
        state.unsent.fetch_add(1, Ordering::AcqRel);
        drop(first);
        state.sent(1);
        assert!(is_all_sent(&recorder));
        let name = Name::new("x").unwrap();
        let claim = Claim::new(name, new_owner(16, ""), 16, Duration::from_secs(1));
        recorder.record_end(&claim, 16, &LeaseEnd::Released);
        assert!(is_all_sent(&recorder));
        let why = recorder.failures().next().flatten().unwrap().to_string();
        assert!(why.contains("has ended"), "{why}");
    }
}
