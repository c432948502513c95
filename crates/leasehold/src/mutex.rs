//! A named lock that at most one holder has at a time.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::acquire::{Handle, unless_held};
use crate::base::error::Error;
use crate::base::mode::Mode;
use crate::client::options::Options;
use crate::lease::detached::Detached;
use crate::lease::guard::Lease;

/// A named lock that at most one holder has at a time. This is a cheap handle: create one wherever
/// it is needed.
///
/// | | waits | if another client holds the lock |
/// |---|---|---|
/// | [`lock`](Mutex::lock) | as [`Options::wait`] says, by default forever | [`Error::TimedOut`], or [`Error::Held`] if the call may not wait |
/// | [`try_lock`](Mutex::try_lock) | no | `Ok(None)` |
/// | [`try_lock_for`](Mutex::try_lock_for) | at most `timeout` | `Ok(None)` |
/// | [`lock_timeout`](Mutex::lock_timeout) | at most `timeout` | [`Error::TimedOut`] |
/// | [`with`](Mutex::with) | like `lock` | like `lock` |
/// | [`try_with`](Mutex::try_with) | no | `Ok(None)` |
#[derive(Clone)]
pub struct Mutex {
    handle: Handle,
}

impl Mutex {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle }
    }

    /// Returns this lock with changed options.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// use std::time::Duration;
    ///
    /// let mutex = client
    ///     .mutex("reports/daily")
    ///     .with_options(|options| options.ttl(Duration::from_secs(30)).label("cron"));
    /// let lease = mutex.lock().await?;
    /// # drop(lease); Ok(()) }
    /// ```
    #[must_use]
    pub fn with_options(mut self, change: impl FnOnce(Options) -> Options) -> Self {
        self.handle = self.handle.with_options(change);
        self
    }

    /// Acquires the lock. Waits for it as [`Options::wait`] says, by default forever.
    ///
    /// The future owns everything that it needs, so the mutex may be a temporary:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let (a, b) = tokio::join!(client.mutex("a").lock(), client.mutex("b").lock());
    /// let (a, b) = (a?, b?);
    /// let c = tokio::spawn(client.mutex("c").lock());
    /// # drop((a, b, c)); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Held`], [`Error::TimedOut`], [`Error::NoMajority`], [`Error::Invalid`],
    /// [`Error::ShutDown`], [`Error::RuntimeEnded`].
    ///
    /// Cancel safety: if the future is dropped, the client releases the claim in the background. At
    /// worst the claim expires after its TTL.
    pub fn lock(&self) -> impl Future<Output = Result<Lease, Error>> + Send + use<> {
        self.acquire(self.handle.options.clone())
    }

    /// Acquires the lock if it is free. Returns `Ok(None)` if another client holds it.
    ///
    /// # Errors
    /// [`Error::NoMajority`], [`Error::Invalid`], [`Error::ShutDown`], [`Error::RuntimeEnded`].
    ///
    /// Cancel safety: like [`lock`](Mutex::lock).
    pub fn try_lock(&self) -> impl Future<Output = Result<Option<Lease>, Error>> + Send + use<> {
        let acquiring = self.acquire(self.handle.without_waiting());
        async move { unless_held(acquiring.await) }
    }

    /// Acquires the lock, and waits for it for at most `timeout`. Returns `Ok(None)` if another
    /// client held it during all of that time.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// use std::time::Duration;
    ///
    /// let mutex = client.mutex("report");
    /// let _held = mutex.lock().await?;
    /// assert!(mutex.try_lock_for(Duration::from_millis(10)).await?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoMajority`], [`Error::Invalid`], [`Error::ShutDown`], [`Error::RuntimeEnded`].
    ///
    /// Cancel safety: like [`lock`](Mutex::lock).
    pub fn try_lock_for(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<Option<Lease>, Error>> + Send + use<> {
        let acquiring = self.lock_timeout(timeout);
        async move { unless_held(acquiring.await) }
    }

    /// Acquires the lock, and waits for it for at most `timeout`. The error says which client held
    /// it. If a held lock is not an error for the caller, use
    /// [`try_lock_for`](Mutex::try_lock_for). [`Options::attempts`] does not shorten the wait.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::NoMajority`], [`Error::Invalid`],
    /// [`Error::ShutDown`], [`Error::RuntimeEnded`].
    ///
    /// Cancel safety: like [`lock`](Mutex::lock).
    pub fn lock_timeout(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<Lease, Error>> + Send + use<> {
        self.acquire(self.handle.waiting_for(timeout))
    }

    /// Acquires the lock, runs `work`, and releases the lock. If the lease is lost in between,
    /// `work` is dropped and the error is [`Error::Lost`]. `work` is not polled again after the
    /// deadline of the lease, even if the process was stopped in between.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let sum = client.mutex("sum").with(async |lease| {
    ///     println!("working with token {}", lease.token());
    ///     1 + 1
    /// }).await?;
    /// assert_eq!(sum, 2);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`lock`](Mutex::lock), and [`Error::Lost`].
    ///
    /// Cancel safety: if the future is dropped, `work` is dropped and the client releases the lease
    /// in the background.
    pub fn with<T, W>(&self, work: W) -> impl Future<Output = Result<T, Error>> + use<T, W>
    where
        W: AsyncFnOnce(&Lease) -> T,
    {
        let acquiring = self.lock();
        async move { acquiring.await?.run(work).await }
    }

    /// Runs `work` if the lock is free, and releases the lock. Returns `Ok(None)` if another client
    /// holds it. As [`with`](Mutex::with) otherwise.
    ///
    /// This is for tasks that are due on several machines. With [`Options::min_hold`], the others skip
    /// theirs also if the first one ends before their clocks say that it is time. With
    /// [`Options::max_hold`], a task that hangs is dropped. If a task that failed should be repeated
    /// by another machine, use [`Client::once`](crate::Client::once).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// use std::time::Duration;
    ///
    /// let hourly = client.mutex("reports/hourly").with_options(|options| {
    ///     options
    ///         .min_hold(Duration::from_secs(50 * 60))
    ///         .max_hold(Duration::from_secs(55 * 60))
    /// });
    /// assert_eq!(hourly.try_with(async |_| "sent").await?, Some("sent"));
    /// assert_eq!(hourly.try_with(async |_| "sent again").await?, None);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`try_lock`](Mutex::try_lock), and [`Error::Lost`].
    ///
    /// Cancel safety: like [`with`](Mutex::with).
    pub fn try_with<T, W>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<Option<T>, Error>> + use<T, W>
    where
        W: AsyncFnOnce(&Lease) -> T,
    {
        let acquiring = self.try_lock();
        async move {
            match acquiring.await? {
                Some(lease) => Ok(Some(lease.run(work).await?)),
                None => Ok(None),
            }
        }
    }

    /// Returns the lease of this lock that was [detached](Lease::detach) with this owner value.
    /// Sends no request: whether the lease is still held turns out when it is extended or released.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an owner value that leasehold did not create.
    pub fn detached(&self, owner: &str) -> Result<Detached, Error> {
        let Handle { core, key, options } = self.handle.clone();
        options.validate(core.constants.restart_guard)?;
        Ok(Detached::from_owner(core, key?, owner, &options)?)
    }

    fn acquire(
        &self,
        options: Options,
    ) -> impl Future<Output = Result<Lease, Error>> + Send + use<> {
        self.handle.acquire(Mode::Exclusive, options)
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex")
            .field("name", &self.handle)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::Client;

    /// The futures outlive the mutex that created them, and can be sent to another thread.
    #[tokio::test]
    async fn futures_own_what_they_need() {
        fn owned<F: Future + Send + 'static>(future: F) -> F {
            future
        }
        let client = Client::in_memory();
        let time = Duration::from_secs(60);
        let lock = owned(client.mutex("a").lock());
        let timeout = owned(client.mutex("b").lock_timeout(time));
        let try_for = owned(client.mutex("c").try_lock_for(time));
        let with = owned(client.mutex("d").with(async |lease| lease.token()));
        let held = tokio::join!(lock, timeout, try_for, with);
        assert!(held.0.is_ok() && held.1.is_ok() && held.2.is_ok() && held.3.is_ok());
        tokio::select! {
            lease = client.mutex("a").try_lock() => assert!(lease.unwrap().is_none()),
            () = tokio::time::sleep(time) => panic!("it waits"),
        }
    }
}
