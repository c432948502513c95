//! Servers, or proxies, that send replies without a request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::node::NodeError;
use leasehold::{Client, Error, NodeOutcome, Options};
use leasehold_testkit::RedisServer;
use leasehold_testkit::setup::{LONG, client, copies, lock, patient, pause, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::proxy;

/// Forwards to a server, and lets `meddle` change the replies.
async fn meddling(
    server: &RedisServer,
    meddle: impl Fn(usize, Vec<u8>) -> Vec<u8> + Send + Sync + 'static,
) -> String {
    let (port, meddle) = (server.port(), Arc::new(meddle));
    let replies = Arc::new(AtomicUsize::new(0));
    proxy::listen(move |mut near| {
        let (meddle, replies) = (Arc::clone(&meddle), Arc::clone(&replies));
        async move {
            let mut far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let (mut from_near, mut to_near) = near.split();
            let (mut from_far, mut to_far) = far.split();
            let back = async {
                let mut buffer = vec![0; 65536];
                loop {
                    let read = from_far.read(&mut buffer).await.unwrap_or(0);
                    let number = replies.fetch_add(1, Ordering::Relaxed);
                    let changed = meddle(number, buffer[..read].to_vec());
                    if read == 0 || to_near.write_all(&changed).await.is_err() {
                        return;
                    }
                }
            };
            tokio::select! {
                () = back => {}
                _ = tokio::io::copy(&mut from_near, &mut to_far) => {}
            }
        }
    })
    .await
}

/// An unsolicited reply shifts all that follow by one. Each reply carries the token of its
/// request, so none is taken for another's, and the connection is closed.
#[tokio::test]
async fn an_unsolicited_reply_never_grants_a_lock() {
    let server = RedisServer::start();
    // About every fifth reply is preceded by an unsolicited one.
    let url = meddling(&server, |number, reply| match fastrand::u8(..5) {
        0 if number > 4 => [&b":1\r\n"[..], &reply].concat(),
        _ => reply,
    })
    .await;
    let client = Client::builder().node(url).assume_fresh().build().unwrap();
    let (mut leases, mut protocol_errors) = (0, 0);
    for i in 0..200 {
        let name = format!("a{}", i % 7);
        match client.mutex(&name).with_options(patient).try_lock().await {
            Ok(Some(lease)) => {
                // If the client believes that it holds the lock, the server agrees.
                let value = server.get(name.as_bytes()).expect("a value");
                let token = leasehold::Holder::parse(&value).token;
                assert_eq!(token, Some(lease.token()));
                leases += 1;
                lease.release().await;
            }
            Ok(None) => {}
            Err(error @ Error::NoMajority(_)) => {
                let outcome = &error.nodes()[0].outcome;
                let noticed = matches!(outcome, NodeOutcome::Failed(NodeError::Protocol { .. }));
                protocol_errors += usize::from(noticed);
                // Until there is a new connection.
                pause(30).await;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    assert!(leases > 0, "no lease was acquired");
    assert!(protocol_errors > 0, "no unsolicited reply was noticed");
}

/// A late reply must never answer the next request.
#[tokio::test]
async fn a_late_reply_does_not_answer_the_next_request() {
    let mut servers = RedisServer::start_many(1);
    let client = client(&servers).await;
    let quick = |o: Options| o.ttl(LONG).node_timeout(Duration::from_millis(50));
    for round in 0..3 {
        let name = format!("late{round}");
        lock(&client, &name).await.release().await;
        servers[0].stop();
        let timed_out = client.mutex(&name).with_options(quick).try_lock().await;
        assert!(timed_out.is_err(), "{timed_out:?}");
        servers[0].resume();
        // A request for another name at once: the late reply about the first name must not answer
        // it.
        let other = format!("other{round}");
        let lease = lock(&client, &other).await;
        let value = servers[0].get(other.as_bytes()).expect("a value");
        assert_eq!(leasehold::Holder::parse(&value).token, Some(lease.token()));
        lease.release().await;
        until("free", || copies(&servers, &name) == 0).await;
    }
}

/// Whatever a server replies, the result is a specific error. The client does not panic and does
/// not count a grant. (The replies are those of the handshake.)
#[tokio::test]
async fn a_nonsensical_reply_is_an_error() {
    for (reply, expected) in [
        (&b"+PONG\r\n"[..], "unexpected reply"),
        (b":12345678901234\r\n", "unexpected reply"),
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "not what a Redis server says",
        ),
        (b"*3\r\n$5\r\nEPOCH\r\n$-1\r\n$-1\r\n", "unexpected reply"),
        (
            b"-LOADING Redis is loading the dataset in memory\r\n",
            "loading",
        ),
        (b"-MOVED 3999 127.0.0.1:6381\r\n", "Redis Cluster"),
        (
            b"-MISCONF Redis is configured to save RDB snapshots\r\n",
            "MISCONF",
        ),
        (b"-ERR \x1b[2J odd bytes\r\n", "\\u{1b}[2J odd bytes"),
        (b"-ERR \xff\xfe\r\n", "not what a Redis server says"),
        (
            b"-READONLY You can't write against a read only replica.\r\n",
            "replica",
        ),
    ] {
        let url = proxy::listen(move |mut stream| async move {
            let mut buffer = [0; 65536];
            // One reply for every request, whatever the request is.
            while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                let requests = buffer[..read]
                    .windows(3)
                    .filter(|w| w[0] == b'*' && w[1].is_ascii_digit());
                for _ in 0..requests.count() {
                    if stream.write_all(reply).await.is_err() {
                        return;
                    }
                }
            }
        })
        .await;
        let client = Client::builder().node(url).assume_fresh().build().unwrap();
        let patient = |o: Options| patient(o).node_timeout(Duration::from_secs(3));
        let error = client.mutex("a").with_options(patient).try_lock().await;
        let text = error.expect_err("nonsense").to_string();
        assert!(text.contains(expected), "{expected}: {text}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}

/// The reply to an extend with a shorter TTL is lost: the original deadline still applies.
#[tokio::test]
async fn a_lost_reply_to_a_shorter_extend_makes_no_second_holder() {
    let server = RedisServer::start();
    let deaf = Arc::new(AtomicBool::new(false));
    let lost = Arc::clone(&deaf);
    let url = meddling(&server, move |_, reply| match lost.load(Ordering::SeqCst) {
        true => Vec::new(),
        false => reply,
    })
    .await;
    let ttl = Duration::from_secs(600);
    let connect = |url: String| Client::builder().node(url).connect();
    let (near, other) = (
        connect(url).await.unwrap(),
        connect(server.url()).await.unwrap(),
    );
    for fenced in [true, false] {
        let name = format!("fenced-{fenced}");
        let plain = |options: Options| match fenced {
            true => options,
            false => options.without_fencing(),
        };
        let mutex = other
            .mutex(&name)
            .with_options(|o| plain(o.ttl(ttl).detached()));
        let lease = mutex.lock().await.unwrap();
        let owner = lease.detach().await.unwrap().owner().to_owned();
        let short = |o: Options| o.ttl(Duration::from_millis(50));
        let again = near.mutex(&name).with_options(short).detached(&owner);
        deaf.store(true, Ordering::SeqCst);
        let answer = again.unwrap().extend().await;
        assert!(matches!(answer, Err(Error::NoMajority(_))), "{answer:?}");
        deaf.store(false, Ordering::SeqCst);
        pause(200).await;
        assert!(other.mutex(&name).try_lock().await.unwrap().is_none());
    }
}
