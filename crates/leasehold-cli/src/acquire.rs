//! Acquires the lock. Shows the holder during the wait, and handles signals that end or suspend it.

use std::ffi::OsStr;
use std::future::Future;
use std::os::unix::ffi::OsStrExt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use leasehold::{
    Client, Error, Holder, Lease, Leases, Mode, Moment, Mutexes, Options, Refusal, Wait,
};

use nix::unistd::getpid;
use tokio::sync::Notify;

use crate::args::WaitArgs;
use crate::config;
use crate::exit::{self, Failure};
use crate::messages;
use crate::nested::{Enclosing, EnclosingLease};
use crate::nodes::Deployment;
use crate::report::{Event, HolderJson, NodeJson, Reporter, millis, nearest, print_message, short};
use crate::signals::{self, SignalStreams};
use crate::subject;

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

/// What a request waits for.
pub(crate) trait Wanted {
    type Got;

    /// The locks that it needs, of which `name` is the first, and how it holds them.
    fn locks<'n>(&'n self, name: &'n OsStr) -> Vec<(&'n OsStr, Mode)> {
        vec![(name, Mode::Exclusive)]
    }

    /// Asks for it. `change` adds what all requests have in common to the options.
    fn ask(
        &self,
        client: &Client,
        name: &[u8],
        change: impl FnOnce(Options) -> Options,
    ) -> impl Future<Output = Result<Self::Got, Error>>;

    /// Releases what is not used.
    async fn discard(&self, got: Self::Got);

    /// If it needs permits: how many there are, and how many of them it needs.
    fn permits(&self) -> Option<(u32, u32)> {
        None
    }
}

/// The lock, and how to hold it.
pub(crate) struct TheLock {
    pub(crate) mode: Mode,
}

impl Wanted for TheLock {
    type Got = Lease;

    fn locks<'n>(&'n self, name: &'n OsStr) -> Vec<(&'n OsStr, Mode)> {
        vec![(name, self.mode)]
    }

    fn ask(
        &self,
        client: &Client,
        name: &[u8],
        change: impl FnOnce(Options) -> Options,
    ) -> impl Future<Output = Result<Lease, Error>> {
        let acquiring: Acquiring<Lease> = match self.mode {
            Mode::Shared => Box::pin(client.rw_lock(name).with_options(change).read()),
            _ => Box::pin(client.mutex(name).with_options(change).lock()),
        };
        acquiring
    }

    async fn discard(&self, lease: Lease) {
        release_unused(lease).await;
    }
}

/// The lock and others, all or none.
pub(crate) struct TheLocks<'a> {
    /// How to hold the lock.
    pub(crate) mode: Mode,
    pub(crate) also: Vec<(&'a OsStr, Mode)>,
    /// Instead of the lock: how many permits there are, and how many to hold.
    pub(crate) permits: Option<(u32, u32)>,
}

impl Wanted for TheLocks<'_> {
    type Got = Leases;

    fn locks<'n>(&'n self, name: &'n OsStr) -> Vec<(&'n OsStr, Mode)> {
        if self.permits.is_some() {
            return Vec::new();
        }
        let also = self.also.iter().copied();
        std::iter::once((name, self.mode)).chain(also).collect()
    }

    fn ask(
        &self,
        client: &Client,
        name: &[u8],
        change: impl FnOnce(Options) -> Options,
    ) -> impl Future<Output = Result<Leases, Error>> {
        if let Some((permits, take)) = self.permits {
            let semaphore = client.semaphore(name, permits).with_options(change);
            return Box::pin(semaphore.acquire_many(take)) as Acquiring<Leases>;
        }
        let also = self
            .also
            .iter()
            .map(|(name, mode)| (name.as_bytes(), *mode));
        let all = std::iter::once((name, self.mode)).chain(also);
        let (shared, exclusive): (Vec<_>, Vec<_>) =
            all.partition(|(_, mode)| *mode == Mode::Shared);
        let locks = client.mutexes(exclusive.into_iter().map(|(name, _)| name));
        let shared = shared.into_iter().map(|(name, _)| name);
        let locks = shared.fold(locks, Mutexes::shared).with_options(change);
        Box::pin(locks.lock())
    }

    fn permits(&self) -> Option<(u32, u32)> {
        self.permits
    }

    async fn discard(&self, leases: Leases) {
        release_all_unused(leases).await;
    }
}

/// A lock to acquire, and how.
pub(crate) struct LockRequest<'a, W> {
    pub(crate) name: &'a OsStr,
    pub(crate) nodes: &'a Deployment<'a>,
    pub(crate) options: Options,
    pub(crate) waiting: &'a WaitArgs,
    pub(crate) enclosing: Enclosing,
    pub(crate) reporter: &'a Reporter,
    /// When the wait started.
    pub(crate) started: Moment,
    /// Whether a majority of the nodes has answered an attempt.
    pub(crate) answered: Arc<AtomicBool>,
    pub(crate) wanted: W,
}

/// A request on its way.
type Acquiring<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// How to hold a lock, by the option `--shared`.
pub(crate) fn mode_of(shared: bool) -> Mode {
    match shared {
        false => Mode::Exclusive,
        true => Mode::Shared,
    }
}

/// How a request ended.
pub(crate) enum Acquired<T> {
    /// What it waited for. The client renews the lease.
    Got(Client, T),
    /// This lease of an enclosing `leasehold run` holds the lock, or one of the locks. That process
    /// waits for this one, so waiting for the lock would never end.
    Enclosed(EnclosingLease),
}

/// How one attempt ended.
enum Attempt<T> {
    Acquired(T),
    Failed(Failure),
    Enclosed(EnclosingLease),
    /// SIGTSTP arrived.
    Suspended,
    /// This process was stopped during the wait and has been continued.
    Continued,
}

impl<W: Wanted> LockRequest<'_, W> {
    /// Acquires the lock and shows the holder during the wait.
    ///
    /// A stopped process sends no heartbeats and cannot use a lock. Ctrl-Z therefore gives up the
    /// place in line before this process stops. When the process is continued, the wait starts
    /// again at the end of the line. A stop by SIGSTOP is noticed only when it is over; a lease that
    /// was acquired across such a stop is released. The time of a stop counts as waiting time.
    pub(crate) async fn acquire(
        &self,
        signals: &mut SignalStreams,
    ) -> Result<Acquired<W::Got>, Failure> {
        if let Some(lease) = self.enclosing_reader().await? {
            return Ok(Acquired::Enclosed(lease));
        }
        let mut view = WaitDisplay::new(self.reporter, self.started);
        loop {
            let client = self.nodes.client(self.options.clone())?;
            let attempt = self.attempt(&client, &mut view, signals).await;
            view.clear();
            let suspended = matches!(attempt, Attempt::Suspended);
            let end = match attempt {
                Attempt::Acquired(got) if signals.was_continued().await => {
                    self.wanted.discard(got).await;
                    None
                }
                Attempt::Acquired(got) => return Ok(Acquired::Got(client, got)),
                Attempt::Failed(failure) => Some(Err(failure)),
                Attempt::Enclosed(lease) => Some(Ok(Acquired::Enclosed(lease))),
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

    /// An enclosing lease that is one of the readers of the lock. No refusal names it: a claim that waits
    /// would wait for ever, and a reader behind a writer in line, too.
    async fn enclosing_reader(&self) -> Result<Option<EnclosingLease>, Failure> {
        if self.enclosing.is_empty() {
            return Ok(None);
        }
        let client = self.nodes.client(self.options.clone())?;
        let mut found = None;
        for (name, mode) in self.wanted.locks(self.name) {
            let inspection = client.inspect(name.as_bytes()).await?;
            let reader = self.enclosing.among(&inspection);
            if let Some(reader) = reader.filter(|reader| reader.shared) {
                found = Some((reader, mode));
                break;
            }
        }
        shut_down(&client).await;
        match found {
            Some((lease, Mode::Shared)) => Ok(Some(lease)),
            Some((lease, _)) => {
                let (held, inherit) = (lease.held(), lease.inherit());
                let outer = match lease.by_script {
                    true => "in its `leasehold acquire`",
                    false => "in the enclosing run",
                };
                Err(Failure::usage(format!(
                    "{held}, so the wait for an exclusive lock would never end\nnext: use {inherit} to \
                     run a command under that lease, or omit --shared {outer}"
                )))
            }
            None => Ok(None),
        }
    }

    async fn attempt(
        &self,
        client: &Client,
        view: &mut WaitDisplay<'_>,
        signals: &mut SignalStreams,
    ) -> Attempt<W::Got> {
        let latest = Arc::new(LatestRefusal::default());
        // Dropped at the end of this function, which releases its claim and its place in line.
        let mut taking = std::pin::pin!(self.ask(client, &latest));
        let mut too_few = std::pin::pin!(self.until_too_few_permits(client, &latest));
        loop {
            tokio::select! {
                biased;
                _ = signals.continues.next() => break Attempt::Continued,
                taken = &mut taking => match taken {
                    Ok(got) => break Attempt::Acquired(got),
                    // The nodes vote without intervention, and this wait has no limit.
                    Err(Error::NoMajority(refusal))
                        if self.waiting.is_unlimited() && messages::votes_in(&refusal).is_some() =>
                    {
                        taking.set(self.ask(client, &latest));
                    }
                    Err(error) => break self.failed(client, error, &latest).await,
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
                failure = &mut too_few => break Attempt::Failed(failure),
                () = latest.enclosed.notified() => {}
                () = tokio::time::sleep(REFRESH) => {}
            }
            if let Some(lease) = latest.enclosing() {
                break Attempt::Enclosed(lease);
            }
            let seen = latest.seen.lock().unwrap_or_else(PoisonError::into_inner);
            view.update(seen.as_ref());
        }
    }

    /// Asks with the remaining waiting time. Records each refusal in `latest`.
    fn ask(
        &self,
        client: &Client,
        latest: &Arc<LatestRefusal>,
    ) -> impl Future<Output = Result<W::Got, Error>> {
        let take = self.wanted.permits().map_or(1, |(_, take)| take);
        let (note, enclosing) = (Arc::clone(latest), self.enclosing_holders());
        let answered = Arc::clone(&self.answered);
        self.wanted
            .ask(client, self.name.as_bytes(), move |options| {
                let options = match self.waiting.wait {
                    Some(wait) => {
                        let waited = Moment::now().saturating_duration_since(self.started);
                        options.wait(Wait::For(wait.saturating_sub(waited)))
                    }
                    None => options,
                };
                options.on_refusal(move |refusal| {
                    answered.fetch_or(messages::has_votes(refusal), Ordering::Relaxed);
                    note.see(WaitStatus::new(refusal, &enclosing, take));
                })
            })
    }

    /// The enclosing leases that would have to end before this one can begin. A permit that one of them
    /// holds does not count: another permit may become free.
    fn enclosing_holders(&self) -> Enclosing {
        match self.wanted.permits() {
            None => self.enclosing.clone(),
            Some(_) => Enclosing::none(),
        }
    }

    /// Resolves after the first refusal if the enclosing leases leave too few permits. Otherwise never.
    /// The permits of enclosing runs do not become free while this process waits.
    async fn until_too_few_permits(&self, client: &Client, latest: &LatestRefusal) -> Failure {
        if self.wanted.permits().is_some() {
            latest.refused.notified().await;
            if let Some(failure) = self.too_few_permits(client).await {
                return failure;
            }
        }
        std::future::pending().await
    }

    /// The error if the enclosing leases hold so many permits that too few are left. This lists all
    /// locks of the nodes, so it is done only after a refusal.
    async fn too_few_permits(&self, client: &Client) -> Option<Failure> {
        let (permits, take) = self.wanted.permits()?;
        if self.enclosing.is_empty() {
            return None;
        }
        // During an outage, the wait ends by itself.
        let listing = client.inspect_permits(self.name.as_bytes()).await.ok()?;
        let held = self.enclosing.permits_among(&listing.locks);
        let left = usize::try_from(permits).ok()?.saturating_sub(held);
        let too_few = held > 0 && left < usize::try_from(take).ok()?;
        too_few.then(|| too_few_left(&self.name.to_string_lossy(), held, (permits, take)))
    }

    async fn failed(
        &self,
        client: &Client,
        mut error: Error,
        latest: &LatestRefusal,
    ) -> Attempt<W::Got> {
        if matches!(error, Error::Held(_) | Error::TimedOut { .. })
            && let Some(failure) = self.too_few_permits(client).await
        {
            return Attempt::Failed(failure);
        }
        let holders = self.enclosing_holders();
        let enclosing = match &mut error {
            Error::Held(refusal) => holders.holder(refusal),
            Error::TimedOut {
                waited, refusal, ..
            } => {
                // All attempts together, not only the last.
                *waited = Moment::now().saturating_duration_since(self.started);
                holders.holder(refusal)
            }
            _ => None,
        };
        // Of several locks, the error is about one that is held, and another one may be the reason.
        if let Some(lease) = enclosing.or_else(|| latest.enclosing()) {
            return Attempt::Enclosed(lease);
        }
        let mut failure = self.waiting.failure(error);
        if self.reporter.has_several() && failure.code != exit::USAGE {
            let names = self.reporter.names();
            failure.text = format!("{names} could not be acquired: {}", failure.text);
        }
        Attempt::Failed(failure)
    }
}

/// The error for a lock that an enclosing `leasehold run` holds, or the script that runs this process.
pub(crate) fn enclosed(reporter: &Reporter, lease: &EnclosingLease) -> Failure {
    let EnclosingLease { name, .. } = lease;
    let inherit = lease.inherit();
    let next = match (reporter.has_several(), lease.by_script) {
        (true, _) => "leave that lock out: the command runs under it in any case".to_owned(),
        (false, false) => {
            format!("use {inherit} to run a command under that lease, or use another name")
        }
        (false, true) => format!(
            "use {inherit} to run a command under that lease, or release it first with \
             `leasehold release {name}`"
        ),
    };
    let held = lease.held();
    Failure::usage(format!("{held}, so the wait would never end\nnext: {next}"))
}

/// The error for permits that can never be acquired, because the enclosing runs hold the others.
fn too_few_left(name: &str, held: usize, (permits, take): (u32, u32)) -> Failure {
    let runs = match held {
        1 => "an enclosing `leasehold run` holds",
        _ => "enclosing `leasehold run` processes hold",
    };
    let wanted = match take {
        1 => "the wait for another one".to_owned(),
        take => format!("the wait for {take} more"),
    };
    Failure::usage(format!(
        "{runs} {held} of the {permits} permits of `{name}`, so {wanted} would never end\nnext: take all \
         permits that are needed in the outer run (`--take`), or use a larger number of `--permits` \
         everywhere, after `leasehold resize`"
    ))
}

/// Releases a lease under which no command was started. `--at-least-for` does not apply.
pub(crate) async fn release_unused(lease: Lease) {
    if let Ok(lease) = lease.detach().await {
        let _ = lease.release().await;
    }
}

/// The same for leases that were acquired together.
pub(crate) async fn release_all_unused(leases: Leases) {
    for lease in leases {
        release_unused(lease).await;
    }
}

/// Releases all claims before this process exits.
pub(crate) async fn shut_down(client: &Client) {
    client.shutdown(SHUTDOWN_TIMEOUT).await;
    warn_about_history(client);
}

/// Shuts down after a majority has confirmed the release. The history needs more time: it is written after
/// the release, over a connection of its own.
pub(crate) async fn shut_down_after_release(client: &Client) {
    let history = config::in_force().get("history");
    if history.is_some_and(|given| given.setting.is_on(&given.values)) {
        return shut_down(client).await;
    }
    client.shutdown(SHUTDOWN_AFTER_MAJORITY).await;
}

/// Prints why the history could not be written, if that does not pass by itself.
fn warn_about_history(client: &Client) {
    for (node, error) in client.history_errors() {
        if error.is_permanent() {
            let error = messages::node_error(&error);
            print_message(format!(
                "warning: {node} did not store the history ({error})"
            ));
        }
    }
}

/// The latest refusal.
#[derive(Default)]
struct LatestRefusal {
    seen: Mutex<Option<WaitStatus>>,
    enclosed: Notify,
    /// Notified by each refusal.
    refused: Notify,
}

impl LatestRefusal {
    /// Records a refusal. One that will never end stays, whatever other locks are refused after it.
    fn see(&self, new: WaitStatus) {
        self.refused.notify_one();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.as_ref().is_some_and(|seen| seen.enclosing.is_some()) {
            return;
        }
        if new.enclosing.is_some() {
            self.enclosed.notify_one();
        }
        *seen = Some(new);
    }

    fn enclosing(&self) -> Option<EnclosingLease> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.as_ref()?.enclosing.clone()
    }
}

/// The state of the wait according to the latest refusal.
#[derive(Clone, PartialEq)]
struct WaitStatus {
    /// The lock that was refused.
    name: Option<String>,
    /// The enclosing lease that holds the lock.
    enclosing: Option<EnclosingLease>,
    holder: Option<Holder>,
    /// Whether that is a waiter that is first in line, and does not hold the lock yet.
    only_wanted: bool,
    /// The number of waiters ahead of this one.
    place: Option<u32>,
    /// During an outage: the error of each node.
    outage: Vec<NodeJson>,
    /// When a majority votes again, if waiting is all that is needed.
    votes_at: Option<Moment>,
    /// How many permits this needs, if it waits for one of them.
    permits: Option<u32>,
    /// Whether another process collects several permits.
    collected: bool,
}

impl WaitStatus {
    fn new(refusal: &Refusal, enclosing: &Enclosing, take: u32) -> Self {
        let holder = refusal.holder().cloned();
        Self {
            name: refusal.name.as_ref().map(ToString::to_string),
            enclosing: enclosing.holder(refusal),
            outage: match holder {
                Some(_) => Vec::new(),
                None => NodeJson::failing(&refusal.nodes),
            },
            votes_at: messages::votes_in(refusal).map(|left| Moment::now() + left),
            // The line of a semaphore has one place for each permit that this process needs.
            place: refusal
                .place()
                .filter(|_| refusal.permits.is_none() || take == 1),
            permits: refusal.permits.map(|_| take),
            collected: subject::collected(refusal).is_some(),
            only_wanted: messages::is_only_wanted(refusal),
            holder,
        }
    }

    /// Whether only the place in line or the remaining time differs.
    fn is_same_as(&self, other: &Self) -> bool {
        match (self.votes_at, other.votes_at) {
            (Some(_), Some(_)) => true,
            _ => {
                (&self.name, &self.holder, &self.outage)
                    == (&other.name, &other.holder, &other.outage)
            }
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
        // Of several locks, the one that is held.
        let lock = seen.name.as_deref().filter(|_| self.reporter.has_several());
        if self.reporter.is_live() {
            let line = self.line.get_or_insert_with(new_line);
            let (waited, place, who) = (short(waited), place(seen), describe(seen, lock));
            // The line is cut off at the edge of the terminal, so the parts that change come first.
            line.set_message(format!("waiting for {waited}{place}: {who}"));
            line.tick();
            return;
        }
        let text = || {
            let (names, who) = (self.reporter.names(), describe(seen, lock));
            format!("waiting for {names}: {who}{}", place(seen))
        };
        if !self
            .reported
            .as_ref()
            .is_some_and(|last| last.is_same_as(seen))
        {
            self.reported = Some(seen.clone());
            let event = Event::Waiting {
                lock,
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

/// Describes the holder of the lock. The lock is named if it is one of several.
fn describe(seen: &WaitStatus, lock: Option<&str>) -> String {
    let lock = lock.map_or(String::new(), |lock| format!("`{lock}` is "));
    match (&seen.holder, &*seen.outage) {
        (Some(_), _) if seen.permits == Some(1) => "no permit is free".to_owned(),
        (Some(_), _) if seen.permits.is_some() => "more permits are needed".to_owned(),
        (Some(holder), _) if seen.collected => format!(
            "{} is collecting several permits",
            messages::holder_name(holder)
        ),
        (Some(waiter), _) if seen.only_wanted => {
            format!("{lock}wanted by {}", messages::first_in_line(waiter))
        }
        (Some(holder), _) => format!("{lock}{}", messages::held_by(holder)),
        (None, []) => format!("{lock}held by another process"),
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
