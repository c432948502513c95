//! Five nodes of which two die or become silent: the latency of a lock before the fault, of the
//! first lock after it, and from the second second on.

use std::time::{Duration, Instant};

use super::{Column, Results, on_pinned_thread, one_thread_runtime};
use crate::args::Plan;
use crate::contenders::{Kind, Lock, with_lock};
use crate::pin::Placement;
use crate::servers::{Harm, Servers};
use crate::stats::{Spread, percentile};

const PLACEMENT: Placement = Placement::OwnCores;
const NODES: usize = 5;
const HARMED: usize = 2;
/// A lock or a release that takes longer is cut off, and counts as a hang.
const CUT_OFF: Duration = Duration::from_secs(5);
/// From the fault to the second measurement.
const SETTLE: Duration = Duration::from_secs(1);
/// A phase lasts until it has this many locks, but not beyond the cut-off.
const FEWEST_LOCKS: usize = 3;

/// One scenario.
pub(crate) struct FaultSpec {
    pub(crate) id: &'static str,
    pub(crate) work: &'static str,
    harm: Harm,
}

/// All scenarios, in the order in which they are run.
pub(crate) const ALL: &[FaultSpec] = &[
    FaultSpec {
        id: "5/dead",
        work: "five nodes, 2 dead",
        harm: Harm::Kill,
    },
    FaultSpec {
        id: "5/silent",
        work: "five nodes, 2 silent",
        harm: Harm::Stop,
    },
];

/// The measured contenders. The raw client has no timeouts, so it cannot take part.
const KINDS: [Kind; 2] = [Kind::Leasehold, Kind::RslockNodelay];

/// The latencies of acquires.
#[derive(Clone, Copy)]
pub(crate) struct Latency {
    pub(crate) median: Duration,
    pub(crate) p99: Duration,
    pub(crate) locks: usize,
}

/// A contender's latencies in one round.
#[derive(Clone)]
pub(crate) struct FaultTurn {
    pub(crate) healthy: Latency,
    /// The first lock after the fault.
    pub(crate) first: Duration,
    /// From the second second on.
    pub(crate) after: Latency,
}

/// The result of a scenario.
pub(crate) struct FaultResult {
    pub(crate) spec: &'static FaultSpec,
    pub(crate) columns: Vec<Column<FaultTurn>>,
}

impl FaultResult {
    fn new(spec: &'static FaultSpec) -> Self {
        let columns = KINDS.map(Column::new).into();
        Self { spec, columns }
    }

    /// One figure of a contender over all rounds that it completed.
    pub(crate) fn figure(&self, kind: Kind, figure: impl Fn(&FaultTurn) -> f64) -> Option<Spread> {
        let column = self.columns.iter().find(|column| column.kind == kind)?;
        Spread::of(column.turns.iter().flatten().map(figure))
    }
}

/// Sets of five servers.
pub(crate) struct Fleet {
    /// Servers that are never killed. A stopped server continues as before when it is resumed.
    unharmed: Servers,
    /// A set for each contender that loses nodes. Killed nodes have to settle after their
    /// restart, while other contenders have their turns.
    mortal: Vec<(Kind, Servers)>,
}

impl Fleet {
    pub(crate) fn start(plan: &Plan) -> Result<Self, String> {
        let mut mortal = Vec::new();
        let kills = |spec: &&FaultSpec| plan.wants(spec.id) && spec.harm == Harm::Kill;
        if ALL.iter().any(|spec| kills(&spec)) {
            for kind in KINDS {
                mortal.push((kind, Servers::start(NODES)?));
            }
        }
        let unharmed = Servers::start(NODES)?;
        Ok(Self { unharmed, mortal })
    }

    /// Waits until all have settled.
    pub(crate) fn settle(&self) {
        self.mortal.iter().for_each(|(_, servers)| servers.settle());
        self.unharmed.settle();
    }

    pub(crate) fn unharmed(&self) -> &Servers {
        &self.unharmed
    }

    fn for_turn(&mut self, kind: Kind, harm: Harm) -> &mut Servers {
        let mortal = self.mortal.iter_mut().find(|(of, _)| *of == kind);
        match (harm, mortal) {
            (Harm::Kill, Some((_, servers))) => servers,
            _ => &mut self.unharmed,
        }
    }
}

/// Runs the scenarios of the plan, in turns.
pub(crate) fn run_all(plan: &Plan, fleet: &mut Fleet, results: &mut Results) {
    let specs: Vec<_> = ALL.iter().filter(|spec| plan.wants(spec.id)).collect();
    if let Some(why) = PLACEMENT.obstacle() {
        specs
            .iter()
            .for_each(|spec| results.skip(spec.id, why.into()));
        return;
    }
    let mut found: Vec<_> = specs.into_iter().map(FaultResult::new).collect();
    for round in 0..plan.fault_rounds {
        for FaultResult { spec, columns } in &mut found {
            eprint!("{:<20}", spec.id);
            for column in columns {
                let servers = fleet.for_turn(column.kind, spec.harm);
                let turn = turn_on(servers, column.kind, spec.harm, round, plan);
                column.take(turn);
                eprint!(".");
            }
            eprintln!(" round {} of {}", round + 1, plan.fault_rounds);
        }
    }
    results.faults = found;
}

/// Runs a contender's turn on these servers, with the fault, and repairs them.
fn turn_on(
    servers: &mut Servers,
    kind: Kind,
    harm: Harm,
    round: usize,
    plan: &Plan,
) -> Result<FaultTurn, String> {
    servers.settle();
    servers.place(PLACEMENT)?;
    let urls = servers.urls();
    // A new name for each turn: requests that a stopped node receives when it is resumed may
    // leave a lock there.
    let name = format!("{}/{round:04}", kind.prefix());
    let turn = on_pinned_thread(PLACEMENT, || {
        let runtime = one_thread_runtime()?;
        let mut inflict = || servers.harm(HARMED, harm);
        let turn = runtime.block_on(async {
            let contender = kind.connect(&urls).await?;
            with_lock!(&contender, lock => suffer(lock, &name, &mut inflict, plan).await)
        });
        runtime.shutdown_background();
        turn
    });
    servers.mend(HARMED, harm)?;
    turn
}

async fn suffer<L: Lock>(
    lock: &L,
    name: &str,
    inflict: &mut (dyn FnMut() + Send),
    plan: &Plan,
) -> Result<FaultTurn, String> {
    let at = |phase: &'static str| move |why| format!("{phase}: {why}");
    let locks = |length| locks(lock, name, length);
    locks(plan.warm_up).await.map_err(at("warming up"))?;
    let healthy = locks(plan.fault_phase).await.map_err(at("healthy"))?;
    inflict();
    let fault = Instant::now();
    let first = one_lock(lock, name).await.map_err(at("first lock"))?;
    // The contender continues to lock meanwhile, so that it can detect the fault.
    let settle = SETTLE.saturating_sub(fault.elapsed());
    locks(settle).await.map_err(at("just after the fault"))?;
    let after = locks(plan.fault_phase)
        .await
        .map_err(at("after the fault"))?;
    Ok(FaultTurn {
        healthy: summary(&healthy)?,
        first,
        after: summary(&after)?,
    })
}

fn summary(latencies: &[Duration]) -> Result<Latency, String> {
    let of = |percent| percentile(latencies, percent).ok_or("no lock was taken");
    Ok(Latency {
        median: of(50.0)?,
        p99: of(99.0)?,
        locks: latencies.len(),
    })
}

/// Acquires and releases locks one after the other for `length`. Returns their latencies.
async fn locks<L: Lock>(lock: &L, name: &str, length: Duration) -> Result<Vec<Duration>, String> {
    let (start, mut latencies) = (Instant::now(), Vec::new());
    loop {
        let elapsed = start.elapsed();
        let enough = elapsed >= length && latencies.len() >= FEWEST_LOCKS;
        if enough || elapsed >= length + CUT_OFF {
            return Ok(latencies);
        }
        latencies.push(one_lock(lock, name).await?);
    }
}

/// Acquires and releases a lock. Returns how long the acquire took.
async fn one_lock<L: Lock>(lock: &L, name: &str) -> Result<Duration, String> {
    let start = Instant::now();
    let held = tokio::time::timeout(CUT_OFF, lock.acquire(name)).await;
    let held = held.map_err(|_| format!("hangs: no lock within {CUT_OFF:?}"))??;
    let latency = start.elapsed();
    let released = tokio::time::timeout(CUT_OFF, lock.release(name, held)).await;
    released.map_err(|_| format!("hangs: no release within {CUT_OFF:?}"))??;
    Ok(latency)
}
