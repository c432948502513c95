//! `Lease::cancellation_token`.
#![cfg(feature = "cancellation")]

use std::time::Duration;

use leasehold::Client;

#[tokio::test]
async fn the_token_is_cancelled_when_the_lease_is_lost() {
    let client = Client::in_memory();
    let mutex = client.mutex("a").with_options(|o| {
        let ttl = Duration::from_millis(200);
        o.ttl(ttl).without_renewal()
    });
    let lease = mutex.lock().await.unwrap();
    let token = lease.cancellation_token();
    assert!(!token.is_cancelled());
    tokio::time::timeout(Duration::from_secs(60), token.cancelled())
        .await
        .expect("cancelled");
    assert!(!lease.is_valid());
}

#[tokio::test]
async fn cancelling_one_token_affects_nothing_else() {
    let lease = Client::in_memory().mutex("a").lock().await.unwrap();
    let (one, two) = (lease.cancellation_token(), lease.cancellation_token());
    one.cancel();
    assert!(one.is_cancelled() && !two.is_cancelled());
    assert!(!lease.cancellation_token().is_cancelled());
    assert!(lease.is_valid());
}

#[tokio::test]
async fn the_token_is_not_cancelled_by_a_release() {
    let lease = Client::in_memory().mutex("a").lock().await.unwrap();
    let token = lease.cancellation_token();
    lease.release().await;
    assert!(!token.is_cancelled());
}
