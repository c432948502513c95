//! A lock as a node reports it for inspection.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::base::holder::{Holder, owner_id};
use crate::base::name::Name;

/// One lock on one node.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Sighting {
    /// The key of the lock, as a node reports it. In an [`Inspection`](crate::Inspection) it is
    /// the name, without the client's prefix.
    pub name: Name,
    /// The holder.
    pub holder: Holder,
    /// The time until the lock expires on the node unless it is renewed; `None` if it has no TTL.
    pub remaining: Option<Duration>,
    /// The largest token that the node granted for this name, if the node knows it.
    pub fence: Option<u64>,
    /// How many claims wait for the lock on the node, if the node knows.
    pub waiters: Option<usize>,
    /// When the node granted the lock to the holder's token, by the node's clock in microseconds
    /// since 1970, if it recorded that.
    pub(crate) granted_us: Option<u64>,
    /// The owner value, a secret.
    pub(crate) value: Vec<u8>,
}

impl Sighting {
    /// Creates a sighting of a lock with this value.
    #[must_use]
    pub fn new(name: Name, value: impl Into<Vec<u8>>, remaining: Option<Duration>) -> Self {
        let value = value.into();
        Self {
            name,
            holder: Holder::parse(&value),
            remaining,
            fence: None,
            waiters: None,
            granted_us: None,
            value,
        }
    }

    /// Adds the fence that the node has for the name.
    #[must_use]
    pub fn with_fence(mut self, fence: Option<u64>) -> Self {
        self.fence = fence;
        self
    }

    /// Adds the number of claims that wait for the lock.
    #[must_use]
    pub fn with_waiters(mut self, waiters: usize) -> Self {
        self.waiters = Some(waiters);
        self
    }

    /// Adds the token that the node granted last and when, by the node's clock in microseconds
    /// since 1970. Ignored if the holder has another token.
    #[must_use]
    pub fn with_granted(mut self, granted: Option<(u64, u64)>) -> Self {
        let of_holder = granted.filter(|(token, _)| Some(*token) == self.holder.token);
        self.granted_us = of_holder.map(|(_, at_us)| at_us);
        self
    }

    /// Returns when the lock was granted to the holder, by the node's clock. A node that granted it
    /// without delay may not have recorded that: then this is when the holder
    /// [requested](Holder::since) the lock. In an [`Inspection`](crate::Inspection) it is the
    /// earliest time that a node recorded. `None` if no node recorded it and the holder's token
    /// tells no time. Never in the future.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let _lease = client.mutex("report").lock().await?;
    /// let inspection = client.inspect("report").await?;
    /// let since = inspection.lock().and_then(|lock| lock.since()).expect("it is held");
    /// println!("held for {:?}", since.elapsed().unwrap_or_default());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn since(&self) -> Option<SystemTime> {
        let granted = self
            .granted_us
            .and_then(|us| UNIX_EPOCH.checked_add(Duration::from_micros(us)));
        match granted {
            Some(granted) => Some(granted.min(SystemTime::now())),
            None => self.holder.since(),
        }
    }

    /// Returns the short id of the owner, which [`Client::break_lock`](crate::Client::break_lock)
    /// accepts. It distinguishes owners, including those of other libraries, and does not reveal
    /// the secret.
    #[must_use]
    pub fn owner_id(&self) -> String {
        owner_id(&self.value)
    }
}

impl fmt::Debug for Sighting {
    /// Omits the value, which is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sighting")
            .field("name", &self.name)
            .field("owner_id", &self.owner_id())
            .field("holder", &self.holder)
            .field("remaining", &self.remaining)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_ahead_of_the_clock_says_nothing_about_the_time() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let seen = |ahead: u64| {
            let token = now.as_micros() as u64 + ahead * 1_000_000;
            let value = crate::base::holder::new_owner(token, "");
            let name = Name::new("a").unwrap();
            (token, Sighting::new(name, value, None))
        };
        assert!(seen(0).1.since().is_some());
        let (token, ahead) = seen(60);
        assert_eq!(ahead.since(), None);
        let granted = (token, now.as_micros() as u64 - 3_000_000);
        let since = ahead.with_granted(Some(granted)).since().unwrap();
        assert!(since.elapsed().unwrap() >= Duration::from_secs(3));
    }
}
