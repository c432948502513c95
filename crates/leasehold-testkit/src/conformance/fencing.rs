//! Tokens grow, and a lease that has ended cannot be revived.

use std::time::Duration;

use leasehold::{Client, Error, Released};

use super::{Case, ending, pause, taken};
use crate::ShiftedClock;

/// Every lease has a larger token than the one before it.
pub async fn tokens_grow_from_owner_to_owner(case: Case) {
    let clients = [case.client().await, case.client().await];
    let mut last = 0;
    for round in 0..40 {
        let lease = taken_soon(&clients[round % 2]).await;
        assert!(lease.token() > last, "{} after {last}", lease.token());
        last = lease.token();
        lease.release().await;
    }
}

/// A client's clock that is hours or years off does not affect the tokens.
pub async fn tokens_grow_with_wrong_client_clocks(case: Case) {
    let mut clients = Vec::new();
    for seconds in [
        0,
        -3_600,
        3_600,
        -200_000,
        86_400 * 400,
        -86_400 * 20_000,
        5,
        -5,
    ] {
        let builder = case.builder().time_source(ShiftedClock::ahead_by(seconds));
        clients.push(builder.connect().await.expect("the nodes work"));
    }
    let mut last = 0;
    for round in 0..32 {
        let lease = taken_soon(&clients[round % clients.len()]).await;
        assert!(lease.token() > last, "{} after {last}", lease.token());
        last = lease.token();
        assert_eq!(lease.release().await, Released::Released);
    }
}

/// Nodes that lose their memory do not issue old tokens again.
pub async fn tokens_grow_when_nodes_forget(case: Case) {
    let client = case.client().await;
    let mut last = 0;
    for _ in 0..3 {
        let lease = taken_soon(&client).await;
        assert!(lease.token() > last, "{} after {last}", lease.token());
        last = lease.token();
        case.deployment.forget().await;
        drop(lease);
    }
}

/// Waits, because a node may still be starting up.
async fn taken_soon(client: &Client) -> leasehold::Lease {
    let mutex = client.mutex("a");
    let lease = mutex.lock_timeout(Duration::from_secs(30)).await;
    lease.expect("a lease")
}

/// The release of an owner whose lease is over does not free the next owner's lock.
pub async fn a_stale_owner_cannot_release(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let stale = ending(one.mutex("a")).await;
    let lease = two.mutex("a").lock().await.expect("a lease");
    assert_eq!(stale.release().await, Released::WasLost);
    assert_eq!(one.shutdown(Duration::from_secs(20)).await, 0);
    assert!(case.locked("a") > 0);
    lease.extend().await.expect("still held");
    assert_eq!(lease.release().await, Released::Released);
}

/// A lease that has ended cannot be extended, even when the lock is free again.
pub async fn a_stale_owner_cannot_extend(case: Case) {
    let (one, two) = (case.client().await, case.client().await);
    let stale = ending(one.mutex("a")).await;
    let lease = two.mutex("a").lock().await.expect("a lease");
    assert!(matches!(stale.extend().await, Err(Error::Lost { .. })));
    assert!(lease.is_valid());
    lease.release().await;
    case.until_free("a").await;
    assert!(matches!(stale.extend().await, Err(Error::Lost { .. })));
    assert_eq!(case.locked("a"), 0, "the lock came back");
}

/// Nodes that have forgotten a lease do not accept it again, and the holder is notified.
pub async fn a_lease_that_nodes_forgot_is_lost(case: Case) {
    let client = case.client().await;
    let lease = taken(&client.mutex("a")).await;
    case.deployment.forget().await;
    loop {
        match lease.extend().await {
            Err(Error::Lost { token, .. }) => break assert_eq!(token, lease.token()),
            // The nodes are still starting up.
            Err(Error::NoMajority(_)) => pause(50).await,
            other => panic!("{other:?}"),
        }
    }
    lease.lost().await;
    assert!(!lease.is_valid());
    assert_eq!(lease.release().await, Released::WasLost);
}
