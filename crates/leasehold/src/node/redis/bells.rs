//! Hearing from a server whose turn it is: over the connection itself, on which the server may
//! push messages, so that one who waits can be told from the moment it asks.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use redis::{PushInfo, PushKind, Value};

use crate::base::name::Name;
use crate::node::{Claim, News, Notifier, Watch};

/// What the channels begin with; see prelude.lua.
const CHANNEL_PREFIX: &str = "leasehold:bell:";

/// Who waits: the name, and the beginning of the owner value, which is random.
type Waiter = (Name, Box<[u8]>);

/// How much of an owner value is told: enough to be no other's, and too little to be a secret.
const TOLD: usize = 16;

/// The bells of all who wait for something on one server.
pub(super) struct Bells {
    /// The name of the channel.
    id: String,
    subscribed: AtomicBool,
    /// The key of the keyed hash that makes the proofs of grants.
    proofs: RandomState,
    waiting: Mutex<HashMap<Waiter, Waiting>>,
}

/// A claim that waits.
#[derive(Clone)]
struct Waiting {
    notifier: Notifier,
    /// What a message must carry to count as a grant. It is stored beside the channel in the key
    /// `leasehold:bell:{name}` and nowhere else: whoever can only read the line cannot forge it.
    proof: [u8; 16],
}

/// The server tells those who wait, until this is dropped with its connection.
pub(super) struct Subscription(Arc<Bells>);

impl Bells {
    pub(super) fn new() -> Self {
        Self {
            id: format!("{:016x}", fastrand::u64(..)),
            subscribed: AtomicBool::new(false),
            proofs: RandomState::new(),
            waiting: Mutex::default(),
        }
    }

    /// Where a waiter is notified: the end of the channel's name, and the proof of a grant. Empty
    /// while there is no channel.
    pub(super) fn address(&self, claim: &Claim) -> Vec<u8> {
        match self.subscribed.load(Ordering::Acquire) {
            true => [self.id.as_bytes(), &self.proof(claim)].concat(),
            false => Vec::new(),
        }
    }

    /// A different one for every claim, and unknown to everybody who does not know the key.
    fn proof(&self, claim: &Claim) -> [u8; 16] {
        let digits = format!("{:016x}", self.proofs.hash_one(claim.owner()));
        let mut proof = [0; 16];
        proof.copy_from_slice(digits.as_bytes());
        proof
    }

    /// The channel to subscribe to.
    pub(super) fn channel(&self) -> String {
        format!("{CHANNEL_PREFIX}{}", self.id)
    }

    pub(super) fn watch(self: &Arc<Self>, claim: &Claim, notifier: &Notifier) -> Watch {
        let told = claim.owner().get(..TOLD).unwrap_or(claim.owner());
        let key = (claim.name().clone(), Box::from(told));
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

    /// Rings for what the server has pushed.
    pub(super) fn pushed(&self, push: &PushInfo) {
        if let (PushKind::Message, [_, Value::BulkString(message)]) = (&push.kind, &*push.data) {
            self.hear(message);
        }
    }

    /// Rings for a message: the news, the beginning of the owner value, the proof if it is a grant,
    /// a space, the name.
    fn hear(&self, message: &[u8]) {
        let Some((news, rest)) = message.split_first() else {
            return;
        };
        let Some(news) = News::from_letter(*news) else {
            return;
        };
        let Some(space) = rest.iter().position(|&b| b == b' ') else {
            return;
        };
        let Ok(name) = Name::new(&rest[space + 1..]) else {
            return;
        };
        let (told, proof) = rest[..space].split_at(space.min(TOLD));
        let waiting = self.waiting().get(&(name, told.into())).cloned();
        if let Some(Waiting { notifier, .. }) =
            waiting.filter(|waiting| news != News::Granted || waiting.proof == proof)
        {
            notifier.notify(news);
        }
    }

    /// From now on the server can tell; or it cannot any more. Who waits asks again, and so
    /// makes that known to the server and learns what it was not told meanwhile.
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

    /// Rule: news is matched to its exact claim. Two attempts of one process can have the same
    /// ticket, one after the other.
    #[test]
    fn a_grant_is_heard_by_nobody_else() {
        let (bells, name) = (Arc::new(Bells::new()), Name::new("a b").unwrap());
        let claims =
            [1, 2].map(|_| Claim::new(name.clone(), new_owner(16, ""), 16, Duration::from_secs(1)));
        let signals = [1, 2].map(|_| WaitSignals::new(1));
        let is_granted = |i: usize| signals[i].state().granted().contains(0);
        let _watches = [0, 1].map(|i: usize| bells.watch(&claims[i], &signals[i].notifier(0)));
        let told =
            |i: usize, proof: &[u8]| [b"G", &claims[i].owner()[..TOLD], proof, b" a b"].concat();
        // Nor is one heard that does not carry the proof of this claim.
        let others = bells.proof(&claims[0]);
        for proof in [&b""[..], b"0", b"0123456789abcdef", &others] {
            bells.hear(&told(1, proof));
        }
        assert!(!is_granted(1));
        bells.hear(&told(1, &bells.proof(&claims[1])));
        assert!(!is_granted(0) && is_granted(1));
        for nonsense in [
            &b""[..],
            b"G",
            b"Gx",
            b"G a b",
            b"X0 a b",
            b"G0123456789abcdef a b",
        ] {
            bells.hear(nonsense);
        }
        assert!(!is_granted(0));
    }
}
