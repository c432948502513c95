//! The table of `docs/reliability.md`: fault × promise × seeds run × violations.

use leasehold_sim::batch::Totals;
use leasehold_sim::{Fault, Mode, PROMISES, Report};

/// Prints, for each kind of fault, in how many runs it occurred, how often, and how many of
/// these runs broke each promise.
pub fn print(totals: &Totals, failures: &[Report]) {
    println!(
        "| fault | seeds within | seeds beyond | times | {} |",
        PROMISES.join(" | ")
    );
    println!("|---|---:|---:|---:|{}", "---:|".repeat(PROMISES.len()));
    for fault in Fault::ALL {
        let times: u64 = totals.faults.iter().map(|counts| counts.of(fault)).sum();
        let runs = |mode: Mode| totals.runs_with[mode as usize].of(fault);
        let violations = PROMISES.map(|promise| {
            let broke = |report: &&Report| {
                let violation = report.violation.as_ref();
                report.faults.of(fault) > 0 && violation.is_some_and(|v| v.promise == promise)
            };
            failures.iter().filter(broke).count().to_string()
        });
        println!(
            "| {fault} | {} | {} | {times} | {} |",
            runs(Mode::Within),
            runs(Mode::Beyond),
            violations.join(" | ")
        );
    }
    println!(
        "| **all** | {} | {} | {} | {} |",
        totals.seeds_in(Mode::Within),
        totals.seeds_in(Mode::Beyond),
        totals.faults.iter().map(|f| f.total()).sum::<u64>(),
        PROMISES
            .map(|promise| {
                let broke =
                    |r: &&Report| r.violation.as_ref().is_some_and(|v| v.promise == promise);
                failures.iter().filter(broke).count().to_string()
            })
            .join(" | ")
    );
}
