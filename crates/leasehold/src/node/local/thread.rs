//! Where the engine works: in a thread of its own, since files block and runtimes must not;
//! or on the spot, when it has nothing else to do and nothing is in the way.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use super::engine::Engine;
use crate::base::name::Name;
use crate::node::{Call, NodeError, Sighting};

/// How many calls share a transaction at most.
const MAX_BATCH: usize = 256;
/// One call of so many goes to the thread in any case: a task that is answered on the spot
/// each time would never let others of its runtime run.
const IN_A_ROW: usize = 32;

/// Something to do.
enum Job {
    Call(Call),
    Survey(
        Option<Name>,
        oneshot::Sender<Result<Vec<Sighting>, NodeError>>,
    ),
    Flush(oneshot::Sender<()>),
}

/// An engine at work.
pub(super) struct Works {
    // Dropped before `jobs`: then it is the thread that closes the file.
    shared: Arc<Shared>,
    jobs: Sender<Job>,
}

struct Shared {
    engine: Mutex<Engine>,
    /// Jobs on their way to the thread, or being done there.
    queued: AtomicUsize,
    in_a_row: AtomicUsize,
}

impl Works {
    /// Starts the thread, which lives as long as this.
    pub(super) fn start(engine: Engine) -> (Self, std::io::Result<()>) {
        let (jobs, inbox) = channel();
        let shared = Arc::new(Shared {
            engine: Mutex::new(engine),
            queued: AtomicUsize::new(0),
            in_a_row: AtomicUsize::new(0),
        });
        let thread = std::thread::Builder::new().name("leasehold-local".into());
        let works = Arc::clone(&shared);
        let started = thread.spawn(move || works.run(&inbox)).map(drop);
        (Self { shared, jobs }, started)
    }

    pub(super) fn vote(&self, call: Call) {
        if let Err(call) = self.shared.vote_on_the_spot(call) {
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

    pub(super) fn flush(&self) -> oneshot::Receiver<()> {
        let (done, wait) = oneshot::channel();
        self.queue(Job::Flush(done));
        wait
    }

    fn queue(&self, job: Job) {
        self.shared.queued.fetch_add(1, Ordering::AcqRel);
        // If the thread is gone, the job is dropped: unanswered.
        let _ = self.jobs.send(job);
    }
}

impl Shared {
    /// Votes on a call in the caller's thread; or gives it back, if that would have to wait
    /// for anything, or would overtake a call that was queued before.
    fn vote_on_the_spot(&self, call: Call) -> Result<(), Call> {
        let is_idle = || self.queued.load(Ordering::Acquire) == 0;
        if !is_idle() || self.in_a_row.fetch_add(1, Ordering::Relaxed) >= IN_A_ROW {
            return Err(call);
        }
        let Ok(mut engine) = self.engine.try_lock() else {
            return Err(call);
        };
        if !is_idle() {
            return Err(call);
        }
        let said = engine.vote_on_the_spot(call)?;
        drop(engine);
        said.say();
        Ok(())
    }

    /// Works until nobody needs the node any more.
    fn run(&self, inbox: &Receiver<Job>) {
        // What is wrong with the file is told before anybody asks for a lock.
        let _ = self.engine().open();
        while let Ok(first) = inbox.recv() {
            let mut calls = Vec::new();
            let more = inbox.try_iter().take(MAX_BATCH - 1);
            for job in std::iter::once(first).chain(more) {
                match job {
                    Job::Call(call) => calls.push(call),
                    other => {
                        self.vote(std::mem::take(&mut calls));
                        self.attend(other);
                    }
                }
            }
            self.vote(calls);
            self.in_a_row.store(0, Ordering::Relaxed);
            self.engine().tidy_if_due();
        }
    }

    fn vote(&self, calls: Vec<Call>) {
        let count = calls.len();
        if count > 0 {
            self.done(count, |engine| engine.vote(calls)).say();
        }
    }

    fn attend(&self, job: Job) {
        match job {
            Job::Call(call) => self.vote(vec![call]),
            Job::Survey(name, reply) => {
                let seen = self.done(1, |engine| engine.survey(name.as_ref()));
                let _ = reply.send(seen);
            }
            Job::Flush(done) => {
                self.done(1, Engine::flush);
                let _ = done.send(());
            }
        }
    }

    /// Does so many jobs. Nothing is said while the engine is locked.
    fn done<T>(&self, jobs: usize, work: impl FnOnce(&mut Engine) -> T) -> T {
        let mut engine = self.engine();
        let done = work(&mut engine);
        self.queued.fetch_sub(jobs, Ordering::AcqRel);
        done
    }

    fn engine(&self) -> MutexGuard<'_, Engine> {
        // A transaction that a panic has ended is rolled back.
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
