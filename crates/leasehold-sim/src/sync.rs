//! Mutexes without contention: a run has one thread. They exist because the library's traits
//! require `Sync`.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even after a panic elsewhere.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
