//! Pairs of acquire and release per second, by tasks that do not contend.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::pairs::{Pairs, pairs};
use super::{Column, on_pinned_thread};
use crate::args::Plan;
use crate::contenders::Kind;
use crate::peers::{self, Peer, Work};
use crate::pin::{self, Placement};
use crate::servers::Servers;
use crate::stats::Spread;

/// One scenario.
pub(crate) struct ThroughputSpec {
    pub(crate) id: &'static str,
    /// The row of the targets that it belongs to.
    pub(crate) row: u8,
    pub(crate) work: &'static str,
    pub(crate) nodes: usize,
    tasks: usize,
    runtime: Flavour,
    pub(crate) placement: Placement,
    /// Whether peers that are separate programs take part.
    pub(crate) with_peers: bool,
}

#[derive(Clone, Copy)]
enum Flavour {
    OneThread,
    MultiThread,
}

const fn one_thread(
    id: &'static str,
    row: u8,
    work: &'static str,
    (nodes, tasks): (usize, usize),
    placement: Placement,
) -> ThroughputSpec {
    ThroughputSpec {
        id,
        row,
        work,
        nodes,
        tasks,
        runtime: Flavour::OneThread,
        placement,
        with_peers: false,
    }
}

const fn with_peers(spec: ThroughputSpec) -> ThroughputSpec {
    ThroughputSpec {
        with_peers: true,
        ..spec
    }
}

/// All scenarios, in the order in which they are run.
pub(crate) const ALL: &[ThroughputSpec] = {
    use Placement::{Anywhere, OwnCores, SameCore};
    &[
        one_thread(
            "1/same-core",
            1,
            "one node, one task, same core",
            (1, 1),
            SameCore,
        ),
        one_thread(
            "1/own-core",
            1,
            "one node, one task, own cores",
            (1, 1),
            OwnCores,
        ),
        with_peers(one_thread(
            "2/100-tasks",
            2,
            "one node, 100 tasks",
            (1, 100),
            OwnCores,
        )),
        one_thread(
            "2/1000-tasks",
            2,
            "one node, 1000 tasks",
            (1, 1000),
            OwnCores,
        ),
        ThroughputSpec {
            id: "2/multi-thread",
            row: 2,
            work: "one node, 100 tasks, multi-thread",
            nodes: 1,
            tasks: 100,
            runtime: Flavour::MultiThread,
            placement: Anywhere,
            with_peers: false,
        },
        one_thread(
            "3/same-core",
            3,
            "five nodes, one task, same core",
            (5, 1),
            SameCore,
        ),
        one_thread(
            "3/own-core",
            3,
            "five nodes, one task, own cores",
            (5, 1),
            OwnCores,
        ),
        with_peers(one_thread(
            "4/100-tasks",
            4,
            "five nodes, 100 tasks",
            (5, 100),
            OwnCores,
        )),
    ]
};

/// The result of a scenario.
pub(crate) struct ThroughputResult {
    pub(crate) spec: &'static ThroughputSpec,
    pub(crate) columns: Vec<Column<Pairs>>,
}

impl ThroughputResult {
    pub(crate) fn rate(&self, kind: Kind) -> Option<Spread> {
        let turns = self.turns(kind)?.iter().flatten();
        Spread::of(turns.map(|turn| turn.per_s))
    }

    /// The latencies of acquires in all rounds together, the shortest first. Empty if there was
    /// more than one task.
    pub(crate) fn latencies(&self, kind: Kind) -> Vec<Duration> {
        let turns = self.turns(kind).unwrap_or_default().iter().flatten();
        let latencies = turns.flat_map(|turn| turn.latencies.iter().copied());
        let mut latencies: Vec<_> = latencies.collect();
        latencies.sort_unstable();
        latencies
    }

    /// The ratio of this contender's speed to that of `other`, round by round: what disturbs the
    /// machine for a while disturbs both.
    pub(crate) fn ratio(&self, kind: Kind, other: Kind) -> Option<Spread> {
        let turns = self.turns(kind)?.iter().zip(self.turns(other)?);
        Spread::of(turns.filter_map(|(ours, theirs)| match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => Some(ours.per_s / theirs.per_s),
            _ => None,
        }))
    }

    fn turns(&self, kind: Kind) -> Option<&[Result<Pairs, String>]> {
        let column = self.columns.iter().find(|column| column.kind == kind)?;
        Some(&column.turns)
    }
}

/// Runs a scenario on these servers.
pub(crate) fn run(
    spec: &'static ThroughputSpec,
    plan: &Plan,
    servers: &Servers,
    peers: &[&'static Peer],
) -> Result<ThroughputResult, String> {
    if let Some(why) = spec.placement.obstacle() {
        return Err(why.into());
    }
    servers.place(spec.placement)?;
    let urls = servers.urls();
    let columns = on_pinned_thread(spec.placement, || {
        let runtime = runtime(spec.runtime)?;
        let columns = runtime.block_on(rounds(spec, plan, &urls, peers));
        // A contender that hangs may never end its tasks.
        runtime.shutdown_background();
        columns
    })?;
    Ok(ThroughputResult { spec, columns })
}

fn runtime(flavour: Flavour) -> Result<Runtime, String> {
    let mut builder = match flavour {
        Flavour::OneThread => Builder::new_current_thread(),
        Flavour::MultiThread => Builder::new_multi_thread(),
    };
    if let Flavour::MultiThread = flavour {
        builder.worker_threads(pin::core_count().max(2));
    }
    builder
        .enable_all()
        .build()
        .map_err(|error| error.to_string())
}

/// Every contender warms up, then has one turn per round.
async fn rounds(
    spec: &ThroughputSpec,
    plan: &Plan,
    urls: &[String],
    peers: &[&'static Peer],
) -> Result<Vec<Column<Pairs>>, String> {
    let mut columns = Vec::new();
    let mut contenders = Vec::new();
    for kind in Kind::UNCONTENDED {
        let contender = kind.connect(urls).await;
        let contender = contender.map_err(|why| format!("{}: {why}", kind.label()))?;
        let warm = pairs(&contender, kind, spec.tasks, plan.warm_up).await;
        contenders.push((Some(contender), warm.err()));
        columns.push(Column::new(kind));
    }
    // Peers' programs warm up by themselves. Retry settings do not matter here. In a quick run,
    // only peers with a target take part.
    let wanted = |peer: &Peer| !plan.quick || (spec.row == 4 && peer.is_npm());
    let able = |peer: &&&Peer| {
        spec.with_peers && wanted(peer) && peer.is_at_its_best() && peer.takes(spec.nodes)
    };
    for peer in peers.iter().filter(able) {
        contenders.push((None, None));
        columns.push(Column::new(Kind::Peer(peer)));
    }
    for round in 0..plan.rounds {
        for offset in 0..contenders.len() {
            // A different contender is first each time.
            let index = (round + offset) % contenders.len();
            let (contender, cold) = &contenders[index];
            let column = &mut columns[index];
            let failed = cold.as_deref().or(column.trouble());
            let outcome = match (failed, contender, column.kind) {
                (Some(why), ..) => Err(why.to_owned()),
                (_, Some(contender), kind) => pairs(contender, kind, spec.tasks, plan.turn).await,
                (_, None, Kind::Peer(peer)) => peer_turn(peer, urls, spec.tasks, plan.turn),
                (_, None, kind) => Err(format!("{} is not connected", kind.label())),
            };
            column.take(outcome);
        }
        eprint!(".");
    }
    Ok(columns)
}

/// Blocks the thread, which has nothing else to do meanwhile: the other contenders are idle.
fn peer_turn(
    peer: &Peer,
    urls: &[String],
    tasks: usize,
    length: Duration,
) -> Result<Pairs, String> {
    let tally = peers::turn(peer, urls, Work::Pairs { tasks }, length)?;
    Ok(Pairs {
        count: tally.pairs,
        per_s: tally.pairs_per_s(),
        latencies: Vec::new(),
    })
}
