//! The scenarios, in the order in which they are run.

pub(crate) mod contention;
mod contest;
pub(crate) mod far;
pub(crate) mod faults;
pub(crate) mod held;
pub(crate) mod idle;
pub(crate) mod instructions;
mod ledger;
pub(crate) mod local;
pub(crate) mod nodes;
pub(crate) mod pairs;
pub(crate) mod permits;
pub(crate) mod readers;
pub(crate) mod sheet;
pub(crate) mod throughput;
pub(crate) mod tool;
pub(crate) mod waiters;

use std::time::Instant;

use tokio::runtime::{Builder, Runtime};

use self::contention::ContentionResult;
use self::faults::{FaultResult, Fleet};
use self::sheet::Sheet;
use self::throughput::ThroughputResult;
use crate::args::Plan;
use crate::contenders::Kind;
use crate::noise::Noise;
use crate::peers::{self, Available};
use crate::pin::Placement;
use crate::servers::Servers;

/// All results.
#[derive(Default)]
pub(crate) struct Results {
    /// The version of the servers, such as `redis 7.0.15`.
    pub(crate) servers: String,
    /// The share of the machine's time, 0 to 1, that other programs used.
    pub(crate) noise: Option<f64>,
    pub(crate) throughput: Vec<ThroughputResult>,
    pub(crate) contention: Vec<ContentionResult>,
    pub(crate) faults: Vec<FaultResult>,
    pub(crate) sheets: Vec<Sheet>,
    /// Peers that are not available on this machine, and why.
    pub(crate) missing: Vec<(&'static str, String)>,
    /// Scenarios that could not be run, and why.
    pub(crate) skipped: Vec<(&'static str, String)>,
}

/// A contender's turns in a scenario, one per round.
pub(crate) struct Column<T> {
    pub(crate) kind: Kind,
    /// Turns with the same index are from the same round. An error says what was cut off, or why
    /// the turn was skipped.
    pub(crate) turns: Vec<Result<T, String>>,
}

impl<T> Column<T> {
    fn new(kind: Kind) -> Self {
        let turns = Vec::new();
        Self { kind, turns }
    }

    /// Records a turn, and prints the first failure at once.
    fn take(&mut self, turn: Result<T, String>) {
        if let (Err(why), None) = (&turn, self.trouble()) {
            eprintln!("\n  {}: {why}", self.kind.label());
        }
        self.turns.push(turn);
    }

    /// The mark of a contender with a failed turn.
    pub(crate) fn mark(&self) -> Option<&'static str> {
        self.trouble().map(|why| match why.contains("hangs") {
            true => "HANGS",
            false => "FAILED",
        })
    }

    /// Why a turn of this contender failed.
    pub(crate) fn trouble(&self) -> Option<&str> {
        let mut failures = self.turns.iter().filter_map(|turn| turn.as_ref().err());
        failures.next().map(String::as_str)
    }
}

/// The ids of all scenarios.
pub(crate) fn ids() -> impl Iterator<Item = &'static str> {
    let throughput = throughput::ALL.iter().map(|spec| spec.id);
    let contention = contention::ALL.iter().map(|spec| spec.id);
    let faults = faults::ALL.iter().map(|spec| spec.id);
    let on_servers = [
        waiters::ID,
        nodes::ID,
        held::ID,
        idle::ID,
        permits::ID,
        readers::ID,
        far::ID,
        tool::ID,
        instructions::ID,
    ];
    let local = [local::ONE_TASK, local::PROCESSES];
    throughput
        .chain(contention)
        .chain(faults)
        .chain(on_servers)
        .chain(local)
}

/// Runs the scenarios of the plan.
///
/// # Errors
///
/// If the servers cannot be started.
pub(crate) fn run_all(plan: &Plan) -> Result<Results, String> {
    // Before any measurement: compilers use the whole machine.
    let peers = available_peers(plan);
    let tool = tool::build(plan);
    let noise = Noise::start();
    eprintln!("starting servers, and letting them settle");
    let mut sets = Sets::start(plan)?;
    let mut results = Results {
        servers: sets.one.version(),
        missing: peers.missing,
        ..Results::default()
    };
    // This needs no servers, so it can run while they settle.
    results.sheet(plan, local::ONE_TASK, || local::one_task(plan));
    results.sheet(plan, local::PROCESSES, || local::processes(plan));
    sets.settle();
    for spec in throughput::ALL.iter().filter(|spec| plan.wants(spec.id)) {
        let run = || throughput::run(spec, plan, sets.of(spec.nodes)?, &peers.peers);
        let found = results.timed(spec.id, run);
        results.throughput.extend(found);
    }
    results.sheet(plan, nodes::ID, || nodes::run(plan, &sets.all()));
    for spec in contention::ALL.iter().filter(|spec| plan.wants(spec.id)) {
        let run = || contention::run(spec, plan, sets.of(spec.nodes)?, &peers.peers);
        let found = results.timed(spec.id, run);
        results.contention.extend(found);
    }
    results.sheet(plan, waiters::ID, || waiters::run(plan, &sets.one));
    results.sheet(plan, held::ID, || held::run(plan, &sets.one));
    results.sheet(plan, idle::ID, || {
        idle::run(plan, &[&sets.one, sets.fives.unharmed()])
    });
    results.sheet(plan, readers::ID, || readers::run(plan, &sets.one));
    results.sheet(plan, permits::ID, || {
        permits::run(plan, &[&sets.one, sets.fives.unharmed()])
    });
    results.sheet(plan, far::ID, || far::run(plan, &sets.one));
    results.sheet(plan, tool::ID, || tool::run(plan, &sets.one, &tool?));
    results.sheet(plan, instructions::ID, || {
        instructions::run(plan, &sets.one)
    });
    faults::run_all(plan, &mut sets.fives, &mut results);
    drop(sets);
    results.noise = noise.end();
    Ok(results)
}

/// All servers of a run.
struct Sets {
    one: Servers,
    fives: Fleet,
    /// Sets of other sizes, for what grows with the number of nodes.
    others: Vec<Servers>,
}

impl Sets {
    fn start(plan: &Plan) -> Result<Self, String> {
        let others = nodes::SIZES
            .into_iter()
            .filter(|size| ![1, 5].contains(size));
        let others = others.filter(|_| plan.wants(nodes::ID));
        Ok(Self {
            one: Servers::start(1)?,
            fives: Fleet::start(plan)?,
            others: others.map(Servers::start).collect::<Result<_, _>>()?,
        })
    }

    fn settle(&self) {
        self.fives.settle();
        self.all().iter().for_each(|servers| servers.settle());
    }

    fn all(&self) -> Vec<&Servers> {
        let first = [&self.one, self.fives.unharmed()];
        let mut all: Vec<_> = first.into_iter().chain(&self.others).collect();
        all.sort_by_key(|servers| servers.count());
        all
    }

    fn of(&self, nodes: usize) -> Result<&Servers, String> {
        let all = self.all().into_iter();
        let mut fitting = all.filter(|servers| servers.count() == nodes);
        fitting
            .next()
            .ok_or_else(|| format!("there are no {nodes} servers"))
    }
}

/// No peers are installed for a run without them.
fn available_peers(plan: &Plan) -> Available {
    let throughput = throughput::ALL.iter().filter(|spec| spec.with_peers);
    let contention = contention::ALL.iter().filter(|spec| spec.with_peers);
    let ids = throughput.map(|spec| spec.id);
    let mut ids = ids.chain(contention.map(|spec| spec.id));
    if plan.peers && ids.any(|id| plan.wants(id)) {
        return peers::install(plan.quick);
    }
    Available {
        peers: Vec::new(),
        missing: Vec::new(),
    }
}

impl Results {
    /// Runs a scenario, and prints how long it took. `None` if it cannot be run.
    fn timed<T>(&mut self, id: &'static str, run: impl FnOnce() -> Result<T, String>) -> Option<T> {
        eprint!("{id:<20}");
        let start = Instant::now();
        let found = run();
        let found = found.map_err(|why| self.skip(id, why)).ok();
        eprintln!(" {:.0} s", start.elapsed().as_secs_f64());
        found
    }

    /// Runs a scenario whose result is a sheet, if the plan includes it.
    fn sheet(
        &mut self,
        plan: &Plan,
        id: &'static str,
        run: impl FnOnce() -> Result<Sheet, String>,
    ) {
        if plan.wants(id) {
            let found = self.timed(id, run);
            self.sheets.extend(found);
        }
    }

    fn skip(&mut self, id: &'static str, why: String) {
        eprint!(" skipped: {why}");
        self.skipped.push((id, why));
    }
}

fn one_thread_runtime() -> Result<Runtime, String> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())
}

/// Runs `work` on a separate thread, pinned according to the placement. Threads inherit the cores
/// of their creator, so a runtime that is created there is pinned as a whole.
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
