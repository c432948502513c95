//! Leader election.

use std::fmt;
use std::sync::Arc;

use super::{Background, Lease};
use crate::{Error, Leader, Options};

/// A blocking [`crate::Election`].
#[derive(Clone)]
pub struct Election {
    pub(super) inner: crate::Election,
    pub(super) background: Arc<Background>,
}

impl Election {
    /// See [`crate::Election::with_options`].
    #[must_use]
    pub fn with_options(mut self, change: impl FnOnce(Options) -> Options) -> Self {
        self.inner = self.inner.with_options(change);
        self
    }

    /// See [`crate::Election::campaign`].
    ///
    /// # Errors
    /// Those of [`crate::Election::campaign`].
    pub fn campaign(&self, value: &str) -> Result<Lease, Error> {
        let lease = self.background.block_on(self.inner.campaign(value))?;
        Ok(Lease::new(lease, &self.background))
    }

    /// Waits until this candidate leads, runs `work`, and resigns. A closure cannot be stopped from
    /// outside, so a long one should check [`Lease::is_valid`] from time to time. If the lease was
    /// lost in between, the error is [`Error::Lost`].
    ///
    /// # Errors
    /// Those of [`crate::Election::lead`].
    pub fn lead<T>(&self, value: &str, work: impl FnOnce(&Lease) -> T) -> Result<T, Error> {
        let mut lease = self.campaign(value)?;
        let done = work(&lease);
        let inner = lease.take();
        self.background.block_on(inner.finish(Some(done)))
    }

    /// See [`crate::Election::leader`].
    ///
    /// # Errors
    /// Those of [`crate::Election::leader`].
    pub fn leader(&self) -> Result<Option<Leader>, Error> {
        self.background.block_on(self.inner.leader())
    }

    /// See [`crate::Election::observe`].
    #[must_use]
    pub fn observe(&self) -> Observer {
        Observer {
            inner: self.inner.observe(),
            background: Arc::clone(&self.background),
        }
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A blocking [`crate::Observer`].
pub struct Observer {
    pub(super) inner: crate::Observer,
    pub(super) background: Arc<Background>,
}

impl Observer {
    /// See [`crate::Observer::changed`].
    ///
    /// # Errors
    /// Those of [`crate::Observer::changed`].
    pub fn changed(&mut self) -> Result<Option<Leader>, Error> {
        self.background.block_on(self.inner.changed())
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
