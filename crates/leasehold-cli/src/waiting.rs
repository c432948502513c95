//! Acquiring the lock: who is waited for is shown, and signals end or suspend the wait.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use leasehold::{Client, Error, Holder, Lease, Moment, Mutex as Lock, Options, Refusal, Wait};

use nix::unistd::getpid;
use tokio::sync::Notify;

use crate::args::Waiting;
use crate::exit::{self, Failure};
use crate::nested::Enclosing;
use crate::nodes::Deployment;
use crate::signals::{self, Listening};
use crate::talk::{Event, HolderJson, NodeJson, Reporter, millis, short};
use crate::words;

/// How long nodes that cannot be reached are waited for, by those who wait for ever.
const OUTAGE_PATIENCE: Duration = Duration::from_secs(5);
/// How often the line is drawn again.
const REFRESH: Duration = Duration::from_millis(500);
/// A wait that is shorter than this is not mentioned off a terminal.
const QUIET_FOR: Duration = Duration::from_secs(1);
/// How long to wait for the last confirmations before this process ends.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// The same when a majority has confirmed already. The requests to the other nodes are on their
/// way, and a silent node must not delay the end.
const AFTER_A_MAJORITY: Duration = Duration::from_millis(50);

impl Waiting {
    /// Turns what was said into options.
    pub(crate) fn options(&self, options: Options) -> Options {
        let options = options.label(self.label.as_str());
        match self.wait {
            _ if self.no_wait => options.wait(Wait::No),
            Some(wait) => options.wait(Wait::For(wait)).outage_patience(wait),
            None => options.wait(Wait::Forever).outage_patience(OUTAGE_PATIENCE),
        }
    }

    /// Whether the lock is waited for until it is acquired.
    fn is_unlimited(&self) -> bool {
        !self.no_wait && self.wait.is_none()
    }

    /// An outcome with the exit code that was asked for.
    pub(crate) fn failure(&self, error: Error) -> Failure {
        let mut failure = Failure::from(error);
        if failure.code == exit::HELD {
            failure.code = self.conflict_exit_code;
        }
        failure
    }
}

/// A lock that is to be acquired.
pub(crate) struct Wanted<'a> {
    pub(crate) name: &'a OsStr,
    pub(crate) nodes: &'a Deployment<'a>,
    pub(crate) options: Options,
    pub(crate) waiting: &'a Waiting,
    pub(crate) enclosing: Enclosing,
    pub(crate) reporter: &'a Reporter,
    /// When the wait began.
    pub(crate) started: Moment,
}

/// How a wait ended.
pub(crate) enum Taken {
    /// With the lock, and the client that renews it.
    Lease(Client, Lease),
    /// An enclosing `leasehold run` holds the lock: this one would wait for its own end.
    Enclosed(u64),
}

/// How one attempt ended.
enum Attempt {
    Taken(Lease),
    Failed(Failure),
    Enclosed(u64),
    /// SIGTSTP arrived.
    Suspended,
    /// This process was stopped meanwhile, and has been continued.
    Continued,
}

impl Wanted<'_> {
    /// Acquires the lock, showing who is waited for.
    ///
    /// A process that is stopped sends no heartbeats and cannot use a lock. So Ctrl-Z leaves the
    /// line before this process stops, and the wait starts again, at the end of the line, when it
    /// is continued. Other stops (SIGSTOP) are noticed when they are over; what was acquired
    /// across them is released. Time in which this process was stopped counts as waiting time.
    pub(crate) async fn take(&self, signals: &mut Listening) -> Result<Taken, Failure> {
        let mut view = View::new(self.reporter, self.started);
        loop {
            let client = self.nodes.client(self.options.clone())?;
            let attempt = self.attempt(&client, &mut view, signals).await;
            view.clear();
            let suspended = matches!(attempt, Attempt::Suspended);
            let end = match attempt {
                Attempt::Taken(lease) if signals.was_continued().await => {
                    give_up(lease).await;
                    None
                }
                Attempt::Taken(lease) => return Ok(Taken::Lease(client, lease)),
                Attempt::Failed(failure) => Some(Err(failure)),
                Attempt::Enclosed(token) => Some(Ok(Taken::Enclosed(token))),
                Attempt::Suspended | Attempt::Continued => None,
            };
            break_off(&client).await;
            if let Some(end) = end {
                return end;
            }
            if suspended {
                signals::stop(getpid());
                signals.was_continued().await;
            }
            self.reporter.tell(Event::Resumed, || {
                "continued after a stop: waiting again, at the end of the line".to_owned()
            });
        }
    }

    async fn attempt(
        &self,
        client: &Client,
        view: &mut View<'_>,
        signals: &mut Listening,
    ) -> Attempt {
        let latest = Arc::new(Latest::default());
        let lock = self.lock(client, &latest);
        // Dropped at the end, so that its claim and its place are released.
        let mut taking = std::pin::pin!(lock.lock());
        loop {
            tokio::select! {
                biased;
                _ = signals.continues.next() => break Attempt::Continued,
                taken = &mut taking => match taken {
                    Ok(lease) => break Attempt::Taken(lease),
                    // Their votes come by themselves, and this waits without a limit.
                    Err(Error::NoMajority(refusal))
                        if self.waiting.is_unlimited() && words::votes_in(&refusal).is_some() =>
                    {
                        taking.set(lock.lock());
                    }
                    Err(error) => break self.failed(error),
                },
                signal = signals.forwarded.next() => {
                    let code = exit::by_signal(signal as i32);
                    let message = &format!("{signal} ended the wait");
                    self.reporter.tell(Event::Error { code, message }, || message.clone());
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

    /// The lock, with what is left of the time to wait, noting what it is refused with.
    fn lock(&self, client: &Client, latest: &Arc<Latest>) -> Lock {
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
                let seen = Seen::new(refusal, &enclosing);
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

/// The error of a wait that would never end.
pub(crate) fn enclosed(name: &str, token: u64) -> Failure {
    Failure::usage(format!(
        "an enclosing `leasehold run` holds `{name}` (token {token}), so waiting for it would never \
         end\nnext: use `leasehold run --inherit` to run a command under that lease, or another name"
    ))
}

/// Releases a lease under which nothing was done: nothing is kept for `--at-least-for`.
pub(crate) async fn give_up(lease: Lease) {
    if let Ok(lease) = lease.detach().await {
        let _ = lease.release().await;
    }
}

/// Leaves nothing behind: what was claimed is given back before this process ends.
pub(crate) async fn break_off(client: &Client) {
    client.shutdown(LAST_WORDS).await;
}

/// Ends after a release that a majority has confirmed.
pub(crate) async fn finish(client: &Client) {
    client.shutdown(AFTER_A_MAJORITY).await;
}

/// The latest refusal.
#[derive(Default)]
struct Latest {
    seen: Mutex<Option<Seen>>,
    enclosed: Notify,
}

/// What a refusal says.
#[derive(Clone, PartialEq)]
struct Seen {
    /// The token of the enclosing lease that holds the lock.
    enclosing: Option<u64>,
    holder: Option<Holder>,
    /// How many stand in line before this one.
    place: Option<u32>,
    /// If that is an outage: what is wrong with each node.
    outage: Vec<NodeJson>,
    /// When a majority votes, if only time is missing.
    votes_in: Option<Duration>,
}

impl Seen {
    fn new(refusal: &Refusal, enclosing: &Enclosing) -> Self {
        let holder = refusal.holder().cloned();
        Self {
            enclosing: enclosing.holder(refusal),
            outage: match holder {
                Some(_) => Vec::new(),
                None => NodeJson::failing(&refusal.nodes),
            },
            votes_in: words::votes_in(refusal),
            place: refusal.place(),
            holder,
        }
    }

    /// Whether nothing has changed but the place in the line, or the time left.
    fn is_of(&self, other: &Self) -> bool {
        match (self.votes_in, other.votes_in) {
            (Some(_), Some(_)) => true,
            _ => (&self.holder, &self.outage) == (&other.holder, &other.outage),
        }
    }
}

/// What is shown of the wait: one line that changes, on a terminal.
struct View<'a> {
    reporter: &'a Reporter,
    started: Moment,
    line: Option<ProgressBar>,
    told: Option<Seen>,
    /// Off a terminal, one line says that this process waits.
    mentioned: bool,
}

impl<'a> View<'a> {
    fn new(reporter: &'a Reporter, started: Moment) -> Self {
        Self {
            reporter,
            started,
            line: None,
            told: None,
            mentioned: false,
        }
    }

    fn update(&mut self, seen: Option<&Seen>) {
        let Some(seen) = seen else { return };
        let waited = Moment::now().saturating_duration_since(self.started);
        if self.reporter.is_live() {
            let line = self.line.get_or_insert_with(new_line);
            let (waited, place, who) = (short(waited), place(seen), describe(seen));
            // The line is cut off at the edge: what changes comes first.
            line.set_message(format!("waiting for {waited}{place}: {who}"));
            line.tick();
            return;
        }
        let name = self.reporter.name();
        let text = || format!("waiting for `{name}`: {}{}", describe(seen), place(seen));
        if !self.told.as_ref().is_some_and(|told| told.is_of(seen)) {
            self.told = Some(seen.clone());
            let event = Event::Waiting {
                holder: seen.holder.as_ref().map(HolderJson::from),
                before: seen.place,
                waited_ms: millis(waited),
                nodes: &seen.outage,
            };
            self.reporter.tell(event, text);
        }
        if waited >= QUIET_FOR && !std::mem::replace(&mut self.mentioned, true) {
            self.reporter.mention(text);
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

fn place(seen: &Seen) -> String {
    match seen.place {
        Some(0) => ", next in line".to_owned(),
        Some(before) => format!(", {before} before this one"),
        None => String::new(),
    }
}

fn describe(seen: &Seen) -> String {
    match (&seen.holder, &*seen.outage) {
        (Some(holder), _) => format!("held by {}", words::holder(holder)),
        (None, []) => "held by another process".to_owned(),
        (None, nodes) => {
            let nodes = NodeJson::list(nodes);
            match seen.votes_in {
                Some(left) => format!(
                    "the nodes vote in {} (restart guard, or a set that was just replaced){nodes}",
                    short(left)
                ),
                None => format!("no majority of the nodes answers{nodes}"),
            }
        }
    }
}
