//! Delivers events to observers, so that no observer can harm a lock.
//!
//! Rule: no observer runs on a task that renews leases or talks to a node, nor under a lock of the
//! client. Such tasks [queue](Observers::queue) their events, and a task of their own delivers them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc::{self, error::TrySendError};

use super::class::Classes;
use super::counters::Counter;
use super::{Event, Observer};

/// How many events wait for their delivery. Further ones are dropped.
const QUEUE: usize = 1024;

/// The observers of a client.
pub(super) struct Observers {
    shared: Arc<Shared>,
    pub(super) classes: Classes,
    pub(super) wants_requests: bool,
    queue: mpsc::Sender<Event>,
    /// Until the task is started.
    queued: Mutex<Option<mpsc::Receiver<Event>>>,
    pub(super) dropped: Counter,
}

struct Shared {
    list: Vec<Arc<dyn Observer>>,
    panics: Counter,
}

impl Observers {
    /// `None` if there are none.
    pub(super) fn new(list: Vec<Arc<dyn Observer>>) -> Option<Self> {
        if list.is_empty() {
            return None;
        }
        let (queue, queued) = mpsc::channel(QUEUE);
        let panics = Counter::default();
        let wants = |observer: &Arc<dyn Observer>| {
            let wants = catch_unwind(AssertUnwindSafe(|| observer.wants_requests()));
            wants.unwrap_or_else(|_| {
                panics.add();
                false
            })
        };
        Some(Self {
            wants_requests: list.iter().any(wants),
            shared: Arc::new(Shared { list, panics }),
            classes: Classes::default(),
            queue,
            queued: Mutex::new(Some(queued)),
            dropped: Counter::default(),
        })
    }

    /// Starts the task that delivers queued events. It ends when the client is gone and all are
    /// delivered.
    pub(super) fn start(&self) {
        let mut queued = self.queued.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut queued) = queued.take() {
            let shared = Arc::clone(&self.shared);
            tokio::spawn(async move {
                while let Some(event) = queued.recv().await {
                    shared.deliver(&event);
                }
            });
        }
    }

    /// Delivers an event on this task.
    pub(super) fn deliver(&self, event: &Event) {
        self.shared.deliver(event);
    }

    /// Delivers an event on a task of its own.
    pub(super) fn queue(&self, event: Event) {
        match self.queue.try_send(event) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => self.dropped.add(),
            // The runtime has ended, and with it the task. This is the last that observers hear.
            Err(TrySendError::Closed(event)) => self.deliver(&event),
        }
    }

    pub(super) fn panics(&self) -> u64 {
        self.shared.panics.get()
    }
}

impl Shared {
    fn deliver(&self, event: &Event) {
        for observer in &self.list {
            // The panic hook has reported the panic.
            if catch_unwind(AssertUnwindSafe(|| observer.event(event))).is_err() {
                self.panics.add();
            }
        }
    }
}
