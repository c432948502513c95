//! The targets of rows 9 to 16.

use super::{Bound, Verdict};
use crate::contenders::Kind;
use crate::scenarios::sheet::Sheet;
use crate::scenarios::{far, held, idle, local, nodes, permits, readers, tool, waiters};
use crate::stats::Spread;

/// The largest value that `top` rounds to 0.0 %.
const NOT_MEASURABLE_PERCENT: f64 = 0.05;
/// At least two leases in a request are a batch.
const BATCHED: f64 = 2.0;

pub(super) fn judge(sheet: &Sheet) -> Vec<Verdict> {
    match sheet.id {
        waiters::ID => handovers(sheet),
        nodes::ID => costs(sheet),
        held::ID => leases(sheet),
        idle::ID => waiting(sheet),
        local::ONE_TASK => {
            let value = figure(sheet, 1, local::PAIRS);
            let bound = Bound::AtLeast(25_000.0);
            vec![judged(sheet, "pairs per second".into(), "", bound, value)]
        }
        local::PROCESSES => starvation(sheet),
        permits::ID => busy(sheet),
        readers::ID => {
            let value = figure(sheet, 1, readers::RATIO);
            let bound = Bound::AtMost(2.0);
            vec![judged(sheet, readers::RATIO.into(), " ×", bound, value)]
        }
        far::ID => {
            let value = figure(sheet, 1, far::SHARE);
            let bound = Bound::AtLeast(0.33);
            vec![judged(sheet, far::SHARE.into(), " ×", bound, value)]
        }
        tool::ID => {
            let verdict = |name: &'static str, bound| {
                let value = figure(sheet, 1, name);
                judged(sheet, name.into(), " ×", bound, value)
            };
            vec![
                verdict(tool::ON_REDIS, Bound::AtMost(2.0)),
                verdict(tool::EMBEDDED, Bound::AtMost(1.6)),
            ]
        }
        _ => Vec::new(),
    }
}

fn judged(
    sheet: &Sheet,
    figure: String,
    unit: &'static str,
    bound: Bound,
    value: Option<Spread>,
) -> Verdict {
    let ours = |kind| kind == Kind::Leasehold;
    let mut lines = sheet.lines.iter().filter(|line| ours(line.column.kind));
    let sound = lines.all(|line| line.column.trouble().is_none());
    Verdict {
        row: sheet.row,
        work: sheet.work,
        figure,
        unit,
        value,
        target: bound.text(unit),
        outcome: bound.judge(value, sound),
    }
}

fn figure(sheet: &Sheet, at: usize, figure: &str) -> Option<Spread> {
    sheet.figure(at, Kind::Leasehold, figure)
}

/// The ratio from the fewest waiters to the most.
fn handovers(sheet: &Sheet) -> Vec<Verdict> {
    let steps = sheet.steps(Kind::Leasehold);
    let (Some(&fewest), Some(&most)) = (steps.first(), steps.last()) else {
        return Vec::new();
    };
    let growth = sheet.growth(Kind::Leasehold, waiters::COST, fewest, most);
    let figure = format!("time per hand-over, {most} / {fewest} waiters");
    vec![judged(sheet, figure, " ×", Bound::AtMost(1.3), growth)]
}

/// For each number of nodes, compared with one.
fn costs(sheet: &Sheet) -> Vec<Verdict> {
    let several = sheet
        .steps(Kind::Leasehold)
        .into_iter()
        .filter(|&nodes| nodes > 1);
    let verdicts = several.map(|nodes| {
        let growth = sheet.growth(Kind::Leasehold, nodes::BOTH, 1, nodes);
        let figure = format!("time per pair, {nodes} nodes / 1");
        judged(sheet, figure, " ×", Bound::AtMost(nodes as f64), growth)
    });
    verdicts.collect()
}

fn leases(sheet: &Sheet) -> Vec<Verdict> {
    let verdict = |name: &'static str, unit, bound| {
        let value = figure(sheet, held::LEASES, name);
        judged(sheet, name.into(), unit, bound, value)
    };
    vec![
        verdict(held::BYTES, "", Bound::AtMost(1024.0)),
        verdict(held::CORES, "", Bound::AtMost(1.0)),
        verdict(held::BATCH, "", Bound::AtLeast(BATCHED)),
        verdict(held::LOST, "", Bound::AtMost(0.0)),
    ]
}

fn waiting(sheet: &Sheet) -> Vec<Verdict> {
    let verdicts = sheet.steps(Kind::Leasehold).into_iter().flat_map(|nodes| {
        let verdict = |name: &str, unit, bound| {
            let value = figure(sheet, nodes, name);
            judged(sheet, format!("{name}; nodes: {nodes}"), unit, bound, value)
        };
        let idle = Bound::AtMost(NOT_MEASURABLE_PERCENT);
        [
            verdict(idle::CLIENT, "", idle),
            verdict(idle::REQUESTS, "", Bound::AtMost(1.0)),
        ]
    });
    verdicts.collect()
}

/// On several nodes, hand-overs follow each other at one per round trip.
fn busy(sheet: &Sheet) -> Vec<Verdict> {
    let verdicts = sheet.steps(Kind::Leasehold).into_iter().map(|nodes| {
        let bound = match nodes {
            1 => Bound::AtLeast(95.0),
            _ => Bound::AtLeast(90.0),
        };
        let value = figure(sheet, nodes, permits::BUSY);
        judged(
            sheet,
            format!("{}; nodes: {nodes}", permits::BUSY),
            "",
            bound,
            value,
        )
    });
    verdicts.collect()
}

/// No process gets less than half of the average share, or waits ten times the average.
fn starvation(sheet: &Sheet) -> Vec<Verdict> {
    let steps = sheet.steps(Kind::Leasehold).into_iter();
    let verdicts = steps.flat_map(|processes| {
        let verdict = |name: &'static str, bound| {
            let value = figure(sheet, processes, name);
            judged(sheet, name.into(), " ×", bound, value)
        };
        [
            verdict(local::SHARE, Bound::AtLeast(0.5)),
            verdict(local::LONGEST, Bound::AtMost(10.0)),
        ]
    });
    verdicts.collect()
}
