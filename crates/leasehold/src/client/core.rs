//! The state that all handles and background tasks of a client share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::acquire::local_queue::LocalQueue;
use crate::acquire::proposer::Proposer;
use crate::base::clock::Clock;
use crate::base::error::{Error, Invalid, NodeOutcome, NodeReport, Refusal};
use crate::base::holder::Secrets;
use crate::base::name::Name;
use crate::client::options::Options;
use crate::client::shared_runs::SharedRuns;
use crate::lease::janitor::Janitor;
use crate::lease::keeper::Keeper;
use crate::lease::recorder::Recorder;
use crate::node::seat::Seat;
use crate::node::{Claim, Constants, Node, majority};
use crate::observe::Sight;
use crate::quorum::Nodes;
use crate::quorum::round::Round;

/// The state that all handles of a client share.
pub(crate) struct Core {
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) clock: Clock,
    pub(crate) options: Options,
    pub(crate) constants: Constants,
    pub(crate) proposer: Proposer,
    pub(crate) secrets: Secrets,
    pub(crate) keeper: Keeper,
    pub(crate) janitor: Janitor,
    /// `None` if this client records no history.
    pub(crate) recorder: Option<Recorder>,
    pub(crate) prefix: Vec<u8>,
    ids: AtomicU64,
    seeds: Mutex<fastrand::Rng>,
    pub(crate) local_queue: LocalQueue,
    pub(crate) shared_runs: SharedRuns,
    closing: Arc<Closing>,
}

/// Whether, and why, a client acquires no more leases.
#[derive(Default)]
pub(crate) struct Closing {
    shut_down: AtomicBool,
    runtime_ended: AtomicBool,
    changed: Notify,
}

impl Closing {
    fn shut_down(&self) {
        self.shut_down.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// Marks the runtime of the client's tasks as shut down.
    pub(crate) fn runtime_ended(&self) {
        self.runtime_ended.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }
}

/// What a client is created from.
pub(crate) struct Parts {
    pub(crate) nodes: Vec<Arc<dyn Node>>,
    pub(crate) clock: Clock,
    pub(crate) options: Options,
    pub(crate) constants: Constants,
    pub(crate) prefix: Vec<u8>,
    pub(crate) seed: u64,
    pub(crate) sight: Arc<Sight>,
    /// Whether the client records a history.
    pub(crate) history: bool,
}

impl Core {
    pub(crate) fn new(parts: Parts) -> Self {
        parts.sight.start(&parts.nodes);
        let nodes = Arc::new(Nodes::new(parts.nodes, parts.sight));
        let closing = Arc::new(Closing::default());
        let keeper = Keeper::start(
            Arc::clone(&nodes),
            parts.clock.clone(),
            Arc::clone(&closing),
        );
        let recorder = parts
            .history
            .then(|| Recorder::start(&nodes, &parts.clock, parts.seed));
        Self {
            keeper,
            recorder,
            janitor: Janitor::start(Arc::clone(&nodes), parts.clock.clone(), parts.seed),
            nodes,
            clock: parts.clock,
            options: parts.options,
            constants: parts.constants,
            proposer: Proposer::default(),
            secrets: Secrets::default(),
            prefix: parts.prefix,
            ids: AtomicU64::new(1),
            seeds: Mutex::new(fastrand::Rng::with_seed(parts.seed)),
            local_queue: LocalQueue::default(),
            shared_runs: SharedRuns::default(),
            closing,
        }
    }

    /// Waits until all releases are confirmed, the history is written, and all nodes have finished their work.
    pub(crate) async fn finish_releases(&self) {
        self.janitor.all_confirmed().await;
        if let Some(recorder) = &self.recorder {
            recorder.all_sent().await;
        }
        for node in self.nodes.iter() {
            node.flush().await;
        }
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns a seed for the jitter of one waiting call.
    pub(crate) fn next_seed(&self) -> u64 {
        self.seeds
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .u64(..)
    }

    pub(crate) fn shut_down(&self) {
        self.closing.shut_down();
    }

    /// Resolves when the client is shut down or its runtime has ended.
    ///
    /// Cancel safety: dropping the future has no effect.
    pub(crate) async fn until_shut_down(&self) {
        let mut changed = std::pin::pin!(self.closing.changed.notified());
        changed.as_mut().enable();
        if !self.is_shut_down() {
            changed.await;
        }
    }

    /// Whether the client was shut down or its runtime has ended.
    pub(crate) fn is_shut_down(&self) -> bool {
        self.closing.shut_down.load(Ordering::Acquire) || self.has_no_runtime()
    }

    /// Whether the runtime of the client's tasks has ended.
    pub(crate) fn has_no_runtime(&self) -> bool {
        self.closing.runtime_ended.load(Ordering::Acquire)
    }

    /// Returns an error if the runtime has ended. Then some nodes receive no requests, and no lease
    /// is renewed.
    pub(crate) fn check_runtime(&self) -> Result<(), Error> {
        match self.has_no_runtime() {
            false => Ok(()),
            true => Err(Error::RuntimeEnded),
        }
    }

    /// Replaces errors that follow from the end of the runtime with [`Error::RuntimeEnded`].
    pub(crate) fn explain(&self, error: Error) -> Error {
        match error {
            Error::NoMajority(_) | Error::ShutDown if self.has_no_runtime() => Error::RuntimeEnded,
            error => error,
        }
    }

    /// Returns the key on the nodes: the client's prefix followed by the name.
    pub(crate) fn key_of(&self, name: &[u8]) -> Result<Name, Invalid> {
        let name = Name::new(name)?;
        match &*self.prefix {
            [] => Ok(name),
            prefix => name.prefixed(prefix),
        }
    }

    /// Returns the name that the caller used, without the client's prefix. For a permit, it is that of
    /// its semaphore.
    pub(crate) fn name_of(&self, key: &Name) -> Name {
        self.own_name(key).unwrap_or_else(|| key.clone())
    }

    /// The same; `None` if the key does not have the client's prefix.
    pub(crate) fn own_name(&self, key: &Name) -> Option<Name> {
        let semaphore = key.as_permit().map(|(semaphore, _)| semaphore);
        let semaphore = semaphore.as_ref().unwrap_or(key).as_semaphore();
        semaphore
            .as_ref()
            .unwrap_or(key)
            .without_prefix(&self.prefix)
    }

    /// What is counted and reported.
    pub(crate) fn sight(&self) -> &Arc<Sight> {
        &self.nodes.sight
    }

    /// Returns the name of a key in events. For the keys of semaphores and latches, it is the name
    /// that the caller used.
    pub(crate) fn event_name(&self, key: &Name) -> Name {
        let inner = key.as_gate().or_else(|| Some(key.as_arrival()?.0));
        self.name_of(inner.as_ref().unwrap_or(key))
    }

    /// Creates a refusal from what happened on each node. `name` is `None` if the request was not
    /// about one lock.
    pub(crate) fn refusal(
        &self,
        name: Option<Name>,
        outcomes: impl IntoIterator<Item = NodeOutcome>,
    ) -> Refusal {
        Refusal {
            name,
            attempts: None,
            permits: None,
            collecting: false,
            majority: majority(self.nodes.len()),
            nodes: self.reports(outcomes),
        }
    }

    /// Adds the labels of the nodes.
    fn reports(&self, outcomes: impl IntoIterator<Item = NodeOutcome>) -> Vec<NodeReport> {
        let nodes = self.nodes.iter().zip(outcomes);
        let report = |(node, outcome): (&Arc<dyn Node>, NodeOutcome)| NodeReport {
            node: node.label().to_owned(),
            outcome,
        };
        nodes.map(report).collect()
    }

    /// Returns what each node answered.
    pub(crate) fn answers(&self, round: &Round) -> Vec<NodeReport> {
        self.reports(round.outcomes().iter().cloned())
    }

    /// Creates the refusal of a claim.
    pub(crate) fn refused(&self, claim: &Claim, round: &Round) -> Refusal {
        let outcomes = round.outcomes().iter().cloned();
        let semaphore = claim.name.as_gate();
        let name = self.name_of(semaphore.as_ref().unwrap_or(&claim.name));
        Refusal {
            permits: claim.seat().and_then(Seat::permits),
            collecting: semaphore.is_some(),
            ..self.refusal(Some(name), outcomes)
        }
    }
}
