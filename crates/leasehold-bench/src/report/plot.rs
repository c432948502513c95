//! Line charts as SVG: panels side by side, a line for each contender.

use std::fmt::Write;

use super::text::{exact, short};
use crate::contenders::Kind;
use crate::stats::Spread;

const PANEL_WIDTH: f64 = 430.0;
const HEIGHT: f64 = 330.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 26.0;
const TOP: f64 = 62.0;
const BOTTOM: f64 = 52.0;

/// The meaning of a coordinate.
pub(super) struct Axis {
    label: &'static str,
    from: f64,
    to: f64,
    log: bool,
    ticks: Vec<(f64, String)>,
}

/// One contender's line. Each point has an x value, a median and a spread.
pub(super) struct Series {
    pub(super) kind: Kind,
    pub(super) points: Vec<(f64, Spread)>,
}

/// One chart.
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) series: Vec<Series>,
}

impl Axis {
    /// A logarithmic axis from one power of ten to another, around all values except zero.
    pub(super) fn log(label: &'static str, values: impl Iterator<Item = f64>) -> Self {
        let logs = values.filter(|value| *value > 0.0).map(f64::log10);
        let (least, most) = range(logs).unwrap_or((0.0, 1.0));
        let (from, to) = (least.floor(), most.ceil().max(least.floor() + 1.0));
        let ticks = (from as i32..=to as i32).map(|power| {
            let value = 10_f64.powi(power);
            (value, tick(value))
        });
        Self {
            label,
            from: 10_f64.powf(from),
            to: 10_f64.powf(to),
            log: true,
            ticks: ticks.collect(),
        }
    }

    /// From zero to the largest value.
    pub(super) fn linear(label: &'static str, values: impl Iterator<Item = f64>) -> Self {
        let most = values.fold(0.0, f64::max).max(f64::MIN_POSITIVE);
        let rough = most / 5.0;
        let power = 10_f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        let step = steps
            .into_iter()
            .find(|step| *step >= rough)
            .unwrap_or(rough);
        let count = (most / step).ceil() as usize;
        let ticks = (0..=count).map(|index| step * index as f64);
        let ticks = ticks.map(|value| (value, tick(value)));
        Self::with_ticks(label, ticks.collect())
    }

    /// From the first of these ticks to the last.
    pub(super) fn with_ticks(label: &'static str, ticks: Vec<(f64, String)>) -> Self {
        let (from, to) = range(ticks.iter().map(|(value, _)| *value)).unwrap_or((0.0, 1.0));
        Self {
            label,
            from,
            to,
            log: false,
            ticks,
        }
    }

    /// The position of a value between the ends, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let scaled = |value: f64| match self.log {
            true => value.max(f64::MIN_POSITIVE).log10(),
            false => value,
        };
        let (from, to) = (scaled(self.from), scaled(self.to));
        ((scaled(value) - from) / (to - from)).clamp(0.0, 1.0)
    }
}

fn tick(value: f64) -> String {
    match value.fract() {
        0.0 => exact(value as u64),
        _ => short(value),
    }
}

fn range(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let spread = Spread::of(values)?;
    Some((spread.min, spread.max))
}

/// The charts, side by side.
pub(super) fn render(title: &str, panels: &[Panel]) -> String {
    let width = PANEL_WIDTH * panels.len() as f64;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"20\" font-size=\"15\">{}</text>\n",
        escaped(title)
    );
    for (index, panel) in panels.iter().enumerate() {
        let _ = writeln!(
            out,
            "<g transform=\"translate({} 0)\">",
            PANEL_WIDTH * index as f64
        );
        panel.draw(&mut out);
        out.push_str("</g>\n");
    }
    out.push_str("</svg>\n");
    out
}

impl Panel {
    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        let across = PANEL_WIDTH - LEFT - RIGHT;
        let down = HEIGHT - TOP - BOTTOM;
        let (x, y) = (self.x.place(x), self.y.place(y));
        (LEFT + across * x, TOP + down * (1.0 - y))
    }

    fn draw(&self, out: &mut String) {
        let _ = writeln!(
            out,
            "<text x=\"{LEFT}\" y=\"42\">{}</text>",
            escaped(&self.title)
        );
        self.draw_axes(out);
        for series in &self.series {
            self.draw_series(out, series);
        }
        // Above the lines, with a margin that keeps it readable.
        for (index, series) in self.series.iter().enumerate() {
            let _ = writeln!(
                out,
                "<text x=\"{}\" y=\"{}\" fill=\"{}\" stroke=\"white\" stroke-width=\"4\" \
                 paint-order=\"stroke\">{}</text>",
                LEFT + 8.0,
                TOP + 14.0 + 15.0 * index as f64,
                colour(series.kind),
                escaped(series.kind.label()),
            );
        }
    }

    fn draw_axes(&self, out: &mut String) {
        let (bottom, right) = (HEIGHT - BOTTOM, PANEL_WIDTH - RIGHT);
        for (value, label) in &self.x.ticks {
            let (x, _) = self.at(*value, self.y.from);
            let _ = writeln!(
                out,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\" stroke=\"#e5e5e5\"/>\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
                bottom + 16.0
            );
        }
        for (value, label) in &self.y.ticks {
            let (_, y) = self.at(self.x.from, *value);
            let _ = writeln!(
                out,
                "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#e5e5e5\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                LEFT - 6.0,
                y + 4.0
            );
        }
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n\
             <text x=\"8\" y=\"{}\">{}</text>",
            (LEFT + right) / 2.0,
            HEIGHT - 14.0,
            escaped(self.x.label),
            TOP - 8.0,
            escaped(self.y.label),
        );
    }

    /// The line connects the medians, and thin strokes show the spreads.
    fn draw_series(&self, out: &mut String, series: &Series) {
        let colour = colour(series.kind);
        let mut line = String::new();
        for &(x, Spread { median, min, max }) in &series.points {
            let ((x_at, y), (_, low), (_, high)) =
                (self.at(x, median), self.at(x, min), self.at(x, max));
            let _ = write!(line, "{x_at:.1},{y:.1} ");
            let _ = writeln!(
                out,
                "<line x1=\"{x_at:.1}\" x2=\"{x_at:.1}\" y1=\"{low:.1}\" y2=\"{high:.1}\" stroke=\"{colour}\"/>"
            );
        }
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            line.trim_end(),
        );
    }
}

/// The colour of a contender, the same in all charts.
pub(super) fn colour(kind: Kind) -> &'static str {
    match kind {
        Kind::Leasehold => "#c2410c",
        Kind::LeaseholdUnfenced => "#f59e0b",
        Kind::Ideal => "#d4d4d4",
        Kind::Raw => "#525252",
        Kind::Rslock => "#1d4ed8",
        Kind::RslockNodelay | Kind::Rslock2Ms => "#0e7490",
        Kind::Rslock5Ms | Kind::Peer(_) => "#64748b",
    }
}

pub(super) fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;");
    text.replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_enclose_their_values() {
        let log = Axis::log("", [0.0, 30.0, 2000.0].into_iter());
        assert_eq!((log.from, log.to, log.ticks.len()), (10.0, 10_000.0, 4));
        assert!((log.place(100.0) - 1.0 / 3.0).abs() < 1e-9);
        let linear = Axis::linear("", [3.0, 870.0].into_iter());
        assert_eq!((linear.from, linear.to), (0.0, 1000.0));
        assert_eq!(linear.place(500.0), 0.5);
    }

    #[test]
    fn a_chart_without_values_is_valid() {
        let panel = Panel {
            title: "a < b".into(),
            x: Axis::log("", std::iter::empty()),
            y: Axis::linear("", std::iter::empty()),
            series: Vec::new(),
        };
        let chart = render("", &[panel]);
        assert!(
            chart.contains("a &lt; b") && !chart.contains("NaN"),
            "{chart}"
        );
    }
}
