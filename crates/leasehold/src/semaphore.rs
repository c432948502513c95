//! A number of permits, each of which one client has at a time.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{self, Handle, Want, unless_held};
use crate::base::error::{Error, Invalid, NodeOutcome};
use crate::base::join;
use crate::base::mode::Mode;
use crate::base::name::Name;
use crate::client::core::Core;
use crate::client::options::Options;
use crate::lease::guard::Lease;
use crate::lease::leases::Leases;
use crate::node::seat::Seat;
use crate::node::semaphore::MAX_PERMITS;
use crate::node::{Claim, Verb, Vote, majority};
use crate::quorum::{Broadcast, Question};

/// The longest TTL of the lock that a client holds while it collects several permits.
const GATE_TTL: Duration = Duration::from_secs(10);

/// A number of permits under one name, each of which one client has at a time. From
/// [`Client::semaphore`](crate::Client::semaphore).
///
/// Clients that wait get a permit in the order in which they came. All clients must use the same number
/// of permits; a client with another number gets [`Invalid::OtherPermits`].
///
/// The lease of a permit is renewed, lost and released like any other. Its token fences the permit, not
/// the semaphore: it is larger than the tokens of all earlier holders of [the same
/// permit](Lease::permit). A resource that several holders use at the same time can compare tokens only
/// for each permit.
///
/// | | waits | if there is no permit |
/// |---|---|---|
/// | [`acquire`](Semaphore::acquire), [`acquire_many`](Semaphore::acquire_many) | as [`Options::wait`] says, by default forever | [`Error::TimedOut`], or [`Error::Held`] if the call may not wait |
/// | [`try_acquire`](Semaphore::try_acquire) | no | `Ok(None)` |
/// | [`acquire_timeout`](Semaphore::acquire_timeout) | at most `timeout` | [`Error::TimedOut`] |
/// | [`with`](Semaphore::with) | like `acquire` | like `acquire` |
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::in_memory();
/// let exports = client.semaphore("exports", 2);
/// let (one, two) = (exports.acquire().await?, exports.acquire().await?);
/// assert_ne!(one.permit(), two.permit());
/// assert!(exports.try_acquire().await?.is_none());
/// # drop((one, two));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    handle: Handle,
    permits: u32,
}

impl Semaphore {
    pub(crate) fn new(handle: Handle, permits: u32) -> Self {
        Self { handle, permits }
    }

    /// Returns this semaphore with changed options.
    #[must_use]
    pub fn with_options(mut self, change: impl FnOnce(Options) -> Options) -> Self {
        self.handle = self.handle.with_options(change);
        self
    }

    /// Acquires a permit. Waits for it as [`Options::wait`] says, by default forever.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let permit = client.semaphore("exports", 10).acquire().await?;
    /// println!("permit {:?}, token {}", permit.permit(), permit.token());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`Mutex::lock`](crate::Mutex::lock). [`Error::Invalid`] also if the number of permits is
    /// not 1 to 1024 or differs from that of other clients, with [`Options::without_fencing`], and if a
    /// custom node has no semaphores.
    ///
    /// Cancel safety: if the future is dropped, the client leaves the line and releases the claim in the
    /// background. At worst the claim expires after its TTL.
    pub fn acquire(&self) -> impl Future<Output = Result<Lease, Error>> + Send + use<> {
        self.acquire_with(self.handle.options.clone())
    }

    /// Acquires a permit if one is free and no other client waits. Otherwise returns `Ok(None)`.
    ///
    /// # Errors
    /// Those of [`acquire`](Semaphore::acquire), except [`Error::Held`] and [`Error::TimedOut`].
    ///
    /// Cancel safety: like [`acquire`](Semaphore::acquire).
    pub fn try_acquire(&self) -> impl Future<Output = Result<Option<Lease>, Error>> + Send + use<> {
        let acquiring = self.acquire_with(self.handle.without_waiting());
        async move { unless_held(acquiring.await) }
    }

    /// Acquires a permit, and waits for it for at most `timeout`.
    ///
    /// # Errors
    /// Those of [`acquire`](Semaphore::acquire).
    ///
    /// Cancel safety: like [`acquire`](Semaphore::acquire).
    pub fn acquire_timeout(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<Lease, Error>> + Send + use<> {
        self.acquire_with(self.handle.waiting_for(timeout))
    }

    /// Acquires several permits, all of them or none. Only one client at a time collects several
    /// permits, so two clients never wait for each other's.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let exports = client.semaphore("exports", 10);
    /// let three = exports.acquire_many(3).await?;
    /// assert_eq!(three.iter().count(), 3);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`acquire`](Semaphore::acquire). [`Error::Invalid`] also if `count` is not 1 to the
    /// number of permits.
    ///
    /// Cancel safety: like [`acquire`](Semaphore::acquire), for each of the permits.
    pub fn acquire_many(
        &self,
        count: u32,
    ) -> impl Future<Output = Result<Leases, Error>> + Send + use<> {
        let semaphore = self.clone();
        async move {
            semaphore.key()?;
            let permits = u64::from(semaphore.permits);
            check("the number of permits to acquire", count, permits)?;
            let core = &semaphore.handle.core;
            let collected = semaphore.collect(count).await;
            collected.map_err(|error| core.explain(error))
        }
    }

    /// Acquires a permit, runs `work`, and releases the permit. If the lease is lost in between, `work`
    /// is dropped and the error is [`Error::Lost`]. See [`Mutex::with`](crate::Mutex::with).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let exports = client.semaphore("exports", 10);
    /// let token = exports.with(async |permit| permit.token()).await?;
    /// # let _ = token; Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`acquire`](Semaphore::acquire), and [`Error::Lost`].
    ///
    /// Cancel safety: if the future is dropped, `work` is dropped and the client releases the permit in
    /// the background.
    pub fn with<T, W>(&self, work: W) -> impl Future<Output = Result<T, Error>> + use<T, W>
    where
        W: AsyncFnOnce(&Lease) -> T,
    {
        let acquiring = self.acquire();
        async move { acquiring.await?.run(work).await }
    }

    /// Changes the number of permits on record to that of this semaphore. From then on, clients with the
    /// old number get [`Invalid::OtherPermits`]. More permits can be acquired at once; if there are
    /// fewer, those beyond the new number stay with their holders until they are released.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let _permit = client.semaphore("exports", 1).acquire().await?;
    /// let more = client.semaphore("exports", 3);
    /// assert!(more.try_acquire().await.is_err());
    /// more.resize().await?;
    /// assert!(more.try_acquire().await?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoMajority`], [`Error::Invalid`], [`Error::RuntimeEnded`].
    ///
    /// Cancel safety: if the future is dropped, some nodes may have the new number. Call it again.
    pub fn resize(&self) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let semaphore = self.clone();
        async move {
            let (key, core) = (semaphore.key()?, &semaphore.handle.core);
            core.check_runtime()?;
            let options = &semaphore.handle.options;
            let owner = core.secrets.new_owner(Mode::Exclusive, 0, &options.label);
            let claim = Claim::new(key.clone(), owner, 0, options.ttl);
            let claim = Arc::new(claim.in_seat(Seat::resizing(key.clone(), semaphore.permits)));
            let release = Verb::Release { keep: None };
            let question = Question::new(release, &claim, options.timeout_of_node());
            let broadcast = Broadcast::send(&core.nodes, question);
            broadcast.complete().await;
            let round = broadcast.round();
            let done = round
                .outcomes()
                .iter()
                .filter(|outcome| matches!(outcome, NodeOutcome::Voted(Vote::Released { .. })));
            match done.count() >= majority(core.nodes.len()) {
                true => Ok(()),
                false => {
                    Err(core.explain(Error::NoMajority(Box::new(core.refused(&claim, &round)))))
                }
            }
        }
    }

    /// The number of permits that this handle was created with.
    #[must_use]
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// The key of the semaphore, if everything is valid.
    fn key(&self) -> Result<Name, Error> {
        let key = self.handle.key.clone()?.semaphore();
        check(
            "the number of permits",
            self.permits,
            u64::from(MAX_PERMITS),
        )?;
        let mut nodes = self.handle.core.nodes.iter();
        match nodes.find(|node| !node.has_semaphores()) {
            Some(node) => Err(Invalid::NoSemaphores {
                node: node.label().to_owned(),
            }
            .into()),
            None => Ok(key),
        }
    }

    /// Acquires a permit with these options. The future owns everything that it needs.
    fn acquire_with(
        &self,
        options: Options,
    ) -> impl Future<Output = Result<Lease, Error>> + Send + use<> {
        let semaphore = self.clone();
        async move {
            let (key, core) = (semaphore.key()?, &semaphore.handle.core);
            let acquired = acquire::acquire_permit(core, &key, semaphore.permits, &options).await;
            acquired.map_err(|error| core.explain(explain(core, &key, semaphore.permits, error)))
        }
    }

    /// Acquires several permits while no other client does. [`Options::min_hold`] applies only to a
    /// call that succeeds: the permits that another one got are free at once.
    async fn collect(&self, count: u32) -> Result<Leases, Error> {
        if count == 1 {
            return Ok(Leases::new(vec![self.acquire().await?]));
        }
        let (key, core, options) = (self.key()?, &self.handle.core, &self.handle.options);
        options.validate(core.constants.restart_guard)?;
        let (started, min_hold) = (core.clock.now(), options.min_hold);
        let gate = Want::exclusive(key.gate());
        let rest = || {
            options
                .clone()
                .min_hold(None)
                .waiting_since(started, core.clock.now())
        };
        // The limits are for what the caller does with the permits. Collecting takes as long as it takes,
        // and a client that dies meanwhile does not keep others from it for long.
        let of_gate = || {
            let unlimited = rest().max_hold(None);
            let short = unlimited
                .clone()
                .with_renewal()
                .ttl(options.ttl.min(GATE_TTL));
            match short.validate(core.constants.restart_guard) {
                Ok(()) => short,
                Err(_) => unlimited,
            }
        };
        loop {
            let gate = acquire::acquire(core, &gate, &of_gate()).await?;
            let permits = (0..count).map(|_| self.acquire_with(rest()));
            let permits = tokio::select! {
                biased;
                // Another client may collect permits, too, and wait for those of this call.
                () = gate.lost() => continue,
                permits = join::all(permits) => permits,
            };
            let leases = Leases::new(permits.into_iter().collect::<Result<_, _>>()?);
            // One of them may have been lost while the call waited for the others.
            if leases.is_valid() {
                leases.iter().for_each(|lease| lease.set_min_hold(min_hold));
                // Released in the background: while this call waited for that, a lease could be lost.
                drop(gate);
                return Ok(leases);
            }
        }
    }
}

/// Checks that a number is 1 to `max`.
fn check(option: &'static str, value: u32, max: u64) -> Result<(), Invalid> {
    let value = u64::from(value);
    match (1..=max).contains(&value) {
        true => Ok(()),
        false => Err(Invalid::Number {
            option,
            value,
            min: 1,
            max,
        }),
    }
}

/// If a majority of nodes has another number of permits, and the same one, the error says so.
fn explain(core: &Core, key: &Name, ours: u32, error: Error) -> Error {
    let Error::NoMajority(refusal) = &error else {
        return error;
    };
    let others = refusal
        .nodes
        .iter()
        .filter_map(|report| match report.outcome {
            NodeOutcome::Voted(Vote::OtherPermits { permits }) => Some(permits),
            _ => None,
        });
    let mut others: Vec<u32> = others.collect();
    others.sort_unstable();
    let mut numbers = others.chunk_by(|one, other| one == other);
    match numbers.find(|same| same.len() >= refusal.majority) {
        Some(theirs) => Invalid::OtherPermits {
            name: core.name_of(key),
            theirs: theirs[0],
            ours,
        }
        .into(),
        None => error,
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("name", &self.handle)
            .field("permits", &self.permits)
            .finish()
    }
}

#[cfg(test)]
mod tests;
