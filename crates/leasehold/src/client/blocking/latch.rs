//! The latch.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Background;
use crate::{Error, Name, Options};

/// A blocking [`crate::Latch`].
#[derive(Clone)]
pub struct Latch {
    pub(super) inner: crate::Latch,
    pub(super) background: Arc<Background>,
}

impl Latch {
    /// See [`crate::Latch::with_options`].
    #[must_use]
    pub fn with_options(mut self, change: impl FnOnce(Options) -> Options) -> Self {
        self.inner = self.inner.with_options(change);
        self
    }

    /// See [`crate::Latch::kept_for`].
    #[must_use]
    pub fn kept_for(mut self, time: Duration) -> Self {
        self.inner = self.inner.kept_for(time);
        self
    }

    /// See [`crate::Latch::arrive`].
    ///
    /// # Errors
    /// Those of [`crate::Latch::arrive`].
    pub fn arrive(&self, party: impl AsRef<[u8]>) -> Result<(), Error> {
        self.background.block_on(self.inner.arrive(party))
    }

    /// See [`crate::Latch::missing`].
    ///
    /// # Errors
    /// Those of [`crate::Latch::missing`].
    pub fn missing(&self) -> Result<Vec<Name>, Error> {
        self.background.block_on(self.inner.missing())
    }

    /// Waits until every party has arrived. Returns `false` if that takes longer than `timeout`.
    ///
    /// # Errors
    /// Those of [`crate::Latch::wait`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<bool, Error> {
        let waiting = async { tokio::time::timeout(timeout, self.inner.wait()).await };
        match self.background.block_on(waiting) {
            Ok(waited) => waited.map(|()| true),
            Err(_) => Ok(false),
        }
    }

    /// See [`crate::Latch::wait`].
    ///
    /// # Errors
    /// Those of [`crate::Latch::wait`].
    pub fn wait(&self) -> Result<(), Error> {
        self.background.block_on(self.inner.wait())
    }

    /// See [`crate::Latch::arrive_and_wait`].
    ///
    /// # Errors
    /// Those of [`crate::Latch::arrive_and_wait`].
    pub fn arrive_and_wait(&self, party: impl AsRef<[u8]>) -> Result<(), Error> {
        self.background.block_on(self.inner.arrive_and_wait(party))
    }

    /// See [`crate::Latch::clear`].
    ///
    /// # Errors
    /// Those of [`crate::Latch::clear`].
    pub fn clear(&self) -> Result<(), Error> {
        self.background.block_on(self.inner.clear())
    }
}

impl fmt::Debug for Latch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
