//! Many contenders for one name: hand-overs per second, and the longest wait.

use std::time::{Duration, Instant};

use super::contest::{Clients, Contest, Start, contend, hold};
use super::{Column, on_pinned_thread, one_thread_runtime};
use crate::args::Plan;
use crate::contenders::{Kind, Raw};
use crate::peers::{self, Peer, Work};
use crate::pin::Placement;
use crate::servers::Servers;
use crate::stats::Spread;
use crate::tally::Tally;

const PLACEMENT: Placement = Placement::OwnCores;
const CONTENDERS: usize = 20;

/// One scenario.
pub(crate) struct ContentionSpec {
    pub(crate) id: &'static str,
    pub(crate) row: u8,
    pub(crate) work: &'static str,
    pub(crate) nodes: usize,
    clients: Clients,
    hold: Duration,
    kinds: &'static [Kind],
    /// Whether peers that are separate programs take part.
    pub(crate) with_peers: bool,
}

/// All scenarios, in the order in which they are run.
pub(crate) const ALL: &[ContentionSpec] = &[
    ContentionSpec {
        id: "6/contenders",
        row: 6,
        work: "one node, 20 contenders, 1 ms hold",
        nodes: 1,
        clients: Clients::OneEach,
        hold: HOLD,
        kinds: &KINDS,
        with_peers: true,
    },
    ContentionSpec {
        id: "7/contenders",
        row: 7,
        work: "five nodes, 20 contenders, 1 ms hold",
        nodes: 5,
        clients: Clients::OneEach,
        hold: HOLD,
        kinds: &KINDS,
        with_peers: true,
    },
    ContentionSpec {
        id: "8/one-process",
        row: 8,
        work: "one node, 20 tasks of one process, no hold",
        nodes: 1,
        clients: Clients::OneForAll,
        hold: Duration::ZERO,
        kinds: KINDS.split_at(1).1,
        with_peers: false,
    },
];

/// Long compared with a round trip, like real work.
const HOLD: Duration = Duration::from_millis(1);

/// The contenders in this process. The raw client cannot wait.
const KINDS: [Kind; 5] = [
    Kind::Ideal,
    Kind::Leasehold,
    Kind::Rslock,
    Kind::Rslock2Ms,
    Kind::Rslock5Ms,
];

/// The result of a scenario.
pub(crate) struct ContentionResult {
    pub(crate) spec: &'static ContentionSpec,
    pub(crate) columns: Vec<Column<Tally>>,
}

impl ContentionResult {
    /// One figure of a contender over all rounds that it completed.
    pub(crate) fn figure(&self, kind: Kind, figure: impl Fn(&Tally) -> f64) -> Option<Spread> {
        Spread::of(self.turns(kind)?.iter().flatten().map(figure))
    }

    /// The ratio of this contender's hand-overs to those of `other`, round by round. A round in
    /// which the other had none gives no ratio.
    pub(crate) fn ratio(&self, kind: Kind, other: Kind) -> Option<Spread> {
        let turns = self.turns(kind)?.iter().zip(self.turns(other)?);
        Spread::of(turns.filter_map(|turns| match turns {
            (Ok(ours), Ok(theirs)) if theirs.handovers > 0 => {
                Some(ours.handovers_per_s() / theirs.handovers_per_s())
            }
            _ => None,
        }))
    }

    /// The settings with which rslock had the most hand-overs, if it took part.
    pub(crate) fn best_rslock(&self) -> Option<Kind> {
        self.most_handovers(|kind| matches!(kind, Kind::Rslock | Kind::Rslock2Ms | Kind::Rslock5Ms))
    }

    /// The other contender with the most hand-overs.
    pub(crate) fn best_peer(&self) -> Option<Kind> {
        self.most_handovers(|kind| !matches!(kind, Kind::Ideal | Kind::Leasehold))
    }

    fn most_handovers(&self, among: impl Fn(&Kind) -> bool) -> Option<Kind> {
        let kinds = self.columns.iter().map(|column| column.kind);
        let rates = kinds.filter(among).filter_map(|kind| {
            let rate = self.figure(kind, Tally::handovers_per_s)?;
            Some((kind, rate.median))
        });
        rates
            .max_by(|(_, one), (_, other)| one.total_cmp(other))
            .map(|(kind, _)| kind)
    }

    fn turns(&self, kind: Kind) -> Option<&[Result<Tally, String>]> {
        let column = self.columns.iter().find(|column| column.kind == kind)?;
        Some(&column.turns)
    }
}

/// Runs a scenario on these servers, with these peers beside the kinds of this process.
pub(crate) fn run(
    spec: &'static ContentionSpec,
    plan: &Plan,
    servers: &Servers,
    peers: &[&'static Peer],
) -> Result<ContentionResult, String> {
    if let Some(why) = PLACEMENT.obstacle() {
        return Err(why.into());
    }
    servers.place(PLACEMENT)?;
    let urls = servers.urls();
    let able = |peer: &&&Peer| spec.with_peers && peer.takes(spec.nodes);
    let peers = peers.iter().filter(able).map(|peer| Kind::Peer(peer));
    let kinds = spec.kinds.iter().copied().chain(peers);
    let mut columns: Vec<Column<Tally>> = kinds.map(Column::new).collect();
    for round in 0..plan.contest_rounds {
        for offset in 0..columns.len() {
            // A different contender is first each time.
            let index = (round + offset) % columns.len();
            let column = &mut columns[index];
            // Starting programs takes as long as their turns.
            if round > 0 && plan.quick && matches!(column.kind, Kind::Peer(_)) {
                continue;
            }
            let turn = match column.trouble() {
                Some(why) => Err(why.to_owned()),
                None => on_pinned_thread(PLACEMENT, || turn(spec, column.kind, &urls, round, plan)),
            };
            column.take(turn);
            eprint!(".");
        }
    }
    Ok(ContentionResult { spec, columns })
}

/// One contender's turn, on a separate runtime. What is still under way at the end of it ends
/// with the runtime, and does not disturb the next turn.
fn turn(
    spec: &ContentionSpec,
    kind: Kind,
    urls: &[String],
    round: usize,
    plan: &Plan,
) -> Result<Tally, String> {
    if let Kind::Peer(peer) = kind {
        let work = Work::Contend {
            tasks: CONTENDERS,
            hold: spec.hold,
        };
        return peers::turn(peer, urls, work, plan.contest);
    }
    let runtime = one_thread_runtime()?;
    let contest = Contest {
        // A new name for each turn: an acquire that is cut off at the end of a turn may leave a
        // lock behind.
        name: format!("{}/{}/{round:04}", spec.row, kind.prefix()),
        contenders: CONTENDERS,
        clients: spec.clients,
        start: Start::AtOnce,
        hold: spec.hold,
        length: plan.contest,
    };
    let tally = runtime.block_on(async {
        match kind {
            Kind::Ideal => ideal(urls, plan.contest).await,
            _ => contend(kind, urls, contest).await,
        }
    });
    runtime.shutdown_background();
    tally
}

/// The upper bound for hand-overs is one round trip after each hold. This measures how many times
/// a second a single connection can do both, one after the other.
async fn ideal(urls: &[String], length: Duration) -> Result<Tally, String> {
    let raw = Raw::connect(urls).await?;
    raw.round_trip().await?;
    let (start, mut handovers) = (Instant::now(), 0);
    let (mut longest, mut waited) = (Duration::ZERO, Duration::ZERO);
    while start.elapsed() < length {
        let asked = Instant::now();
        raw.round_trip().await?;
        longest = longest.max(asked.elapsed());
        waited += asked.elapsed();
        hold(HOLD).await?;
        handovers += 1;
    }
    let (length, count) = (
        start.elapsed(),
        u32::try_from(handovers).unwrap_or(1).max(1),
    );
    Ok(Tally {
        length,
        pairs: handovers,
        handovers,
        mean_wait: waited / count,
        longest_wait: longest,
        held: (length - waited) / count,
        errors: 0,
    })
}
