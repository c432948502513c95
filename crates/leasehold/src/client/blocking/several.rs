//! Several locks at once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::Background;
use crate::{Error, Moment, Name, Options, Released};

/// A blocking [`crate::Mutexes`].
///
/// ```
/// let client = leasehold::blocking::Client::in_memory();
/// let both = client.mutexes(["accounts/1", "accounts/2"]).lock()?;
/// println!("token {:?}", both.token("accounts/1"));
/// both.release();
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone)]
pub struct Mutexes {
    pub(super) inner: crate::Mutexes,
    pub(super) background: Arc<Background>,
}

impl Mutexes {
    /// See [`crate::Mutexes::with_options`].
    #[must_use]
    pub fn with_options(mut self, change: impl FnOnce(Options) -> Options) -> Self {
        self.inner = self.inner.with_options(change);
        self
    }

    /// See [`crate::Mutexes::shared`].
    #[must_use]
    pub fn shared(mut self, name: impl AsRef<[u8]>) -> Self {
        self.inner = self.inner.shared(name);
        self
    }

    /// See [`crate::Mutexes::lock`].
    ///
    /// # Errors
    /// Those of [`crate::Mutexes::lock`].
    pub fn lock(&self) -> Result<Leases, Error> {
        let leases = self.background.block_on(self.inner.lock())?;
        Ok(self.leases(leases))
    }

    /// See [`crate::Mutexes::try_lock`].
    ///
    /// # Errors
    /// Those of [`crate::Mutexes::try_lock`].
    pub fn try_lock(&self) -> Result<Option<Leases>, Error> {
        let leases = self.background.block_on(self.inner.try_lock())?;
        Ok(leases.map(|leases| self.leases(leases)))
    }

    /// See [`crate::Mutexes::try_lock_for`].
    ///
    /// # Errors
    /// Those of [`crate::Mutexes::try_lock_for`].
    pub fn try_lock_for(&self, timeout: Duration) -> Result<Option<Leases>, Error> {
        let leases = self.background.block_on(self.inner.try_lock_for(timeout))?;
        Ok(leases.map(|leases| self.leases(leases)))
    }

    /// See [`crate::Mutexes::lock_timeout`].
    ///
    /// # Errors
    /// Those of [`crate::Mutexes::lock_timeout`].
    pub fn lock_timeout(&self, timeout: Duration) -> Result<Leases, Error> {
        let leases = self.background.block_on(self.inner.lock_timeout(timeout))?;
        Ok(self.leases(leases))
    }

    /// Acquires all locks, runs `work`, and releases the locks. A closure cannot be stopped from
    /// outside, so a long one should check [`Leases::is_valid`] from time to time. If one of the
    /// leases was lost in between, the error is [`Error::Lost`].
    ///
    /// # Errors
    /// Those of [`lock`](Mutexes::lock), and [`Error::Lost`].
    pub fn with<T>(&self, work: impl FnOnce(&Leases) -> T) -> Result<T, Error> {
        let mut leases = self.lock()?;
        let value = work(&leases);
        let inner = leases.take();
        self.background.block_on(inner.finish(Some(value)))
    }

    fn leases(&self, inner: crate::Leases) -> Leases {
        Leases::new(inner, &self.background)
    }
}

impl fmt::Debug for Mutexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Blocking [`crate::Leases`]. Released when dropped, like [`Lease`](super::Lease).
#[must_use = "leases that are dropped are released at once"]
pub struct Leases {
    /// `None` after the leases were dropped or released.
    inner: Option<crate::Leases>,
    background: Arc<Background>,
}

impl Leases {
    pub(super) fn new(leases: crate::Leases, background: &Arc<Background>) -> Self {
        Self {
            inner: Some(leases),
            background: Arc::clone(background),
        }
    }

    /// See [`crate::Leases::token`].
    #[must_use]
    pub fn token(&self, name: impl AsRef<[u8]>) -> Option<u64> {
        self.leases().token(name)
    }

    /// See [`crate::Leases::tokens`].
    pub fn tokens(&self) -> impl Iterator<Item = (&Name, u64)> {
        self.leases().tokens()
    }

    /// Returns the leases, in the order in which the names were given. Their methods that are not async
    /// can be called, such as [`token`](crate::Lease::token) and [`permit`](crate::Lease::permit).
    pub fn iter(&self) -> impl Iterator<Item = &crate::Lease> {
        self.leases().iter()
    }

    /// See [`crate::Leases::get`], and [`iter`](Self::iter).
    #[must_use]
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&crate::Lease> {
        self.leases().get(name)
    }

    /// See [`crate::Leases::deadline`].
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.leases().deadline()
    }

    /// See [`crate::Leases::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.leases().remaining()
    }

    /// See [`crate::Leases::is_valid`].
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.leases().is_valid()
    }

    /// Blocks until one of the leases is lost, at most `timeout`. Returns whether one is lost. See
    /// [`crate::Leases::lost`].
    #[must_use]
    pub fn lost(&self, timeout: Duration) -> bool {
        let lost = async { tokio::time::timeout(timeout, self.leases().lost()).await };
        self.background.block_on(lost).is_ok()
    }

    /// See [`crate::Leases::release`].
    pub fn release(mut self) -> Released {
        let inner = self.take();
        self.background.block_on(inner.release())
    }

    /// Takes the leases out of the guard, which is not used any more.
    fn take(&mut self) -> crate::Leases {
        self.inner.take().expect("present until released")
    }

    fn leases(&self) -> &crate::Leases {
        self.inner.as_ref().expect("present until released")
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        // As for one lease: the background thread may end with this handle.
        if let Some(leases) = self.inner.take()
            && Handle::try_current().is_err()
        {
            self.background.block_on(leases.release());
        }
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
