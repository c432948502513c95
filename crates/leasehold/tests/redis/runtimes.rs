//! A client that outlives the runtime on which it was created.

use std::time::Duration;

use leasehold::{Builder, Client, Error, Lease, Loss, MemoryNode};
use leasehold_testkit::RedisServer;
use leasehold_testkit::setup::{LONG, fresh, patient, pause};
use tokio::runtime::Runtime;

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime")
}

/// A client, and a lease of it, on a runtime.
fn held(runtime: &Runtime, builder: Builder) -> (Client, Lease) {
    runtime.block_on(async {
        let client = builder.connect().await.expect("the nodes work");
        let lease = client.mutex("held").lock().await.expect("a lease");
        (client, lease)
    })
}

fn is_clear(error: &Error) -> bool {
    matches!(error, Error::RuntimeEnded) && error.to_string().contains("create the client inside")
}

/// Checks the client's calls after its runtime has shut down.
fn outlives_its_runtime(builder: Builder) {
    let (first, second) = (runtime(), runtime());
    let (client, lease) = held(&first, builder);
    let waiting = second.spawn(client.mutex("held").lock());
    // Until the second call waits for the lease.
    second.block_on(pause(50));
    let lost = lease.lost();
    drop(first);
    second.block_on(async {
        tokio::time::timeout(LONG, lost).await.expect("lost");
        assert!(!lease.is_valid());
        assert_eq!(lease.loss(), Some(Loss::RuntimeEnded));
        let error = lease.extend().await.expect_err("lost");
        assert!(matches!(error, Error::Lost { .. }), "{error}");
        let waited = tokio::time::timeout(LONG, waiting).await.expect("no wait");
        let error = waited.expect("no panic").expect_err("no runtime");
        assert!(is_clear(&error), "{error}");
        let mutex = client.mutex("free");
        for error in [
            mutex.lock().await.map(drop).expect_err("no runtime"),
            mutex.try_lock().await.map(drop).expect_err("no runtime"),
            client.ready(LONG).await.expect_err("no runtime"),
            client
                .inspect("free")
                .await
                .map(drop)
                .expect_err("no runtime"),
            client
                .break_lock("free", "x")
                .await
                .map(drop)
                .expect_err("no runtime"),
        ] {
            assert!(is_clear(&error), "{error}");
        }
    });
}

#[test]
fn a_memory_client_reports_that_its_runtime_has_ended() {
    outlives_its_runtime(Client::builder().custom_node(MemoryNode::new("memory")));
}

#[test]
fn a_redis_client_reports_that_its_runtime_has_ended() {
    let server = RedisServer::start();
    outlives_its_runtime(fresh(&[server]).options(patient(Default::default())));
}

/// The runtime exists, but no thread runs it, so no lease is renewed.
#[test]
fn a_lease_that_is_not_renewed_is_lost_at_its_deadline() {
    let (first, second) = (runtime(), runtime());
    let client = first.block_on(async { Client::in_memory() });
    second.block_on(async {
        let ttl = Duration::from_millis(200);
        let mutex = client.mutex("a").with_options(|o| o.ttl(ttl));
        let lease = mutex.lock().await.expect("a lease");
        tokio::time::timeout(LONG, lease.lost())
            .await
            .expect("lost");
        assert!(!lease.is_valid());
        assert_eq!(lease.loss(), Some(Loss::NotRenewed));
    });
}
