//! Several locks that are held together.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{Want, acquire, unless_held};
use crate::base::clock::Moment;
use crate::base::error::{Error, Invalid};
use crate::base::join;
use crate::base::name::Name;
use crate::client::core::Core;
use crate::client::options::{Options, Wait};
use crate::lease::guard::Lease;
use crate::lease::leases::Leases;
use crate::planted::{self, Bug};

/// How many names can be locked together.
const MAX_NAMES: usize = 64;

/// Several locks that are acquired together: all of them or none. From
/// [`Client::mutexes`](crate::Client::mutexes).
///
/// If all locks are free, this takes one round trip, as for one lock. Otherwise the call releases
/// what it got, and then acquires the locks one after the other in the order of their names' bytes,
/// holding the earlier ones while it waits for the later ones. Clients that lock overlapping sets of
/// names in any order therefore never wait for each other in a circle, and each lock's line is
/// served in order.
///
/// [`Options::min_hold`] and [`Options::max_hold`] count from when each lock was acquired. A call that
/// fails keeps none of the locks, whatever `min_hold` says.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::in_memory();
/// // A transfer between two accounts, which another transfer may lock the other way round:
/// let both = client.mutexes(["accounts/7", "accounts/3"]).lock().await?;
/// // … move the money, passing both.token("accounts/7") and both.token("accounts/3") …
/// both.release().await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Mutexes {
    core: Arc<Core>,
    /// The locks, in the order in which the names were given.
    wants: Result<Vec<Want>, Invalid>,
    options: Options,
}

impl Mutexes {
    pub(crate) fn new(core: Arc<Core>, keys: Result<Vec<Name>, Invalid>) -> Self {
        let options = core.options.clone();
        let wants = keys.map(|keys| keys.into_iter().map(Want::exclusive).collect());
        Self {
            core,
            wants,
            options,
        }
    }

    /// Adds a name that is held together with other readers, as by
    /// [`RwLock::read`](crate::RwLock::read). The other names exclude all other holders.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// // One order at a time, while no one changes the prices:
    /// let leases = client.mutexes(["orders/42"]).shared("prices").lock().await?;
    /// assert!(client.rw_lock("prices").try_read().await?.is_some());
    /// assert!(client.rw_lock("prices").try_write().await?.is_none());
    /// # drop(leases); Ok(()) }
    /// ```
    #[must_use]
    pub fn shared(mut self, name: impl AsRef<[u8]>) -> Self {
        let key = self.core.key_of(name.as_ref());
        self.wants = self.wants.and_then(|mut wants| {
            wants.push(Want::shared(key?));
            Ok(wants)
        });
        self
    }

    /// Returns these locks with changed options. They apply to each of the locks, except that
    /// [`Options::wait`] is the time for all of them together.
    #[must_use]
    pub fn with_options(mut self, change: impl FnOnce(Options) -> Options) -> Self {
        self.options = change(self.options);
        self
    }

    /// Acquires all locks. Waits for them as [`Options::wait`] says, by default forever. If one of
    /// them is lost while the call waits for another, the call releases all of them and starts again.
    ///
    /// # Errors
    /// Those of [`Mutex::lock`](crate::Mutex::lock). The error is about the lock that could not be
    /// acquired. [`Error::Invalid`] also for more than 64 names, none, or the same name twice.
    ///
    /// Cancel safety: like [`Mutex::lock`](crate::Mutex::lock), for each of the locks.
    pub fn lock(&self) -> impl Future<Output = Result<Leases, Error>> + Send + use<> {
        self.acquire(self.options.clone())
    }

    /// Acquires all locks if all of them are free, in one round trip. Returns `Ok(None)` if another
    /// client holds one of them.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let held = client.mutex("b").lock().await?;
    /// assert!(client.mutexes(["a", "b"]).try_lock().await?.is_none());
    /// held.release().await;
    /// assert!(client.mutexes(["a", "b"]).try_lock().await?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// Cancel safety: like [`lock`](Mutexes::lock).
    pub fn try_lock(&self) -> impl Future<Output = Result<Option<Leases>, Error>> + Send + use<> {
        let acquiring = self.acquire(self.options.clone().wait(Wait::No));
        async move { unless_held(acquiring.await) }
    }

    /// Acquires all locks, and waits for them for at most `timeout`. Returns `Ok(None)` if that was
    /// not enough.
    ///
    /// # Errors
    /// Those of [`Mutex::try_lock_for`](crate::Mutex::try_lock_for).
    ///
    /// Cancel safety: like [`lock`](Mutexes::lock).
    pub fn try_lock_for(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<Option<Leases>, Error>> + Send + use<> {
        let acquiring = self.lock_timeout(timeout);
        async move { unless_held(acquiring.await) }
    }

    /// Acquires all locks, and waits for them for at most `timeout`. The error says which lock was
    /// held, and by which client.
    ///
    /// # Errors
    /// Those of [`Mutex::lock_timeout`](crate::Mutex::lock_timeout).
    ///
    /// Cancel safety: like [`lock`](Mutexes::lock).
    pub fn lock_timeout(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<Leases, Error>> + Send + use<> {
        self.acquire(self.options.clone().wait(Wait::For(timeout)).attempts(None))
    }

    /// Acquires all locks, runs `work`, and releases the locks. If one of the leases is lost in
    /// between, `work` is dropped and the error is [`Error::Lost`]. See
    /// [`Mutex::with`](crate::Mutex::with).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let names = client.mutexes(["a", "b"]).with(async |leases| leases.tokens().count()).await?;
    /// assert_eq!(names, 2);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`lock`](Mutexes::lock), and [`Error::Lost`].
    ///
    /// Cancel safety: if the future is dropped, `work` is dropped and the client releases the leases
    /// in the background.
    pub fn with<T, W>(&self, work: W) -> impl Future<Output = Result<T, Error>> + use<T, W>
    where
        W: AsyncFnOnce(&Leases) -> T,
    {
        let acquiring = self.lock();
        async move { acquiring.await?.run(work).await }
    }

    /// Acquires the locks with these options. The future owns everything that it needs.
    fn acquire(
        &self,
        options: Options,
    ) -> impl Future<Output = Result<Leases, Error>> + Send + use<> {
        let (core, wants) = (Arc::clone(&self.core), self.wants.clone());
        async move {
            let wants = wants?;
            validate(&core, &wants)?;
            let acquired = acquire_all(&core, &wants, options).await;
            acquired.map_err(|error| core.explain(error))
        }
    }
}

/// Checks that there are 1 to 64 names, and that all differ.
fn validate(core: &Core, wants: &[Want]) -> Result<(), Invalid> {
    if !(1..=MAX_NAMES).contains(&wants.len()) {
        return Err(Invalid::Number {
            option: "the number of names to lock together",
            value: u64::try_from(wants.len()).unwrap_or(u64::MAX),
            min: 1,
            max: MAX_NAMES as u64,
        });
    }
    let mut seen = BTreeSet::new();
    match wants.iter().find(|want| !seen.insert(&want.name)) {
        Some(twice) => Err(Invalid::SameName {
            name: core.name_of(&twice.name),
        }),
        None => Ok(()),
    }
}

/// Acquires all locks. [`Options::min_hold`] applies only to a call that succeeds: the locks that
/// another one got are free at once.
async fn acquire_all(core: &Arc<Core>, wants: &[Want], options: Options) -> Result<Leases, Error> {
    options.validate(core.constants.restart_guard)?;
    let min_hold = options.min_hold;
    let leases = acquire_each(core, wants, options.min_hold(None)).await?;
    leases.iter().for_each(|lease| lease.set_min_hold(min_hold));
    Ok(leases)
}

async fn acquire_each(core: &Arc<Core>, wants: &[Want], options: Options) -> Result<Leases, Error> {
    let started = core.clock.now();
    if wants.len() > 1 {
        match try_all(core, wants, &options).await {
            Err(Error::Held(_) | Error::NoMajority(_)) if options.wait != Wait::No => {}
            // One of them was lost before the last one was there.
            Ok(leases) if options.wait != Wait::No && !leases.is_valid() => drop(leases),
            outcome => return outcome,
        }
    }
    loop {
        if let Some(leases) = acquire_in_order(core, wants, &options, started).await? {
            return Ok(leases);
        }
    }
}

/// Tries to acquire all locks, in one round trip.
async fn try_all(core: &Arc<Core>, wants: &[Want], options: &Options) -> Result<Leases, Error> {
    let once = options.clone().wait(Wait::No);
    let once = &once;
    let tries = wants.iter().map(|want| acquire(core, want, once));
    let (mut leases, mut errors) = (Vec::with_capacity(wants.len()), Vec::new());
    for outcome in join::all(tries).await {
        match outcome {
            Ok(lease) => leases.push(lease),
            Err(error) => errors.push(error),
        }
    }
    // A lock that is held explains the failure better than one for which no majority answered.
    errors.sort_by_key(|error| !matches!(error, Error::Held(_)));
    match errors.into_iter().next() {
        Some(_) if planted::on(Bug::SomeNamesSuffice) && !leases.is_empty() => {
            Ok(Leases::new(leases))
        }
        None => Ok(Leases::new(leases)),
        Some(error) => Err(error),
    }
}

/// Acquires the locks in the order of their keys' bytes. `None` if one of them was lost meanwhile.
///
/// Rule: a call that holds a lock waits only for locks with larger keys, on the nodes and in this
/// process. So there is no circle of calls that wait for each other.
async fn acquire_in_order(
    core: &Arc<Core>,
    wants: &[Want],
    options: &Options,
    started: Moment,
) -> Result<Option<Leases>, Error> {
    let mut order: Vec<usize> = (0..wants.len()).collect();
    if !planted::on(Bug::Unsorted) {
        order.sort_by_key(|index| &wants[*index].name);
    }
    let mut leases: Vec<Option<Lease>> = wants.iter().map(|_| None).collect();
    for index in order {
        let options = options.clone().waiting_since(started, core.clock.now());
        let held: Vec<_> = leases.iter().flatten().map(Lease::lost).collect();
        let acquired = tokio::select! {
            biased;
            () = join::any(held) => return Ok(None),
            acquired = acquire(core, &wants[index], &options) => acquired,
        };
        leases[index] = Some(acquired.map_err(|error| match error {
            Error::TimedOut { refusal, .. } => Error::TimedOut {
                waited: core.clock.now().saturating_duration_since(started),
                refusal,
            },
            error => error,
        })?);
    }
    let leases = Leases::new(leases.into_iter().flatten().collect());
    Ok(leases.is_valid().then_some(leases))
}

impl fmt::Debug for Mutexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.wants.as_ref().map(|wants| {
            let names = wants.iter().map(|want| self.core.name_of(&want.name));
            names.collect::<Vec<_>>()
        });
        f.debug_struct("Mutexes")
            .field("names", &names)
            .finish_non_exhaustive()
    }
}
