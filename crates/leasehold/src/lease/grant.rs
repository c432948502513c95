//! A claim that a majority of nodes granted.
//!
//! A grant belongs to one holder after the other: to the attempt that won it, then to a lease, and
//! then to the next task of the process to which that lease passes it on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::janitor::Return;
use crate::base::clock::Moment;
use crate::client::options::Options;
use crate::node::{Claim, DEAD_AFTER, HANDED_OVER};
use crate::quorum::round::{self, Round};
use crate::quorum::{Broadcast, NodeSet};

/// At least this much of a lease that was handed over must be left to take it.
pub(crate) fn least_left(ttl: Duration) -> Duration {
    (ttl / 2).min(HANDED_OVER / 4)
}

/// What all holders of a granted claim share.
pub(crate) struct Grant {
    pub(crate) claim: Arc<Claim>,
    /// When the claim was asked for.
    pub(crate) won_at: Moment,
    pub(crate) timeout: Duration,
    pub(crate) drift: Duration,
    label: Arc<str>,
    /// When the last request that the deadline rests on was sent.
    sent_at: AtomicU64,
    deadline: AtomicU64,
    /// When it is to be extended.
    renew_at: AtomicU64,
    rounds: Mutex<Rounds>,
}

/// When a grant was asked for, how long it is valid, and when it is to be extended.
#[derive(Clone, Copy)]
pub(crate) struct Validity {
    pub(crate) sent_at: Moment,
    pub(crate) deadline: Moment,
    pub(crate) renew_at: Moment,
}

/// A grant on its way to become a lease.
pub(crate) struct Won {
    pub(crate) grant: Arc<Grant>,
    /// The holder's own token, which is the claim's for the first.
    pub(crate) token: u64,
    /// When this holder got it.
    pub(crate) taken_at: Moment,
}

impl Grant {
    pub(crate) fn new(
        claim: Arc<Claim>,
        options: &Options,
        validity: Validity,
        rounds: Rounds,
    ) -> Self {
        Self {
            claim,
            won_at: validity.sent_at,
            timeout: options.timeout_of_node(),
            drift: options.drift_of_ttl(),
            label: Arc::clone(&options.label),
            sent_at: AtomicU64::new(validity.sent_at.as_nanos()),
            deadline: AtomicU64::new(validity.deadline.as_nanos()),
            renew_at: AtomicU64::new(validity.renew_at.as_nanos()),
            rounds: Mutex::new(rounds),
        }
    }

    pub(crate) fn deadline(&self) -> Moment {
        Moment::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    pub(crate) fn renew_at(&self) -> Moment {
        Moment::from_nanos(self.renew_at.load(Ordering::Acquire))
    }

    pub(crate) fn rounds(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A majority granted the EXTEND that was sent at `sent_at`. `false` if nothing of it is left.
    pub(crate) fn extended(&self, sent_at: Moment, now: Moment) -> bool {
        let Some(deadline) = round::deadline(sent_at, self.claim.ttl, self.drift, now) else {
            return false;
        };
        // An older extension that ends later must not take anything back.
        let raise = |to: &AtomicU64, at: Moment| to.fetch_max(at.as_nanos(), Ordering::AcqRel);
        raise(&self.deadline, deadline);
        raise(&self.sent_at, sent_at);
        raise(&self.renew_at, sent_at + self.claim.ttl / 3);
        true
    }

    /// Whether a call with these options can take the grant over.
    pub(crate) fn fits(&self, options: &Options) -> bool {
        let same = (self.claim.ttl, &self.label) == (options.ttl, &options.label);
        // The deadline was counted with this drift.
        let timing = (self.drift, self.timeout);
        let same = same && self.claim.is_fenced() >= options.fencing;
        same && !options.detached && timing == (options.drift_of_ttl(), options.timeout_of_node())
    }

    /// What has to be released of it.
    pub(crate) fn to_return(&self, keep_until: Option<Moment>) -> Return {
        let rounds = self.rounds();
        let sent_at = Moment::from_nanos(self.sent_at.load(Ordering::Acquire));
        Return {
            claim: Arc::clone(&self.claim),
            keep_until,
            timeout: self.timeout,
            skip: rounds.untouched(),
            settled: rounds.settled(),
            // The last EXTEND was sent before the deadline, so within a TTL of `sent_at`. What it
            // set has expired another TTL after that, and the claim has left every line.
            until: sent_at + (self.claim.ttl * 2).max(DEAD_AFTER + HANDED_OVER) + self.timeout,
        }
    }
}

/// The requests that may have put the claim on nodes.
#[derive(Clone)]
pub(crate) struct Rounds {
    /// Nodes that all requests before the latest left untouched.
    untouched: NodeSet,
    latest: Latest,
}

#[derive(Clone)]
enum Latest {
    /// The ACQUIRE that won the claim. There was no request after it.
    Acquire(Arc<Broadcast>),
    /// These nodes granted the claim when its turn came. There was no request after that.
    HandedOver(NodeSet),
    Extend(Arc<Broadcast>),
}

impl Rounds {
    /// Only this request so far.
    pub(crate) fn first(acquire: Arc<Broadcast>) -> Self {
        Self {
            untouched: NodeSet::all(),
            latest: Latest::Acquire(acquire),
        }
    }

    /// This request, of a claim that has stood in line. It may stand there still on nodes that did
    /// not grant it.
    pub(crate) fn after_waiting(acquire: Arc<Broadcast>) -> Self {
        Self {
            untouched: NodeSet::default(),
            latest: Latest::Acquire(acquire),
        }
    }

    /// These nodes granted the claim when its turn came.
    pub(crate) fn handed_over(granted: NodeSet) -> Self {
        Self {
            untouched: NodeSet::default(),
            latest: Latest::HandedOver(granted),
        }
    }

    /// Where nothing has to be released.
    fn untouched(&self) -> NodeSet {
        match &self.latest {
            Latest::Acquire(latest) | Latest::Extend(latest) => {
                self.untouched.intersect(latest.untouched())
            }
            Latest::HandedOver(_) => self.untouched,
        }
    }

    /// Where the only request was answered: nothing of the claim can arrive late there.
    fn settled(&self) -> NodeSet {
        match &self.latest {
            Latest::Acquire(acquire) => acquire.granted(),
            Latest::HandedOver(granted) => *granted,
            Latest::Extend(_) => NodeSet::default(),
        }
    }

    /// Nodes that all requests before the latest left untouched.
    pub(super) fn untouched_before(&self) -> NodeSet {
        self.untouched
    }

    /// The answers to the last EXTEND, if there was one.
    pub(super) fn last_renewal(&self) -> Option<Round> {
        match &self.latest {
            Latest::Extend(renewal) => Some(renewal.round()),
            _ => None,
        }
    }

    /// Adds an EXTEND.
    pub(super) fn extend(&mut self, extend: Arc<Broadcast>) {
        self.untouched = self.untouched();
        self.latest = Latest::Extend(extend);
    }
}
