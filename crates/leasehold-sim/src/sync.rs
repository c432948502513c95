//! Locks that are never waited for: a run has one thread. They are there because the
//! library's traits ask for `Sync`.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a panic elsewhere.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
