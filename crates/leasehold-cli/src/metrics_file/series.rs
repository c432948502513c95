//! The series of a metrics file, and the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;

/// A metric, with one series for each of its outcomes, or one series without that label.
struct Family {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    outcomes: &'static [&'static str],
    about: About,
}

/// What a series describes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum About {
    /// All runs that use the file. Each of them adds to it.
    AllRuns,
    /// The last run that acquired the lock. Only that run changes it.
    LastHolder,
}

/// How a run ends.
const RUN_OUTCOMES: &[&str] = &[
    "success",
    "failed",
    "time_limit",
    "lost",
    "held",
    "no_majority",
    "error",
];
const RENEWAL_OUTCOMES: &[&str] = &["ok", "failed"];

pub(super) const RUNS: &str = "leasehold_runs_total";
pub(super) const LAST_END: &str = "leasehold_run_last_end_time_seconds";
pub(super) const LAST_START: &str = "leasehold_run_last_start_time_seconds";
pub(super) const HOLDING: &str = "leasehold_run_holding";
pub(super) const DEADLINE: &str = "leasehold_run_deadline_time_seconds";
pub(super) const TOKEN: &str = "leasehold_run_token";
pub(super) const WAIT: &str = "leasehold_run_acquire_wait_seconds";
pub(super) const HOLD: &str = "leasehold_run_hold_seconds";
pub(super) const EXIT_CODE: &str = "leasehold_run_exit_code";
pub(super) const RENEWALS: &str = "leasehold_run_renewals_total";
pub(super) const SLACK: &str = "leasehold_run_lease_slack_seconds";

/// Every metric, in the order of the file. docs/observability.md lists them.
const FAMILIES: &[Family] = &[
    of_all_runs(
        RUNS,
        "counter",
        "Runs that ended, by how they ended",
        RUN_OUTCOMES,
    ),
    of_all_runs(
        LAST_END,
        "gauge",
        "When a run last ended in this way; 0 if none did",
        RUN_OUTCOMES,
    ),
    of_all_runs(RENEWALS, "counter", "Renewals of leases", RENEWAL_OUTCOMES),
    of_last(
        HOLDING,
        "1 while the last run holds the lock, 0 when it does not",
    ),
    of_last(LAST_START, "When the last run acquired the lock"),
    of_last(
        DEADLINE,
        "Until when the last run relies or relied on its lease, unless it is renewed",
    ),
    of_last(TOKEN, "The fencing token of the last run"),
    of_last(WAIT, "How long the last run waited for the lock"),
    of_last(
        SLACK,
        "The least that was left of the lease when a renewal of the last run ended",
    ),
    of_last(HOLD, "How long the last run that ended held the lock"),
    of_last(EXIT_CODE, "The exit code of the last run that ended"),
];

const fn of_all_runs(
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    outcomes: &'static [&'static str],
) -> Family {
    Family {
        name,
        kind,
        help,
        outcomes,
        about: About::AllRuns,
    }
}

const fn of_last(name: &'static str, help: &'static str) -> Family {
    Family {
        name,
        kind: "gauge",
        help,
        outcomes: &[""],
        about: About::LastHolder,
    }
}

/// A metric and an outcome, which is empty if the metric has none.
type Series = (&'static str, &'static str);

/// How a series changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Op {
    Add(f64),
    Set(f64),
    /// Sets it, unless it is lower.
    Lower(f64),
    Remove,
}

impl Op {
    fn apply(self, old: Option<f64>) -> Option<f64> {
        match self {
            Self::Add(more) => Some(old.unwrap_or_default() + more),
            Self::Set(value) => Some(value),
            Self::Lower(value) => Some(old.map_or(value, |old| old.min(value))),
            Self::Remove => None,
        }
    }

    /// The change that has the effect of this one and then `next`.
    fn then(self, next: Self) -> Self {
        match (self, next) {
            (Self::Add(one), Self::Add(more)) => Self::Add(one + more),
            (Self::Lower(one), Self::Lower(other)) => Self::Lower(one.min(other)),
            (_, Self::Set(_) | Self::Remove) => next,
            (before, _) => next.apply(before.apply(None)).map_or(next, Self::Set),
        }
    }
}

/// Changes that are not in the file yet.
#[derive(Clone, Default, Debug)]
pub(super) struct Change(BTreeMap<Series, Op>);

impl Change {
    /// Adds the change of a metric without outcomes.
    pub(super) fn and(self, metric: &'static str, op: Op) -> Self {
        self.and_of(metric, "", op)
    }

    /// Adds the change of a metric for one outcome.
    pub(super) fn and_of(mut self, metric: &'static str, outcome: &'static str, op: Op) -> Self {
        self.add((metric, outcome), op);
        self
    }

    fn add(&mut self, series: Series, op: Op) {
        let before = self.0.get(&series);
        let op = before.map_or(op, |before| before.then(op));
        self.0.insert(series, op);
    }

    pub(super) fn append(&mut self, later: Self) {
        for (series, op) in later.0 {
            self.add(series, op);
        }
    }

    /// The token of a lease that these changes begin with.
    pub(super) fn token(&self) -> Option<f64> {
        let op = self.0.get(&(TOKEN, ""));
        op.and_then(|op| op.apply(None))
    }
}

/// The values of all series for one lock.
pub(super) struct Values {
    /// The name of the lock, escaped.
    label: String,
    values: BTreeMap<Series, f64>,
}

impl Values {
    /// Reads the values from an earlier file. Other lines, also those about another lock, do not
    /// count.
    pub(super) fn parse(text: &str, name: &str) -> Self {
        let label = escape(name);
        let mut values = BTreeMap::new();
        for (key, value) in text.lines().filter_map(|line| line.rsplit_once(' ')) {
            let value = value.parse().ok().filter(|value: &f64| value.is_finite());
            let series = all().find(|series| key == key_of(*series, &label));
            if let (Some(series), Some(value)) = (series, value) {
                values.insert(series, value);
            }
        }
        Self { label, values }
    }

    pub(super) fn get(&self, name: &'static str) -> Option<f64> {
        self.values.get(&(name, "")).copied()
    }

    /// Makes the changes. Those about the last holder only if this run is it.
    pub(super) fn apply(&mut self, change: &Change, is_last_holder: bool) {
        for family in FAMILIES {
            if family.about == About::LastHolder && !is_last_holder {
                continue;
            }
            for series in family.series() {
                let Some(op) = change.0.get(&series) else {
                    continue;
                };
                match op.apply(self.values.get(&series).copied()) {
                    Some(value) => self.values.insert(series, value),
                    None => self.values.remove(&series),
                };
            }
        }
    }

    /// The text of the file.
    pub(super) fn render(&self) -> String {
        let mut text = String::new();
        for family in FAMILIES {
            let values = family.series().filter_map(|series| {
                // `increase` does not see a counter that begins with 1.
                let starts_at_0 = family.about == About::AllRuns || family.name == HOLDING;
                let value = self.values.get(&series).copied();
                Some((series, value.or(starts_at_0.then_some(0.0))?))
            });
            let values: Vec<_> = values.collect();
            if values.is_empty() {
                continue;
            }
            let Family {
                name, kind, help, ..
            } = family;
            // Writing to a `String` cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (series, value) in values {
                let _ = writeln!(text, "{} {value}", key_of(series, &self.label));
            }
        }
        text
    }
}

impl Family {
    fn series(&self) -> impl Iterator<Item = Series> {
        self.outcomes.iter().map(|outcome| (self.name, *outcome))
    }
}

fn all() -> impl Iterator<Item = Series> {
    FAMILIES.iter().flat_map(Family::series)
}

/// The series as in the file.
fn key_of((metric, outcome): Series, label: &str) -> String {
    match outcome {
        "" => format!("{metric}{{name=\"{label}\"}}"),
        _ => format!("{metric}{{name=\"{label}\",outcome=\"{outcome}\"}}"),
    }
}

/// Escapes the value of a label.
fn escape(value: &str) -> String {
    let value = value.replace('\\', "\\\\");
    value.replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(text: &str, name: &str, change: &Change) -> String {
        let mut values = Values::parse(text, name);
        values.apply(change, true);
        values.render()
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let change = Change::default()
            .and_of(RUNS, "held", Op::Add(2.0))
            .and(TOKEN, Op::Set(1_700_000_000_123.0))
            .and(SLACK, Op::Lower(1.25));
        for name in ["a", "a b", "x\"} 5\n# \\n", "ü\r"] {
            let text = after("", name, &change);
            assert_eq!(Values::parse(&text, name).render(), text);
            assert_eq!(Values::parse(&text, name).get(SLACK), Some(1.25));
            let other = Values::parse(&text, "another");
            assert!(other.values.is_empty(), "{text}");
        }
        let text = after("", "x\"\n\\", &Change::default());
        let line = "leasehold_runs_total{name=\"x\\\"\\n\\\\\",outcome=\"held\"} 0\n";
        assert!(text.contains(line), "{text}");
        for broken in [
            "",
            "leasehold_run_holding{name=\"a\"} NaN",
            "x",
            "\0 \u{fffd}",
        ] {
            assert!(Values::parse(broken, "a").values.is_empty());
        }
    }

    /// Changes that are made together have the same effect as one after the other.
    #[test]
    fn changes_can_be_joined() {
        let ops = [
            Op::Add(1.0),
            Op::Set(5.0),
            Op::Lower(2.0),
            Op::Lower(7.0),
            Op::Remove,
        ];
        for first in ops {
            for second in ops {
                for old in [None, Some(3.0)] {
                    // No series is both counted and measured.
                    let counts = |op| matches!(op, Op::Add(_));
                    if counts(first) != counts(second) {
                        continue;
                    }
                    let separate = second.apply(first.apply(old));
                    let joined = first.then(second).apply(old);
                    assert_eq!(joined, separate, "{first:?} {second:?} {old:?}");
                }
            }
        }
    }

    #[test]
    fn only_the_last_holder_changes_what_describes_it() {
        let change = Change::default()
            .and_of(RUNS, "held", Op::Add(1.0))
            .and(EXIT_CODE, Op::Set(75.0));
        let mut values = Values::parse("", "a");
        values.apply(&change, false);
        assert_eq!(values.get(EXIT_CODE), None);
        assert_eq!(values.values.get(&(RUNS, "held")), Some(&1.0));
    }
}
