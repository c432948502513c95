//! The leases and their holders, as the holders see them.

use std::sync::{Arc, Weak};

use leasehold::Mode;
use leasehold::{Lease, Leases, Moment, Name};

use crate::agenda::Nanos;
use crate::process::Process;

/// Identifies a holding in the ledger.
pub type HoldingId = usize;

/// What a holder believes in.
pub enum Guard {
    /// A lease.
    One(Weak<Lease>),
    /// Leases of several names, of which this one is meant. If it is not among them, the holder
    /// cannot know.
    Several(Weak<Leases>, Name),
    /// The lease with this key, which is one of several permits.
    Permit(Weak<Leases>, Name),
}

impl Guard {
    fn is_valid(&self) -> bool {
        match self {
            Self::One(lease) => lease.upgrade().is_some_and(|lease| lease.is_valid()),
            Self::Several(leases, name) => leases.upgrade().is_some_and(|leases| {
                let lease = leases.get(name);
                lease.map_or_else(|| leases.is_valid(), Lease::is_valid)
            }),
            Self::Permit(leases, key) => leases.upgrade().is_some_and(|leases| {
                let mut leases = leases.iter();
                leases.any(|lease| lease.key() == key && lease.is_valid())
            }),
        }
    }

    fn deadline(&self) -> Option<Moment> {
        match self {
            Self::One(lease) => Some(lease.upgrade()?.deadline()),
            Self::Several(leases, name) => Some(leases.upgrade()?.get(name)?.deadline()),
            Self::Permit(leases, key) => {
                let leases = leases.upgrade()?;
                let lease = leases.iter().find(|lease| lease.key() == key)?;
                Some(lease.deadline())
            }
        }
    }
}

/// A lease in the hands of a caller.
pub struct Holding {
    /// Its place in the ledger.
    pub id: HoldingId,
    /// The holder's process.
    pub process: Arc<Process>,
    /// The locked name.
    pub name: usize,
    /// The token.
    pub token: u64,
    /// How the holder holds it.
    pub mode: Mode,
    /// The lease, for inspection. Absent for `Mutex::with`, which does not expose it.
    guard: Option<Guard>,
    /// When the first request of its attempt was sent.
    pub began: Nanos,
    /// When the holder got it.
    pub granted: Nanos,
    /// The holder has been notified that it is lost.
    pub loss_notified: bool,
    /// The holder has released it, or is dead.
    pub over: bool,
}

impl Holding {
    /// Whether the lease reports itself as valid: what the holder would see now, even if its
    /// process is paused.
    pub fn is_believed(&self) -> bool {
        !self.over && self.guard.as_ref().is_some_and(Guard::is_valid)
    }

    /// Until when the lease is valid.
    pub fn deadline(&self) -> Option<Moment> {
        self.guard.as_ref()?.deadline()
    }
}

/// All holdings of a run.
#[derive(Default)]
pub struct Ledger {
    holdings: Vec<Holding>,
    /// The holdings that are not over.
    live: Vec<HoldingId>,
}

impl Ledger {
    /// Enters a holding.
    pub fn enter(
        &mut self,
        process: &Arc<Process>,
        name: usize,
        (token, mode): (u64, Mode),
        guard: Option<Guard>,
        (began, granted): (Nanos, Nanos),
    ) -> HoldingId {
        let id = self.holdings.len();
        self.holdings.push(Holding {
            id,
            process: Arc::clone(process),
            name,
            token,
            mode,
            guard,
            began,
            granted,
            loss_notified: false,
            over: false,
        });
        self.live.push(id);
        id
    }

    /// The holding with this id.
    pub fn get(&self, id: HoldingId) -> &Holding {
        &self.holdings[id]
    }

    /// The other holdings that exclude this one and are not over: those of the same name, but not
    /// readers among themselves.
    pub fn rivals(&self, id: HoldingId) -> impl Iterator<Item = &Holding> {
        let Holding { name, mode, .. } = self.holdings[id];
        let live = self.live.iter().map(|live| &self.holdings[*live]);
        let both_read = move |other: &Holding| (mode, other.mode) == (Mode::Shared, Mode::Shared);
        live.filter(move |other| other.id != id && other.name == name && !both_read(other))
    }

    /// Whether a caller holds the name, or believes so.
    pub fn is_held(&self, name: usize) -> bool {
        let mut live = self.live.iter().map(|live| &self.holdings[*live]);
        live.any(|holding| holding.name == name)
    }

    /// The holdings that report themselves as valid.
    pub fn believed(&self) -> impl Iterator<Item = HoldingId> {
        let live = self.live.iter().copied();
        live.filter(|id| self.holdings[*id].is_believed())
    }

    /// The holder has been notified that the lease is lost.
    pub fn loss_notified(&mut self, id: HoldingId) {
        self.holdings[id].loss_notified = true;
    }

    /// The holder has released the lease, or is dead.
    pub fn over(&mut self, id: HoldingId) {
        self.holdings[id].over = true;
        self.live.retain(|live| *live != id);
    }

    /// The number of leases acquired.
    pub fn taken(&self) -> usize {
        self.holdings.len()
    }

    /// Clears the ledger at the end of a run.
    pub fn clear(&mut self) {
        self.holdings.clear();
        self.live.clear();
    }
}
