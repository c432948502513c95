//! The record of a run: its timeline, its counts, and the promises that were broken.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use leasehold::node::Verb;

use crate::agenda::Nanos;
use crate::check::{self, Check, Fact, Scene, Violation};
use crate::fault::{Fault, FaultCounts};
use crate::ledger::Ledger;
use crate::message::SentCounts;
use crate::plan::Mode;
use crate::waiters::Attempt;

/// The record of a run.
pub struct Journal {
    /// The leases and their holders.
    pub ledger: Ledger,
    /// The first request of each attempt, and when it was sent, by process, life, name and token.
    pub asked: BTreeMap<Attempt, (Verb, Nanos)>,
    /// How often each kind of fault occurred.
    pub faults: FaultCounts,
    /// How calls were sent.
    pub sent: SentCounts,
    /// The first promise that was broken.
    pub violation: Option<Violation>,
    checks: Vec<Box<dyn Check>>,
    /// The timeline, if requested.
    timeline: Option<String>,
}

impl Journal {
    /// An empty journal, with or without a timeline.
    pub fn new(timeline: bool) -> Self {
        Self {
            ledger: Ledger::default(),
            asked: BTreeMap::new(),
            faults: FaultCounts::default(),
            sent: SentCounts::default(),
            violation: None,
            checks: check::all(),
            timeline: timeline.then(String::new),
        }
    }

    /// When the acquisition of a lease began.
    ///
    /// A lease that was passed on within a process has a later token of the claim's block, and no
    /// request was sent for it. It begins when the caller gets it. That its claim was not
    /// overtaken before depends on clocks, so beyond the assumptions it begins with the claim.
    /// The same applies to a lease that the nodes handed over.
    pub fn began(&self, attempt: Attempt, mode: Mode, now: Nanos) -> Nanos {
        let (slot, life, name, _) = attempt;
        let mut earlier = self.asked.range((slot, life, name, 0)..=attempt);
        match earlier.next_back() {
            Some((_, (_, at))) if mode == Mode::Beyond => *at,
            Some((claim, (Verb::Acquire, at))) if *claim == attempt => *at,
            _ => now,
        }
    }

    /// Passes a fact to all checkers.
    pub fn check(&mut self, fact: Fact, scene: impl FnOnce(&Ledger) -> Scene<'_>) {
        let scene = scene(&self.ledger);
        let broken = self.checks.iter_mut().find_map(|check| {
            let what = check.see(fact, &scene).err()?;
            Some((check.promise(), what))
        });
        let at = scene.now;
        if let Some((promise, what)) = broken {
            self.violate(promise, at, what);
        }
    }

    /// Records a broken promise. Only the first one is kept.
    pub fn violate(&mut self, promise: &'static str, at: Nanos, what: String) {
        self.note(at, || format!("VIOLATION of {promise}: {what}"));
        let violation = Violation { promise, at, what };
        self.violation.get_or_insert(violation);
    }

    /// Counts a fault.
    pub fn strike(&mut self, fault: Fault) {
        self.faults.add(fault);
    }

    /// Writes a line of the timeline.
    pub fn note(&mut self, at: Nanos, line: impl FnOnce() -> String) {
        if let Some(timeline) = &mut self.timeline {
            let at = Duration::from_nanos(at).as_secs_f64();
            // Writing to a string does not fail.
            let _ = writeln!(timeline, "{at:>14.6} s  {}", line());
        }
    }

    /// Takes the timeline.
    pub fn take_timeline(&mut self) -> String {
        self.timeline.take().unwrap_or_default()
    }
}
