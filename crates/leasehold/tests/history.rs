//! The history of names, on every kind of node.

use std::time::{Duration, SystemTime};

use leasehold::node::HISTORY_ENTRIES;
use leasehold::{Client, History, LeaseEnd, Loss, MemoryNode, Released};
use leasehold_testkit::setup::{LONG, eventually, fresh, lock, patient};
use leasehold_testkit::{Deployment, Local, Memory, Redis, RedisServer};

fn deployments() -> Vec<Box<dyn Deployment>> {
    vec![
        Box::new(Memory::new()),
        Box::new(Local::new()),
        Box::new(Redis::start(1)),
        Box::new(Redis::start(3)),
    ]
}

fn recording(nodes: &dyn Deployment) -> Client {
    nodes.builder().history().build().expect("a client")
}

/// The history after all entries of the client were written.
async fn written(client: &Client, name: &str) -> History {
    client.shutdown(LONG).await;
    assert!(client.history_errors().is_empty());
    client.history(name).await.expect("the nodes answer")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn released_leases_the_latest_first() {
    for nodes in deployments() {
        let client = recording(&*nodes);
        let before = SystemTime::now() - Duration::from_millis(1);
        let mut tokens = Vec::new();
        for _ in 0..3 {
            let lease = lock(&client, "a").await;
            tokens.insert(0, Some(lease.token()));
            match tokens.len() {
                2 => drop(lease),
                _ => drop(lease.release().await),
            }
        }
        let history = written(&client, "a").await;
        let seen: Vec<_> = history
            .leases
            .iter()
            .map(|past| past.holder.token)
            .collect();
        assert_eq!(seen, tokens);
        for past in &history.leases {
            assert_eq!(past.end, LeaseEnd::Released);
            assert_eq!(past.holder.pid, Some(std::process::id()));
            let (from, to) = (
                past.acquired_at.expect("known"),
                past.ended_at.expect("known"),
            );
            assert!(before <= from && from <= to && to <= SystemTime::now());
        }
        let other = nodes.builder().build().expect("a client");
        assert!(other.history("b").await.expect("answers").leases.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_records_nothing_writes_nothing() {
    let server = [RedisServer::start()];
    let client = fresh(&server).build().expect("a client");
    let lease = lock(&client, "a").await;
    // It is broken by a client that records nothing either.
    let broken = client.break_lock("a", &lease.owner_id()).await;
    assert!(broken.expect("the node answers"));
    drop(lease);
    lock(&client, "a").await.release().await;
    client.shutdown(LONG).await;
    assert_eq!(server[0].run("KEYS leasehold:history:*"), "*0\r\n");
    assert!(
        client
            .history("a")
            .await
            .expect("answers")
            .leases
            .is_empty()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_lease_says_why() {
    for nodes in deployments() {
        let client = recording(&*nodes);
        let short =
            |options: leasehold::Options| patient(options).max_hold(Duration::from_millis(50));
        let lease = client.mutex("a").with_options(short).lock().await;
        let lease = lease.expect("a lease");
        lease.lost().await;
        // The loss is noticed by the clock, a moment before the lease is ended.
        let recorded = async || {
            let history = client.history("a").await.expect("the nodes answer");
            (!history.leases.is_empty()).then_some(history.leases)
        };
        let leases = eventually("the loss is recorded", recorded).await;
        assert_eq!(leases[0].end, LeaseEnd::Lost(Loss::MaxHold));
        assert_eq!(leases.len(), 1);
        assert!(client.history_errors().is_empty());
    }
}

/// The connection of the history was idle while the lease was held, and was closed on the way. A
/// process exits after the shutdown, so a later attempt would be too late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_is_recorded_over_another_connection() {
    let server = [RedisServer::start()];
    let client = fresh(&server).history().build().expect("a client");
    lock(&client, "a").await.release().await;
    let recorded = async || {
        client
            .history("a")
            .await
            .is_ok_and(|past| !past.leases.is_empty())
            .then_some(())
    };
    eventually("the first lease is recorded", recorded).await;
    let lease = lock(&client, "a").await;
    server[0].run("CLIENT KILL TYPE normal");
    lease.release().await;
    let history = written(&client, "a").await;
    let ends: Vec<_> = history.leases.iter().map(|past| past.end.clone()).collect();
    assert_eq!(ends, [LeaseEnd::Released, LeaseEnd::Released]);
}

/// Only the answers to the release tell that another client has acquired the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_was_taken_away_was_not_released() {
    for keeps in [false, true] {
        let server = [RedisServer::start()];
        let client = fresh(&server).history().build().expect("a client");
        let unrenewed = |options: leasehold::Options| patient(options).without_renewal();
        let lease = client.mutex("a").with_options(unrenewed).lock().await;
        let lease = lease.expect("a lease");
        let token = lease.token();
        server[0].run("FLUSHALL");
        let other = fresh(&server).build().expect("a client");
        let _taken = lock(&other, "a").await;
        match keeps {
            true => assert!(lease.release_keeping(LONG).await.is_err()),
            false => assert_eq!(lease.release().await, Released::WasLost),
        }
        let history = written(&client, "a").await;
        assert_eq!(history.leases[0].holder.token, Some(token));
        assert_eq!(history.leases[0].end, LeaseEnd::Lost(Loss::TakenAway));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_lease_names_the_client_that_broke_it() {
    for nodes in deployments() {
        let client = recording(&*nodes);
        lock(&client, "a").await.release().await;
        client.shutdown(LONG).await;
        let client = recording(&*nodes);
        let lease = lock(&client, "a").await;
        let other = nodes.builder().build().expect("a client");
        let broken = other.break_lock("a", &lease.owner_id()).await;
        assert!(broken.expect("the nodes answer"));
        let history = other.history("a").await.expect("the nodes answer");
        assert_eq!(history.leases.len(), 2);
        let past = &history.leases[0];
        assert_eq!(past.holder.token, Some(lease.token()));
        let LeaseEnd::Broken { by: Some(by), .. } = &past.end else {
            panic!("{:?}", past.end);
        };
        assert!(
            by.ends_with(&format!(" pid {}", std::process::id())),
            "{by}"
        );
        assert!(past.ended_at.is_some());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_without_an_end_is_held_or_has_expired() {
    for nodes in deployments() {
        let client = recording(&*nodes);
        let lease = lock(&client, "a").await;
        let detached = lease.detach().await.expect("held");
        let history = written(&client, "a").await;
        assert_eq!(history.leases[0].end, LeaseEnd::StillHeld);
        assert_eq!(history.leases[0].ended_at, None);

        // Its holder crashes: the nodes forget the lock, and nobody records an end.
        let plain = nodes.builder().build().expect("a client");
        let owner = detached.owner().to_owned();
        let detached = plain.mutex("a").detached(&owner).expect("an owner value");
        detached.release().await.expect("the nodes answer");
        let before = SystemTime::now();
        let history = plain.history("a").await.expect("the nodes answer");
        assert_eq!(history.leases[0].end, LeaseEnd::Expired);
        assert!(history.leases[0].ended_at.expect("a latest time") >= before);

        // It ended before the next lease began.
        let client = recording(&*nodes);
        let next = lock(&client, "a").await;
        next.release().await;
        let history = written(&client, "a").await;
        assert_eq!(history.leases[1].end, LeaseEnd::Expired);
        assert_eq!(history.leases[1].ended_at, history.leases[0].acquired_at);
        assert_eq!(history.leases[0].end, LeaseEnd::Released);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_entries_are_dropped() {
    for nodes in deployments() {
        let client = recording(&*nodes);
        let mut last = 0;
        for _ in 0..HISTORY_ENTRIES + 20 {
            let lease = lock(&client, "a").await;
            last = lease.token();
            lease.release().await;
        }
        let history = written(&client, "a").await;
        // A lease that was held for longer than a second, as on a machine that is stopped, has two
        // entries.
        let least = HISTORY_ENTRIES / 2;
        let leases = history.leases.len();
        assert!((least..=HISTORY_ENTRIES).contains(&leases), "{leases}");
        assert_eq!(history.leases[0].holder.token, Some(last));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_down_delays_no_lock_and_is_named() {
    let mut servers = RedisServer::start_many(3);
    let client = fresh(&servers).history().build().expect("a client");
    lock(&client, "a").await.release().await;
    client.shutdown(LONG).await;
    let client = fresh(&servers).history().build().expect("a client");
    servers[0].kill();
    lock(&client, "a").await.release().await;
    client.shutdown(LONG).await;
    assert_eq!(client.history_errors().len(), 1);
    servers[0].restart();
    servers[1].kill();
    let reader = fresh(&servers).build().expect("a client");
    let history = reader.history("a").await.expect("two nodes answer");
    let ends: Vec<_> = history.leases.iter().map(|past| &past.end).collect();
    assert_eq!(ends, [&LeaseEnd::Released; 2]);
    assert_eq!(history.missing.len(), 1);
    for server in &mut servers {
        server.kill();
    }
    assert!(reader.history("a").await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_the_permission_still_locks() {
    let server = [RedisServer::start()];
    server[0].run("ACL SETUSER default -lpush");
    let client = fresh(&server).history().build().expect("a client");
    let released = lock(&client, "a").await.release().await;
    assert_eq!(released, Released::Released);
    client.shutdown(LONG).await;
    assert_eq!(client.history_errors().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_on_a_server_expire_and_have_no_owner_value() {
    let server = [RedisServer::start()];
    let client = fresh(&server).history().build().expect("a client");
    let lease = lock(&client, "a").await;
    let owner = server[0].get(b"a").expect("a lock");
    lease.release().await;
    client.shutdown(LONG).await;
    let keys = server[0].run("KEYS leasehold:history:*");
    let key = keys.lines().last().expect("a key").to_owned();
    let ttl = server[0].run(&format!("PTTL {key}"));
    let ttl: u64 = ttl.trim_start_matches(':').trim().parse().expect("a TTL");
    assert!(ttl > 6 * 24 * 3600 * 1000, "{ttl}");
    let entries = server[0].run(&format!("LRANGE {key} 0 -1"));
    assert!(entries.contains("released:"), "{entries}");
    let secret = std::str::from_utf8(&owner[..16]).expect("text");
    assert!(!entries.contains(secret), "{entries}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_have_a_history_of_their_own() {
    for nodes in deployments() {
        let client = recording(&*nodes);
        let permit = client.semaphore("a", 2).acquire().await.expect("free");
        let number = permit.permit();
        assert!(number.is_some());
        permit.release().await;
        client.shutdown(LONG).await;
        let history = client.permit_history("a").await.expect("answers");
        assert_eq!(history.leases.len(), 1);
        assert_eq!(history.leases[0].permit, number);
        assert_eq!(history.leases[0].end, LeaseEnd::Released);
        assert!(
            client
                .history("a")
                .await
                .expect("answers")
                .leases
                .is_empty()
        );
    }
}

#[tokio::test]
async fn a_name_that_is_not_valid_is_refused() {
    let client = Client::builder()
        .custom_node(MemoryNode::new("memory"))
        .build();
    assert!(client.expect("a client").history("").await.is_err());
}
