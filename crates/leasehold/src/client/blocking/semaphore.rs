//! The semaphore.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Background, Lease, Leases};
use crate::{Error, Options};

/// A blocking [`crate::Semaphore`].
#[derive(Clone)]
pub struct Semaphore {
    pub(super) inner: crate::Semaphore,
    pub(super) background: Arc<Background>,
}

impl Semaphore {
    /// See [`crate::Semaphore::with_options`].
    #[must_use]
    pub fn with_options(mut self, change: impl FnOnce(Options) -> Options) -> Self {
        self.inner = self.inner.with_options(change);
        self
    }

    /// See [`crate::Semaphore::acquire`].
    ///
    /// # Errors
    /// Those of [`crate::Semaphore::acquire`].
    pub fn acquire(&self) -> Result<Lease, Error> {
        let lease = self.background.block_on(self.inner.acquire())?;
        Ok(Lease::new(lease, &self.background))
    }

    /// See [`crate::Semaphore::try_acquire`].
    ///
    /// # Errors
    /// Those of [`crate::Semaphore::try_acquire`].
    pub fn try_acquire(&self) -> Result<Option<Lease>, Error> {
        let lease = self.background.block_on(self.inner.try_acquire())?;
        Ok(lease.map(|lease| Lease::new(lease, &self.background)))
    }

    /// See [`crate::Semaphore::acquire_timeout`].
    ///
    /// # Errors
    /// Those of [`crate::Semaphore::acquire_timeout`].
    pub fn acquire_timeout(&self, timeout: Duration) -> Result<Lease, Error> {
        let acquiring = self.inner.acquire_timeout(timeout);
        let lease = self.background.block_on(acquiring)?;
        Ok(Lease::new(lease, &self.background))
    }

    /// See [`crate::Semaphore::acquire_many`].
    ///
    /// # Errors
    /// Those of [`crate::Semaphore::acquire_many`].
    pub fn acquire_many(&self, count: u32) -> Result<Leases, Error> {
        let leases = self.background.block_on(self.inner.acquire_many(count))?;
        Ok(Leases::new(leases, &self.background))
    }

    /// Like [`Mutex::with`](super::Mutex::with), with the lease of a permit.
    ///
    /// # Errors
    /// Those of [`acquire`](Semaphore::acquire), and [`Error::Lost`].
    pub fn with<T>(&self, work: impl FnOnce(&Lease) -> T) -> Result<T, Error> {
        self.acquire()?.run(work)
    }

    /// See [`crate::Semaphore::resize`].
    ///
    /// # Errors
    /// Those of [`crate::Semaphore::resize`].
    pub fn resize(&self) -> Result<(), Error> {
        self.background.block_on(self.inner.resize())
    }

    /// See [`crate::Semaphore::permits`].
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.inner.permits()
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
