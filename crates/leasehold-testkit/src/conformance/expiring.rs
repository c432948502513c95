//! A lease ends by itself.

use std::time::Duration;

use leasehold::{Moment, Released};

use super::{Case, ending, pause};

/// A holder that does not renew loses the lock to the next one.
pub async fn is_free_after_its_ttl(case: Case) {
    let client = case.client().await;
    let lease = ending(client.mutex("a")).await;
    let next = client.mutex("a").lock().await.expect("a lease");
    assert!(!lease.is_valid(), "two holders");
    assert!(next.is_valid());
    assert!(next.token() > lease.token());
}

/// The deadline is kept locally: no answer of a server is needed to know it.
pub async fn is_over_at_its_deadline(case: Case) {
    let client = case.client().await;
    let before = Moment::now();
    let lease = ending(client.mutex("a")).await;
    // ttl − drift, counted from before the request.
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

/// `release` of a lease that has expired says so and does not hang.
pub async fn says_that_it_was_lost_when_given_back_late(case: Case) {
    let client = case.client().await;
    let lease = ending(client.mutex("a")).await;
    pause(900).await;
    assert_eq!(lease.release().await, Released::WasLost);
}

/// `lost()` resolves while the lease is still good for a moment.
///
/// A machine that stands still at that moment is late whatever the code does, so it may try again.
/// Never is it early.
pub async fn signals_the_loss_before_the_deadline(case: Case) {
    let client = case.client().await;
    let mut late = Vec::new();
    for i in 0..20 {
        // Of no length that is in step with what keeps the machine busy.
        let ttl = Duration::from_millis(3_000 + 137 * i);
        let mutex = client
            .mutex("a")
            .with_options(|o| o.ttl(ttl).node_timeout(ttl).without_renewal());
        let lease = mutex.lock().await.expect("a lease");
        let deadline = lease.deadline();
        lease.lost().await;
        let now = Moment::now();
        assert!(deadline.saturating_duration_since(now) < ttl / 10, "early");
        // It stays lost.
        lease.lost().await;
        assert!(!lease.is_valid());
        if now < deadline {
            return;
        }
        late.push(now.saturating_duration_since(deadline));
    }
    panic!("late, every time: {late:?}");
}

/// Who waits for the lock gets it only when the lease of the holder is over, of which it is told.
pub async fn nobody_else_holds_it_before_it_is_over(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let lease = ending(one.mutex("a")).await;
    let lost = lease.lost();
    let next = two.mutex("a").lock().await.expect("a lease");
    assert!(!lease.is_valid());
    lost.await;
    assert!(next.token() > lease.token());
}
