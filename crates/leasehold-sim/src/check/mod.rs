//! The checkers: one promise each.

pub mod exclusion;
pub mod leftovers;
pub mod lost;
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

/// What checkers are told of.
#[derive(Clone, Copy, Debug)]
pub enum Fact {
    /// Somebody got a lease.
    Granted(HoldingId),
    /// Nothing in particular: everybody is looked at.
    Audit,
    /// Somebody was told that a lease is lost.
    Told(HoldingId),
    /// The resource of a name was written: it says `value` after so many updates.
    Wrote {
        /// Which name.
        name: usize,
        /// What it says.
        value: u64,
        /// How many updates were acknowledged.
        updates: u64,
    },
}

/// Where a fact belongs.
pub struct Scene<'a> {
    /// What the faults may do.
    pub mode: Mode,
    /// The true time.
    pub now: Nanos,
    /// Who holds what.
    pub ledger: &'a Ledger,
    /// What the holder's own clock shows, for facts about a holding.
    pub local: Option<leasehold::Moment>,
}

/// A promise that is checked at every fact.
pub trait Check: Send {
    /// How the promise is called.
    fn promise(&self) -> &'static str;

    /// # Errors
    /// What is wrong, if this fact breaks the promise.
    fn see(&mut self, fact: Fact, scene: &Scene<'_>) -> Result<(), String>;
}

/// All that are checked at every fact.
pub fn all() -> Vec<Box<dyn Check>> {
    vec![
        Box::new(exclusion::Exclusion),
        Box::new(tokens::Tokens::default()),
        Box::new(register::Updates),
        Box::new(lost::Lost),
    ]
}

/// The promises, in the order in which they are reported.
pub const PROMISES: [&str; 7] = [
    exclusion::PROMISE,
    tokens::PROMISE,
    register::PROMISE,
    lost::PROMISE,
    progress::PROMISE,
    order::PROMISE,
    leftovers::PROMISE,
];
