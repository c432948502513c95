//! A service that sentinels watch, as one node.

use std::time::Duration;

use leasehold::node::Vote;
use leasehold::{Builder, Client, Error, Lease, NodeOutcome, Options, Released};
use leasehold_testkit::SentinelService;
use leasehold_testkit::setup::{LONG, eventually, in_line, lease_of, lock, patient, until};

async fn client(url: &str) -> Client {
    let builder = Client::builder().node(url).assume_fresh();
    let builder = builder.connect_timeout(Duration::from_secs(10));
    builder.connect().await.expect("the master is found")
}

/// The client finds the promoted replica by itself, also while one sentinel is dead. Tokens grow over
/// the failover.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_follows_a_failover() {
    let mut service = SentinelService::start(1);
    service.sentinels[2].kill();
    let client = client(&service.url()).await;
    let mutex = client.mutex("x").with_options(patient);
    let before = mutex.lock().await.expect("a lease");
    let token = before.token();
    assert_eq!(before.release().await, Released::Released);
    let old = service.master();
    let new = tokio::task::block_in_place(|| service.fail_over());
    assert_ne!(old, new);
    // Until the sentinels have demoted it, the old master still grants locks, and loses them then.
    let demoted = || service.servers[old].info("replication", "role") == "slave";
    until("the old master is demoted", demoted).await;
    let after = eventually("a lease", async || mutex.lock().await.ok()).await;
    assert!(after.token() > token, "{} after {token}", after.token());
    let has_lock = service.servers[new].get(b"x").is_some();
    assert!(has_lock, "the promoted replica has granted the lock");
    assert_eq!(after.release().await, Released::Released);
}

#[tokio::test]
async fn a_service_that_no_sentinel_knows() {
    let service = SentinelService::start(0);
    let url = service.url().replace("/locks", "/other");
    let connected = Client::builder().node(url).connect().await;
    let error = connected.expect_err("no such service").to_string();
    assert!(
        error.contains("do not know a service called `other`"),
        "{error}"
    );
}

/// Two sentinels are dead, and the third has lost its configuration: a passing fault, and no reason
/// to give up.
#[tokio::test]
async fn a_sentinel_that_has_lost_its_configuration() {
    let mut service = SentinelService::start(0);
    service.sentinels[0].run("SENTINEL REMOVE locks");
    for sentinel in &mut service.sentinels[1..] {
        sentinel.kill();
    }
    let connected = Client::builder().node(service.url()).connect().await;
    let error = connected.expect_err("no master is known");
    assert!(matches!(error, Error::NoMajority(_)), "{error}");
    let error = error.to_string();
    assert!(error.contains("it does not know the service"), "{error}");
    assert!(error.contains("refused"), "{error}");
}

/// `redis://` with the address of a sentinel is a likely mistake.
#[tokio::test]
async fn the_address_of_a_sentinel_as_a_server() {
    let service = SentinelService::start(0);
    let url = format!("redis://127.0.0.1:{}", service.sentinels[0].port());
    let connected = Client::builder().node(url).connect().await;
    let error = connected.expect_err("not a server").to_string();
    assert!(error.contains("this server is a sentinel"), "{error}");
    assert!(error.contains("redis+sentinel://"), "{error}");
}

/// Waiters of a master that dies get their turn on the promoted one, long before a TTL ends.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_get_their_turn_after_a_failover() {
    let mut service = SentinelService::start(1);
    let url = service.url();
    let (holder, first, second) = (client(&url).await, client(&url).await, client(&url).await);
    let lease = lock(&holder, "q").await;
    let mut waiters = Vec::new();
    for client in [&first, &second] {
        waiters.push(in_line(client.mutex("q").with_options(patient)).await);
    }
    tokio::task::block_in_place(|| service.kill_master());
    let _ = lease.release().await;
    // In any order: their tickets may be too low for the new epoch.
    let turns = waiters
        .into_iter()
        .map(|waiter| tokio::spawn(async move { lease_of(waiter).await.release().await }));
    for turn in turns.collect::<Vec<_>>() {
        turn.await.expect("a turn");
    }
}

/// A lease that was granted before a failover is not renewed after it: the promoted server cannot
/// tell whether it has all that its predecessor granted. The holder is notified.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_ends_with_its_master() {
    let mut service = SentinelService::start(1);
    let client = client(&service.url()).await;
    let mutex = client
        .mutex("x")
        .with_options(|o| patient(o).ttl(GUARD).node_timeout(GUARD / 2));
    let lease = mutex.lock().await.expect("a lease");
    let new = tokio::task::block_in_place(|| {
        let old = service.kill_master();
        service.promoted(old)
    });
    let lost = tokio::time::timeout(LONG, lease.lost()).await;
    assert!(lost.is_ok(), "the holder is not notified");
    let next = eventually("a lease", async || mutex.lock().await.ok()).await;
    assert!(next.token() > lease.token());
    assert!(service.servers[new].get(b"x").is_some());
}

/// The sentinels demote a master only some ten seconds after an operator has made them promote a
/// replica; here they never can. A restart guard may be over by then, so a holder must not go on with
/// the old master.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_ends_although_its_master_is_not_demoted() {
    let service = SentinelService::start(1);
    let client = client(&service.url()).await;
    let mutex = client.mutex("x").with_options(|o| patient(o).ttl(GUARD));
    let lease = mutex.lock().await.expect("a lease");
    let old = service.master();
    service.servers[old].run("ACL SETUSER default -replicaof -slaveof");
    let new = tokio::task::block_in_place(|| service.fail_over());
    let lost = tokio::time::timeout(LONG, lease.lost()).await;
    assert!(lost.is_ok(), "the holder is not notified");
    assert_eq!(service.servers[old].info("replication", "role"), "master");
    assert!(service.servers[old].get(b"x").is_some());
    let next = eventually("a lease", async || mutex.lock().await.ok()).await;
    assert!(next.token() > lease.token());
    assert!(service.servers[new].get(b"x").is_some());
}

/// A master that is stopped is replaced. When it continues, it still acts as master, and a connection
/// that was idle meanwhile still leads there until the sentinels have demoted it.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_was_stopped_is_not_used_after_its_demotion() {
    let mut service = SentinelService::start(1);
    let client = client(&service.url()).await;
    let _ = lock(&client, "x").await.release().await;
    let old = service.master();
    service.servers[old].stop();
    let new = tokio::task::block_in_place(|| service.promoted(old));
    service.servers[old].resume();
    let demoted = || service.servers[old].info("replication", "role") == "slave";
    until("the old master is demoted", demoted).await;
    let mutex = client.mutex("y").with_options(patient);
    let lease = eventually("a lease", async || mutex.lock().await.ok()).await;
    assert!(service.servers[new].get(b"y").is_some());
    assert_eq!(lease.release().await, Released::Released);
}

/// Long, so that a machine that is stopped for a while does not let it end too early.
const GUARD: Duration = Duration::from_secs(15);

/// A client of the service whose leases are as long as the guard allows.
fn guarded(service: &SentinelService) -> Builder {
    let options = patient(Options::default())
        .ttl(GUARD)
        .node_timeout(GUARD / 2);
    let builder = Client::builder().node(service.url()).options(options);
    builder.connect_timeout(Duration::from_secs(10))
}

/// A lease of a client whose server fails before it has replicated the lease. The server that was
/// promoted reports neither a short uptime nor its promotion.
async fn lease_that_is_lost(
    service: &mut SentinelService,
    builder: impl Fn(&SentinelService) -> Builder,
) -> Lease {
    let up_s = |server: &leasehold_testkit::RedisServer| {
        let up = server.info("server", "uptime_in_seconds");
        up.parse::<u64>().unwrap_or(0)
    };
    let long = GUARD.as_secs() + 2;
    until("the servers are up for longer than the guard", || {
        service.servers.iter().all(|server| up_s(server) >= long)
    })
    .await;
    // Only now: a client that assumes this for as long as it lives would vouch for the promoted
    // server, too.
    let fresh = builder(service).assume_fresh().init().await;
    fresh.expect("the master votes at once");
    let client = builder(service).connect().await.expect("connected");
    let lease = client.mutex("a").lock().await.expect("a lease");
    let new = tokio::task::block_in_place(|| {
        let old = service.kill_master();
        service.promoted(old)
    });
    let server = &service.servers[new];
    server.run("CONFIG SET repl-backlog-ttl 1");
    let none = "0".repeat(40);
    until("the promotion is forgotten", || {
        server.info("replication", "master_replid2") == none
    })
    .await;
    server.run("DEL a");
    lease
}

/// Tries to acquire the lock until it is granted. Returns how often the server did not vote before.
async fn taken_over(client: &Client) -> usize {
    let mut quarantined = 0;
    let attempt = async || match client.mutex("a").try_lock().await {
        Ok(lease) => lease,
        Err(error) => {
            let outcome = &error.nodes()[0].outcome;
            let waits = matches!(outcome, NodeOutcome::Voted(Vote::Quarantined { .. }));
            quarantined += usize::from(waits);
            None
        }
    };
    drop(eventually("the promoted server votes", attempt).await);
    quarantined
}

/// Neither its uptime nor its role tells that a server has taken over; its epoch does.
#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_server_does_not_vote_before_the_leases_of_its_predecessor_have_ended() {
    let mut service = SentinelService::start(1);
    let builder = |service: &SentinelService| guarded(service).restart_guard(GUARD);
    let lease = lease_that_is_lost(&mut service, builder).await;
    let initialized = builder(&service).init().await;
    let initialized = initialized.expect("the set is on record");
    assert!(!initialized[0].votes_in.is_zero(), "{initialized:?}");
    let other = builder(&service).connect().await;
    let quarantined = taken_over(&other.expect("connected")).await;
    assert!(lease.remaining().is_zero(), "two clients hold the lock");
    assert!(quarantined > 0, "the server voted at once");
}

/// Without the guard, exclusion is lost with the lease.
#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_server_votes_at_once_without_a_guard() {
    let mut service = SentinelService::start(1);
    let lease = lease_that_is_lost(&mut service, guarded).await;
    let other = guarded(&service).connect().await.expect("connected");
    assert_eq!(taken_over(&other).await, 0, "the server voted later");
    drop(lease);
}
