//! Nodes that are dead or silent.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use leasehold::node::NodeError;
use leasehold::{Error, Moment, NodeOutcome, Options, TimeSource};
use leasehold_testkit::setup::{LONG, client, copies, fresh, lock, patient, pause, until};
use leasehold_testkit::{RedisServer, unix_us};

/// The default node timeout.
const TIMEOUT: Duration = Duration::from_millis(250);

/// The node timeout with an allowance for slow machines. It is less than the TTL, which would
/// also end a call.
const SOON: Duration = Duration::from_secs(8);

/// A majority of five is dead: this is reported within the node timeout, and no lock is left
/// behind.
#[tokio::test]
async fn three_of_five_killed_is_no_majority() {
    let mut servers = RedisServer::start_many(5);
    let client = client(&servers).await;
    for server in &mut servers[..3] {
        server.kill();
    }
    for round in 0..5 {
        let start = Instant::now();
        // The two remaining nodes may be slow. That the others are dead is known at once.
        let mutex = client.mutex("a").with_options(patient);
        let error = mutex.try_lock().await.expect_err("an outage");
        let took = start.elapsed();
        assert!(matches!(error, Error::NoMajority(_)), "{error:?}");
        assert!(took < SOON, "round {round}: {took:?}");
        let failed =
            |report: &&leasehold::NodeReport| matches!(report.outcome, NodeOutcome::Failed(_));
        assert_eq!(error.nodes().iter().filter(failed).count(), 3, "{error}");
    }
    until("free", || copies(&servers[3..], "a") == 0).await;
    // The nodes work again without intervention (they restart empty: `assume_fresh`).
    for server in &mut servers[..3] {
        server.restart();
    }
    lock(&client, "a").await.release().await;
}

/// The same with silent nodes.
#[tokio::test]
async fn three_of_five_silent_is_no_majority() {
    let mut servers = RedisServer::start_many(5);
    let client = client(&servers).await;
    for server in &mut servers[..3] {
        server.stop();
    }
    let start = Instant::now();
    let error = client.mutex("a").try_lock().await.expect_err("an outage");
    assert!(start.elapsed() >= TIMEOUT.mul_f64(0.9), "{error}");
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    assert!(matches!(error, Error::NoMajority(_)), "{error:?}");
    for server in &mut servers {
        server.resume();
    }
    // The locks that the silent nodes granted in the end are released long before the TTL of 10
    // s.
    let mutex = client.mutex("a").with_options(|o| o.outage_patience(LONG));
    let lease = mutex.lock_timeout(Duration::from_secs(9)).await;
    lease.expect("healed").release().await;
    until("free", || copies(&servers, "a") == 0).await;
}

/// The timers of a process that gets the processor only now and then.
struct Starved;

impl TimeSource for Starved {
    fn now(&self) -> Moment {
        Moment::now()
    }

    fn unix_us(&self) -> u64 {
        unix_us()
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(tokio::time::sleep(duration + TIMEOUT))
    }
}

/// A client whose own timers are always late does not wait for a silent node for ever.
#[tokio::test]
async fn a_starved_client_gives_up_too() {
    let mut servers = RedisServer::start_many(1);
    let client = fresh(&servers).time_source(Starved).connect().await;
    let client = client.expect("it works");
    servers[0].stop();
    let mutex = client.mutex("a");
    let attempt = tokio::time::timeout(LONG, mutex.try_lock()).await;
    let error = attempt.expect("it hangs").expect_err("silent");
    assert!(matches!(error, Error::NoMajority(_)), "{error:?}");
    servers[0].resume();
}

/// A request that timed out must not leave a lock behind.
#[tokio::test]
async fn a_timed_out_acquire_is_released() {
    let mut servers = RedisServer::start_many(1);
    let client = client(&servers).await;
    lock(&client, "warm").await.release().await;
    servers[0].stop();
    let ttl = |o: Options| o.ttl(LONG).node_timeout(Duration::from_millis(100));
    let mutex = client.mutex("a").with_options(ttl);
    let error = mutex.try_lock().await.expect_err("silent");
    let outcome = &error.nodes()[0].outcome;
    assert!(
        matches!(outcome, NodeOutcome::Failed(NodeError::TimedOut { .. })),
        "{error}"
    );
    servers[0].resume();
    let start = Instant::now();
    until("released", || copies(&servers, "a") == 0).await;
    lock(&client, "a").await.release().await;
    assert!(start.elapsed() < LONG, "the TTL freed it");
}

/// Two of five may fail while the lock is in use, in any way.
#[tokio::test]
async fn two_of_five_may_die_or_go_silent() {
    let mut servers = RedisServer::start_many(5);
    let client = client(&servers).await;
    let mutex = client.mutex("a").with_options(patient);
    let held = lock(&client, "held").await;
    let mut last = 0;
    for fault in 0..4 {
        match fault {
            0 => servers[0].kill(),
            1 => servers[1].stop(),
            2 => servers[1].kill(),
            _ => servers[0].restart(),
        }
        for _ in 0..20 {
            let lease = mutex.lock().await.expect("a majority is left");
            assert!(lease.token() > last);
            last = lease.token();
            lease.release().await;
        }
        held.extend().await.expect("a majority is left");
    }
    assert_eq!(held.release().await, leasehold::Released::Released);
}

/// A failed renewal has no effect: a stall does not end a lease that is still valid.
#[tokio::test]
async fn a_stall_of_the_majority_does_not_end_a_lease() {
    let mut servers = RedisServer::start_many(3);
    let client = client(&servers).await;
    let mutex = client
        .mutex("a")
        .with_options(|o| o.ttl(Duration::from_secs(30)));
    let lease = mutex.lock_timeout(LONG).await.expect("a lease");
    servers[0].stop();
    servers[1].stop();
    let error = lease.extend().await.expect_err("an outage");
    assert!(matches!(error, Error::NoMajority(_)), "{error:?}");
    assert!(lease.is_valid());
    pause(700).await;
    servers[0].resume();
    servers[1].resume();
    let before = lease.deadline();
    let start = Instant::now();
    while lease.extend().await.is_err() {
        assert!(start.elapsed() < Duration::from_secs(25));
        pause(20).await;
    }
    assert!(lease.deadline() > before);
    assert_eq!(copies(&servers, "a"), 3);
    assert_eq!(lease.release().await, leasehold::Released::Released);
}

/// The holder is notified in time when no server answers any more. The test requires this for one
/// of several leases: on a stalled machine some notifications are late.
#[tokio::test]
async fn a_lost_majority_is_signalled_before_the_deadline() {
    let mut servers = RedisServer::start_many(3);
    let client = client(&servers).await;
    let mut leases = Vec::new();
    for i in 0..10 {
        let ttl = Duration::from_secs(3) + Duration::from_millis(700) * i;
        let mutex = client.mutex(format!("a{i}")).with_options(|o| o.ttl(ttl));
        leases.push(mutex.lock_timeout(LONG).await.expect("a lease"));
    }
    servers[0].stop();
    servers[2].kill();
    let mut late = Vec::new();
    for lease in &leases {
        lease.lost().await;
        late.push(Moment::now().saturating_duration_since(lease.deadline()));
        assert!(!lease.is_valid());
    }
    assert!(late.iter().any(Duration::is_zero), "{late:?}");
}

/// An extend needs a majority of all nodes, not of those that granted the lease.
#[tokio::test]
async fn an_extend_needs_a_majority_of_all_nodes() {
    let mut servers = RedisServer::start_many(5);
    servers[0].kill();
    servers[1].kill();
    let client = fresh(&servers).build().unwrap();
    let mutex = client.mutex("a").with_options(patient);
    let lease = mutex.lock().await.expect("three of five");
    servers[2].kill();
    // Two of the three nodes that granted it are left, which is not enough.
    let error = lease.extend().await.expect_err("two of five");
    assert!(matches!(error, Error::NoMajority(_)), "{error:?}");
    // A node that restarts empty refuses to join the lease, because it has lost its memory since.
    servers[0].restart();
    until("connected", || servers[0].get(b"leasehold:epoch").is_some()).await;
    assert!(lease.extend().await.is_err());
}

/// A network that drops the packets to one node costs nothing.
#[tokio::test]
async fn a_black_holed_node_does_not_delay_calls() {
    let servers = RedisServer::start_many(2);
    // The kernel accepts connections, and nothing ever replies.
    let hole = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hole_url = format!("redis://{}", hole.local_addr().unwrap());
    let client = fresh(&servers).node(hole_url).build().unwrap();
    lock(&client, "warm").await.release().await;
    let start = Instant::now();
    let tasks: Vec<_> = (0..10)
        .map(|i| {
            let mutex = client.mutex(format!("a{i}"));
            tokio::spawn(async move {
                // A TTL of one second leaves no time to wait for the third node.
                let mutex = mutex.with_options(|o| o.ttl(Duration::from_secs(1)));
                let lease = mutex.lock().await.expect("two of three");
                lease.release().await
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let took = start.elapsed();
    assert!(
        took < Duration::from_secs(5),
        "one after the other: {took:?}"
    );
}

/// A node that accepts connections and does not reply does not delay a client of two others.
#[tokio::test]
async fn connecting_returns_at_a_majority() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let servers = RedisServer::start_many(2);
    let connecting = fresh(&servers)
        .node(format!("redis://127.0.0.1:{port}"))
        .connect_timeout(Duration::from_secs(3600))
        .connect();
    let client = tokio::time::timeout(LONG, connecting).await;
    let client = client.expect("no wait for the third").expect("a majority");
    lock(&client, "a").await.release().await;
}

/// A lock is broken while one of three nodes is silent. The holder finds out at its next renewal,
/// from the two nodes that answer.
#[tokio::test]
async fn a_break_with_a_silent_node_is_noticed_at_the_next_renewal() {
    let mut servers = RedisServer::start_many(3);
    let client = client(&servers).await;
    let options = |o: Options| o.ttl(LONG).node_timeout(Duration::from_secs(10));
    let mutex = client.mutex("a").with_options(options);
    let lease = mutex.lock().await.expect("a lease");
    servers[1].stop();
    let seen = client.inspect("a").await.expect("two nodes answer");
    let owner = seen.lock().expect("held").owner_id();
    assert!(client.break_lock("a", &owner).await.expect("a majority"));
    let noticed = tokio::time::timeout(LONG.mul_f64(0.8), lease.lost()).await;
    assert!(noticed.is_ok(), "the loss was noticed only at the deadline");
    assert_eq!(lease.loss(), Some(leasehold::Loss::Broken));
    servers[1].resume();
}
