//! The server's native compare-and-delete, which Valkey has from version 9 on, and Redis from 8.4
//! on.

use std::time::Instant;

use leasehold::{Client, Released};
use leasehold_testkit::RedisServer;
use leasehold_testkit::setup::{lease_of, spawn_lock, until};

/// The command, if this server has one.
fn native(server: &RedisServer) -> Option<&'static str> {
    let has = |command: &str| {
        let reply = server.run(&format!("COMMAND INFO {command}"));
        !reply.contains("*-1") && !reply.contains("$-1")
    };
    ["delifeq", "delex"]
        .into_iter()
        .find(|command| has(command))
}

async fn pairs(client: &Client, count: usize) {
    for _ in 0..count {
        let lease = client.mutex("a").lock().await.expect("a lease");
        assert_eq!(lease.release().await, Released::Released);
    }
}

#[tokio::test]
async fn the_native_command_is_used_where_there_is_one() {
    let server = RedisServer::start();
    let client = Client::builder().node(server.url()).connect().await;
    let client = client.expect("connected");
    pairs(&client, 20).await;
    assert!(server.get(b"a").is_none());
    match native(&server) {
        Some(command) => assert_eq!(server.calls(command), 20),
        None => assert_eq!(server.calls("delifeq") + server.calls("delex"), 0),
    }
}

/// A waiter is notified all the same, and does not depend on polling once a second.
#[tokio::test]
async fn a_lock_with_a_waiter_is_handed_over() {
    let server = RedisServer::start();
    let connect = || Client::builder().node(server.url()).connect();
    let (one, two) = (connect().await.unwrap(), connect().await.unwrap());
    for round in 0..5 {
        let name = format!("n{round}");
        let lease = one.mutex(&name).lock().await.expect("a lease");
        let waiter = spawn_lock(two.mutex(&name));
        let exists = format!("EXISTS leasehold:line:{{{name}}}");
        until("in line", || server.run(&exists) == ":1\r\n").await;
        let (asked, since) = (server.calls("evalsha"), Instant::now());
        assert_eq!(lease.release().await, Released::Released);
        let got = lease_of(waiter).await;
        // The script of the release, an EXTEND of the lease that was handed over, and the
        // requests of the waiter, one a second.
        let scripts = server.calls("evalsha") - asked;
        assert!(
            scripts <= 3 + 2 * since.elapsed().as_secs(),
            "{scripts} scripts"
        );
        assert_eq!(got.release().await, Released::Released);
    }
}

/// A user without the permission for it gets the same result.
#[tokio::test]
async fn without_the_permission_a_script_is_used() {
    let server = RedisServer::start();
    let Some(command) = native(&server) else {
        eprintln!("SKIPPED: this server has no such command");
        return;
    };
    server.run(&format!("ACL SETUSER default +@all -{command}"));
    let client = Client::builder().node(server.url()).connect().await;
    pairs(&client.expect("connected"), 20).await;
    assert!(server.get(b"a").is_none());
    let log = server.command(&[b"ACL", b"LOG"]);
    assert!(log.contains("count") && server.calls(command) == 0, "{log}");
}
