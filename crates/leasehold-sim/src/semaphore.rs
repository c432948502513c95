//! The names of semaphores, and the callers that use them.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::{Error, Lease, Leases, Mode, Name, Semaphore, Wait};

use crate::agenda::{MILLI, Nanos};
use crate::caller::{Caller, Fenced, options_of, outcome_of};
use crate::check::progress;
use crate::clock::sleep;
use crate::ledger::Guard;
use crate::plan::Kind;

/// Where the keys of semaphores are among the names of a run.
#[derive(Default)]
pub struct Semaphores {
    keys: Vec<Keys>,
}

/// Where the keys of one semaphore are.
pub struct Keys {
    /// The name.
    name: usize,
    line: usize,
    /// The permits that there are, and those that only clients with another number ask for.
    permits: Range<usize>,
    all: Range<usize>,
    /// When all permits were released at once; 0: not yet.
    released_at: AtomicU64,
}

impl Semaphores {
    /// Adds the keys of all semaphores to the names.
    pub fn new(kinds: &[Kind], names: &mut Vec<Name>) -> Self {
        let mut keys = Vec::new();
        for (name, kind) in kinds.iter().enumerate() {
            let Kind::Semaphore { permits, other } = *kind else {
                continue;
            };
            let key = names[name].semaphore();
            let (line, first) = (names.len(), names.len() + 2);
            names.extend([key.clone(), key.gate()]);
            let most = permits.max(other.unwrap_or(0));
            names.extend((0..most).map(|permit| key.permit(permit)));
            keys.push(Keys {
                name,
                line,
                permits: first..first + permits as usize,
                all: first..names.len(),
                released_at: AtomicU64::new(0),
            });
        }
        Self { keys }
    }

    /// The semaphore with this line.
    pub fn of_line(&self, line: usize) -> Option<&Keys> {
        self.keys.iter().find(|keys| keys.line == line)
    }

    /// The semaphore of this permit.
    pub fn of_permit(&self, permit: usize) -> Option<&Keys> {
        self.keys.iter().find(|keys| keys.has(permit))
    }

    /// The semaphore of this name.
    fn of_name(&self, name: usize) -> Option<&Keys> {
        self.keys.iter().find(|keys| keys.name == name)
    }
}

impl Keys {
    /// Its line.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The permits that there are.
    pub fn permits(&self) -> Range<usize> {
        self.permits.clone()
    }

    /// Whether a permit is one of this semaphore.
    pub fn has(&self, permit: usize) -> bool {
        self.all.contains(&permit)
    }
}

impl Caller {
    /// Acquires a permit, or several, uses them, and releases them.
    pub async fn use_semaphore(&self, name: usize) {
        let number = self.number_of(name);
        let ttl = self.world.plan.ttl;
        let how = self.dice.below(10);
        let semaphore = self.semaphore(name, number).with_options(|options| {
            let options = self.options(options, Fenced::Always);
            match how {
                // A permit that is lost while the call waits for others makes it start again.
                8.. => options
                    .with_renewal()
                    .max_hold(None)
                    .wait(Wait::For(ttl * 4)),
                7 => options.wait(Wait::For(ttl)),
                _ => options,
            }
        });
        match how {
            0 => self.with_permit(&semaphore, name, number).await,
            8.. => {
                let count = 1 + self.dice.below(number as usize) as u32;
                let outcome = self.perhaps(semaphore.acquire_many(count)).await;
                if let Some(Ok(leases)) = outcome {
                    self.hold_permits(number, leases).await;
                }
            }
            _ => {
                let acquire = self.acquire_permit(name, &semaphore, how == 1);
                if let Some(Ok(Some(lease))) = self.perhaps(acquire).await {
                    self.hold_permit(number, lease).await;
                }
            }
        }
    }

    /// Must acquire a permit, or several, now that there are no faults.
    pub async fn probe_semaphore(&self, name: usize, permits: u32, patience: Duration) {
        let keep = self.world.plan.ttl.mul_f64(self.dice.fraction());
        let semaphore = self.semaphore(name, permits).with_options(|_| {
            let options = options_of(&self.world, &self.process)
                .ttl(self.world.plan.ttl * 2)
                .wait(Wait::For(patience))
                .outage_patience(patience);
            match self.dice.chance(0.2) {
                true => options.min_hold(keep),
                false => options,
            }
        });
        match self.dice.below(10) {
            0..3 => drop(self.cancel(semaphore.acquire()).await),
            3 => drop(self.abandon(semaphore.acquire()).await),
            _ => {}
        }
        let outcome = match self.dice.chance(0.15) {
            true => {
                let count = 1 + self.dice.below(permits as usize) as u32;
                match semaphore.acquire_many(count).await {
                    Ok(leases) => return self.hold_permits(permits, leases).await,
                    Err(error) => Err(error),
                }
            }
            false => {
                let acquired = self.acquire_permit(name, &semaphore, false).await;
                acquired.map(|lease| lease.expect("only a call that does not wait returns without"))
            }
        };
        match outcome {
            Ok(lease) => self.hold_permit(permits, lease).await,
            Err(error) => {
                let (who, outcome) = (self.process.label(), outcome_of(&error));
                let what = format!(
                    "{who} got no permit of name-{name} within {patience:?} without faults: {outcome}"
                );
                self.world.violate(progress::PROMISE, what);
            }
        }
    }

    /// Acquires all permits of a semaphore, and releases them at once when as many callers wait.
    pub async fn hands_out(self, name: usize, permits: u32) {
        let _busy = self.world.busy();
        let semaphore = self.calm_semaphore(name, permits);
        // If one of them was quicker, this waits for it, and nothing is checked.
        let Ok(leases) = semaphore.acquire_many(permits).await else {
            return;
        };
        let wait = Duration::from_nanos(2 * self.until_all_wait());
        sleep(&self.world, &self.process, wait).await;
        if let Some(keys) = self.world.semaphores.of_name(name) {
            let now = self.world.agenda.now();
            keys.released_at.store(now, Ordering::Relaxed);
        }
        leases.release().await;
    }

    /// Acquires a permit soon after it was released: without faults, no waiter needs a heartbeat to
    /// learn of a free permit.
    pub async fn wants_a_permit(self, name: usize, permits: u32) {
        let _busy = self.world.busy();
        let Some(keys) = self.world.semaphores.of_name(name) else {
            return;
        };
        let wait = Duration::from_nanos(self.until_all_wait());
        sleep(&self.world, &self.process, wait).await;
        let outcome = self.calm_semaphore(name, permits).acquire().await;
        let now = self.world.agenda.now();
        let released_at = keys.released_at.load(Ordering::Relaxed);
        let (limit, waited) = (self.longest_hand_out(permits), now - released_at.min(now));
        let broken = match &outcome {
            Ok(_) if released_at > 0 && waited > limit => {
                let waited = Duration::from_nanos(waited);
                Some(format!(
                    "a permit of name-{name} {waited:.1?} after its release"
                ))
            }
            Ok(_) => None,
            Err(error) => Some(format!("no permit of name-{name}: {}", outcome_of(error))),
        };
        if let Some(broken) = broken {
            let what = format!("{} got {broken}, without faults", self.process.label());
            self.world.violate(progress::PROMISE, what);
        }
        // Until all others must have one, so that no release notifies them.
        sleep(&self.world, &self.process, Duration::from_nanos(2 * limit)).await;
    }

    fn calm_semaphore(&self, name: usize, permits: u32) -> Semaphore {
        let ttl = self.world.plan.ttl * 2;
        let semaphore = self.semaphore(name, permits);
        semaphore.with_options(|_| options_of(&self.world, &self.process).ttl(ttl))
    }

    /// How long it takes, without faults, until all callers have sent their requests.
    fn until_all_wait(&self) -> Nanos {
        500 * MILLI + 20 * self.world.plan.longest_round_trip()
    }

    /// How long it may take until all permits that were released at once have been acquired.
    fn longest_hand_out(&self, permits: u32) -> Nanos {
        let each = 50 * MILLI + 8 * self.world.plan.longest_round_trip();
        300 * MILLI + u64::from(permits) * each
    }

    /// Sets the number of permits, after some callers have used another.
    pub async fn resizes(self) {
        let _busy = self.world.busy();
        for name in 0..self.world.plan.names {
            let Kind::Semaphore {
                permits,
                other: Some(_),
            } = self.world.plan.kinds[name]
            else {
                continue;
            };
            if let Err(error) = self.semaphore(name, permits).resize().await {
                let what = format!("name-{name} was not resized: {}", outcome_of(&error));
                self.world.violate(progress::PROMISE, what);
            }
        }
    }

    fn semaphore(&self, name: usize, permits: u32) -> Semaphore {
        let name = self.world.names[name].as_bytes();
        self.client.semaphore(name, permits)
    }

    /// The number of permits that the caller uses. During the faults, it may be a wrong one.
    fn number_of(&self, name: usize) -> u32 {
        match self.world.plan.kinds[name] {
            Kind::Semaphore {
                other: Some(other), ..
            } if !self.world.is_calm() && self.dice.chance(0.2) => other,
            Kind::Semaphore { permits, .. } => permits,
            _ => 1,
        }
    }

    /// Runs a future, or drops it.
    async fn perhaps<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        match self.dice.chance(self.world.plan.cancel / 2.0) {
            true if self.dice.chance(0.5) => self.abandon(future).await,
            true => self.cancel(future).await,
            false => Some(future.await),
        }
    }

    async fn acquire_permit(
        &self,
        name: usize,
        semaphore: &Semaphore,
        tries: bool,
    ) -> Result<Option<Lease>, Error> {
        if tries {
            return semaphore.try_acquire().await;
        }
        let line = self.world.semaphores.of_name(name).map(Keys::line);
        let _in_line = line.map(|line| self.in_line(line));
        semaphore.acquire().await.map(Some)
    }

    async fn with_permit(&self, semaphore: &Semaphore, name: usize, number: u32) {
        let line = self.world.semaphores.of_name(name).map(Keys::line);
        let mut in_line = line.map(|line| self.in_line(line));
        let done = semaphore.with(async |lease| {
            drop(in_line.take());
            let permit = self.note_number(number, lease);
            let claim = (lease.token(), Mode::Exclusive);
            let id = self.world.granted(&self.process, permit, claim, None);
            let _in_hand = self.in_hand(id);
            let work = std::pin::pin!(self.work_with(permit, lease));
            let is_valid = || lease.is_valid();
            self.while_valid(is_valid, lease.token(), work).await;
        });
        // All permits may be held, the lease lost, or a majority unreachable.
        let _ = done.await;
    }

    async fn hold_permit(&self, number: u32, lease: Lease) {
        let permit = self.note_number(number, &lease);
        self.hold(permit, lease).await;
    }

    /// Notes the number of permits that the holder of a permit uses. Returns the permit.
    fn note_number(&self, number: u32, lease: &Lease) -> usize {
        let permit = self.world.index_of(lease.key());
        let memories = self.world.memories();
        let noted = (number, memories);
        self.world.numbers().insert((permit, lease.token()), noted);
        permit
    }

    /// Uses several permits, and ends them in one of several ways.
    async fn hold_permits(&self, number: u32, leases: Leases) {
        let leases = Arc::new(leases);
        let in_hand: Vec<_> = leases
            .iter()
            .map(|lease| {
                let permit = self.note_number(number, lease);
                let claim = (lease.token(), Mode::Exclusive);
                let guard = Guard::Permit(Arc::downgrade(&leases), lease.key().clone());
                let id = self
                    .world
                    .granted(&self.process, permit, claim, Some(guard));
                (id, self.in_hand(id))
            })
            .collect();
        self.use_all(leases, in_hand).await;
    }
}
