//! The plots, and which results they show.

use std::path::PathBuf;

use super::bars;
use super::plot::{Axis, Panel, Series, render};
use crate::contenders::Kind;
use crate::scenarios::Results;
use crate::scenarios::sheet::Sheet;
use crate::scenarios::throughput::ThroughputResult;
use crate::scenarios::{nodes, waiters};
use crate::stats::{Spread, percentile};

/// Writes all plots into the directory of the JSON file.
pub(crate) fn write_plots(results: &Results) -> std::io::Result<Vec<PathBuf>> {
    let mut charts: Vec<(String, String)> = bars::all(&results.contention);
    if !results.throughput.is_empty() {
        charts.push(("pairs".into(), bars::of_throughput(&results.throughput)));
    }
    let latencies: Vec<_> = results.throughput.iter().filter_map(latency).collect();
    if !latencies.is_empty() {
        let title = "Latency of an acquire, one task, by percentile";
        charts.push(("latency".into(), render(title, &latencies)));
    }
    for sheet in &results.sheets {
        let chart = match sheet.id {
            waiters::ID => (
                "waiters",
                "No hold, one client per waiter, one node",
                by_waiters(sheet),
            ),
            nodes::ID => (
                "nodes",
                "Processor time per pair, one task",
                by_nodes(sheet),
            ),
            _ => continue,
        };
        charts.push((chart.0.into(), render(chart.1, &chart.2)));
    }
    let mut written = Vec::new();
    for (name, chart) in charts {
        let path = super::out_dir()?.join(format!("{name}.svg"));
        std::fs::write(&path, chart)?;
        written.push(path);
    }
    Ok(written)
}

/// The percentages at which latencies are shown. 0, 90, 99 and 99.9 are equally far apart.
pub(super) const PERCENTS: [f64; 14] = [
    0.0, 25.0, 50.0, 75.0, 85.0, 90.0, 95.0, 97.0, 98.0, 99.0, 99.5, 99.7, 99.8, 99.9,
];

fn nines(percent: f64) -> f64 {
    -(1.0 - percent / 100.0).log10()
}

fn latency(result: &ThroughputResult) -> Option<Panel> {
    let kinds = result.columns.iter().map(|column| column.kind);
    let series = kinds.filter_map(|kind| {
        let latencies = result.latencies(kind);
        let points = PERCENTS.into_iter().map(|percent| {
            let latency = percentile(&latencies, percent)?.as_secs_f64() * 1e6;
            Some((nines(percent), Spread::of([latency])?))
        });
        let points = points.collect::<Option<_>>()?;
        Some(Series { kind, points })
    });
    let series: Vec<Series> = series.collect();
    let marks = [(0.0, "0"), (90.0, "90"), (99.0, "99"), (99.9, "99.9")];
    let marks = marks.map(|(percent, label)| (nines(percent), label.to_owned()));
    (!series.is_empty()).then(|| Panel {
        title: result.spec.work.into(),
        x: Axis::with_ticks("% of acquires", marks.into()),
        y: Axis::log("µs", values(&series)),
        series,
    })
}

fn by_waiters(sheet: &Sheet) -> [Panel; 2] {
    let panel = |figure: &'static str, title: &str| {
        let series = series(sheet, figure);
        Panel {
            title: title.into(),
            x: Axis::log("waiters", xs(&series)),
            y: Axis::log(figure, values(&series)),
            series,
        }
    };
    [
        panel(waiters::HANDOVERS, "more is better"),
        panel(waiters::LONGEST, "less is better"),
    ]
}

fn by_nodes(sheet: &Sheet) -> [Panel; 2] {
    let panel = |figure: &'static str| {
        let series = series(sheet, figure);
        let sizes = sheet.steps(Kind::Leasehold).into_iter();
        let mut marks: Vec<_> = sizes.map(|size| (size as f64, size.to_string())).collect();
        marks.insert(0, (0.0, "0".into()));
        Panel {
            title: figure.into(),
            x: Axis::with_ticks("nodes", marks),
            y: Axis::linear("µs", values(&series)),
            series,
        }
    };
    [panel(nodes::CLIENT), panel(nodes::SERVERS)]
}

fn series(sheet: &Sheet, figure: &str) -> Vec<Series> {
    let kinds = sheet.kinds().into_iter();
    let series = kinds.map(|kind| {
        let steps = sheet.steps(kind).into_iter();
        let points = steps.filter_map(|at| Some((at as f64, sheet.figure(at, kind, figure)?)));
        let points = points.collect();
        Series { kind, points }
    });
    series.collect()
}

fn xs(series: &[Series]) -> impl Iterator<Item = f64> {
    series
        .iter()
        .flat_map(|one| one.points.iter().map(|point| point.0))
}

fn values(series: &[Series]) -> impl Iterator<Item = f64> {
    let points = series.iter().flat_map(|one| &one.points);
    points.flat_map(|(_, spread)| [spread.min, spread.max])
}
