//! The store thread. The engine runs there, because file operations block and must not block a
//! runtime. If the thread is idle and nothing needs to wait, a call is executed in the caller's
//! thread.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::engine::Engine;
use crate::base::name::Name;
use crate::node::{Call, HistoryEntry, NodeError, Sighting};

/// The largest number of calls in one transaction.
const MAX_BATCH: usize = 256;
/// After this many immediate votes in a row, a call goes to the thread. A task whose calls are all
/// answered immediately would never yield to other tasks of its runtime.
const MAX_IMMEDIATE_VOTES: usize = 32;

/// A job for the thread.
enum Job {
    Call(Call),
    Survey(
        Option<Name>,
        oneshot::Sender<Result<Vec<Sighting>, NodeError>>,
    ),
    WriteHistory(Vec<HistoryEntry>, oneshot::Sender<Result<(), NodeError>>),
    ReadHistory(Name, oneshot::Sender<Result<Vec<HistoryEntry>, NodeError>>),
    Flush(oneshot::Sender<()>),
}

/// An engine and its thread.
pub(super) struct StoreThread {
    // Dropped before `jobs`, so that the thread closes the file.
    shared: Arc<Shared>,
    jobs: Sender<Job>,
}

struct Shared {
    engine: Mutex<Engine>,
    /// Jobs that are queued for the thread, or that it is executing.
    queued: AtomicUsize,
    immediate_votes: AtomicUsize,
}

impl StoreThread {
    /// Starts the thread, which lives as long as this value.
    pub(super) fn start(engine: Engine) -> (Self, std::io::Result<()>) {
        let (jobs, inbox) = channel();
        let shared = Arc::new(Shared {
            engine: Mutex::new(engine),
            queued: AtomicUsize::new(0),
            immediate_votes: AtomicUsize::new(0),
        });
        let thread = std::thread::Builder::new().name("leasehold-local".into());
        let of_thread = Arc::clone(&shared);
        let started = thread.spawn(move || of_thread.run(&inbox)).map(drop);
        (Self { shared, jobs }, started)
    }

    pub(super) fn vote(&self, call: Call) {
        if let Err(call) = self.shared.vote_immediately(call) {
            self.queue(Job::Call(call));
        }
    }

    pub(super) fn survey(
        &self,
        name: Option<Name>,
    ) -> oneshot::Receiver<Result<Vec<Sighting>, NodeError>> {
        let (reply, answer) = oneshot::channel();
        self.queue(Job::Survey(name, reply));
        answer
    }

    pub(super) fn write_history(
        &self,
        entries: Vec<HistoryEntry>,
    ) -> oneshot::Receiver<Result<(), NodeError>> {
        let (reply, answer) = oneshot::channel();
        self.queue(Job::WriteHistory(entries, reply));
        answer
    }

    pub(super) fn read_history(
        &self,
        name: Name,
    ) -> oneshot::Receiver<Result<Vec<HistoryEntry>, NodeError>> {
        let (reply, answer) = oneshot::channel();
        self.queue(Job::ReadHistory(name, reply));
        answer
    }

    pub(super) fn flush(&self) -> oneshot::Receiver<()> {
        let (done, wait) = oneshot::channel();
        self.queue(Job::Flush(done));
        wait
    }

    fn queue(&self, job: Job) {
        self.shared.queued.fetch_add(1, Ordering::AcqRel);
        // If the thread has ended, the job is dropped and counts as unanswered.
        let _ = self.jobs.send(job);
    }
}

impl Shared {
    /// Votes on a call in the caller's thread. Returns the call if the vote would have to wait, or
    /// would overtake a queued call.
    fn vote_immediately(&self, call: Call) -> Result<(), Call> {
        let is_idle = || self.queued.load(Ordering::Acquire) == 0;
        if !is_idle() || self.immediate_votes.fetch_add(1, Ordering::Relaxed) >= MAX_IMMEDIATE_VOTES
        {
            return Err(call);
        }
        let Ok(mut engine) = self.engine.try_lock() else {
            return Err(call);
        };
        if !is_idle() {
            return Err(call);
        }
        let replies = engine.vote_immediately(call)?;
        drop(engine);
        replies.send();
        Ok(())
    }

    /// Executes jobs until the node is dropped.
    fn run(&self, inbox: &Receiver<Job>) {
        // Opens the file now, so that errors are known before the first request.
        let _ = self.engine().open();
        while let Ok(first) = inbox.recv() {
            let mut calls = Vec::new();
            let more = inbox.try_iter().take(MAX_BATCH - 1);
            for job in std::iter::once(first).chain(more) {
                match job {
                    Job::Call(call) => calls.push(call),
                    other => {
                        self.vote(std::mem::take(&mut calls));
                        self.execute(other);
                    }
                }
            }
            self.vote(calls);
        }
    }

    fn vote(&self, calls: Vec<Call>) {
        let count = calls.len();
        if count > 0 {
            self.with_engine(count, |engine| engine.vote(calls)).send();
        }
    }

    fn execute(&self, job: Job) {
        match job {
            Job::Call(call) => self.vote(vec![call]),
            Job::Survey(name, reply) => {
                let seen = self.with_engine(1, |engine| engine.survey(name.as_ref()));
                let _ = reply.send(seen);
            }
            Job::WriteHistory(entries, reply) => {
                let written = self.with_engine(1, |engine| engine.write_history(&entries));
                let _ = reply.send(written);
            }
            Job::ReadHistory(name, reply) => {
                let entries = self.with_engine(1, |engine| engine.read_history(&name));
                let _ = reply.send(entries);
            }
            Job::Flush(done) => {
                self.with_engine(1, Engine::flush);
                let _ = done.send(());
            }
        }
    }

    /// Executes this many jobs. The caller sends answers after the engine is unlocked. Whoever
    /// receives one may vote immediately, so this thread does not want the engine after that: each
    /// immediate vote would wake it.
    fn with_engine<T>(&self, jobs: usize, work: impl FnOnce(&mut Engine) -> T) -> T {
        let mut engine = self.engine();
        let done = work(&mut engine);
        engine.clean_up_if_due();
        self.immediate_votes.store(0, Ordering::Relaxed);
        self.queued.fetch_sub(jobs, Ordering::AcqRel);
        done
    }

    fn engine(&self) -> MutexGuard<'_, Engine> {
        // After a panic, the transaction has been rolled back.
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
