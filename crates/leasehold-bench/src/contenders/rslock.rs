//! rslock 0.10. Its response timeout is 500 ms, which cannot be changed.

use std::time::Duration;

use ::rslock::{LockGuard, LockManager};

use super::{Lock, client_with_nodelay};
use crate::TTL;

#[derive(Clone)]
pub(crate) struct Rslock {
    manager: LockManager,
}

impl Rslock {
    /// As in its documentation. It connects when the first lock is acquired.
    pub(super) fn by_default(urls: &[String]) -> Self {
        Self {
            manager: LockManager::new(urls.to_vec()),
        }
    }

    /// With `TCP_NODELAY`, the only setting apart from its retries that a user can choose.
    /// (Without contention, retries do not matter.)
    pub(super) fn with_nodelay(urls: &[String]) -> Result<Self, String> {
        let clients = urls.iter().map(|url| client_with_nodelay(url));
        Ok(Self {
            manager: LockManager::from_clients(clients.collect::<Result<_, _>>()?),
        })
    }

    /// With `TCP_NODELAY` and random delays of at most `delay_ms` between attempts. It tries for
    /// ever in any case. A larger number of attempts only saves it a new value.
    pub(super) fn with_retries(urls: &[String], delay_ms: u64) -> Result<Self, String> {
        let mut rslock = Self::with_nodelay(urls)?;
        rslock
            .manager
            .set_retry(1000, Duration::from_millis(delay_ms));
        Ok(rslock)
    }
}

impl Lock for Rslock {
    type Held = LockGuard;

    async fn acquire(&self, name: &str) -> Result<Self::Held, String> {
        let held = self.manager.acquire(name, TTL).await;
        held.map_err(|error| error.to_string())
    }

    async fn release(&self, _: &str, held: Self::Held) -> Result<(), String> {
        held.release().await;
        Ok(())
    }
}
