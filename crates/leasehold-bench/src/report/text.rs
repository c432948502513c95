//! The results as Markdown tables.

use std::fmt::Write;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};

use super::contention;
use crate::args::Plan;
use crate::contenders::Kind;
use crate::pin;
use crate::scenarios::faults::{FaultResult, FaultTurn};
use crate::scenarios::pairs::Pairs;
use crate::scenarios::sheet::Sheet;
use crate::scenarios::throughput::ThroughputResult;
use crate::scenarios::{Column, Results};
use crate::stats::Spread;
use crate::targets::Verdict;

/// A warning is printed if other programs use more than this share of the machine's time.
const QUIET: f64 = 0.05;

/// What a quick run leaves out.
const QUICK_RUN: &str = "\nA quick run: peers with their best settings only, with one turn each in rows 6 and 7, \
                         only npm's in row 4 and none in row 2; fewer waiters in row 9; rslock not in \
                         rows 10 and 12";

/// The whole report.
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
        section("The same for peers that are separate programs", table);
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
    for sheet in &results.sheets {
        let title = format!("{}: median (min–max) of the rounds", sheet.work);
        section(&title, sheet_table(sheet));
    }
    if !verdicts.is_empty() {
        section("Targets: the median decides", targets(verdicts));
    }
    format!("{}\n{out}\n{}", heading(plan, results), notes(results))
}

fn heading(plan: &Plan, results: &Results) -> String {
    let mut heading = format!(
        "{}, {} cores, {} rounds of {:?} per contender (rows 6 to 8: {} of {:?}; row 5: {}; rows 9, 10 \
         and 12: {}; row 11: {}){}",
        results.servers,
        pin::core_count(),
        plan.rounds,
        plan.turn,
        plan.contest_rounds,
        plan.contest,
        plan.fault_rounds,
        plan.crowd_rounds,
        plan.held_rounds,
        if plan.quick { QUICK_RUN } else { "" },
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
pub(super) fn rate(result: &ThroughputResult, column: &Column<Pairs>) -> String {
    let Some(rate) = result.rate(column.kind) else {
        return column.mark().unwrap_or("–").into();
    };
    let mark = column.mark().map(|mark| format!(" {mark}"));
    spread(rate, grouped) + &mark.unwrap_or_default()
}

/// A contender's name, and whether it was cut off in some round.
pub(super) fn marked<T>(column: &Column<T>) -> String {
    let mark = column.mark().map(|mark| format!(", {mark}"));
    column.kind.label().to_owned() + &mark.unwrap_or_default()
}

/// A name, and its figure.
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
            let mut row = vec![result.spec.work.to_owned(), marked(column)];
            for (_, figure) in FIGURES {
                let value = result.figure(column.kind, |turn| figure(turn).as_secs_f64() * 1e3);
                row.push(value.map_or("–".into(), |value| spread(value, short)));
            }
            table.add_row(row);
        }
    }
    table
}

fn sheet_table(sheet: &Sheet) -> Table {
    let turns = sheet.lines.iter().flat_map(|line| &line.column.turns);
    let names = turns.flatten().next();
    let names: Vec<_> = names.into_iter().flatten().map(|(name, _)| *name).collect();
    let header = [sheet.variable, "contender"].into_iter();
    let mut table = new_table(header.chain(names.iter().copied()));
    for line in &sheet.lines {
        let mut row = vec![exact(line.at as u64), marked(&line.column)];
        row.extend(names.iter().map(|name| {
            let value = sheet.figure(line.at, line.column.kind, name);
            value.map_or("–".into(), |value| spread(value, concise))
        }));
        table.add_row(row);
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
                .map_or("–".into(), |value| spread(value, concise) + unit),
            verdict.target.clone(),
            verdict.outcome.label().to_owned(),
        ]);
    }
    table
}

/// Notes that do not fit into the tables.
fn notes(results: &Results) -> String {
    let mut notes = String::new();
    for result in &results.throughput {
        each_trouble(&mut notes, result.spec.work, &result.columns);
    }
    for result in &results.faults {
        each_trouble(&mut notes, result.spec.work, &result.columns);
    }
    for result in &results.contention {
        each_trouble(&mut notes, result.spec.work, &result.columns);
    }
    for sheet in &results.sheets {
        for line in &sheet.lines {
            let work = format!("{}, {} {}", sheet.work, line.at, sheet.variable);
            each_trouble(&mut notes, &work, std::slice::from_ref(&line.column));
        }
        for note in &sheet.notes {
            let _ = writeln!(notes, "- #{}: {note}", sheet.row);
        }
    }
    for (peer, why) in &results.missing {
        let _ = writeln!(notes, "- SKIPPED: {peer}: {why}");
    }
    for (id, why) in &results.skipped {
        let _ = writeln!(notes, "- Skipped: {id}: {why}");
    }
    notes
}

fn each_trouble<T>(notes: &mut String, work: &str, columns: &[Column<T>]) {
    for column in columns {
        if let (Some(mark), Some(why)) = (column.mark(), column.trouble()) {
            let _ = writeln!(notes, "- {mark}: {work}, {}: {why}", column.kind.label());
        }
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

/// With a precision that depends on the size of the value.
pub(super) fn concise(value: f64) -> String {
    if value < 1000.0 {
        short(value)
    } else {
        grouped(value)
    }
}

/// Three digits or whole hundreds (`12 300`), and whole tenths of millions. More digits would be
/// noise.
pub(super) fn grouped(value: f64) -> String {
    let step = match value {
        ..1e3 => 1.0,
        ..1e6 => 100.0,
        _ => 1e5,
    };
    exact(((value / step).round() * step) as u64)
}

/// Every digit, `12 345`.
pub(super) fn exact(number: u64) -> String {
    match (number / 1000, number % 1000) {
        (0, rest) => rest.to_string(),
        (thousands, rest) => format!("{} {rest:03}", exact(thousands)),
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
        assert_eq!(grouped(1_270_300.0), "1 300 000");
        assert_eq!([0.8512, 12.34, 501.2].map(short), ["0.85", "12.3", "501"]);
    }
}
