//! Taking the lock: who is waited for is shown, and signals end the wait.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use leasehold::{Client, Error, Holder, Lease, Moment, Mutex as Lock, Options, Refusal, Wait};

use crate::args::Waiting;
use crate::exit::{self, Failure};
use crate::signals::Signals;
use crate::talk::{Event, HolderJson, Reporter, millis, short};

/// How long nodes that cannot be reached are waited for, by those who wait for ever.
const OUTAGE_PATIENCE: Duration = Duration::from_secs(5);
/// How often the line is drawn anew.
const REFRESH: Duration = Duration::from_millis(500);
/// How long to wait for the last confirmations before this process ends.
const LAST_WORDS: Duration = Duration::from_millis(500);

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

    /// An outcome with the exit code that was asked for.
    pub(crate) fn failure(&self, error: Error) -> Failure {
        let mut failure = Failure::from(error);
        if failure.code == exit::HELD {
            failure.code = self.conflict_exit_code;
        }
        failure
    }
}

/// Takes the lock, showing who is waited for.
pub(crate) async fn take(
    client: &Client,
    lock: Lock,
    waiting: &Waiting,
    reporter: &Reporter,
    signals: &mut Signals,
) -> Result<Lease, Failure> {
    let started = Moment::now();
    let seen = Arc::new(Mutex::new(None));
    let note = Arc::clone(&seen);
    let lock = lock.with_options(|options| {
        options.on_refusal(move |refusal| {
            let latest = Seen::new(refusal);
            *note.lock().unwrap_or_else(PoisonError::into_inner) = Some(latest);
        })
    });
    let mut view = View::new(reporter, started);
    // Dropped at the end of its block, so that its claim and its place are given back.
    let taken = {
        let mut taking = std::pin::pin!(lock.lock());
        loop {
            tokio::select! {
                biased;
                taken = &mut taking => break taken.map_err(|error| waiting.failure(error)),
                signal = signals.next() => {
                    break Err(Failure::new(exit::by_signal(signal as i32), ""));
                }
                () = tokio::time::sleep(REFRESH) => {
                    view.update(seen.lock().unwrap_or_else(PoisonError::into_inner).as_ref());
                }
            }
        }
    };
    view.clear();
    if taken.is_err() {
        break_off(client).await;
    }
    taken
}

/// Leaves nothing behind: what was claimed is given back before this process ends.
pub(crate) async fn break_off(client: &Client) {
    client.shutdown(LAST_WORDS).await;
}

/// What the last attempt was told.
#[derive(Clone, PartialEq)]
struct Seen {
    holder: Option<Holder>,
    /// How many stand in line before this one.
    place: Option<u32>,
    /// Where the nodes do not answer: what they said.
    outage: Option<String>,
}

impl Seen {
    fn new(refusal: &Refusal) -> Self {
        let holder = refusal.holder().cloned();
        let nodes = || refusal.nodes.iter().map(ToString::to_string);
        Self {
            outage: holder
                .is_none()
                .then(|| nodes().collect::<Vec<_>>().join("; ")),
            place: refusal.place(),
            holder,
        }
    }

    /// Whether nothing has changed but the place in the line.
    fn is_of(&self, other: &Self) -> bool {
        (&self.holder, &self.outage) == (&other.holder, &other.outage)
    }
}

/// What is shown of the wait: one line that changes, on a terminal.
struct View<'a> {
    reporter: &'a Reporter,
    started: Moment,
    line: Option<ProgressBar>,
    told: Option<Seen>,
}

impl<'a> View<'a> {
    fn new(reporter: &'a Reporter, started: Moment) -> Self {
        Self {
            reporter,
            started,
            line: None,
            told: None,
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
        } else if !self.told.as_ref().is_some_and(|told| told.is_of(seen)) {
            self.told = Some(seen.clone());
            let event = Event::Waiting {
                holder: seen.holder.as_ref().map(HolderJson::from),
                before: seen.place,
                waited_ms: millis(waited),
            };
            self.reporter
                .tell(event, || format!("{}{}", describe(seen), place(seen)));
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
    match (&seen.holder, &seen.outage) {
        (Some(holder), _) => format!("held by {}", with_age(holder)),
        (None, Some(nodes)) => format!("no majority yet ({nodes})"),
        (None, None) => "held by another".to_owned(),
    }
}

/// A holder, and since when. The least that tells who it is: it has one line.
pub(crate) fn with_age(holder: &Holder) -> String {
    let mut holder = holder.clone();
    // A little ahead, if the token is.
    let age = holder
        .since()
        .map(|since| since.elapsed().unwrap_or_default());
    holder.token = None;
    let text = holder.to_string().replace("min_hold", "--at-least-for");
    match age {
        Some(age) => format!("{text}, since {} ago", short(age)),
        None => text,
    }
}
