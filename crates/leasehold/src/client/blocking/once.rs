//! Work that is done once per period.

use std::fmt;
use std::sync::Arc;

use super::{Background, Lease};
use crate::{Done, Error, OnceError, OnceStart, Options};

/// A blocking [`crate::Once`].
#[derive(Clone)]
pub struct Once {
    pub(super) inner: crate::Once,
    pub(super) background: Arc<Background>,
}

impl Once {
    /// See [`crate::Once::with_options`].
    #[must_use]
    pub fn with_options(mut self, change: impl FnOnce(Options) -> Options) -> Self {
        self.inner = self.inner.with_options(change);
        self
    }

    /// See [`crate::Once::skip`].
    #[must_use]
    pub fn skip(mut self) -> Self {
        self.inner = self.inner.skip();
        self
    }

    /// See [`crate::Once::run`]. A closure cannot be stopped from outside, so a long one should check
    /// [`Lease::is_valid`] from time to time. If the lease was lost in between, the result is not
    /// stored.
    ///
    /// # Errors
    /// Those of [`crate::Once::run`].
    pub fn run<E>(
        &self,
        work: impl FnOnce(&Lease) -> Result<Vec<u8>, E>,
    ) -> Result<Done, OnceError<E>> {
        let mut turn = match self.background.block_on(self.inner.begin())? {
            OnceStart::Stored(done) => return Ok(done),
            OnceStart::Running(holder) => return Err(OnceError::Running(holder)),
            OnceStart::Turn(turn) => turn,
        };
        let mut lease = Lease::new(turn.lease, &self.background);
        let result = work(&lease);
        turn.lease = lease.take();
        self.background.block_on(turn.end(Some(result)))
    }

    /// See [`crate::Once::peek`].
    ///
    /// # Errors
    /// Those of [`crate::Once::peek`].
    pub fn peek(&self) -> Result<Option<Done>, Error> {
        self.background.block_on(self.inner.peek())
    }

    /// See [`crate::Once::clear`].
    ///
    /// # Errors
    /// Those of [`crate::Once::clear`].
    pub fn clear(&self) -> Result<bool, Error> {
        self.background.block_on(self.inner.clear())
    }
}

impl fmt::Debug for Once {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
