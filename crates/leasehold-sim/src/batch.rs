//! Runs many seeds on all cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::bug::Bug;
use crate::fault::FaultCounts;
use crate::message::SentCounts;
use crate::plan::Mode;
use crate::stage::{Report, run};
use crate::sync::locked;

/// The totals of many runs.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// The number of seeds run, by mode.
    pub seeds: [u64; 2],
    /// The number of leases acquired, by mode.
    pub leases: [u64; 2],
    /// The number of leases that went to a waiter in line, by mode.
    pub handed_over: [u64; 2],
    /// How often the order of the line was checked, by mode.
    pub orders_seen: [u64; 2],
    /// How often each kind of fault occurred, by mode.
    pub faults: [FaultCounts; 2],
    /// In how many runs each kind of fault occurred, by mode.
    pub runs_with: [FaultCounts; 2],
    /// How calls were sent.
    pub sent: SentCounts,
    /// The simulated time.
    pub simulated: Duration,
    /// The number of events.
    pub events: u64,
}

impl Totals {
    /// Adds a run.
    pub fn add(&mut self, report: &Report) {
        let mode = report.mode() as usize;
        self.seeds[mode] += 1;
        self.leases[mode] += report.leases as u64;
        self.handed_over[mode] += report.handed_over;
        self.orders_seen[mode] += report.orders_seen;
        self.faults[mode].merge(&report.faults);
        for fault in crate::fault::Fault::ALL {
            if report.faults.of(fault) > 0 {
                self.runs_with[mode].add(fault);
            }
        }
        self.sent.merge(&report.sent);
        self.simulated += report.simulated;
        self.events += report.events;
    }

    /// The number of seeds run in a mode.
    pub fn seeds_in(&self, mode: Mode) -> u64 {
        self.seeds[mode as usize]
    }

    /// The number of seeds run.
    pub fn all_seeds(&self) -> u64 {
        self.seeds.iter().sum()
    }
}

/// Runs seeds on `threads` threads; with `until_failure`, only until one fails. Calls `progress`
/// for every run. Returns the totals, and the runs that broke a promise, by seed.
pub fn run_all(
    seeds: &[u64],
    bug: Option<Bug>,
    threads: usize,
    until_failure: bool,
    progress: impl Fn(&Report) + Sync,
) -> (Totals, Vec<Report>) {
    let totals = Mutex::new((Totals::default(), Vec::new()));
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed)
                    && let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let report = run(*seed, bug, false);
                    progress(&report);
                    let (totals, failures) = &mut *locked(&totals);
                    totals.add(&report);
                    if report.violation.is_some() {
                        failures.push(report);
                        stop.fetch_or(until_failure, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let (totals, mut failures) = std::mem::take(&mut *locked(&totals));
    failures.sort_by_key(|report| report.plan.seed);
    (totals, failures)
}
