//! One attempt: a claim that is sent to all nodes, and released unless it becomes a lease.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::Refusal;
use crate::client::core::Core;
use crate::client::options::Options;
use crate::lease::grant::{Grant, Rounds, Validity, Won, least_left};
use crate::lease::janitor::PendingRelease;
use crate::node::{Claim, HANDED_OVER, Verb};
use crate::planted;
use crate::quorum::round::{self, Advice, Decision, Haste, Round};
use crate::quorum::{Broadcast, NodeSet, Question};

/// A lease that was handed over is extended after this time. Not at once, because many leases are
/// released earlier than that.
const CONFIRM_AFTER: Duration = Duration::from_millis(10);

/// The result of a round that was not won.
pub(crate) struct Refused {
    pub(crate) advice: Advice,
    pub(crate) refusal: Box<Refusal>,
}

/// A request for the lock that was refused, and the claim's place in line, if it stood there.
pub(crate) struct NotTaken<'a> {
    pub(crate) refused: Refused,
    pub(crate) place: Option<Armed<'a>>,
}

/// A claim for the lock, released unless it becomes a lease.
pub(crate) struct Attempt<'a> {
    pub(crate) core: &'a Arc<Core>,
    options: &'a Options,
    pub(crate) claim: Arc<Claim>,
    /// How far above the fence the next token is, if this one turns out to be too low.
    pub(crate) haste: Haste,
    armed: Option<Armed<'a>>,
}

impl<'a> Attempt<'a> {
    pub(crate) fn new(
        core: &'a Arc<Core>,
        options: &'a Options,
        claim: Arc<Claim>,
        haste: Haste,
    ) -> Self {
        Self {
            core,
            options,
            claim,
            haste,
            armed: None,
        }
    }

    /// Arms the clean-up, before anything is sent.
    pub(crate) fn arm(&mut self, sent_at: Moment) -> &mut Armed<'a> {
        let timeout = self.options.timeout_of_node();
        let armed = self.armed.get_or_insert_with(|| Armed {
            core: self.core,
            claim: Some(Arc::clone(&self.claim)),
            timeout,
            sent_at,
        });
        armed.sent_at = sent_at;
        armed
    }

    pub(crate) fn question(&self, verb: Verb) -> Question<'_> {
        Question::new(verb, &self.claim, self.options.timeout_of_node())
    }

    /// Leaves it to the caller to release what the claim may have on nodes.
    pub(crate) fn take_armed(&mut self) -> Option<Armed<'a>> {
        self.armed.take()
    }

    /// Asks all nodes for the lock, once. A claim that is refused is released, unless it stood in
    /// line: then the caller decides when it leaves.
    pub(crate) async fn take(mut self) -> Result<Won, NotTaken<'a>> {
        let (core, options) = (self.core, self.options);
        let waited = self.armed.is_some();
        // Before the first byte is sent: the nodes count the TTL from later than this.
        let sent_at = core.clock.now();
        self.arm(sent_at);
        let broadcast = Broadcast::send(&core.nodes, self.question(Verb::Acquire));
        let decision = broadcast.decided().await;
        let now = core.clock.now();
        let valid_from = match waited && planted::on(planted::Bug::HandedOverValidityFromReply) {
            false => sent_at,
            true => now,
        };
        let deadline = round::deadline(valid_from, options.ttl, options.drift_of_ttl(), now);
        if let (Decision::Carried, Some(deadline)) = (decision, deadline) {
            let validity = Validity {
                sent_at,
                deadline,
                renew_at: sent_at + options.ttl / 3,
            };
            let rounds = match waited {
                false => Rounds::first(broadcast),
                true => Rounds::after_waiting(broadcast),
            };
            return Ok(self.won(rounds, validity));
        }
        if !waited {
            // A failed attempt is released on all nodes, also where the outcome is unknown. Nodes
            // that refused it are skipped: the request had no effect there, and cannot have one.
            let skip = match planted::on(planted::Bug::FailedAttemptKept) {
                false => broadcast.untouched(),
                true => NodeSet::all(),
            };
            self.arm(sent_at).release(skip);
        }
        let mut refused = self.refused(&broadcast.round(), sent_at);
        if decision == Decision::Carried {
            // A majority granted it, but so late that its validity is over.
            refused.advice = Advice::Outage { permanent: false };
        }
        let place = self.take_armed();
        Err(NotTaken { refused, place })
    }

    /// Makes the claim a lease if a majority of nodes has handed it the lock, without another
    /// request. None of these nodes had granted it at `since`, so they keep it for [`HANDED_OVER`]
    /// from then at least. That is short, so the lease is extended soon.
    ///
    /// Returns the attempt if it has to send ACQUIRE instead: too little time is left for an extension,
    /// as `round_trip` tells, or the lease would not be extended.
    pub(crate) fn handed_over(
        self,
        granted: NodeSet,
        since: Moment,
        round_trip: Duration,
    ) -> Result<Won, Self> {
        let (core, options) = (self.core, self.options);
        let now = core.clock.now();
        let valid_from = match planted::on(planted::Bug::HandedOverValidityFromReply) {
            false => since,
            true => now,
        };
        // No longer than the TTL: a node that has forgotten the grant may vote again after that.
        let ttl = options.ttl.min(HANDED_OVER);
        let deadline = round::deadline(valid_from, ttl, options.drift_of(ttl), now);
        // An extension may take longer than the last request, but hardly twice as long.
        let least = least_left(options.ttl).max(round_trip * 2);
        let enough = |deadline: &Moment| deadline.saturating_duration_since(now) >= least;
        match deadline.filter(enough) {
            Some(deadline) if options.renewal && !options.detached => {
                let rounds = Rounds::handed_over(granted);
                let validity = Validity {
                    sent_at: now,
                    deadline,
                    renew_at: now + CONFIRM_AFTER,
                };
                Ok(self.won(rounds, validity))
            }
            _ => Err(self),
        }
    }

    fn won(mut self, rounds: Rounds, validity: Validity) -> Won {
        self.arm(validity.sent_at).disarm();
        Won {
            token: self.claim.token,
            taken_at: validity.sent_at,
            grant: Arc::new(Grant::new(self.claim, self.options, validity, rounds)),
        }
    }

    /// Planted bug: treats its turn as a lease.
    pub(crate) fn believe(self) -> Won {
        let sent_at = self.core.clock.now();
        let broadcast = Broadcast::send(&self.core.nodes, self.question(Verb::Wait));
        let left = self.options.ttl.saturating_sub(self.options.drift_of_ttl());
        let validity = Validity {
            sent_at,
            deadline: sent_at + left,
            renew_at: sent_at + left / 3,
        };
        self.won(Rounds::after_waiting(broadcast), validity)
    }

    /// The result of a round that was not won. The round was sent at `sent_at`.
    pub(crate) fn refused(&self, round: &Round, sent_at: Moment) -> Refused {
        let core = self.core;
        let elapsed = core.clock.now().saturating_duration_since(sent_at);
        let advice = round.advice(self.claim.token, elapsed, self.haste);
        if let (Advice::Contended { .. }, Some(now)) = (advice, round.clock()) {
            core.proposer.align(&core.clock, now, elapsed);
            core.proposer
                .set_contended(&self.claim.name, core.clock.now());
        }
        Refused {
            advice,
            refusal: Box::new(core.refused(&self.claim, round)),
        }
    }
}

/// The clean-up of an attempt. It is armed before the claim is sent, and disarmed only when the
/// claim has become a lease. If the caller is cancelled, dropping it releases the claim.
pub(crate) struct Armed<'a> {
    core: &'a Core,
    claim: Option<Arc<Claim>>,
    timeout: Duration,
    /// When the last request was sent.
    sent_at: Moment,
}

impl Armed<'_> {
    fn disarm(&mut self) {
        self.claim = None;
    }

    /// Releases the claim now, so before the next attempt on the same connections.
    pub(crate) fn release(&mut self, skip: NodeSet) {
        if let Some(item) = self.take(skip)
            && skip.len() < self.core.nodes.len()
        {
            self.core.janitor.release(item);
        }
    }

    fn take(&mut self, skip: NodeSet) -> Option<PendingRelease> {
        Some(PendingRelease {
            skip,
            ..PendingRelease::new(self.claim.take()?, self.timeout, self.sent_at)
        })
    }
}

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        if let Some(item) = self.take(NodeSet::default()) {
            self.core.janitor.post(item);
        }
    }
}
