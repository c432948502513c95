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
mod many;
mod namespaces;
mod place;
mod puppet;
mod replaced;
mod store;
mod waking;

use std::time::Duration;

use leasehold::{Client, Lease, Options};

/// Long enough for any machine, and still a limit.
const LONG: Duration = Duration::from_secs(60);

/// A TTL that expires in no test: a lock that is granted earlier was not freed by its TTL.
const FOREVER_MS: u64 = 3_600_000;

/// Options with which a slow machine cannot fail a test.
fn patient(options: Options, ttl_ms: u64) -> Options {
    let ttl = Duration::from_millis(ttl_ms);
    options
        .ttl(ttl)
        .node_timeout(ttl.min(Duration::from_secs(10)))
        .outage_patience(LONG)
}

fn forever(options: Options) -> Options {
    patient(options, FOREVER_MS)
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

/// Waits until a condition holds, and fails if it never does.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = std::time::Instant::now();
    while !condition() {
        assert!(started.elapsed() < LONG, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Reports clearly that something was not tested.
fn skip(what: &str, why: &str) {
    eprintln!("\n*** SKIPPED: {what}: {why}\n");
}
