//! What a client counts and reports. The counters work always. Everything that costs more (events,
//! classes, clocks that are read only to report) happens only if there is an observer.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use super::Observer;
use super::counters::Counters;
use super::deliver::Observers;
use super::event::{Acquire, End, Ended, Event, HandOver, Outcome, Renewal, Request, Waiting};
#[cfg(feature = "redis")]
use super::node_watch::NodeWatch;
use super::node_watch::Seen;
use super::stats::{NodeState, NodeStats, Stats};
use crate::base::clock::{Clock, Moment};
use crate::base::error::Loss;
use crate::base::mode::Mode;
use crate::base::name::Name;
use crate::base::vote::NodeError;
use crate::node::{Node, Verb, majority};

/// What a client counts and reports.
pub(crate) struct Sight {
    pub(super) clock: Clock,
    counters: Counters,
    pub(super) nodes: Box<[Seen]>,
    /// The labels of the nodes.
    labels: OnceLock<Box<[Arc<str>]>>,
    /// The nodes, for the margin in events. Weak: the task of a node has this, and ends when the node is
    /// dropped.
    observed: OnceLock<Box<[Weak<dyn Node>]>>,
    observers: Option<Box<Observers>>,
    /// Whether an observer wants requests.
    times_requests: bool,
    /// A call that waits for longer logs a warning.
    pub(crate) warn_slow_acquire: Option<Duration>,
}

/// A lock, in events.
#[derive(Clone)]
pub(crate) struct Subject {
    pub(crate) name: Name,
    pub(crate) class: Arc<str>,
}

impl Sight {
    pub(crate) fn new(
        clock: Clock,
        nodes: usize,
        observers: Vec<Arc<dyn Observer>>,
        warn_slow_acquire: Option<Duration>,
    ) -> Self {
        let observers = Observers::new(observers).map(Box::new);
        Self {
            clock,
            counters: Counters::default(),
            nodes: (0..nodes).map(|_| Seen::default()).collect(),
            labels: OnceLock::new(),
            observed: OnceLock::new(),
            times_requests: observers.as_ref().is_some_and(|to| to.wants_requests),
            observers,
            warn_slow_acquire,
        }
    }

    /// Starts the task that delivers events, if there is an observer.
    pub(crate) fn start(&self, nodes: &[Arc<dyn Node>]) {
        if let Some(observers) = &self.observers {
            let labels = nodes.iter().map(|node| node.label().into());
            let _ = self.labels.set(labels.collect());
            let _ = self
                .observed
                .set(nodes.iter().map(Arc::downgrade).collect());
            observers.start();
        }
    }

    /// Watches the connection of the node with this index.
    #[cfg(feature = "redis")]
    pub(crate) fn watch_node(self: &Arc<Self>, index: usize) -> NodeWatch {
        NodeWatch::new(self, index)
    }

    pub(crate) fn is_observed(&self) -> bool {
        self.observers.is_some()
    }

    /// The lock in events. `None` without an observer.
    pub(crate) fn subject(&self, class: Option<&Arc<str>>, name: &Name) -> Option<Subject> {
        let observers = self.observers.as_ref()?;
        Some(Subject {
            class: observers.classes.of(name.as_bytes(), class),
            name: name.clone(),
        })
    }

    /// A call found the lock taken.
    pub(crate) fn contended(&self) {
        self.counters.contended.add();
    }

    /// A call begins to wait.
    pub(crate) fn waiting(&self, subject: Option<&Subject>) {
        self.counters.waiting.add();
        self.deliver(subject, |Subject { name, class }| {
            Event::Waiting(Waiting { name, class })
        });
    }

    /// A call to acquire a lock has ended.
    pub(crate) fn acquired(&self, subject: Option<&Subject>, call: Finished) {
        self.counters.count_acquire(call.outcome);
        if call.did_wait {
            self.counters.waiting_ended.add();
        }
        if let Some(by) = call.hand_over {
            self.counters.count_hand_over(by);
        }
        self.deliver(subject, |Subject { name, class }| {
            let now = self.clock.now();
            Event::Acquire(Acquire {
                name,
                class,
                mode: call.mode,
                outcome: call.outcome,
                token: call.token,
                waited: now.saturating_duration_since(call.started),
                contended: call.contended,
                did_wait: call.did_wait,
                hand_over: call.hand_over,
            })
        });
    }

    /// A lease began.
    pub(crate) fn began(&self) {
        self.counters.began.add();
    }

    /// A lease ended by a call.
    pub(crate) fn ended(&self, subject: Option<&Subject>, lease: EndedLease) {
        self.counters.count_end(lease.end, lease.loss);
        self.deliver(subject, |subject| lease.event(subject));
    }

    /// A lease was lost.
    pub(crate) fn lost(&self, subject: Option<&Subject>, lease: EndedLease) {
        self.counters.count_end(lease.end, lease.loss);
        if let Some(subject) = subject {
            self.queue(|| lease.event(subject.clone()));
        }
    }

    /// A renewal has ended.
    pub(crate) fn renewed(
        &self,
        subject: Option<&Subject>,
        ok: bool,
        renewal: impl FnOnce(Subject) -> Renewal,
    ) {
        self.counters.count_renewal(ok);
        if let Some(subject) = subject {
            self.queue(|| Event::Renewal(renewal(subject.clone())));
        }
    }

    /// Counts a request to a node.
    pub(crate) fn requested(&self, node: usize) {
        self.nodes[node].requests.add();
    }

    /// Watches the answers to a request that is about to be sent.
    pub(crate) fn watch_request(self: &Arc<Self>) -> RequestWatch {
        RequestWatch {
            sight: Arc::clone(self),
            sent_at: match self.times_requests {
                false => NOT_TIMED,
                true => self.clock.now(),
            },
        }
    }

    pub(crate) fn stats(&self, nodes: &[Arc<dyn Node>]) -> Stats {
        let counters = &self.counters;
        let observers = self.observers.as_ref();
        let ended = counters.ends();
        let nodes = self.node_stats(nodes);
        Stats {
            leases_held: counters.began.get().saturating_sub(ended.total()),
            waiters: waiters(counters),
            acquires: counters.acquires(),
            contended: counters.contended.get(),
            hand_overs: counters.hand_overs(),
            renewals: counters.renewals(),
            ended,
            lost: counters.losses(),
            quorum_margin: margin(&nodes),
            nodes,
            events_dropped: observers.map_or(0, |to| to.dropped.get()),
            observer_panics: observers.map_or(0, |to| to.panics()),
        }
    }

    fn node_stats(&self, nodes: &[Arc<dyn Node>]) -> Vec<NodeStats> {
        let now = self.clock.now();
        let each = self.nodes.iter().zip(nodes);
        each.map(|(seen, node)| seen.stats(&**node, now)).collect()
    }

    /// The margin of [`Stats`], for an event. `None` if the client is gone.
    pub(super) fn quorum_margin(&self) -> Option<i64> {
        let nodes = self.observed.get()?.iter().map(Weak::upgrade);
        let nodes: Option<Vec<_>> = nodes.collect();
        Some(margin(&self.node_stats(&nodes?)))
    }

    /// Delivers an event on a task of its own.
    pub(super) fn queue(&self, event: impl FnOnce() -> Event) {
        if let Some(observers) = &self.observers {
            observers.queue(event());
        }
    }

    /// Delivers an event on this task.
    fn deliver(&self, subject: Option<&Subject>, event: impl FnOnce(Subject) -> Event) {
        if let (Some(observers), Some(subject)) = (&self.observers, subject) {
            observers.deliver(&event(subject.clone()));
        }
    }
}

fn waiters(counters: &Counters) -> u64 {
    // In this order: a call that ends in between must not make the number negative.
    let ended = counters.waiting_ended.get();
    counters.waiting.get().saturating_sub(ended)
}

/// How many nodes more than a majority vote.
fn margin(nodes: &[NodeStats]) -> i64 {
    let votes = |node: &&NodeStats| node.state == NodeState::Up && node.quarantine_left.is_zero();
    let votes = nodes.iter().filter(votes).count();
    // A client has at most 64 nodes.
    let number = |count| i64::try_from(count).unwrap_or(i64::MAX);
    number(votes) - number(majority(nodes.len()))
}

/// How a call to acquire a lock ended.
pub(crate) struct Finished {
    pub(crate) started: Moment,
    pub(crate) mode: Mode,
    pub(crate) outcome: Outcome,
    pub(crate) token: Option<u64>,
    pub(crate) contended: bool,
    pub(crate) did_wait: bool,
    pub(crate) hand_over: Option<HandOver>,
}

/// How a lease ended.
pub(crate) struct EndedLease {
    pub(crate) token: u64,
    pub(crate) end: End,
    pub(crate) loss: Option<Loss>,
    pub(crate) held: Duration,
}

impl EndedLease {
    fn event(self, Subject { name, class }: Subject) -> Event {
        Event::Ended(Ended {
            name,
            class,
            token: self.token,
            end: self.end,
            loss: self.loss,
            held: self.held,
        })
    }
}

/// Counts how the nodes answer a request, and reports it to observers that want requests.
pub(crate) struct RequestWatch {
    sight: Arc<Sight>,
    /// [`NOT_TIMED`] if no observer wants requests.
    sent_at: Moment,
}

/// Not an `Option`, which would be twice as large: every request has one.
const NOT_TIMED: Moment = Moment::FAR;

impl RequestWatch {
    /// A node answered, or failed to.
    pub(crate) fn answered(
        &self,
        verb: impl FnOnce() -> Verb,
        node: usize,
        error: Option<&NodeError>,
    ) {
        // Not the node's failure: the caller was cancelled.
        if matches!(error, Some(NodeError::GivenUp)) {
            return;
        }
        if error.is_some() {
            self.sight.nodes[node].errors.add();
        }
        if self.sent_at != NOT_TIMED {
            self.report(verb(), node, error);
        }
    }

    #[cold]
    fn report(&self, verb: Verb, index: usize, error: Option<&NodeError>) {
        let sight = &self.sight;
        let labels = sight.labels.get();
        let Some(label) = labels.and_then(|labels| labels.get(index)) else {
            return;
        };
        sight.queue(|| {
            let now = sight.clock.now();
            Event::Request(Request {
                index,
                node: Arc::clone(label),
                verb,
                took: now.saturating_duration_since(self.sent_at),
                error: error.cloned(),
            })
        });
    }
}
