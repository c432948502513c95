//! The read-write lock.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::{Background, Lease};
use crate::{Error, Options};

/// A blocking [`crate::RwLock`].
#[derive(Clone)]
pub struct RwLock {
    pub(super) inner: crate::RwLock,
    pub(super) background: Arc<Background>,
}

impl RwLock {
    /// See [`crate::RwLock::with_options`].
    #[must_use]
    pub fn with_options(mut self, change: impl FnOnce(Options) -> Options) -> Self {
        self.inner = self.inner.with_options(change);
        self
    }

    /// See [`crate::RwLock::read`].
    ///
    /// # Errors
    /// Those of [`crate::RwLock::read`].
    pub fn read(&self) -> Result<Lease, Error> {
        self.lease(self.inner.read())
    }

    /// See [`crate::RwLock::try_read`].
    ///
    /// # Errors
    /// Those of [`crate::RwLock::try_read`].
    pub fn try_read(&self) -> Result<Option<Lease>, Error> {
        let lease = self.background.block_on(self.inner.try_read())?;
        Ok(lease.map(|lease| Lease::new(lease, &self.background)))
    }

    /// See [`crate::RwLock::read_timeout`].
    ///
    /// # Errors
    /// Those of [`crate::RwLock::read_timeout`].
    pub fn read_timeout(&self, timeout: Duration) -> Result<Lease, Error> {
        self.lease(self.inner.read_timeout(timeout))
    }

    /// Like [`Mutex::with`](super::Mutex::with), with the lease of [`read`](RwLock::read).
    ///
    /// # Errors
    /// Those of [`read`](RwLock::read), and [`Error::Lost`].
    pub fn with_read<T>(&self, work: impl FnOnce(&Lease) -> T) -> Result<T, Error> {
        self.read()?.run(work)
    }

    /// See [`crate::RwLock::write`].
    ///
    /// # Errors
    /// Those of [`crate::RwLock::write`].
    pub fn write(&self) -> Result<Lease, Error> {
        self.lease(self.inner.write())
    }

    /// See [`crate::RwLock::try_write`].
    ///
    /// # Errors
    /// Those of [`crate::RwLock::try_write`].
    pub fn try_write(&self) -> Result<Option<Lease>, Error> {
        let lease = self.background.block_on(self.inner.try_write())?;
        Ok(lease.map(|lease| Lease::new(lease, &self.background)))
    }

    /// See [`crate::RwLock::write_timeout`].
    ///
    /// # Errors
    /// Those of [`crate::RwLock::write_timeout`].
    pub fn write_timeout(&self, timeout: Duration) -> Result<Lease, Error> {
        self.lease(self.inner.write_timeout(timeout))
    }

    /// Like [`Mutex::with`](super::Mutex::with), with the lease of [`write`](RwLock::write).
    ///
    /// # Errors
    /// Those of [`write`](RwLock::write), and [`Error::Lost`].
    pub fn with_write<T>(&self, work: impl FnOnce(&Lease) -> T) -> Result<T, Error> {
        self.write()?.run(work)
    }

    fn lease(
        &self,
        acquiring: impl Future<Output = Result<crate::Lease, Error>>,
    ) -> Result<Lease, Error> {
        let lease = self.background.block_on(acquiring)?;
        Ok(Lease::new(lease, &self.background))
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
