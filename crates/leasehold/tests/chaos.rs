//! For thirty seconds five real servers are killed, stopped and restarted at random, while eight
//! contenders increment one counter through a fenced check, and five others a counter for each permit
//! of a semaphore. No increment may be lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::{Client, Error, Lease, Options};
use leasehold_testkit::{RedisServer, setup};

const TTL: Duration = Duration::from_secs(2);
/// How long the faults last.
const STORM: Duration = Duration::from_secs(30);

/// A resource that checks tokens: it keeps the largest token seen and refuses a smaller one
/// atomically with the operation, **reads included**.
#[derive(Default)]
struct Register {
    inner: std::sync::Mutex<(u64, u64)>,
}

impl Register {
    fn read(&self, token: u64) -> Option<u64> {
        let mut inner = self.inner.lock().unwrap();
        (token >= inner.0).then(|| {
            inner.0 = token;
            inner.1
        })
    }

    fn write(&self, token: u64, value: u64) -> bool {
        let mut inner = self.inner.lock().unwrap();
        if token >= inner.0 {
            *inner = (token, value);
            return true;
        }
        false
    }
}

/// How many permits the semaphore has.
const PERMITS: usize = 2;

/// What all contenders share.
#[derive(Default)]
struct Run {
    counter: Counter,
    /// One for each permit.
    permits: [Counter; PERMITS],
    outages: AtomicU64,
    over: AtomicBool,
}

/// A counter that a lock or a permit protects.
#[derive(Default)]
struct Counter {
    register: Register,
    /// Increments that the register accepted.
    written: AtomicU64,
    refused: AtomicU64,
    leases: AtomicU64,
    /// The largest token of any lease so far.
    largest: AtomicU64,
}

impl Run {
    fn counters(&self) -> impl Iterator<Item = &Counter> {
        std::iter::once(&self.counter).chain(&self.permits)
    }
}

fn count(number: &AtomicU64) -> u64 {
    number.load(Ordering::SeqCst)
}

#[test]
fn no_increment_is_lost_while_servers_die() {
    let seed = fastrand::u64(..);
    println!("seed {seed} (of the faults; the servers' timing is not seeded)");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(storm(fastrand::Rng::with_seed(seed)));
}

async fn storm(mut random: fastrand::Rng) {
    let mut servers = RedisServer::start_many(5);
    let run = Arc::new(Run::default());
    let mut contenders = Vec::new();
    for number in 0..8 {
        let client = client(&servers, random.bool());
        contenders.push(tokio::spawn(contend(client, number, Arc::clone(&run))));
    }
    for number in 8..13 {
        let client = client(&servers, random.bool());
        contenders.push(tokio::spawn(contend_for_permits(
            client,
            number,
            Arc::clone(&run),
        )));
    }
    let start = Instant::now();
    while start.elapsed() < STORM {
        inject_fault(&mut servers, &mut random);
        tokio::time::sleep(Duration::from_millis(random.u64(20..500))).await;
    }
    for server in &mut servers {
        server.restart();
    }
    // Progress after healing: once the restart guard has passed, the lock and every permit is acquired
    // again and again.
    let before: Vec<u64> = run
        .counters()
        .map(|counter| count(&counter.leases))
        .collect();
    let healed = Instant::now();
    let progressed = || {
        let mut counters = run.counters().zip(&before);
        counters.all(|(counter, before)| count(&counter.leases) >= before + 20)
    };
    while !progressed() {
        assert!(healed.elapsed() < Duration::from_secs(60), "no progress");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    run.over.store(true, Ordering::SeqCst);
    for contender in contenders {
        contender.await.expect("no contender fails");
    }
    for counter in run.counters() {
        let (written, value) = (
            count(&counter.written),
            counter.register.inner.lock().unwrap().1,
        );
        println!(
            "{} leases, {written} increments, {} refused by the fence",
            count(&counter.leases),
            count(&counter.refused),
        );
        assert_eq!(written, value, "lost updates");
        assert!(written >= 20, "too few increments were made");
    }
    println!("{} outages", count(&run.outages));
}

/// Some clients observe the restart guard, as they should. The others use a restarted node at
/// once: mutual exclusion is lost with a node's memory, and the fence must make up for it.
fn client(servers: &[RedisServer], guarded: bool) -> Client {
    let options = Options::default()
        .ttl(TTL)
        .retry_delay(Duration::from_millis(20))
        .outage_patience(Duration::from_millis(200));
    let builder = setup::builder(servers).restart_guard(TTL).options(options);
    let builder = if guarded {
        builder
    } else {
        builder.assume_fresh()
    };
    builder.build().expect("a client")
}

fn inject_fault(servers: &mut [RedisServer], random: &mut fastrand::Rng) {
    let victim = random.usize(..servers.len());
    let server = &mut servers[victim];
    match random.u8(..9) {
        0 => server.kill(),
        1 | 2 => server.stop(),
        3..7 => server.resume(),
        _ => server.restart(),
    }
}

async fn contend(client: Client, number: u64, run: Arc<Run>) {
    let mut random = fastrand::Rng::with_seed(number);
    let mutex = client.mutex("counter");
    while !run.over.load(Ordering::SeqCst) {
        let earlier = count(&run.counter.largest);
        match mutex.lock_timeout(Duration::from_secs(1)).await {
            Ok(lease) => work(lease, &run.counter, earlier, &mut random).await,
            Err(error) => refused(&error, &run),
        }
    }
}

async fn contend_for_permits(client: Client, number: u64, run: Arc<Run>) {
    let mut random = fastrand::Rng::with_seed(number);
    let semaphore = client.semaphore("exports", PERMITS as u32);
    while !run.over.load(Ordering::SeqCst) {
        let earlier = run
            .permits
            .each_ref()
            .map(|counter| count(&counter.largest));
        match semaphore.acquire_timeout(Duration::from_secs(1)).await {
            Ok(lease) => {
                let permit = lease.permit().expect("a permit") as usize;
                let (counter, earlier) = (&run.permits[permit], earlier[permit]);
                work(lease, counter, earlier, &mut random).await;
            }
            Err(error) => refused(&error, &run),
        }
    }
}

async fn work(lease: Lease, counter: &Counter, earlier: u64, random: &mut fastrand::Rng) {
    // A lease whose acquisition began after another lease was granted has a larger token, whatever
    // happened to the servers.
    assert!(lease.token() > earlier, "{} after {earlier}", lease.token());
    counter.largest.fetch_max(lease.token(), Ordering::SeqCst);
    counter.leases.fetch_add(1, Ordering::SeqCst);
    increment(&lease, counter, random).await;
    // The lease ends in every possible way.
    match random.u8(..3) {
        0 => drop(lease),
        _ => drop(lease.release().await),
    }
}

fn refused(error: &Error, run: &Run) {
    match error {
        Error::NoMajority(_) => {
            run.outages.fetch_add(1, Ordering::SeqCst);
        }
        Error::TimedOut { .. } => {}
        other => panic!("{other:?}"),
    }
}

async fn increment(lease: &Lease, counter: &Counter, random: &mut fastrand::Rng) {
    let Some(value) = counter.register.read(lease.token()) else {
        counter.refused.fetch_add(1, Ordering::SeqCst);
        return;
    };
    // Sometimes the work takes longer than the lease is valid, as after a pause.
    let pause = match random.u8(..40) {
        0 => TTL.as_millis() as u64 + 500,
        _ => random.u64(..5),
    };
    tokio::time::sleep(Duration::from_millis(pause)).await;
    if counter.register.write(lease.token(), value + 1) {
        counter.written.fetch_add(1, Ordering::SeqCst);
    } else {
        counter.refused.fetch_add(1, Ordering::SeqCst);
    }
}
