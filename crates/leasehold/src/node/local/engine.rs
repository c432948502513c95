//! The engine: executes calls on the file, and opens, retries and cleans up as needed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::Status;
use super::cleanup::{self, Checkpoint, Cleaner};
use super::failure::Failure;
use super::local_waiters::LocalWaiters;
use super::notify::{Notification, Notifications};
use super::store::{Outcome, Store};
use crate::base::backoff::{Backoff, Pauses};
use crate::base::clock::{Clock, Moment};
use crate::base::name::Name;
use crate::node::{Call, HistoryEntry, NodeError, NodeSettings, Sighting, Verb, Vote};

/// After this many transactions, the engine checks the size of the log.
const CHECK_LOG_EVERY: u32 = 256;
/// The size of the log, in bytes, that may remain when the process exits. The next process reads all
/// of it: about 0.7 ms for 1 MiB. Writing it back waits for the disk twice.
const LOG_KEPT_AT_EXIT: u64 = 256 << 10;
/// If an immediate vote takes longer than this, the disk or the machine is busy.
const SLOW_VOTE: Duration = Duration::from_millis(10);
/// For this time after that, the store thread makes all votes.
const PAUSE_AFTER_SLOW_VOTE: Duration = Duration::from_millis(100);

pub(super) struct Engine {
    path: PathBuf,
    clock: Clock,
    /// How long opening may wait for other processes that open the file.
    open_patience: Duration,
    status: Arc<Status>,
    store: Option<Store>,
    notifications: Notifications,
    cleaner: Cleaner,
    transactions: u32,
    /// Until then, no vote is made in the caller's thread.
    busy_until: Moment,
    backoff: Backoff,
}

/// The pauses while another process has the file locked.
const BUSY_PAUSES: Pauses = Pauses {
    first: Duration::from_micros(50),
    longest: Duration::from_millis(1),
    growth_percent: 25,
    jitter_percent: 20,
};

/// Answers and notifications, to be sent when nothing is locked any more.
#[must_use = "nothing has been sent yet"]
pub(super) struct Replies {
    answers: Vec<(Call, Result<Vote, NodeError>)>,
    outgoing: Vec<Notification>,
}

impl Replies {
    /// Notifies waiters first, because they are waiting for the lock.
    pub(super) fn send(self) {
        for notification in self.outgoing {
            notification.send();
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
        waiters: Arc<LocalWaiters>,
    ) -> Self {
        Self {
            notifications: Notifications::new(&path, Arc::clone(&waiters)),
            cleaner: Cleaner::new(&path, settings.clock.clone(), waiters),
            path,
            clock: settings.clock.clone(),
            open_patience: settings.connect_timeout,
            status,
            store: None,
            transactions: 0,
            busy_until: Moment::from_origin(Duration::ZERO),
            backoff: Backoff::new(BUSY_PAUSES, settings.seed),
        }
    }

    /// Votes on calls.
    pub(super) fn vote(&mut self, calls: Vec<Call>) -> Replies {
        let patience = calls.iter().map(Call::timeout).min().unwrap_or_default();
        if calls.iter().any(|call| call.verb() == Verb::Wait) {
            self.notifications.listen();
        }
        self.transactions += 1;
        match self.retry_while_busy(patience, |store, notifications| {
            store.vote(&calls, notifications)
        }) {
            Ok(outcome) => self.replies(calls, outcome),
            Err(failure) => {
                let error = failure.into_error();
                let answers = calls.into_iter().map(|call| (call, Err(error.clone())));
                Replies {
                    answers: answers.collect(),
                    outgoing: Vec::new(),
                }
            }
        }
    }

    /// Votes on a call if that takes no longer than it takes the file system to write some pages to
    /// its cache: nothing is opened, waited for, or synced to disk. Otherwise returns the call.
    pub(super) fn vote_immediately(&mut self, call: Call) -> Result<Replies, Call> {
        let started = self.clock.now();
        // A WAIT may have to start the listener.
        if call.verb() == Verb::Wait || started < self.busy_until {
            return Err(call);
        }
        let store = self.store.as_mut().filter(|store| store.is_current());
        let Some(store) = store else {
            return Err(call);
        };
        self.transactions += 1;
        let calls = [call];
        let outcome = store.vote(&calls, &self.notifications);
        let ended = self.clock.now();
        if ended.saturating_duration_since(started) > SLOW_VOTE {
            self.busy_until = ended + PAUSE_AFTER_SLOW_VOTE;
        }
        match outcome {
            Ok(outcome) => Ok(self.replies(calls.into(), outcome)),
            // The store thread tries again and finds the cause. All calls may be repeated.
            Err(_) => {
                let [call] = calls;
                Err(call)
            }
        }
    }

    /// Runs `work` on the file, and again while other processes lock the file. They lock it for
    /// microseconds, so the pauses are short: with longer pauses, this process would rarely find
    /// the file unlocked.
    fn retry_while_busy<T>(
        &mut self,
        patience: Duration,
        mut work: impl FnMut(&mut Store, &Notifications) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let started = self.clock.now();
        self.backoff.reset();
        loop {
            self.open()?;
            let store = self.store.as_mut().ok_or(Failure::Moved)?;
            let outcome = work(store, &self.notifications);
            let waited = || self.clock.now().saturating_duration_since(started);
            if !matches!(outcome, Err(Failure::Busy)) || waited() >= patience {
                return self.close_if_failed(outcome);
            }
            std::thread::sleep(self.backoff.pause());
        }
    }

    fn replies(&self, calls: Vec<Call>, outcome: Outcome) -> Replies {
        let mut outgoing = outcome.outgoing;
        for (name, pids) in &outcome.holders {
            outgoing.extend(self.notifications.watch_processes(name, pids));
        }
        let votes = outcome.votes.into_iter().map(Ok);
        Replies {
            answers: calls.into_iter().zip(votes).collect(),
            outgoing,
        }
    }

    /// Opens the file if needed: at first, and again if it was replaced or damaged.
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

    /// Closes the file after an error that requires opening it again.
    fn close_if_failed<T>(&mut self, outcome: Result<T, Failure>) -> Result<T, Failure> {
        if let Err(failure) = &outcome {
            match failure {
                Failure::Busy | Failure::Error(NodeError::CannotPersist { .. }) => {}
                Failure::Error(_) | Failure::Moved => self.store = None,
            }
        }
        outcome
    }

    pub(super) fn survey(&mut self, name: Option<&Name>) -> Result<Vec<Sighting>, NodeError> {
        let patience = self.open_patience;
        let seen = self.retry_while_busy(patience, |store, notifications| {
            store.sightings(name, notifications)
        });
        seen.map_err(Failure::into_error)
    }

    pub(super) fn write_history(&mut self, entries: &[HistoryEntry]) -> Result<(), NodeError> {
        self.transactions += 1;
        let written =
            self.retry_while_busy(self.open_patience, |store, _| store.write_history(entries));
        written.map_err(Failure::into_error)
    }

    pub(super) fn read_history(&mut self, name: &Name) -> Result<Vec<HistoryEntry>, NodeError> {
        let read = self.retry_while_busy(self.open_patience, |store, _| store.read_history(name));
        read.map_err(Failure::into_error)
    }

    /// Removes the socket and writes a large log back, because the process may exit before this
    /// thread does.
    pub(super) fn flush(&mut self) {
        self.notifications.stop_if_idle();
        if self.log_size() > LOG_KEPT_AT_EXIT {
            let cleaned = self.retry_while_busy(cleanup::PATIENCE, |store, notifications| {
                store.clean_up(notifications, Checkpoint::All)
            });
            cleanup::report(cleaned);
        }
    }

    /// Starts a cleanup if the log is large enough.
    pub(super) fn clean_up_if_due(&mut self) {
        if self.transactions >= CHECK_LOG_EVERY {
            self.transactions = 0;
            let size = self.log_size();
            self.cleaner.start_if_due(size);
        }
    }

    fn log_size(&self) -> u64 {
        self.store.as_ref().map_or(0, Store::log_size)
    }
}
