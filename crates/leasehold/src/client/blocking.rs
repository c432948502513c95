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
//! It has the methods of the async API under the same names, except these:
//!
//! - [`Once::begin`](crate::Once::begin), for work that does not fit into a closure;
//! - `Builder::votes_in`, and those of the feature `doctor`.
//!
//! A closure cannot be stopped from outside. So `with`, `try_with`, `run` and `lead` do not end early if
//! the lease is lost: check [`Lease::is_valid`] in the closure.
//!
//! | | |
//! |---|---|
//! | [`Client`] | [`connect`](Client::connect), [`build`](Client::build), `init` and `init_replacing` take a [`Builder`]; `in_memory`, `mutex`, `mutexes`, `rw_lock`, `semaphore`, `latch`, `once`, `election`, `ready`, `shutdown`, `inspect`, `inspect_all`, `inspect_permits`, `break_lock`, `break_permit`, `frees_the_locks_of_the_dead`, `stats` |
//! | [`Mutex`] | `with_options`, `lock`, `try_lock`, `try_lock_for`, `lock_timeout`, `with`, `try_with`, `detached` |
//! | [`Mutexes`] | `with_options`, `shared`, `lock`, `try_lock`, `try_lock_for`, `lock_timeout`, `with` |
//! | [`Latch`] | `with_options`, `kept_for`, `arrive`, `missing`, `wait`, `wait_timeout`, `arrive_and_wait`, `clear` |
//! | [`Semaphore`] | `with_options`, `acquire`, `try_acquire`, `acquire_timeout`, `acquire_many`, `with`, `resize`, `permits` |
//! | [`RwLock`] | `with_options`, `read`, `write`, `try_read`, `try_write`, `read_timeout`, `write_timeout`, `with_read`, `with_write` |
//! | [`Once`] | `with_options`, `skip`, `run`, `peek`, `clear` |
//! | [`Election`] | `with_options`, `campaign`, `lead`, `leader`, `observe`; [`Observer`] has `changed` |
//! | [`Lease`] | `token`, `permit`, `mode`, `fence`, `is_shared`, `downgrade`, `owner_id`, `name`, `key`, `deadline`, `remaining`, `is_valid`, `loss`, `extend`, `release`, `release_keeping`, `again`, `detach`, `bind_to_processes`, `cancellation_token`; [`lost`](Lease::lost) has a timeout |
//! | [`Leases`] | `get`, `iter`, `token`, `tokens`, `deadline`, `remaining`, `is_valid`, `release`; [`lost`](Leases::lost) has a timeout |
//! | [`Detached`] | `owner`, `token`, `name`, `key`, `extend`, `release` |
//!
//! Do not use it inside of an async runtime: its calls block the thread, and they panic on a thread
//! of a runtime.

mod election;
mod latch;
mod lease;
mod once;
mod rw_lock;
mod semaphore;
mod several;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Handle, Runtime};

use crate::{Builder, Error, Inspection, Listing, Options};

pub use election::{Election, Observer};
pub use latch::Latch;
pub use lease::{Detached, Lease};
pub use once::Once;
pub use rw_lock::RwLock;
pub use semaphore::Semaphore;
pub use several::{Leases, Mutexes};

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

    /// See [`crate::Client::mutexes`].
    #[must_use]
    pub fn mutexes<N: AsRef<[u8]>>(&self, names: impl IntoIterator<Item = N>) -> Mutexes {
        Mutexes {
            inner: self.inner.mutexes(names),
            background: Arc::clone(&self.background),
        }
    }

    /// See [`crate::Client::once`].
    ///
    /// ```
    /// # let client = leasehold::blocking::Client::in_memory();
    /// let once = client.once("rates", std::time::Duration::from_secs(300));
    /// let done = once.run(|_| Ok::<_, std::io::Error>(b"1.09".to_vec()))?;
    /// assert_eq!(once.peek()?.unwrap().bytes, done.bytes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn once(&self, name: impl AsRef<[u8]>, period: Duration) -> Once {
        Once {
            inner: self.inner.once(name, period),
            background: Arc::clone(&self.background),
        }
    }

    /// See [`crate::Client::election`].
    ///
    /// ```
    /// # let client = leasehold::blocking::Client::in_memory();
    /// let election = client.election("scheduler");
    /// let lease = election.campaign("10.0.0.7:80")?;
    /// assert_eq!(election.leader()?.unwrap().token, lease.token());
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn election(&self, name: impl AsRef<[u8]>) -> Election {
        Election {
            inner: self.inner.election(name),
            background: Arc::clone(&self.background),
        }
    }

    /// See [`crate::Client::latch`].
    ///
    /// ```
    /// # fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::blocking::Client::in_memory();
    /// client.latch("ready", ["one"]).arrive_and_wait("one")?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn latch<N: AsRef<[u8]>>(
        &self,
        name: impl AsRef<[u8]>,
        parties: impl IntoIterator<Item = N>,
    ) -> Latch {
        Latch {
            inner: self.inner.latch(name, parties),
            background: Arc::clone(&self.background),
        }
    }

    /// See [`crate::Client::semaphore`].
    ///
    /// ```
    /// # fn main() -> Result<(), leasehold::Error> {
    /// let client = leasehold::blocking::Client::in_memory();
    /// let permit = client.semaphore("exports", 10).acquire()?;
    /// assert!(permit.permit().is_some());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn semaphore(&self, name: impl AsRef<[u8]>, permits: u32) -> Semaphore {
        Semaphore {
            inner: self.inner.semaphore(name, permits),
            background: Arc::clone(&self.background),
        }
    }

    /// See [`crate::Client::rw_lock`].
    ///
    /// ```
    /// let client = leasehold::blocking::Client::in_memory();
    /// let catalog = client.rw_lock("catalog");
    /// let reading = catalog.write()?.downgrade()?;
    /// assert!(catalog.try_read()?.is_some());
    /// # drop(reading);
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    #[must_use]
    pub fn rw_lock(&self, name: impl AsRef<[u8]>) -> RwLock {
        RwLock {
            inner: self.inner.rw_lock(name),
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

    /// See [`crate::Client::inspect_permits`].
    ///
    /// # Errors
    /// Those of [`crate::Client::inspect_permits`].
    pub fn inspect_permits(&self, name: impl AsRef<[u8]>) -> Result<Listing, Error> {
        self.background.block_on(self.inner.inspect_permits(name))
    }

    /// See [`crate::Client::break_permit`].
    ///
    /// # Errors
    /// Those of [`crate::Client::break_permit`].
    pub fn break_permit(
        &self,
        name: impl AsRef<[u8]>,
        permit: u32,
        owner_id: &str,
    ) -> Result<bool, Error> {
        let breaking = self.inner.break_permit(name, permit, owner_id);
        self.background.block_on(breaking)
    }

    /// See [`crate::Client::frees_the_locks_of_the_dead`].
    #[must_use]
    pub fn frees_the_locks_of_the_dead(&self) -> bool {
        self.inner.frees_the_locks_of_the_dead()
    }

    /// See [`crate::Client::stats`].
    #[must_use]
    pub fn stats(&self) -> crate::observe::Stats {
        self.inner.stats()
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
        self.lock()?.run(work)
    }

    /// Runs `work` if the lock is free, and releases the lock. Returns `Ok(None)` if another client
    /// holds it. As [`with`](Mutex::with) otherwise; see [`crate::Mutex::try_with`].
    ///
    /// # Errors
    /// Those of [`try_lock`](Mutex::try_lock), and [`Error::Lost`].
    pub fn try_with<T>(&self, work: impl FnOnce(&Lease) -> T) -> Result<Option<T>, Error> {
        match self.try_lock()? {
            Some(lease) => lease.run(work).map(Some),
            None => Ok(None),
        }
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
        Lease::new(inner, &self.background)
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
