//! A named lock that several readers or one writer have at a time.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::acquire::{Handle, unless_held};
use crate::base::error::Error;
use crate::base::mode::Mode;
use crate::client::options::Options;
use crate::lease::guard::Lease;

/// A named lock that several readers or one writer have at a time. This is a cheap handle: create
/// one wherever it is needed.
///
/// A writer is a holder of the [`Mutex`](crate::Mutex) of the same name. Readers and writers stand in
/// one line, in the order in which they came: no reader overtakes a writer that waits, and readers
/// that stand next to each other get the lock together.
///
/// | | waits | if the lock is not available |
/// |---|---|---|
/// | [`read`](RwLock::read), [`write`](RwLock::write) | as [`Options::wait`] says, by default forever | [`Error::TimedOut`], or [`Error::Held`] if the call may not wait |
/// | [`try_read`](RwLock::try_read), [`try_write`](RwLock::try_write) | no | `Ok(None)` |
/// | [`read_timeout`](RwLock::read_timeout), [`write_timeout`](RwLock::write_timeout) | at most `timeout` | [`Error::TimedOut`] |
/// | [`with_read`](RwLock::with_read), [`with_write`](RwLock::with_write) | like `read`, `write` | like `read`, `write` |
///
/// A writer becomes a reader with [`Lease::downgrade`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::in_memory();
/// let catalog = client.rw_lock("catalog");
/// let (one, two) = (catalog.read().await?, catalog.read().await?);
/// assert!(catalog.try_write().await?.is_none());
/// # drop((one, two));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RwLock {
    handle: Handle,
}

impl RwLock {
    pub(crate) fn new(handle: Handle) -> Self {
        Self { handle }
    }

    /// Returns this lock with changed options. They apply to readers and writers.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// use std::time::Duration;
    ///
    /// let catalog = client
    ///     .rw_lock("catalog")
    ///     .with_options(|options| options.ttl(Duration::from_secs(30)).label("importer"));
    /// let lease = catalog.write().await?;
    /// # drop(lease); Ok(()) }
    /// ```
    #[must_use]
    pub fn with_options(mut self, change: impl FnOnce(Options) -> Options) -> Self {
        self.handle = self.handle.with_options(change);
        self
    }

    /// Acquires the lock together with other readers. Waits for it as [`Options::wait`] says, by
    /// default forever.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let lease = client.rw_lock("catalog").read().await?;
    /// println!("reading with token {}", lease.token());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Held`], [`Error::TimedOut`], [`Error::NoMajority`], [`Error::Invalid`] (also with
    /// [`Options::without_fencing`]), [`Error::ShutDown`], [`Error::RuntimeEnded`].
    ///
    /// Cancel safety: if the future is dropped, the client releases the claim in the background. At
    /// worst the claim expires after its TTL.
    pub fn read(&self) -> impl Future<Output = Result<Lease, Error>> + Send + use<> {
        self.handle
            .acquire(Mode::Shared, self.handle.options.clone())
    }

    /// Acquires the lock alone. Waits for it as [`Options::wait`] says, by default forever. The same
    /// as [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let lease = client.rw_lock("catalog").write().await?;
    /// println!("writing with token {}", lease.token());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Mutex::lock`](crate::Mutex::lock).
    ///
    /// Cancel safety: like [`read`](RwLock::read).
    pub fn write(&self) -> impl Future<Output = Result<Lease, Error>> + Send + use<> {
        self.handle
            .acquire(Mode::Exclusive, self.handle.options.clone())
    }

    /// Acquires the lock together with other readers, if no writer holds it or waits for it.
    /// Otherwise returns `Ok(None)`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let catalog = client.rw_lock("catalog");
    /// let _writing = catalog.write().await?;
    /// assert!(catalog.try_read().await?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoMajority`], [`Error::Invalid`], [`Error::ShutDown`], [`Error::RuntimeEnded`].
    ///
    /// Cancel safety: like [`read`](RwLock::read).
    pub fn try_read(&self) -> impl Future<Output = Result<Option<Lease>, Error>> + Send + use<> {
        let acquiring = self
            .handle
            .acquire(Mode::Shared, self.handle.without_waiting());
        async move { unless_held(acquiring.await) }
    }

    /// Acquires the lock alone, if it is free. Otherwise returns `Ok(None)`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let catalog = client.rw_lock("catalog");
    /// let _reading = catalog.read().await?;
    /// assert!(catalog.try_write().await?.is_none());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoMajority`], [`Error::Invalid`], [`Error::ShutDown`], [`Error::RuntimeEnded`].
    ///
    /// Cancel safety: like [`read`](RwLock::read).
    pub fn try_write(&self) -> impl Future<Output = Result<Option<Lease>, Error>> + Send + use<> {
        let acquiring = self
            .handle
            .acquire(Mode::Exclusive, self.handle.without_waiting());
        async move { unless_held(acquiring.await) }
    }

    /// Acquires the lock together with other readers, and waits for it for at most `timeout`.
    /// [`Options::attempts`] does not shorten the wait.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// use leasehold::Error;
    /// use std::time::Duration;
    ///
    /// let catalog = client.rw_lock("catalog");
    /// let _writing = catalog.write().await?;
    /// let refused = catalog.read_timeout(Duration::from_millis(10)).await;
    /// assert!(matches!(refused, Err(Error::TimedOut { .. })));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::NoMajority`], [`Error::Invalid`], [`Error::ShutDown`],
    /// [`Error::RuntimeEnded`].
    ///
    /// Cancel safety: like [`read`](RwLock::read).
    pub fn read_timeout(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<Lease, Error>> + Send + use<> {
        self.handle
            .acquire(Mode::Shared, self.handle.waiting_for(timeout))
    }

    /// Acquires the lock alone, and waits for it for at most `timeout`. [`Options::attempts`] does
    /// not shorten the wait.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// use std::time::Duration;
    ///
    /// let lease = client.rw_lock("catalog").write_timeout(Duration::from_secs(5)).await?;
    /// # drop(lease); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::NoMajority`], [`Error::Invalid`], [`Error::ShutDown`],
    /// [`Error::RuntimeEnded`].
    ///
    /// Cancel safety: like [`read`](RwLock::read).
    pub fn write_timeout(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<Lease, Error>> + Send + use<> {
        self.handle
            .acquire(Mode::Exclusive, self.handle.waiting_for(timeout))
    }

    /// Acquires the lock together with other readers, runs `work`, and releases the lock. If the
    /// lease is lost in between, `work` is dropped and the error is [`Error::Lost`]. See
    /// [`Mutex::with`](crate::Mutex::with).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let rows = client.rw_lock("catalog").with_read(async |_lease| 42).await?;
    /// assert_eq!(rows, 42);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`read`](RwLock::read), and [`Error::Lost`].
    ///
    /// Cancel safety: if the future is dropped, `work` is dropped and the client releases the lease
    /// in the background.
    pub fn with_read<T, W>(&self, work: W) -> impl Future<Output = Result<T, Error>> + use<T, W>
    where
        W: AsyncFnOnce(&Lease) -> T,
    {
        let acquiring = self.read();
        async move { acquiring.await?.run(work).await }
    }

    /// Acquires the lock alone, runs `work`, and releases the lock. If the lease is lost in between,
    /// `work` is dropped and the error is [`Error::Lost`]. The same as
    /// [`Mutex::with`](crate::Mutex::with).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// client.rw_lock("catalog").with_write(async |lease| {
    ///     println!("writing with token {}", lease.token());
    /// }).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`write`](RwLock::write), and [`Error::Lost`].
    ///
    /// Cancel safety: if the future is dropped, `work` is dropped and the client releases the lease
    /// in the background.
    pub fn with_write<T, W>(&self, work: W) -> impl Future<Output = Result<T, Error>> + use<T, W>
    where
        W: AsyncFnOnce(&Lease) -> T,
    {
        let acquiring = self.write();
        async move { acquiring.await?.run(work).await }
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock")
            .field("name", &self.handle)
            .finish_non_exhaustive()
    }
}
