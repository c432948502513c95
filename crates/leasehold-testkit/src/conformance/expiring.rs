//! A lease expires without a release.

use std::time::Duration;

use leasehold::{Moment, Released};

use super::{Case, ending, pause};

/// A holder that does not renew loses the lock to the next client.
pub async fn is_free_after_its_ttl(case: Case) {
    let client = case.client().await;
    let lease = ending(client.mutex("a")).await;
    let next = client.mutex("a").lock().await.expect("a lease");
    assert!(!lease.is_valid(), "two holders");
    assert!(next.is_valid());
    assert!(next.token() > lease.token());
}

/// The client tracks the deadline itself, without an answer of a server.
pub async fn ends_at_its_deadline(case: Case) {
    let client = case.client().await;
    let before = Moment::now();
    let lease = ending(client.mutex("a")).await;
    // TTL − drift, counted from before the request.
    let latest = Moment::now() + Duration::from_millis(790);
    assert!(lease.deadline() >= before + Duration::from_millis(790));
    assert!(lease.deadline() <= latest);
    loop {
        let now = Moment::now();
        if !lease.is_valid() {
            break;
        }
        assert!(now <= lease.deadline());
        pause(5).await;
    }
    assert_eq!(lease.remaining(), Duration::ZERO);
}

/// `release` of an expired lease reports the loss, and does not hang.
pub async fn reports_the_loss_when_released_late(case: Case) {
    let client = case.client().await;
    let lease = ending(client.mutex("a")).await;
    pause(900).await;
    assert_eq!(lease.release().await, Released::WasLost);
}

/// `lost()` resolves while the lease is still valid for a moment.
///
/// A machine that stalls at that moment is late whatever the code does, so the case may try
/// again. It must never be early.
pub async fn signals_the_loss_before_the_deadline(case: Case) {
    let client = case.client().await;
    let mut late = Vec::new();
    for i in 0..20 {
        // A length that is not in step with other periodic load on the machine.
        let ttl = Duration::from_millis(3_000 + 137 * i);
        let mutex = client
            .mutex("a")
            .with_options(|o| o.ttl(ttl).node_timeout(ttl).without_renewal());
        let lease = mutex.lock().await.expect("a lease");
        let deadline = lease.deadline();
        lease.lost().await;
        let now = Moment::now();
        assert!(deadline.saturating_duration_since(now) < ttl / 10, "early");
        // The lease stays lost.
        lease.lost().await;
        assert!(!lease.is_valid());
        if now < deadline {
            return;
        }
        late.push(now.saturating_duration_since(deadline));
    }
    panic!("late, every time: {late:?}");
}

/// A waiter acquires the lock only after the holder's lease has ended, and the holder was
/// notified of that.
pub async fn no_other_client_holds_it_before_the_lease_ends(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let lease = ending(one.mutex("a")).await;
    let lost = lease.lost();
    let next = two.mutex("a").lock().await.expect("a lease");
    assert!(!lease.is_valid());
    lost.await;
    assert!(next.token() > lease.token());
}
