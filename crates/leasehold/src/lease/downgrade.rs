//! From an exclusive lease to a shared one.
//!
//! The exclusive claim has the tokens of a block; the last of them is that of the shared claim. The
//! shared claim sends EXTEND, which takes the exclusive claim's lock as free and overtakes the line.
//! So it is an ACQUIRE of a reader that finds no writer, and as safe: no other writer can come
//! between the two, because on a majority of nodes the lock was never free.

use std::sync::Arc;

use super::grant::{Rounds, Validity, Won};
use super::guard::Lease;
use super::holding::Ending;
use super::janitor::PendingRelease;
use super::state::taken_away;
use crate::acquire::proposer::BLOCK;
use crate::base::error::{Error, Invalid, Loss};
use crate::base::mode::Mode;
use crate::base::past_lease::LeaseEnd;
use crate::client::core::Core;
use crate::node::{Claim, Verb};
use crate::observe::End;
use crate::quorum::round::{self, Decision};
use crate::quorum::{Broadcast, NodeSet, Question};

/// Makes an exclusive lease shared.
///
/// Cancel safety: if dropped, the janitor releases both claims.
pub(super) async fn downgrade(lease: Lease) -> Result<Lease, Error> {
    lease.check_only_guard()?;
    let (core, held) = (Arc::clone(&lease.core), Arc::clone(&lease.held));
    if !held.claim().is_fenced() {
        return Err(Invalid::SharedWithoutFencing.into());
    }
    if held.is_lost_at(core.clock.now()) {
        return Err(held.lost_error());
    }
    // Rule: the exclusive lease ends before the request is sent. A node that has received it lets
    // readers in, while its answer is still on the way.
    let Some(exclusive) = lease.close(None) else {
        return Err(held.lost_error());
    };
    let mut ending = Ending::new(&lease, End::Dropped);
    held.record_end(&core, &LeaseEnd::Released);
    let sent_at = core.clock.now();
    let (ttl, timeout, drift) = (held.claim().ttl, held.grant.timeout, held.grant.drift);
    let claim = shared_claim(&core, held.claim(), held.grant.label());
    let mut both = BothClaims::new(&core, exclusive, &claim);
    let question = Question::new(Verb::Extend, &claim, timeout);
    let broadcast = Broadcast::send(&core.nodes, question);
    held.end_turn();
    let decision = broadcast.decided().await;
    let now = core.clock.now();
    let deadline = round::deadline(sent_at, ttl, drift, now);
    let (Decision::Carried, Some(deadline)) = (decision, deadline) else {
        let round = broadcast.round();
        return Err(match decision {
            Decision::Refuted => {
                let why = taken_away(&claim, &round);
                ending.lost(why);
                Error::Lost {
                    name: held.name.clone(),
                    token: held.token,
                    why,
                    nodes: core.answers(&round),
                }
            }
            _ => core.explain(Error::NoMajority(Box::new(core.refused(&claim, &round)))),
        });
    };
    // `max_hold` counts from the exclusive lease, and may be over by now. (Found by the simulator: the
    // shared lease began after its deadline.)
    if held.is_over_max_hold(now) {
        ending.lost(Loss::MaxHold);
        return Err(Error::Lost {
            name: held.name.clone(),
            token: held.token,
            why: Loss::MaxHold,
            nodes: core.answers(&broadcast.round()),
        });
    }
    both.keep_shared(broadcast.granted());
    let validity = Validity {
        sent_at,
        deadline,
        renew_at: sent_at + ttl / 3,
    };
    let rounds = Rounds::first_extend(broadcast);
    let won = Won {
        token: claim.token,
        taken_at: sent_at,
        grant: Arc::new(held.grant.downgraded(claim, validity, rounds)),
    };
    ending.continues();
    Ok(Lease::keep(&core, held.continued_by(&core, won)))
}

/// The shared claim that replaces an exclusive one. Its token is the last of the block, above that
/// of every task to which the claim was passed on.
fn shared_claim(core: &Core, exclusive: &Claim, label: &str) -> Arc<Claim> {
    let token = exclusive.token + BLOCK - 1;
    let owner = core.secrets.new_owner(Mode::Shared, token, label);
    let claim = Claim::in_mode(
        Mode::Shared,
        exclusive.name.clone(),
        owner,
        token,
        exclusive.ttl,
    )
    .on_one_node(exclusive.is_on_one_node())
    .replacing(exclusive.owner())
    .made_now();
    claim.set_holders(exclusive.holders());
    Arc::new(claim)
}

/// Releases both claims when dropped.
struct BothClaims<'a> {
    core: &'a Core,
    exclusive: Option<PendingRelease>,
    shared: Option<PendingRelease>,
}

impl<'a> BothClaims<'a> {
    fn new(core: &'a Core, exclusive: PendingRelease, claim: &Arc<Claim>) -> Self {
        let (now, timeout) = (core.clock.now(), exclusive.timeout);
        let shared = PendingRelease::new(Arc::clone(claim), timeout, now);
        // `min_hold` passes to the shared lease.
        let exclusive = PendingRelease {
            keep_until: None,
            ..exclusive
        };
        Self {
            core,
            exclusive: Some(exclusive),
            shared: Some(shared),
        }
    }

    /// The shared claim has become a lease. The exclusive one may still be on nodes that have not
    /// granted the shared one.
    fn keep_shared(&mut self, granted: NodeSet) {
        self.shared = None;
        if let Some(exclusive) = &mut self.exclusive {
            exclusive.skip = granted.union(exclusive.skip);
        }
        let nodes = self.core.nodes.len();
        self.exclusive.take_if(|item| item.skip.len() >= nodes);
    }
}

impl Drop for BothClaims<'_> {
    fn drop(&mut self) {
        for item in [self.exclusive.take(), self.shared.take()]
            .into_iter()
            .flatten()
        {
            self.core.janitor.post(item);
        }
    }
}
