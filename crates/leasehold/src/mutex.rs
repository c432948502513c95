//! A named lock that one holder has at a time.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::core::Core;
use crate::detached::Detached;
use crate::error::{Error, Invalid};
use crate::lease::Lease;
use crate::name::Name;
use crate::options::{Options, Wait};
use crate::patience::Patience;
use crate::turnstile::Turnstile;
use crate::waiter;

/// A named lock that at most one holder has at a time. A cheap handle; make one where
/// it is needed.
///
/// | | waits | when another holds it |
/// |---|---|---|
/// | [`lock`](Mutex::lock) | as [`Options::wait`] says, by default for ever | [`Error::TimedOut`], or [`Error::Held`] if it may not wait |
/// | [`try_lock`](Mutex::try_lock) | no | `Ok(None)` |
/// | [`lock_timeout`](Mutex::lock_timeout) | so long | [`Error::TimedOut`] |
/// | [`with`](Mutex::with) | as `lock` | as `lock` |
#[derive(Clone)]
pub struct Mutex {
    core: Arc<Core>,
    name: Result<Name, Invalid>,
    options: Options,
}

impl Mutex {
    pub(crate) fn new(core: Arc<Core>, name: Result<Name, Invalid>) -> Self {
        let options = core.options.clone();
        Self {
            core,
            name,
            options,
        }
    }

    /// This lock with other options.
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
        self.options = change(self.options);
        self
    }

    /// Takes the lock, waiting for it as [`Options::wait`] says (by default for ever).
    ///
    /// # Errors
    /// [`Error::Held`], [`Error::TimedOut`], [`Error::NoMajority`], [`Error::Invalid`],
    /// [`Error::ShutDown`].
    ///
    /// Cancel safety: if dropped, a claim that was sent is given back in the
    /// background; at worst it ends with its TTL.
    pub async fn lock(&self) -> Result<Lease, Error> {
        self.acquire(&self.options).await
    }

    /// Takes the lock if it is free. `Ok(None)` if another holds it.
    ///
    /// # Errors
    /// [`Error::NoMajority`], [`Error::Invalid`], [`Error::ShutDown`].
    ///
    /// Cancel safety: as [`lock`](Mutex::lock).
    pub async fn try_lock(&self) -> Result<Option<Lease>, Error> {
        match self.acquire(&self.options.clone().wait(Wait::No)).await {
            Ok(lease) => Ok(Some(lease)),
            Err(Error::Held(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes the lock, waiting for it at most `timeout`.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::NoMajority`], [`Error::Invalid`],
    /// [`Error::ShutDown`].
    ///
    /// Cancel safety: as [`lock`](Mutex::lock).
    pub async fn lock_timeout(&self, timeout: Duration) -> Result<Lease, Error> {
        self.acquire(&self.options.clone().wait(Wait::For(timeout)))
            .await
    }

    /// Takes the lock, runs `work`, and gives the lock back. If the lease is lost on the
    /// way, `work` is dropped where it stands and the error is [`Error::Lost`].
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
    /// Cancel safety: if dropped, `work` is dropped and the lease released in the
    /// background.
    pub async fn with<T>(&self, work: impl AsyncFnOnce(&Lease) -> T) -> Result<T, Error> {
        let lease = self.lock().await?;
        let lost = lease.lost();
        let done = tokio::select! {
            biased;
            () = lost => None,
            value = work(&lease) => Some(value),
        };
        // A result that came after the deadline was not protected by the lease.
        let (name, token) = (lease.name().clone(), lease.token());
        match (done, lease.release().await) {
            (Some(value), crate::Released::Released) => Ok(value),
            _ => Err(Error::Lost { name, token }),
        }
    }

    /// A lease of this lock that was [detached](Lease::detach), by its owner value. Asks no
    /// node: whether it is still held shows when it is extended or released.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an owner that is none of leasehold's.
    pub fn detached(&self, owner: &str) -> Result<Detached, Error> {
        let name = self.name.as_ref().map_err(Clone::clone)?;
        self.options.validate(self.core.constants.restart_guard)?;
        let core = Arc::clone(&self.core);
        Ok(Detached::from_owner(
            core,
            name.clone(),
            owner,
            &self.options,
        )?)
    }

    async fn acquire(&self, options: &Options) -> Result<Lease, Error> {
        let name = self.name.as_ref().map_err(Clone::clone)?;
        options.validate(self.core.constants.restart_guard)?;
        let core = &self.core;
        let started = core.clock.now();
        let until = match options.wait {
            Wait::No => started,
            Wait::For(wait) => started + wait,
            Wait::Forever => Moment::FAR,
        };
        // Who stands in line lets others of this process go before.
        let mut turn = match options.stands_in_line() {
            true => Turnstile::enter(core, name, until).await,
            false => None,
        };
        let passed = turn
            .as_mut()
            .and_then(|turn| turn.take(options, core.clock.now()));
        let won = match passed {
            Some(won) => won,
            None => {
                let outage_since = turn.as_ref().and_then(|turn| turn.outage_since);
                let patience = Patience::new(options, core.next_seed(), started, outage_since);
                let won = waiter::acquire(core, name, options, patience).await;
                if let Some(turn) = &mut turn {
                    // Those behind need not find out each for itself, one after the other.
                    let lasts = matches!(won, Err(Error::NoMajority(_)));
                    let since = core.clock.now().saturating_sub(options.outage_patience);
                    turn.outage_since = lasts.then_some(since);
                }
                won?
            }
        };
        let lease = Lease::new(core, won, options, turn);
        // A shutdown that came meanwhile drops it.
        match self.core.is_shut_down() {
            false => Ok(lease),
            true => Err(Error::ShutDown),
        }
    }
}

impl std::fmt::Debug for Mutex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mutex")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
