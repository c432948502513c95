//! A lease without a guard: known by its owner value, in the hands of whoever has that.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::base::error::{Error, Invalid};
use crate::base::holder::owned_token;
use crate::base::name::Name;
use crate::client::core::Core;
use crate::client::options::Options;
use crate::lease::guard::Released;
use crate::lease::janitor::Return;
use crate::lease::state::{Held, taken_away};
use crate::node::{Claim, Holders, Verb};
use crate::quorum::round::{self, Decision};
use crate::quorum::{Broadcast, NodeSet, Question};

/// A lease that no guard renews or releases: for scripts, and for handing a lease to
/// another process. It is known by its [owner](Detached::owner) value and ends with its TTL
/// unless whoever has that value extends it.
///
/// Made by [`Lease::detach`](crate::Lease::detach) and [`Mutex::detached`](crate::Mutex::detached).
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
            claim: Arc::clone(&held.claim),
            token: held.token,
            drift: held.drift,
            timeout: held.timeout,
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

    /// What proves the ownership: whoever knows it can extend and release the lease. A
    /// secret.
    #[must_use]
    pub fn owner(&self) -> &str {
        // Ours are made of text; one that is not was not accepted.
        std::str::from_utf8(&self.claim.owner).unwrap_or_default()
    }

    /// The fencing token. From [`Lease::detach`](crate::Lease::detach) it is the lease's. One
    /// made of an owner value knows the first token of that claim only: a lease that was passed
    /// on from task to task before has a larger one, which must be handed on beside the owner.
    /// Leases taken with [`Options::detached`](crate::Options::detached) are never passed on.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The lock's name, without the client's prefix: as [`Client::mutex`](crate::Client::mutex)
    /// takes it.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The key of the lock on the nodes: the client's prefix and the name.
    #[must_use]
    pub fn key(&self) -> &Name {
        &self.claim.name
    }

    /// Keeps the lease for another TTL; how long it is valid from now, at least. Nodes never shorten
    /// a lock: if more than the TTL was left, it stays so.
    ///
    /// # Errors
    /// [`Error::Lost`] if it is over, [`Error::NoMajority`] if not enough nodes answered.
    ///
    /// Cancel safety: if dropped, the nodes may have extended it.
    pub async fn extend(&self) -> Result<Duration, Error> {
        self.core.check_runtime()?;
        // Before the first byte is sent.
        let sent_at = self.core.clock.now();
        let question = Question::new(Verb::Extend, &self.claim, self.timeout);
        let broadcast = Broadcast::send(&self.core.nodes, question);
        let decision = broadcast.decided().await;
        let now = self.core.clock.now();
        match round::deadline(sent_at, self.claim.ttl, self.drift, now) {
            Some(deadline) if decision == Decision::Carried => {
                Ok(deadline.saturating_duration_since(now))
            }
            _ => Err(self.refused(&broadcast)),
        }
    }

    /// Gives the lease back, and tells whether it was still held.
    ///
    /// # Errors
    /// [`Error::NoMajority`] if not enough nodes answered. They are asked again in the
    /// background for as long as the client lives, at most until the lock has expired.
    ///
    /// Cancel safety: once polled, the release is under way and goes on if this is dropped.
    pub async fn release(self) -> Result<Released, Error> {
        self.core.check_runtime()?;
        let broadcast = self.core.janitor.give_back(Return {
            claim: Arc::clone(&self.claim),
            keep_until: None,
            timeout: self.timeout,
            skip: NodeSet::default(),
            settled: NodeSet::default(),
            until: self.core.clock.now() + self.claim.ttl + self.timeout,
        });
        match broadcast.decided().await {
            Decision::Carried => Ok(Released::Released),
            Decision::Refuted => Ok(Released::WasLost),
            Decision::Failed => Err(self.refused(&broadcast)),
        }
    }

    fn refused(&self, broadcast: &Broadcast) -> Error {
        let round = broadcast.round();
        if round.decision() == Some(Decision::Refuted) {
            return Error::Lost {
                name: self.name.clone(),
                token: self.token,
                why: taken_away(&self.claim, &round),
                nodes: self.core.answers(&round),
            };
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
