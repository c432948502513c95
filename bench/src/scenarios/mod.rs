//! What is measured, one scenario after the other.

pub(crate) mod faults;
pub(crate) mod throughput;

use std::time::Instant;

use self::faults::FaultResult;
use self::throughput::ThroughputResult;
use crate::args::Plan;
use crate::contenders::Kind;
use crate::noise::Noise;
use crate::pin::Placement;
use crate::servers::Servers;

/// What was found.
#[derive(Default)]
pub(crate) struct Results {
    /// What the servers were, such as `redis 7.0.15`.
    pub(crate) servers: String,
    /// The share of the machine's time, 0 to 1, that other programs used.
    pub(crate) noise: Option<f64>,
    pub(crate) throughput: Vec<ThroughputResult>,
    pub(crate) faults: Vec<FaultResult>,
    /// Scenarios that could not be run, and why.
    pub(crate) skipped: Vec<(&'static str, String)>,
}

/// A contender's turns in a scenario, one per round.
pub(crate) struct Column<T> {
    pub(crate) kind: Kind,
    /// Those of the same index were taken in the same round. An error says what was cut
    /// off, or why nothing was tried.
    pub(crate) turns: Vec<Result<T, String>>,
}

impl<T> Column<T> {
    /// Why a turn of this contender came to nothing.
    pub(crate) fn trouble(&self) -> Option<&str> {
        let mut failures = self.turns.iter().filter_map(|turn| turn.as_ref().err());
        failures.next().map(String::as_str)
    }
}

/// The ids of all scenarios, in the order in which they are run.
pub(crate) fn ids() -> impl Iterator<Item = &'static str> {
    let throughput = throughput::ALL.iter().map(|spec| spec.id);
    throughput.chain(faults::ALL.iter().map(|spec| spec.id))
}

/// Runs what the plan asks for.
///
/// # Errors
/// If the servers cannot be set up.
pub(crate) fn run_all(plan: &Plan) -> Result<Results, String> {
    let noise = Noise::start();
    eprintln!("starting servers, and letting them settle");
    let one = Servers::start(1)?;
    let mut fives = faults::Fleet::start(plan)?;
    fives.settle();
    let mut results = Results {
        servers: one.version(),
        ..Results::default()
    };
    for spec in throughput::ALL.iter().filter(|spec| plan.wants(spec.id)) {
        eprint!("{:<20}", spec.id);
        let servers = if spec.nodes == 1 {
            &one
        } else {
            fives.unharmed()
        };
        let start = Instant::now();
        match throughput::run(spec, plan, servers) {
            Ok(result) => results.throughput.push(result),
            Err(why) => results.skip(spec.id, why),
        }
        eprintln!(" {:.0} s", start.elapsed().as_secs_f64());
    }
    faults::run_all(plan, &mut fives, &mut results);
    drop((one, fives));
    results.noise = noise.end();
    Ok(results)
}

impl Results {
    fn skip(&mut self, id: &'static str, why: String) {
        eprint!(" skipped: {why}");
        self.skipped.push((id, why));
    }
}

/// Runs `work` on a thread of its own, pinned as the placement says. Threads inherit
/// their creator's cores, so a runtime that is made in there is pinned as a whole.
fn on_pinned_thread<T: Send>(
    placement: Placement,
    work: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, String> {
    let pinned = || {
        placement.pin_client()?;
        work()
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(pinned);
        thread.join().unwrap_or_else(|_| Err("it panicked".into()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique() {
        let mut ids: Vec<_> = ids().collect();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
    }
}
