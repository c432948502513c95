//! The keeper renews leases and detects lost ones, with one task and one timer for all leases of a
//! client.
//!
//! The schedule contains each lease under the moment at which something is due: its next renewal,
//! or its end. Acquiring and releasing a lease costs one insertion and one removal. The task is
//! woken only if something is due before its timer fires. The timer stays when its lease is released,
//! so short leases, one after the other, do not wake the task.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use tokio::sync::Notify;

use crate::base::clock::{Clock, Moment};
use crate::base::error::Loss;
use crate::client::core::Closing;
use crate::lease::state::{Extension, Held, Progress, Purpose};
use crate::quorum::Nodes;

/// If another renewal is due, renewals that are due within this time are sent with it.
const NEARLY: Duration = Duration::from_millis(50);

/// A handle for the keeper's task, which ends when this is dropped.
pub(crate) struct Keeper {
    shared: Arc<Shared>,
}

struct Shared {
    nodes: Arc<Nodes>,
    clock: Clock,
    schedule: Mutex<Schedule>,
    wake: Notify,
    closed: AtomicBool,
    closing: Arc<Closing>,
}

struct Schedule {
    /// The task ended with its runtime: no lease is renewed any more.
    abandoned: bool,
    leases: BTreeMap<(Moment, u64), Arc<Held>>,
    /// Renewals that the votes have decided.
    decided: Vec<(Arc<Held>, Extension)>,
    /// When the timer of the task fires.
    wakes_at: Moment,
}

impl Keeper {
    /// Starts the keeper's task on the current runtime.
    pub(crate) fn start(nodes: Arc<Nodes>, clock: Clock, closing: Arc<Closing>) -> Self {
        let shared = Arc::new(Shared {
            nodes,
            clock,
            schedule: Mutex::new(Schedule {
                abandoned: false,
                leases: BTreeMap::new(),
                decided: Vec::new(),
                wakes_at: Moment::FAR,
            }),
            wake: Notify::new(),
            closed: AtomicBool::new(false),
            closing,
        });
        // The guard is created here, because a task may be dropped before it has run at all.
        tokio::spawn(run(EndGuard(Arc::clone(&shared))));
        Self { shared }
    }

    /// Adds a lease.
    pub(crate) fn keep(&self, lease: &Arc<Held>) {
        let mut schedule = self.shared.schedule();
        if schedule.abandoned {
            drop(schedule);
            return lease.lose(Loss::RuntimeEnded);
        }
        if schedule.insert(lease, lease.next_renewal()) {
            drop(schedule);
            self.shared.wake.notify_one();
        }
    }

    /// Removes a lease.
    pub(crate) fn leave(&self, lease: &Held) {
        self.shared.schedule().remove(lease);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        self.shared.wake.notify_one();
    }
}

impl Shared {
    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Schedule {
    /// Schedules a lease for the earlier of `next` and its end. Returns whether the task must be
    /// woken for it.
    fn insert(&mut self, lease: &Arc<Held>, next: Moment) -> bool {
        self.remove(lease);
        let due = next.min(lease.lost_at());
        lease.due.store(due.as_nanos(), Ordering::Relaxed);
        self.leases.insert((due, lease.id), Arc::clone(lease));
        let wakes = due < self.wakes_at;
        self.wakes_at = self.wakes_at.min(due);
        wakes
    }

    /// Sets when the timer fires next, after everything that is due has been done.
    fn set_timer(&mut self, now: Moment) -> Moment {
        let first = self.leases.first_key_value();
        let first = first.map_or(Moment::FAR, |((due, _), _)| *due);
        if self.wakes_at <= now || self.wakes_at > first {
            self.wakes_at = first;
        }
        self.wakes_at
    }

    /// Takes the leases whose renewal is nearly due. From now on, only their end is scheduled.
    fn take_nearly_due(&mut self, now: Moment) -> Vec<Arc<Held>> {
        let soon = self.leases.range(..(now + NEARLY, u64::MAX));
        let soon = soon.filter(|((due, _), lease)| {
            let nearly = NEARLY.min(lease.claim().ttl / 30);
            lease.next_renewal() == *due && due.saturating_duration_since(now) <= nearly
        });
        let leases: Vec<_> = soon.map(|(_, lease)| Arc::clone(lease)).collect();
        for lease in &leases {
            self.insert(lease, Moment::FAR);
        }
        leases
    }

    fn remove(&mut self, lease: &Held) {
        let due = Moment::from_nanos(lease.due.load(Ordering::Relaxed));
        self.leases.remove(&(due, lease.id));
    }
}

/// Ends all leases when the task ends with its runtime, because nothing renews them any more.
struct EndGuard(Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.closing.runtime_ended();
        let mut schedule = self.0.schedule();
        schedule.abandoned = true;
        let leases = std::mem::take(&mut schedule.leases);
        drop(schedule);
        for lease in leases.into_values() {
            lease.lose(Loss::RuntimeEnded);
        }
    }
}

async fn run(guard: EndGuard) {
    let shared = &guard.0;
    while !shared.closed.load(Ordering::Acquire) {
        let next = run_due(shared);
        tokio::select! {
            biased;
            () = shared.wake.notified() => {}
            () = shared.clock.sleep_until(next), if next < Moment::FAR => {}
        }
    }
}

/// Does what is due, and returns when something is due next.
fn run_due(shared: &Arc<Shared>) -> Moment {
    let decided = std::mem::take(&mut shared.schedule().decided);
    for (lease, extension) in decided {
        let next = match lease.finish_extension(&extension, &shared.clock) {
            Progress::Extended => lease.next_renewal(),
            // A failed extend changes nothing: the deadline stays, and the keeper tries again until
            // it passes.
            Progress::Unknown => shared.clock.now() + lease.retry_pause(),
            Progress::Over => continue,
        };
        let mut schedule = shared.schedule();
        // Checked while the schedule is locked: a lease that is released ends first and is removed
        // from the schedule afterwards.
        if lease.is_open() {
            schedule.insert(&lease, next);
        }
    }
    let now = shared.clock.now();
    let mut any_due = false;
    loop {
        let mut schedule = shared.schedule();
        let Some(entry) = schedule.leases.first_entry().filter(|e| e.key().0 <= now) else {
            break;
        };
        let lease = entry.remove();
        if now < lease.lost_at() {
            // Until the votes are counted, only the end is due.
            schedule.insert(&lease, Moment::FAR);
        }
        drop(schedule);
        if now >= lease.lost_at() {
            lease.lose(lease.loss_at_deadline());
        } else if lease.renews() {
            renew(shared, lease);
            any_due = true;
        }
    }
    if any_due {
        // Renewals that are nearly due are sent now, too, so that many leases do not need as many
        // wake-ups and requests. They are taken before the loop, because a node may answer
        // immediately.
        let nearly_due = shared.schedule().take_nearly_due(now);
        for lease in nearly_due {
            renew(shared, lease);
        }
    }
    shared.schedule().set_timer(now)
}

fn renew(shared: &Arc<Shared>, lease: Arc<Held>) {
    let (nodes, clock) = (&shared.nodes, &shared.clock);
    let Some(extension) = lease.start_extension(nodes, clock, Purpose::Renewal) else {
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

/// Wakes the keeper when the votes have decided a renewal.
struct Decided {
    shared: Weak<Shared>,
    lease: Arc<Held>,
    extension: Extension,
}

impl Wake for Decided {
    fn wake(self: Arc<Self>) {
        if let Some(shared) = self.shared.upgrade() {
            let decided = (Arc::clone(&self.lease), self.extension.clone());
            shared.schedule().decided.push(decided);
            shared.wake.notify_one();
        }
    }
}
