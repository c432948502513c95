//! The guard of several leases.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::join;
use crate::base::name::Name;
use crate::lease::guard::{Lease, Released};

/// Several leases that are held together, from [`Mutexes::lock`](crate::Mutexes::lock). They are
/// released when dropped.
///
/// They are valid as long as each of them is valid. When one of them is lost, the others are still
/// held until they are released or dropped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, Released};
///
/// let client = Client::in_memory();
/// let both = client.mutexes(["accounts/1", "accounts/2"]).lock().await?;
/// println!("token {:?} for the next {:?}", both.token("accounts/1"), both.remaining());
/// assert_eq!(both.release().await, Released::Released);
/// # Ok(()) }
/// ```
#[must_use = "leases that are dropped are released at once"]
pub struct Leases {
    /// At least one, in the order in which the names were given.
    leases: Vec<Lease>,
}

impl Leases {
    pub(crate) fn new(leases: Vec<Lease>) -> Self {
        Self { leases }
    }

    /// Returns the fencing token of one of the names; `None` if it is not one of the names. Each name
    /// has its own tokens: a resource that several names protect checks one of them. Of several permits
    /// of a [`Semaphore`](crate::Semaphore), this is the token of one; [`iter`](Self::iter) has all.
    #[must_use]
    pub fn token(&self, name: impl AsRef<[u8]>) -> Option<u64> {
        self.get(name).map(Lease::token)
    }

    /// Returns the names and their fencing tokens, in the order in which the names were given.
    pub fn tokens(&self) -> impl Iterator<Item = (&Name, u64)> {
        self.iter().map(|lease| (lease.name(), lease.token()))
    }

    /// Returns the lease of one of the names.
    #[must_use]
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&Lease> {
        let name = name.as_ref();
        self.iter().find(|lease| lease.name().as_bytes() == name)
    }

    /// Returns the leases in the order in which the names were given.
    pub fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.leases.iter()
    }

    /// Returns the time until which all leases are valid: the earliest of their
    /// [deadlines](Lease::deadline).
    #[must_use]
    pub fn deadline(&self) -> Moment {
        let deadlines = self.iter().map(Lease::deadline);
        deadlines.min().unwrap_or(Moment::FAR)
    }

    /// Returns how long all leases are still valid; zero if one of them has ended. Local, without
    /// I/O.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let remaining = self.iter().map(Lease::remaining);
        remaining.min().unwrap_or_default()
    }

    /// Whether all leases are valid now. Local, without I/O.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.iter().all(Lease::is_valid)
    }

    /// Resolves when one of the leases is lost. See [`Lease::lost`].
    ///
    /// Cancel safety: dropping the future has no effect. The method can be called again.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        join::any(self.leases.iter().map(Lease::lost).collect::<Vec<_>>())
    }

    /// Releases all leases at once. [`Released::WasLost`] if one of them had been lost, otherwise
    /// [`Released::StillHeld`] if one of them has other guards. See [`Lease::release`].
    ///
    /// Cancel safety: like [`Lease::release`].
    pub async fn release(self) -> Released {
        let released = join::all(self.leases.into_iter().map(Lease::release)).await;
        let any = |what| released.contains(&what).then_some(what);
        let exception = any(Released::WasLost).or_else(|| any(Released::StillHeld));
        exception.unwrap_or(Released::Released)
    }

    /// Runs `work` and releases all leases. If one of them is lost before, `work` is dropped.
    pub(crate) async fn run<T>(self, work: impl AsyncFnOnce(&Self) -> T) -> Result<T, Error> {
        let done = tokio::select! {
            biased;
            () = self.lost() => None,
            value = work(&self) => Some(value),
        };
        self.finish(done).await
    }

    /// Releases all leases, and returns the result of the work if they were held until then.
    pub(crate) async fn finish<T>(mut self, done: Option<T>) -> Result<T, Error> {
        // The error is that of the lease that was lost.
        let lost = self.iter().position(|lease| lease.loss().is_some());
        let lost = self.leases.swap_remove(lost.unwrap_or(0));
        let others = self.leases.into_iter().map(|lease| lease.finish(Some(())));
        let (done, others) = tokio::join!(lost.finish(done), join::all(others));
        let done = done?;
        others.into_iter().collect::<Result<(), _>>()?;
        Ok(done)
    }
}

impl IntoIterator for Leases {
    type Item = Lease;
    type IntoIter = std::vec::IntoIter<Lease>;

    /// Returns the leases in the order in which the names were given. Each of them is then released
    /// on its own.
    fn into_iter(self) -> Self::IntoIter {
        self.leases.into_iter()
    }
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
