//! Tasks of one client that want the same result.
//!
//! The first of them asks the nodes. The others wait for what it finds, so a thousand tasks stand in
//! line once, and do not ask one after the other when the result is there.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::base::done::Done;
use crate::base::error::Error;
use crate::base::name::Name;

type Runs = Arc<Mutex<HashMap<Name, watch::Sender<Option<Outcome>>>>>;

/// The names for which a task asks.
#[derive(Default)]
pub(crate) struct SharedRuns {
    runs: Runs,
}

/// What the first task found.
#[derive(Clone)]
pub(crate) enum Outcome {
    Done(Done),
    /// The others would find the same, one after the other.
    NoMajority(Error),
}

/// A task that wants a result.
pub(crate) enum Joined {
    First(First),
    Behind(Behind),
}

/// The first task. When dropped without an outcome, one of the others becomes the first.
pub(crate) struct First {
    runs: Runs,
    name: Name,
    sender: watch::Sender<Option<Outcome>>,
}

/// A task that waits for the first.
pub(crate) struct Behind {
    outcome: watch::Receiver<Option<Outcome>>,
}

impl SharedRuns {
    pub(crate) fn join(&self, name: &Name) -> Joined {
        match lock(&self.runs).entry(name.clone()) {
            Entry::Occupied(first) => Joined::Behind(Behind {
                outcome: first.get().subscribe(),
            }),
            Entry::Vacant(entry) => {
                let (sender, _) = watch::channel(None);
                entry.insert(sender.clone());
                Joined::First(First {
                    runs: Arc::clone(&self.runs),
                    name: name.clone(),
                    sender,
                })
            }
        }
    }

    /// Tasks that come from now on do not wait for the present first: what it finds may be older.
    pub(crate) fn forget(&self, name: &Name) {
        lock(&self.runs).remove(name);
    }
}

impl First {
    /// Lets the others have the outcome.
    pub(crate) fn end(&self, outcome: Outcome) {
        self.leave();
        let _ = self.sender.send(Some(outcome));
    }

    fn leave(&self) {
        let mut runs = lock(&self.runs);
        let ours = |sender: &watch::Sender<_>| sender.same_channel(&self.sender);
        if runs.get(&self.name).is_some_and(ours) {
            runs.remove(&self.name);
        }
    }
}

impl Drop for First {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Behind {
    /// Waits for the outcome. `None` if the first task ended without one.
    ///
    /// Cancel safety: dropping the future has no effect.
    pub(crate) async fn outcome(mut self) -> Option<Outcome> {
        let outcome = self.outcome.wait_for(Option::is_some).await;
        outcome.ok().and_then(|outcome| outcome.clone())
    }
}

fn lock(runs: &Runs) -> MutexGuard<'_, HashMap<Name, watch::Sender<Option<Outcome>>>> {
    runs.lock().unwrap_or_else(PoisonError::into_inner)
}
