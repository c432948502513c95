//! `--metrics-file`: a file for the textfile collector of node_exporter.
//!
//! The tool's own events and the library's renewals become changes of series. A thread of its own
//! writes them, so that a slow disk delays neither a renewal nor the supervision of the command.
//!
//! Runs at different times, and at the same time, use the same file. Each of them reads it back and
//! changes it under a lock. So counters and times survive other runs, and a run that was skipped
//! leaves alone what the file says about the one that holds the lock.

mod file;
mod series;

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::observe::{Event as Observed, Observer};

use crate::exit::{self, Failure};
use crate::report::{Event, Reporter};
use file::SharedFile;
use series::{
    Change, DEADLINE, EXIT_CODE, HOLD, HOLDING, LAST_END, LAST_START, Op, RENEWALS, RUNS, SLACK,
    TOKEN, Values, WAIT,
};

/// How long to wait at exit until the file is written.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunOutcome {
    Success,
    /// The command failed.
    Failed,
    TimeLimit,
    Lost,
    /// The command did not run, because another process held the lock.
    Held,
    NoMajority,
    /// The command did not run for another reason.
    Error,
}

impl RunOutcome {
    pub(crate) fn of_failure(failure: &Failure) -> Self {
        match failure.code {
            // Its code may be any other.
            _ if failure.held => Self::Held,
            exit::UNAVAILABLE => Self::NoMajority,
            exit::LOST => Self::Lost,
            _ => Self::Error,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failed => "failed",
            Self::TimeLimit => "time_limit",
            Self::Lost => "lost",
            Self::Held => "held",
            Self::NoMajority => "no_majority",
            Self::Error => "error",
        }
    }
}

/// Writes what happens to a run to its file.
#[derive(Clone)]
pub(crate) struct MetricsFile {
    messages: Sender<Message>,
    has_warned: Arc<AtomicBool>,
}

enum Message {
    Change(Change),
    /// The sender is dropped when all earlier changes have been written.
    End(SyncSender<()>),
}

impl MetricsFile {
    /// Writes the file for the first time, so that a path that cannot be written is an error before
    /// the lock is acquired.
    pub(crate) fn open(path: &Path, name: &OsStr, reporter: &Reporter) -> Result<Self, Failure> {
        let shown = path.display();
        // Collectors read no other files. And no other file is overwritten by mistake.
        let file = match path.extension() {
            Some(end) if end == "prom" => std::path::absolute(path).ok(),
            _ => None,
        };
        let Some(file) = file.and_then(|path| SharedFile::new(&path)) else {
            return Err(Failure::usage(format!(
                "--metrics-file {shown}: the name must end in `.prom`, because node_exporter reads no \
                 other files"
            )));
        };
        let mut writer = Writer {
            file,
            name: name.to_string_lossy().into_owned(),
            pending: Change::default(),
            token: None,
            has_warned: Arc::default(),
            reporter: reporter.clone(),
        };
        match writer.update() {
            Ok(()) => {}
            // The next write may succeed.
            Err(error) if error.kind() == ErrorKind::WouldBlock => writer.warn(&error),
            Err(error) => {
                let next = file::advice(&error);
                return Err(Failure::usage(format!(
                    "--metrics-file: cannot write {shown}: {error}\nnext: {next}"
                )));
            }
        }
        let (messages, received) = channel();
        let has_warned = Arc::clone(&writer.has_warned);
        std::thread::Builder::new().spawn(move || writer.run(&received))?;
        Ok(Self {
            messages,
            has_warned,
        })
    }

    /// Records an event of the tool.
    pub(crate) fn event(&self, event: &Event<'_>) {
        let change = Change::default();
        self.send(match *event {
            Event::Acquired {
                token,
                deadline_ms,
                waited_ms,
                ..
            } => change
                .and(LAST_START, Op::Set(now()))
                .and(TOKEN, Op::Set(token as f64))
                .and(DEADLINE, Op::Set(seconds(deadline_ms)))
                .and(WAIT, Op::Set(seconds(waited_ms)))
                .and(HOLDING, Op::Set(1.0))
                // Until the first renewal.
                .and(SLACK, Op::Remove),
            // The lease was acquired too late, and the wait starts again.
            Event::Resumed | Event::Lost { .. } => change.and(HOLDING, Op::Set(0.0)),
            Event::Released { held_ms, .. } => change
                .and(HOLD, Op::Set(seconds(held_ms)))
                .and(HOLDING, Op::Set(0.0)),
            _ => return,
        });
    }

    /// Records that renewals have moved the deadline of the run.
    pub(crate) fn renewed_until(&self, deadline_ms: u64) {
        self.send(Change::default().and(DEADLINE, Op::Set(seconds(deadline_ms))));
    }

    /// Records how the run ended, with the exit code, and waits until everything is written.
    pub(crate) fn finish(&self, outcome: RunOutcome, code: u8, reporter: &Reporter) {
        let change = Change::default()
            .and_of(RUNS, outcome.as_str(), Op::Add(1.0))
            .and_of(LAST_END, outcome.as_str(), Op::Set(now()))
            .and(EXIT_CODE, Op::Set(code.into()))
            .and(HOLDING, Op::Set(0.0));
        self.send(change);
        let (done, wait) = sync_channel(0);
        let _ = self.messages.send(Message::End(done));
        // Fails otherwise, when `done` is dropped.
        let is_late = wait.recv_timeout(FINISH_TIMEOUT) == Err(RecvTimeoutError::Timeout);
        if is_late && !self.has_warned.swap(true, Ordering::Relaxed) {
            warn(
                reporter,
                "the metrics file is not written yet; exiting without it",
            );
        }
    }

    fn send(&self, change: Change) {
        // The thread ends only with this process.
        let _ = self.messages.send(Message::Change(change));
    }
}

impl Observer for MetricsFile {
    fn event(&self, event: &Observed) {
        let Observed::Renewal(renewal) = event else {
            return;
        };
        let outcome = match renewal.ok {
            true => "ok",
            false => "failed",
        };
        let mut change = Change::default().and_of(RENEWALS, outcome, Op::Add(1.0));
        // A lease that was handed over begins with little time, which is no reason for alarm.
        if !renewal.confirms_hand_over {
            change = change.and(SLACK, Op::Lower(millis(renewal.slack)));
        }
        self.send(change);
    }
}

/// The thread that writes.
struct Writer {
    file: SharedFile,
    /// The lock's name.
    name: String,
    /// Changes that are not in the file, because they are new or a write has failed.
    pending: Change,
    /// The token of this run, once it is in the file.
    token: Option<f64>,
    has_warned: Arc<AtomicBool>,
    /// Has no metrics file.
    reporter: Reporter,
}

impl Writer {
    fn run(mut self, messages: &Receiver<Message>) {
        while let Ok(first) = messages.recv() {
            let mut ends = Vec::new();
            // What came during the last write is written together.
            for message in std::iter::once(first).chain(messages.try_iter()) {
                match message {
                    Message::Change(change) => self.pending.append(change),
                    Message::End(done) => ends.push(done),
                }
            }
            self.write();
        }
    }

    /// Writes the changes. If that fails, they are written with the next ones. The command goes on.
    fn write(&mut self) {
        if let Err(error) = self.update() {
            self.warn(&error);
        }
    }

    /// Warns once.
    fn warn(&self, error: &std::io::Error) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            let path = self.file.path().display();
            let text = format!("cannot write the metrics file {path}: {error}");
            warn(&self.reporter, &text);
        }
    }

    fn update(&mut self) -> std::io::Result<()> {
        let (begun, token) = (self.pending.token(), self.token);
        self.file.update(|text| {
            let mut values = Values::parse(text, &self.name);
            let is_last = is_last_holder(begun, token, values.get(TOKEN));
            values.apply(&self.pending, is_last);
            values.render()
        })?;
        self.token = begun.or(token);
        self.pending = Change::default();
        Ok(())
    }
}

/// Whether a run is the last one that acquired the lock. `begun` is the token of a lease that begins
/// with this write, `ours` that of earlier writes, and `last` is in the file.
fn is_last_holder(begun: Option<f64>, ours: Option<f64>, last: Option<f64>) -> bool {
    match (begun, ours) {
        // Tokens are not compared: the first one of new nodes may be smaller than that in the file.
        (Some(_), _) => true,
        // Another run may have acquired the lock, and written that before our last write.
        (None, Some(ours)) => last.is_none_or(|last| last <= ours),
        (None, None) => false,
    }
}

fn warn(reporter: &Reporter, message: &str) {
    reporter.warn(Event::Warning { message }, || format!("warning: {message}"));
}

/// The time in seconds since 1970, to the millisecond.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    millis(since.unwrap_or_default())
}

fn millis(time: Duration) -> f64 {
    seconds(crate::report::millis(time))
}

/// Exact up to 2⁵³ ms.
fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::is_last_holder;

    #[test]
    fn a_later_holder_has_a_larger_token() {
        let (old, new) = (Some(1.0), Some(2.0));
        // Never acquired the lock.
        assert!(!is_last_holder(None, None, None) && !is_last_holder(None, None, old));
        // Has just acquired it, perhaps from new nodes.
        assert!(is_last_holder(new, None, old) && is_last_holder(old, None, new));
        assert!(is_last_holder(None, new, old) && is_last_holder(None, new, new));
        // The last write of a run comes after the first write of the next one.
        assert!(!is_last_holder(None, old, new));
        // The file was deleted.
        assert!(is_last_holder(None, old, None));
    }
}
