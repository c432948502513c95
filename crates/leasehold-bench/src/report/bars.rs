//! Bar charts, one file for each figure of each scenario with contention.

use std::fmt::Write;

use super::plot::{colour, escaped};
use super::text::short;
use crate::contenders::Kind;
use crate::scenarios::contention::ContentionResult;
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

/// All charts, each with its name.
pub(super) fn all(results: &[ContentionResult]) -> Vec<(String, String)> {
    results.iter().flat_map(of_scenario).collect()
}

fn of_scenario(result: &ContentionResult) -> [(String, String); 2] {
    let handovers = bars(result, Tally::handovers_per_s);
    let mut waits = bars(result, |turn| turn.longest_wait.as_secs_f64() * 1e3);
    // The ideal contender never waits.
    waits.retain(|bar| bar.kind != Kind::Ideal);
    let named = |figure: &str, title: &str, bars: &[Bar]| {
        let name = format!("{figure}-row-{}", result.spec.row);
        (name, chart(&format!("{}: {title}", result.spec.work), bars))
    };
    [
        named(
            "handovers",
            "hand-overs per second, more is better",
            &handovers,
        ),
        named("longest-wait", "longest wait in ms, less is better", &waits),
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

/// A chart: the bar is the median, and the thin line goes from the minimum to the maximum.
fn chart(title: &str, bars: &[Bar]) -> String {
    let height = TOP + LINE * bars.len() as f64 + 12.0;
    let most = bars.iter().filter_map(|bar| bar.value);
    let most = most
        .map(|value| value.max)
        .fold(f64::MIN_POSITIVE, f64::max);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"26\" font-size=\"15\">{}</text>\n",
        escaped(title)
    );
    for (index, bar) in bars.iter().enumerate() {
        line(&mut out, bar, TOP + LINE * index as f64, BAR_WIDTH / most);
    }
    out.push_str("</svg>\n");
    out
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
        let bars = [
            bar(Kind::Leasehold, Spread::of([1.0, 2.0, 4.0])),
            bar(Kind::Rslock, None),
        ];
        let chart = chart("a < b", &bars);
        assert!(chart.contains("a &lt; b") && chart.contains("cut off"));
        assert!(
            chart.contains("width=\"240.0\""),
            "half of the longest: {chart}"
        );
    }
}
