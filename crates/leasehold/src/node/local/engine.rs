//! What works on the file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::Status;
use super::bells::Bells;
use super::failure::Failure;
use super::post::{Letter, Post};
use super::store::{Outcome, Store};
use crate::clock::Clock;
use crate::name::Name;
use crate::node::{Call, NodeError, NodeSettings, Sighting, Verb, Vote};

/// After so many transactions it is time to tidy up.
const TIDY_EVERY: u32 = 1000;

pub(super) struct Engine {
    path: PathBuf,
    clock: Clock,
    /// How long opening may wait for others who open the file too.
    open_patience: Duration,
    status: Arc<Status>,
    store: Option<Store>,
    patience: Option<Duration>,
    post: Post,
    transactions: u32,
}

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
            post: Post::new(&path, bells),
            path,
            clock: settings.clock.clone(),
            open_patience: settings.connect_timeout,
            status,
            store: None,
            patience: None,
            transactions: 0,
        }
    }

    /// Votes on calls.
    pub(super) fn vote(&mut self, calls: Vec<Call>) -> Said {
        let patience = calls.iter().map(Call::timeout).min().unwrap_or_default();
        if calls.iter().any(|call| call.verb() == Verb::Wait) {
            self.post.listen();
        }
        match self.try_to_vote(&calls, patience) {
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

    fn try_to_vote(&mut self, calls: &[Call], patience: Duration) -> Result<Outcome, Failure> {
        self.transactions += 1;
        self.open()?;
        let store = self.store.as_mut().ok_or(Failure::Moved)?;
        if self.patience != Some(patience) {
            store.set_patience(patience)?;
            self.patience = Some(patience);
        }
        let outcome = store.vote(calls, &self.post);
        self.judge(outcome)
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
            self.patience = None;
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
                Failure::Told(NodeError::Unreachable { .. } | NodeError::CannotPersist { .. }) => {}
                Failure::Told(_) | Failure::Moved => self.store = None,
            }
        }
        outcome
    }

    pub(super) fn survey(&mut self, name: Option<&Name>) -> Result<Vec<Sighting>, NodeError> {
        let seen = self.open().and_then(|()| match &self.store {
            Some(store) => store.sightings(name, &self.post),
            None => Err(Failure::Moved),
        });
        seen.map_err(Failure::into_error)
    }

    /// Leaves everything as it should be when the process ends: it may, before this thread
    /// does.
    pub(super) fn flush(&mut self) {
        self.post.rest();
        if self.store.as_ref().is_some_and(Store::is_untidy) {
            self.tidy();
        }
    }

    pub(super) fn is_tidying_due(&self) -> bool {
        self.transactions >= TIDY_EVERY
    }

    pub(super) fn tidy(&mut self) {
        self.transactions = 0;
        let Some(store) = &mut self.store else {
            return;
        };
        let tidied = store.tidy(&self.post);
        if let Err(failure) = self.judge(tidied) {
            tracing::debug!(why = %failure.into_error(), "cannot tidy up the store");
        }
    }
}
