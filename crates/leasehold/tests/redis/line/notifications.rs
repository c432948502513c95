//! Notifications: what they cost, which permissions they need, and that they cannot be forged.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Instant;

use leasehold::Client;
use leasehold_testkit::RedisServer;
use leasehold_testkit::setup::{LONG, client, in_line, lease_of, lock, patient, pause, until};

use super::{commands, subscriptions};

/// A user without the permission to subscribe or publish can wait all the same, and polls once a
/// second.
#[tokio::test]
async fn a_waiter_without_permission_to_subscribe_polls() {
    let servers = RedisServer::start_many(1);
    let rules = "on >secret ~* resetchannels +@all -subscribe -publish";
    servers[0].run(&format!("ACL SETUSER deaf {rules}"));
    let url = servers[0].url().replace("redis://", "redis://deaf:secret@");
    let deaf = Client::builder()
        .node(url)
        .connect()
        .await
        .expect("it works");
    let one = client(&servers).await;
    let lease = lock(&one, "a").await;
    let waiter = in_line(deaf.mutex("a").with_options(patient)).await;
    lease.release().await;
    lease_of(waiter).await.release().await;
    // It hands the lock over to a waiter with a subscription.
    let lease = lock(&deaf, "a").await;
    let waiter = in_line(one.mutex("a").with_options(patient)).await;
    lease.release().await;
    lease_of(waiter).await.release().await;
}

/// The documented permissions suffice to wait and to be notified.
#[tokio::test]
async fn the_documented_permissions_are_enough() {
    let servers = RedisServer::start_many(1);
    let documents = include_str!("../../../../../docs/deployment.md");
    let rules = documents
        .lines()
        .find(|line| line.starts_with("ACL SETUSER"));
    servers[0].run(rules.expect("documented"));
    // And the optional commands, which are tried once and would count as refused. A server
    // without such a command reports that, and it is not tried there.
    for command in [&b"+delifeq"[..], b"+delex"] {
        let _ = servers[0].command(&[b"ACL", b"SETUSER", b"locks", command]);
    }
    let url = servers[0].url().replace("://", "://locks:PASSWORD@");
    let connect = || Client::builder().node(&url).connect();
    let (one, two) = (
        connect().await.expect("allowed"),
        connect().await.expect("allowed"),
    );
    for _ in 0..3 {
        let lease = lock(&one, "orders/1").await;
        let waiter = in_line(two.mutex("orders/1").with_options(patient)).await;
        assert_eq!(
            subscriptions(&servers[0]),
            2,
            "both waiters have a subscription"
        );
        lease.extend().await.expect("extended");
        lease.release().await;
        lease_of(waiter).await.release().await;
    }
    let seen = one.inspect("orders/1").await.expect("allowed");
    assert!(seen.is_conclusive());
    let log = servers[0].command(&[b"ACL", b"LOG"]);
    assert_eq!(log, "*0\r\n", "something was refused");
}

/// One connection for all names and waiters, which also carries their requests.
#[tokio::test]
async fn one_connection_serves_all_names_and_waiters() {
    let servers = RedisServer::start_many(1);
    let (one, two) = (client(&servers).await, client(&servers).await);
    let mut leases = Vec::new();
    let mut waiters = Vec::new();
    for name in 0..30 {
        let name = format!("n{name}");
        leases.push(lock(&one, &name).await);
        waiters.push(in_line(two.mutex(&name).with_options(patient)).await);
    }
    let list = servers[0].command(&[b"CLIENT", b"LIST"]);
    assert_eq!(list.matches("resp=3").count(), 2, "{list}");
    assert_eq!(subscriptions(&servers[0]), 2);
    for lease in leases {
        lease.release().await;
    }
    for waiter in waiters {
        lease_of(waiter).await.release().await;
    }
}

/// A waiter sends one request a second.
#[tokio::test]
async fn waiters_send_one_request_a_second() {
    let servers = RedisServer::start_many(1);
    let holder = client(&servers).await;
    let lease = lock(&holder, "a").await;
    let mut clients = Vec::new();
    let mut waiters = Vec::new();
    for _ in 0..10 {
        let client = client(&servers).await;
        waiters.push(in_line(client.mutex("a").with_options(patient)).await);
        clients.push(client);
    }
    assert_eq!(subscriptions(&servers[0]), 11);
    let (before, since) = (commands(&servers[0]), Instant::now());
    pause(5000).await;
    let asked = commands(&servers[0]) - before;
    let most = 10.0 * (since.elapsed().as_secs_f64() + 1.0) * 1.3;
    assert!((asked as f64) < most, "{asked} requests");
    assert!(asked >= 20, "{asked} requests: are the waiters alive?");
    lease.release().await;
    for waiter in waiters {
        lease_of(waiter).await.release().await;
    }
}

/// The side keys are removed with the last waiter.
#[tokio::test]
async fn an_empty_line_leaves_no_keys() {
    let servers = RedisServer::start_many(1);
    let (one, two) = (client(&servers).await, client(&servers).await);
    let lease = lock(&one, "a").await;
    let waiter = in_line(two.mutex("a").with_options(patient)).await;
    assert!(
        servers[0]
            .get(b"leasehold:fence:{a}")
            .is_some_and(|fence| fence.ends_with(b"+"))
    );
    lease.release().await;
    lease_of(waiter).await.release().await;
    for kind in ["line", "seen", "bell"] {
        let key = format!("leasehold:{kind}:{{a}}");
        assert_eq!(servers[0].command(&[b"EXISTS", key.as_bytes()]), ":0\r\n");
    }
    let plain = |fence: Vec<u8>| fence.iter().all(u8::is_ascii_digit);
    until("the mark is gone", || {
        servers[0].get(b"leasehold:fence:{a}").is_some_and(plain)
    })
    .await;
}

/// A grant is announced only after both the lock and the fence are written, on every path that
/// announces one.
#[tokio::test]
async fn the_fence_is_raised_before_a_grant_is_announced() {
    let servers = RedisServer::start_many(1);
    let (one, two) = (client(&servers).await, client(&servers).await);
    let monitor = TcpStream::connect(("127.0.0.1", servers[0].port())).expect("connected");
    monitor.set_read_timeout(Some(LONG)).expect("a timeout");
    (&monitor).write_all(b"MONITOR\r\n").expect("sent");
    let mut lines = BufReader::new(monitor).lines();
    assert_eq!(lines.next().expect("a line").expect("read"), "+OK");

    // A release, and an expiry that the request of another client discovers.
    for (name, expires) in [("released", false), ("expired", true)] {
        let lease = lock(&one, name).await;
        let waiter = in_line(two.mutex(name).with_options(patient)).await;
        match expires {
            false => drop(lease.release().await),
            true => {
                servers[0].run(&format!("DEL {name}"));
                let passer_by = client(&servers).await;
                let mutex = passer_by.mutex(name).with_options(patient);
                assert!(mutex.try_lock().await.expect("an answer").is_none());
            }
        }
        drop(lease_of(waiter).await);
        let mut raised = false;
        loop {
            let line = lines.next().expect("a line").expect("read");
            let says = |word: &str| line.contains(&format!("\"{word}\""));
            let writes_fence = (says("SET") || says("SETRANGE"))
                && line.contains(&format!("\"leasehold:fence:{{{name}}}\""));
            if says("PUBLISH") && line.contains(&format!("{name}\"")) {
                assert!(raised, "{name}: announced before the fence was raised");
                break;
            }
            // The write of the lock for the waiter begins the hand-over.
            if says("SET") && line.contains(&format!("\"SET\" \"{name}\"")) {
                raised = false;
            }
            raised |= writes_fence;
        }
    }
}

/// A client that can read the lock, the fence and the line, list the channels and publish cannot
/// make a waiter believe in a grant.
#[tokio::test]
async fn a_forged_grant_makes_no_holder() {
    let servers = RedisServer::start_many(1);
    let (one, two) = (client(&servers).await, client(&servers).await);
    let lease = lock(&one, "a").await;
    let waiter = in_line(two.mutex("a").with_options(patient)).await;
    let words = |command: &[&[u8]]| -> Vec<String> {
        let reply = servers[0].command(command);
        let lines = reply.split("\r\n").map(str::to_owned);
        lines
            .filter(|line| !line.is_empty() && !line.starts_with(['*', '$']))
            .collect()
    };
    let line = words(&[b"ZRANGE", b"leasehold:line:{a}", b"0", b"-1"]);
    let channels = words(&[b"PUBSUB", b"CHANNELS", b"leasehold:bell:*"]);
    assert_eq!((line.len(), channels.len()), (1, 2));
    let owner = &line[0];
    let mut delivered = 0;
    for channel in &channels {
        let id = channel.strip_prefix("leasehold:bell:").expect("a channel");
        for proof in ["", &owner[16..32], &owner[24..40], &owner[..16], id] {
            let message = format!("G{}{proof} a", &owner[..16]);
            let reply = servers[0].command(&[b"PUBLISH", channel.as_bytes(), message.as_bytes()]);
            delivered += usize::from(reply == ":1\r\n");
        }
    }
    assert_eq!(delivered, 10, "all forged messages are delivered");
    pause(500).await;
    assert!(
        !waiter.is_finished(),
        "the waiter took a forged message for a grant"
    );
    lease.release().await;
    lease_of(waiter).await.release().await;
}
