//! What is said on stderr: lines for people, or events for machines.

use std::io::{IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anstyle::{AnsiColor, Style};
use leasehold::Holder;
use serde::Serialize;

use crate::args::Talk;
use crate::exit::Failure;

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

/// What is still to be written may be so much; the rest is dropped.
const MAX_LINES: usize = 1000;
/// How long the last lines may take.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The thread that writes, while a lease is held: stderr may be a pipe that nobody reads, and
/// neither the lease nor the command may wait for that.
static WRITER: OnceLock<SyncSender<Message>> = OnceLock::new();

enum Message {
    Line(String),
    End(SyncSender<()>),
}

/// From now on, nobody waits for what is written.
pub(crate) fn write_in_background() {
    WRITER.get_or_init(|| {
        let (sender, receiver) = sync_channel(MAX_LINES);
        // Without the thread, what is said is lost.
        let _ = std::thread::Builder::new().spawn(move || {
            for message in receiver {
                match message {
                    Message::Line(line) => write_now(&line),
                    Message::End(done) => drop(done),
                }
            }
        });
        sender
    });
}

/// Waits for the last lines, but not for ever.
pub(crate) fn finish_writing() {
    let (done, wait) = sync_channel(0);
    if let Some(writer) = WRITER.get()
        && writer.try_send(Message::End(done)).is_ok()
    {
        // Ends when `done` is dropped.
        let _ = wait.recv_timeout(LAST_LINES);
    }
}

fn write(line: String) {
    match WRITER.get() {
        None => write_now(&line),
        Some(writer) => {
            let _ = writer.try_send(Message::Line(line));
        }
    }
}

fn write_now(line: &str) {
    // If stderr is closed, nobody listens.
    let _ = writeln!(anstream::stderr().lock(), "{line}");
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
    Lost {
        why: &'a str,
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

/// Says what happens to one lock, as loudly as was asked for.
pub(crate) struct Reporter {
    level: Level,
    name: String,
}

impl Reporter {
    pub(crate) fn new(talk: &Talk, name: String) -> Self {
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

    /// Of interest to those who asked for more.
    pub(crate) fn tell(&self, event: Event<'_>, text: impl FnOnce() -> String) {
        match self.level {
            Level::Json => self.emit(event),
            Level::Verbose => say(text()),
            Level::Normal | Level::Quiet => {}
        }
    }

    /// Of interest to all but those who asked for silence.
    pub(crate) fn warn(&self, event: Event<'_>, text: impl FnOnce() -> String) {
        match self.level {
            Level::Json => self.emit(event),
            Level::Verbose | Level::Normal => say(text()),
            Level::Quiet => {}
        }
    }

    /// Why it ends.
    pub(crate) fn fail(&self, failure: &Failure) {
        let (code, message) = (failure.code, &*failure.text);
        match self.level {
            _ if message.is_empty() => {}
            Level::Json => self.emit(Event::Error { code, message }),
            Level::Quiet if failure.held => {}
            _ if failure.held => say(message),
            _ => say(format!("error: {message}")),
        }
    }

    /// Whether a line that changes can be shown.
    pub(crate) fn is_live(&self) -> bool {
        matches!(self.level, Level::Normal | Level::Verbose) && std::io::stderr().is_terminal()
    }

    fn emit(&self, event: Event<'_>) {
        let line = Line {
            time_ms: unix_ms(SystemTime::now()),
            name: &self.name,
            event,
        };
        // Made of text and numbers: it can be written.
        if let Ok(line) = serde_json::to_string(&line) {
            write(line);
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
    }
}
