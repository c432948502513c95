//! A lease without a guard, identified by its owner value.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::look::{self, Found, Named};
use crate::base::error::{Error, Invalid, Loss, NodeOutcome, NodeReport};
use crate::base::holder::{owned_token, owner_id};
use crate::base::name::Name;
use crate::base::past_lease::LeaseEnd;
use crate::client::core::Core;
use crate::client::options::Options;
use crate::lease::guard::Released;
use crate::lease::janitor::PendingRelease;
use crate::lease::state::{Held, taken_away};
use crate::node::{Claim, Holders, Mode, Verb, Vote};
use crate::quorum::round::{self, Decision};
use crate::quorum::{Broadcast, Question};

/// A lease that no guard renews or releases: for scripts, and to hand a lease to another process.
/// Its [owner](Detached::owner) value identifies it. It expires after its TTL unless a process that
/// knows this value extends it.
///
/// Created by [`Lease::detach`](crate::Lease::detach) and
/// [`Mutex::detached`](crate::Mutex::detached).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, Released};
///
/// let client = Client::in_memory();
/// let mutex = client.mutex("deploy");
/// let owner = mutex.lock().await?.detach().await?.owner().to_owned();
/// // … later, maybe in another process …
/// let lease = mutex.detached(&owner)?;
/// println!("token {} for the next {:?}", lease.token(), lease.extend().await?);
/// assert_eq!(lease.release().await?, Released::Released);
/// # Ok(()) }
/// ```
pub struct Detached {
    core: Arc<Core>,
    name: Name,
    claim: Arc<Claim>,
    token: u64,
    drift: Duration,
    timeout: Duration,
}

impl Detached {
    pub(crate) fn of_lease(core: &Arc<Core>, held: &Held) -> Self {
        Self {
            core: Arc::clone(core),
            name: held.name.clone(),
            claim: Arc::clone(held.claim()),
            token: held.token,
            drift: held.grant.drift,
            timeout: held.grant.timeout,
        }
    }

    pub(crate) fn from_owner(
        core: Arc<Core>,
        key: Name,
        owner: &str,
        options: &Options,
    ) -> Result<Self, Invalid> {
        let token = owned_token(owner.as_bytes()).ok_or(Invalid::Owner)?;
        let name = core.name_of(&key);
        let claim = Claim::new(key, owner.as_bytes(), token, options.ttl);
        claim.set_holders(Holders::Nobody);
        Ok(Self {
            core,
            name,
            claim: Arc::new(claim),
            token,
            drift: options.drift_of_ttl(),
            timeout: options.timeout_of_node(),
        })
    }

    /// Returns the owner value, which proves ownership: a process that knows it can extend and
    /// release the lease. It is a secret.
    #[must_use]
    pub fn owner(&self) -> &str {
        // Owner values of leasehold are text, and others were rejected.
        std::str::from_utf8(&self.claim.owner).unwrap_or_default()
    }

    /// Returns the fencing token. After [`Lease::detach`](crate::Lease::detach) it is the token of
    /// the lease. After [`Mutex::detached`](crate::Mutex::detached) it is the first token of the
    /// claim: if tasks passed the lease on before it was detached, the lease has a larger token,
    /// which must be handed on together with the owner value. Leases acquired with
    /// [`Options::detached`](crate::Options::detached) are never passed on.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Returns the lock's name, without the client's prefix, as in
    /// [`Client::mutex`](crate::Client::mutex).
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns the key of the lock on the nodes: the client's prefix followed by the name.
    #[must_use]
    pub fn key(&self) -> &Name {
        &self.claim.name
    }

    /// Renews the lease for another TTL. Returns how long it is valid from now on, at least. Nodes
    /// never shorten a lock: if more than the TTL was left, the lock keeps its expiry, and this is
    /// what is returned.
    ///
    /// Nodes let the holder of a lease join a free lock, so this first asks all nodes whether a
    /// majority still has the lock of this owner. If the lease ends between that and the extension,
    /// it may still be extended, but only if no other claim with a token has been granted the lock on
    /// those nodes: they refuse a token that is not the largest. (A reader is refused after a
    /// writer with a larger token.)
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease has ended, [`Error::NoMajority`] if too few nodes answered.
    ///
    /// Cancel safety: if the future is dropped, nodes may have extended the lease.
    pub async fn extend(&self) -> Result<Duration, Error> {
        self.core.check_runtime()?;
        let looked_at = self.core.clock.now();
        let left = self.check_held().await?.unwrap_or_default();
        // What is left by the nodes' clocks, which may run faster.
        let kept_until = looked_at + left.saturating_sub(self.drift.max(left / 100));
        // The validity counts from before the first byte is sent.
        let sent_at = self.core.clock.now();
        let question = Question::new(Verb::Extend, &self.claim, self.timeout);
        let broadcast = Broadcast::send(&self.core.nodes, question);
        let decision = broadcast.decided().await;
        let now = self.core.clock.now();
        match round::deadline(sent_at, self.claim.ttl, self.drift, now) {
            Some(deadline) if decision == Decision::Carried => {
                Ok(deadline.max(kept_until).saturating_duration_since(now))
            }
            _ => Err(self.refused(&broadcast)),
        }
    }

    /// Fails unless a majority of all nodes has the claim. Returns when the first of these nodes lets
    /// it expire; `None` if none of them does.
    async fn check_held(&self) -> Result<Option<Duration>, Error> {
        match self.claim.mode() {
            // A refusal names no reader, so the nodes must list them.
            Mode::Shared => {
                let held = self.core.held_by(&self.claim.name, &self.claim.owner).await;
                held?.ok_or_else(|| self.lost(Loss::NotRenewed, Vec::new()))
            }
            _ => {
                let options = self.core.options.clone().node_timeout(self.timeout);
                let seen = look::ask(&self.core, &self.claim.name, &options).await;
                let id = Some(owner_id(&self.claim.owner));
                match seen.named() {
                    Named::By(Found { holder, remaining }) if holder.owner_id == id => {
                        Ok(remaining)
                    }
                    Named::Open => Err(self.core.explain(Error::NoMajority(Box::new(seen)))),
                    _ => Err(self.lost(self.end_of(&seen.nodes), seen.nodes)),
                }
            }
        }
    }

    /// Why the lease has ended, by the answers to a look.
    fn end_of(&self, nodes: &[NodeReport]) -> Loss {
        let said = |so: &dyn Fn(&Vote) -> bool| {
            let mut outcomes = nodes.iter().map(|report| &report.outcome);
            outcomes.any(|outcome| matches!(outcome, NodeOutcome::Voted(vote) if so(vote)))
        };
        let released = self.claim.token + 1;
        if said(&|vote| matches!(vote, Vote::Held { .. })) {
            Loss::TakenAway
        } else if said(&|vote| matches!(vote, Vote::Stale { fence, .. } if *fence == released)) {
            Loss::Broken
        } else {
            Loss::NotRenewed
        }
    }

    fn lost(&self, why: Loss, nodes: Vec<NodeReport>) -> Error {
        Error::Lost {
            name: self.name.clone(),
            token: self.token,
            why,
            nodes,
        }
    }

    /// Releases the lease and returns whether it was still held.
    ///
    /// # Errors
    /// [`Error::NoMajority`] if too few nodes answered. The client repeats the release in the
    /// background as long as it exists, at most until no node can have the claim any more.
    ///
    /// Cancel safety: after the first poll, the release continues in the background if the future
    /// is dropped.
    pub async fn release(self) -> Result<Released, Error> {
        self.core.check_runtime()?;
        let (claim, now) = (Arc::clone(&self.claim), self.core.clock.now());
        let release = PendingRelease::new(claim, self.timeout, now);
        let broadcast = self.core.janitor.release(release);
        match broadcast.decided().await {
            Decision::Carried => {
                if let Some(recorder) = &self.core.recorder {
                    recorder.record_end(&self.claim, self.token, &LeaseEnd::Released);
                }
                Ok(Released::Released)
            }
            Decision::Refuted => Ok(Released::WasLost),
            Decision::Failed => Err(self.refused(&broadcast)),
        }
    }

    fn refused(&self, broadcast: &Broadcast) -> Error {
        let round = broadcast.round();
        if round.decision() == Some(Decision::Refuted) {
            return self.lost(taken_away(&self.claim, &round), self.core.answers(&round));
        }
        let refusal = self.core.refused(&self.claim, &round);
        self.core.explain(Error::NoMajority(Box::new(refusal)))
    }
}

impl fmt::Debug for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.claim.fmt(f)
    }
}
