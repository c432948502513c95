//! Leases, with and without a guard.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::Background;
use crate::{Error, Loss, Mode, Moment, Name, Released};

/// A blocking [`crate::Lease`]. Released when dropped.
///
/// Dropping it waits for the release, at most the node timeout, unless it is dropped inside of an
/// async runtime.
#[must_use = "a lease that is dropped is released at once"]
pub struct Lease {
    /// `None` after the lease was dropped or released.
    pub(super) inner: Option<crate::Lease>,
    pub(super) background: Arc<Background>,
}

impl Lease {
    pub(super) fn new(inner: crate::Lease, background: &Arc<Background>) -> Self {
        Self {
            inner: Some(inner),
            background: Arc::clone(background),
        }
    }

    /// See [`crate::Lease::again`].
    ///
    /// # Errors
    /// Those of [`crate::Lease::again`].
    pub fn again(&self) -> Result<Self, Error> {
        Ok(Self {
            inner: Some(self.lease().again()?),
            background: Arc::clone(&self.background),
        })
    }

    /// Runs `work` and releases the lease.
    pub(super) fn run<T>(mut self, work: impl FnOnce(&Self) -> T) -> Result<T, Error> {
        let value = work(&self);
        let inner = self.take();
        self.background.block_on(inner.finish(Some(value)))
    }

    /// See [`crate::Lease::mode`].
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.lease().mode()
    }

    /// See [`crate::Lease::fence`].
    #[must_use]
    pub fn fence(&self) -> crate::fence::Fence {
        self.lease().fence()
    }

    /// See [`crate::Lease::permit`].
    #[must_use]
    pub fn permit(&self) -> Option<u32> {
        self.lease().permit()
    }

    /// See [`crate::Lease::is_shared`].
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.lease().is_shared()
    }

    /// See [`crate::Lease::downgrade`].
    ///
    /// # Errors
    /// Those of [`crate::Lease::downgrade`].
    pub fn downgrade(mut self) -> Result<Self, Error> {
        let inner = self.take();
        let lease = self.background.block_on(inner.downgrade())?;
        Ok(Self::new(lease, &self.background))
    }

    /// See [`crate::Lease::token`].
    #[must_use]
    pub fn token(&self) -> u64 {
        self.lease().token()
    }

    /// See [`crate::Lease::owner_id`].
    #[must_use]
    pub fn owner_id(&self) -> String {
        self.lease().owner_id()
    }

    /// See [`crate::Lease::name`].
    #[must_use]
    pub fn name(&self) -> &Name {
        self.lease().name()
    }

    /// See [`crate::Lease::key`].
    #[must_use]
    pub fn key(&self) -> &Name {
        self.lease().key()
    }

    /// See [`crate::Lease::deadline`].
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.lease().deadline()
    }

    /// See [`crate::Lease::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.lease().remaining()
    }

    /// See [`crate::Lease::is_valid`].
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.lease().is_valid()
    }

    /// Blocks until the lease is lost, at most `timeout`. Returns whether it is lost. See
    /// [`crate::Lease::lost`].
    #[must_use]
    pub fn lost(&self, timeout: Duration) -> bool {
        let lost = async { tokio::time::timeout(timeout, self.lease().lost()).await };
        self.background.block_on(lost).is_ok()
    }

    /// See [`crate::Lease::loss`].
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        self.lease().loss()
    }

    /// See [`crate::Lease::cancellation_token`].
    #[cfg(feature = "cancellation")]
    #[must_use]
    pub fn cancellation_token(&self) -> tokio_util::sync::CancellationToken {
        self.lease().cancellation_token()
    }

    /// See [`crate::Lease::bind_to_processes`].
    ///
    /// # Errors
    /// Those of [`crate::Lease::bind_to_processes`].
    pub fn bind_to_processes(&self, pids: &[u32]) -> Result<(), Error> {
        self.background
            .block_on(self.lease().bind_to_processes(pids))
    }

    /// See [`crate::Lease::detach`].
    ///
    /// # Errors
    /// Those of [`crate::Lease::detach`].
    pub fn detach(mut self) -> Result<Detached, Error> {
        let inner = self.take();
        Ok(Detached {
            inner: self.background.block_on(inner.detach())?,
            background: Arc::clone(&self.background),
        })
    }

    /// See [`crate::Lease::extend`].
    ///
    /// # Errors
    /// Those of [`crate::Lease::extend`].
    pub fn extend(&self) -> Result<(), Error> {
        self.background.block_on(self.lease().extend())
    }

    /// See [`crate::Lease::release`].
    pub fn release(mut self) -> Released {
        let inner = self.take();
        self.background.block_on(inner.release())
    }

    /// See [`crate::Lease::release_keeping`].
    ///
    /// # Errors
    /// Those of [`crate::Lease::release_keeping`].
    pub fn release_keeping(mut self, period: Duration) -> Result<(), Error> {
        let inner = self.take();
        self.background.block_on(inner.release_keeping(period))
    }

    /// Takes the lease out of the guard, which is not used any more.
    pub(super) fn take(&mut self) -> crate::Lease {
        self.inner.take().expect("present until released")
    }

    fn lease(&self) -> &crate::Lease {
        self.inner.as_ref().expect("present until released")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The background thread may end with this handle, and locks whose release it had not sent
        // would stay taken until their TTL is over. Where blocking is not allowed, the janitor may
        // still send the release.
        if let Some(lease) = self.inner.take()
            && Handle::try_current().is_err()
        {
            self.background.block_on(lease.release());
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A blocking [`crate::Detached`].
///
/// ```
/// let client = leasehold::blocking::Client::in_memory();
/// let mutex = client.mutex("deploy");
/// let owner = mutex.lock()?.detach()?.owner().to_owned();
/// let lease = mutex.detached(&owner)?;
/// println!("token {} for the next {:?}", lease.token(), lease.extend()?);
/// lease.release()?;
/// # Ok::<(), leasehold::Error>(())
/// ```
pub struct Detached {
    pub(super) inner: crate::Detached,
    pub(super) background: Arc<Background>,
}

impl Detached {
    /// See [`crate::Detached::owner`].
    #[must_use]
    pub fn owner(&self) -> &str {
        self.inner.owner()
    }

    /// See [`crate::Detached::token`].
    #[must_use]
    pub fn token(&self) -> u64 {
        self.inner.token()
    }

    /// See [`crate::Detached::name`].
    #[must_use]
    pub fn name(&self) -> &Name {
        self.inner.name()
    }

    /// See [`crate::Detached::key`].
    #[must_use]
    pub fn key(&self) -> &Name {
        self.inner.key()
    }

    /// See [`crate::Detached::extend`].
    ///
    /// # Errors
    /// Those of [`crate::Detached::extend`].
    pub fn extend(&self) -> Result<Duration, Error> {
        self.background.block_on(self.inner.extend())
    }

    /// See [`crate::Detached::release`].
    ///
    /// # Errors
    /// Those of [`crate::Detached::release`].
    pub fn release(self) -> Result<Released, Error> {
        self.background.block_on(self.inner.release())
    }
}

impl fmt::Debug for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
