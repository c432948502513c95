//! Locks without fencing exclude, and are excluded, like any other.

use std::time::Duration;

use leasehold::{Error, Mutex, Released};

use super::{Case, TTL, is_taken, pause, taken};
use crate::setup::{lease_of, spawn_lock};

fn plain(mutex: Mutex) -> Mutex {
    mutex.with_options(|options| options.without_fencing())
}

/// The lease has no token, but everything else.
pub async fn without_fencing_it_is_a_plain_lock(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    for round in 0..5 {
        let lease = taken(&plain(one.mutex("a"))).await;
        assert_eq!(lease.token(), 0);
        for mutex in [two.mutex("a"), plain(two.mutex("a")), plain(one.mutex("a"))] {
            assert!(is_taken(&mutex).await, "round {round}");
        }
        lease.extend().await.expect("extended");
        assert!(lease.remaining() > TTL / 2);
        assert_eq!(lease.release().await, Released::Released);
        case.until_free("a").await;
        // It does not interfere with tokens either.
        let fenced = taken(&two.mutex("a")).await;
        assert!(fenced.token() > 0);
        assert!(is_taken(&plain(one.mutex("a"))).await);
        fenced.release().await;
        case.until_free("a").await;
    }
    let lease = taken(&plain(one.mutex("a"))).await;
    let owner = one.inspect("a").await.expect("a majority");
    let owner = owner.lock().expect("held").owner_id();
    assert!(two.break_lock("a", &owner).await.expect("a majority"));
    assert!(matches!(lease.extend().await, Err(Error::Lost { .. })));
}

/// A waiter for it stands in line with a token, and is notified.
pub async fn without_fencing_it_is_handed_over(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    for mutex in [two.mutex("a"), plain(two.mutex("a"))] {
        let lease = taken(&plain(one.mutex("a"))).await;
        let waiting = spawn_lock(mutex);
        pause(200).await;
        assert!(!waiting.is_finished());
        assert_eq!(lease.release().await, Released::Released);
        let got = lease_of(waiting).await;
        assert!(got.token() > 0);
        got.release().await;
        case.until_free("a").await;
    }
}

/// The nodes keep the name taken after the release.
pub async fn without_fencing_it_stays_taken_for_min_hold(case: Case) {
    let client = case.client().await;
    let mutex = plain(client.mutex("a"));
    let long = mutex.with_options(|options| options.min_hold(Duration::from_secs(3600)));
    assert_eq!(taken(&long).await.release().await, Released::Released);
    assert!(is_taken(&plain(client.mutex("a"))).await);
    assert!(is_taken(&client.mutex("a")).await);
}
