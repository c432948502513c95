//! Tasks of one process that want the same name wait for each other here, and not on the
//! nodes: one of them at a time has the turn to stand in line there. Who gives its lease back
//! while another waits here passes the claim on, without a round trip.
//!
//! Each holder still has its own, larger token: see [`BLOCK`].

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::acquire::proposer::BLOCK;
use crate::base::clock::Moment;
use crate::base::name::Name;
use crate::client::core::Core;
use crate::client::options::Options;
use crate::lease::grant::Won;

/// A claim is passed on for so long at most: others may be waiting on the nodes.
const LONGEST: Duration = Duration::from_millis(10);

/// The queues of all names for which somebody has or waits for a turn.
#[derive(Default)]
pub(crate) struct LocalQueue {
    names: Mutex<HashMap<Name, VecDeque<oneshot::Sender<LocalTurn>>>>,
}

/// The right to stand in line on the nodes. Goes on to the next who waits when dropped.
pub(crate) struct LocalTurn {
    core: Weak<Core>,
    name: Name,
    /// In a box: nearly all turns have none.
    passed: Option<Box<Won>>,
    /// Since when those before found no majority.
    pub(crate) outage_since: Option<Moment>,
}

impl LocalQueue {
    /// Waits for the turn. `None` if it does not come before `until`.
    ///
    /// Cancel safety: if dropped, the turn goes to the next.
    pub(crate) async fn enter(core: &Arc<Core>, name: &Name, until: Moment) -> Option<LocalTurn> {
        let turn = {
            let mut names = core.local_queue.names();
            match names.entry(name.clone()) {
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
                    let (sender, receiver) = oneshot::channel();
                    // Those at the end who gave up meanwhile are forgotten, or callers that
                    // try for a moment again and again would pile up behind a long lease.
                    let queue = entry.get_mut();
                    while queue.back().is_some_and(oneshot::Sender::is_closed) {
                        queue.pop_back();
                    }
                    queue.push_back(sender);
                    receiver
                }
            }
        };
        tokio::select! {
            biased;
            turn = turn => turn.ok(),
            () = core.clock.sleep_until(until), if until < Moment::FAR => None,
            () = core.until_shut_down() => None,
        }
    }

    fn names(&self) -> MutexGuard<'_, HashMap<Name, VecDeque<oneshot::Sender<LocalTurn>>>> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next who waits, if any; if none, nobody has the turn any more.
    fn next(&self, name: &Name) -> Option<oneshot::Sender<LocalTurn>> {
        let mut names = self.names();
        let queue = names.get_mut(name)?;
        while let Some(next) = queue.pop_front() {
            // Those who have gone away in the meantime are passed over.
            if !next.is_closed() {
                return Some(next);
            }
        }
        names.remove(name);
        None
    }
}

impl LocalTurn {
    /// Whether a claim that was won at `won_at`, and `passes` holders ago, is to be passed on
    /// to somebody here.
    pub(crate) fn is_wanted(&self, won_at: Moment, passes: u64, now: Moment) -> bool {
        let Some(core) = self.core.upgrade() else {
            return false;
        };
        let bounded = passes + 1 < BLOCK && now.saturating_duration_since(won_at) < LONGEST;
        let waits = |queue: &VecDeque<oneshot::Sender<Self>>| queue.iter().any(|w| !w.is_closed());
        bounded && core.local_queue.names().get(&self.name).is_some_and(waits)
    }

    /// Passes a claim on to the next who waits here.
    pub(crate) fn pass(mut self, claim: Won) {
        self.passed = Some(Box::new(claim));
    }

    /// The claim that was passed on, if it will do for these options.
    pub(crate) fn take(&mut self, options: &Options, now: Moment) -> Option<Won> {
        let core = self.core.upgrade()?;
        let passed = self.passed.take()?;
        let grant = &passed.grant;
        let fits = grant.fits(options) && now < grant.deadline();
        match fits && !core.is_shut_down() {
            true => Some(*passed),
            false => {
                core.janitor.give_back(grant.to_return(None));
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
                // It went away at this moment. Its turn must not go on by itself.
                Err(mut turn) => {
                    self.passed = turn.passed.take();
                    turn.core = Weak::new();
                }
            }
        }
        if let Some(passed) = self.passed.take() {
            core.janitor.post(passed.grant.to_return(None));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use crate::Client;

    #[tokio::test]
    async fn those_who_gave_up_do_not_pile_up() {
        let client = Client::in_memory();
        let mutex = client.mutex("a");
        let _lease = mutex.lock().await.unwrap();
        for _ in 0..50 {
            let refused = mutex.lock_timeout(Duration::from_millis(1)).await;
            assert!(refused.is_err());
        }
        let names = client.core().local_queue.names();
        let queued: Vec<usize> = names.values().map(VecDeque::len).collect();
        assert!(queued.len() == 1 && queued[0] <= 1, "{queued:?}");
    }
}
