//! Reports about a lock: text on stderr, or events as JSON.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io::{IsTerminal, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anstyle::{AnsiColor, Style};
use leasehold::node::Vote;
use leasehold::{Holder, NodeOutcome, NodeReport, Sighting};
use serde::Serialize;

use crate::args::ReportArgs;
use crate::exit::Failure;
use crate::held::Held;
use crate::messages;
use crate::metrics_file::MetricsFile;
use crate::output::{stdout_has_no_reader, stdout_is_closed, write_event, write_stderr};

/// Prints text to stderr, in colour if stderr is a terminal that supports it.
pub(crate) fn print_message(text: impl AsRef<str>) {
    for line in text.as_ref().lines() {
        print_line(line);
    }
}

fn print_line(text: &str) {
    let (word, rest) = match text.split_once(": ") {
        Some((word @ ("error" | "warning"), rest)) => (Some(word), rest),
        _ => (None, text),
    };
    let colour = match word {
        Some("error") => Style::new().fg_color(Some(AnsiColor::Red.into())).bold(),
        _ => Style::new().fg_color(Some(AnsiColor::Yellow.into())).bold(),
    };
    write_stderr(match word {
        Some(word) => format!("leasehold: {colour}{word}:{colour:#} {rest}"),
        None => format!("leasehold: {rest}"),
    });
}

/// The state of stdout after a write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stdout {
    Open,
    /// The reader has closed the pipe.
    Closed,
}

/// Writes to stdout. A closed pipe is not an error.
pub(crate) fn print_stdout(text: &[u8]) -> std::io::Result<Stdout> {
    if stdout_is_closed() && !text.is_empty() {
        return Err(std::io::Error::other("stdout is closed"));
    }
    let mut out = std::io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        // A write of nothing does not notice.
        Ok(()) if stdout_has_no_reader() => Ok(Stdout::Closed),
        Ok(()) => Ok(Stdout::Open),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(Stdout::Closed),
        Err(error) => Err(error),
    }
}

/// An event of `--json` and `--events-fd`.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event<'a> {
    Waiting {
        /// The lock that is held, if this process wants several.
        #[serde(skip_serializing_if = "Option::is_none")]
        lock: Option<&'a str>,
        holder: Option<HolderJson>,
        /// The number of waiters ahead of this one.
        #[serde(skip_serializing_if = "Option::is_none")]
        before: Option<u32>,
        waited_ms: u64,
        /// During an outage: the error of each node.
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        nodes: &'a [NodeJson],
    },
    /// The wait started again, after this process was stopped or too little of the lease was left.
    Resumed,
    /// The command replaces this process and runs under the lease of an enclosing `leasehold run`.
    Inherited {
        token: u64,
    },
    Acquired {
        token: u64,
        /// The tokens of all locks, if there are several.
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        tokens: &'a [u64],
        deadline_ms: u64,
        waited_ms: u64,
    },
    Started {
        pid: i32,
    },
    Signal {
        signal: &'a str,
    },
    Stopping {
        why: &'a str,
        signal: &'a str,
    },
    /// The lease was lost, or the command is being stopped because the lease cannot be renewed.
    Lost {
        /// The lock whose lease was lost, if it is one of several and known.
        #[serde(skip_serializing_if = "Option::is_none")]
        lock: Option<&'a str>,
        why: &'a str,
        /// The current holder, if the nodes report one.
        #[serde(skip_serializing_if = "Option::is_none")]
        holder: Option<HolderJson>,
        /// The error of each node, if errors are the cause.
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        nodes: &'a [NodeJson],
    },
    Exited {
        code: Option<i32>,
        signal: Option<&'a str>,
    },
    Released {
        held_ms: u64,
        was_lost: bool,
    },
    /// The output of the command was stored.
    Stored {
        bytes: usize,
        for_ms: u64,
    },
    /// The stored output of another run is printed.
    Found {
        token: u64,
        bytes: usize,
        age_ms: u64,
    },
    /// The next campaign of `elect` begins after this time.
    Pausing {
        pause_ms: u64,
    },
    Error {
        code: u8,
        message: &'a str,
    },
    /// Something failed that does not affect the lock or the command.
    Warning {
        message: &'a str,
    },
}

#[derive(Serialize)]
struct Line<'a> {
    time_ms: u64,
    name: &'a str,
    /// All names, if there are several.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    names: &'a [String],
    #[serde(flatten)]
    event: Event<'a>,
}

/// The error of a node, in events.
#[derive(Clone, PartialEq, Serialize)]
pub(crate) struct NodeJson {
    node: String,
    error: String,
}

impl NodeJson {
    /// The errors of all nodes that failed or do not vote yet. If there are none, the nodes that have
    /// not answered.
    pub(crate) fn failing(reports: &[NodeReport]) -> Vec<Self> {
        let failed = Self::failed(reports);
        match failed.is_empty() {
            true => Self::select(reports, |outcome| *outcome == NodeOutcome::Pending),
            false => failed,
        }
    }

    /// The errors of all nodes that failed or do not vote yet.
    pub(crate) fn failed(reports: &[NodeReport]) -> Vec<Self> {
        Self::select(reports, |outcome| {
            matches!(
                outcome,
                NodeOutcome::Failed(_) | NodeOutcome::Voted(Vote::Quarantined { .. })
            )
        })
    }

    fn select(reports: &[NodeReport], is_wanted: fn(&NodeOutcome) -> bool) -> Vec<Self> {
        let reports = reports.iter().filter(|report| is_wanted(&report.outcome));
        let reports = reports.map(|report| Self {
            node: report.node.clone(),
            error: messages::node_outcome(&report.outcome),
        });
        reports.collect()
    }

    /// Formats the errors for the end of a message. Empty if there are none.
    pub(crate) fn list(nodes: &[Self]) -> String {
        let text = |node: &Self| format!("{}: {}", node.node, node.error);
        match nodes {
            [] => String::new(),
            nodes => format!(
                " ({})",
                nodes.iter().map(text).collect::<Vec<_>>().join("; ")
            ),
        }
    }
}

/// The holder of a lock, in events and JSON output.
#[derive(Serialize)]
pub(crate) struct HolderJson {
    host: Option<String>,
    pid: Option<u32>,
    label: Option<String>,
    token: Option<u64>,
    since_ms: Option<u64>,
    /// The holder has released the lock, and the name is kept.
    kept: bool,
    /// The stored result.
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<ResultJson>,
    /// The holder shares the lock with others.
    shared: bool,
}

/// A stored result, without its bytes.
#[derive(Serialize)]
pub(crate) struct ResultJson {
    at_ms: u64,
    bytes: usize,
}

impl HolderJson {
    /// The holder of an inspected lock.
    pub(crate) fn of(lock: &Sighting) -> Self {
        Self {
            since_ms: lock.since().map(unix_ms),
            ..Self::from(&lock.holder)
        }
    }
}

impl From<&Holder> for HolderJson {
    fn from(holder: &Holder) -> Self {
        Self {
            host: holder.host.clone(),
            pid: holder.pid,
            label: holder.label.clone(),
            token: holder.token,
            since_ms: holder.since().map(unix_ms),
            kept: holder.kept,
            result: holder.result.as_ref().map(|result| ResultJson {
                at_ms: unix_ms(result.at),
                bytes: result.bytes.len(),
            }),
            shared: holder.shared,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Quiet,
    Normal,
    Verbose,
    Json,
}

/// Reports what happens to a lock, or to several that are held together, at the level that the user
/// chose.
#[derive(Clone)]
pub(crate) struct Reporter {
    level: Level,
    /// At least one.
    names: Vec<String>,
    /// Records the events, too.
    metrics: Option<MetricsFile>,
}

impl Reporter {
    pub(crate) fn new(
        args: &ReportArgs,
        names: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Self {
        if let Some(events) = &args.events_fd {
            events.install();
        }
        let level = match args {
            ReportArgs { json: true, .. } => Level::Json,
            ReportArgs { quiet: true, .. } => Level::Quiet,
            ReportArgs { verbose: true, .. } => Level::Verbose,
            _ => Level::Normal,
        };
        let name = |name: &OsStr| name.to_string_lossy().into_owned();
        let names = names.into_iter().map(|one| name(one.as_ref())).collect();
        Self {
            level,
            names,
            metrics: None,
        }
    }

    /// From now on, the events are recorded in this file, too.
    pub(crate) fn record(&mut self, metrics: MetricsFile) {
        self.metrics = Some(metrics);
    }

    pub(crate) fn metrics(&self) -> Option<&MetricsFile> {
        self.metrics.as_ref()
    }

    /// All names, for a message: `` `a`, `b` and `c` ``.
    pub(crate) fn names(&self) -> String {
        let quoted: Vec<_> = self.names.iter().map(|name| format!("`{name}`")).collect();
        match &*quoted {
            [before @ .., last] if !before.is_empty() => {
                format!("{} and {last}", before.join(", "))
            }
            one => one.concat(),
        }
    }

    /// All names, or none if there is only one.
    fn several(&self) -> &[String] {
        match &*self.names {
            [_] => &[],
            names => names,
        }
    }

    /// Whether there are several names, so that an event or a message about one of them names it.
    pub(crate) fn has_several(&self) -> bool {
        !self.several().is_empty()
    }

    /// Reports a step, which is printed with `-v`.
    pub(crate) fn step(&self, event: Event<'_>, text: impl FnOnce() -> String) {
        self.report(event, &[Level::Verbose], text);
    }

    /// Prints a text only at the default level. With `-v`, [`step`](Self::step) has printed it.
    pub(crate) fn notice(&self, text: impl FnOnce() -> String) {
        if self.level == Level::Normal {
            print_message(text());
        }
    }

    /// Reports an error, or what is done to the command because of one. Always printed.
    pub(crate) fn warn(&self, event: Event<'_>, text: impl FnOnce() -> String) {
        self.report(event, &[Level::Verbose, Level::Normal, Level::Quiet], text);
    }

    /// Reports that the locks were acquired.
    pub(crate) fn acquired(&self, held: &Held<'_>, waited: Duration) {
        let tokens: Vec<_> = held.tokens().collect();
        let event = Event::Acquired {
            token: tokens.first().copied().unwrap_or_default(),
            tokens: match self.has_several() {
                true => &tokens,
                false => &[],
            },
            deadline_ms: unix_ms(SystemTime::now() + held.remaining()),
            waited_ms: millis(waited),
        };
        self.step(event, || {
            let text: Vec<_> = tokens.iter().map(ToString::to_string).collect();
            let word = match &*tokens {
                [_] => "token",
                _ => "tokens",
            };
            format!("acquired {}, {word} {}", self.names(), text.join(", "))
        });
    }

    /// Reports why this process exits.
    pub(crate) fn fail(&self, failure: &Failure) {
        let (code, message) = (failure.code, &*failure.text);
        let event = Event::Error { code, message };
        match failure.held {
            _ if message.is_empty() => {}
            // Contention is not an error.
            true => {
                let levels = [Level::Verbose, Level::Normal];
                self.report(event, &levels, || message.to_owned());
            }
            false => self.warn(event, || format!("error: {message}")),
        }
    }

    /// Whether a progress line can be drawn.
    pub(crate) fn is_live(&self) -> bool {
        matches!(self.level, Level::Normal | Level::Verbose) && std::io::stderr().is_terminal()
    }

    /// Writes the event, and prints the text at the given levels.
    fn report(&self, event: Event<'_>, levels: &[Level], text: impl FnOnce() -> String) {
        if levels.contains(&self.level) {
            print_message(text());
        }
        if let Some(metrics) = &self.metrics {
            metrics.event(&event);
        }
        let line = Line {
            time_ms: unix_ms(SystemTime::now()),
            name: self.names.first().map_or("", String::as_str),
            names: self.several(),
            event,
        };
        // Text and numbers can always be serialised.
        if let Ok(line) = serde_json::to_string(&line) {
            write_event(&line);
            if self.level == Level::Json {
                write_stderr(line);
            }
        }
    }
}

pub(crate) fn unix_ms(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    millis(since)
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Formats a duration with at most two units, and with milliseconds only below a second.
pub(crate) fn short(duration: Duration) -> String {
    const DAY: u64 = 24 * 3600;
    let seconds = duration.as_secs();
    let rounded = match seconds {
        0 => Duration::from_millis(millis(duration)),
        1..3600 => Duration::from_secs(seconds),
        3600..DAY => Duration::from_secs(seconds / 60 * 60),
        _ => Duration::from_secs(seconds % DAY / 3600 * 3600),
    };
    let days = match seconds / DAY {
        0 => return humantime::format_duration(rounded).to_string(),
        1 => "1day".to_owned(),
        days => format!("{days}days"),
    };
    match rounded.is_zero() {
        true => days,
        false => format!("{days} {}", humantime::format_duration(rounded)),
    }
}

/// Formats the value of an option: not rounded, and one word, which the option accepts.
pub(crate) fn exact(duration: Duration) -> String {
    const DAY: u64 = 24 * 3600;
    let (days, seconds) = (duration.as_secs() / DAY, duration.as_secs() % DAY);
    let rest = Duration::new(seconds, duration.subsec_nanos());
    let ms = millis(rest);
    let is_fraction = rest.subsec_nanos() > 0 && rest == Duration::from_millis(ms);
    let rest = match seconds {
        ..60 if is_fraction => format!("{ms}ms"),
        0 if rest.is_zero() && days > 0 => String::new(),
        _ => humantime::format_duration(rest)
            .to_string()
            .replace(' ', ""),
    };
    match days {
        0 => rest,
        1 => format!("1day{rest}"),
        days => format!("{days}days{rest}"),
    }
}

/// As [`short`], but rounds to the nearest second instead of down: for a period that has just
/// started.
pub(crate) fn nearest(duration: Duration) -> String {
    match duration < Duration::from_secs(1) {
        true => short(duration),
        false => short(duration + Duration::from_millis(500)),
    }
}

/// Escapes characters that are not visible and would change how the text around them is shown: control
/// characters, marks of the direction of writing, separators of lines, and spaces without a width.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    let is_hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
                | '\u{feff}' | '\u{61c}' | '\u{ad}')
    };
    if !text.contains(is_hidden) {
        return text.into();
    }
    let mut escaped = String::new();
    for c in text.chars() {
        match is_hidden(c) {
            true => escaped.extend(c.escape_default()),
            false => escaped.push(c),
        }
    }
    escaped.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_at_most_two_units() {
        let text = |ms| short(Duration::from_millis(ms));
        assert_eq!(text(0), "0s");
        assert_eq!(text(123), "123ms");
        assert_eq!(text(61_900), "1m 1s");
        assert_eq!(text(3_661_000), "1h 1m");
        assert_eq!(text(90_000_000), "1day 1h");
        assert_eq!(text(9_000 * 86_400_000), "9000days");
        let text = |ms| nearest(Duration::from_millis(ms));
        assert_eq!(text(4_990), "5s");
        assert_eq!(text(4_400), "4s");
        assert_eq!(text(199), "199ms");
    }

    #[test]
    fn values_of_options_are_not_rounded() {
        for (ms, expected) in [
            (0, "0s"),
            (1_900, "1900ms"),
            (30_000, "30s"),
            (90_500, "1m30s500ms"),
            (86_400_000, "1day"),
            (2 * 86_400_000 + 1, "2days1ms"),
            (9_000 * 86_400_000 + 3_600_000, "9000days1h"),
        ] {
            let text = exact(Duration::from_millis(ms));
            assert_eq!(text, expected);
            let read = crate::args::duration(&text);
            assert_eq!(read, Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(exact(Duration::from_nanos(1_000_500)), "1ms500ns");
    }
}
