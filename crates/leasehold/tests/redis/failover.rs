//! Servers whose memory is replaced while they run and connections stay open: by replication, or
//! by a proxy that keeps connections while the server behind it restarts.

use std::time::Instant;

use leasehold::{Client, Options, Released};
use leasehold_testkit::setup::{
    LONG, client, copies, eventually, fresh, lease_of, lock, patient, pause, spawn_lock, until,
};
use leasehold_testkit::{RedisServer, ShiftedClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::restarts::{GUARD, guarded, short};
use super::{frozen, proxy};

/// A master and a server that can become its replica, which synchronise without delay.
fn pair() -> [RedisServer; 2] {
    [(); 2].map(|()| RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]))
}

/// Makes a server a replica, and waits until it has all data of its master.
async fn demote(server: &RedisServer, master: &RedisServer) {
    server.run(&format!("REPLICAOF 127.0.0.1 {}", master.port()));
    until("synchronised", || {
        server.info("replication", "master_link_status") == "up"
    })
    .await;
}

fn promote(server: &RedisServer) {
    server.run("REPLICAOF NO ONE");
}

/// A client whose clock is slow: it asks for the lowest token that the server can grant.
async fn slow(server: &RedisServer) -> Client {
    let builder = fresh(&[server]).time_source(ShiftedClock::ahead_by(-3_600));
    builder.connect().await.expect("connected")
}

async fn turn(client: &Client, name: &str) -> u64 {
    let lease = lock(client, name).await;
    let token = lease.token();
    assert_eq!(lease.release().await, Released::Released);
    token
}

/// Makes a server forget its last grant of `x` without a restart, and returns the token of that
/// grant. The server is demoted, synchronised with a replica that has not seen the grant, and
/// promoted.
async fn roll_back(a: &RedisServer, b: &RedisServer) -> u64 {
    demote(b, a).await;
    turn(&slow(a).await, "x").await;
    let fence = b"leasehold:fence:{x}";
    until("replicated", || b.get(fence) == a.get(fence)).await;
    promote(b);
    let run_id = || a.info("server", "run_id");
    let before = run_id();
    let token = turn(&slow(a).await, "x").await;
    demote(a, b).await;
    promote(a);
    assert_eq!(run_id(), before, "the server did not restart");
    token
}

#[tokio::test]
async fn a_server_that_was_a_replica_grants_no_token_twice() {
    let [a, b] = pair();
    let token = roll_back(&a, &b).await;
    let next = turn(&slow(&a).await, "x").await;
    assert!(next > token, "{next} after {token}");
}

/// A role change does not break connections, so the client has to notice it on an old one.
#[tokio::test]
async fn an_idle_connection_notices_that_the_server_was_a_replica() {
    let [a, b] = pair();
    let old = slow(&a).await;
    turn(&old, "y").await;
    let connections = || a.run("CLIENT LIST");
    let before = connections();
    let token = roll_back(&a, &b).await;
    // The client has the only connection with a subscription.
    let listening = before.lines().find(|line| line.contains(" sub=1 "));
    let id = listening.and_then(|line| line.strip_prefix("id=")?.split(' ').next());
    let id = id.expect("a connection");
    assert!(
        connections().contains(&format!("id={id} ")),
        "the connection is still open"
    );
    // A request within a second of the last check is not checked again.
    pause(1_100).await;
    let next = turn(&old, "x").await;
    assert!(next > token, "{next} after {token}");
}

/// The server may have forgotten leases as well, although it has long been up.
#[tokio::test]
async fn a_promotion_is_guarded_like_a_restart() {
    let (servers, old) = guarded(1).await;
    let [other, _] = pair();
    demote(&servers[0], &other).await;
    promote(&servers[0]);
    let promoted = Instant::now();
    let new = Client::builder()
        .node(servers[0].url())
        .restart_guard(GUARD)
        .options(short(Options::default()));
    let new = new.connect().await.expect("connected");
    pause(1_100).await;
    for client in [&new, &old, &new] {
        let lease = client
            .mutex("a")
            .lock()
            .await
            .expect("the server votes again");
        assert!(promoted.elapsed() >= GUARD, "{:?}", promoted.elapsed());
        lease.release().await;
    }
}

#[tokio::test]
async fn read_only_during_a_failover_is_retried() {
    let [a, b] = pair();
    let client = client(&[&a]).await;
    turn(&client, "x").await;
    demote(&a, &b).await;
    for _ in 0..3 {
        let mutex = client.mutex("x").with_options(patient);
        let error = mutex.try_lock().await.expect_err("a replica");
        assert!(error.to_string().contains("is a replica now"), "{error}");
        pause(50).await;
    }
    let waiting = spawn_lock(client.mutex("x").with_options(patient));
    pause(500).await;
    assert!(
        !waiting.is_finished(),
        "a replica granted a lock, or ended the wait"
    );
    promote(&a);
    let lease = lease_of(waiting).await;
    assert_eq!(lease.release().await, Released::Released);
}

#[tokio::test]
async fn a_client_that_starts_with_a_replica_waits_for_its_promotion() {
    let [a, b] = pair();
    demote(&a, &b).await;
    let client = fresh(&[&a]).build().unwrap();
    let waiting = spawn_lock(client.mutex("x").with_options(patient));
    pause(500).await;
    assert!(!waiting.is_finished());
    assert_eq!(
        a.get(b"leasehold:epoch"),
        None,
        "nothing is written to a replica"
    );
    promote(&a);
    let lease = lease_of(waiting).await;
    assert_eq!(lease.release().await, Released::Released);
}

/// Neither the first replica that attaches nor the last one that leaves ends an epoch, although
/// both change the replication ids. Nor does a server that no longer reports its promotion.
#[tokio::test]
async fn replicas_that_attach_and_leave_do_not_end_the_epoch() {
    let [a, b] = pair();
    for promoted in [false, true] {
        let forget_after = |seconds: u32| {
            a.run(&format!("CONFIG SET repl-backlog-ttl {seconds}"));
        };
        forget_after(3600);
        if promoted {
            demote(&a, &b).await;
            promote(&a);
        }
        let old = client(&[&a]).await;
        // In the second round the server gets a copy of the first round's lock back.
        let lease = lock(&old, &format!("x{promoted}")).await;
        let record = a.get(b"leasehold:epoch").expect("a record");
        let keeps = async |what: &str| {
            pause(1_100).await;
            lease.extend().await.expect(what);
            turn(&client(&[&a]).await, "y").await;
            assert_eq!(a.get(b"leasehold:epoch").as_ref(), Some(&record), "{what}");
        };
        let history = || a.info("replication", "master_replid2");
        let none = "0".repeat(40);
        assert_eq!(history() == none, !promoted);
        demote(&b, &a).await;
        keeps("a replica attached").await;
        promote(&b);
        until("gone", || a.info("replication", "connected_slaves") == "0").await;
        keeps("the last replica left").await;
        forget_after(1);
        until("the history is forgotten", || history() == none).await;
        keeps("the history is forgotten").await;
        assert_eq!(lease.release().await, Released::Released);
    }
}

/// A proxy that keeps its clients' connections while the server behind it restarts.
async fn keeping_proxy(server: &RedisServer) -> String {
    let port = server.port();
    proxy::listen(move |near| forward(near, port)).await
}

async fn forward(mut near: TcpStream, port: u16) {
    let (mut asked, mut answered) = (vec![0; 65536], vec![0; 65536]);
    loop {
        let Ok(mut far) = TcpStream::connect(("127.0.0.1", port)).await else {
            pause(5).await;
            continue;
        };
        loop {
            tokio::select! {
                read = near.read(&mut asked) => match read {
                    Ok(read @ 1..) if far.write_all(&asked[..read]).await.is_ok() => {}
                    Ok(1..) => break,
                    _ => return,
                },
                read = far.read(&mut answered) => match read {
                    Ok(read @ 1..) if near.write_all(&answered[..read]).await.is_ok() => {}
                    Ok(1..) => return,
                    _ => break,
                },
            }
        }
    }
}

/// The restart guard also applies where no connection breaks at the restart.
#[tokio::test]
async fn a_restart_behind_a_proxy_is_guarded_too() {
    let (mut servers, first) = guarded(3).await;
    let mut second = Client::builder()
        .restart_guard(GUARD)
        .options(short(Options::default()));
    for server in &servers {
        second = second.node(keeping_proxy(server).await);
    }
    let second = second.build().unwrap();
    let warm = second.mutex("warm").lock().await.expect("a lease");
    warm.release().await;
    let _lease = first.mutex("a").lock().await.expect("a lease");
    let restarting = Instant::now();
    servers[0].restart();
    servers[1].restart();
    let attempt = async || second.mutex("a").try_lock().await.ok().flatten();
    let taken = eventually("the server votes again", attempt).await;
    let waited = restarting.elapsed();
    assert!(waited >= GUARD, "voted after {waited:?}");
    taken.release().await;
}

/// A server checks permissions for each command of a script. The client releases what an earlier
/// command has written.
#[tokio::test]
async fn a_partial_grant_after_a_missing_permission_is_released() {
    let (server, clock, later_us) = frozen();
    let servers = [server];
    servers[0].run("ACL SETUSER locks on >pw ~* &* +@all -setrange -acl");
    let url = format!("redis://locks:pw@127.0.0.1:{}", servers[0].port());
    let client = Client::builder().node(url).assume_fresh();
    let client = client.connect().await.expect("connected");
    clock.set(later_us);
    // Longer than this test may take.
    let long = |options: Options| patient(options).ttl(10 * LONG);
    turn(&client, "a").await;
    // The first grant writes the fence anew. The next one only changes it, after it has written
    // the lock.
    let mut refused = 0;
    for _ in 0..3 {
        match client.mutex("a").with_options(long).try_lock().await {
            Err(error) => {
                assert!(error.to_string().contains("NOPERM"), "{error}");
                refused += 1;
            }
            Ok(lease) => drop(lease),
        }
        until("released", || copies(&servers, "a") == 0).await;
    }
    assert!(refused > 0, "no script was refused half-way");
}
