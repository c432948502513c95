//! The keeper renews leases and says when one is lost: one task and one timer for all
//! leases of a client.
//!
//! A lease stands in the book under the moment at which something must happen to it:
//! its next renewal, or its end. Taking and returning a lease costs an insertion and a
//! removal; the task is woken only when something is due earlier than it sleeps.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use tokio::sync::Notify;

use crate::base::clock::{Clock, Moment};
use crate::client::core::Closing;
use crate::lease::state::{Extension, Held, Loss, Progress};
use crate::node::Node;

/// A renewal may be so early, if another is due.
const NEARLY: Duration = Duration::from_millis(50);

/// The owner of the keeper. When it is dropped, the keeper ends.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
}

struct Shared {
    nodes: Arc<[Arc<dyn Node>]>,
    clock: Clock,
    book: Mutex<Book>,
    wake: Notify,
    closed: AtomicBool,
    closing: Arc<Closing>,
}

struct Book {
    /// The task is gone, with its runtime: no lease is renewed any more.
    abandoned: bool,
    leases: BTreeMap<(Moment, u64), Arc<Held>>,
    /// Renewals whose votes have decided.
    decided: Vec<(Arc<Held>, Extension)>,
    /// Until when the task sleeps.
    sleeps_until: Moment,
}

impl Keeper {
    /// Starts the keeper's task on the current runtime.
    pub(crate) fn start(nodes: Arc<[Arc<dyn Node>]>, clock: Clock, closing: Arc<Closing>) -> Self {
        let shared = Arc::new(Shared {
            nodes,
            clock,
            book: Mutex::new(Book {
                abandoned: false,
                leases: BTreeMap::new(),
                decided: Vec::new(),
                sleeps_until: Moment::FAR,
            }),
            wake: Notify::new(),
            closed: AtomicBool::new(false),
            closing,
        });
        // Made here: a task may be dropped before it has run at all.
        tokio::spawn(run(Watch(Arc::clone(&shared))));
        Self { shared }
    }

    /// Looks after a lease from now on.
    pub(crate) fn keep(&self, lease: &Arc<Held>) {
        let mut book = self.shared.book();
        if book.abandoned {
            drop(book);
            return lease.lose(Loss::RuntimeEnded);
        }
        if book.enter(lease, lease.next_renewal()) {
            drop(book);
            self.shared.wake.notify_one();
        }
    }

    /// No longer looks after it.
    pub(crate) fn leave(&self, lease: &Held) {
        self.shared.book().strike(lease);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.wake.notify_one();
    }
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    /// Enters a lease under the earlier of `next` and its end. Whether the task must
    /// be woken to see it in time.
    fn enter(&mut self, lease: &Arc<Held>, next: Moment) -> bool {
        self.strike(lease);
        let due = next.min(lease.lost_at());
        lease.due.store(due.as_nanos(), Ordering::Relaxed);
        self.leases.insert((due, lease.id), Arc::clone(lease));
        due < self.sleeps_until
    }

    /// The leases whose renewal is due in a moment; from now on only their end is.
    fn take_nearly_due(&mut self, now: Moment) -> Vec<Arc<Held>> {
        let soon = self.leases.range(..(now + NEARLY, u64::MAX));
        let soon = soon.filter(|((due, _), lease)| {
            let nearly = NEARLY.min(lease.claim.ttl / 30);
            lease.next_renewal() == *due && due.saturating_duration_since(now) <= nearly
        });
        let leases: Vec<_> = soon.map(|(_, lease)| Arc::clone(lease)).collect();
        for lease in &leases {
            self.enter(lease, Moment::FAR);
        }
        leases
    }

    fn strike(&mut self, lease: &Held) {
        let due = Moment::from_nanos(lease.due.load(Ordering::Relaxed));
        self.leases.remove(&(due, lease.id));
    }
}

/// Tells all holders when the task is gone, with its runtime: nobody renews any more.
struct Watch(Arc<Shared>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.closing.runtime_ended();
        let mut book = self.0.book();
        book.abandoned = true;
        let leases = std::mem::take(&mut book.leases);
        drop(book);
        for lease in leases.into_values() {
            lease.lose(Loss::RuntimeEnded);
        }
    }
}

async fn run(watch: Watch) {
    let shared = &watch.0;
    while !shared.closed.load(Ordering::Acquire) {
        let next = attend(shared);
        tokio::select! {
            biased;
            () = shared.wake.notified() => {}
            () = shared.clock.sleep_until(next), if next < Moment::FAR => {}
        }
    }
}

/// Does what is due, and says when something is next.
fn attend(shared: &Arc<Shared>) -> Moment {
    let decided = std::mem::take(&mut shared.book().decided);
    for (lease, extension) in decided {
        let next = match lease.finish_extension(&extension, &shared.clock) {
            Progress::Extended => lease.next_renewal(),
            // A failed extend changes nothing: the old deadline stands, and the
            // keeper tries again until it passes.
            Progress::Unknown => shared.clock.now() + lease.retry_pause(),
            Progress::Over => continue,
        };
        let mut book = shared.book();
        // Under the lock: a lease that is given back ends first and leaves then.
        if lease.is_open() {
            book.enter(&lease, next);
        }
    }
    let now = shared.clock.now();
    let mut any_due = false;
    loop {
        let mut book = shared.book();
        let Some(entry) = book.leases.first_entry().filter(|e| e.key().0 <= now) else {
            break;
        };
        let lease = entry.remove();
        if now < lease.lost_at() {
            // Until the votes are in, only the end is due.
            book.enter(&lease, Moment::FAR);
        }
        drop(book);
        if now >= lease.lost_at() {
            lease.lose(lease.loss_at_deadline());
        } else if lease.renews() {
            renew(shared, lease);
            any_due = true;
        }
    }
    if any_due {
        // Those that are nearly due go along, so that many leases are not many wake-ups and
        // many requests. Taken before the loop: a node may answer on the spot.
        let nearly_due = shared.book().take_nearly_due(now);
        for lease in nearly_due {
            renew(shared, lease);
        }
    }
    let mut book = shared.book();
    let first = book.leases.first_key_value();
    book.sleeps_until = first.map_or(Moment::FAR, |((due, _), _)| *due);
    book.sleeps_until
}

fn renew(shared: &Arc<Shared>, lease: Arc<Held>) {
    let Some(extension) = lease.start_extension(&shared.nodes, &shared.clock) else {
        return;
    };
    let waker = Waker::from(Arc::new(Decided {
        shared: Arc::downgrade(shared),
        lease,
        extension: extension.clone(),
    }));
    let poll = extension
        .broadcast
        .poll_decided(&mut Context::from_waker(&waker));
    if poll.is_ready() {
        waker.wake();
    }
}

/// Wakes the keeper when a renewal's votes have decided.
struct Decided {
    shared: Weak<Shared>,
    lease: Arc<Held>,
    extension: Extension,
}

impl Wake for Decided {
    fn wake(self: Arc<Self>) {
        if let Some(shared) = self.shared.upgrade() {
            let decided = (Arc::clone(&self.lease), self.extension.clone());
            shared.book().decided.push(decided);
            shared.wake.notify_one();
        }
    }
}
