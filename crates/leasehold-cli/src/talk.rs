//! What is printed about a lock: lines for people on stderr, or events for machines.

use std::io::{IsTerminal, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anstyle::{AnsiColor, Style};
use leasehold::node::Vote;
use leasehold::{Holder, Lease, NodeReport, Sighting, Story};
use serde::Serialize;

use crate::args::Talk;
use crate::exit::Failure;
use crate::outlet::{write, write_event};
use crate::words;

/// Prints for people on stderr, in colour if that is a terminal that wants it.
pub(crate) fn say(text: impl AsRef<str>) {
    for line in text.as_ref().lines() {
        say_line(line);
    }
}

fn say_line(text: &str) {
    let (word, rest) = match text.split_once(": ") {
        Some((word @ ("error" | "warning"), rest)) => (Some(word), rest),
        _ => (None, text),
    };
    let colour = match word {
        Some("error") => Style::new().fg_color(Some(AnsiColor::Red.into())).bold(),
        _ => Style::new().fg_color(Some(AnsiColor::Yellow.into())).bold(),
    };
    write(match word {
        Some(word) => format!("leasehold: {colour}{word}:{colour:#} {rest}"),
        None => format!("leasehold: {rest}"),
    });
}

/// What became of the standard output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    Reads,
    /// The reader has closed the pipe: it has what it wanted.
    HasLeft,
}

/// Prints to the standard output. A closed pipe is no error.
pub(crate) fn print(text: &[u8]) -> std::io::Result<Reader> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Ok(()) => Ok(Reader::Reads),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(Reader::HasLeft),
        Err(error) => Err(error),
    }
}

/// Something that happened, for machines.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event<'a> {
    Waiting {
        holder: Option<HolderJson>,
        /// How many stand in line before this one.
        #[serde(skip_serializing_if = "Option::is_none")]
        before: Option<u32>,
        waited_ms: u64,
        /// During an outage: what is wrong with each node.
        #[serde(skip_serializing_if = "<[_]>::is_empty")]
        nodes: &'a [NodeJson],
    },
    /// The wait started again after this process was stopped.
    Resumed,
    /// The command replaces this process, under the lease of an enclosing `leasehold run`.
    Inherited {
        token: u64,
    },
    Acquired {
        token: u64,
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
    /// The lease was lost, or will be and the command is being stopped for that.
    Lost {
        why: &'a str,
        /// Who holds the lock now, if the nodes say so.
        #[serde(skip_serializing_if = "Option::is_none")]
        holder: Option<HolderJson>,
        /// What is wrong with each node, if that is the cause.
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
    Error {
        code: u8,
        message: &'a str,
    },
}

#[derive(Serialize)]
struct Line<'a> {
    time_ms: u64,
    name: &'a str,
    #[serde(flatten)]
    event: Event<'a>,
}

/// What is wrong with a node, for machines.
#[derive(Clone, PartialEq, Serialize)]
pub(crate) struct NodeJson {
    node: String,
    error: String,
}

impl NodeJson {
    /// What is wrong with each node that failed or does not vote; or that no answer has come, if
    /// that is all there is.
    pub(crate) fn failing(reports: &[NodeReport]) -> Vec<Self> {
        let select = |wanted: fn(&Story) -> bool| -> Vec<Self> {
            let reports = reports.iter().filter(|report| wanted(&report.story));
            reports
                .map(|report| Self {
                    node: report.node.clone(),
                    error: words::story(&report.story),
                })
                .collect()
        };
        let failing = select(|story| {
            matches!(
                story,
                Story::Failed(_) | Story::Voted(Vote::Quarantined { .. })
            )
        });
        match failing.is_empty() {
            true => select(|story| *story == Story::Pending),
            false => failing,
        }
    }

    /// All of them for people, at the end of a message; nothing if there are none.
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

/// Who holds a lock, for machines.
#[derive(Serialize)]
pub(crate) struct HolderJson {
    host: Option<String>,
    pid: Option<u32>,
    label: Option<String>,
    token: Option<u64>,
    since_ms: Option<u64>,
    /// Given back, and kept taken by `--at-least-for`.
    kept: bool,
}

impl HolderJson {
    /// The holder of a lock that was inspected.
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

/// Reports what happens to one lock, at the level that was asked for.
pub(crate) struct Reporter {
    level: Level,
    name: String,
}

impl Reporter {
    pub(crate) fn new(talk: &Talk, name: String) -> Self {
        if let Some(events) = &talk.events_fd {
            events.install();
        }
        let level = match talk {
            Talk { json: true, .. } => Level::Json,
            Talk { quiet: true, .. } => Level::Quiet,
            Talk { verbose: true, .. } => Level::Verbose,
            _ => Level::Normal,
        };
        Self { level, name }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// A step, printed with `-v`.
    pub(crate) fn tell(&self, event: Event<'_>, text: impl FnOnce() -> String) {
        self.report(event, &[Level::Verbose], text);
    }

    /// What is printed once at the default level, and as it changes with `-v`.
    pub(crate) fn mention(&self, text: impl FnOnce() -> String) {
        if self.level == Level::Normal {
            say(text());
        }
    }

    /// An error, or what is done to the command because of one: always printed.
    pub(crate) fn warn(&self, event: Event<'_>, text: impl FnOnce() -> String) {
        self.report(event, &[Level::Verbose, Level::Normal, Level::Quiet], text);
    }

    /// The lock was acquired.
    pub(crate) fn acquired(&self, lease: &Lease, waited: Duration) {
        let event = Event::Acquired {
            token: lease.token(),
            deadline_ms: unix_ms(SystemTime::now() + lease.remaining()),
            waited_ms: millis(waited),
        };
        self.tell(event, || {
            format!("acquired `{}`, token {}", self.name, lease.token())
        });
    }

    /// Why this process ends.
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

    /// Whether a line that changes can be shown.
    pub(crate) fn is_live(&self) -> bool {
        matches!(self.level, Level::Normal | Level::Verbose) && std::io::stderr().is_terminal()
    }

    /// Writes the event for machines, and the text at the levels given.
    fn report(&self, event: Event<'_>, levels: &[Level], text: impl FnOnce() -> String) {
        if levels.contains(&self.level) {
            say(text());
        }
        let line = Line {
            time_ms: unix_ms(SystemTime::now()),
            name: &self.name,
            event,
        };
        // It consists of text and numbers, so it can be written.
        if let Ok(line) = serde_json::to_string(&line) {
            write_event(&line);
            if self.level == Level::Json {
                write(line);
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

/// For people: two units at most, milliseconds only below a second.
pub(crate) fn short(duration: Duration) -> String {
    let rounded = match duration {
        d if d < Duration::from_secs(1) => Duration::from_millis(millis(d)),
        d if d < Duration::from_secs(3600) => Duration::from_secs(d.as_secs()),
        d if d < Duration::from_secs(24 * 3600) => Duration::from_secs(d.as_secs() / 60 * 60),
        d => Duration::from_secs(d.as_secs() / 3600 * 3600),
    };
    humantime::format_duration(rounded).to_string()
}

/// As [`short`], rounded to the nearest second instead of down: for a time that has just begun.
pub(crate) fn nearest(duration: Duration) -> String {
    match duration < Duration::from_secs(1) {
        true => short(duration),
        false => short(duration + Duration::from_millis(500)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_shown_with_two_units_at_most() {
        let text = |ms| short(Duration::from_millis(ms));
        assert_eq!(text(0), "0s");
        assert_eq!(text(123), "123ms");
        assert_eq!(text(61_900), "1m 1s");
        assert_eq!(text(3_661_000), "1h 1m");
        assert_eq!(text(90_000_000), "1day 1h");
        let text = |ms| nearest(Duration::from_millis(ms));
        assert_eq!(text(4_990), "5s");
        assert_eq!(text(4_400), "4s");
        assert_eq!(text(199), "199ms");
    }
}
