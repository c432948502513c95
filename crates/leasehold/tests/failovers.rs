//! Sentinel fails over again and again, while contenders increment two counters under one lock: one
//! that checks tokens, and one that does not. The first may lose no increment. What the second loses,
//! and how often two clients held the lock at once, is printed.
//!
//! `LEASEHOLD_FAILOVERS=20 cargo test -p leasehold --all-features --test failovers -- --nocapture`

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use leasehold::{Client, Lease, Options};
use leasehold_testkit::SentinelService;

const TTL: Duration = Duration::from_secs(6);
/// Long compared with what a client takes to find the promoted server.
const LONGEST_WORK_MS: u64 = 1_500;
const CONTENDERS: u64 = 4;

#[derive(Default)]
struct Run {
    /// The largest token seen, and the counter that checks it.
    fenced: Mutex<(u64, u64)>,
    written: AtomicU64,
    refused: AtomicU64,
    /// The counter that checks nothing.
    plain: AtomicU64,
    plain_written: AtomicU64,
    /// Who holds the lock, by its token, and until when at least.
    holders: Mutex<Vec<(u64, Instant)>>,
    overlaps: AtomicU64,
    leases: AtomicU64,
    over: AtomicBool,
}

fn count(number: &AtomicU64) -> u64 {
    number.load(Ordering::SeqCst)
}

fn add(number: &AtomicU64) {
    number.fetch_add(1, Ordering::SeqCst);
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Run {
    /// Enters the lease, and counts it if another one is still valid.
    fn enter(&self, lease: &Lease) {
        let now = Instant::now();
        let mut holders = lock(&self.holders);
        if holders.iter().any(|(_, until)| *until > now) {
            add(&self.overlaps);
        }
        holders.push((lease.token(), now + lease.remaining()));
        add(&self.leases);
    }

    fn leave(&self, token: u64) {
        lock(&self.holders).retain(|(holder, _)| *holder != token);
    }

    /// Reads the counter that checks tokens, which notes the token.
    fn read(&self, token: u64) -> Option<u64> {
        let mut fenced = lock(&self.fenced);
        (token >= fenced.0).then(|| {
            fenced.0 = token;
            fenced.1
        })
    }

    fn write(&self, token: u64, value: u64) {
        let mut fenced = lock(&self.fenced);
        match token >= fenced.0 {
            true => {
                *fenced = (token, value);
                add(&self.written);
            }
            false => add(&self.refused),
        }
    }

    async fn work(&self, lease: Lease) {
        self.enter(&lease);
        let (token, plain) = (lease.token(), count(&self.plain));
        let fenced = self.read(token);
        tokio::time::sleep(Duration::from_millis(fastrand::u64(10..LONGEST_WORK_MS))).await;
        match fenced {
            Some(value) => self.write(token, value + 1),
            None => add(&self.refused),
        }
        if lease.is_valid() {
            self.plain.store(plain + 1, Ordering::SeqCst);
            add(&self.plain_written);
        }
        self.leave(token);
        let _ = lease.release().await;
    }

    async fn contend(&self, client: Client) {
        let mutex = client.mutex("counter");
        while !self.over.load(Ordering::SeqCst) {
            // Refusals are part of a failover.
            if let Ok(lease) = mutex.lock_timeout(TTL).await {
                self.work(lease).await;
            }
        }
    }

    async fn until_leases(&self, number: u64) {
        let start = Instant::now();
        while count(&self.leases) < number {
            assert!(start.elapsed() < Duration::from_secs(60), "no progress");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// What the clients do against the loss of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protection {
    None,
    /// `Builder::restart_guard`.
    Guard,
    /// `Builder::replicas`, with the number of all replicas.
    Replicas,
}

fn client(service: &SentinelService, protection: Protection) -> Client {
    let options = Options::default()
        .ttl(TTL)
        .node_timeout(Duration::from_millis(500));
    let builder = Client::builder().node(service.url()).options(options);
    let builder = builder.connect_timeout(Duration::from_secs(10));
    let builder = match protection {
        Protection::None => builder.without_restart_guard(),
        Protection::Guard => builder.restart_guard(TTL),
        Protection::Replicas => builder.without_restart_guard().replicas(1),
    };
    builder.build().expect("a client")
}

async fn campaign(protection: Protection) {
    let failovers = std::env::var("LEASEHOLD_FAILOVERS");
    let failovers: u64 = failovers.map_or(1, |number| number.parse().expect("a number"));
    let service = tokio::task::block_in_place(|| SentinelService::start(1));
    let run = Arc::new(Run::default());
    let contenders = (0..CONTENDERS).map(|_| {
        let (client, run) = (client(&service, protection), Arc::clone(&run));
        tokio::spawn(async move { run.contend(client).await })
    });
    let contenders: Vec<_> = contenders.collect();
    for _ in 0..failovers {
        run.until_leases(count(&run.leases) + 5).await;
        tokio::task::block_in_place(|| {
            service.fail_over();
            service.until_ready(1);
        });
    }
    run.until_leases(count(&run.leases) + 5).await;
    run.over.store(true, Ordering::SeqCst);
    for contender in contenders {
        contender.await.expect("no contender fails");
    }
    let (written, value) = (count(&run.written), lock(&run.fenced).1);
    println!(
        "{failovers} failovers, protection {protection:?}: {} leases, {} while another was valid; \
         fenced: {written} increments, {} refused, {} lost; unfenced: {} increments, {} lost",
        count(&run.leases),
        count(&run.overlaps),
        count(&run.refused),
        written - value,
        count(&run.plain_written),
        count(&run.plain_written) - count(&run.plain),
    );
    assert_eq!(written, value, "lost updates");
    // A lock that the only replica has is on the server that is promoted.
    if protection == Protection::Replicas {
        assert_eq!(count(&run.overlaps), 0, "two clients held the lock");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failovers_without_a_guard_lose_no_fenced_update() {
    campaign(Protection::None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failovers_with_a_guard_lose_no_fenced_update() {
    campaign(Protection::Guard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failovers_lose_no_lock_that_all_replicas_have() {
    campaign(Protection::Replicas).await;
}
