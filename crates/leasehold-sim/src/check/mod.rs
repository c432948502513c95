//! The checkers, one for each promise.

pub mod exclusion;
pub mod leftovers;
pub mod limit;
pub mod lost;
pub mod once;
pub mod order;
pub mod progress;
pub mod register;
pub mod tokens;

use crate::agenda::Nanos;
use crate::ledger::{HoldingId, Ledger};
use crate::plan::Mode;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which promise.
    pub promise: &'static str,
    /// When, in true time.
    pub at: Nanos,
    /// What happened.
    pub what: String,
}

/// A fact that checkers examine.
#[derive(Clone, Copy, Debug)]
pub enum Fact {
    /// A caller acquired a lease.
    Granted(HoldingId),
    /// A periodic check of all holders.
    Audit,
    /// A holder was notified that its lease is lost.
    LossNotified(HoldingId),
    /// The resource of a name was written: it holds `value` after `updates` updates.
    Wrote {
        /// The name.
        name: usize,
        /// The value of the register.
        value: u64,
        /// The number of acknowledged updates.
        updates: u64,
    },
}

/// The context of a fact.
pub struct Scene<'a> {
    /// What the faults may do.
    pub mode: Mode,
    /// The true time.
    pub now: Nanos,
    /// The leases and their holders.
    pub ledger: &'a Ledger,
    /// The time by the holder's own clock, for facts about a holding.
    pub local: Option<leasehold::Moment>,
}

/// A promise that is checked at every fact.
pub trait Check: Send {
    /// The name of the promise.
    fn promise(&self) -> &'static str;

    /// # Errors
    /// What is wrong, if this fact breaks the promise.
    fn see(&mut self, fact: Fact, scene: &Scene<'_>) -> Result<(), String>;
}

/// All checkers that examine every fact.
pub fn all() -> Vec<Box<dyn Check>> {
    vec![
        Box::new(exclusion::Exclusion),
        Box::new(tokens::Tokens::default()),
        Box::new(register::Updates),
        Box::new(lost::Lost),
    ]
}

/// The promises, in the order in which they are reported.
pub const PROMISES: [&str; 9] = [
    exclusion::PROMISE,
    limit::PROMISE,
    tokens::PROMISE,
    register::PROMISE,
    lost::PROMISE,
    progress::PROMISE,
    order::PROMISE,
    once::PROMISE,
    leftovers::PROMISE,
];
