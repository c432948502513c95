//! The keys on the server, and the ways to connect.

use std::time::Duration;

use leasehold::{Client, Holder, Released};
use leasehold_testkit::RedisServer;
use leasehold_testkit::setup::{LONG, client, copies, lock, patient, until};

use super::frozen;

fn pttl(server: &RedisServer, key: &str) -> i64 {
    let reply = server.run(&format!("PTTL {key}"));
    let ms = reply.trim_start_matches(':').trim();
    ms.parse().expect("a number")
}

/// The lock is a plain string at exactly the name, with a TTL in milliseconds.
#[tokio::test]
async fn the_lock_is_a_plain_string_with_a_ttl() {
    let servers = RedisServer::start_many(1);
    let client = client(&servers).await;
    let lease = lock(&client, "orders/42").await;
    assert_eq!(servers[0].run("TYPE orders/42"), "+string\r\n");
    let ttl = pttl(&servers[0], "orders/42");
    assert!((1..=60_000).contains(&ttl), "{ttl}");
    let value = servers[0].get(b"orders/42").expect("a value");
    assert_eq!(Holder::parse(&value).token, Some(lease.token()));
    // What any other library does with the same name.
    let set = "SET orders/42 other NX PX 1000";
    assert_eq!(servers[0].run(set), "$-1\r\n");
    lease.release().await;
    assert_eq!(servers[0].run(set), "+OK\r\n");
}

/// A fence expires, but long after the lock.
#[tokio::test]
async fn the_fence_expires_a_day_after_its_last_use() {
    let servers = RedisServer::start_many(1);
    let client = client(&servers).await;
    let lease = lock(&client, "a").await;
    let key = "leasehold:fence:{a}";
    let day = 24 * 3600 * 1000;
    assert!((day..day * 2).contains(&pttl(&servers[0], key)));
    let fence = servers[0].get(key.as_bytes()).expect("a fence");
    assert_eq!(fence, lease.token().to_string().into_bytes(), "not rounded");
    lease.extend().await.expect("extended");
    assert_eq!(servers[0].get(key.as_bytes()).expect("a fence"), fence);
    lease.release().await;
    assert_eq!(servers[0].get(key.as_bytes()).expect("a fence"), fence);
    assert!((day..day * 2).contains(&pttl(&servers[0], key)));
}

/// A request over one connection may arrive after a release over the next one. The release raises
/// the fence against that.
#[tokio::test]
async fn a_release_over_another_connection_raises_the_fence() {
    let servers = RedisServer::start_many(1);
    let client = client(&servers).await;
    for kills in [false, true] {
        let lease = lock(&client, "a").await;
        lease.extend().await.expect("extended");
        let token = lease.token();
        if kills {
            assert_eq!(servers[0].run("CLIENT KILL TYPE pubsub"), ":1\r\n");
        }
        assert_eq!(lease.release().await, Released::Released);
        let fence = servers[0].get(b"leasehold:fence:{a}").expect("a fence");
        let raised = token + u64::from(kills);
        assert_eq!(fence, raised.to_string().into_bytes());
    }
}

/// A lock that is kept for `min_hold` has a value without an owner, and a TTL.
#[tokio::test]
async fn a_kept_lock_has_no_owner() {
    let servers = RedisServer::start_many(1);
    let client = client(&servers).await;
    let mutex = client.mutex("a").with_options(patient);
    let mutex = mutex.with_options(|o| o.min_hold(Duration::from_secs(3600)));
    let lease = mutex.lock().await.expect("a lease");
    let owner = servers[0].get(b"a").expect("a value");
    lease.release().await;
    let kept = servers[0].get(b"a").expect("still taken");
    assert!(!kept.windows(40).any(|part| part == &owner[..40]));
    let ttl = pttl(&servers[0], "a");
    assert!((3_500_000..=3_600_000).contains(&ttl), "{ttl}");
}

#[tokio::test]
async fn unix_sockets_and_databases_work() {
    let server = RedisServer::start_with(&["--requirepass", "p&w"]);
    let socket = server.dir().join("redis.sock");
    let url = format!("redis+unix://{}?db=3&pass=p%26w", socket.display());
    let client = Client::builder()
        .node(url)
        .connect()
        .await
        .expect("connected");
    let mutex = client.mutex("a").with_options(patient);
    let lease = mutex.lock().await.expect("a lease");
    let error = mutex.lock_timeout(Duration::ZERO).await.expect_err("held");
    assert!(error.to_string().contains("redis.sock/3"), "{error}");
    assert!(!error.to_string().contains("p&w"));
    // The same database by another address.
    let url = format!("redis://:p%26w@127.0.0.1:{}/3", server.port());
    let other = Client::builder()
        .node(url)
        .connect()
        .await
        .expect("connected");
    assert!(other.mutex("a").try_lock().await.unwrap().is_none());
    lease.release().await;
}

/// An even number of nodes works: eight contenders on four nodes make progress despite split
/// votes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_even_number_of_nodes_makes_progress() {
    for count in [2, 4] {
        let servers = RedisServer::start_many(count);
        let mut tasks = Vec::new();
        for _ in 0..8 {
            let mutex = client(&servers).await.mutex("a").with_options(patient);
            tasks.push(tokio::spawn(async move {
                for _ in 0..5 {
                    mutex.lock().await.expect("a lease").release().await;
                }
            }));
        }
        for task in tasks {
            task.await.expect("no panic");
        }
        until("free", || copies(&servers, "a") == 0).await;
    }
}

/// Claims that are sent together share a script call: there are fewer calls than claims.
#[tokio::test]
async fn claims_of_many_tasks_share_a_script() {
    let (server, clock, later_us) = frozen();
    let servers = [server];
    let client = client(&servers).await;
    // While a server is so new that tokens are ahead of its clock, each claim is sent separately.
    clock.set(later_us);
    let round = async |taken: &[&str]| {
        let tasks: Vec<_> = (0..100)
            .map(|i| {
                let mutex = client.mutex(format!("a{i}")).with_options(patient);
                tokio::spawn(async move { mutex.try_lock().await.expect("no error") })
            })
            .collect();
        let mut leases = Vec::new();
        for task in tasks {
            leases.extend(task.await.expect("no panic"));
        }
        assert_eq!(leases.len(), 100 - taken.len());
        leases
    };
    let calls = || servers[0].calls("evalsha");
    // The first round leaves a fence for every name.
    let leases = round(&[]).await;
    for lease in leases {
        assert_eq!(lease.release().await, leasehold::Released::Released);
    }
    let before = calls();
    // Other clients hold two of the locks meanwhile. These claims are handled separately.
    servers[0].run("SET a7 foreign");
    servers[0].run("SET a31 foreign");
    let leases = round(&["a7", "a31"]).await;
    assert!(calls() - before < 60, "{} script calls", calls() - before);
    assert_eq!(copies(&servers, "a7"), 1);
    // The releases share calls, too.
    drop(leases);
    assert_eq!(client.shutdown(LONG).await, 0);
    assert!(calls() - before < 110, "{} script calls", calls() - before);
    let taken = (0..100).filter(|i| copies(&servers, &format!("a{i}")) == 1);
    assert_eq!(taken.collect::<Vec<_>>(), [7, 31]);
}

/// Renewals that are due together share a script call, except for leases in an unusual state.
#[tokio::test]
async fn renewals_of_many_leases_share_a_script() {
    let servers = RedisServer::start_many(1);
    let client = client(&servers).await;
    let ttl = |o: leasehold::Options| patient(o).ttl(Duration::from_secs(15));
    let mut leases = Vec::new();
    for i in 0..200 {
        let mutex = client.mutex(format!("a{i}")).with_options(ttl);
        leases.push(mutex.lock().await.expect("a lease"));
    }
    let deadlines: Vec<_> = leases.iter().map(leasehold::Lease::deadline).collect();
    let before = servers[0].calls("evalsha");
    // One lock is overwritten and one is deleted. The renewal restores the deleted one.
    servers[0].run("SET a7 foreign");
    assert_eq!(servers[0].run("DEL a31"), ":1\r\n");
    until("renewed", || {
        let now = leases.iter().zip(&deadlines);
        now.filter(|(lease, before)| lease.deadline() > **before)
            .count()
            == 199
    })
    .await;
    let asked = servers[0].calls("evalsha") - before;
    assert!(asked < 100, "{asked} requests for 200 renewals");
    assert!(leases[7].loss().is_some());
    assert_eq!(copies(&servers, "a31"), 1);
    for lease in leases {
        lease.release().await;
    }
}

/// The requests of all tasks share one connection per node.
#[tokio::test]
async fn one_connection_serves_all_tasks() {
    let servers = RedisServer::start_many(1);
    let client = client(&servers).await;
    let tasks: Vec<_> = (0..200)
        .map(|i| {
            let mutex = client.mutex(format!("a{i}")).with_options(patient);
            tokio::spawn(async move { mutex.lock().await.expect("a lease").release().await })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    let list = servers[0].run("CLIENT LIST");
    assert_eq!(
        list.matches("lib-name=leasehold").count().max(1),
        1,
        "{list}"
    );
    // This test's connection and the client's.
    assert_eq!(list.matches(" addr=").count(), 2, "{list}");
}
