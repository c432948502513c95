//! The counters of a client. All are relaxed: they order nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use super::event::{End, HandOver, Outcome};
use super::stats::{Acquires, Ends, HandOvers, Losses, Renewals};
use crate::base::error::Loss;

/// A number that only grows.
#[derive(Default, Debug)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a client counts, except for its nodes.
#[derive(Default)]
pub(crate) struct Counters {
    outcomes: [Counter; 7],
    ends: [Counter; 6],
    losses: [Counter; 5],
    hand_overs: [Counter; 2],
    renewals: [Counter; 2],
    /// Leases that began.
    pub(super) began: Counter,
    /// Calls that found the lock taken.
    pub(super) contended: Counter,
    /// Calls that began to wait, and those of them that have ended.
    pub(super) waiting: Counter,
    pub(super) waiting_ended: Counter,
}

impl Counters {
    pub(super) fn count_acquire(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].add();
    }

    pub(super) fn count_end(&self, end: End, loss: Option<Loss>) {
        self.ends[end as usize].add();
        if let Some(loss) = loss {
            self.losses[loss as usize].add();
        }
    }

    pub(super) fn count_hand_over(&self, by: HandOver) {
        self.hand_overs[by as usize].add();
    }

    pub(super) fn count_renewal(&self, ok: bool) {
        self.renewals[usize::from(ok)].add();
    }

    pub(super) fn acquires(&self) -> Acquires {
        let of = |outcome: Outcome| self.outcomes[outcome as usize].get();
        Acquires {
            granted: of(Outcome::Granted),
            held: of(Outcome::Held),
            result: of(Outcome::Result),
            timed_out: of(Outcome::TimedOut),
            no_majority: of(Outcome::NoMajority),
            cancelled: of(Outcome::Cancelled),
            failed: of(Outcome::Failed),
        }
    }

    pub(super) fn ends(&self) -> Ends {
        let of = |end: End| self.ends[end as usize].get();
        Ends {
            released: of(End::Released),
            lost: of(End::Lost),
            dropped: of(End::Dropped),
            broken: of(End::Broken),
            expired: of(End::Expired),
            detached: of(End::Detached),
        }
    }

    pub(super) fn losses(&self) -> Losses {
        let of = |loss: Loss| self.losses[loss as usize].get();
        Losses {
            not_renewed: of(Loss::NotRenewed),
            taken_away: of(Loss::TakenAway),
            broken: of(Loss::Broken),
            max_hold: of(Loss::MaxHold),
            runtime_ended: of(Loss::RuntimeEnded),
        }
    }

    pub(super) fn hand_overs(&self) -> HandOvers {
        HandOvers {
            local: self.hand_overs[HandOver::Local as usize].get(),
            node: self.hand_overs[HandOver::Node as usize].get(),
        }
    }

    pub(super) fn renewals(&self) -> Renewals {
        Renewals {
            failed: self.renewals[0].get(),
            ok: self.renewals[1].get(),
        }
    }
}
