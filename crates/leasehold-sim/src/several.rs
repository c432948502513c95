//! Callers that lock several names at once.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Error, Lease, Leases, Mode, Mutexes, Options, Wait};

use crate::caller::{Caller, Fenced, InHand, options_of, outcome_of};
use crate::check::progress;
use crate::ledger::{Guard, HoldingId};
use crate::plan::Kind;
use crate::waiters::Collecting;

/// Names that a caller locks together, in the order in which it gives them, and how it holds each.
type Set = Vec<(usize, Mode)>;

impl Caller {
    /// Whether the next use is of several names.
    pub fn wants_several(&self) -> bool {
        self.world.plan.several && self.dice.chance(0.4)
    }

    /// Locks two or more names, in any order, uses them, and releases them.
    pub async fn use_several(&self) {
        let set = self.draw_set();
        let ttl = self.world.plan.ttl;
        let locks = self.locks(&set, |options| match self.dice.fraction() {
            how if how < 0.2 => options.wait(Wait::For(ttl)),
            _ => options,
        });
        let acquire = async {
            let _collecting = self.collecting(&set);
            match self.dice.below(8) {
                0 => locks.try_lock().await,
                1..=5 => locks.lock().await.map(Some),
                _ => locks.lock_timeout(ttl * 2).await.map(Some),
            }
        };
        let outcome = match self.dice.chance(self.world.plan.cancel / 2.0) {
            true if self.dice.chance(0.5) => self.abandon(acquire).await,
            true => self.cancel(acquire).await,
            false => Some(acquire.await),
        };
        if let Some(Ok(Some(leases))) = outcome {
            self.hold_several(&set, leases).await;
        }
    }

    /// Must acquire the leases of several names, now that there are no faults.
    pub async fn probe_several(&self, patience: Duration) {
        let set = self.draw_set();
        let ttl = self.world.plan.ttl * 2;
        let locks = self.locks(&set, |_| {
            let options = options_of(&self.world, &self.process);
            options.ttl(ttl).outage_patience(patience)
        });
        let collecting = self.collecting(&set);
        match self.dice.below(10) {
            0..3 => drop(self.cancel(locks.lock()).await),
            3 => drop(self.abandon(locks.lock()).await),
            _ => {}
        }
        let outcome = locks.lock_timeout(patience).await;
        drop(collecting);
        match outcome {
            Ok(leases) => self.hold_several(&set, leases).await,
            Err(error) => self.did_not_get(&set, patience, &error),
        }
    }

    fn did_not_get(&self, set: &Set, patience: Duration, error: &Error) {
        let names: Vec<_> = set.iter().map(|(name, _)| format!("name-{name}")).collect();
        let what = format!(
            "{} did not get {} within {patience:?} without faults: {}",
            self.process.label(),
            names.join(" and "),
            outcome_of(error)
        );
        self.world.violate(progress::PROMISE, what);
    }

    /// Two or more of the names, in any order.
    fn draw_set(&self) -> Set {
        let mut names: Vec<_> = (0..self.world.plan.names).collect();
        let count = 2 + self.dice.below(names.len() - 1);
        let draw = |_| {
            let name = names.swap_remove(self.dice.below(names.len()));
            let reads = self.world.plan.kinds[name] == Kind::Rw && self.dice.chance(0.5);
            let mode = if reads { Mode::Shared } else { Mode::Exclusive };
            (name, mode)
        };
        (0..count).map(draw).collect()
    }

    fn locks(&self, set: &Set, change: impl FnOnce(Options) -> Options) -> Mutexes {
        let keys = |mode| {
            let names = set.iter().filter(move |(_, how)| *how == mode);
            names.map(|(name, _)| self.world.names[*name].as_bytes())
        };
        let locks = self.client.mutexes(keys(Mode::Exclusive));
        let locks = keys(Mode::Shared).fold(locks, Mutexes::shared);
        locks.with_options(|options| {
            // Renewed, and without an end: a call that loses the names it has while it waits for
            // the others starts again, and would never finish where names are always contended.
            let fenced = self.options(options, Fenced::Always);
            change(fenced.with_renewal().max_hold(None))
        })
    }

    /// While it waits for a name, a call may hold all smaller ones.
    fn collecting(&self, set: &Set) -> Collecting {
        let mut names: Vec<_> = set.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        names.pop();
        Collecting::new(&self.world, names)
    }

    /// Uses the leases of several names. The caller relies on all names that it asked for.
    async fn hold_several(&self, set: &Set, leases: Leases) {
        let leases = Arc::new(leases);
        let in_hand: Vec<_> = set
            .iter()
            .map(|(name, mode)| {
                let key = &self.world.names[*name];
                let claim = (leases.token(key).unwrap_or(0), *mode);
                let guard = Guard::Several(Arc::downgrade(&leases), key.clone());
                let id = self.world.granted(&self.process, *name, claim, Some(guard));
                (id, self.in_hand(id))
            })
            .collect();
        self.use_all(leases, in_hand).await;
    }

    /// Works with all these leases, and ends them in one of several ways.
    pub async fn use_all(&self, leases: Arc<Leases>, in_hand: Vec<(HoldingId, InHand)>) {
        {
            let work = async {
                for lease in leases.iter() {
                    self.work_with(self.world.index_of(lease.key()), lease)
                        .await;
                }
            };
            let mut work = std::pin::pin!(work);
            let token = leases.iter().next().map_or(0, Lease::token);
            let is_valid = || leases.is_valid();
            let lost = tokio::select! {
                biased;
                () = leases.lost() => true,
                () = self.while_valid(is_valid, token, work.as_mut()) => false,
            };
            if lost {
                for (id, _) in &in_hand {
                    self.world.loss_notified(*id);
                }
                // Some callers ignore the loss. The resources must refuse their writes.
                if self.dice.chance(0.2) {
                    work.await;
                }
            }
        }
        drop(in_hand);
        let Some(leases) = Arc::into_inner(leases) else {
            return;
        };
        match self.dice.below(4) {
            0 => drop(leases),
            1 if self.dice.chance(self.world.plan.cancel) => {
                self.cancel(leases.release()).await;
            }
            _ => {
                leases.release().await;
            }
        }
    }
}
