//! The results as JSON, for comparing runs.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::plots::PERCENTS;
use crate::args::Plan;
use crate::pin;
use crate::scenarios::contention::ContentionResult;
use crate::scenarios::faults::{FaultResult, FaultTurn, Latency};
use crate::scenarios::sheet::Sheet;
use crate::scenarios::throughput::ThroughputResult;
use crate::scenarios::{Column, Results};
use crate::stats::{Spread, percentile};
use crate::tally::Tally;
use crate::targets::Verdict;

/// Writes `out/latest.json` beside this crate's manifest.
pub(crate) fn write_json(
    plan: &Plan,
    results: &Results,
    verdicts: &[Verdict],
) -> std::io::Result<PathBuf> {
    let path = super::out_dir()?.join("latest.json");
    let report = json!({
        "servers": results.servers,
        "cores": pin::core_count(),
        "others_share_of_machine": results.noise,
        "quick": plan.quick,
        "rounds": plan.rounds,
        "turn_ms": ms(plan.turn),
        "fault_rounds": plan.fault_rounds,
        "contest_rounds": plan.contest_rounds,
        "contest_ms": ms(plan.contest),
        "crowd_rounds": plan.crowd_rounds,
        "held_rounds": plan.held_rounds,
        "throughput": results.throughput.iter().map(throughput).collect::<Vec<_>>(),
        "faults": results.faults.iter().map(faults).collect::<Vec<_>>(),
        "contention": results.contention.iter().map(contention).collect::<Vec<_>>(),
        "sheets": results.sheets.iter().map(sheet).collect::<Vec<_>>(),
        "missing_peers": results.missing.iter().map(missing).collect::<Vec<_>>(),
        "skipped": results.skipped.iter().map(skipped).collect::<Vec<_>>(),
        "verdicts": verdicts.iter().map(verdict).collect::<Vec<_>>(),
    });
    std::fs::write(&path, format!("{report:#}\n"))?;
    Ok(path)
}

fn throughput(result: &ThroughputResult) -> Value {
    let columns = result.columns.iter().map(|column| {
        let summary = result.rate(column.kind).map(spread);
        let mut value = turns(column, "pairs_per_s", summary, |turn| json!(turn.per_s));
        value["acquire_us"] = latencies(&result.latencies(column.kind));
        value
    });
    json!({
        "id": result.spec.id,
        "row": result.spec.row,
        "work": result.spec.work,
        "contenders": columns.collect::<Vec<_>>(),
    })
}

/// By percentage, or `null` if they were not measured.
fn latencies(latencies: &[Duration]) -> Value {
    let points = PERCENTS.into_iter().map(|percent| {
        let latency = percentile(latencies, percent)?;
        Some((percent.to_string(), json!(ms(latency) * 1e3)))
    });
    points
        .collect::<Option<_>>()
        .map_or(Value::Null, Value::Object)
}

fn faults(result: &FaultResult) -> Value {
    let columns = result
        .columns
        .iter()
        .map(|column| turns(column, "acquire_ms", None, fault_turn));
    json!({
        "id": result.spec.id,
        "row": 5,
        "work": result.spec.work,
        "contenders": columns.collect::<Vec<_>>(),
    })
}

fn contention(result: &ContentionResult) -> Value {
    let columns = result.columns.iter().map(|column| {
        let rate = result.figure(column.kind, Tally::handovers_per_s);
        turns(column, "turns", rate.map(spread), contest_turn)
    });
    json!({
        "id": result.spec.id,
        "row": result.spec.row,
        "work": result.spec.work,
        "contenders": columns.collect::<Vec<_>>(),
    })
}

fn sheet(sheet: &Sheet) -> Value {
    let lines = sheet.lines.iter().map(|line| {
        let mut value = turns(&line.column, "turns", None, |figures| {
            figures
                .iter()
                .map(|(name, figure)| ((*name).to_owned(), json!(figure)))
                .collect()
        });
        value[sheet.variable] = json!(line.at);
        value
    });
    json!({
        "id": sheet.id,
        "row": sheet.row,
        "work": sheet.work,
        "contenders": lines.collect::<Vec<_>>(),
        "notes": sheet.notes,
    })
}

fn contest_turn(tally: &Tally) -> Value {
    json!({
        "handovers_per_s": tally.handovers_per_s(),
        "pairs_per_s": tally.pairs_per_s(),
        "mean_wait_ms": ms(tally.mean_wait),
        "longest_wait_ms": ms(tally.longest_wait),
        "held_ms": ms(tally.held),
        "errors": tally.errors,
    })
}

fn fault_turn(turn: &FaultTurn) -> Value {
    let latency = |latency: &Latency| {
        json!({
            "median": ms(latency.median),
            "p99": ms(latency.p99),
            "locks": latency.locks,
        })
    };
    json!({
        "healthy": latency(&turn.healthy),
        "first": ms(turn.first),
        "after": latency(&turn.after),
    })
}

/// A contender's turns. A turn that was cut off is `{"cut_off": why}`.
fn turns<T>(
    column: &Column<T>,
    unit: &str,
    summary: Option<Value>,
    show: impl Fn(&T) -> Value,
) -> Value {
    let rounds = column.turns.iter().map(|turn| match turn {
        Ok(turn) => show(turn),
        Err(why) => json!({ "cut_off": why }),
    });
    json!({
        "name": column.kind.label(),
        "summary": summary,
        unit: rounds.collect::<Vec<_>>(),
    })
}

fn missing((peer, why): &(&'static str, String)) -> Value {
    json!({ "name": peer, "why": why })
}

fn skipped((id, why): &(&'static str, String)) -> Value {
    json!({ "id": id, "why": why })
}

fn verdict(verdict: &Verdict) -> Value {
    json!({
        "row": verdict.row,
        "work": verdict.work,
        "figure": verdict.figure,
        "unit": verdict.unit.trim(),
        "value": verdict.value.map(spread),
        "target": verdict.target,
        "verdict": verdict.outcome.label(),
    })
}

fn spread(spread: Spread) -> Value {
    json!({ "median": spread.median, "min": spread.min, "max": spread.max })
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
