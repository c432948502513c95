//! What is measured, one scenario after the other.

pub(crate) mod contention;
mod contest;
pub(crate) mod faults;
pub(crate) mod throughput;

use std::time::Instant;

use self::contention::ContentionResult;
use self::faults::FaultResult;
use self::throughput::ThroughputResult;
use crate::args::Plan;
use crate::contenders::Kind;
use crate::noise::Noise;
use crate::peers::{self, Available};
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
    pub(crate) contention: Vec<ContentionResult>,
    pub(crate) faults: Vec<FaultResult>,
    /// Peers that this machine cannot have, and why.
    pub(crate) missing: Vec<(&'static str, String)>,
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
    fn new(kind: Kind) -> Self {
        let turns = Vec::new();
        Self { kind, turns }
    }

    /// Writes a turn down, and tells at once if this is the first that came to nothing.
    fn take(&mut self, turn: Result<T, String>) {
        if let (Err(why), None) = (&turn, self.trouble()) {
            eprintln!("\n  {} CUT OFF: {why}", self.kind.label());
        }
        self.turns.push(turn);
    }

    /// Why a turn of this contender came to nothing.
    pub(crate) fn trouble(&self) -> Option<&str> {
        let mut failures = self.turns.iter().filter_map(|turn| turn.as_ref().err());
        failures.next().map(String::as_str)
    }
}

/// The ids of all scenarios, in the order in which they are run.
pub(crate) fn ids() -> impl Iterator<Item = &'static str> {
    let throughput = throughput::ALL.iter().map(|spec| spec.id);
    let contention = contention::ALL.iter().map(|spec| spec.id);
    let faults = faults::ALL.iter().map(|spec| spec.id);
    throughput.chain(contention).chain(faults)
}

/// Runs what the plan asks for.
///
/// # Errors
/// If the servers cannot be set up.
pub(crate) fn run_all(plan: &Plan) -> Result<Results, String> {
    // Before anything is measured: compilers use all of the machine.
    let peers = available_peers(plan);
    let noise = Noise::start();
    eprintln!("starting servers, and letting them settle");
    let one = Servers::start(1)?;
    let mut fives = faults::Fleet::start(plan)?;
    fives.settle();
    let mut results = Results {
        servers: one.version(),
        missing: peers.missing,
        ..Results::default()
    };
    let servers = |nodes| match nodes {
        1 => &one,
        _ => fives.unharmed(),
    };
    for spec in throughput::ALL.iter().filter(|spec| plan.wants(spec.id)) {
        let run = || throughput::run(spec, plan, servers(spec.nodes), &peers.peers);
        let found = results.timed(spec.id, run);
        results.throughput.extend(found);
    }
    for spec in contention::ALL.iter().filter(|spec| plan.wants(spec.id)) {
        let run = || contention::run(spec, plan, servers(spec.nodes), &peers.peers);
        let found = results.timed(spec.id, run);
        results.contention.extend(found);
    }
    faults::run_all(plan, &mut fives, &mut results);
    drop((one, fives));
    results.noise = noise.end();
    Ok(results)
}

/// None are installed for a run in which none takes part.
fn available_peers(plan: &Plan) -> Available {
    let throughput = throughput::ALL.iter().filter(|spec| spec.with_peers);
    let ids = throughput.map(|spec| spec.id);
    let mut ids = ids.chain(contention::ALL.iter().map(|spec| spec.id));
    if plan.peers && ids.any(|id| plan.wants(id)) {
        return peers::install(plan.quick);
    }
    Available {
        peers: Vec::new(),
        missing: Vec::new(),
    }
}

impl Results {
    /// Runs a scenario, and tells how long it took. `None` if it cannot be run.
    fn timed<T>(&mut self, id: &'static str, run: impl FnOnce() -> Result<T, String>) -> Option<T> {
        eprint!("{id:<20}");
        let start = Instant::now();
        let found = run();
        let found = found.map_err(|why| self.skip(id, why)).ok();
        eprintln!(" {:.0} s", start.elapsed().as_secs_f64());
        found
    }

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
