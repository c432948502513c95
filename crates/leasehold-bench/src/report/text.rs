//! The results as tables that can be pasted into a Markdown file.

use std::fmt::Write;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};

use super::contention;
use crate::args::Plan;
use crate::contenders::Kind;
use crate::pin;
use crate::scenarios::faults::{FaultResult, FaultTurn};
use crate::scenarios::throughput::ThroughputResult;
use crate::scenarios::{Column, Results};
use crate::stats::Spread;
use crate::targets::{UNMEASURED, Verdict};

/// Above this share of the machine's time in other programs, a warning is given.
const QUIET: f64 = 0.05;

/// Everything that was found.
pub(crate) fn text(plan: &Plan, results: &Results, verdicts: &[Verdict]) -> String {
    let mut out = String::new();
    let mut section = |title: &str, table: Table| {
        let _ = write!(out, "\n{title}\n\n{table}\n");
    };
    if !results.throughput.is_empty() {
        section(
            "Pairs of acquire and release per second: median (min–max) of the rounds",
            rates(&results.throughput),
        );
    }
    if let Some(table) = contention::peer_rates(&results.throughput) {
        section("The same of peers that are programs of their own", table);
    }
    for result in &results.contention {
        let title = format!("{}: median (min–max) of the rounds", result.spec.work);
        section(&title, contention::table(result));
    }
    if !results.faults.is_empty() {
        section(
            "Latency of an acquire, in ms: median (min–max) of the rounds",
            latencies(&results.faults),
        );
    }
    if !verdicts.is_empty() {
        section("Targets: the median decides", targets(verdicts));
    }
    format!("{}\n{out}\n{}", heading(plan, results), notes(results))
}

fn heading(plan: &Plan, results: &Results) -> String {
    let mut heading = format!(
        "{}, {} cores, {} rounds of {:?} per contender ({} with faults; {} of {:?} with contention){}",
        results.servers,
        pin::core_count(),
        plan.rounds,
        plan.turn,
        plan.fault_rounds,
        plan.contest_rounds,
        plan.contest,
        if plan.quick { ", quick" } else { "" },
    );
    if let Some(noise) = results.noise {
        let percent = noise * 100.0;
        let _ = write!(
            heading,
            "\nOther programs used {percent:.0} % of the machine"
        );
        if noise > QUIET {
            heading.push_str(": TOO BUSY to rely on these figures");
        }
    }
    heading
}

fn rates(results: &[ThroughputResult]) -> Table {
    let header = ["#", "work"]
        .into_iter()
        .chain(Kind::UNCONTENDED.map(Kind::label));
    let mut table = new_table(header);
    for result in results {
        let mut row = vec![result.spec.row.to_string(), result.spec.work.to_owned()];
        let columns = result.columns.iter().take(Kind::UNCONTENDED.len());
        row.extend(columns.map(|column| rate(result, column)));
        table.add_row(row);
    }
    table
}

/// Pairs per second of one contender, and whether it was cut off in some round.
pub(super) fn rate(result: &ThroughputResult, column: &Column<f64>) -> String {
    let Some(rate) = result.rate(column.kind) else {
        return "CUT OFF".into();
    };
    let mark = column.trouble().map_or("", |_| " CUT OFF");
    spread(rate, grouped) + mark
}

/// A name, and the figure that goes by it.
type Figure = (&'static str, fn(&FaultTurn) -> Duration);

const FIGURES: [Figure; 5] = [
    ("healthy", |turn| turn.healthy.median),
    ("p99", |turn| turn.healthy.p99),
    ("first lock", |turn| turn.first),
    ("then", |turn| turn.after.median),
    ("p99", |turn| turn.after.p99),
];

fn latencies(results: &[FaultResult]) -> Table {
    let header = ["work", "contender"].into_iter();
    let mut table = new_table(header.chain(FIGURES.map(|(name, _)| name)));
    for result in results {
        for column in &result.columns {
            let mut row = vec![result.spec.work.to_owned(), column.kind.label().to_owned()];
            for (_, figure) in FIGURES {
                let value = result.figure(column.kind, |turn| figure(turn).as_secs_f64() * 1e3);
                row.push(value.map_or("CUT OFF".into(), |value| spread(value, short)));
            }
            table.add_row(row);
        }
    }
    table
}

fn targets(verdicts: &[Verdict]) -> Table {
    let mut table = new_table(["#", "work", "figure", "measured", "target", "verdict"]);
    for verdict in verdicts {
        let unit = verdict.unit;
        table.add_row([
            verdict.row.to_string(),
            verdict.work.to_owned(),
            verdict.figure.clone(),
            verdict
                .value
                .map_or("–".into(), |value| spread(value, short) + unit),
            verdict.target.clone(),
            verdict.outcome.label().to_owned(),
        ]);
    }
    table
}

/// What the tables cannot say.
fn notes(results: &Results) -> String {
    let mut notes = String::new();
    let mut cut_off = |work: &str, kind: Kind, why: Option<&str>| {
        if let Some(why) = why {
            let _ = writeln!(notes, "- CUT OFF: {work}, {}: {why}", kind.label());
        }
    };
    for result in &results.throughput {
        each_trouble(&result.columns, |kind, why| {
            cut_off(result.spec.work, kind, why)
        });
    }
    for result in &results.faults {
        each_trouble(&result.columns, |kind, why| {
            cut_off(result.spec.work, kind, why)
        });
    }
    for result in &results.contention {
        each_trouble(&result.columns, |kind, why| {
            cut_off(result.spec.work, kind, why)
        });
    }
    for (peer, why) in &results.missing {
        let _ = writeln!(notes, "- SKIPPED: {peer}: {why}");
    }
    for (id, why) in &results.skipped {
        let _ = writeln!(notes, "- Skipped: {id}: {why}");
    }
    let rows = results.throughput.iter().map(|result| result.spec.row);
    let rows: Vec<u8> = rows.collect();
    for (row, target, why) in UNMEASURED {
        if rows.contains(&row) {
            let _ = writeln!(notes, "- Not measured: #{row}, {target}: {why}");
        }
    }
    notes
}

fn each_trouble<T>(columns: &[Column<T>], mut tell: impl FnMut(Kind, Option<&str>)) {
    for column in columns {
        tell(column.kind, column.trouble());
    }
}

pub(super) fn new_table(header: impl IntoIterator<Item = &'static str>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(header.into_iter().collect::<Vec<_>>());
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

pub(super) fn spread(spread: Spread, show: impl Fn(f64) -> String) -> String {
    let Spread { median, min, max } = spread;
    format!("{} ({}–{})", show(median), show(min), show(max))
}

/// Two decimals for small values, fewer for large ones.
pub(super) fn short(value: f64) -> String {
    match value {
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Three digits, or whole hundreds, `12 300`: more would be noise.
pub(super) fn grouped(value: f64) -> String {
    let step = if value < 1000.0 { 1.0 } else { 100.0 };
    let rounded = ((value / step).round() * step) as u64;
    match (rounded / 1000, rounded % 1000) {
        (0, rest) => rest.to_string(),
        (thousands, rest) => format!("{thousands} {rest:03}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_as_precisely_as_they_are_known() {
        assert_eq!(grouped(128_049.0), "128 000");
        assert_eq!(grouped(36_050.0), "36 100");
        assert_eq!(grouped(449.4), "449");
        assert_eq!([0.8512, 12.34, 501.2].map(short), ["0.85", "12.3", "501"]);
    }
}
