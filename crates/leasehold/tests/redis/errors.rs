//! A refusal of a server has a specific error, never counts as "held", and leaves nothing behind.

use std::time::Duration;

use leasehold::node::NodeError;
use leasehold::{Client, Error, Invalid, LockState, NodeOutcome};
use leasehold_testkit::RedisServer;
use leasehold_testkit::setup::{LONG, builder, client, copies, fresh, lock, patient, until};

/// The error of the only node, from an attempt that found no majority.
fn node_error(error: &Error) -> NodeError {
    assert!(matches!(error, Error::NoMajority(_)), "{error:?}");
    match &error.nodes()[0].outcome {
        NodeOutcome::Failed(error) => error.clone(),
        other => panic!("{other:?}"),
    }
}

/// The error of the node because of which a client is invalid.
fn invalid(error: &Error) -> &NodeError {
    match error {
        Error::Invalid(Invalid::Node { error, .. }) => error,
        other => panic!("{other:?}"),
    }
}

async fn refused(client: &Client, name: &str) -> NodeError {
    let mutex = client.mutex(name).with_options(patient);
    node_error(&mutex.try_lock().await.expect_err("refused"))
}

#[tokio::test]
async fn a_key_of_another_type_is_an_error_and_is_not_overwritten() {
    let servers = RedisServer::start_many(1);
    let client = client(&servers).await;
    for (make, key) in [
        ("RPUSH list x", "list"),
        ("HSET hash f x", "hash"),
        ("SADD set x", "set"),
    ] {
        assert_eq!(servers[0].run(make), ":1\r\n");
        assert_eq!(refused(&client, key).await, NodeError::WrongType);
        // Waiting would not help, so the error comes at once.
        let mutex = client.mutex(key).with_options(patient);
        let error = mutex.lock().await.expect_err("refused");
        assert_eq!(node_error(&error), NodeError::WrongType);
        let exists = servers[0].run(&format!("EXISTS {key}"));
        assert_eq!(exists, ":1\r\n", "the key was overwritten");
        // Such a key is neither held nor free.
        let inspection = client.inspect(key).await.expect("a name");
        let missing: Vec<_> = inspection.missing().map(|(_, error)| error).collect();
        assert_eq!(missing, [&NodeError::WrongType]);
        assert!(matches!(inspection.state(), LockState::Unknown));
    }
}

#[tokio::test]
async fn a_replica_is_read_only() {
    let servers = RedisServer::start_many(2);
    let client = fresh(&servers[1..2]).build().unwrap();
    client.ready(LONG).await.expect("the server is a master");
    servers[1].run(&format!("REPLICAOF 127.0.0.1 {}", servers[0].port()));
    let error = refused(&client, "a").await.to_string();
    assert!(error.contains("replica"), "{error}");
}

#[tokio::test]
async fn a_full_server_refuses_new_locks_and_keeps_old_ones() {
    let servers = RedisServer::start_many(1);
    let client = client(&servers).await;
    let lease = lock(&client, "held").await;
    servers[0].run("CONFIG SET maxmemory 1");
    assert_eq!(refused(&client, "a").await, NodeError::OutOfMemory);
    assert_eq!(copies(&servers, "a"), 0);
    lease.extend().await.expect("extended");
    assert_eq!(lease.release().await, leasehold::Released::Released);
    assert_eq!(copies(&servers, "held"), 0);
}

/// The handshake writes, so the client cannot connect. The error says why, and not that there is no
/// connection.
#[tokio::test]
async fn a_client_that_finds_the_server_full_says_so() {
    let servers = RedisServer::start_many(1);
    let full = [&b"CONFIG"[..], b"SET", b"maxmemory", b"1"];
    assert_eq!(servers[0].command(&full), "+OK\r\n");
    let client = builder(&servers).build().expect("a client");
    for _ in 0..3 {
        assert_eq!(refused(&client, "a").await, NodeError::OutOfMemory);
    }
}

#[tokio::test]
async fn a_server_that_cannot_persist_is_reported() {
    let servers = [RedisServer::start_with(&[
        "--stop-writes-on-bgsave-error",
        "yes",
    ])];
    let client = client(&servers).await;
    let save = [&b"CONFIG"[..], b"SET", b"save", b"1 1000000"];
    assert_eq!(servers[0].command(&save), "+OK\r\n");
    // Its directory is removed, so the snapshot fails.
    std::fs::remove_dir_all(servers[0].dir()).unwrap();
    let _ = servers[0].command(&[b"BGSAVE"]);
    until("the snapshot has failed", || {
        servers[0].info("persistence", "rdb_last_bgsave_status") == "err"
    })
    .await;
    let error = refused(&client, "a").await;
    assert!(
        matches!(error, NodeError::CannotPersist { .. }),
        "{error:?}"
    );
    assert_eq!(copies(&servers, "a"), 0);
}

#[tokio::test]
async fn a_missing_permission_is_named() {
    let servers = RedisServer::start_many(1);
    let user = |rules: &str| {
        servers[0].run(&format!("ACL SETUSER u reset on >secret-pw {rules}"));
    };
    let connect = || {
        let url = format!("redis://u:secret-pw@127.0.0.1:{}", servers[0].port());
        Client::builder().node(url).connect()
    };
    for (rules, names) in [
        ("~* +@all -eval", "'eval' command"),
        ("~* +@all -info", "'info' command"),
        ("~* +@all -time", "TIME command"),
        ("~* +@all -set", "SET command"),
        ("~other:* +@all", "key"),
    ] {
        user(rules);
        let error = connect().await.expect_err("refused");
        let node = invalid(&error);
        assert!(matches!(node, NodeError::NoPermission { .. }), "{node:?}");
        let (text, names) = (node.to_string().to_lowercase(), names.to_lowercase());
        // Redis 7.2 and Valkey report the name as their users wrote it.
        let named = text.contains(&names) || text.contains(&names.replace(" command", "' command"));
        assert!(named, "{names} in {text}");
        assert!(!format!("{error} {error:?}").contains("secret-pw"));
    }
    // A command that only a refusal needs, and not the handshake.
    user("~* +@all");
    let holder = connect().await.expect("the user has all permissions");
    let held = holder.mutex("held").lock().await.expect("the lock is free");
    user("~* +@all -pttl");
    let client = connect().await.expect("the handshake is permitted");
    let error = refused(&client, "held").await;
    assert!(error.to_string().to_lowercase().contains("pttl"), "{error}");
    drop((client, held, holder));
    // Exactly the permissions that a user needs. SCRIPT LOAD is not among them.
    user(
        "~* +eval +evalsha +info +time +get +mget +set +setrange +del +incr +pexpire +pttl \
         +select +client",
    );
    let client = connect().await.expect("enough");
    for _ in 0..2 {
        let lease = lock(&client, "a").await;
        lease.extend().await.expect("extended");
        assert_eq!(lease.release().await, leasehold::Released::Released);
    }
}

#[tokio::test]
async fn a_wrong_password_is_reported_and_not_shown() {
    let server = RedisServer::start_with(&["--requirepass", "right-pw"]);
    let port = server.port();
    for url in [
        format!("redis://:wrong-pw@127.0.0.1:{port}"),
        format!("redis://nobody:wrong-pw@127.0.0.1:{port}"),
        format!("redis://127.0.0.1:{port}"),
    ] {
        let error = Client::builder().node(url).connect().await;
        let error = error.expect_err("refused");
        let node = invalid(&error);
        assert_eq!(*node, NodeError::WrongPassword);
        assert!(!format!("{error} {error:?}").contains("-pw"));
    }
    let url = format!("redis://:right-pw@127.0.0.1:{port}");
    let client = Client::builder().node(url).connect().await.expect("let in");
    assert!(!format!("{client:?}").contains("right-pw"));
}

#[tokio::test]
async fn a_member_of_a_cluster_is_refused() {
    let servers = [RedisServer::start_with(&["--cluster-enabled", "yes"])];
    let error = fresh(&servers).connect().await.expect_err("refused");
    let node = invalid(&error);
    assert!(matches!(node, NodeError::Clustered { .. }), "{node:?}");
}

#[tokio::test]
async fn the_same_server_twice_is_detected_by_its_run_id() {
    let servers = RedisServer::start_many(2);
    let port = servers[0].port();
    let client = Client::builder()
        .node(format!("redis://127.0.0.1:{port}"))
        .node(servers[1].url())
        // Another address of the first server, and another database.
        .node(format!("redis://localhost:{port}/3"))
        .assume_fresh()
        .build()
        .expect("a client");
    // The other two are a majority, so `ready` does not wait long for the third.
    let finding = async {
        loop {
            if let Err(error @ Error::Invalid(_)) = client.ready(LONG).await {
                break error;
            }
        }
    };
    let error = tokio::time::timeout(LONG, finding).await.expect("found");
    let node = invalid(&error);
    assert!(matches!(node, NodeError::SameServer { .. }), "{node:?}");
}

#[tokio::test]
async fn clients_with_other_constants_are_refused() {
    let servers = RedisServer::start_many(1);
    let first = client(&servers).await;
    let _lease = first.mutex("a").with_options(patient).lock().await;
    let second = fresh(&servers).skew(Duration::from_secs(3));
    let error = second.connect().await.expect_err("refused");
    let text = error.to_string();
    assert!(
        text.contains("skew=10s") && text.contains("skew=3s"),
        "{text}"
    );
    assert!(text.contains("leasehold init --replace"), "{text}");
}

#[tokio::test]
async fn bad_urls_are_refused_without_being_shown() {
    for url in [
        "",
        "127.0.0.1:6379",
        "http://:hunter2@127.0.0.1",
        "redis://:hunter2@127.0.0.1:99999",
        "redis://:hunter2@127.0.0.1/notanumber",
        "redis://",
        "redis+unix://",
    ] {
        let error = Client::builder()
            .node("redis://127.0.0.1")
            .node(url)
            .build();
        let error = error.expect_err(url);
        let text = format!("{error} {error:?}");
        assert!(text.contains("node 2"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
    let none = Client::builder().build();
    assert!(matches!(none, Err(Error::Invalid(Invalid::NoNodes))));
    let many = Client::builder()
        .nodes(vec!["redis://127.0.0.1"; 65])
        .build();
    assert!(matches!(many, Err(Error::Invalid(Invalid::Number { .. }))));
}

/// The index of a database that the server does not have is a specific error.
#[tokio::test]
async fn a_missing_database_is_an_error() {
    let servers = RedisServer::start_many(1);
    let url = format!("{}/99", servers[0].url());
    let error = Client::builder().node(url).connect().await;
    let error = error.expect_err("refused");
    assert_eq!(*invalid(&error), NodeError::NoSuchDatabase);
}
