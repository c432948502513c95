//! The blocking facade, without a runtime in sight.
#![cfg(feature = "blocking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::blocking::Client;
use leasehold::{Error, Options, Released};
use leasehold_testkit::RedisServer;

const LONG: Duration = Duration::from_secs(60);

fn patient() -> Options {
    Options::default()
        .ttl(Duration::from_secs(30))
        .node_timeout(Duration::from_secs(10))
        .outage_patience(LONG)
}

fn client(servers: &[RedisServer]) -> Client {
    let builder = leasehold::Client::builder()
        .nodes(servers.iter().map(RedisServer::url))
        .options(patient())
        .connect_timeout(Duration::from_secs(10))
        .assume_fresh();
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
    // Real time: that is what is being tested.
    std::thread::sleep(ttl * 3);
    assert!(lease.is_valid());
    assert!(client.mutex("a").try_lock().expect("no error").is_none());
    lease.extend().expect("extended");
    assert_eq!(lease.release(), Released::Released);
}

#[test]
fn loss_and_timeouts_are_told() {
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
