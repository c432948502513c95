//! The queue of tasks in this process that want the same lock exclusively.
//!
//! One of them at a time has the *turn*: only that task sends requests to the nodes. When a lease is
//! released while another task waits here, its claim is passed on to that task without a round trip.
//! Each holder still has its own, larger token: see [`BLOCK`].

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::acquire::acquiring::Acquiring;
use crate::acquire::proposer::BLOCK;
use crate::base::clock::Moment;
use crate::base::name::Name;
use crate::client::core::Core;
use crate::client::options::Options;
use crate::lease::grant::Won;

/// A claim is passed on for at most this long after it was won: other processes may be waiting in
/// line on the nodes.
const LONGEST: Duration = Duration::from_millis(10);

type Queues = HashMap<Name, VecDeque<oneshot::Sender<LocalTurn>>>;

/// A queue for every name for which a task has the turn.
#[derive(Default)]
pub(crate) struct LocalQueue {
    queues: Mutex<Queues>,
}

/// The right to send requests to the nodes. It goes to the next task in the queue when dropped.
pub(crate) struct LocalTurn {
    core: Weak<Core>,
    name: Name,
    /// A claim that the task before passed on. In a box, because most turns have none.
    passed: Option<Box<Won>>,
    /// Since when the tasks before found no majority.
    pub(crate) outage_since: Option<Moment>,
}

impl LocalQueue {
    /// Waits for the turn. `None` if it does not come before `until`.
    ///
    /// Cancel safety: if dropped, the turn goes to the next task.
    pub(crate) async fn enter(
        core: &Arc<Core>,
        name: &Name,
        until: Moment,
        call: &Acquiring<'_>,
    ) -> Option<LocalTurn> {
        let turn = {
            let mut queues = core.local_queue.queues();
            match queues.entry(name.clone()) {
                Entry::Vacant(entry) => {
                    entry.insert(VecDeque::new());
                    return Some(LocalTurn {
                        core: Arc::downgrade(core),
                        name: name.clone(),
                        passed: None,
                        outage_since: None,
                    });
                }
                Entry::Occupied(mut entry) => {
                    tracing::debug!(
                        %name,
                        "another task of this process holds or wants the lock; a task that holds \
                         it can use `Lease::again`"
                    );
                    let (sender, receiver) = oneshot::channel();
                    // Removes calls at the end that gave up meanwhile. Otherwise callers with a
                    // short timeout would accumulate behind a long lease.
                    let queue = entry.get_mut();
                    while queue.back().is_some_and(oneshot::Sender::is_closed) {
                        queue.pop_back();
                    }
                    queue.push_back(sender);
                    receiver
                }
            }
        };
        call.contend();
        // In a box: most calls do not wait here, and their futures are small.
        Box::pin(async move {
            let mut turn = turn;
            // Outside of a `tokio` runtime there are no timers.
            let mut slow_at = call.slow_at().filter(|_| Handle::try_current().is_ok());
            loop {
                tokio::select! {
                    biased;
                    turn = &mut turn => return turn.ok(),
                    () = core.clock.sleep_until(until), if until < Moment::FAR => return None,
                    () = core.until_shut_down() => return None,
                    () = sleep_until(core, slow_at), if slow_at.is_some() => {
                        slow_at = None;
                        call.warn_of_task();
                    }
                }
            }
        })
        .await
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next task that still waits. If there is none, the queue is removed, and the turn is free.
    fn next(&self, name: &Name) -> Option<oneshot::Sender<LocalTurn>> {
        let mut queues = self.queues();
        let Entry::Occupied(mut queue) = queues.entry(name.clone()) else {
            return None;
        };
        while let Some(next) = queue.get_mut().pop_front() {
            if !next.is_closed() {
                return Some(next);
            }
        }
        queue.remove();
        None
    }
}

/// Sleeps until a moment, if there is one.
async fn sleep_until(core: &Core, at: Option<Moment>) {
    core.clock.sleep_until(at.unwrap_or(Moment::FAR)).await;
}

impl LocalTurn {
    /// Whether to pass a claim on to the next task here. It was won at `won_at`, and has been passed
    /// on `passes` times.
    pub(crate) fn is_wanted(&self, won_at: Moment, passes: u64, now: Moment) -> bool {
        let Some(core) = self.core.upgrade() else {
            return false;
        };
        // The last token of the block is that of a downgrade.
        let bounded = passes + 1 < BLOCK - 1 && now.saturating_duration_since(won_at) < LONGEST;
        let waits = |queue: &VecDeque<oneshot::Sender<Self>>| queue.iter().any(|w| !w.is_closed());
        bounded && core.local_queue.queues().get(&self.name).is_some_and(waits)
    }

    /// Passes a claim on to the next task here.
    pub(crate) fn pass(mut self, claim: Won) {
        self.passed = Some(Box::new(claim));
    }

    /// The claim that was passed on, if it fits these options. Otherwise it is released.
    pub(crate) fn take(&mut self, options: &Options, now: Moment) -> Option<Won> {
        let core = self.core.upgrade()?;
        let passed = self.passed.take()?;
        let grant = &passed.grant;
        let fits = grant.fits(options) && now < grant.deadline();
        match fits && !core.is_shut_down() {
            true => Some(*passed),
            false => {
                core.janitor.release(grant.to_release(None));
                None
            }
        }
    }
}

impl Drop for LocalTurn {
    fn drop(&mut self) {
        let Some(core) = self.core.upgrade() else {
            return;
        };
        while let Some(next) = core.local_queue.next(&self.name) {
            let turn = Self {
                core: Weak::clone(&self.core),
                name: self.name.clone(),
                passed: self.passed.take(),
                outage_since: self.outage_since,
            };
            match next.send(turn) {
                Ok(()) => return,
                // The task went away at this moment. This loop goes on with its turn, so dropping
                // the turn itself must do nothing.
                Err(mut turn) => {
                    self.passed = turn.passed.take();
                    turn.core = Weak::new();
                }
            }
        }
        if let Some(passed) = self.passed.take() {
            core.janitor.post(passed.grant.to_release(None));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use crate::Client;

    #[tokio::test]
    async fn calls_that_gave_up_do_not_accumulate() {
        let client = Client::in_memory();
        let mutex = client.mutex("a");
        let _lease = mutex.lock().await.unwrap();
        for _ in 0..50 {
            let refused = mutex.lock_timeout(Duration::from_millis(1)).await;
            assert!(refused.is_err());
        }
        let queues = client.core().local_queue.queues();
        let queued: Vec<usize> = queues.values().map(VecDeque::len).collect();
        assert!(queued.len() == 1 && queued[0] <= 1, "{queued:?}");
    }
}
