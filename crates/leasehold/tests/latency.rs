//! A dead or silent minority costs nothing: with one or two of five servers killed or stopped,
//! the median acquire stays within 1.5 × the healthy median of the same run.
//!
//! The test compares medians of one run and is alone in its test program. Other load on the
//! machine can disturb a round, so a few failed rounds are allowed. Code that waited for dead
//! servers would fail in all of them, by far.

use std::time::{Duration, Instant};

use leasehold::Client;
use leasehold_testkit::{RedisServer, setup};

const ROUNDS: usize = 8;
const SAMPLES: usize = 150;
const MOST: f64 = 1.5;

#[derive(Clone, Copy, Debug)]
enum Fault {
    Killed(usize),
    Stopped(usize),
}

impl Fault {
    fn strike(self, servers: &mut [RedisServer]) {
        match self {
            Self::Killed(count) => servers[..count].iter_mut().for_each(RedisServer::kill),
            Self::Stopped(count) => servers[..count].iter_mut().for_each(RedisServer::stop),
        }
    }

    fn heal(self, servers: &mut [RedisServer]) {
        match self {
            Self::Killed(count) => servers[..count].iter_mut().for_each(RedisServer::restart),
            Self::Stopped(count) => servers[..count].iter_mut().for_each(RedisServer::resume),
        }
    }
}

#[tokio::test]
async fn a_faulty_minority_costs_nothing() {
    for fault in [
        Fault::Killed(1),
        Fault::Stopped(1),
        Fault::Killed(2),
        Fault::Stopped(2),
    ] {
        let mut ratios = Vec::new();
        for _ in 0..ROUNDS {
            ratios.push(ratio(fault).await);
            if ratios.last().is_some_and(|ratio| *ratio <= MOST) {
                break;
            }
        }
        println!("{fault:?}: {ratios:.2?} × the healthy median");
        assert!(ratios.iter().any(|r| *r <= MOST), "{fault:?}: {ratios:.2?}");
    }
}

async fn ratio(fault: Fault) -> f64 {
    let mut servers = RedisServer::start_many(5);
    let client = setup::client(&servers).await;
    median(&client).await;
    let healthy = median(&client).await;
    fault.strike(&mut servers);
    // The first acquire after the fault, too: at most one node timeout (250 ms), plus an
    // allowance for slow machines.
    let start = Instant::now();
    drop(client.mutex("first").lock().await.expect("a majority"));
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "{:?}",
        start.elapsed()
    );
    let faulty = median(&client).await;
    fault.heal(&mut servers);
    faulty.as_secs_f64() / healthy.as_secs_f64()
}

async fn median(client: &Client) -> Duration {
    let mutex = client.mutex("a");
    let mut times = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        let start = Instant::now();
        let lease = mutex.lock().await.expect("a majority");
        times.push(start.elapsed());
        lease.release().await;
    }
    times.sort_unstable();
    times[SAMPLES / 2]
}
