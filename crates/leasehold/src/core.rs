//! What a client is made of, shared by all that works for it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;

use crate::clock::Clock;
use crate::error::{NodeReport, Refusal, Story};
use crate::janitor::Janitor;
use crate::keeper::Keeper;
use crate::name::Name;
use crate::node::rules::Constants;
use crate::node::{Claim, Node};
use crate::options::Options;
use crate::proposer::Proposer;
use crate::quorum::Canvass;
use crate::quorum::round::Round;
use crate::turnstile::Turnstile;

/// What all handles of a client share.
pub(crate) struct Core {
    pub(crate) nodes: Arc<[Arc<dyn Node>]>,
    pub(crate) clock: Clock,
    pub(crate) options: Options,
    pub(crate) constants: Constants,
    pub(crate) proposer: Proposer,
    pub(crate) keeper: Keeper,
    pub(crate) janitor: Janitor,
    pub(crate) prefix: Vec<u8>,
    ids: AtomicU64,
    seeds: Mutex<fastrand::Rng>,
    pub(crate) turnstile: Turnstile,
    shut_down: AtomicBool,
    shutting_down: Notify,
}

/// Everything that a client is made of.
pub(crate) struct Parts {
    pub(crate) nodes: Vec<Arc<dyn Node>>,
    pub(crate) clock: Clock,
    pub(crate) options: Options,
    pub(crate) constants: Constants,
    pub(crate) prefix: Vec<u8>,
    pub(crate) seed: u64,
}

impl Core {
    pub(crate) fn new(parts: Parts) -> Self {
        let nodes: Arc<[_]> = parts.nodes.into();
        Self {
            keeper: Keeper::start(Arc::clone(&nodes), parts.clock.clone()),
            janitor: Janitor::start(Arc::clone(&nodes), parts.clock.clone()),
            nodes,
            clock: parts.clock,
            options: parts.options,
            constants: parts.constants,
            proposer: Proposer::default(),
            prefix: parts.prefix,
            ids: AtomicU64::new(1),
            seeds: Mutex::new(fastrand::Rng::with_seed(parts.seed)),
            turnstile: Turnstile::default(),
            shut_down: AtomicBool::new(false),
            shutting_down: Notify::new(),
        }
    }

    /// Waits until nothing is owed to any node, and none has anything left to do.
    pub(crate) async fn settled(&self) {
        self.janitor.settled().await;
        for node in self.nodes.iter() {
            node.flush().await;
        }
    }

    pub(crate) fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// A seed for the jitter of one waiting call.
    pub(crate) fn next_seed(&self) -> u64 {
        self.seeds
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .u64(..)
    }

    pub(crate) fn shut_down(&self) {
        self.shut_down.store(true, Ordering::Release);
        self.shutting_down.notify_waiters();
    }

    /// Resolves when the client is shut down.
    ///
    /// Cancel safety: nothing happens.
    pub(crate) async fn until_shut_down(&self) {
        let mut shutting_down = std::pin::pin!(self.shutting_down.notified());
        shutting_down.as_mut().enable();
        if !self.is_shut_down() {
            shutting_down.await;
        }
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::Acquire)
    }

    /// What each node has to say about a name for which there was no majority.
    pub(crate) fn refusal(&self, name: Name, stories: impl IntoIterator<Item = Story>) -> Refusal {
        let nodes = self.nodes.iter().zip(stories);
        Refusal {
            name,
            majority: Round::majority(self.nodes.len()),
            nodes: nodes
                .map(|(node, story)| NodeReport {
                    node: node.label().to_owned(),
                    story,
                })
                .collect(),
        }
    }

    /// The story of a claim that was refused.
    pub(crate) fn refused(&self, claim: &Claim, canvass: &Canvass) -> Refusal {
        let stories = canvass.with_round(|round| round.stories().to_vec());
        self.refusal(claim.name.clone(), stories)
    }
}
