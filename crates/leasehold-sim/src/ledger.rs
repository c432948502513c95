//! Who holds what, as the holders themselves see it.

use std::sync::{Arc, Weak};

use leasehold::{Lease, Moment};

use crate::agenda::Nanos;
use crate::process::Process;

/// Names a holding in the ledger.
pub type HoldingId = usize;

/// A lease that somebody has.
pub struct Holding {
    /// Its place in the ledger.
    pub id: HoldingId,
    /// Who has it.
    pub process: Arc<Process>,
    /// Of which name.
    pub name: usize,
    /// With which token.
    pub token: u64,
    /// The lease, if it can be looked at; not that of `Mutex::with`, which keeps it.
    lease: Option<Weak<Lease>>,
    /// When the attempt that took it was first sent.
    pub began: Nanos,
    /// When its holder got it.
    pub granted: Nanos,
    /// The holder has been told that it is lost.
    pub told: bool,
    /// The holder has given it back, or is gone.
    pub over: bool,
}

impl Holding {
    /// Whether the lease itself says that it is valid: what its holder would be told if it
    /// looked now, also if its process is paused and cannot look.
    pub fn is_believed(&self) -> bool {
        let lease = self.lease.as_ref().and_then(Weak::upgrade);
        !self.over && lease.is_some_and(|lease| lease.is_valid())
    }

    /// Until when the lease is valid.
    pub fn deadline(&self) -> Option<Moment> {
        Some(self.lease.as_ref()?.upgrade()?.deadline())
    }
}

/// All holdings of a run.
#[derive(Default)]
pub struct Ledger {
    holdings: Vec<Holding>,
    /// Those that are not over.
    live: Vec<HoldingId>,
}

impl Ledger {
    /// Enters a holding.
    pub fn enter(
        &mut self,
        process: &Arc<Process>,
        name: usize,
        token: u64,
        lease: Option<Weak<Lease>>,
        (began, granted): (Nanos, Nanos),
    ) -> HoldingId {
        let id = self.holdings.len();
        self.holdings.push(Holding {
            id,
            process: Arc::clone(process),
            name,
            token,
            lease,
            began,
            granted,
            told: false,
            over: false,
        });
        self.live.push(id);
        id
    }

    /// One of them.
    pub fn get(&self, id: HoldingId) -> &Holding {
        &self.holdings[id]
    }

    /// The others of the same name that are not over.
    pub fn rivals(&self, id: HoldingId) -> impl Iterator<Item = &Holding> {
        let name = self.holdings[id].name;
        let live = self.live.iter().map(|live| &self.holdings[*live]);
        live.filter(move |other| other.id != id && other.name == name)
    }

    /// Whether somebody has the lease of a name, or thinks so.
    pub fn is_held(&self, name: usize) -> bool {
        let mut live = self.live.iter().map(|live| &self.holdings[*live]);
        live.any(|holding| holding.name == name)
    }

    /// Those that say they are valid.
    pub fn believed(&self) -> impl Iterator<Item = HoldingId> {
        let live = self.live.iter().copied();
        live.filter(|id| self.holdings[*id].is_believed())
    }

    /// Its holder has been told that it is lost.
    pub fn told(&mut self, id: HoldingId) {
        self.holdings[id].told = true;
    }

    /// Its holder has given it back, or is gone.
    pub fn over(&mut self, id: HoldingId) {
        self.holdings[id].over = true;
        self.live.retain(|live| *live != id);
    }

    /// How many leases were taken.
    pub fn taken(&self) -> usize {
        self.holdings.len()
    }

    /// Forgets all: the run is over.
    pub fn clear(&mut self) {
        self.holdings.clear();
        self.live.clear();
    }
}
