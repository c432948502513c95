//! Notifications from a server to waiters. They arrive as push messages on the connection that also
//! carries requests, so a waiter can be notified as soon as its WAIT has been processed.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use redis::{PushKind, Value};

use crate::base::name::Name;
use crate::node::{Claim, News, Notifier, Watch};

/// The prefix of channel names; see prelude.lua.
const CHANNEL_PREFIX: &str = "leasehold:bell:";

/// Identifies a waiter: the name, and the first characters of the owner value, which are random.
type Waiter = (Name, Box<[u8]>);

/// How many characters of the owner value a message contains: enough to identify the claim, and too
/// few to reveal the secret.
const OWNER_PREFIX: usize = 16;

/// The waiters of one node, and the channel on which its server notifies them.
pub(super) struct Bells {
    /// The name of the channel.
    id: String,
    subscribed: AtomicBool,
    /// The key of the hash function that computes the proofs of grants.
    proofs: RandomState,
    waiting: Mutex<HashMap<Waiter, Waiting>>,
    /// Whether the notification of a grant is a vote. Otherwise the waiter sends WAIT again.
    grants_count: bool,
}

/// A claim that waits.
#[derive(Clone)]
struct Waiting {
    notifier: Notifier,
    /// What a message must contain to count as a grant. The server stores it beside the channel in
    /// the key `leasehold:bell:{name}` and nowhere else, so a client that can read only the line
    /// cannot forge a grant.
    proof: [u8; 16],
}

/// While this exists, the server notifies waiters over the connection that owns it.
pub(super) struct Subscription(Arc<Bells>);

impl Bells {
    pub(super) fn new() -> Self {
        Self {
            id: format!("{:016x}", fastrand::u64(..)),
            subscribed: AtomicBool::new(false),
            proofs: RandomState::new(),
            waiting: Mutex::default(),
            grants_count: true,
        }
    }

    /// Notifies waiters that they should send WAIT again, instead of grants.
    pub(super) fn without_grants(mut self) -> Self {
        self.grants_count = false;
        self
    }

    /// Returns where the server notifies this claim: the end of the channel's name, and the proof
    /// of a grant. Empty while there is no channel.
    pub(super) fn address(&self, claim: &Claim) -> Vec<u8> {
        match self.subscribed.load(Ordering::Acquire) {
            true => [self.id.as_bytes(), &self.proof(claim)].concat(),
            false => Vec::new(),
        }
    }

    /// Returns the proof of a grant. It differs for each claim, and only this process can compute
    /// it.
    fn proof(&self, claim: &Claim) -> [u8; 16] {
        let digits = format!("{:016x}", self.proofs.hash_one(claim.owner()));
        let mut proof = [0; 16];
        proof.copy_from_slice(digits.as_bytes());
        proof
    }

    /// Returns the channel to subscribe to.
    pub(super) fn channel(&self) -> String {
        format!("{CHANNEL_PREFIX}{}", self.id)
    }

    pub(super) fn watch(self: &Arc<Self>, claim: &Claim, notifier: &Notifier) -> Watch {
        let owner = claim.owner();
        let prefix = owner.get(..OWNER_PREFIX).unwrap_or(owner);
        let key = (claim.name().clone(), Box::from(prefix));
        let (notifier, proof) = (notifier.clone(), self.proof(claim));
        self.waiting()
            .insert(key.clone(), Waiting { notifier, proof });
        Watch::new(Unwatch {
            bells: Arc::downgrade(self),
            key,
        })
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<Waiter, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processes a push message of the server.
    pub(super) fn pushed(&self, kind: &PushKind, data: &[Value]) {
        if let (PushKind::Message, [_, Value::BulkString(message)]) = (kind, data) {
            self.dispatch(message);
        }
    }

    /// Notifies the waiter that a message is for. The message consists of the letter of the news,
    /// the first characters of the owner value, the proof if it is a grant or the number of the permit,
    /// a space, and the name.
    fn dispatch(&self, message: &[u8]) {
        let Some((letter, rest)) = message.split_first() else {
            return;
        };
        let Some(space) = rest.iter().position(|&b| b == b' ') else {
            return;
        };
        let Some(name) = Name::from_key(&rest[space + 1..]) else {
            return;
        };
        let (prefix, proof) = rest[..space].split_at(space.min(OWNER_PREFIX));
        let Some(news) = News::read(*letter, proof) else {
            return;
        };
        let waiting = self.waiting().get(&(name, prefix.into())).cloned();
        if let Some(Waiting { notifier, .. }) =
            waiting.filter(|waiting| news != News::Granted || waiting.proof == proof)
        {
            notifier.notify(match news {
                News::Granted if !self.grants_count => News::AskAgain,
                news => news,
            });
        }
    }

    /// The message that tells this claim to ask again.
    #[cfg(feature = "doctor")]
    pub(super) fn message(claim: &Claim) -> Vec<u8> {
        let owner = claim.owner();
        let prefix = owner.get(..OWNER_PREFIX).unwrap_or(owner);
        let letter = News::AskAgain.to_text();
        [letter.as_bytes(), prefix, b" ", claim.name().as_bytes()].concat()
    }

    /// Records whether the server can notify this node's waiters. All waiters send WAIT again: this
    /// gives the server their current address, and tells them what they may have missed.
    fn set_subscribed(&self, subscribed: bool) {
        self.subscribed.store(subscribed, Ordering::Release);
        let waiting: Vec<_> = self.waiting().values().cloned().collect();
        for Waiting { notifier, .. } in waiting {
            notifier.notify(News::AskAgain);
        }
    }
}

impl Subscription {
    pub(super) fn new(bells: &Arc<Bells>) -> Self {
        bells.set_subscribed(true);
        Self(Arc::clone(bells))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.0.set_subscribed(false);
    }
}

/// Ends a watch when dropped.
struct Unwatch {
    bells: Weak<Bells>,
    key: Waiter,
}

impl Drop for Unwatch {
    fn drop(&mut self) {
        if let Some(bells) = self.bells.upgrade() {
            bells.waiting().remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::base::holder::new_owner;
    use crate::quorum::WaitSignals;

    /// Rule: a grant notifies only its own claim. Two attempts of one process can have the same
    /// ticket, one after the other.
    #[test]
    fn a_grant_notifies_no_other_claim() {
        let (bells, name) = (Arc::new(Bells::new()), Name::new("a b").unwrap());
        let claims =
            [1, 2].map(|_| Claim::new(name.clone(), new_owner(16, ""), 16, Duration::from_secs(1)));
        let signals = [1, 2].map(|_| WaitSignals::new(1));
        let is_granted = |i: usize| signals[i].state().granted().contains(0);
        let _watches = [0, 1].map(|i: usize| bells.watch(&claims[i], &signals[i].notifier(0)));
        let grant = |i: usize, proof: &[u8]| {
            [b"G", &claims[i].owner()[..OWNER_PREFIX], proof, b" a b"].concat()
        };
        // A message without the proof of this claim is ignored.
        let others = bells.proof(&claims[0]);
        for proof in [&b""[..], b"0", b"0123456789abcdef", &others] {
            bells.dispatch(&grant(1, proof));
        }
        assert!(!is_granted(1));
        bells.dispatch(&grant(1, &bells.proof(&claims[1])));
        assert!(!is_granted(0) && is_granted(1));
        for nonsense in [
            &b""[..],
            b"G",
            b"Gx",
            b"G a b",
            b"X0 a b",
            b"G0123456789abcdef a b",
        ] {
            bells.dispatch(nonsense);
        }
        assert!(!is_granted(0));
    }
}
