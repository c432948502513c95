//! Holding a lease, and releasing it.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{Error, Moment, Released};

use super::{Case, RENEWED, is_taken, pause, renewed, short, taken};

/// Renewal keeps a lease for as long as it is held.
pub async fn survives_three_ttls_by_renewal(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let lease = taken(&renewed(one.mutex("a"))).await;
    let until = Moment::now() + RENEWED * 3;
    while Moment::now() < until {
        assert!(lease.is_valid());
        assert!(is_taken(&two.mutex("a")).await);
        pause(50).await;
    }
    assert_eq!(lease.release().await, Released::Released);
}

/// One timer renews all leases of a client.
pub async fn renews_many_at_once(case: Case) {
    let client = case.client().await;
    let mut leases = Vec::new();
    for i in 0..100 {
        leases.push(taken(&renewed(client.mutex(format!("a{i}")))).await);
    }
    tokio::time::sleep(RENEWED * 2).await;
    for lease in leases {
        assert!(lease.is_valid());
        assert_eq!(lease.release().await, Released::Released);
    }
}

/// A lease keeps the client's internals alive.
pub async fn outlives_the_client_handle(case: Case) {
    let lease = taken(&renewed(case.client().await.mutex("a"))).await;
    tokio::time::sleep(RENEWED * 2).await;
    assert!(lease.is_valid());
    assert_eq!(lease.release().await, Released::Released);
}

/// `extend` moves the deadline.
pub async fn extends_by_hand(case: Case) {
    let client = case.client().await;
    let mutex = client.mutex("a").with_options(|o| o.without_renewal());
    let lease = taken(&mutex).await;
    for _ in 0..3 {
        let before = lease.deadline();
        pause(20).await;
        lease.extend().await.expect("extended");
        assert!(lease.deadline() >= before + Duration::from_millis(20));
    }
    assert_eq!(lease.release().await, Released::Released);
}

/// `max_hold` ends a lease though it is renewed, and frees the name.
pub async fn ends_at_max_hold(case: Case) {
    let client = case.client().await;
    let before = Moment::now();
    let max_hold = RENEWED * 3 / 2;
    let mutex = renewed(client.mutex("a")).with_options(|o| o.max_hold(max_hold));
    let lease = taken(&mutex).await;
    assert!(lease.is_valid());
    lease.lost().await;
    let held = Moment::now().saturating_duration_since(before);
    assert!(held >= max_hold.mul_f64(0.9), "cut short: {held:?}");
    assert!(lease.deadline() <= Moment::now() + max_hold);
    drop(client.mutex("a").lock().await.expect("free again"));
    assert_eq!(lease.release().await, Released::WasLost);
}

/// `min_hold` keeps the name taken, without an owner, after an early release. Then it is free.
pub async fn stays_taken_for_min_hold(case: Case) {
    let client = case.client().await;
    let before = Moment::now();
    let min_hold = Duration::from_secs(2);
    let mutex = client.mutex("a").with_options(|o| o.min_hold(min_hold));
    let lease = taken(&mutex).await;
    let token = lease.token();
    assert_eq!(lease.release().await, Released::Released);
    if is_taken(&client.mutex("a")).await {
        let error = client.mutex("a").lock_timeout(Duration::ZERO).await;
        let text = error.expect_err("taken").to_string();
        assert!(text.contains("min_hold"), "{text}");
    } else {
        assert!(Moment::now() >= before + min_hold, "free too early");
    }
    let next = client.mutex("a").lock().await.expect("free in the end");
    assert!(Moment::now() >= before + min_hold, "free too early");
    assert!(next.token() > token);
}

/// `with` holds the lock while the closure runs.
pub async fn runs_a_closure_and_releases(case: Case) {
    let client = case.client().await;
    let mutex = client.mutex("a");
    let token = mutex
        .with(async |lease| {
            assert!(is_taken(&client.mutex("a")).await);
            lease.token()
        })
        .await
        .expect("done");
    assert!(token > 0);
    case.until_free("a").await;
}

/// A closure is not polled any more without its lease.
pub async fn cancels_a_closure_when_lost(case: Case) {
    let client = case.client().await;
    let mutex = short(client.mutex("a"));
    let mut finished = false;
    let outcome = mutex
        .with(async |_| {
            pause(60_000).await;
            finished = true;
        })
        .await;
    assert!(matches!(outcome, Err(Error::Lost { .. })), "{outcome:?}");
    assert!(!finished);
}

/// A dropped lease is free soon, not after its TTL.
pub async fn drop_releases(case: Case) {
    let client = case.client().await;
    for _ in 0..3 {
        drop(taken(&client.mutex("a")).await);
        case.until_free("a").await;
    }
}

/// Dropping works from any thread.
pub async fn drop_outside_of_a_runtime_releases(case: Case) {
    let client = case.client().await;
    let lease = taken(&client.mutex("a")).await;
    std::thread::spawn(move || drop(lease))
        .join()
        .expect("dropped");
    case.until_free("a").await;
}

/// `shutdown` waits for the releases of dropped leases, and acquires nothing new.
pub async fn shutdown_drains(case: Case) {
    let client = case.client().await;
    for i in 0..10 {
        drop(taken(&client.mutex(format!("a{i}"))).await);
    }
    assert_eq!(client.shutdown(Duration::from_secs(20)).await, 0);
    for i in 0..10 {
        assert_eq!(case.locked(&format!("a{i}")), 0);
    }
    let refused = client.mutex("a").try_lock().await;
    assert!(matches!(refused, Err(Error::ShutDown)), "{refused:?}");
}

/// A caller that drops a lease and tries again acquires the lock: the release is sent before the
/// acquire.
pub async fn a_dropped_lease_can_be_acquired_again_at_once(case: Case) {
    let case = Arc::new(case);
    drops_and_acquires(&case).await;
    // In a place where no other task runs in between.
    let blocking = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(drops_and_acquires(&case));
    });
    blocking.await.expect("no panic");
}

async fn drops_and_acquires(case: &Case) {
    let client = case.client().await;
    let mutex = client.mutex("a");
    for round in 0..200 {
        let lease = mutex.try_lock().await.expect("a majority");
        drop(
            lease.unwrap_or_else(|| {
                panic!("the dropped lease still holds the lock, in round {round}")
            }),
        );
    }
    assert_eq!(client.shutdown(Duration::from_secs(20)).await, 0);
}

/// The name stays taken for the given period after the work, and no longer.
pub async fn stays_taken_after_release_keeping(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let period = Duration::from_secs(2);
    let lease = taken(&one.mutex("a")).await;
    let start = Moment::now();
    lease.release_keeping(period).await.expect("kept");
    let is_taken = is_taken(&two.mutex("a")).await;
    let after = Moment::now().saturating_duration_since(start);
    // Nodes count in whole milliseconds, and by their own clocks.
    let nearly = period - Duration::from_millis(50);
    assert!(is_taken || after > nearly, "free after {after:?}");
    let next = two.mutex("a").lock_timeout(Duration::from_secs(40)).await;
    next.expect("free again, long before the TTL")
        .release()
        .await;
    let after = Moment::now().saturating_duration_since(start);
    assert!(after > nearly, "free after {after:?}");
    // Only if the lease was valid until then.
    let lease = taken(&short(one.mutex("a"))).await;
    lease.lost().await;
    let error = lease.release_keeping(period).await.expect_err("lost");
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    let long = Duration::from_secs(25 * 3600);
    let error = taken(&one.mutex("b")).await.release_keeping(long).await;
    assert!(matches!(error, Err(Error::Invalid(_))), "{error:?}");
}
