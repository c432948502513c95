//! The blocking API, for programs without async. It has the same names as the async API.
//!
//! Each client has a background thread, which does the I/O and renews leases while the program
//! computes.
//!
//! ```
//! use leasehold::blocking::Client;
//!
//! let client = Client::in_memory();
//! let lease = client.mutex("orders/42").lock()?;
//! println!("token {}", lease.token());
//! lease.release();
//! # Ok::<(), leasehold::Error>(())
//! ```
//!
//! It has every method of the async API, under the same name:
//!
//! | | |
//! |---|---|
//! | [`Client`] | [`connect`](Client::connect), [`build`](Client::build), `init` and `init_replacing` take a [`Builder`]; `in_memory`, `mutex`, `ready`, `shutdown`, `inspect`, `inspect_all`, `break_lock`, `frees_the_locks_of_the_dead` |
//! | [`Mutex`] | `with_options`, `lock`, `try_lock`, `try_lock_for`, `lock_timeout`, `with`, `detached` |
//! | [`Lease`] | `token`, `owner_id`, `name`, `key`, `deadline`, `remaining`, `is_valid`, `loss`, `extend`, `release`, `release_keeping`, `detach`, `bind_to_processes`, `cancellation_token`; [`lost`](Lease::lost) has a timeout |
//! | [`Detached`] | `owner`, `token`, `name`, `key`, `extend`, `release` |
//!
//! Do not use it inside of an async runtime: its calls block the thread, and they panic on a thread
//! of a runtime.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Handle, Runtime};

use crate::{Builder, Error, Inspection, Listing, Loss, Moment, Name, Options, Released};

/// The background thread. It ends with its last handle, without waiting for anything.
struct Background {
    runtime: Option<Runtime>,
}

impl Background {
    fn start() -> Arc<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("leasehold")
            .enable_all()
            .build()
            .expect("the background thread can be started");
        let runtime = Some(runtime);
        Arc::new(Self { runtime })
    }

    fn handle(&self) -> &Handle {
        self.runtime
            .as_ref()
            .expect("present until dropped")
            .handle()
    }

    fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.handle().block_on(work)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Must not block: the last handle may be dropped inside of a runtime.
            runtime.shutdown_background();
        }
    }
}

/// A blocking [`crate::Client`].
#[derive(Clone)]
pub struct Client {
    inner: crate::Client,
    background: Arc<Background>,
}

impl Client {
    /// Creates the client that `builder` configures and waits until a majority of its nodes is
    /// connected; see [`Builder::connect`].
    ///
    /// ```no_run
    /// let builder = leasehold::Client::builder().node("redis://localhost");
    /// let client = leasehold::blocking::Client::connect(builder)?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Builder::connect`].
    pub fn connect(builder: Builder) -> Result<Self, Error> {
        let background = Background::start();
        let inner = background.block_on(builder.connect())?;
        Ok(Self { inner, background })
    }

    /// Creates the client that `builder` configures without waiting; see [`Builder::build`].
    ///
    /// # Errors
    /// Those of [`Builder::build`].
    pub fn build(builder: Builder) -> Result<Self, Error> {
        let background = Background::start();
        let inner = background.block_on(async { builder.build() })?;
        Ok(Self { inner, background })
    }

    /// Records the nodes of `builder` as a set; see [`Builder::init`].
    ///
    /// ```no_run
    /// let nodes = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    /// leasehold::blocking::Client::init(leasehold::Client::builder().nodes(nodes))?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Builder::init`].
    #[cfg(feature = "redis")]
    pub fn init(builder: Builder) -> Result<Vec<crate::node::Initialized>, Error> {
        Background::start().block_on(builder.init())
    }

    /// Records the nodes of `builder` in place of others; see [`Builder::init_replacing`].
    ///
    /// # Errors
    /// Those of [`Builder::init_replacing`].
    #[cfg(feature = "redis")]
    pub fn init_replacing(builder: Builder) -> Result<Vec<crate::node::Initialized>, Error> {
        Background::start().block_on(builder.init_replacing())
    }

    /// See [`crate::Client::in_memory`].
    #[must_use]
    pub fn in_memory() -> Self {
        let background = Background::start();
        let inner = background.block_on(async { crate::Client::in_memory() });
        Self { inner, background }
    }

    /// See [`crate::Client::mutex`].
    #[must_use]
    pub fn mutex(&self, name: impl AsRef<[u8]>) -> Mutex {
        Mutex {
            inner: self.inner.mutex(name),
            background: Arc::clone(&self.background),
        }
    }

    /// See [`crate::Client::ready`].
    ///
    /// # Errors
    /// Those of [`crate::Client::ready`].
    pub fn ready(&self, timeout: Duration) -> Result<(), Error> {
        self.background.block_on(self.inner.ready(timeout))
    }

    /// See [`crate::Client::inspect`].
    ///
    /// ```
    /// let client = leasehold::blocking::Client::in_memory();
    /// let lease = client.mutex("report").lock()?;
    /// let inspection = client.inspect(lease.name())?;
    /// let owner_id = inspection.lock().expect("it is held").owner_id();
    /// assert!(client.break_lock(lease.name(), &owner_id)?);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`crate::Client::inspect`].
    pub fn inspect(&self, name: impl AsRef<[u8]>) -> Result<Inspection, Error> {
        self.background.block_on(self.inner.inspect(name))
    }

    /// See [`crate::Client::inspect_all`].
    ///
    /// # Errors
    /// Those of [`crate::Client::inspect_all`].
    pub fn inspect_all(&self) -> Result<Listing, Error> {
        self.background.block_on(self.inner.inspect_all())
    }

    /// See [`crate::Client::break_lock`].
    ///
    /// # Errors
    /// Those of [`crate::Client::break_lock`].
    pub fn break_lock(&self, name: impl AsRef<[u8]>, owner_id: &str) -> Result<bool, Error> {
        let breaking = self.inner.break_lock(name, owner_id);
        self.background.block_on(breaking)
    }

    /// See [`crate::Client::frees_the_locks_of_the_dead`].
    #[must_use]
    pub fn frees_the_locks_of_the_dead(&self) -> bool {
        self.inner.frees_the_locks_of_the_dead()
    }

    /// See [`crate::Client::shutdown`]. Without this call, locks that were released just before the
    /// program ends may stay taken until their TTL is over.
    pub fn shutdown(&self, grace: Duration) -> usize {
        self.background.block_on(self.inner.shutdown(grace))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A blocking [`crate::Mutex`].
#[derive(Clone)]
pub struct Mutex {
    inner: crate::Mutex,
    background: Arc<Background>,
}

impl Mutex {
    /// See [`crate::Mutex::with_options`].
    #[must_use]
    pub fn with_options(mut self, change: impl FnOnce(Options) -> Options) -> Self {
        self.inner = self.inner.with_options(change);
        self
    }

    /// See [`crate::Mutex::lock`].
    ///
    /// # Errors
    /// Those of [`crate::Mutex::lock`].
    pub fn lock(&self) -> Result<Lease, Error> {
        let lease = self.background.block_on(self.inner.lock())?;
        Ok(self.lease(lease))
    }

    /// See [`crate::Mutex::try_lock`].
    ///
    /// # Errors
    /// Those of [`crate::Mutex::try_lock`].
    pub fn try_lock(&self) -> Result<Option<Lease>, Error> {
        let lease = self.background.block_on(self.inner.try_lock())?;
        Ok(lease.map(|lease| self.lease(lease)))
    }

    /// See [`crate::Mutex::try_lock_for`].
    ///
    /// # Errors
    /// Those of [`crate::Mutex::try_lock_for`].
    pub fn try_lock_for(&self, timeout: Duration) -> Result<Option<Lease>, Error> {
        let lease = self.background.block_on(self.inner.try_lock_for(timeout))?;
        Ok(lease.map(|lease| self.lease(lease)))
    }

    /// See [`crate::Mutex::lock_timeout`].
    ///
    /// # Errors
    /// Those of [`crate::Mutex::lock_timeout`].
    pub fn lock_timeout(&self, timeout: Duration) -> Result<Lease, Error> {
        let lease = self.background.block_on(self.inner.lock_timeout(timeout))?;
        Ok(self.lease(lease))
    }

    /// Acquires the lock, runs `work`, and releases the lock. A closure cannot be stopped from
    /// outside, so a long one should check [`Lease::is_valid`] from time to time. If the lease was
    /// lost in between, the error is [`Error::Lost`].
    ///
    /// # Errors
    /// Those of [`lock`](Mutex::lock), and [`Error::Lost`].
    pub fn with<T>(&self, work: impl FnOnce(&Lease) -> T) -> Result<T, Error> {
        let mut lease = self.lock()?;
        let value = work(&lease);
        let inner = lease.take();
        self.background.block_on(inner.finish(Some(value)))
    }

    /// See [`crate::Mutex::detached`].
    ///
    /// # Errors
    /// Those of [`crate::Mutex::detached`].
    pub fn detached(&self, owner: &str) -> Result<Detached, Error> {
        Ok(Detached {
            inner: self.inner.detached(owner)?,
            background: Arc::clone(&self.background),
        })
    }

    fn lease(&self, inner: crate::Lease) -> Lease {
        Lease {
            inner: Some(inner),
            background: Arc::clone(&self.background),
        }
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A blocking [`crate::Lease`]. Released when dropped.
///
/// Dropping it waits for the release, at most the node timeout, unless it is dropped inside of an
/// async runtime.
#[must_use = "a lease that is dropped is released at once"]
pub struct Lease {
    /// `None` after the lease was dropped or released.
    inner: Option<crate::Lease>,
    background: Arc<Background>,
}

impl Lease {
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
    fn take(&mut self) -> crate::Lease {
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
    inner: crate::Detached,
    background: Arc<Background>,
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
