//! What a key on the nodes stands for, in words of the user.

use leasehold::{Inspection, Name, Refusal};

/// A lock, or something that the library keeps like one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Subject {
    /// The name of the lock, semaphore or latch, without the prefix.
    pub(crate) name: Name,
    pub(crate) kind: Kind,
}

/// In the order in which they are listed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Lock,
    /// A permit of a semaphore.
    Permit(u32),
    /// The lock of the process that collects several permits of a semaphore.
    Collector,
    /// The arrival of a party at a latch.
    Party(String),
}

impl Subject {
    /// What was inspected, by a client with this prefix.
    pub(crate) fn of(inspection: &Inspection, prefix: &str) -> Self {
        let of_lock = || Self {
            name: inspection.name.clone(),
            kind: match inspection.permit {
                Some(number) => Kind::Permit(number),
                None => Kind::Lock,
            },
        };
        Self::of_key(&inspection.key, prefix).unwrap_or_else(of_lock)
    }

    /// The collector or the party with this key.
    fn of_key(key: &Name, prefix: &str) -> Option<Self> {
        let (name, kind) = match (key.as_gate(), key.as_arrival()) {
            (Some(semaphore), _) => (semaphore, Kind::Collector),
            (None, Some((latch, party))) => (latch, Kind::Party(party.to_string())),
            (None, None) => return None,
        };
        let name = name.as_bytes().strip_prefix(prefix.as_bytes())?;
        let name = Name::new(name).ok()?;
        Some(Self { name, kind })
    }
}

/// The name of the semaphore whose collector keeps others from it, if the refusal is about that.
pub(crate) fn collected(refusal: &Refusal) -> Option<Name> {
    refusal.name.clone().filter(|_| refusal.collecting)
}
