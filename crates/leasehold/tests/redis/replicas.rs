//! Locks that count only when replicas have them. Several cases are what users of other libraries have
//! reported about their `WAIT`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold::node::NodeError;
use leasehold::observe::{Event, NodeChange, NodeEvent};
use leasehold::{Client, Error, Invalid, Lease, Mutex, NodeOutcome, Options, Released};
use leasehold_testkit::setup::{
    LONG, eventually, fresh, in_line, lease_of, lock, patient, pause, until,
};
use leasehold_testkit::{RedisServer, SentinelService, replicated};
use tokio::net::TcpStream;

use super::proxy;

/// A client of a master, whose locks this many replicas must have.
async fn client(servers: &[RedisServer], replicas: u32) -> Client {
    let builder = fresh(&servers[..1]).replicas(replicas);
    builder.connect().await.expect("the master works")
}

/// A lock whose requests are answered within a second and a half.
fn brief(client: &Client, name: &str) -> Mutex {
    let brief = |options: Options| patient(options).node_timeout(Duration::from_millis(1_500));
    client.mutex(name).with_options(brief)
}

/// Tries to acquire a lock, and returns the error of the node.
async fn refused(mutex: &Mutex) -> NodeError {
    let error = mutex.try_lock().await.expect_err("no lock");
    match &error.nodes()[0].outcome {
        NodeOutcome::Failed(error) => error.clone(),
        other => panic!("{other:?}"),
    }
}

async fn until_free(server: &RedisServer, name: &str) {
    until("the lock is released", || {
        server.get(name.as_bytes()).is_none()
    })
    .await;
}

/// Users of another library could not switch WAIT off, and paid for it with every lock.
#[tokio::test]
async fn no_wait_is_sent_by_default() {
    let servers = replicated(1, &[]);
    let client = fresh(&servers[..1]).connect().await.expect("connected");
    let lease = lock(&client, "x").await;
    lease.extend().await.expect("extended");
    lease.release().await;
    assert_eq!(servers[0].calls("wait"), 0);
    let client = self::client(&servers, 1).await;
    let lease = lock(&client, "x").await;
    let acquired = servers[0].calls("wait");
    assert!(acquired > 0);
    lease.extend().await.expect("extended");
    let extended = servers[0].calls("wait");
    assert!(extended > acquired, "a renewal is not acknowledged");
    lease.release().await;
    assert_eq!(servers[0].calls("wait"), extended);
    // It times out where `appendfsync` is `no`.
    assert_eq!(servers[0].calls("waitaof"), 0);
}

/// One replica of two may be the one that is not promoted. Users of another library found that the
/// number was ignored, and that the lock stayed after the failure.
#[tokio::test]
async fn a_lock_that_too_few_replicas_have_is_no_lock() {
    let mut servers = replicated(2, &[]);
    let client = client(&servers, 2).await;
    lock(&client, "x").await.release().await;
    servers[2].stop();
    let error = refused(&brief(&client, "x")).await;
    let said = error.to_string();
    let expected = "granted, but 1 of 2 replicas have acknowledged it";
    assert_eq!(said, expected);
    assert!(matches!(
        error,
        NodeError::NotReplicated {
            acked: 1,
            wanted: 2,
            ..
        }
    ));
    assert!(!error.is_permanent() && !error.had_no_effect());
    until_free(&servers[0], "x").await;
    // A call that may wait gets the lock when the replica is back.
    let waiting = leasehold_testkit::setup::spawn_lock(brief(&client, "x"));
    pause(200).await;
    assert!(!waiting.is_finished());
    servers[2].resume();
    assert_eq!(lease_of(waiting).await.release().await, Released::Released);
}

#[tokio::test]
async fn a_lease_that_replicas_do_not_acknowledge_is_not_renewed() {
    let mut servers = replicated(1, &[]);
    let client = client(&servers, 1).await;
    let lease = brief(&client, "x").lock().await.expect("a lease");
    let deadline = lease.deadline();
    servers[1].stop();
    let error = lease.extend().await.expect_err("not renewed");
    assert!(matches!(error, Error::NoMajority(_)), "{error:?}");
    assert!(lease.deadline() <= deadline);
    servers[1].resume();
    eventually("renewed", async || lease.extend().await.ok()).await;
}

/// The connection that carries the votes is not blocked.
#[tokio::test]
async fn other_calls_go_on_while_a_replica_is_silent() {
    let mut servers = replicated(1, &[]);
    let client = client(&servers, 1).await;
    let lease = lock(&client, "a").await;
    servers[1].stop();
    let mutex = client.mutex("b").with_options(patient);
    let mut acquiring = std::pin::pin!(mutex.try_lock());
    tokio::select! {
        biased;
        acquired = &mut acquiring => panic!("{acquired:?}"),
        () = pause(300) => {}
    }
    tokio::select! {
        biased;
        acquired = &mut acquiring => panic!("{acquired:?}"),
        released = lease.release() => assert_eq!(released, Released::Released),
    }
    servers[1].resume();
    assert!(acquiring.await.expect("no error").is_some());
}

/// A waiter that was handed the lock does not hold it before the replicas know.
#[tokio::test]
async fn a_hand_over_counts_when_replicas_have_it() {
    let mut servers = replicated(1, &[]);
    let (holder, client) = (client(&servers, 1).await, client(&servers, 1).await);
    for silent in [false, true] {
        let lease = lock(&holder, "x").await;
        let waiter = in_line(client.mutex("x").with_options(patient)).await;
        if silent {
            servers[1].stop();
        }
        lease.release().await;
        if silent {
            pause(500).await;
            assert!(!waiter.is_finished(), "no replica has the lock");
            servers[1].resume();
        }
        lease_of(waiter).await.release().await;
    }
}

/// A waiter that cannot have the lock does not keep it from those behind it, who need fewer replicas.
#[tokio::test]
async fn a_waiter_without_replicas_lets_others_pass() {
    let mut servers = replicated(2, &[]);
    let (two, one) = (client(&servers, 2).await, client(&servers, 1).await);
    lock(&two, "x").await.release().await;
    let held = lock(&client(&servers, 1).await, "x").await;
    let first = in_line(brief(&two, "x")).await;
    let second = in_line(brief(&one, "x")).await;
    servers[2].stop();
    held.release().await;
    // The node grants it to the first, which waits for its replicas in vain, and leaves.
    lease_of(second).await.release().await;
    assert!(!first.is_finished());
    servers[2].resume();
    assert_eq!(lease_of(first).await.release().await, Released::Released);
}

/// Providers forbid WAIT, and old servers and imitations do not have it. The error says so at once,
/// also of a call that would wait.
#[tokio::test]
async fn a_server_without_wait_is_a_clear_error() {
    let forbidden = replicated(1, &[]);
    forbidden[0].run("ACL SETUSER default -wait");
    let unknown = replicated(1, &["--rename-command", "WAIT", ""]);
    for (servers, expected) in [(forbidden, "NOPERM"), (unknown, "does not know WAIT")] {
        let client = client(&servers, 1).await;
        for error in [
            client
                .mutex("x")
                .with_options(patient)
                .try_lock()
                .await
                .map(|_| ()),
            client
                .mutex("x")
                .with_options(patient)
                .lock()
                .await
                .map(|_| ()),
        ] {
            let error = error.expect_err("no lock");
            assert!(error.to_string().contains(expected), "{error}");
        }
        until_free(&servers[0], "x").await;
    }
}

/// To connect may take longer than a request. Such a client connects for acknowledgements meanwhile,
/// and has its time limit for them.
#[tokio::test]
async fn a_far_client_gets_its_first_lock_at_once() {
    let servers = replicated(1, &[]);
    let way = Duration::from_millis(100);
    let url = proxy::distant(servers[0].port(), way).await;
    let builder = Client::builder().node(url).assume_fresh().replicas(1);
    let client = builder.connect_timeout(LONG).build().expect("valid");
    // About nine round trips are needed to connect.
    let options = |options| patient(options).node_timeout(way * 2 * 8);
    let start = Instant::now();
    let lease = client.mutex("x").with_options(options).try_lock().await;
    assert!(start.elapsed() > way * 2 * 8, "{:?}", start.elapsed());
    assert!(lease.expect("acknowledged in time").is_some());
}

/// Otherwise the replicas of another server would vouch for a lock that it does not have.
#[tokio::test]
async fn the_server_that_voted_must_be_the_one_that_is_acknowledged() {
    let (one, other) = (replicated(1, &[]), replicated(1, &[]));
    let port = Arc::new(AtomicU16::new(one[0].port()));
    let leads_to = Arc::clone(&port);
    let url = proxy::listen(move |mut near| {
        let port = leads_to.load(Ordering::SeqCst);
        async move {
            let mut far = TcpStream::connect(("127.0.0.1", port)).await.expect("it");
            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        }
    })
    .await;
    let client = Client::builder().node(url).assume_fresh().replicas(1);
    let client = client.connect().await.expect("connected");
    // Connections that are open stay with the first server.
    port.store(other[0].port(), Ordering::SeqCst);
    let error = refused(&client.mutex("x").with_options(patient)).await;
    let said = error.to_string();
    assert!(said.contains("another server answers"), "{said}");
    until_free(&one[0], "x").await;
    assert_eq!(other[0].get(b"x"), None);
}

/// A warning is all that happens, and only the first lock waits for the replica.
#[tokio::test]
async fn preferred_replicas_prevent_no_lock() {
    let mut servers = replicated(1, &[]);
    let reported = Arc::new(AtomicU32::new(0));
    let observed = Arc::clone(&reported);
    let builder = fresh(&servers[..1])
        .prefer_replicas(1)
        .observer(move |event: &Event| {
            if let Event::Node(NodeEvent { change, .. }) = event {
                match change {
                    NodeChange::TooFewReplicas {
                        acked: Some(0),
                        wanted: 1,
                        ..
                    } => {
                        observed.fetch_add(1, Ordering::SeqCst);
                    }
                    NodeChange::EnoughReplicas => {
                        observed.fetch_add(100, Ordering::SeqCst);
                    }
                    _ => {}
                }
            }
        });
    let client = builder.connect().await.expect("connected");
    let timeout = Duration::from_secs(6);
    let mutex = |name: &str| {
        let options = |options| patient(options).node_timeout(timeout);
        client.mutex(name).with_options(options)
    };
    mutex("x").lock().await.expect("a lease").release().await;
    assert_eq!(servers[0].calls("wait"), 1);
    servers[1].stop();
    mutex("x").lock().await.expect("a lease").release().await;
    let start = Instant::now();
    for _ in 0..3 {
        mutex("x").lock().await.expect("a lease").release().await;
    }
    assert!(start.elapsed() < timeout / 2, "{:?}", start.elapsed());
    servers[1].resume();
    // Acknowledgements are noticed again.
    let resumed = servers[0].calls("wait");
    let again = async || {
        mutex("x").lock().await.expect("a lease").release().await;
        (servers[0].calls("wait") > resumed + 2).then_some(())
    };
    eventually("further requests", again).await;
    until("both are reported", || {
        reported.load(Ordering::SeqCst) == 101
    })
    .await;
    servers[1].kill();
    mutex("y").lock().await.expect("a lease").release().await;
}

/// The lock survives its master. No other client gets it before the lease has ended, without a guard.
#[tokio::test(flavor = "multi_thread")]
async fn a_replicated_lock_survives_a_failover() {
    let mut service = SentinelService::start(1);
    let options = |options: Options| {
        let options = options.outage_patience(LONG).ttl(Duration::from_secs(20));
        options.node_timeout(Duration::from_secs(10))
    };
    let connect = async |replicas| {
        let builder = Client::builder().node(service.url()).assume_fresh();
        let builder = builder
            .replicas(replicas)
            .options(options(Options::default()));
        let builder = builder.connect_timeout(Duration::from_secs(10));
        builder.connect().await.expect("connected")
    };
    let (holder, other) = (connect(1).await, connect(0).await);
    let lease: Lease = holder.mutex("x").lock().await.expect("a lease");
    let new = tokio::task::block_in_place(|| {
        let old = service.kill_master();
        service.promoted(old)
    });
    assert!(service.servers[new].get(b"x").is_some());
    let acquire = async || other.mutex("x").try_lock().await.ok().flatten();
    let next = eventually("the TTL ends", acquire).await;
    assert!(lease.remaining().is_zero(), "two clients hold the lock");
    assert!(next.token() > lease.token());
}

#[tokio::test]
async fn numbers_that_make_no_sense_are_invalid() {
    let error = Client::builder().node("redis://127.0.0.1:1").replicas(65);
    let error = error.build().expect_err("too many");
    let text = error.to_string();
    assert!(
        text.contains("the number of replicas must be between 0 and 64"),
        "{text}"
    );
    let local = |replicas| Client::builder().node("local:").replicas(replicas).build();
    let error = local(1).expect_err("no replicas");
    assert!(
        matches!(error, Error::Invalid(Invalid::NodeUrl { .. })),
        "{error:?}"
    );
    assert!(local(0).is_ok());
}
