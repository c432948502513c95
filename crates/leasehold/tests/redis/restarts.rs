//! Nodes that lose their memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::node::Vote;
use leasehold::{Client, Error, NodeOutcome, Options, Released};
use leasehold_testkit::setup::{LONG, client, copies, fresh, lock, patient, pause, until};
use leasehold_testkit::{RedisServer, ShiftedClock, unix_us};

pub(super) const GUARD: Duration = Duration::from_secs(4);

/// Servers that have been up for longer than the restart guard, and a client that observes it.
pub(super) async fn guarded(count: usize) -> (Vec<RedisServer>, Client) {
    let servers = RedisServer::start_many(count);
    let client = Client::builder()
        .nodes(servers.iter().map(RedisServer::url))
        .restart_guard(GUARD)
        .options(short(Options::default()))
        .build()
        .unwrap();
    let lease = client
        .mutex("warm")
        .lock()
        .await
        .expect("up for long enough");
    lease.release().await;
    (servers, client)
}

pub(super) fn short(options: Options) -> Options {
    options
        .ttl(Duration::from_secs(3))
        .node_timeout(Duration::from_secs(2))
        .outage_patience(LONG)
}

fn quarantined(outcome: &NodeOutcome) -> bool {
    matches!(outcome, NodeOutcome::Voted(Vote::Quarantined { .. }))
}

/// The known weakness of Redlock: a node that restarts empty votes a second time while the first
/// lease is still valid. A node of leasehold does not.
#[tokio::test]
async fn a_restarted_node_does_not_vote_before_its_time() {
    let (mut servers, client) = guarded(3).await;
    // The lease is on nodes 0 and 1 only. Then node 1 forgets it, and node 2 is back.
    servers[2].kill();
    let lease = client.mutex("a").lock().await.expect("two of three");
    servers[1].restart();
    servers[2].restart();
    let restarted = Instant::now();
    let mut seen = 0;
    let mut outcomes = 0;
    while restarted.elapsed() < GUARD - Duration::from_millis(500) {
        match client.mutex("b").try_lock().await {
            Err(error @ Error::NoMajority(_)) => {
                let nodes = error.nodes();
                seen += nodes.iter().filter(|n| quarantined(&n.outcome)).count();
                outcomes += usize::from(error.to_string().contains("votes again in"));
            }
            other => panic!("voted too early: {other:?}"),
        }
        pause(50).await;
    }
    assert!(seen > 0 && outcomes > 0, "the quarantine is visible");
    // In the end they vote again, with a larger token.
    let token = lease.token();
    drop(lease);
    let next = client
        .mutex("a")
        .lock()
        .await
        .expect("the node votes again");
    assert!(restarted.elapsed() >= GUARD - Duration::from_secs(1));
    assert!(next.token() > token);
}

/// A server that has long been up is usable at once. A new one is not.
#[tokio::test]
async fn a_new_server_waits_unless_assumed_fresh() {
    let servers = RedisServer::start_many(3);
    let urls = || servers.iter().map(RedisServer::url);
    let careful = Client::builder().nodes(urls()).connect().await.unwrap();
    let error = careful.mutex("a").try_lock().await.expect_err("too early");
    assert!(
        error.nodes().iter().all(|n| quarantined(&n.outcome)),
        "{error}"
    );
    let fresh = Client::builder().nodes(urls()).assume_fresh();
    let fresh = fresh.connect().await.unwrap();
    lock(&fresh, "a").await.release().await;
}

/// Scripts that the server has lost are sent again within the same call.
#[tokio::test]
async fn script_flush_does_not_affect_calls() {
    let servers = RedisServer::start_many(3);
    let client = client(&servers).await;
    let mutex = client.mutex("a").with_options(patient);
    for _ in 0..20 {
        for server in &servers {
            server.run("SCRIPT FLUSH");
        }
        let lease = mutex.try_lock().await.expect("no error").expect("free");
        for server in &servers {
            server.run("SCRIPT FLUSH");
        }
        lease.extend().await.expect("extended");
        assert_eq!(lease.release().await, Released::Released);
    }
}

/// FLUSHALL removes the locks, which cannot be prevented. Tokens grow all the same, and a holder
/// whose lock is gone is notified at its next renewal.
#[tokio::test]
async fn flushall_loses_locks_but_tokens_grow() {
    let servers = RedisServer::start_many(3);
    let client = client(&servers).await;
    let mutex = client.mutex("a").with_options(patient);
    let mut last = 0;
    for _ in 0..10 {
        let lease = mutex.try_lock().await.expect("no error").expect("free");
        assert!(lease.token() > last, "{} after {last}", lease.token());
        last = lease.token();
        for server in &servers {
            server.run("FLUSHALL");
        }
        let error = lease.extend().await.expect_err("forgotten");
        assert!(matches!(error, Error::Lost { .. }), "{error:?}");
        assert_eq!(lease.release().await, Released::WasLost);
    }
    until("free", || copies(&servers, "a") == 0).await;
}

/// A client that does not know of the FLUSHALL, and whose clock is slow, would propose a token
/// that was granted before. The node detects that it has lost its memory.
#[tokio::test]
async fn flushall_is_noticed_by_the_next_request() {
    let servers = RedisServer::start_many(1);
    let client = client(&servers).await;
    let slow = fresh(&servers).time_source(ShiftedClock::ahead_by(-3_600));
    let slow = slow.connect().await.expect("connected");
    let mut last = 0;
    for _ in 0..20 {
        let lease = lock(&client, "a").await;
        last = lease.token();
        lease.release().await;
    }
    servers[0].run("FLUSHALL");
    let lease = lock(&slow, "a").await;
    assert!(lease.token() > last, "{} after {last}", lease.token());
}

/// SCRIPT FLUSH and FLUSHALL of single nodes while eight tasks use the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushes_in_the_middle_of_a_run() {
    let servers = RedisServer::start_many(3);
    let client = client(&servers).await;
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..8)
        .map(|i| {
            let mutex = client.mutex(format!("a{}", i % 2)).with_options(patient);
            let stop = Arc::clone(&stop);
            tokio::spawn(async move {
                let mut leases = 0;
                while !stop.load(Ordering::Relaxed) || leases == 0 {
                    let lease = mutex.lock().await.expect("a lease");
                    leases += 1;
                    lease.release().await;
                }
                leases
            })
        })
        .collect();
    for round in 0..60 {
        let server = &servers[round % 3];
        server.run(["SCRIPT FLUSH", "FLUSHALL"][round % 2]);
        pause(20).await;
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        assert!(task.await.expect("no panic") > 0);
    }
    assert_eq!(client.shutdown(LONG).await, 0);
    until("free", || {
        copies(&servers, "a0") + copies(&servers, "a1") == 0
    })
    .await;
}

/// A connection broke while no request was under way. The next call is not affected.
#[tokio::test]
async fn a_restart_without_requests_does_not_affect_calls() {
    let mut servers = RedisServer::start_many(1);
    let client = client(&servers).await;
    let mutex = client.mutex("a").with_options(patient);
    let mut last = 0;
    for _ in 0..5 {
        let lease = mutex.try_lock().await.expect("no error").expect("free");
        assert!(lease.token() > last);
        last = lease.token();
        lease.release().await;
        servers[0].restart();
        pause(20).await;
    }
}

/// A restart with an old snapshot: the lock and the fence in it are out of date.
#[tokio::test]
async fn an_old_snapshot_issues_no_old_tokens() {
    let mut servers = RedisServer::start_many(1);
    let client = client(&servers).await;
    let mutex = client.mutex("a").with_options(patient);
    let first = mutex.lock().await.expect("a lease");
    servers[0].run("SAVE");
    first.release().await;
    let second = mutex.lock().await.expect("a lease");
    let token = second.token();
    second.release().await;
    // The snapshot has the lock and the fence of the first lease.
    servers[0].restart();
    until("the snapshot is back", || copies(&servers, "a") == 1).await;
    assert_eq!(servers[0].run("DEL a"), ":1\r\n");
    let third = mutex.lock().await.expect("a lease");
    assert!(third.token() > token, "{} after {token}", third.token());
}

/// A server restarts with its whole memory after its clock was set back. The floor of its earlier
/// epoch protects names that have had no lease since (found by the simulator).
#[tokio::test]
async fn a_clock_that_went_back_does_not_lower_the_floor() {
    let servers = RedisServer::start_many(1);
    let began = unix_us() + 3_000_000;
    let earlier = format!("{}:skew=1:{began}", "a".repeat(40));
    servers[0].run(&format!("SET leasehold:epoch {earlier}"));
    let client = client(&servers).await;
    let lease = client.mutex("a").with_options(patient).lock().await;
    let lease = lease.expect("a lease when the clock has caught up");
    let floor = began + 10_000_000;
    assert!(lease.token() > floor, "{} {floor}", lease.token());
}
