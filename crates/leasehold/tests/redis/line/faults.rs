//! Faults while tasks wait: connections that break, servers that are dead, flushed or full.

use std::time::{Duration, Instant};

use leasehold::Released;
use leasehold_testkit::RedisServer;
use leasehold_testkit::setup::{LONG, client, in_line, lease_of, lock, patient, pause};

use super::{commands, until_in_order};

/// The server sends the notification of a turn over a dead connection, so that it is lost.
#[tokio::test]
async fn a_subscription_that_breaks_is_opened_again() {
    let servers = RedisServer::start_many(3);
    let (one, two) = (client(&servers).await, client(&servers).await);
    for round in 0..10 {
        let lease = lock(&one, "a").await;
        let waiter = in_line(two.mutex("a").with_options(patient)).await;
        for server in &servers {
            server.run("CLIENT KILL TYPE pubsub");
        }
        pause(round).await;
        lease.release().await;
        lease_of(waiter).await.release().await;
    }
}

#[tokio::test]
async fn dead_and_silent_nodes_do_not_delay_a_turn() {
    let mut servers = RedisServer::start_many(5);
    let (one, two) = (client(&servers).await, client(&servers).await);
    for fault in 0..4 {
        let lease = lock(&one, "a").await;
        let waiter = in_line(two.mutex("a").with_options(patient)).await;
        match fault {
            0 => servers[0].kill(),
            1 => servers[1].stop(),
            2 => servers[0].restart(),
            _ => servers[1].resume(),
        }
        lease.release().await;
        lease_of(waiter).await.release().await;
    }
}

/// The line is lost with the server's memory. The waiters join it again.
#[tokio::test]
async fn waiters_rejoin_a_line_that_was_lost() {
    let servers = RedisServer::start_many(3);
    let clients = [
        client(&servers).await,
        client(&servers).await,
        client(&servers).await,
    ];
    until_in_order().await;
    let lease = lock(&clients[0], "a").await;
    let first = in_line(clients[1].mutex("a").with_options(patient)).await;
    pause(5).await;
    let second = in_line(clients[2].mutex("a").with_options(patient)).await;
    // A minority of the nodes loses its memory, and another node its scripts.
    servers[0].run("FLUSHALL");
    servers[1].run("SCRIPT FLUSH");
    lease.release().await;
    let lease = lease_of(first).await;
    lease.release().await;
    lease_of(second).await.release().await;
}

/// A server that is out of memory neither adds waiters to the line nor refreshes them. The
/// waiters poll at a low rate, and give up at their timeouts. They acquire the lock when there is
/// memory again, whether it is released before that or after.
#[tokio::test]
async fn waiters_keep_their_places_while_a_server_is_full() {
    let servers = RedisServer::start_many(1);
    let (one, two) = (client(&servers).await, client(&servers).await);
    let three = client(&servers).await;
    let limit = |bytes| servers[0].run(&format!("CONFIG SET maxmemory {bytes}"));
    for released_while_full in [false, true] {
        let lease = lock(&one, "a").await;
        let waiter = in_line(two.mutex("a").with_options(patient)).await;
        limit(1);
        let (before, since) = (commands(&servers[0]), Instant::now());
        let (mutex, brief) = (
            three.mutex("a").with_options(patient),
            Duration::from_secs(3),
        );
        let error = tokio::time::timeout(LONG / 2, mutex.lock_timeout(brief)).await;
        let error = error.expect("it hangs").expect_err("no lock");
        assert!(since.elapsed() >= brief, "too early: {error}");
        assert!(error.to_string().contains("out of memory"), "{error}");
        // Both pause for 50 to 100 ms, except for the first few times.
        let asked = commands(&servers[0]) - before;
        let most = 100.0 * (since.elapsed().as_secs_f64() + 1.0);
        assert!((asked as f64) < most, "{asked} requests: the waiters spin");
        assert!(!waiter.is_finished());
        if released_while_full {
            assert_eq!(lease.release().await, Released::Released);
            limit(0);
        } else {
            limit(0);
            assert_eq!(lease.release().await, Released::Released);
        }
        lease_of(waiter).await.release().await;
    }
}

/// A waiter that is notified of a grant holds the lock, so a server must not announce a grant
/// that it then refuses to write.
#[tokio::test]
async fn a_full_server_announces_no_grant() {
    let servers = RedisServer::start_many(1);
    let (one, two) = (client(&servers).await, client(&servers).await);
    let three = client(&servers).await;
    let lost = lock(&one, "a").await;
    let waiter = in_line(two.mutex("a").with_options(patient)).await;
    servers[0].run("CONFIG SET maxmemory 1");
    // The holder is another library, which sends no notification. The next request hands the lock
    // over.
    servers[0].run("DEL a");
    let error = three.mutex("a").try_lock().await.expect_err("no lock");
    assert!(error.to_string().contains("out of memory"), "{error}");
    pause(500).await;
    assert!(
        !waiter.is_finished(),
        "the waiter took the lock for granted"
    );
    assert_eq!(servers[0].get(b"a"), None);
    servers[0].run("CONFIG SET maxmemory 0");
    lease_of(waiter).await.release().await;
    drop(lost);
}

/// An invalid fence costs no waiter its place.
#[tokio::test]
async fn an_invalid_fence_does_not_fail_the_waiters() {
    let servers = RedisServer::start_many(1);
    let (one, two, three) = (
        client(&servers).await,
        client(&servers).await,
        client(&servers).await,
    );
    until_in_order().await;
    let lease = lock(&one, "a").await;
    let first = in_line(two.mutex("a").with_options(patient)).await;
    pause(5).await;
    let second = in_line(three.mutex("a").with_options(patient)).await;
    let errors = || servers[0].command(&[b"INFO", b"errorstats"]);
    let before = errors();
    servers[0].run("SET leasehold:fence:{a} x+");
    // Both waiters send WAIT at least once.
    pause(2_500).await;
    assert_eq!(errors(), before, "a script failed");
    lease.release().await;
    lease_of(first).await.release().await;
    lease_of(second).await.release().await;
}

/// A process dies while hundreds of its tasks wait. One request removes only some of them, so that
/// the server is not busy for long; the next requests go on. The next waiter gets the lock.
#[tokio::test]
async fn one_request_removes_a_limited_number_of_dead_waiters() {
    let servers = RedisServer::start_many(1);
    let one = client(&servers).await;
    until_in_order().await;
    for permits in [None, Some(1)] {
        let name = format!("a{permits:?}");
        let holder = match permits {
            None => lock(&one, &name).await,
            Some(number) => one.semaphore(&name, number).acquire().await.expect("free"),
        };
        let waiting = || {
            let keys = servers[0].run("KEYS leasehold:line:*");
            let key = keys.lines().find(|key| key.starts_with("leasehold:line:"));
            key.map_or(0, |key| {
                let count = servers[0].run(&format!("ZCARD {key}"));
                count
                    .trim()
                    .trim_start_matches(':')
                    .parse::<u32>()
                    .expect("a number")
            })
        };
        let dying = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let url = servers[0].url();
        let subscriptions_before = super::subscriptions(&servers[0]);
        dying.spawn(async move {
            let client = leasehold::Client::builder().node(url).connect().await;
            let client = client.expect("connected");
            let mut waiters = tokio::task::JoinSet::new();
            for _ in 0..250 {
                let (lock, semaphore) = (client.rw_lock(&name), client.semaphore(&name, 1));
                waiters.spawn(async move {
                    let _lease = match permits {
                        None => lock.read().await,
                        Some(_) => semaphore.acquire().await,
                    };
                });
            }
            waiters.join_all().await;
        });
        while waiting() < 250 {
            pause(20).await;
        }
        dying.shutdown_background();
        while super::subscriptions(&servers[0]) > subscriptions_before {
            pause(5).await;
        }
        assert_eq!(waiting(), 250);
        holder.release().await;
        assert_eq!(waiting(), 150);
        match permits {
            None => drop(lock(&one, &format!("a{permits:?}")).await),
            Some(number) => {
                let semaphore = one.semaphore(format!("a{permits:?}"), number);
                drop(semaphore.acquire().await.expect("the dead are removed"));
            }
        }
        while waiting() > 0 {
            pause(20).await;
        }
    }
}
