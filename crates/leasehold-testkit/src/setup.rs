//! Set-up that tests share: patient options, clients of real servers, waiters, and waiting for a
//! condition.

use std::borrow::Borrow;
use std::time::Duration;

use leasehold::{Builder, Client, Error, Lease, Mutex, Options};
use tokio::task::JoinHandle;

use crate::RedisServer;

/// Long enough for any machine, and still a limit.
pub const LONG: Duration = Duration::from_secs(60);

/// The limit of [`until`], [`eventually`] and [`lease_of`]. It is below the TTL of [`patient`]
/// options, so that tests notice if only the TTL has freed a lock.
const LIMIT: Duration = Duration::from_secs(45);

/// Options with which a slow machine cannot fail a test. The TTL is [`LONG`].
#[must_use]
pub fn patient(options: Options) -> Options {
    options
        .ttl(LONG)
        .node_timeout(Duration::from_secs(10))
        .outage_patience(LONG)
}

/// A builder for clients of these servers.
#[must_use]
pub fn builder<S: Borrow<RedisServer>>(servers: &[S]) -> Builder {
    Client::builder()
        .nodes(servers.iter().map(|server| server.borrow().url()))
        .connect_timeout(Duration::from_secs(10))
}

/// A builder for clients of servers that have no memory to lose.
#[must_use]
pub fn fresh<S: Borrow<RedisServer>>(servers: &[S]) -> Builder {
    builder(servers).assume_fresh()
}

/// A connected client of servers that have no memory to lose.
///
/// # Panics
/// If it cannot connect to a majority.
pub async fn client<S: Borrow<RedisServer>>(servers: &[S]) -> Client {
    fresh(servers).connect().await.expect("the nodes work")
}

/// The number of servers that have this key.
///
/// # Panics
/// If a server does not answer.
#[must_use]
pub fn copies(servers: &[RedisServer], key: &str) -> usize {
    let has = |server: &&RedisServer| server.get(key.as_bytes()).is_some();
    servers.iter().filter(has).count()
}

/// Acquires a lock, with [`patient`] options.
///
/// # Panics
/// If this fails.
pub async fn lock(client: &Client, name: &str) -> Lease {
    let lease = client.mutex(name).with_options(patient).lock().await;
    lease.expect("a lease")
}

/// A task that waits for a lock.
pub type Waiter = JoinHandle<Result<Lease, Error>>;

/// Starts a task that waits for a lock.
#[must_use]
pub fn spawn_lock(mutex: Mutex) -> Waiter {
    tokio::spawn(async move { mutex.lock().await })
}

/// Starts a task that waits for a lock, and returns when it stands in line on a majority of the
/// nodes.
///
/// # Panics
/// If it does not have to wait.
pub async fn in_line(mutex: Mutex) -> Waiter {
    let (sender, mut placed) = tokio::sync::mpsc::unbounded_channel();
    let waiter = spawn_lock(mutex.with_options(|o| {
        o.on_refusal(move |refusal| {
            if refusal.place().is_some() {
                let _ = sender.send(());
            }
        })
    }));
    let stands = tokio::time::timeout(LIMIT, placed.recv()).await;
    stands.expect("in time").expect("the waiter stands in line");
    waiter
}

/// The lease of a waiter.
///
/// # Panics
/// If the waiter does not acquire the lock, or if this takes so long that a TTL may have freed it.
pub async fn lease_of(waiter: Waiter) -> Lease {
    let got = tokio::time::timeout(LIMIT, waiter).await;
    got.expect("in time").expect("no panic").expect("a lease")
}

/// Sleeps for some milliseconds.
pub async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// Waits until a condition holds.
///
/// # Panics
/// If it never does.
pub async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    eventually(what, async || condition().then_some(())).await;
}

/// Calls a function until it returns a value.
///
/// # Panics
/// If it never does.
pub async fn eventually<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            match check().await {
                Some(found) => break found,
                None => pause(5).await,
            }
        }
    };
    let found = tokio::time::timeout(LIMIT, found).await;
    found.unwrap_or_else(|_| panic!("not in time: {what}"))
}

/// Waiting on a thread without a runtime.
pub mod blocking {
    use std::time::{Duration, Instant};

    /// The limit of [`until`] and [`eventually`]. It is higher than elsewhere, because these also
    /// wait for processes to start.
    pub const LIMIT: Duration = Duration::from_secs(180);

    /// Waits until a condition holds.
    ///
    /// # Panics
    /// If it never does.
    pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
        eventually(what, || condition().then_some(()));
    }

    /// Calls a function until it returns a value.
    ///
    /// # Panics
    /// If it never does.
    pub fn eventually<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(found) = check() {
                return found;
            }
            assert!(start.elapsed() < LIMIT, "not in time: {what}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
