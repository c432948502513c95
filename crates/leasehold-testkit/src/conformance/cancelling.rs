//! Cancelled callers leave no locks behind.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::{Case, is_taken, pause, taken};

/// A caller that is dropped at any await point leaves no lock that only its TTL would end.
pub async fn a_cancelled_caller_leaves_nothing(case: Case) {
    let client = case.client().await;
    for polls in 1..=12 {
        let name = format!("a{polls}");
        let mutex = client.mutex(&name);
        {
            let mut lock = pin!(mutex.lock());
            for _ in 0..polls {
                let poll = lock.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                if let Poll::Ready(lease) = poll {
                    drop(lease);
                    break;
                }
                // Gives the requests and their answers a small head start.
                pause(polls % 4).await;
            }
        }
        case.until_free(&name).await;
        let lease = mutex.lock_timeout(Duration::from_secs(20)).await;
        lease.expect("free again").release().await;
    }
    assert_eq!(client.shutdown(Duration::from_secs(20)).await, 0);
}

/// A waiter that gives up neither acquires the lock later nor disturbs the holder.
pub async fn a_cancelled_waiter_leaves_nothing(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let lease = taken(&one.mutex("a")).await;
    let mutex = two.mutex("a");
    let waiter = tokio::time::timeout(Duration::from_millis(200), mutex.lock());
    assert!(waiter.await.is_err());
    assert!(lease.is_valid());
    lease.release().await;
    case.until_free("a").await;
    pause(200).await;
    assert_eq!(case.locked("a"), 0);
}

/// The locks that a failed attempt may have acquired on some nodes are free at once.
pub async fn a_failed_attempt_leaves_nothing(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let lease = taken(&one.mutex("a")).await;
    let before = case.deployment.values(b"a");
    for _ in 0..20 {
        assert!(is_taken(&two.mutex("a")).await);
    }
    assert_eq!(two.shutdown(Duration::from_secs(20)).await, 0);
    for (before, after) in before.iter().zip(case.deployment.values(b"a")) {
        // The holder may have acquired the lock on more nodes meanwhile. No other client has.
        assert!(before.is_none() || *before == after);
    }
    lease.release().await;
    case.until_free("a").await;
}
