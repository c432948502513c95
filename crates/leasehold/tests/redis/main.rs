//! leasehold against real Redis servers that are killed, stopped, flushed, full, or not what they
//! claim to be.

mod child;
mod errors;
mod failover;
mod hostile;
mod line;
mod native;
mod others;
mod outages;
mod restarts;
mod runtimes;
mod sets;
mod wire;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::{Builder, Client, Options};
use leasehold_testkit::{FrozenClock, RedisServer};

/// Long enough for any machine, and still a limit.
const LONG: Duration = Duration::from_secs(60);

fn builder(servers: &[RedisServer]) -> Builder {
    Client::builder()
        .nodes(servers.iter().map(RedisServer::url))
        .connect_timeout(Duration::from_secs(10))
        .assume_fresh()
}

/// A new server whose clock stands still, and a later time for that clock. The tokens of a new
/// server are ahead of its clock at first, and no longer at that time.
fn frozen() -> (RedisServer, FrozenClock, u64) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_us = now.expect("after 1970").as_micros() as u64;
    let (server, clock) = RedisServer::start_frozen(now_us, &[]);
    (server, clock, now_us + 15_000_000)
}

async fn client(servers: &[RedisServer]) -> Client {
    builder(servers).connect().await.expect("the nodes work")
}

/// Options with which a slow machine cannot fail a test.
fn patient(options: Options) -> Options {
    options
        .ttl(Duration::from_secs(30))
        .node_timeout(Duration::from_secs(10))
        .outage_patience(LONG)
}

/// The number of servers that have this key.
fn copies(servers: &[RedisServer], key: &str) -> usize {
    let has = |server: &&RedisServer| server.get(key.as_bytes()).is_some();
    servers.iter().filter(has).count()
}

async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// Waits until a condition holds, and fails if it never does.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let waiting = async {
        while !condition() {
            pause(10).await;
        }
    };
    let waited = tokio::time::timeout(LONG, waiting).await;
    assert!(waited.is_ok(), "never: {what}");
}
