//! The set of servers that form a deployment: clients with other node lists are detected, and a
//! deployment can grow and replace a server.

use std::time::Duration;

use leasehold::node::{Change, NodeError};
use leasehold::{Client, Error, Invalid, Options};
use leasehold_testkit::RedisServer;
use leasehold_testkit::setup::{
    LONG, builder, client, eventually, fresh, lease_of, lock, patient, pause, spawn_lock,
};

/// The two node lists in the error of a refused client.
fn lists(error: &Error) -> Option<(String, String)> {
    let found = match error {
        Error::Invalid(Invalid::Node { error, .. }) => Some(error),
        error => error
            .nodes()
            .iter()
            .find_map(|report| match &report.outcome {
                leasehold::NodeOutcome::Failed(error @ NodeError::OtherNodes { .. }) => Some(error),
                _ => None,
            }),
    };
    match found? {
        NodeError::OtherNodes { theirs, ours, .. } => Some((theirs.clone(), ours.clone())),
        _ => None,
    }
}

/// The node lists in the error of a client whose servers belong to another set. Before all of
/// them have answered, the result may differ, but is never a lock.
async fn lists_of(client: &Client, options: fn(Options) -> Options) -> (String, String) {
    eventually("refused for its node list", async || {
        let attempt = client.mutex("a").with_options(options).try_lock().await;
        assert!(
            !matches!(attempt, Ok(Some(_))),
            "the client acquired the lock"
        );
        lists(&attempt.err()?)
    })
    .await
}

fn addresses(servers: &[&RedisServer]) -> String {
    let mut labels: Vec<_> = servers
        .iter()
        .map(|server| format!("127.0.0.1:{}", server.port()))
        .collect();
    labels.sort();
    labels.join(", ")
}

/// A majority of {1, 2, 3} and one of {3, 4, 5} need not share a server.
#[tokio::test]
async fn a_client_of_other_nodes_gets_no_lock() {
    let servers = RedisServer::start_many(5);
    let [one, two, three, x, y] = [0, 1, 2, 3, 4].map(|i| &servers[i]);
    let first = client(&[one, two, three]).await;
    let _lease = lock(&first, "a").await;
    let strange = fresh(&[three, x, y]).build().expect("valid");
    let (theirs, ours) = lists_of(&strange, patient).await;
    assert_eq!(theirs, addresses(&[one, two, three]));
    assert_eq!(ours, addresses(&[three, x, y]));
    // The client has written nothing.
    for server in [x, y] {
        assert_eq!(server.run("DBSIZE"), ":0\r\n");
    }
}

/// Addresses do not identify a server.
#[tokio::test]
async fn other_names_of_the_same_servers_are_one_set() {
    let servers = RedisServer::start_many(3);
    let first = client(&servers).await;
    let lease = lock(&first, "a").await;
    let aliases = servers
        .iter()
        .map(|server| format!("redis://localhost:{}", server.port()));
    let second = Client::builder().nodes(aliases).assume_fresh();
    let second = second.connect_timeout(Duration::from_secs(10));
    let second = second.connect().await.expect("connected");
    let mutex = second.mutex("a").with_options(patient);
    assert!(mutex.try_lock().await.expect("an answer").is_none());
    lease.release().await;
    assert!(mutex.try_lock().await.expect("an answer").is_some());
}

/// The same server under two names, beside another one: a majority of such a list is meaningless.
#[tokio::test]
async fn the_same_server_under_two_names_gives_no_lock() {
    let servers = RedisServer::start_many(2);
    let port = servers[0].port();
    for _ in 0..2 {
        let client = Client::builder()
            .node(format!("redis://127.0.0.1:{port}"))
            .node(format!("redis://localhost:{port}"))
            .node(servers[1].url())
            .connect_timeout(Duration::from_secs(10))
            .assume_fresh()
            .build()
            .expect("valid");
        let attempt = client.mutex("a").with_options(patient).try_lock().await;
        let error = attempt.expect_err("refused").to_string();
        assert!(error.contains("are the same server"), "{error}");
    }
}

/// A client with another prefix is independent of this set: neither its constants nor its nodes
/// matter.
#[tokio::test]
async fn prefixes_are_independent_deployments() {
    let servers = RedisServer::start_many(3);
    let all = client(&servers).await;
    let _lease = lock(&all, "a").await;
    let other = fresh(&[&servers[0]])
        .prefix("it's \"other\"\n/")
        .skew(Duration::from_secs(3));
    let other = other.connect().await.expect("connected");
    let lease = lock(&other, "a").await;
    lease.extend().await.expect("extended");
    // The same without a prefix is refused.
    let error = fresh(&[&servers[0]]).connect().await.expect_err("refused");
    let lists = lists(&error).expect("both lists");
    assert_eq!(lists.1, addresses(&[&servers[0]]));
}

/// 1 → 3 → 5: clients of the smaller set are refused, and the new nodes do not vote while a lease
/// of the smaller set may be valid.
#[tokio::test]
async fn a_deployment_grows() {
    let servers = RedisServer::start_many(5);
    let all: Vec<_> = servers.iter().collect();
    let ttl = |options: Options| {
        let options = patient(options).ttl(Duration::from_secs(5));
        options.node_timeout(Duration::from_secs(2))
    };
    let mut old = client(&all[..1]).await;
    for size in [3, 5] {
        let lease = old.mutex("a").with_options(ttl).lock().await;
        let lease = lease.expect("a lease");
        let token = lease.token();
        let grown = || {
            builder(&all[..size])
                .restart_guard(Duration::from_secs(5))
                .options(ttl(Options::default()))
        };
        // `init` does not change a recorded set.
        let error = grown().init().await.expect_err("a change must be explicit");
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
        let done = grown().init_replacing().await.expect("recorded");
        assert_eq!(done.len(), size);
        for node in &done {
            assert_eq!(node.change, Change::Replaced, "{node:?}");
            assert!(node.votes_in >= Duration::from_secs(4), "{node:?}");
        }
        let new = grown().connect().await.expect("connected");
        let mutex = new.mutex("a").with_options(ttl);
        let error = mutex.try_lock().await.expect_err("too early");
        assert!(error.to_string().contains("votes again in"), "{error}");
        // The old client is refused.
        tokio::time::timeout(LONG, lease.lost())
            .await
            .expect("lost");
        assert_eq!(lists_of(&old, ttl).await.0, addresses(&all[..size]));
        let next = mutex.lock().await.expect("the nodes vote");
        assert!(next.token() > token, "{} after {token}", next.token());
        next.release().await;
        old = new;
    }
}

/// A lost server is replaced by an empty one at another address.
#[tokio::test]
async fn a_dead_server_is_replaced() {
    let mut servers = RedisServer::start_many(4);
    let spare = servers.pop().expect("four");
    let old = client(&servers).await;
    lock(&old, "a").await.release().await;
    servers[2].kill();
    let list = [&servers[0], &servers[1], &spare];
    // The answer of the new server alone is not sufficient.
    let careless = fresh(&list).build().expect("valid");
    let lease = careless.mutex("a").with_options(patient).try_lock().await;
    let lease = lease.expect("two of three belong to the set");
    drop(lease);
    assert_eq!(spare.run("DBSIZE"), ":0\r\n");
    let done = fresh(&list).init_replacing().await.expect("recorded");
    assert!(done.iter().all(|node| node.votes_in.is_zero()), "{done:?}");
    let new = client(&list).await;
    let lease = lock(&new, "a").await;
    assert!(spare.get(b"a").is_some(), "it votes");
    lease.release().await;
    // The old list is refused.
    assert_eq!(lists_of(&old, patient).await.0, addresses(&list));
}

/// Two lists record their sets while the shared server is down. When it is back, the clients of
/// the list that it does not belong to acquire no lock, however often they try.
#[tokio::test]
async fn a_set_recorded_without_the_shared_server_is_refused_when_it_is_back() {
    let mut servers = RedisServer::start_many(5);
    let first = fresh(&[&servers[0], &servers[1], &servers[2]]);
    let first = first.connect().await.expect("connected");
    lock(&first, "a").await.release().await;
    servers[2].run("SAVE");
    servers[2].kill();
    {
        let strange = fresh(&[&servers[2], &servers[3], &servers[4]]);
        let strange = strange.build().expect("valid");
        lock(&strange, "b").await.release().await;
    }
    servers[2].restart();
    let _lease = lock(&first, "a").await;
    for _ in 0..10 {
        let strange = fresh(&[&servers[2], &servers[3], &servers[4]]);
        let strange = strange.build().expect("valid");
        let attempt = strange.mutex("a").with_options(patient).try_lock().await;
        let error = attempt.expect_err("refused");
        assert!(
            error.to_string().contains("set of nodes on record"),
            "{error}"
        );
    }
}

/// Clients that reach new servers at the same time, under different names, record one set.
#[tokio::test]
async fn clients_with_other_names_may_record_a_set_together() {
    for round in 0..5 {
        let servers = RedisServer::start_many(3);
        let clients = ["127.0.0.1", "localhost", "127.0.0.1", "localhost"].map(|host| {
            let urls = servers.iter().map(RedisServer::port);
            let urls = urls.map(move |port| format!("redis://{host}:{port}"));
            let client = Client::builder().nodes(urls).assume_fresh();
            client.build().expect("valid")
        });
        let tasks = clients.map(|client| {
            tokio::spawn(async move {
                let lease = client.mutex("a").with_options(patient).lock().await?;
                lease.release().await;
                Ok::<_, Error>(())
            })
        });
        for task in tasks {
            let done = task.await.expect("no panic");
            assert!(done.is_ok(), "round {round}: {done:?}");
        }
    }
}

/// `assume_fresh` ends the waiting period of the nodes, even when nothing else changes.
#[tokio::test]
async fn assume_fresh_ends_the_wait_of_a_set() {
    let servers = RedisServer::start_many(3);
    let one = client(&[&servers[0]]).await;
    let long = |options: Options| patient(options).ttl(Duration::from_secs(3600));
    let lease = one.mutex("long").with_options(long).lock().await;
    let lease = lease.expect("a lease");
    let kept = one.mutex("kept").with_options(patient).lock().await;
    let kept = kept
        .expect("a lease")
        .release_keeping(Duration::from_secs(80_000));
    kept.await.expect("kept");
    let three = || builder(&servers);
    let done = three().init_replacing().await.expect("recorded");
    for node in &done {
        // The lease counts. The name that is only kept after its release does not.
        let hour = Duration::from_secs(3000)..Duration::from_secs(3700);
        assert!(hour.contains(&node.votes_in), "{node:?}");
    }
    drop(lease);
    let done = three().assume_fresh().init_replacing().await;
    let done = done.expect("recorded");
    assert!(done.iter().all(|node| node.votes_in.is_zero()), "{done:?}");
    let client = three().connect().await.expect("connected");
    let lease = client.mutex("a").with_options(patient).try_lock().await;
    assert!(lease.expect("votes").is_some());
}

/// Also for a client that waits already. It learns it from the records.
#[tokio::test]
async fn assume_fresh_ends_the_wait_of_a_client_that_is_connected() {
    let servers = RedisServer::start_many(1);
    let guarded = || builder(&servers).restart_guard(Duration::from_secs(3600));
    let client = guarded().connect().await.expect("connected");
    let mutex = client.mutex("a").with_options(patient);
    let error = mutex
        .try_lock()
        .await
        .expect_err("the server does not vote");
    assert!(error.to_string().contains("votes again in"), "{error}");
    let waiting = spawn_lock(mutex);
    pause(200).await;
    assert!(!waiting.is_finished());
    guarded().assume_fresh().init().await.expect("recorded");
    lease_of(waiting).await.release().await;
}

/// A server that restarts empty at its address belongs to the set again without intervention.
#[tokio::test]
async fn a_server_that_lost_its_memory_still_belongs_to_the_set() {
    let mut servers = RedisServer::start_many(3);
    let first = client(&servers).await;
    lock(&first, "a").await.release().await;
    let set = servers[0].get(b"leasehold:set").expect("a record");
    servers[1].kill();
    servers[1].restart();
    let second = client(&servers).await;
    let mutex = second.mutex("a").with_options(patient);
    eventually("recorded", async || {
        drop(mutex.try_lock().await.expect("an answer"));
        (servers[1].get(b"leasehold:set").as_ref() == Some(&set)).then_some(())
    })
    .await;
}

/// `init` records that new servers had no memory to lose, so that clients need not say so again.
#[tokio::test]
async fn new_servers_that_were_set_up_vote_at_once() {
    let mut servers = RedisServer::start_many(3);
    let done = builder(&servers).init().await.expect("recorded");
    for node in &done {
        assert_eq!(
            (node.change, node.votes_in),
            (Change::Recorded, Duration::ZERO)
        );
    }
    let again = builder(&servers).init().await.expect("recorded");
    assert!(again.iter().all(|node| node.change == Change::Unchanged));
    let client = builder(&servers).connect().await.expect("connected");
    let lease = client.mutex("a").with_options(patient).try_lock().await;
    let lease = lease.expect("votes").expect("free");
    lease.release().await;
    // Not after a restart.
    for server in &mut servers {
        server.kill();
        server.restart();
    }
    let client = builder(&servers).connect().await.expect("connected");
    let error = client.mutex("a").with_options(patient).try_lock().await;
    let error = error.expect_err("restarted").to_string();
    assert!(error.contains("votes again in"), "{error}");
}

/// The servers remember what one client declared about them.
#[tokio::test]
async fn assume_fresh_is_remembered_by_the_servers() {
    let servers = RedisServer::start_many(3);
    let fresh = client(&servers).await;
    lock(&fresh, "a").await.release().await;
    let plain = builder(&servers).connect().await.expect("connected");
    let lease = plain.mutex("a").with_options(patient).try_lock().await;
    assert!(lease.expect("votes").is_some());
}

/// A client that only inspects writes nothing, and so excludes no other client.
#[tokio::test]
async fn inspecting_changes_nothing() {
    let servers = RedisServer::start_many(3);
    let looking = fresh(&servers).build().expect("valid");
    assert!(
        looking
            .inspect("a")
            .await
            .expect("an answer")
            .lock()
            .is_none()
    );
    let listing = looking.inspect_all().await.expect("an answer");
    assert!(listing.locks.is_empty());
    assert!(
        !looking
            .break_lock("a", "no such owner")
            .await
            .expect("an answer")
    );
    pause(200).await;
    for server in &servers {
        assert_eq!(server.run("DBSIZE"), ":0\r\n");
    }
    let other = fresh(&servers).skew(Duration::from_secs(3));
    other
        .connect()
        .await
        .expect("a client with other constants");
}

/// Names that have had no lease since the server lost its memory are protected by the floor
/// alone, which is the beginning of the epoch + S. A new epoch, with a smaller S, must not lower
/// it.
#[tokio::test]
async fn replacing_the_record_does_not_lower_the_floor() {
    let server = RedisServer::start();
    let of_skew = |seconds| fresh(&[&server]).skew(Duration::from_secs(seconds));
    let began = || {
        let record = server.get(b"leasehold:epoch").expect("a record");
        let record = String::from_utf8(record).expect("text");
        let began = record.split(':').nth(2).map(str::parse::<u64>);
        (began.expect("T").expect("a number"), record)
    };
    let client = of_skew(10).connect().await.expect("connected");
    drop(client);
    let (earlier, record) = began();
    // As if the server's clock had gone back by an hour since.
    let ahead = earlier + 3_600_000_000;
    let record = record.replace(&earlier.to_string(), &ahead.to_string());
    let set: [&[u8]; 3] = [b"SET", b"leasehold:epoch", record.as_bytes()];
    assert_eq!(server.command(&set), "+OK\r\n");
    let done = of_skew(1).init_replacing().await.expect("recorded");
    assert_eq!(done[0].change, Change::Replaced);
    // The floor is T + 1 s now, and was T + 10 s.
    assert!(began().0 >= ahead + 9_000_000, "{:?}", began());
    let client = of_skew(1).connect().await.expect("connected");
    drop(client);
}
