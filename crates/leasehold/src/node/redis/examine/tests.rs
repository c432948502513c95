use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use leasehold_testkit::RedisServer;

use super::*;
use crate::node::rules::Constants;
use crate::node::{Replicas, Shortfall, Tls, VERIFY_AFTER};
use crate::observe::Sight;

fn settings(connect_timeout: Duration) -> NodeSettings {
    NodeSettings {
        constants: Constants::for_nodes(1),
        assume_fresh: true,
        prefix: Vec::new(),
        connect_timeout,
        verify_after: VERIFY_AFTER,
        clock: Clock::default(),
        seed: 1,
        tls: Tls::default(),
        replicas: None,
        sight: Arc::new(Sight::new(Clock::default(), 1, Vec::new(), None)),
    }
}

/// As a server that is stopped: the kernel accepts, and nobody answers.
#[cfg(feature = "tls")]
#[tokio::test]
async fn a_server_that_sends_no_certificate_is_not_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let target = Target::parse(
        &format!("rediss://127.0.0.1:{port}"),
        &settings(Duration::from_millis(50)),
    );
    let address = Address::Tls {
        host: "127.0.0.1".into(),
        port,
        files: settings(Duration::ZERO).tls.files(),
    };
    let target = target.unwrap();
    let asking = target.certificate(&address, Duration::from_millis(50));
    let answer = tokio::time::timeout(Duration::from_secs(60), asking).await;
    let why = answer.expect("it gives up").expect("it uses TLS");
    assert_eq!(why.unwrap_err(), "no answer within 50ms");
}

/// Starts a sentinel that answers over one connection, and is not there afterwards.
fn sentinel_that_answers_once(master: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let address = format!(
        "*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{master}\r\n",
        master.to_string().len()
    );
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        drop(listener);
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut line = move || lines.next().and_then(Result::ok);
        while let Some(count) = line() {
            // The length of each word is in front of it.
            let count = count[1..].parse::<usize>().unwrap();
            let words: Vec<_> = (0..count)
                .filter_map(|_| line().and_then(|_| line()))
                .collect();
            let words: Vec<_> = words.iter().map(String::as_str).collect();
            let reply = match words[..] {
                ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", _] => &*address,
                ["SENTINEL", ..] => "-NOPERM no\r\n",
                _ => "+OK\r\n",
            };
            stream.write_all(reply.as_bytes()).unwrap();
        }
    });
    port
}

/// A failover in between must not mix two servers in one report.
#[tokio::test]
async fn the_sentinels_are_asked_once() {
    let server = RedisServer::start();
    let settings = settings(Duration::from_secs(10));
    for glances in [false, true] {
        let sentinel = sentinel_that_answers_once(server.port());
        let url = format!("redis+sentinel://127.0.0.1:{sentinel}/locks");
        let target = Target::parse(&url, &settings).unwrap();
        if glances {
            let facts = glance(&target, &settings).await.unwrap();
            assert!(facts.facts.votes_in.is_some());
            continue;
        }
        let facts = examine(&target, &settings).await.unwrap();
        let port = server.port();
        let host = "127.0.0.1".to_owned();
        assert_eq!(facts.address, Address::Tcp { host, port });
        assert!(facts.record.is_ok());
        assert!(facts.locks.is_ok(), "{:?}", facts.locks);
    }
}

/// Starts a proxy that keeps messages to subscribers to itself.
fn proxy_without_messages(server: u16) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
        let (mut requests, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut requests, &mut to));
        let (mut replies, mut client) = (BufReader::new(server), client);
        let mut lines = |count| -> Vec<u8> {
            let mut text = Vec::new();
            for _ in 0..count {
                replies.read_until(b'\n', &mut text).unwrap();
            }
            text
        };
        loop {
            let mut text = lines(1);
            if text == b">3\r\n" {
                text.extend(lines(2));
                if text.ends_with(b"\r\nmessage\r\n") {
                    lines(4);
                    continue;
                }
            }
            if text.is_empty() || client.write_all(&text).is_err() {
                return;
            }
        }
    });
    port
}

/// PUBLISH reaches a subscriber, which need not mean that the subscriber notices.
#[tokio::test]
async fn a_notification_must_arrive() {
    const LONG: Duration = Duration::from_secs(60);
    let server = RedisServer::start();
    let settings = settings(LONG);
    let through = proxy_without_messages(server.port());
    for (port, within, arrives) in [
        (server.port(), LONG, true),
        (through, Duration::from_millis(50), false),
    ] {
        let target = Target::parse(&format!("redis://127.0.0.1:{port}"), &settings).unwrap();
        let probe = Probe::open(&target, &settings).await.unwrap();
        let push = probe.push(within).await.unwrap();
        assert_eq!(push.is_ok(), arrives, "{push:?}");
        let why = push.err().unwrap_or_default();
        assert_eq!(why.contains("did not arrive"), !arrives, "{why}");
    }
}

/// WAIT is needed only by clients that wait for replicas.
#[tokio::test]
async fn wait_is_needed_for_replicas() {
    let server = RedisServer::start();
    server.run("ACL SETUSER u on >pw ~* &* +@all -wait");
    let url = server.url().replace("redis://", "redis://u:pw@");
    let mut settings = settings(Duration::from_secs(60));
    for (otherwise, denied) in [
        (None, &[][..]),
        (Some(Shortfall::Refuse), &["+wait"]),
        // A client that only warns can lock all the same.
        (Some(Shortfall::Warn), &[]),
    ] {
        settings.replicas = otherwise.map(|otherwise| Replicas {
            wanted: 1,
            otherwise,
        });
        let target = Target::parse(&url, &settings).unwrap();
        let probe = Probe::open(&target, &settings).await.unwrap();
        let commands = probe.commands(&settings).await.unwrap();
        assert_eq!(commands.denied, denied);
    }
}
