//! At most one holder.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use leasehold::{Mutex, Released};

use super::{Case, is_taken, taken};

/// A lock can be acquired and released again and again.
pub async fn acquires_and_releases(case: Case) {
    let mutex = case.client().await.mutex("a");
    for _ in 0..20 {
        let lease = taken(&mutex).await;
        assert!(lease.is_valid());
        assert_eq!(lease.name().as_bytes(), b"a");
        assert!(case.locked("a") > 0);
        assert_eq!(lease.release().await, Released::Released);
    }
    case.until_free("a").await;
}

/// Two clients exclude each other.
pub async fn excludes_another_client(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let lease = taken(&one.mutex("a")).await;
    for _ in 0..5 {
        assert!(is_taken(&two.mutex("a")).await);
    }
    lease.release().await;
    drop(taken(&two.mutex("a")).await);
}

/// Two handles of one client exclude each other, too: the lock is not reentrant.
pub async fn excludes_the_same_client(case: Case) {
    let client = case.client().await;
    let lease = taken(&client.mutex("a")).await;
    assert!(is_taken(&client.mutex("a")).await);
    drop(lease);
}

/// Locks of different names are different locks.
pub async fn names_are_independent(case: Case) {
    let client = case.client().await;
    let leases = [
        taken(&client.mutex("a")).await,
        taken(&client.mutex("b")).await,
        taken(&client.mutex("{a}")).await,
        taken(&client.mutex("a}")).await,
        taken(&client.mutex("fence:{a}")).await,
    ];
    assert!(leases.iter().all(leasehold::Lease::is_valid));
}

/// A prefix makes a different name.
pub async fn prefixes_are_independent(case: Case) {
    let plain = case.client().await;
    let prefixed = case.builder().prefix("app:").connect().await;
    let prefixed = prefixed.expect("the nodes work");
    let _plain = taken(&plain.mutex("a")).await;
    let lease = taken(&prefixed.mutex("a")).await;
    assert_eq!(lease.key().as_bytes(), b"app:a");
    assert!(is_taken(&plain.mutex("app:a")).await);
}

/// 64 tasks of one client increment a number that is not atomic.
pub async fn one_of_64_tasks_at_a_time(case: Case) {
    let mutex = case.client().await.mutex("a");
    increment(&vec![mutex; 64], 2).await;
}

/// 8 clients, each with separate connections, do the same.
pub async fn one_of_8_clients_at_a_time(case: Case) {
    let mut mutexes = Vec::new();
    for _ in 0..8 {
        mutexes.push(case.client().await.mutex("a"));
    }
    increment(&mutexes, 10).await;
}

/// The task of each mutex reads a number, lets other tasks run, and writes it back larger. Tokens
/// grow in the order in which the lock was held.
async fn increment(mutexes: &[Mutex], times: u64) {
    let (number, last_token) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let tasks: Vec<_> = mutexes
        .iter()
        .map(|mutex| {
            let mutex = mutex.clone();
            let (number, last_token) = (Arc::clone(&number), Arc::clone(&last_token));
            tokio::spawn(async move {
                for _ in 0..times {
                    let lease = mutex.lock().await.expect("a lease");
                    let before = last_token.swap(lease.token(), Ordering::SeqCst);
                    assert!(before < lease.token(), "{before} < {}", lease.token());
                    let seen = number.load(Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    number.store(seen + 1, Ordering::SeqCst);
                    assert_eq!(lease.release().await, Released::Released);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("the task does not panic");
    }
    let expected = mutexes.len() as u64 * times;
    assert_eq!(number.load(Ordering::SeqCst), expected, "lost updates");
}
