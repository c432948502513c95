//! What is known of a server, for callers that do not ask it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::node::NodeError;

#[derive(Default, Debug)]
pub(super) struct Status {
    /// Whether the server can be asked.
    state: Mutex<Option<Result<(), NodeError>>>,
    /// It cannot, and has failed before: calls fail at once.
    away: AtomicBool,
    floor: AtomicU64,
    /// The link is to connect, although there is no call yet.
    pub(super) needed: Notify,
}

impl Status {
    pub(super) fn get(&self) -> Option<Result<(), NodeError>> {
        self.state().clone()
    }

    pub(super) fn set(&self, state: Result<(), NodeError>) {
        *self.state() = Some(state);
    }

    pub(super) fn is_away(&self) -> bool {
        self.away.load(Ordering::Acquire)
    }

    pub(super) fn set_away(&self, away: bool) {
        self.away.store(away, Ordering::Release);
    }

    /// The answer to a call that is not sent.
    ///
    /// Errors that say what the operator can do are passed on unchanged. The others become
    /// `Unreachable`, which says that the call was not sent.
    pub(super) fn excuse(&self) -> NodeError {
        match self.get() {
            Some(Err(error)) if error.is_permanent() || error.had_no_effect() => error,
            Some(Err(error @ NodeError::Protocol { .. })) => error,
            Some(Err(NodeError::Disconnected { why })) => NodeError::Unreachable { why },
            Some(Err(error)) => NodeError::Unreachable {
                why: error.to_string(),
            },
            _ => NodeError::Unreachable {
                why: "still connecting".into(),
            },
        }
    }

    pub(super) fn floor(&self) -> u64 {
        self.floor.load(Ordering::Relaxed)
    }

    pub(super) fn set_floor(&self, floor: u64) {
        self.floor.store(floor, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, Option<Result<(), NodeError>>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
