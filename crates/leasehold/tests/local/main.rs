//! The embedded store, used by real processes that are killed, stopped, put into namespaces, and
//! given files that are not a store.
#![cfg(all(feature = "local", target_os = "linux"))]

mod clock;
mod death;
mod detached;
mod disk;
mod files;
mod giving_up;
mod line;
mod location;
mod many;
mod namespaces;
mod puppet;
mod replaced;
mod store;
mod waking;

use std::time::Duration;

use leasehold::{Client, Lease, Options};
use leasehold_testkit::setup::{LONG, patient};

/// A TTL that expires in no test: a lock that is granted earlier was not freed by its TTL.
const FOREVER_MS: u64 = 3_600_000;

fn with_ttl(options: Options, ttl_ms: u64) -> Options {
    let ttl = Duration::from_millis(ttl_ms);
    patient(options)
        .ttl(ttl)
        .node_timeout(ttl.min(Duration::from_secs(10)))
}

fn forever(options: Options) -> Options {
    with_ttl(options, FOREVER_MS)
}

async fn client(url: &str) -> Client {
    Client::builder()
        .node(url)
        .connect_timeout(LONG)
        .connect()
        .await
        .expect("the store works")
}

/// Acquires a lock for longer than the test runs.
async fn lock(client: &Client, name: &str) -> Lease {
    let mutex = client.mutex(name).with_options(forever);
    let locked = tokio::time::timeout(LONG, mutex.lock()).await;
    locked.expect("in time").expect("a lease")
}

/// Reports clearly that something was not tested.
fn skip(what: &str, why: &str) {
    eprintln!("\n*** SKIPPED: {what}: {why}\n");
}
