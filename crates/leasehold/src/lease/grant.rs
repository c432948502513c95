//! A claim that a majority of nodes granted.
//!
//! A grant belongs to one holder after the other: to the attempt that won it, then to a lease, and
//! then to the next task of the process to which that lease passes it on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::janitor::PendingRelease;
use crate::base::clock::Moment;
use crate::client::options::Options;
use crate::node::{Claim, HANDED_OVER};
use crate::quorum::round::{self, Round};
use crate::quorum::{Broadcast, NodeSet};

/// A lease that was handed over is used only if at least this much of it is left.
pub(crate) fn least_left(ttl: Duration) -> Duration {
    (ttl / 2).min(HANDED_OVER / 4)
}

/// What all holders of a granted claim share.
pub(crate) struct Grant {
    pub(crate) claim: Arc<Claim>,
    /// When the request that won the claim was sent.
    pub(crate) won_at: Moment,
    pub(crate) timeout: Duration,
    pub(crate) drift: Duration,
    label: Arc<str>,
    /// When the request that the deadline counts from was sent.
    sent_at: AtomicU64,
    deadline: AtomicU64,
    /// When to extend it.
    renew_at: AtomicU64,
    rounds: Mutex<Rounds>,
}

/// When a grant was requested, until when it is valid, and when to extend it.
#[derive(Clone, Copy)]
pub(crate) struct Validity {
    pub(crate) sent_at: Moment,
    pub(crate) deadline: Moment,
    pub(crate) renew_at: Moment,
}

/// A grant that becomes the lease of its next holder.
pub(crate) struct Won {
    pub(crate) grant: Arc<Grant>,
    /// The holder's token. The first holder of a claim has the token of the claim.
    pub(crate) token: u64,
    /// When this holder received the grant.
    pub(crate) taken_at: Moment,
}

impl Grant {
    pub(crate) fn new(
        claim: Arc<Claim>,
        options: &Options,
        validity: Validity,
        rounds: Rounds,
    ) -> Self {
        let timing = (options.timeout_of_node(), options.drift_of_ttl());
        Self::build(claim, timing, &options.label, validity, rounds)
    }

    /// The grant of the shared claim that replaces this one's claim.
    pub(crate) fn downgraded(&self, claim: Arc<Claim>, validity: Validity, rounds: Rounds) -> Self {
        let timing = (self.timeout, self.drift);
        Self::build(claim, timing, &self.label, validity, rounds)
    }

    fn build(
        claim: Arc<Claim>,
        (timeout, drift): (Duration, Duration),
        label: &Arc<str>,
        validity: Validity,
        rounds: Rounds,
    ) -> Self {
        Self {
            claim,
            won_at: validity.sent_at,
            timeout,
            drift,
            label: Arc::clone(label),
            sent_at: AtomicU64::new(validity.sent_at.as_nanos()),
            deadline: AtomicU64::new(validity.deadline.as_nanos()),
            renew_at: AtomicU64::new(validity.renew_at.as_nanos()),
            rounds: Mutex::new(rounds),
        }
    }

    pub(crate) fn label(&self) -> &str {
        &self.label
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

    /// Applies an EXTEND, sent at `sent_at`, that a majority granted. Returns `false` if it came too
    /// late to be valid.
    pub(crate) fn extended(&self, sent_at: Moment, now: Moment) -> bool {
        let Some(deadline) = round::deadline(sent_at, self.claim.ttl, self.drift, now) else {
            return false;
        };
        // An older extension that is counted later must not shorten the lease.
        let raise = |to: &AtomicU64, at: Moment| to.fetch_max(at.as_nanos(), Ordering::AcqRel);
        raise(&self.deadline, deadline);
        raise(&self.sent_at, sent_at);
        raise(&self.renew_at, sent_at + self.claim.ttl / 3);
        true
    }

    /// Whether nodes handed it over, and it was not extended since.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.renew_at() < self.won_at + self.claim.ttl / 3
    }

    /// Whether a call with these options can take the grant over.
    pub(crate) fn fits(&self, options: &Options) -> bool {
        let same = (self.claim.ttl, &self.label) == (options.ttl, &options.label);
        // The deadline was counted with this drift.
        let timing = (self.drift, self.timeout);
        let same = same && self.claim.is_fenced() >= options.fencing;
        // One that nodes have handed over has little time left until it is extended.
        let same = same && (options.renewal || !self.is_handed_over());
        same && !options.detached && timing == (options.drift_of_ttl(), options.timeout_of_node())
    }

    /// Creates the release of the claim.
    pub(crate) fn to_release(&self, keep_until: Option<Moment>) -> PendingRelease {
        let rounds = self.rounds();
        let sent_at = Moment::from_nanos(self.sent_at.load(Ordering::Acquire));
        // The last EXTEND was sent before the deadline, so within a TTL of `sent_at`.
        let last_sent = sent_at + self.claim.ttl;
        PendingRelease {
            keep_until,
            skip: rounds.untouched(),
            nothing_in_flight: rounds.nothing_in_flight(),
            ..PendingRelease::new(Arc::clone(&self.claim), self.timeout, last_sent)
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
    /// The claim was sent only with this request.
    pub(crate) fn first(acquire: Arc<Broadcast>) -> Self {
        Self {
            untouched: NodeSet::all(),
            latest: Latest::Acquire(acquire),
        }
    }

    /// Only this EXTEND so far: that of a downgrade.
    pub(crate) fn first_extend(extend: Arc<Broadcast>) -> Self {
        Self {
            untouched: NodeSet::all(),
            latest: Latest::Extend(extend),
        }
    }

    /// This request, for a claim that has waited in line. On nodes that did not grant it, it may
    /// still be in line.
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

    /// The nodes on which nothing has to be released.
    fn untouched(&self) -> NodeSet {
        match &self.latest {
            Latest::Acquire(latest) | Latest::Extend(latest) => {
                self.untouched.intersect(latest.untouched())
            }
            Latest::HandedOver(_) => self.untouched,
        }
    }

    /// The nodes that granted the latest request, as far as they have answered.
    pub(crate) fn granted(&self) -> NodeSet {
        match &self.latest {
            Latest::Acquire(latest) | Latest::Extend(latest) => latest.granted(),
            Latest::HandedOver(granted) => *granted,
        }
    }

    /// The nodes that have answered the only request: no request of the claim can arrive late there.
    fn nothing_in_flight(&self) -> NodeSet {
        match &self.latest {
            Latest::Acquire(acquire) => acquire.granted(),
            Latest::HandedOver(granted) => *granted,
            Latest::Extend(_) => NodeSet::default(),
        }
    }

    /// Whether the nodes granted the claim when its turn came, and there was no request since.
    pub(crate) fn is_handed_over(&self) -> bool {
        matches!(self.latest, Latest::HandedOver(_))
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
