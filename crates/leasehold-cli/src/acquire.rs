//! Acquires the lock. Shows the holder during the wait, and handles signals that end or suspend it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use leasehold::{Client, Error, Holder, Lease, Moment, Mutex as Lock, Options, Refusal, Wait};

use nix::unistd::getpid;
use tokio::sync::Notify;

use crate::args::WaitArgs;
use crate::exit::{self, Failure};
use crate::messages;
use crate::nested::Enclosing;
use crate::nodes::Deployment;
use crate::report::{Event, HolderJson, NodeJson, Reporter, millis, nearest, short};
use crate::signals::{self, SignalStreams};

/// How often the progress line is redrawn.
const REFRESH: Duration = Duration::from_millis(500);
/// If stderr is not a terminal, a wait that is shorter than this is not reported.
const QUIET_FOR: Duration = Duration::from_secs(1);
/// How long to wait for the last replies before this process exits.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);
/// The same after a majority has confirmed the release. The requests to the other nodes have been
/// sent, and a node that does not answer must not delay the exit.
const SHUTDOWN_AFTER_MAJORITY: Duration = Duration::from_millis(50);

impl WaitArgs {
    /// Adds these arguments to the options of the library.
    pub(crate) fn options(&self, nodes: &Deployment<'_>, options: Options) -> Options {
        let options = options.label(self.label.as_str());
        match self.wait {
            _ if self.no_wait => options.wait(Wait::No),
            Some(wait) => options.wait(Wait::For(wait)).outage_patience(wait),
            None => options
                .wait(Wait::Forever)
                .outage_patience(nodes.outage_patience()),
        }
    }

    /// Whether the wait has no limit.
    fn is_unlimited(&self) -> bool {
        !self.no_wait && self.wait.is_none()
    }

    /// Converts an error, with the exit code of `--conflict-exit-code` if the lock is held.
    pub(crate) fn failure(&self, error: Error) -> Failure {
        let mut failure = Failure::from(error);
        if failure.code == exit::HELD {
            failure.code = self.conflict_exit_code;
        }
        failure
    }
}

/// A lock to acquire, and how.
pub(crate) struct LockRequest<'a> {
    pub(crate) name: &'a OsStr,
    pub(crate) nodes: &'a Deployment<'a>,
    pub(crate) options: Options,
    pub(crate) waiting: &'a WaitArgs,
    pub(crate) enclosing: Enclosing,
    pub(crate) reporter: &'a Reporter,
    /// When the wait started.
    pub(crate) started: Moment,
}

/// How a request ended.
pub(crate) enum Acquired {
    /// The lock was acquired. The client renews the lease.
    Lease(Client, Lease),
    /// An enclosing `leasehold run`, with a lease with this token, holds the lock. That process
    /// waits for this one, so waiting for the lock would never end.
    Enclosed(u64),
}

/// How one attempt ended.
enum Attempt {
    Acquired(Lease),
    Failed(Failure),
    Enclosed(u64),
    /// SIGTSTP arrived.
    Suspended,
    /// This process was stopped during the wait and has been continued.
    Continued,
}

impl LockRequest<'_> {
    /// Acquires the lock and shows the holder during the wait.
    ///
    /// A stopped process sends no heartbeats and cannot use a lock. Ctrl-Z therefore gives up the
    /// place in line before this process stops. When the process is continued, the wait starts
    /// again at the end of the line. A stop by SIGSTOP is noticed only when it is over; a lease that
    /// was acquired across such a stop is released. The time of a stop counts as waiting time.
    pub(crate) async fn acquire(&self, signals: &mut SignalStreams) -> Result<Acquired, Failure> {
        let mut view = WaitDisplay::new(self.reporter, self.started);
        loop {
            let client = self.nodes.client(self.options.clone())?;
            let attempt = self.attempt(&client, &mut view, signals).await;
            view.clear();
            let suspended = matches!(attempt, Attempt::Suspended);
            let end = match attempt {
                Attempt::Acquired(lease) if signals.was_continued().await => {
                    release_unused(lease).await;
                    None
                }
                Attempt::Acquired(lease) => return Ok(Acquired::Lease(client, lease)),
                Attempt::Failed(failure) => Some(Err(failure)),
                Attempt::Enclosed(token) => Some(Ok(Acquired::Enclosed(token))),
                Attempt::Suspended | Attempt::Continued => None,
            };
            shut_down(&client).await;
            if let Some(end) = end {
                return end;
            }
            if suspended {
                signals::stop(getpid());
                signals.was_continued().await;
            }
            self.reporter.step(Event::Resumed, || {
                "continued after a stop: waiting again at the end of the line".to_owned()
            });
        }
    }

    async fn attempt(
        &self,
        client: &Client,
        view: &mut WaitDisplay<'_>,
        signals: &mut SignalStreams,
    ) -> Attempt {
        let latest = Arc::new(LatestRefusal::default());
        let lock = self.lock(client, &latest);
        // Dropped at the end of this function, which releases its claim and its place in line.
        let mut taking = std::pin::pin!(lock.lock());
        loop {
            tokio::select! {
                biased;
                _ = signals.continues.next() => break Attempt::Continued,
                taken = &mut taking => match taken {
                    Ok(lease) => break Attempt::Acquired(lease),
                    // The nodes vote without intervention, and this wait has no limit.
                    Err(Error::NoMajority(refusal))
                        if self.waiting.is_unlimited() && messages::votes_in(&refusal).is_some() =>
                    {
                        taking.set(lock.lock());
                    }
                    Err(error) => break self.failed(error),
                },
                signal = signals.forwarded.next() => {
                    let code = exit::by_signal(signal as i32);
                    let message = &format!("{signal} ended the wait");
                    self.reporter.step(Event::Error { code, message }, || message.clone());
                    break Attempt::Failed(Failure::new(code, ""));
                }
                _ = signals.stops.next() => {
                    if signals::can_be_continued() {
                        break Attempt::Suspended;
                    }
                }
                () = latest.enclosed.notified() => {}
                () = tokio::time::sleep(REFRESH) => {}
            }
            let seen = latest.seen.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(token) = seen.as_ref().and_then(|seen| seen.enclosing) {
                break Attempt::Enclosed(token);
            }
            view.update(seen.as_ref());
        }
    }

    /// The lock, with the remaining waiting time. Records each refusal in `latest`.
    fn lock(&self, client: &Client, latest: &Arc<LatestRefusal>) -> Lock {
        let (note, enclosing) = (Arc::clone(latest), self.enclosing.clone());
        let lock = client.mutex(self.name.as_bytes());
        lock.with_options(|options| {
            let options = match self.waiting.wait {
                Some(wait) => {
                    let waited = Moment::now().saturating_duration_since(self.started);
                    options.wait(Wait::For(wait.saturating_sub(waited)))
                }
                None => options,
            };
            options.on_refusal(move |refusal| {
                let seen = WaitStatus::new(refusal, &enclosing);
                if seen.enclosing.is_some() {
                    note.enclosed.notify_one();
                }
                *note.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
            })
        })
    }

    fn failed(&self, error: Error) -> Attempt {
        let (error, enclosing) = match error {
            Error::Held(refusal) => {
                let enclosing = self.enclosing.holder(&refusal);
                (Error::Held(refusal), enclosing)
            }
            Error::TimedOut { refusal, .. } => {
                let waited = Moment::now().saturating_duration_since(self.started);
                let enclosing = self.enclosing.holder(&refusal);
                (Error::TimedOut { waited, refusal }, enclosing)
            }
            error => (error, None),
        };
        match enclosing {
            Some(token) => Attempt::Enclosed(token),
            None => Attempt::Failed(self.waiting.failure(error)),
        }
    }
}

/// The error for a lock that an enclosing `leasehold run` holds.
pub(crate) fn enclosed(name: &str, token: u64) -> Failure {
    Failure::usage(format!(
        "an enclosing `leasehold run` holds `{name}` (token {token}), so the wait would never \
         end\nnext: use `leasehold run --inherit` to run a command under that lease, or use another name"
    ))
}

/// Releases a lease under which no command was started. `--at-least-for` does not apply.
pub(crate) async fn release_unused(lease: Lease) {
    if let Ok(lease) = lease.detach().await {
        let _ = lease.release().await;
    }
}

/// Releases all claims before this process exits.
pub(crate) async fn shut_down(client: &Client) {
    client.shutdown(SHUTDOWN_TIMEOUT).await;
}

/// Shuts down after a majority has confirmed the release.
pub(crate) async fn shut_down_after_release(client: &Client) {
    client.shutdown(SHUTDOWN_AFTER_MAJORITY).await;
}

/// The latest refusal.
#[derive(Default)]
struct LatestRefusal {
    seen: Mutex<Option<WaitStatus>>,
    enclosed: Notify,
}

/// The state of the wait according to the latest refusal.
#[derive(Clone, PartialEq)]
struct WaitStatus {
    /// The token of the enclosing lease that holds the lock.
    enclosing: Option<u64>,
    holder: Option<Holder>,
    /// The number of waiters ahead of this one.
    place: Option<u32>,
    /// During an outage: the error of each node.
    outage: Vec<NodeJson>,
    /// When a majority votes again, if waiting is all that is needed.
    votes_at: Option<Moment>,
}

impl WaitStatus {
    fn new(refusal: &Refusal, enclosing: &Enclosing) -> Self {
        let holder = refusal.holder().cloned();
        Self {
            enclosing: enclosing.holder(refusal),
            outage: match holder {
                Some(_) => Vec::new(),
                None => NodeJson::failing(&refusal.nodes),
            },
            votes_at: messages::votes_in(refusal).map(|left| Moment::now() + left),
            place: refusal.place(),
            holder,
        }
    }

    /// Whether only the place in line or the remaining time differs.
    fn is_same_as(&self, other: &Self) -> bool {
        match (self.votes_at, other.votes_at) {
            (Some(_), Some(_)) => true,
            _ => (&self.holder, &self.outage) == (&other.holder, &other.outage),
        }
    }
}

/// Shows the wait: on a terminal, as one line that is redrawn.
struct WaitDisplay<'a> {
    reporter: &'a Reporter,
    started: Moment,
    line: Option<ProgressBar>,
    /// The status of the latest event.
    reported: Option<WaitStatus>,
    /// Whether the one line for output that is not a terminal has been printed.
    printed: bool,
}

impl<'a> WaitDisplay<'a> {
    fn new(reporter: &'a Reporter, started: Moment) -> Self {
        Self {
            reporter,
            started,
            line: None,
            reported: None,
            printed: false,
        }
    }

    fn update(&mut self, seen: Option<&WaitStatus>) {
        let Some(seen) = seen else { return };
        let waited = Moment::now().saturating_duration_since(self.started);
        if self.reporter.is_live() {
            let line = self.line.get_or_insert_with(new_line);
            let (waited, place, who) = (short(waited), place(seen), describe(seen));
            // The line is cut off at the edge of the terminal, so the parts that change come first.
            line.set_message(format!("waiting for {waited}{place}: {who}"));
            line.tick();
            return;
        }
        let name = self.reporter.name();
        let text = || format!("waiting for `{name}`: {}{}", describe(seen), place(seen));
        if !self
            .reported
            .as_ref()
            .is_some_and(|last| last.is_same_as(seen))
        {
            self.reported = Some(seen.clone());
            let event = Event::Waiting {
                holder: seen.holder.as_ref().map(HolderJson::from),
                before: seen.place,
                waited_ms: millis(waited),
                nodes: &seen.outage,
            };
            self.reporter.step(event, text);
        }
        if waited >= QUIET_FOR && !std::mem::replace(&mut self.printed, true) {
            self.reporter.notice(text);
        }
    }

    fn clear(&mut self) {
        if let Some(line) = self.line.take() {
            line.finish_and_clear();
        }
    }
}

fn new_line() -> ProgressBar {
    let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    if let Ok(style) = ProgressStyle::with_template("leasehold: {wide_msg}") {
        line.set_style(style);
    }
    line
}

fn place(seen: &WaitStatus) -> String {
    match seen.place {
        Some(0) => ", next in line".to_owned(),
        Some(before) => format!(", {before} ahead in line"),
        None => String::new(),
    }
}

fn describe(seen: &WaitStatus) -> String {
    match (&seen.holder, &*seen.outage) {
        (Some(holder), _) => format!("held by {}", messages::holder(holder)),
        (None, []) => "held by another process".to_owned(),
        (None, nodes) => {
            let nodes = NodeJson::list(nodes);
            match seen.votes_at {
                Some(at) => format!(
                    "the nodes vote in {} (restart guard, or the set was replaced recently){nodes}",
                    nearest(at.saturating_duration_since(Moment::now()))
                ),
                None => format!("no majority of the nodes answered{nodes}"),
            }
        }
    }
}
