//! Who acquires the lock next, and that no waiter is missed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Client, Options};
use leasehold_testkit::RedisServer;
use leasehold_testkit::setup::{LONG, client, in_line, lease_of, lock, patient, pause};

use super::until_in_order;
use crate::proxy;

/// The holder dies: when the lock has expired, it goes to the first in line.
#[tokio::test]
async fn an_expired_lock_goes_to_the_first_in_line() {
    let servers = RedisServer::start_many(1);
    let two = client(&servers).await;
    let gone = client(&servers).await;
    let short = |o: Options| {
        patient(o)
            .ttl(Duration::from_millis(700))
            .node_timeout(Duration::from_millis(500))
            .without_renewal()
    };
    let lease = gone
        .mutex("a")
        .with_options(short)
        .lock()
        .await
        .expect("a lease");
    let since = Instant::now();
    let waiter = in_line(two.mutex("a").with_options(patient)).await;
    std::mem::forget(lease);
    lease_of(waiter).await.release().await;
    assert!(since.elapsed() >= Duration::from_millis(600), "too early");
}

/// Another library releases its lock without a notification.
#[tokio::test]
async fn a_foreign_release_is_found_by_polling() {
    let servers = RedisServer::start_many(3);
    let two = client(&servers).await;
    for server in &servers {
        server.run("SET a foreign PX 60000");
    }
    let waiter = in_line(two.mutex("a").with_options(patient)).await;
    pause(100).await;
    assert!(!waiter.is_finished());
    for server in &servers {
        server.run("DEL a");
    }
    let since = Instant::now();
    lease_of(waiter).await.release().await;
    assert!(since.elapsed() < LONG / 4, "{:?}", since.elapsed());
}

/// An expired lock belongs to the first in line, even when an unfenced acquire arrives first.
#[tokio::test]
async fn an_acquire_without_fencing_respects_the_line() {
    let servers = RedisServer::start_many(1);
    let (one, two, passer_by) = (
        client(&servers).await,
        client(&servers).await,
        client(&servers).await,
    );
    let plain = passer_by
        .mutex("a")
        .with_options(|o| patient(o).without_fencing());
    for _ in 0..10 {
        let lease = lock(&one, "a").await;
        let waiter = in_line(two.mutex("a").with_options(patient)).await;
        // As if the lock had expired: no notification is sent.
        servers[0].run("DEL a");
        let overtook = plain.try_lock().await.expect("an answer").is_some();
        assert!(!overtook, "the unfenced acquire overtook the first in line");
        drop(lease);
        lease_of(waiter).await.release().await;
        // Without a line it acquires the lock at once.
        let lease = plain.lock().await.expect("a lease");
        lease.release().await;
    }
}

/// Three nearby clients hold the lock for a millisecond each, again and again. A client 40 ms
/// away used to be overtaken each time while its request travelled.
#[tokio::test]
async fn a_far_client_gets_its_turn_among_nearby_ones() {
    let servers = RedisServer::start_many(1);
    let url = proxy::distant(servers[0].port(), Duration::from_millis(40)).await;
    let far = Client::builder()
        .node(url)
        .connect_timeout(Duration::from_secs(10))
        .assume_fresh();
    let far = far.connect().await.expect("the node works");
    for _ in 0..3 {
        let near = client(&servers).await;
        tokio::spawn(async move {
            loop {
                let lease = lock(&near, "a").await;
                pause(1).await;
                lease.release().await;
            }
        });
    }
    pause(500).await;
    let mutex = far.mutex("a").with_options(patient);
    for turn in 0..5 {
        let lease = mutex.lock_timeout(LONG).await;
        let lease = lease.unwrap_or_else(|error| panic!("turn {turn}: {error}"));
        lease.release().await;
    }
}

/// Reads what a server stores of a line, at one moment.
const SNAPSHOT: &str = "\
    local time, out = redis.call('TIME'), {}
    out[1] = time[1] * 1000 + math.floor(time[2] / 1000)
    out[2] = redis.call('PTTL', 'leasehold:line:{a}')
    out[3] = string.match(redis.call('GET', 'leasehold:fence:{a}') or '0', '%d+')
    local line = redis.call('ZRANGE', 'leasehold:line:{a}', 0, -1, 'WITHSCORES')
    for i = 1, #line, 2 do
      local asked = redis.call('ZSCORE', 'leasehold:seen:{a}', line[i]) or 0
      out[#out + 1] = string.sub(line[i], 1, 16)
      out[#out + 1] = string.match(line[i], '^%x+:(%d+):')
      out[#out + 1] = math.floor(asked / 1000)
    end
    for i, value in ipairs(out) do
      if type(value) == 'number' then out[i] = string.format('%.0f', value) end
    end
    return table.concat(out, ' ')";

struct Snapshot {
    now_ms: i64,
    lives_ms: i64,
    fence: i64,
    /// Secret, ticket, and time of the last WAIT.
    waiters: Vec<(String, i64, i64)>,
}

impl Snapshot {
    fn take(server: &RedisServer) -> Self {
        let reply = server.command(&[b"EVAL", SNAPSHOT.as_bytes(), b"0"]);
        let body = reply.split("\r\n").nth(1).expect("a text");
        let words: Vec<_> = body.split(' ').collect();
        let number = |word: &str| word.parse().unwrap_or_else(|_| panic!("{reply}"));
        let waiters = words[3..].chunks_exact(3);
        Self {
            now_ms: number(words[0]),
            lives_ms: number(words[1]),
            fence: number(words[2]),
            waiters: waiters
                .map(|waiter| (waiter[0].to_owned(), number(waiter[1]), number(waiter[2])))
                .collect(),
        }
    }
}

/// Waiters in a line in which each one is first only for a moment. The line does not expire
/// before its waiters, and no waiter that can still win is missing from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_in_motion_loses_no_waiter() {
    const DEAD_MS: i64 = 3000;
    const KEPT_MS: i64 = 9000;
    let servers = RedisServer::start_many(1);
    until_in_order().await;
    let done = Arc::new(AtomicBool::new(false));
    let mut contenders = Vec::new();
    for _ in 0..10 {
        let (client, done) = (client(&servers).await, Arc::clone(&done));
        contenders.push(tokio::spawn(async move {
            let mut leases = 0;
            while !done.load(Ordering::SeqCst) {
                let lease = lock(&client, "a").await;
                pause(20).await;
                lease.release().await;
                leases += 1;
            }
            leases
        }));
    }
    let (mut before, mut seen, start) = (Snapshot::take(&servers[0]), 0, Instant::now());
    // Three times as long as a line lasts without a refresh.
    while start.elapsed() < Duration::from_secs(28) {
        pause(5).await;
        let now = Snapshot::take(&servers[0]);
        if let Some(asked) = now.waiters.iter().map(|(.., asked)| *asked).max() {
            seen += 1;
            let least = KEPT_MS * 2 / 3 - (now.now_ms - asked) - 5;
            assert!(
                now.lives_ms >= least,
                "the line ends in {} ms, and a waiter sent WAIT {} ms ago",
                now.lives_ms,
                now.now_ms - asked
            );
        }
        for (secret, ticket, asked) in &before.waiters {
            let alive = now.now_ms - asked < DEAD_MS;
            let can_win = *ticket > now.fence;
            let stands = now.waiters.iter().any(|(other, ..)| other == secret);
            assert!(
                stands || !alive || !can_win,
                "ticket {ticket} was dropped; the fence is {}",
                now.fence
            );
        }
        before = now;
    }
    done.store(true, Ordering::SeqCst);
    for contender in contenders {
        assert!(
            contender.await.expect("no panic") > 0,
            "the contender never acquired the lock"
        );
    }
    assert!(seen > 0, "no waiter was in line");
}
