//! The leases and their holders, as the holders see them.

use std::sync::{Arc, Weak};

use leasehold::{Lease, Moment};

use crate::agenda::Nanos;
use crate::process::Process;

/// Identifies a holding in the ledger.
pub type HoldingId = usize;

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
    /// The lease, for inspection. Absent for `Mutex::with`, which does not expose it.
    lease: Option<Weak<Lease>>,
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
    /// The holdings that are not over.
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

    /// The other holdings of the same name that are not over.
    pub fn rivals(&self, id: HoldingId) -> impl Iterator<Item = &Holding> {
        let name = self.holdings[id].name;
        let live = self.live.iter().map(|live| &self.holdings[*live]);
        live.filter(move |other| other.id != id && other.name == name)
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
