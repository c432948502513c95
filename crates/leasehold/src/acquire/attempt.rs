//! One claim on its way: sent to all nodes, and given back unless it becomes a lease.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::Refusal;
use crate::client::core::Core;
use crate::client::options::Options;
use crate::lease::grant::{Grant, Rounds, Validity, Won, least_left};
use crate::lease::janitor::Return;
use crate::node::{Claim, DEAD_AFTER, HANDED_OVER, Verb};
use crate::planted;
use crate::quorum::round::{self, Advice, Decision, Haste, Round};
use crate::quorum::{Broadcast, NodeSet, Question};

/// A lease that was handed over is extended after so long. Not at once: many are given back
/// before that.
const CONFIRM_AFTER: Duration = Duration::from_millis(10);

/// What a round that was not won came to.
pub(crate) struct Refused {
    pub(crate) advice: Advice,
    pub(crate) refusal: Box<Refusal>,
}

/// A request for the lock that was refused, and the claim's place in line, if it stood there.
pub(crate) struct NotTaken<'a> {
    pub(crate) refused: Refused,
    pub(crate) place: Option<Armed<'a>>,
}

/// A claim for the lock, given back unless it becomes a lease.
pub(crate) struct Attempt<'a> {
    pub(crate) core: &'a Arc<Core>,
    options: &'a Options,
    pub(crate) claim: Arc<Claim>,
    /// How far above a fence to go if the token turns out to be too low.
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
            until: sent_at,
        });
        armed.until = sent_at + self.options.ttl.max(DEAD_AFTER + HANDED_OVER) + timeout;
        armed
    }

    pub(crate) fn question(&self, verb: Verb) -> Question<'_> {
        Question::new(verb, &self.claim, self.options.timeout_of_node())
    }

    /// What the claim may have on nodes, to be released by the caller.
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
            // A failed attempt releases everywhere, also where the outcome is unknown; not
            // where the node said no, which took no effect and cannot any more.
            let skip = match planted::on(planted::Bug::FailedAttemptKept) {
                false => broadcast.untouched(),
                true => NodeSet::all(),
            };
            self.arm(sent_at).release(skip);
        }
        let mut refused = self.refused(&broadcast.round(), sent_at);
        if decision == Decision::Carried {
            // A majority granted it, but so late that nothing of it is left.
            refused.advice = Advice::Outage { permanent: false };
        }
        let place = self.take_armed();
        Err(NotTaken { refused, place })
    }

    /// Takes what nodes have granted when its turn came, without being asked again. On each of
    /// these nodes it was not granted yet at `since`: a majority has it for
    /// [`HANDED_OVER`] from then at least. That is short, so it is extended soon.
    ///
    /// Gives the attempt back if it had better ask: too little is left, or nobody would extend it.
    pub(crate) fn handed_over(self, granted: NodeSet, since: Moment) -> Result<Won, Self> {
        let (core, options) = (self.core, self.options);
        let now = core.clock.now();
        let valid_from = match planted::on(planted::Bug::HandedOverValidityFromReply) {
            false => since,
            true => now,
        };
        // No longer than the TTL: a node that has forgotten the grant may vote again after that.
        let ttl = options.ttl.min(HANDED_OVER);
        let deadline = round::deadline(valid_from, ttl, options.drift_of(ttl), now);
        let enough =
            |deadline: &Moment| deadline.saturating_duration_since(now) >= least_left(options.ttl);
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

    /// Planted bug: takes its turn for the lease.
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

    /// What a round that was not won came to. The round was sent at `sent_at`.
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

/// The clean-up of an attempt: armed before its claim is sent, disarmed only when the
/// claim has become a lease. A caller that is cancelled drops it, armed.
pub(crate) struct Armed<'a> {
    core: &'a Core,
    claim: Option<Arc<Claim>>,
    timeout: Duration,
    until: Moment,
}

impl Armed<'_> {
    fn disarm(&mut self) {
        self.claim = None;
    }

    /// Sent at once, and so before the next attempt on the same connections.
    pub(crate) fn release(&mut self, skip: NodeSet) {
        if let Some(item) = self.take(skip)
            && skip.len() < self.core.nodes.len()
        {
            self.core.janitor.give_back(item);
        }
    }

    fn take(&mut self, skip: NodeSet) -> Option<Return> {
        Some(Return {
            claim: self.claim.take()?,
            keep_until: None,
            timeout: self.timeout,
            skip,
            settled: NodeSet::default(),
            until: self.until,
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
