//! A lock as a node shows it to those who only look.

use std::fmt;
use std::time::Duration;

use crate::holder::{Holder, owner_id};
use crate::name::Name;

/// One lock on one node.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sighting {
    /// The lock's name, as it stands on the node.
    pub name: Name,
    /// Who holds it there.
    pub holder: Holder,
    /// When it runs out there if nobody renews it; `None` if it has no TTL.
    pub remaining: Option<Duration>,
    /// The highest token granted there, if the node knows one for this name.
    pub fence: Option<u64>,
    /// How many wait for it there, if the node knows.
    pub waiters: Option<usize>,
    /// The owner value, a secret.
    pub(crate) value: Vec<u8>,
}

impl Sighting {
    /// A lock with this value.
    #[must_use]
    pub fn new(name: Name, value: impl Into<Vec<u8>>, remaining: Option<Duration>) -> Self {
        let value = value.into();
        Self {
            name,
            holder: Holder::parse(&value),
            remaining,
            fence: None,
            waiters: None,
            value,
        }
    }

    /// With the fence that the node has for the name.
    #[must_use]
    pub fn with_fence(mut self, fence: Option<u64>) -> Self {
        self.fence = fence;
        self
    }

    /// With the number of those who wait for it.
    #[must_use]
    pub fn with_waiters(mut self, waiters: usize) -> Self {
        self.waiters = Some(waiters);
        self
    }

    /// A short name for the owner: what [`Client::break_lock`](crate::Client::break_lock) takes. It tells owners apart,
    /// also those of other libraries, and does not give their secret away.
    #[must_use]
    pub fn owner_id(&self) -> String {
        owner_id(&self.value)
    }
}

impl fmt::Debug for Sighting {
    /// Without the value, which is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sighting")
            .field("name", &self.name)
            .field("owner_id", &self.owner_id())
            .field("holder", &self.holder)
            .field("remaining", &self.remaining)
            .finish_non_exhaustive()
    }
}
