//! A service that sentinels watch, as one node.

use leasehold::{Client, Released};
use leasehold_testkit::SentinelService;
use leasehold_testkit::setup::{eventually, patient, until};

async fn client(url: &str) -> Client {
    let builder = Client::builder().node(url).assume_fresh();
    let builder = builder.connect_timeout(std::time::Duration::from_secs(10));
    builder.connect().await.expect("the master is found")
}

/// The client finds the promoted replica by itself, also while one sentinel is dead. Tokens grow over
/// the failover.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_follows_a_failover() {
    let mut service = SentinelService::start(1);
    service.sentinels[2].kill();
    let client = client(&service.url()).await;
    let mutex = client.mutex("x").with_options(patient);
    let before = mutex.lock().await.expect("a lease");
    let token = before.token();
    assert_eq!(before.release().await, Released::Released);
    let old = service.master();
    let new = tokio::task::block_in_place(|| service.fail_over());
    assert_ne!(old, new);
    // Until the sentinels have demoted it, the old master still grants locks, and loses them then.
    let demoted = || service.servers[old].info("replication", "role") == "slave";
    until("the old master is demoted", demoted).await;
    let after = eventually("a lease", async || mutex.lock().await.ok()).await;
    assert!(after.token() > token, "{} after {token}", after.token());
    let has_lock = service.servers[new].get(b"x").is_some();
    assert!(has_lock, "the promoted replica has granted the lock");
    assert_eq!(after.release().await, Released::Released);
}

#[tokio::test]
async fn a_service_that_no_sentinel_knows() {
    let service = SentinelService::start(0);
    let url = service.url().replace("/locks", "/other");
    let connected = Client::builder().node(url).connect().await;
    let error = connected.expect_err("no such service").to_string();
    assert!(
        error.contains("do not know a service called `other`"),
        "{error}"
    );
}
