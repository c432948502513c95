//! Callers: tasks of the simulated processes that use leases through the library's public API.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leasehold::{Client, Error, Lease, Mutex, Options, Wait};

use crate::cancel::Cancel;
use crate::clock::sleep;
use crate::dice::Dice;
use crate::fault::Fault;
use crate::ledger::HoldingId;
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

/// A lease that a caller holds, until dropped.
struct InHand {
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
        let name = self.dice.below(self.world.names.len());
        let (mutex, stands) = self.mutex(name);
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
    async fn cancel<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let polls = self.dice.between(1, 8) as u32;
        let outcome = Cancel::after(polls, future).await;
        if outcome.is_none() {
            self.world.strike(Fault::Cancelled);
            self.note("drops a call half-way");
        }
        outcome
    }

    /// Drops a future after a while.
    async fn abandon<T>(&self, future: impl Future<Output = T>) -> Option<T> {
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
        mutex: &Mutex,
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

    fn in_line(&self, name: usize) -> InLine {
        InLine::new(&self.world, &self.process, name)
    }

    /// Uses a lease, and ends it in one of several ways.
    async fn hold(&self, name: usize, lease: Lease) {
        let lease = Arc::new(lease);
        let weak = Arc::downgrade(&lease);
        let token = lease.token();
        let id = self.world.granted(&self.process, name, token, Some(weak));
        let in_hand = InHand {
            world: Arc::clone(&self.world),
            id,
        };
        {
            let work = self.work_with(name, &lease);
            let mut work = std::pin::pin!(work);
            let lost = tokio::select! {
                biased;
                () = lease.lost() => true,
                () = self.while_valid(&lease, work.as_mut()) => false,
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

    async fn with(&self, name: usize, mutex: &Mutex, stands: bool) {
        let mut in_line = stands.then(|| self.in_line(name));
        let done = mutex.with(async |lease| {
            drop(in_line.take());
            let token = lease.token();
            let id = self.world.granted(&self.process, name, token, None);
            let _in_hand = InHand {
                world: Arc::clone(&self.world),
                id,
            };
            self.while_valid(lease, std::pin::pin!(self.work_with(name, lease)))
                .await;
        });
        // The lock may be held by another process, the lease lost, or a majority unreachable.
        let _ = done.await;
    }

    /// Polls the work, which must not be polled after the deadline of the lease by the process's
    /// own clock. A `select!` that polls `lost()` first guarantees that.
    async fn while_valid(&self, lease: &Lease, mut work: Pin<&mut impl Future<Output = ()>>) {
        poll_fn(|cx| {
            if !lease.is_valid() {
                let what = format!(
                    "{} continues its work after the deadline of its lease (token {})",
                    self.process.label(),
                    lease.token()
                );
                self.world.violate(crate::check::lost::PROMISE, what);
            }
            work.as_mut().poll(cx)
        })
        .await;
    }

    /// Reads and writes the resource, with pauses.
    async fn work_with(&self, name: usize, lease: &Lease) {
        let (world, process, token) = (&self.world, &self.process, lease.token());
        for _ in 0..self.dice.below(4) {
            // Without a token there is nothing that the resource could check.
            if token > 0
                && let Some(value) = Resource::read(world, process, name, token).await
            {
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
    async fn pause(&self, ttls: f64) {
        // Without faults no caller pauses: the promise of that phase is progress, not fairness.
        let ttls = if self.world.is_calm() {
            ttls / 20.0
        } else {
            ttls
        };
        let span = self.world.plan.ttl.mul_f64(ttls * self.dice.fraction());
        sleep(&self.world, &self.process, span).await;
    }

    /// A mutex, and whether its waiters stand in line.
    fn mutex(&self, name: usize) -> (Mutex, bool) {
        let mutex = self.client.mutex(self.world.names[name].as_bytes());
        let how = self.dice.fraction();
        let mutex = mutex.with_options(|options| match self.options(options) {
            options if how < 0.08 => options.wait(Wait::For(self.world.plan.ttl)).attempts(5),
            options if how < 0.2 => options.barging(),
            options if how < 0.3 => options.wait(Wait::For(self.world.plan.ttl)),
            options => options,
        });
        (mutex, how >= 0.2)
    }

    fn options(&self, options: Options) -> Options {
        let (dice, unit) = (&self.dice, self.world.plan.ttl);
        let ttl = dice.pick(&[unit / 2, unit, unit, unit * 2]);
        let mut options = options.ttl(ttl);
        if dice.chance(0.25) {
            options = options.without_renewal();
        }
        if dice.chance(0.1) {
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
        for round in 0..3 * self.world.names.len() {
            let name = round % self.world.names.len();
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
            id: self.world.granted(&self.process, name, lease.token(), None),
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
        for name in &self.world.names {
            // Nodes may be in quarantine, in which case there is no majority yet.
            let _ = self.client.mutex(name.as_bytes()).try_lock().await;
        }
    }

    /// Must acquire the lease of every name, now that there are no faults.
    pub async fn probe(self, patience: Duration) {
        let _busy = self.world.busy();
        let rounds = if self.world.plan.workers == 1 { 4 } else { 2 };
        for round in 0..rounds {
            let name = (self.process.slot + round) % self.world.names.len();
            let ttl = self.world.plan.ttl * 2;
            let keep = self.world.plan.ttl.mul_f64(self.dice.fraction());
            let mutex = self.client.mutex(self.world.names[name].as_bytes());
            let barges = self.dice.chance(0.1);
            let mutex = mutex.with_options(|_| {
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
            });
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
fn outcome_of(error: &Error) -> &'static str {
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
