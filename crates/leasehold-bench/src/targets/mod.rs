//! The targets, and how the results compare with them.

mod contention;
mod sheets;

use std::time::Duration;

use crate::contenders::Kind;
use crate::pin::Placement;
use crate::scenarios::faults::{FaultResult, FaultTurn};
use crate::scenarios::throughput::{ThroughputResult, ThroughputSpec};
use crate::scenarios::{Column, Results};
use crate::stats::Spread;

/// leasehold's default for a TTL of 10 s: 5 % of it, at most 250 ms.
const NODE_TIMEOUT: Duration = Duration::from_millis(250);

/// The result of a comparison with a target. Medians decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    Miss,
    /// leasehold itself failed or hung in some round, whatever the other results are.
    Failed,
    /// There is nothing to compare with: the other contender failed or hung.
    Unmeasured,
}

impl Outcome {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Miss => "MISS",
            Self::Failed => "FAILED",
            Self::Unmeasured => "–",
        }
    }
}

/// One result with its target.
pub(crate) struct Verdict {
    pub(crate) row: u8,
    pub(crate) work: &'static str,
    /// The compared figure, such as `leasehold / raw`.
    pub(crate) figure: String,
    pub(crate) unit: &'static str,
    pub(crate) value: Option<Spread>,
    pub(crate) target: String,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    /// `sound` means that leasehold completed every round. A median of only the completed rounds
    /// would be too favourable.
    fn judge(self, value: Option<Spread>, sound: bool) -> Outcome {
        if !sound {
            return Outcome::Failed;
        }
        let Some(Spread { median, .. }) = value else {
            return Outcome::Unmeasured;
        };
        match self {
            Self::AtLeast(least) if median >= least => Outcome::Ok,
            Self::AtMost(most) if median <= most => Outcome::Ok,
            Self::AtLeast(_) | Self::AtMost(_) => Outcome::Miss,
        }
    }

    fn text(self, unit: &str) -> String {
        match self {
            Self::AtLeast(least) => format!("≥ {least}{unit}"),
            Self::AtMost(most) => format!("≤ {most}{unit}"),
        }
    }
}

/// The throughput targets of a scenario: compared with raw, and with rslock.
fn throughput_targets(spec: &ThroughputSpec) -> Option<(Bound, Bound)> {
    use Bound::AtLeast;
    Some(match spec.row {
        // The rest is what a script costs the server.
        1 => (AtLeast(0.83), AtLeast(0.92)),
        2 => (AtLeast(0.9), AtLeast(1.2)),
        3 if spec.placement == Placement::SameCore => (AtLeast(0.9), AtLeast(1.0)),
        3 => (AtLeast(0.9), AtLeast(1.5)),
        4 => (AtLeast(1.1), AtLeast(1.5)),
        _ => return None,
    })
}

/// The targets of a row for locks without fencing: compared with raw, and with rslock.
fn unfenced_targets(row: u8) -> (Option<Bound>, Option<Bound>) {
    use Bound::AtLeast;
    match row {
        1 => (Some(AtLeast(0.95)), Some(AtLeast(1.0))),
        2 => (Some(AtLeast(1.1)), None),
        _ => (None, None),
    }
}

/// An additional target of row 4: the ratio to npm's redlock.
const NPM_REDLOCK: Bound = Bound::AtLeast(3.0);

/// Compares all results with their targets.
pub(crate) fn judge(results: &Results) -> Vec<Verdict> {
    let throughput = results.throughput.iter().flat_map(judge_throughput);
    let faults = results.faults.iter().flat_map(judge_faults);
    let contention = results.contention.iter().flat_map(contention::judge);
    let sheets = results.sheets.iter().flat_map(sheets::judge);
    let all = throughput.chain(faults).chain(contention).chain(sheets);
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|verdict| verdict.row);
    all
}

fn judge_throughput(result: &ThroughputResult) -> Vec<Verdict> {
    let spec = result.spec;
    let sound = is_sound(&result.columns);
    let compare = |ours: Kind, other: Kind, bound: Bound| {
        let value = result.ratio(ours, other);
        Verdict {
            row: spec.row,
            work: spec.work,
            figure: format!("{} / {}", ours.label(), other.label()),
            unit: " ×",
            value,
            target: bound.text(" ×"),
            outcome: bound.judge(value, sound),
        }
    };
    let rslock = best_rslock(result);
    let fenced =
        throughput_targets(spec).map_or((None, None), |(raw, rslock)| (Some(raw), Some(rslock)));
    let pairs = [
        (Kind::Leasehold, fenced),
        (Kind::LeaseholdUnfenced, unfenced_targets(spec.row)),
    ];
    let verdicts = pairs.into_iter().flat_map(|(ours, (raw, best))| {
        let raw = raw.map(|bound| compare(ours, Kind::Raw, bound));
        raw.into_iter()
            .chain(best.map(|bound| compare(ours, rslock, bound)))
    });
    let mut verdicts: Vec<_> = verdicts.collect();
    if spec.row == 4
        && let Some(npm) = fastest_npm(result)
    {
        verdicts.push(compare(Kind::Leasehold, npm, NPM_REDLOCK));
    }
    verdicts
}

/// The faster of npm's redlocks. `None` if none took part.
fn fastest_npm(result: &ThroughputResult) -> Option<Kind> {
    let kinds = result.columns.iter().map(|column| column.kind);
    let npm = kinds.filter(|kind| matches!(kind, Kind::Peer(peer) if peer.is_npm()));
    let median = |kind: &Kind| result.rate(*kind).map_or(0.0, |rate| rate.median);
    npm.max_by(|one, other| median(one).total_cmp(&median(other)))
}

/// The faster of rslock's two settings.
fn best_rslock(result: &ThroughputResult) -> Kind {
    let median = |kind| result.rate(kind).map_or(0.0, |rate| rate.median);
    if median(Kind::RslockNodelay) > median(Kind::Rslock) {
        Kind::RslockNodelay
    } else {
        Kind::Rslock
    }
}

fn is_sound<T>(columns: &[Column<T>]) -> bool {
    let mut ours = columns
        .iter()
        .filter(|column| column.kind == Kind::Leasehold);
    ours.all(|column| column.trouble().is_none())
}

fn judge_faults(result: &FaultResult) -> Vec<Verdict> {
    let sound = is_sound(&result.columns);
    let judged = |figure: &str, unit, bound: Bound, value: fn(&FaultTurn) -> f64| {
        let value = result.figure(Kind::Leasehold, value);
        Verdict {
            row: 5,
            work: result.spec.work,
            figure: figure.into(),
            unit,
            value,
            target: bound.text(unit),
            outcome: bound.judge(value, sound),
        }
    };
    let timeout_ms = NODE_TIMEOUT.as_secs_f64() * 1e3;
    vec![
        judged("median / healthy", " ×", Bound::AtMost(1.2), |turn| {
            turn.after.median.as_secs_f64() / turn.healthy.median.as_secs_f64()
        }),
        judged("p99 / healthy", " ×", Bound::AtMost(2.0), |turn| {
            turn.after.p99.as_secs_f64() / turn.healthy.p99.as_secs_f64()
        }),
        judged("first lock", " ms", Bound::AtMost(timeout_ms), |turn| {
            turn.first.as_secs_f64() * 1e3
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_decide() {
        let judge = |bound: Bound, median| bound.judge(Spread::of([median]), true);
        assert_eq!(judge(Bound::AtLeast(0.9), 0.9), Outcome::Ok);
        assert_eq!(judge(Bound::AtLeast(0.9), 0.89), Outcome::Miss);
        assert_eq!(judge(Bound::AtMost(2.0), 2.1), Outcome::Miss);
    }

    #[test]
    fn a_failure_of_leasehold_is_not_a_missing_figure() {
        let bound = Bound::AtMost(2.0);
        assert_eq!(bound.judge(None, true), Outcome::Unmeasured);
        assert_eq!(bound.judge(Spread::of([1.0]), false), Outcome::Failed);
    }
}
