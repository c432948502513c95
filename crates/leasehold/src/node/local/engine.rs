//! What works on the file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::Status;
use super::bells::Bells;
use super::failure::Failure;
use super::post::{Letter, Post};
use super::store::{Outcome, Store};
use super::tidying::{self, Reach, Tidier};
use crate::base::clock::{Clock, Moment};
use crate::base::name::Name;
use crate::node::{Call, NodeError, NodeSettings, Sighting, Verb, Vote};

/// After so many transactions it is time to see how much has piled up.
const LOOK_EVERY: u32 = 256;
/// What may be left beside the file, in bytes.
const A_LITTLE: u64 = 1 << 20;
/// A vote on the spot that took longer says that the disk is busy, or the machine.
const LONG: Duration = Duration::from_millis(10);
/// Then nobody is made to wait for it for a while.
const BREAK: Duration = Duration::from_millis(100);

pub(super) struct Engine {
    path: PathBuf,
    clock: Clock,
    /// How long opening may wait for others who open the file too.
    open_patience: Duration,
    status: Arc<Status>,
    store: Option<Store>,
    post: Post,
    tidier: Tidier,
    transactions: u32,
    /// Until then nothing is done on the spot.
    busy_until: Moment,
}

const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// What is to be said, when nothing is locked any more.
#[must_use = "nobody has been told yet"]
pub(super) struct Said {
    answers: Vec<(Call, Result<Vote, NodeError>)>,
    letters: Vec<Letter>,
}

impl Said {
    /// Those who wait are told first: they are in a hurry.
    pub(super) fn say(self) {
        for letter in self.letters {
            letter.send();
        }
        for (call, answer) in self.answers {
            call.answer(answer);
        }
    }
}

impl Engine {
    pub(super) fn new(
        path: PathBuf,
        settings: &NodeSettings,
        status: Arc<Status>,
        bells: Arc<Bells>,
    ) -> Self {
        Self {
            post: Post::new(&path, Arc::clone(&bells)),
            tidier: Tidier::new(&path, settings.clock.clone(), bells),
            path,
            clock: settings.clock.clone(),
            open_patience: settings.connect_timeout,
            status,
            store: None,
            transactions: 0,
            busy_until: Moment::from_origin(Duration::ZERO),
        }
    }

    /// Votes on calls.
    pub(super) fn vote(&mut self, calls: Vec<Call>) -> Said {
        let patience = calls.iter().map(Call::timeout).min().unwrap_or_default();
        if calls.iter().any(|call| call.verb() == Verb::Wait) {
            self.post.listen();
        }
        self.transactions += 1;
        match self.patiently(patience, |store, post| store.vote(&calls, post)) {
            Ok(outcome) => self.said(calls, outcome),
            Err(failure) => {
                let error = failure.into_error();
                let answers = calls.into_iter().map(|call| (call, Err(error.clone())));
                Said {
                    answers: answers.collect(),
                    letters: Vec::new(),
                }
            }
        }
    }

    /// Votes on a call if that takes no longer than the file system takes to put some pages
    /// into its cache: nothing is opened, waited for or forced to the disk. Else gives it back.
    pub(super) fn vote_on_the_spot(&mut self, call: Call) -> Result<Said, Call> {
        let started = self.clock.now();
        // Who waits may have to start to listen.
        if call.verb() == Verb::Wait || started < self.busy_until {
            return Err(call);
        }
        let store = self.store.as_mut().filter(|store| store.is_current());
        let Some(store) = store else {
            return Err(call);
        };
        self.transactions += 1;
        let calls = [call];
        let outcome = store.vote(&calls, &self.post);
        let ended = self.clock.now();
        if ended.saturating_duration_since(started) > LONG {
            self.busy_until = ended + BREAK;
        }
        match outcome {
            Ok(outcome) => Ok(self.said(calls.into(), outcome)),
            // It is for those who have time to try again, and to find out what is wrong. All
            // calls may be repeated.
            Err(_) => {
                let [call] = calls;
                Err(call)
            }
        }
    }

    /// Works on the file, again and again while others do. They need it for microseconds, so
    /// pauses are short: whoever sleeps longer finds it busy with one who does not sleep.
    fn patiently<T>(
        &mut self,
        patience: Duration,
        mut work: impl FnMut(&mut Store, &Post) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let started = self.clock.now();
        let mut pause = FIRST_PAUSE;
        loop {
            self.open()?;
            let store = self.store.as_mut().ok_or(Failure::Moved)?;
            let outcome = work(store, &self.post);
            let waited = || self.clock.now().saturating_duration_since(started);
            if !matches!(outcome, Err(Failure::Busy)) || waited() >= patience {
                return self.judge(outcome);
            }
            std::thread::sleep(pause);
            pause = LONGEST_PAUSE.min(pause * 5 / 4);
        }
    }

    fn said(&self, calls: Vec<Call>, outcome: Outcome) -> Said {
        let mut letters = outcome.letters;
        for (name, pids) in &outcome.holders {
            letters.extend(self.post.await_deaths(name, pids));
        }
        let votes = outcome.votes.into_iter().map(Ok);
        Said {
            answers: calls.into_iter().zip(votes).collect(),
            letters,
        }
    }

    /// Opens the file if need be: at first, and again if it was replaced or went bad.
    pub(super) fn open(&mut self) -> Result<(), Failure> {
        if self.store.as_ref().is_some_and(|store| !store.is_current()) {
            self.store = None;
        }
        if self.store.is_none() {
            let opened = Store::open(&self.path, &self.clock, self.open_patience);
            self.status.set(&opened);
            self.store = Some(opened?);
        }
        Ok(())
    }

    /// Closes a file that cannot be worked with any more.
    fn judge<T>(&mut self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        if let Err(failure) = &outcome {
            match failure {
                Failure::Busy | Failure::Told(NodeError::CannotPersist { .. }) => {}
                Failure::Told(_) | Failure::Moved => self.store = None,
            }
        }
        outcome
    }

    pub(super) fn survey(&mut self, name: Option<&Name>) -> Result<Vec<Sighting>, NodeError> {
        let patience = self.open_patience;
        let seen = self.patiently(patience, |store, post| store.sightings(name, post));
        seen.map_err(Failure::into_error)
    }

    /// Leaves everything as it should be when the process ends: it may, before this thread
    /// does.
    pub(super) fn flush(&mut self) {
        self.post.rest();
        if self.log_size() > A_LITTLE {
            let tidied = self.patiently(tidying::PATIENCE, |store, post| {
                store.tidy(post, Reach::All)
            });
            tidying::report(tidied);
        }
    }

    /// Tidies up if it is time to.
    pub(super) fn tidy_if_due(&mut self) {
        if self.transactions >= LOOK_EVERY {
            self.transactions = 0;
            let size = self.log_size();
            self.tidier.look(size);
        }
    }

    fn log_size(&self) -> u64 {
        self.store.as_ref().map_or(0, Store::log_size)
    }
}
