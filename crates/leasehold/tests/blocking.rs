//! The blocking facade, used without an async runtime.
#![cfg(feature = "blocking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::blocking::Client;
use leasehold::{Error, Options, Released};
use leasehold_testkit::RedisServer;
use leasehold_testkit::setup::{LONG, fresh, patient};

fn client(servers: &[RedisServer]) -> Client {
    let builder = fresh(servers).options(patient(Options::default()));
    Client::connect(builder).expect("the nodes work")
}

#[test]
fn threads_take_turns_on_three_servers() {
    let servers = RedisServer::start_many(3);
    let client = client(&servers);
    let (number, threads) = (Arc::new(AtomicU64::new(0)), 8);
    let handles: Vec<_> = (0..threads)
        .map(|_| {
            let (mutex, number) = (client.mutex("a"), Arc::clone(&number));
            std::thread::spawn(move || {
                for _ in 0..5 {
                    let lease = mutex.lock().expect("a lease");
                    let seen = number.load(Ordering::SeqCst);
                    std::thread::yield_now();
                    number.store(seen + 1, Ordering::SeqCst);
                    assert_eq!(lease.release(), Released::Released);
                }
            })
        })
        .collect();
    for handle in handles {
        handle.join().expect("no panic");
    }
    assert_eq!(number.load(Ordering::SeqCst), threads * 5);
}

#[test]
fn a_lease_is_renewed_while_the_program_computes() {
    let servers = RedisServer::start_many(1);
    let client = client(&servers);
    let ttl = Duration::from_millis(1_500);
    let mutex = client
        .mutex("a")
        .with_options(|o| o.ttl(ttl).node_timeout(ttl));
    let lease = mutex.lock().expect("a lease");
    // Real time, because that is what the test is about.
    std::thread::sleep(ttl * 3);
    assert!(lease.is_valid());
    assert!(client.mutex("a").try_lock().expect("no error").is_none());
    lease.extend().expect("extended");
    assert_eq!(lease.release(), Released::Released);
}

#[test]
fn loss_and_timeouts_are_reported() {
    let client = Client::in_memory();
    let ttl = Duration::from_millis(300);
    let mutex = client
        .mutex("a")
        .with_options(|o| o.ttl(ttl).without_renewal());
    let lease = mutex.lock().expect("a lease");
    assert!(!lease.lost(Duration::from_millis(1)));
    let refused = client.mutex("a").lock_timeout(Duration::from_millis(20));
    assert!(
        matches!(refused, Err(Error::TimedOut { .. })),
        "{refused:?}"
    );
    assert!(lease.lost(LONG));
    assert_eq!(lease.release(), Released::WasLost);
    let lost = mutex.with(|_| std::thread::sleep(ttl * 2));
    assert!(matches!(lost, Err(Error::Lost { .. })), "{lost:?}");
    assert!(mutex.with(|lease| lease.token() > 0).expect("done"));
}

#[test]
fn dropped_leases_are_drained_at_shutdown() {
    let servers = RedisServer::start_many(1);
    let client = client(&servers);
    for i in 0..20 {
        drop(client.mutex(format!("a{i}")).lock().expect("a lease"));
    }
    assert_eq!(client.shutdown(LONG), 0);
    assert!((0..20).all(|i| servers[0].get(format!("a{i}").as_bytes()).is_none()));
    let refused = client.mutex("a").try_lock();
    assert!(matches!(refused, Err(Error::ShutDown)), "{refused:?}");
}

/// Every public method of the async types has a blocking counterpart of the same name.
#[test]
fn the_facade_is_complete() {
    fn methods<'a>(source: &'a str, of: &str) -> Vec<&'a str> {
        let start = format!("\nimpl {of} {{");
        let blocks = source.split(start.as_str()).skip(1);
        let blocks = blocks.filter_map(|block| block.split("\n}\n").next());
        let lines = blocks.flat_map(str::lines).map(str::trim_start);
        let methods = lines.filter_map(|line| {
            let line = line.strip_prefix("pub ")?;
            let line = line.strip_prefix("async ").unwrap_or(line);
            line.strip_prefix("fn ")?.split(['(', '<']).next()
        });
        methods.collect()
    }
    let blocking = concat!(
        include_str!("../src/client/blocking.rs"),
        include_str!("../src/client/blocking/election.rs"),
        include_str!("../src/client/blocking/latch.rs"),
        include_str!("../src/client/blocking/lease.rs"),
        include_str!("../src/client/blocking/once.rs"),
        include_str!("../src/client/blocking/rw_lock.rs"),
        include_str!("../src/client/blocking/semaphore.rs"),
        include_str!("../src/client/blocking/several.rs"),
    );
    for (of, source) in [
        ("Client", include_str!("../src/client/mod.rs")),
        ("Client", include_str!("../src/client/inspect.rs")),
        ("Mutex", include_str!("../src/mutex.rs")),
        ("Lease", include_str!("../src/lease/guard.rs")),
        ("Detached", include_str!("../src/lease/detached.rs")),
        ("Mutexes", include_str!("../src/mutexes.rs")),
        ("Leases", include_str!("../src/lease/leases.rs")),
        ("RwLock", include_str!("../src/rw_lock.rs")),
        ("Semaphore", include_str!("../src/semaphore.rs")),
        ("Latch", include_str!("../src/latch.rs")),
        ("Once", include_str!("../src/once.rs")),
        ("Election", include_str!("../src/election.rs")),
    ] {
        let (has, needs) = (methods(blocking, of), methods(source, of));
        assert!(needs.len() >= 3, "{needs:?}");
        // A `Builder` is an argument in the blocking API, which has no work that is interrupted
        // half-way.
        let elsewhere = ["builder", "begin"];
        for method in needs.iter().filter(|method| !elsewhere.contains(method)) {
            assert!(has.contains(method), "blocking::{of} lacks `{method}`");
        }
    }
}

#[test]
fn permits_and_parties() {
    let client = Client::in_memory();
    let exports = client.semaphore("exports", 2);
    let both = exports.acquire_many(2).expect("leases");
    let mut permits: Vec<_> = both.iter().filter_map(leasehold::Lease::permit).collect();
    permits.sort_unstable();
    assert_eq!(permits, [0, 1]);
    assert!(exports.try_acquire().expect("a majority").is_none());
    let timed_out = exports.acquire_timeout(Duration::from_millis(20));
    assert!(
        matches!(timed_out, Err(Error::TimedOut { .. })),
        "{timed_out:?}"
    );
    let seen = client.inspect_permits("exports").expect("a majority").locks;
    assert_eq!(seen.len(), 2);
    let (permit, lock) = (
        seen[0].permit.expect("a permit"),
        seen[0].lock().expect("held"),
    );
    let broken = client.break_permit("exports", permit, &lock.owner_id());
    assert!(broken.expect("a majority"));
    let number = exports.with(|lease| lease.permit()).expect("a lease");
    assert_eq!(number, Some(permit));
    drop(both);
    let more = client.semaphore("exports", 3);
    more.resize().expect("a majority");
    assert!(more.acquire().is_ok());

    let latch = client
        .latch("ready", ["one", "two"])
        .kept_for(Duration::from_secs(60));
    latch.arrive("one").expect("a majority");
    assert_eq!(latch.missing().expect("a majority").len(), 1);
    let waited = latch.wait_timeout(Duration::from_millis(20));
    assert!(!waited.expect("a majority"));
    latch.arrive_and_wait("two").expect("a majority");
    latch.clear().expect("a majority");
    assert_eq!(latch.missing().expect("a majority").len(), 2);
}

#[test]
fn the_facade_waits_keeps_detaches_and_breaks() {
    let client = Client::in_memory();
    let mutex = client.mutex("a");
    let lease = mutex.lock().expect("a lease");
    let short = Duration::from_millis(20);
    assert!(mutex.try_lock_for(short).expect("a majority").is_none());
    let detached = lease.detach().expect("detached");
    let again = mutex.detached(detached.owner()).expect("its owner");
    again.extend().expect("still held");
    assert_eq!(again.release().expect("a majority"), Released::Released);
    let lease = mutex.lock().expect("a lease");
    lease
        .release_keeping(Duration::from_secs(600))
        .expect("kept");
    assert!(mutex.try_lock().expect("a majority").is_none());
    let seen = client.inspect_all().expect("a majority");
    let owner_id = seen.locks[0].lock().expect("kept").owner_id();
    assert!(
        client
            .break_lock(&seen.locks[0].name, &owner_id)
            .expect("a majority")
    );
    assert!(mutex.try_lock().expect("a majority").is_some());
}
