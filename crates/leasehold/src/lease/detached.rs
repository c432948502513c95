//! A lease without a guard, identified by its owner value.

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
    /// never shorten a lock: if more than the TTL was left, the lock keeps its expiry.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease has ended, [`Error::NoMajority`] if too few nodes answered.
    ///
    /// Cancel safety: if the future is dropped, nodes may have extended the lease.
    pub async fn extend(&self) -> Result<Duration, Error> {
        self.core.check_runtime()?;
        // The validity counts from before the first byte is sent.
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

    /// Releases the lease and returns whether it was still held.
    ///
    /// # Errors
    /// [`Error::NoMajority`] if too few nodes answered. The client repeats the release in the
    /// background as long as it exists, at most until the lock has expired.
    ///
    /// Cancel safety: after the first poll, the release continues in the background if the future
    /// is dropped.
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
