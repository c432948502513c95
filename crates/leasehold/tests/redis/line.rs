//! Waiting in line on real servers: no turn is missed, whatever fails.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Client, Error, Lease, Options, Released};
use leasehold_testkit::RedisServer;
use tokio::task::JoinHandle;

use crate::{LONG, client, patient, pause, until};

/// Long enough that a test notices when only the TTL frees a lock.
fn long(options: Options) -> Options {
    patient(options).ttl(LONG)
}

/// A call that waits, and stands in line on a majority of the nodes.
async fn standing(client: &Client, name: &str) -> JoinHandle<Result<Lease, Error>> {
    let stands = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stands);
    let mutex = client.mutex(name).with_options(long).with_options(|o| {
        o.on_refusal(move |refusal| {
            seen.fetch_or(refusal.place().is_some(), Ordering::SeqCst);
        })
    });
    let waiter = tokio::spawn(async move { mutex.lock().await });
    until("in line", || stands.load(Ordering::SeqCst)).await;
    waiter
}

/// Checks that the waiter acquires the lock, and not because a TTL has expired.
async fn served(waiter: JoinHandle<Result<Lease, Error>>) -> Lease {
    let got = tokio::time::timeout(LONG / 2, waiter).await;
    got.expect("in time").expect("no panic").expect("a lease")
}

async fn held(client: &Client, name: &str) -> Lease {
    let mutex = client.mutex(name).with_options(long);
    mutex.lock().await.expect("a lease")
}

/// Waits until tickets are in order of arrival. A new server grants only its lowest possible
/// token for a while, so that waiters have equal tickets.
async fn until_in_order() {
    pause(200).await;
}

/// Sends a command that must succeed.
fn order(server: &RedisServer, command: &[&[u8]]) {
    let reply = server.command(command);
    assert!(!reply.starts_with('-'), "{reply}");
}

/// The number of connections that have a subscription.
fn subscriptions(server: &RedisServer) -> usize {
    let list = server.command(&[b"CLIENT", b"LIST", b"TYPE", b"pubsub"]);
    list.matches(" addr=").count()
}

/// The number of commands that clients have sent so far, without those of this function.
fn commands(server: &RedisServer) -> usize {
    let stats = server.command(&[b"INFO", b"commandstats"]);
    let calls = stats.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let count: usize = rest.split(',').next()?.parse().ok()?;
        ["evalsha", "eval", "ping", "subscribe"]
            .contains(&name)
            .then_some(count)
    });
    calls.sum()
}

/// The server sends the notification of a turn over a dead connection, so that it is lost.
#[tokio::test]
async fn a_subscription_that_breaks_is_opened_again() {
    let servers = RedisServer::start_many(3);
    let (one, two) = (client(&servers).await, client(&servers).await);
    for round in 0..10 {
        let lease = held(&one, "a").await;
        let waiter = standing(&two, "a").await;
        for server in &servers {
            order(server, &[b"CLIENT", b"KILL", b"TYPE", b"pubsub"]);
        }
        pause(round).await;
        lease.release().await;
        served(waiter).await.release().await;
    }
}

#[tokio::test]
async fn dead_and_silent_nodes_do_not_delay_a_turn() {
    let mut servers = RedisServer::start_many(5);
    let (one, two) = (client(&servers).await, client(&servers).await);
    for fault in 0..4 {
        let lease = held(&one, "a").await;
        let waiter = standing(&two, "a").await;
        match fault {
            0 => servers[0].kill(),
            1 => servers[1].stop(),
            2 => servers[0].restart(),
            _ => servers[1].resume(),
        }
        lease.release().await;
        served(waiter).await.release().await;
    }
}

/// The line is lost with the server's memory. The waiters join it again.
#[tokio::test]
async fn waiters_rejoin_a_line_that_was_lost() {
    let servers = RedisServer::start_many(3);
    let clients = [
        client(&servers).await,
        client(&servers).await,
        client(&servers).await,
    ];
    until_in_order().await;
    let lease = held(&clients[0], "a").await;
    let first = standing(&clients[1], "a").await;
    pause(5).await;
    let second = standing(&clients[2], "a").await;
    // A minority of the nodes loses its memory, and another node its scripts.
    order(&servers[0], &[b"FLUSHALL"]);
    order(&servers[1], &[b"SCRIPT", b"FLUSH"]);
    lease.release().await;
    let lease = served(first).await;
    lease.release().await;
    served(second).await.release().await;
}

/// The holder dies: when the lock has expired, it goes to the first in line.
#[tokio::test]
async fn an_expired_lock_goes_to_the_first_in_line() {
    let servers = RedisServer::start_many(1);
    let two = client(&servers).await;
    let gone = client(&servers).await;
    let short = |o: Options| {
        patient(o)
            .ttl(Duration::from_millis(700))
            .node_timeout(Duration::from_millis(500))
            .without_renewal()
    };
    let lease = gone
        .mutex("a")
        .with_options(short)
        .lock()
        .await
        .expect("a lease");
    let since = Instant::now();
    let waiter = standing(&two, "a").await;
    std::mem::forget(lease);
    served(waiter).await.release().await;
    assert!(since.elapsed() >= Duration::from_millis(600), "too early");
}

/// Another library releases its lock without a notification.
#[tokio::test]
async fn a_foreign_release_is_found_by_polling() {
    let servers = RedisServer::start_many(3);
    let two = client(&servers).await;
    for server in &servers {
        order(server, &[b"SET", b"a", b"somebody else", b"PX", b"60000"]);
    }
    let waiter = standing(&two, "a").await;
    pause(100).await;
    assert!(!waiter.is_finished());
    for server in &servers {
        order(server, &[b"DEL", b"a"]);
    }
    let since = Instant::now();
    served(waiter).await.release().await;
    assert!(since.elapsed() < LONG / 4, "{:?}", since.elapsed());
}

/// A server that is out of memory neither adds waiters to the line nor refreshes them. The
/// waiters poll at a low rate, and give up at their timeouts. They acquire the lock when there is
/// memory again, whether it is released before that or after.
#[tokio::test]
async fn a_server_that_is_full_for_a_while_costs_no_waiter_its_turn() {
    let servers = RedisServer::start_many(1);
    let (one, two) = (client(&servers).await, client(&servers).await);
    let three = client(&servers).await;
    let limit = |bytes: &[u8]| order(&servers[0], &[b"CONFIG", b"SET", b"maxmemory", bytes]);
    for given_back_while_full in [false, true] {
        let lease = held(&one, "a").await;
        let waiter = standing(&two, "a").await;
        limit(b"1");
        let (before, since) = (commands(&servers[0]), Instant::now());
        let (mutex, brief) = (three.mutex("a").with_options(long), Duration::from_secs(3));
        let error = tokio::time::timeout(LONG / 2, mutex.lock_timeout(brief)).await;
        let error = error.expect("it hangs").expect_err("no lock");
        assert!(since.elapsed() >= brief, "too early: {error}");
        assert!(error.to_string().contains("out of memory"), "{error}");
        // Both pause for 50 to 100 ms, except for the first few times.
        let asked = commands(&servers[0]) - before;
        let most = 100.0 * (since.elapsed().as_secs_f64() + 1.0);
        assert!((asked as f64) < most, "{asked} requests: the waiters spin");
        assert!(!waiter.is_finished());
        if given_back_while_full {
            assert_eq!(lease.release().await, Released::Released);
            limit(b"0");
        } else {
            limit(b"0");
            assert_eq!(lease.release().await, Released::Released);
        }
        served(waiter).await.release().await;
    }
}

/// A waiter that is notified of a grant holds the lock, so a server must not announce a grant
/// that it then refuses to write.
#[tokio::test]
async fn a_full_server_announces_no_grant() {
    let servers = RedisServer::start_many(1);
    let (one, two) = (client(&servers).await, client(&servers).await);
    let three = client(&servers).await;
    let lost = held(&one, "a").await;
    let waiter = standing(&two, "a").await;
    order(&servers[0], &[b"CONFIG", b"SET", b"maxmemory", b"1"]);
    // The holder is another library, which sends no notification. The next request hands the lock
    // over.
    order(&servers[0], &[b"DEL", b"a"]);
    let error = three.mutex("a").try_lock().await.expect_err("no lock");
    assert!(error.to_string().contains("out of memory"), "{error}");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(
        !waiter.is_finished(),
        "the waiter took the lock for granted"
    );
    assert_eq!(servers[0].get(b"a"), None);
    order(&servers[0], &[b"CONFIG", b"SET", b"maxmemory", b"0"]);
    served(waiter).await.release().await;
    drop(lost);
}

/// An invalid fence costs no waiter its place.
#[tokio::test]
async fn an_invalid_fence_does_not_fail_the_waiters() {
    let servers = RedisServer::start_many(1);
    let (one, two, three) = (
        client(&servers).await,
        client(&servers).await,
        client(&servers).await,
    );
    until_in_order().await;
    let lease = held(&one, "a").await;
    let first = standing(&two, "a").await;
    pause(5).await;
    let second = standing(&three, "a").await;
    let errors = || servers[0].command(&[b"INFO", b"errorstats"]);
    let before = errors();
    order(&servers[0], &[b"SET", b"leasehold:fence:{a}", b"x+"]);
    // Both waiters send WAIT at least once.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(errors(), before, "a script failed");
    lease.release().await;
    served(first).await.release().await;
    served(second).await.release().await;
}

/// A user without the permission to subscribe or publish can wait all the same, and polls once a
/// second.
#[tokio::test]
async fn a_waiter_without_permission_to_subscribe_polls() {
    let servers = RedisServer::start_many(1);
    let acl: [&[u8]; 10] = [
        b"ACL",
        b"SETUSER",
        b"deaf",
        b"on",
        b">secret",
        b"~*",
        b"resetchannels",
        b"+@all",
        b"-subscribe",
        b"-publish",
    ];
    assert_eq!(servers[0].command(&acl), "+OK\r\n");
    let url = servers[0].url().replace("redis://", "redis://deaf:secret@");
    let deaf = Client::builder()
        .node(url)
        .connect()
        .await
        .expect("it works");
    let one = client(&servers).await;
    let lease = held(&one, "a").await;
    let waiter = standing(&deaf, "a").await;
    lease.release().await;
    served(waiter).await.release().await;
    // It hands the lock over to a waiter with a subscription.
    let lease = held(&deaf, "a").await;
    let waiter = standing(&one, "a").await;
    lease.release().await;
    served(waiter).await.release().await;
}

/// The documented permissions suffice to wait and to be notified.
#[tokio::test]
async fn the_documented_permissions_are_enough() {
    let servers = RedisServer::start_many(1);
    let documents = include_str!("../../../../docs/deployment.md");
    let rules = documents
        .lines()
        .find(|line| line.starts_with("ACL SETUSER"));
    let rules: Vec<_> = rules.expect("documented").split(' ').collect();
    let rules: Vec<_> = rules.iter().map(|rule| rule.as_bytes()).collect();
    assert_eq!(servers[0].command(&rules), "+OK\r\n");
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
        let lease = held(&one, "orders/1").await;
        let waiter = standing(&two, "orders/1").await;
        assert_eq!(
            subscriptions(&servers[0]),
            2,
            "both waiters have a subscription"
        );
        lease.extend().await.expect("extended");
        lease.release().await;
        served(waiter).await.release().await;
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
        leases.push(held(&one, &name).await);
        waiters.push(standing(&two, &name).await);
    }
    let list = servers[0].command(&[b"CLIENT", b"LIST"]);
    assert_eq!(list.matches("resp=3").count(), 2, "{list}");
    assert_eq!(subscriptions(&servers[0]), 2);
    for lease in leases {
        lease.release().await;
    }
    for waiter in waiters {
        served(waiter).await.release().await;
    }
}

/// A waiter sends one request a second.
#[tokio::test]
async fn waiters_send_one_request_a_second() {
    let servers = RedisServer::start_many(1);
    let holder = client(&servers).await;
    let lease = held(&holder, "a").await;
    let mut clients = Vec::new();
    let mut waiters = Vec::new();
    for _ in 0..10 {
        let client = client(&servers).await;
        waiters.push(standing(&client, "a").await);
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
        served(waiter).await.release().await;
    }
}

/// The side keys are removed with the last waiter.
#[tokio::test]
async fn an_empty_line_leaves_no_keys() {
    let servers = RedisServer::start_many(1);
    let (one, two) = (client(&servers).await, client(&servers).await);
    let lease = held(&one, "a").await;
    let waiter = standing(&two, "a").await;
    assert!(
        servers[0]
            .get(b"leasehold:fence:{a}")
            .is_some_and(|fence| fence.ends_with(b"+"))
    );
    lease.release().await;
    served(waiter).await.release().await;
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

/// Reads what a server stores of a line, at one moment.
const SNAPSHOT: &str = "\
    local time, out = redis.call('TIME'), {}
    out[1] = time[1] * 1000 + math.floor(time[2] / 1000)
    out[2] = redis.call('PTTL', 'leasehold:line:{a}')
    out[3] = string.match(redis.call('GET', 'leasehold:fence:{a}') or '0', '%d+')
    local line = redis.call('ZRANGE', 'leasehold:line:{a}', 0, -1, 'WITHSCORES')
    for i = 1, #line, 2 do
      local asked = redis.call('ZSCORE', 'leasehold:seen:{a}', line[i]) or 0
      out[#out + 1] = string.sub(line[i], 1, 16)
      out[#out + 1] = string.match(line[i], '^%x+:(%d+):')
      out[#out + 1] = math.floor(asked / 1000)
    end
    for i, value in ipairs(out) do
      if type(value) == 'number' then out[i] = string.format('%.0f', value) end
    end
    return table.concat(out, ' ')";

struct Snapshot {
    now_ms: i64,
    lives_ms: i64,
    fence: i64,
    /// Secret, ticket, and time of the last WAIT.
    waiters: Vec<(String, i64, i64)>,
}

impl Snapshot {
    fn take(server: &RedisServer) -> Self {
        let reply = server.command(&[b"EVAL", SNAPSHOT.as_bytes(), b"0"]);
        let body = reply.split("\r\n").nth(1).expect("a text");
        let words: Vec<_> = body.split(' ').collect();
        let number = |word: &str| word.parse().unwrap_or_else(|_| panic!("{reply}"));
        let waiters = words[3..].chunks_exact(3);
        Self {
            now_ms: number(words[0]),
            lives_ms: number(words[1]),
            fence: number(words[2]),
            waiters: waiters
                .map(|waiter| (waiter[0].to_owned(), number(waiter[1]), number(waiter[2])))
                .collect(),
        }
    }
}

/// Waiters in a line in which each one is first only for a moment. The line does not expire
/// before its waiters, and no waiter that can still win is missing from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_in_motion_loses_no_waiter() {
    const DEAD_MS: i64 = 3000;
    const KEPT_MS: i64 = 9000;
    let servers = RedisServer::start_many(1);
    until_in_order().await;
    let done = Arc::new(AtomicBool::new(false));
    let mut contenders = Vec::new();
    for _ in 0..10 {
        let (client, done) = (client(&servers).await, Arc::clone(&done));
        contenders.push(tokio::spawn(async move {
            let mut leases = 0;
            while !done.load(Ordering::SeqCst) {
                let lease = held(&client, "a").await;
                pause(20).await;
                lease.release().await;
                leases += 1;
            }
            leases
        }));
    }
    let (mut before, mut seen, start) = (Snapshot::take(&servers[0]), 0, Instant::now());
    // Three times as long as a line lasts without a refresh.
    while start.elapsed() < Duration::from_secs(28) {
        pause(5).await;
        let now = Snapshot::take(&servers[0]);
        if let Some(asked) = now.waiters.iter().map(|(.., asked)| *asked).max() {
            seen += 1;
            let least = KEPT_MS * 2 / 3 - (now.now_ms - asked) - 5;
            assert!(
                now.lives_ms >= least,
                "the line ends in {} ms, and a waiter sent WAIT {} ms ago",
                now.lives_ms,
                now.now_ms - asked
            );
        }
        for (secret, ticket, asked) in &before.waiters {
            let alive = now.now_ms - asked < DEAD_MS;
            let can_win = *ticket > now.fence;
            let stands = now.waiters.iter().any(|(other, ..)| other == secret);
            assert!(
                stands || !alive || !can_win,
                "ticket {ticket} was dropped; the fence is {}",
                now.fence
            );
        }
        before = now;
    }
    done.store(true, Ordering::SeqCst);
    for contender in contenders {
        assert!(
            contender.await.expect("no panic") > 0,
            "the contender never acquired the lock"
        );
    }
    assert!(seen > 0, "no waiter was in line");
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
        let lease = held(&one, name).await;
        let waiter = standing(&two, name).await;
        match expires {
            false => drop(lease.release().await),
            true => {
                order(&servers[0], &[b"DEL", name.as_bytes()]);
                let passer_by = client(&servers).await;
                let mutex = passer_by.mutex(name).with_options(long);
                assert!(mutex.try_lock().await.expect("an answer").is_none());
            }
        }
        drop(served(waiter).await);
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

/// An expired lock belongs to the first in line, even when an unfenced acquire arrives first.
#[tokio::test]
async fn an_acquire_without_fencing_respects_the_line() {
    let servers = RedisServer::start_many(1);
    let (one, two, passer_by) = (
        client(&servers).await,
        client(&servers).await,
        client(&servers).await,
    );
    let plain = passer_by
        .mutex("a")
        .with_options(|o| long(o).without_fencing());
    for _ in 0..10 {
        let lease = held(&one, "a").await;
        let waiter = standing(&two, "a").await;
        // As if the lock had expired: no notification is sent.
        order(&servers[0], &[b"DEL", b"a"]);
        let overtook = plain.try_lock().await.expect("an answer").is_some();
        assert!(!overtook, "the unfenced acquire overtook the first in line");
        drop(lease);
        served(waiter).await.release().await;
        // Without a line it acquires the lock at once.
        let lease = plain.lock().await.expect("a lease");
        lease.release().await;
    }
}

/// A client that can read the lock, the fence and the line, list the channels and publish cannot
/// make a waiter believe in a grant.
#[tokio::test]
async fn a_forged_grant_makes_no_holder() {
    let servers = RedisServer::start_many(1);
    let (one, two) = (client(&servers).await, client(&servers).await);
    let lease = held(&one, "a").await;
    let waiter = standing(&two, "a").await;
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
    served(waiter).await.release().await;
}

/// Forwards connections to a server with a delay of `way` in each direction. Returns its port.
async fn distance(server: &RedisServer, way: Duration) -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port");
    let (port, to) = (listener.local_addr().expect("bound").port(), server.port());
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = tokio::net::TcpStream::connect(("127.0.0.1", to)).await;
            let (from_near, to_near) = near.into_split();
            let (from_far, to_far) = far.expect("the server").into_split();
            tokio::spawn(carry(from_near, to_far, way));
            tokio::spawn(carry(from_far, to_near, way));
        }
    });
    port
}

async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    way: Duration,
) {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some((at, bytes)) = receiver.recv().await {
            tokio::time::sleep_until(at).await;
            let bytes: Vec<u8> = bytes;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let at = tokio::time::Instant::now() + way;
        if sender.send((at, buffer[..read].to_vec())).is_err() {
            return;
        }
    }
}

/// Three nearby clients hold the lock for a millisecond each, again and again. A client 40 ms
/// away used to be overtaken each time while its request travelled.
#[tokio::test]
async fn a_far_client_gets_its_turn_among_nearby_ones() {
    let servers = RedisServer::start_many(1);
    let port = distance(&servers[0], Duration::from_millis(40)).await;
    let far = Client::builder()
        .node(format!("redis://127.0.0.1:{port}"))
        .connect_timeout(Duration::from_secs(10))
        .assume_fresh();
    let far = far.connect().await.expect("the node works");
    for _ in 0..3 {
        let near = client(&servers).await;
        tokio::spawn(async move {
            loop {
                let mutex = near.mutex("a").with_options(patient);
                let lease = mutex.lock().await.expect("a lease");
                pause(1).await;
                lease.release().await;
            }
        });
    }
    pause(500).await;
    let mutex = far.mutex("a").with_options(patient);
    for turn in 0..5 {
        let lease = mutex.lock_timeout(LONG).await;
        let lease = lease.unwrap_or_else(|error| panic!("turn {turn}: {error}"));
        lease.release().await;
    }
}
