//! Bar charts: one of the throughput of all scenarios, and one for each figure of each scenario with
//! contention.

use std::fmt::Write;

use super::plot::{colour, escaped};
use super::text::short;
use crate::contenders::Kind;
use crate::scenarios::contention::ContentionResult;
use crate::scenarios::throughput::ThroughputResult;
use crate::stats::Spread;
use crate::tally::Tally;

const LABEL_WIDTH: f64 = 170.0;
const BAR_WIDTH: f64 = 480.0;
const WIDTH: f64 = LABEL_WIDTH + BAR_WIDTH + 80.0;
const LINE: f64 = 24.0;
const TOP: f64 = 44.0;

/// A bar: its label and its length. `None` if there is no figure.
struct Bar {
    kind: Kind,
    value: Option<Spread>,
}

/// A chart of the throughput of all scenarios, each with a scale of its own.
pub(super) fn of_throughput(results: &[ThroughputResult]) -> String {
    let charts = results.iter().map(|result| {
        let kinds = result.columns.iter().map(|column| column.kind);
        let bars = kinds.map(|kind| Bar {
            kind,
            value: result.rate(kind),
        });
        let title = format!("{}: pairs per second, more is better", result.spec.work);
        (title, bars.collect())
    });
    document(&charts.collect::<Vec<_>>())
}

/// All charts of scenarios with contention, each with its name.
pub(super) fn all(results: &[ContentionResult]) -> Vec<(String, String)> {
    results.iter().flat_map(of_scenario).collect()
}

fn of_scenario(result: &ContentionResult) -> [(String, String); 2] {
    let handovers = bars(result, Tally::handovers_per_s);
    let mut waits = bars(result, |turn| turn.longest_wait.as_secs_f64() * 1e3);
    // The ideal contender never waits.
    waits.retain(|bar| bar.kind != Kind::Ideal);
    let named = |figure: &str, title: &str, bars: Vec<Bar>| {
        let name = format!("{figure}-row-{}", result.spec.row);
        let title = format!("{}: {title}", result.spec.work);
        (name, document(&[(title, bars)]))
    };
    [
        named(
            "handovers",
            "hand-overs per second, more is better",
            handovers,
        ),
        named("longest-wait", "longest wait in ms, less is better", waits),
    ]
}

fn bars(result: &ContentionResult, figure: fn(&Tally) -> f64) -> Vec<Bar> {
    let kinds = result.columns.iter().map(|column| column.kind);
    kinds
        .map(|kind| Bar {
            kind,
            value: result.figure(kind, figure),
        })
        .collect()
}

/// Charts below each other: the bar is the median, and the thin line goes from the minimum to the
/// maximum.
fn document(charts: &[(String, Vec<Bar>)]) -> String {
    let height: f64 = charts.iter().map(|(_, bars)| height(bars)).sum();
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let mut top = 0.0;
    for (title, bars) in charts {
        chart(&mut out, title, bars, top);
        top += self::height(bars);
    }
    out.push_str("</svg>\n");
    out
}

fn height(bars: &[Bar]) -> f64 {
    TOP + LINE * bars.len() as f64 + 12.0
}

fn chart(out: &mut String, title: &str, bars: &[Bar], top: f64) {
    let most = bars.iter().filter_map(|bar| bar.value);
    let most = most
        .map(|value| value.max)
        .fold(f64::MIN_POSITIVE, f64::max);
    let (title, text) = (escaped(title), top + 26.0);
    let _ = writeln!(
        out,
        "<text x=\"12\" y=\"{text}\" font-size=\"15\">{title}</text>"
    );
    for (index, bar) in bars.iter().enumerate() {
        let top = top + TOP + LINE * index as f64;
        line(out, bar, top, BAR_WIDTH / most);
    }
}

fn line(out: &mut String, bar: &Bar, top: f64, scale: f64) {
    let (text, middle) = (top + 15.0, top + 10.0);
    let label = escaped(bar.kind.label());
    let _ = writeln!(
        out,
        "<text x=\"{}\" y=\"{text}\" text-anchor=\"end\">{label}</text>",
        LABEL_WIDTH - 8.0
    );
    let Some(Spread { median, min, max }) = bar.value else {
        let _ = writeln!(out, "<text x=\"{LABEL_WIDTH}\" y=\"{text}\">cut off</text>");
        return;
    };
    let colour = colour(bar.kind);
    let at = |value: f64| LABEL_WIDTH + value * scale;
    let _ = writeln!(
        out,
        "<rect x=\"{LABEL_WIDTH}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"18\" fill=\"{colour}\"/>\n\
         <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle}\" y2=\"{middle}\" stroke=\"black\"/>\n\
         <text x=\"{:.1}\" y=\"{text}\">{}</text>",
        median * scale,
        at(min),
        at(max),
        at(max) + 6.0,
        short(median),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contender_that_was_cut_off_has_no_bar() {
        let bar = |kind, value| Bar { kind, value };
        let bars = vec![
            bar(Kind::Leasehold, Spread::of([1.0, 2.0, 4.0])),
            bar(Kind::Rslock, None),
        ];
        let chart = document(&[("a < b".into(), bars)]);
        assert!(chart.contains("a &lt; b") && chart.contains("cut off"));
        assert!(
            chart.contains("width=\"240.0\""),
            "half of the longest: {chart}"
        );
    }
}
