//! The thread that works on the file. Files block, and runtimes must not.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use tokio::sync::oneshot;

use super::Status;
use super::failure::Failure;
use super::rows::Waiter;
use super::store::{Outcome, Store};
use super::waking::{Listener, Sockets};
use crate::clock::Clock;
use crate::name::Name;
use crate::node::NodeSettings;
use crate::node::Sighting;
use crate::node::{Bell, Call, NodeError, Vote};

/// How many calls share a transaction at most.
const MAX_BATCH: usize = 256;
/// After so many transactions it is time to tidy up.
const TIDY_EVERY: u32 = 1000;

/// Something to do.
pub(super) enum Job {
    Call(Call),
    Watch {
        watch: u64,
        name: Name,
        bell: Bell,
    },
    Unwatch {
        watch: u64,
    },
    Survey(
        Option<Name>,
        oneshot::Sender<Result<Vec<Sighting>, NodeError>>,
    ),
    Flush(oneshot::Sender<()>),
}

pub(super) struct Engine {
    path: PathBuf,
    clock: Clock,
    /// How long opening may wait for others who open the file too.
    open_patience: Duration,
    jobs: Receiver<Job>,
    status: Arc<Status>,
    store: Option<Store>,
    patience: Option<Duration>,
    sockets: Option<Arc<Sockets>>,
    listener: Option<Listener>,
    /// The watches of this process, by their rows.
    watches: HashMap<u64, (Waiter, Name)>,
    transactions: u32,
}

impl Engine {
    pub(super) fn new(
        path: PathBuf,
        settings: &NodeSettings,
        jobs: Receiver<Job>,
        status: Arc<Status>,
    ) -> Self {
        Self {
            path,
            clock: settings.clock.clone(),
            open_patience: settings.connect_timeout,
            jobs,
            status,
            store: None,
            patience: None,
            sockets: None,
            listener: None,
            watches: HashMap::new(),
            transactions: 0,
        }
    }

    /// Works until nobody needs the node any more.
    pub(super) fn run(mut self) {
        // What is wrong with the file is told before anybody asks for a lock.
        let _ = self.store();
        while let Ok(first) = self.jobs.recv() {
            let mut jobs = vec![first];
            jobs.extend(self.jobs.try_iter().take(MAX_BATCH - 1));
            let mut calls = Vec::new();
            for job in jobs {
                match job {
                    Job::Call(call) => calls.push(call),
                    other => {
                        self.answer(std::mem::take(&mut calls));
                        self.attend(other);
                    }
                }
            }
            self.answer(calls);
            if self.transactions >= TIDY_EVERY {
                self.tidy();
            }
        }
    }

    fn attend(&mut self, job: Job) {
        match job {
            Job::Call(call) => self.answer(vec![call]),
            Job::Watch { watch, name, bell } => {
                if let Err(failure) = self.watch(watch, &name, &bell) {
                    // The waiter asks from time to time all the same.
                    tracing::debug!(%name, why = %failure.into_error(), "cannot wake");
                }
            }
            Job::Unwatch { watch } => {
                if let Some((waiter, name)) = self.watches.remove(&watch) {
                    if let Some(listener) = &self.listener {
                        listener.strike(waiter.id);
                    }
                    self.strike(&name, vec![waiter]);
                }
            }
            Job::Survey(name, reply) => {
                let seen = self
                    .store()
                    .and_then(|store| store.sightings(name.as_ref()))
                    .map_err(Failure::into_error);
                let _ = reply.send(seen);
            }
            Job::Flush(done) => {
                self.listener.take_if(|listener| listener.is_idle());
                // The process may end before this thread does.
                self.tidy_if_due();
                let _ = done.send(());
            }
        }
    }

    /// Votes on calls, and wakes those whose turn it is.
    fn answer(&mut self, calls: Vec<Call>) {
        let Some(patience) = calls.iter().map(Call::timeout).min() else {
            return;
        };
        self.transactions += 1;
        let outcomes = self.vote(&calls, patience);
        match outcomes {
            Err(failure) => {
                let error = failure.into_error();
                for call in calls {
                    call.answer(Err(error.clone()));
                }
            }
            Ok(outcomes) => {
                let mut freed = Vec::new();
                let mut held = Vec::new();
                for (call, Outcome { vote, freed_for }) in calls.into_iter().zip(outcomes) {
                    let name = call.claim().name().clone();
                    if !freed_for.is_empty() {
                        freed.push((name, freed_for));
                    } else if matches!(vote, Vote::Held { .. }) {
                        held.push(name);
                    }
                    call.answer(Ok(vote));
                }
                for (name, waiters) in freed {
                    self.wake(&name, waiters);
                }
                for name in held {
                    self.await_deaths(&name);
                }
            }
        }
    }

    fn vote(&mut self, calls: &[Call], patience: Duration) -> Result<Vec<Outcome>, Failure> {
        let current = self.patience;
        let store = self.store()?;
        if current != Some(patience) {
            store.set_patience(patience)?;
        }
        let outcomes = store.vote(calls);
        self.patience = Some(patience);
        self.judge(outcomes)
    }

    /// The file, opened if need be: at first, and again if it was replaced or went bad.
    fn store(&mut self) -> Result<&mut Store, Failure> {
        if self.store.as_ref().is_some_and(|store| !store.is_current()) {
            self.store = None;
        }
        if self.store.is_none() {
            self.patience = None;
            let opened = open(&self.path, &self.clock, self.open_patience);
            self.status.set(&opened);
            self.store = Some(opened?);
        }
        self.store.as_mut().ok_or(Failure::Moved)
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

    fn watch(&mut self, watch: u64, name: &Name, bell: &Bell) -> Result<(), Failure> {
        let listener = match self.listener.take() {
            Some(listener) => listener,
            None => self.listen().map_err(io)?,
        };
        let entered = self
            .store()
            .and_then(|store| store.enter_waiter(name, listener.socket()));
        let entered = self.judge(entered);
        let listener = self.listener.insert(listener);
        let (id, holders) = entered?;
        listener.enter(id, name.clone(), bell.clone());
        let socket = listener.socket().to_owned();
        self.watches
            .insert(watch, (Waiter { id, socket }, name.clone()));
        match holders {
            Some(pids) => listener.await_deaths(name, &pids),
            // It became free before anybody knew that somebody waits.
            None => bell.ring(),
        }
        Ok(())
    }

    /// Starts to listen; in a new directory if that for the sockets was deleted.
    fn listen(&mut self) -> std::io::Result<Listener> {
        self.sockets().and_then(Listener::start).or_else(|_| {
            self.sockets = None;
            self.sockets().and_then(Listener::start)
        })
    }

    fn sockets(&mut self) -> std::io::Result<Arc<Sockets>> {
        if let Some(sockets) = &self.sockets {
            return Ok(Arc::clone(sockets));
        }
        let sockets = Arc::new(Sockets::open(&self.path)?);
        self.sockets = Some(Arc::clone(&sockets));
        Ok(sockets)
    }

    /// Wakes the first who waits and strikes those who are gone.
    fn wake(&mut self, name: &Name, waiters: Vec<Waiter>) {
        let Ok(sockets) = self.sockets() else { return };
        let gone = sockets.wake_first(&waiters);
        if !gone.is_empty() {
            self.strike(name, gone);
        }
    }

    /// Strikes waiters; if the name is free, the next is woken.
    fn strike(&mut self, name: &Name, mut gone: Vec<Waiter>) {
        while !gone.is_empty() {
            let next = self
                .store()
                .and_then(|store| store.strike_waiters(name, &gone));
            gone = match (self.judge(next), self.sockets()) {
                (Ok(next), Ok(sockets)) => sockets.wake_first(&next),
                _ => return,
            };
        }
    }

    fn await_deaths(&mut self, name: &Name) {
        if !self
            .listener
            .as_ref()
            .is_some_and(|listener| listener.awaits(name))
        {
            return;
        }
        let holders = self.store().and_then(|store| store.holders(name));
        if let (Ok(Some(pids)), Some(listener)) = (holders, &self.listener) {
            listener.await_deaths(name, &pids);
        }
    }

    fn tidy_if_due(&mut self) {
        if self.store.as_ref().is_some_and(Store::is_untidy) {
            self.tidy();
        }
    }

    fn tidy(&mut self) {
        self.transactions = 0;
        let tidied = self.try_to_tidy();
        if let Err(failure) = self.judge(tidied) {
            tracing::debug!(why = %failure.into_error(), "cannot tidy up the store");
        }
    }

    fn try_to_tidy(&mut self) -> Result<(), Failure> {
        let sockets = self.sockets().map_err(io)?;
        let Some(store) = &mut self.store else {
            return Ok(());
        };
        for socket in store.sockets()? {
            if sockets.is_dead(&socket) {
                store.strike_socket(&socket)?;
            }
        }
        store.tidy()
    }
}

fn io(error: std::io::Error) -> Failure {
    Failure::Told(NodeError::Refused {
        why: error.to_string(),
    })
}

/// Opens the file, however many others do so at the same time.
fn open(path: &std::path::Path, clock: &Clock, patience: Duration) -> Result<Store, Failure> {
    let started = clock.now();
    loop {
        let opened = Store::open(path, clock.clone(), patience);
        let again = matches!(
            opened,
            Err(Failure::Moved | Failure::Told(NodeError::Unreachable { .. }))
        );
        if !again || clock.now().saturating_duration_since(started) > patience {
            return opened;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
