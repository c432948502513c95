//! leasehold against real Redis servers that are killed, stopped, flushed, full, or not
//! what they say they are.

mod child;
mod errors;
mod hostile;
mod line;
mod native;
mod others;
mod outages;
mod restarts;
mod wire;

use std::time::Duration;

use leasehold::{Builder, Client, Options};
use leasehold_testkit::RedisServer;

/// Long enough for any machine, and still a limit.
const LONG: Duration = Duration::from_secs(60);

fn builder(servers: &[RedisServer]) -> Builder {
    Client::builder()
        .nodes(servers.iter().map(RedisServer::url))
        .connect_timeout(Duration::from_secs(10))
        .assume_fresh()
}

async fn client(servers: &[RedisServer]) -> Client {
    builder(servers).connect().await.expect("the nodes work")
}

/// Options that no slow machine can upset.
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

/// Waits until something is so; fails if it never is.
async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let waiting = async {
        while !so() {
            pause(10).await;
        }
    };
    let waited = tokio::time::timeout(LONG, waiting).await;
    assert!(waited.is_ok(), "never: {what}");
}
