//! Callers: tasks of the simulated processes that use leases through the library's public API.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold::Mode;
use leasehold::{Client, Error, Lease, Mutex, Options, RwLock, Wait};

use crate::bug::Bug;
use crate::cancel::Cancel;
use crate::clock::sleep;
use crate::dice::Dice;
use crate::fault::Fault;
use crate::ledger::{Guard, HoldingId};
use crate::plan::Kind;
use crate::process::Process;
use crate::resource::Resource;
use crate::waiters::InLine;
use crate::world::World;

/// A caller in a process.
pub struct Caller {
    /// The run.
    pub world: Arc<World>,
    /// The process it runs in.
    pub process: Arc<Process>,
    /// The client of its process.
    pub client: Client,
    /// Its own source of chance.
    pub dice: Dice,
}

/// The lock of a name, as a caller uses it.
enum Lock {
    /// Alone.
    Mutex(Mutex),
    /// Together with other readers.
    Reader(RwLock),
}

impl Lock {
    async fn try_lock(&self) -> Result<Option<Lease>, Error> {
        match self {
            Self::Mutex(mutex) => mutex.try_lock().await,
            Self::Reader(lock) => lock.try_read().await,
        }
    }

    async fn lock(&self) -> Result<Lease, Error> {
        match self {
            Self::Mutex(mutex) => mutex.lock().await,
            Self::Reader(lock) => lock.read().await,
        }
    }

    async fn lock_timeout(&self, timeout: Duration) -> Result<Lease, Error> {
        match self {
            Self::Mutex(mutex) => mutex.lock_timeout(timeout).await,
            Self::Reader(lock) => lock.read_timeout(timeout).await,
        }
    }

    async fn with(&self, work: impl AsyncFnOnce(&Lease)) -> Result<(), Error> {
        match self {
            Self::Mutex(mutex) => mutex.with(work).await,
            Self::Reader(lock) => lock.with_read(work).await,
        }
    }
}

/// Whether the leases of a lock have tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fenced {
    /// All of them.
    Always,
    /// Most of them.
    Mostly,
}

/// The token of a lease, and how it is held.
fn claim_of(lease: &Lease) -> (u64, Mode) {
    let mode = match lease.is_shared() {
        false => Mode::Exclusive,
        true => Mode::Shared,
    };
    (lease.token(), mode)
}

/// A lease that a caller holds, until dropped.
pub struct InHand {
    world: Arc<World>,
    id: HoldingId,
}

impl Drop for InHand {
    fn drop(&mut self) {
        self.world.over(self.id);
    }
}

impl Caller {
    /// Acquires leases until the run winds down.
    pub async fn work(self) {
        let _busy = self.world.busy();
        while !self.world.is_winding_down() {
            self.pause(0.5).await;
            let one_use = self.one_use();
            if self.dice.chance(self.world.plan.cancel / 4.0) {
                // Dropped at any await: while waiting, holding or releasing.
                self.cancel(one_use).await;
            } else {
                one_use.await;
            }
        }
    }

    async fn one_use(&self) {
        if self.wants_several() {
            return self.use_several().await;
        }
        let name = self.dice.below(self.world.plan.names);
        if let Kind::Semaphore { .. } = self.world.plan.kinds[name] {
            return self.use_semaphore(name).await;
        }
        let (mutex, stands) = self.lock(name);
        if self.dice.chance(0.15) {
            return self.with(name, &mutex, stands).await;
        }
        let acquire = self.acquire(name, &mutex, stands);
        let outcome = match self.dice.chance(self.world.plan.cancel / 2.0) {
            true if self.dice.chance(0.5) => self.abandon(acquire).await,
            true => self.cancel(acquire).await,
            false => Some(acquire.await),
        };
        if let Some(Ok(Some(lease))) = outcome {
            self.hold(name, lease).await;
        }
    }

    /// Drops a future after a few polls.
    pub async fn cancel<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let polls = self.dice.between(1, 8) as u32;
        let outcome = Cancel::after(polls, future).await;
        if outcome.is_none() {
            self.world.strike(Fault::Cancelled);
            self.note("drops a call half-way");
        }
        outcome
    }

    /// Drops a future after a while.
    pub async fn abandon<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let most = self
            .dice
            .pick(&[Duration::from_millis(100), self.world.plan.ttl]);
        let span = most.mul_f64(self.dice.fraction());
        tokio::select! {
            biased;
            outcome = future => Some(outcome),
            () = sleep(&self.world, &self.process, span) => {
                self.world.strike(Fault::Cancelled);
                self.note("stops waiting");
                None
            }
        }
    }

    async fn acquire(
        &self,
        name: usize,
        mutex: &Lock,
        stands: bool,
    ) -> Result<Option<Lease>, Error> {
        let ttl = self.world.plan.ttl;
        let how = self.dice.below(8);
        let _in_line = (stands && how > 0).then(|| self.in_line(name));
        match how {
            0 => mutex.try_lock().await,
            1..=5 => mutex.lock().await.map(Some),
            _ => mutex.lock_timeout(ttl * 2).await.map(Some),
        }
    }

    /// Marks a lease as held, until dropped.
    pub fn in_hand(&self, id: HoldingId) -> InHand {
        InHand {
            world: Arc::clone(&self.world),
            id,
        }
    }

    pub fn in_line(&self, name: usize) -> InLine {
        InLine::new(&self.world, &self.process, name)
    }

    /// Uses a lease, and ends it in one of several ways.
    pub async fn hold(&self, name: usize, lease: Lease) {
        let lease = Arc::new(lease);
        let guard = Guard::One(Arc::downgrade(&lease));
        let claim = claim_of(&lease);
        let id = self.world.granted(&self.process, name, claim, Some(guard));
        let in_hand = InHand {
            world: Arc::clone(&self.world),
            id,
        };
        {
            let work = self.work_with(name, &lease);
            let mut work = std::pin::pin!(work);
            let (is_valid, token) = (|| lease.is_valid(), lease.token());
            let lost = tokio::select! {
                biased;
                () = lease.lost() => true,
                () = self.while_valid(is_valid, token, work.as_mut()) => false,
            };
            if lost {
                self.world.loss_notified(id);
                // Some callers ignore the loss. The resource must refuse their writes.
                if self.dice.chance(0.2) {
                    work.await;
                }
            }
        }
        drop(in_hand);
        let Some(lease) = Arc::into_inner(lease) else {
            return;
        };
        if self.downgrades(name, &lease) {
            let downgrade = lease.downgrade();
            let outcome = match self.dice.chance(self.world.plan.cancel) {
                true => self.cancel(downgrade).await,
                false => Some(downgrade.await),
            };
            if let Some(Ok(lease)) = outcome {
                Box::pin(self.hold(name, lease)).await;
            }
            return;
        }
        match self.dice.below(4) {
            0 => drop(lease),
            1 if self.dice.chance(self.world.plan.cancel) => {
                self.cancel(lease.release()).await;
            }
            _ => {
                lease.release().await;
            }
        }
    }

    /// Whether a writer becomes a reader when it is done.
    fn downgrades(&self, name: usize, lease: &Lease) -> bool {
        let may = self.world.plan.kinds.get(name) == Some(&Kind::Rw) && !lease.is_shared();
        may && lease.token() > 0 && self.dice.chance(0.3)
    }

    async fn with(&self, name: usize, mutex: &Lock, stands: bool) {
        let mut in_line = stands.then(|| self.in_line(name));
        let done = mutex.with(async |lease| {
            drop(in_line.take());
            let claim = claim_of(lease);
            let id = self.world.granted(&self.process, name, claim, None);
            let _in_hand = InHand {
                world: Arc::clone(&self.world),
                id,
            };
            let work = std::pin::pin!(self.work_with(name, lease));
            let is_valid = || lease.is_valid();
            self.while_valid(is_valid, lease.token(), work).await;
        });
        // The lock may be held by another process, the lease lost, or a majority unreachable.
        let _ = done.await;
    }

    /// Polls the work, which must not be polled after the deadline of the lease by the process's
    /// own clock. A `select!` that polls `lost()` first guarantees that.
    pub async fn while_valid(
        &self,
        is_valid: impl Fn() -> bool,
        token: u64,
        mut work: Pin<&mut impl Future<Output = ()>>,
    ) {
        poll_fn(|cx| {
            if !is_valid() {
                let what = format!(
                    "{} continues its work after the deadline of its lease (token {token})",
                    self.process.label()
                );
                self.world.violate(crate::check::lost::PROMISE, what);
            }
            work.as_mut().poll(cx)
        })
        .await;
    }

    /// Reads and writes the resource, with pauses.
    pub async fn work_with(&self, name: usize, lease: &Lease) {
        let (world, process) = (&self.world, &self.process);
        let (token, mode) = claim_of(lease);
        let mut seen = None;
        for _ in 0..self.dice.below(4) {
            // Without a token there is nothing that the resource could check.
            if token > 0
                && let Some(value) = Resource::read(world, process, name, (token, mode)).await
            {
                if mode == Mode::Shared {
                    // Whatever a reader may see has not changed since it began.
                    let first = *seen.get_or_insert(value);
                    if first != value && world.bug != Some(Bug::ResourceUnfenced) {
                        let what = format!("a reader saw {first} and then {value}");
                        world.violate(crate::check::register::PROMISE, what);
                    }
                    self.pause(0.4).await;
                    continue;
                }
                if self.dice.chance(0.3) {
                    self.pause(0.5).await;
                }
                Resource::write(world, process, name, token, value + 1).await;
            }
            if self.dice.chance(0.2) {
                // This may fail. Then the deadline does not change.
                let _ = lease.extend().await;
            }
            self.pause(0.4).await;
        }
        if !self.world.is_calm() && self.dice.chance(0.3) {
            // Some callers hold the lease for as long as they can.
            self.pause(4.0).await;
        }
    }

    /// Pauses for up to `ttls` TTLs, by the process's timers.
    pub async fn pause(&self, ttls: f64) {
        // Without faults no caller pauses: the promise of that phase is progress, not fairness.
        let ttls = if self.world.is_calm() {
            ttls / 20.0
        } else {
            ttls
        };
        let span = self.world.plan.ttl.mul_f64(ttls * self.dice.fraction());
        sleep(&self.world, &self.process, span).await;
    }

    /// A lock, and whether its waiters stand in line.
    fn lock(&self, name: usize) -> (Lock, bool) {
        let reads = self.world.plan.kinds[name] == Kind::Rw && self.dice.chance(0.6);
        let fenced = if reads {
            Fenced::Always
        } else {
            Fenced::Mostly
        };
        let name = self.world.names[name].as_bytes();
        let how = self.dice.fraction();
        let change = |options: Options| match self.options(options, fenced) {
            options if how < 0.08 => options.wait(Wait::For(self.world.plan.ttl)).attempts(5),
            options if how < 0.2 => options.barging(),
            options if how < 0.3 => options.wait(Wait::For(self.world.plan.ttl)),
            options => options,
        };
        let lock = match reads {
            false => Lock::Mutex(self.client.mutex(name).with_options(change)),
            true => Lock::Reader(self.client.rw_lock(name).with_options(change)),
        };
        (lock, how >= 0.2)
    }

    /// Options that are drawn at random.
    pub fn options(&self, options: Options, fenced: Fenced) -> Options {
        let (dice, unit) = (&self.dice, self.world.plan.ttl);
        let ttl = dice.pick(&[unit / 2, unit, unit, unit * 2]);
        let mut options = options.ttl(ttl);
        if dice.chance(0.25) {
            options = options.without_renewal();
        }
        if fenced == Fenced::Mostly && dice.chance(0.1) {
            options = options.without_fencing();
        }
        if dice.chance(0.1) {
            options = options.max_hold(ttl.mul_f64(0.5 + dice.fraction()));
        }
        if dice.chance(0.1) {
            options = options.min_hold(unit.mul_f64(dice.fraction()));
        }
        if dice.chance(0.3) {
            // A timeout below a round trip would never succeed, and only disturb the others.
            let least = Duration::from_nanos(self.world.plan.longest_round_trip());
            options = options.node_timeout(least + ttl.mul_f64(0.05 + 0.4 * dice.fraction()));
        }
        options
    }

    fn note(&self, what: &str) {
        self.world
            .note(|| format!("{} {what}", self.process.label()));
    }

    /// Acquires a name for a moment, again and again, while callers that are not rivals are at
    /// work.
    pub async fn rival(self, name: usize) {
        let _rival = self.world.rival();
        while self.world.has_non_rivals() {
            if self.take_for_a_moment(name, None).await.is_err() {
                self.pause(1.0).await;
            }
        }
    }

    /// A far client must acquire every name though nearby rivals acquire it all the time.
    pub async fn far_client(self, patience: Duration) {
        let _busy = self.world.busy();
        self.pause(1.0).await;
        for round in 0..3 * self.world.plan.names {
            let name = round % self.world.plan.names;
            if let Err(error) = self.take_for_a_moment(name, Some(patience)).await {
                let (who, outcome) = (self.process.label(), outcome_of(&error));
                let what = format!(
                    "{who}, which is far away, did not get name-{name} from its rivals within \
                     {patience:?}: {outcome}"
                );
                self.world.violate(crate::check::progress::PROMISE, what);
            }
        }
    }

    async fn take_for_a_moment(
        &self,
        name: usize,
        patience: Option<Duration>,
    ) -> Result<(), Error> {
        let mutex = self.client.mutex(self.world.names[name].as_bytes());
        let in_line = self.in_line(name);
        let lease = match patience {
            Some(patience) => mutex.lock_timeout(patience).await?,
            None => mutex.lock().await?,
        };
        drop(in_line);
        let in_hand = InHand {
            id: self
                .world
                .granted(&self.process, name, claim_of(&lease), None),
            world: Arc::clone(&self.world),
        };
        let moment = Duration::from_nanos(self.world.plan.latency);
        sleep(&self.world, &self.process, moment).await;
        drop(in_hand);
        lease.release().await;
        Ok(())
    }

    /// Uses every connection once, whatever the result.
    pub async fn use_connections(self) {
        let _busy = self.world.busy();
        for name in &self.world.names[..self.world.plan.names] {
            // Nodes may be in quarantine, in which case there is no majority yet.
            let _ = self.client.mutex(name.as_bytes()).try_lock().await;
        }
    }

    /// Must acquire the lease of every name, now that there are no faults.
    pub async fn probe(self, patience: Duration) {
        let _busy = self.world.busy();
        let rounds = if self.world.plan.workers == 1 { 4 } else { 2 };
        for round in 0..rounds {
            if self.wants_several() {
                self.probe_several(patience).await;
                continue;
            }
            let name = (self.process.slot + round) % self.world.plan.names;
            if let Kind::Semaphore { permits, .. } = self.world.plan.kinds[name] {
                self.probe_semaphore(name, permits, patience).await;
                continue;
            }
            let ttl = self.world.plan.ttl * 2;
            let keep = self.world.plan.ttl.mul_f64(self.dice.fraction());
            let barges = self.dice.chance(0.1);
            let change = |_| {
                let mut options = options_of(&self.world, &self.process)
                    .ttl(ttl)
                    .outage_patience(patience);
                if self.dice.chance(0.2) {
                    options = options.min_hold(keep);
                }
                if barges {
                    // Acquires nothing as long as a waiter stands in line.
                    options = options.barging().retry_delay(self.world.plan.ttl / 3);
                }
                options
            };
            let key = self.world.names[name].as_bytes();
            let reads = self.world.plan.kinds[name] == Kind::Rw && self.dice.chance(0.6);
            let mutex = match reads {
                false => Lock::Mutex(self.client.mutex(key).with_options(change)),
                true => Lock::Reader(self.client.rw_lock(key).with_options(change)),
            };
            match self.dice.below(10) {
                0..3 => drop(self.cancel(mutex.lock()).await),
                3 => drop(self.abandon(mutex.lock()).await),
                _ => {}
            }
            let in_line = (!barges).then(|| self.in_line(name));
            let outcome = mutex.lock_timeout(patience).await;
            drop(in_line);
            match outcome {
                Ok(lease) => self.hold(name, lease).await,
                Err(error) => self.world.violate(
                    crate::check::progress::PROMISE,
                    format!(
                        "{} did not get name-{name} within {patience:?} without faults: {}",
                        self.process.label(),
                        outcome_of(&error)
                    ),
                ),
            }
        }
    }
}

/// The options that all leases of a process have in common.
pub fn options_of(world: &World, process: &Process) -> Options {
    let options = Options::default()
        .ttl(world.plan.ttl)
        .label(process.label())
        .retry_delay((world.plan.ttl / 10).max(Duration::from_millis(50)))
        .outage_patience(world.plan.ttl);
    match world.plan.node_timeout() {
        Some(timeout) => options.node_timeout(timeout),
        None => options,
    }
}

/// An error without the parts that differ from run to run.
pub fn outcome_of(error: &Error) -> &'static str {
    match error {
        Error::Held(_) => "held",
        Error::TimedOut { .. } => "timed out",
        Error::NoMajority(_) => "no majority",
        Error::Lost { .. } => "lost",
        Error::Invalid(_) => "invalid",
        Error::ShutDown => "shut down",
        _ => "another error",
    }
}
