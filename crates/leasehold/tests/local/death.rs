//! Locks of dead holders are free at once, and those of stopped holders are not.

use std::time::Duration;

use leasehold_testkit::process::state;
use leasehold_testkit::setup::blocking::until;
use leasehold_testkit::setup::{lease_of, spawn_lock};

use super::puppet::Puppet;
use super::store::Store;

#[test]
fn the_lock_of_a_killed_holder_is_free_for_later_callers() {
    let store = Store::new();
    let (mut holder, mut other) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    let held = holder.lock("a");
    assert!(other.finds_held("a"));
    holder.kill();
    holder.reap();
    // The TTL is an hour.
    assert!(other.lock("a").token > held.token);
}

/// Each reader has its own process. The lock is free when the last of them is dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_reader_does_not_keep_a_writer_out() {
    let store = Store::new();
    let mut reader = Puppet::of(&store.url());
    reader.read("a");
    let client = super::client(&store.url()).await;
    let lock = client.rw_lock("a");
    let reading = lock.read().await.expect("a lease");
    assert!(lock.try_write().await.expect("the store").is_none());
    reader.kill();
    reader.reap();
    // The TTL is an hour.
    assert!(lock.try_write().await.expect("the store").is_none());
    reading.release().await;
    assert!(lock.try_write().await.expect("the store").is_some());

    // Its death wakes a writer that waits.
    let mut reader = Puppet::of(&store.url());
    reader.read("a");
    let writing = tokio::spawn(lock.write());
    store.until_waiters(1);
    reader.kill();
    reader.reap();
    drop(writing.await.expect("no panic").expect("a lease"));
}

#[test]
fn the_death_of_a_holder_wakes_waiters_while_it_is_a_zombie() {
    let store = Store::new();
    let (mut holder, mut other) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    let held = holder.lock("a");
    other.send_lock("a");
    store.until_waiters(1);
    holder.kill();
    assert!(other.receive_lease().token > held.token);
    assert_eq!(
        state(holder.pid()),
        Some('Z'),
        "the process must be a zombie here"
    );
    // Also for a client that has not seen the holder alive.
    other.kill();
    until("a zombie", || state(other.pid()) == Some('Z'));
    let mut third = Puppet::of(&store.url());
    assert!(!third.finds_held("a"));
    assert_eq!(
        state(other.pid()),
        Some('Z'),
        "the process must be a zombie here"
    );
}

/// The test's own process waits here, with other threads and on another client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_death_wakes_the_waiters_of_every_name_held() {
    let store = Store::new();
    let mut holder = Puppet::of(&store.url());
    let names = ["a", "b", "c"];
    for name in names {
        holder.lock(name);
    }
    let client = super::client(&store.url()).await;
    let waiting: Vec<_> = names
        .map(|name| client.mutex(name).with_options(super::forever))
        .map(spawn_lock)
        .into();
    store.until_waiters(3);
    holder.kill();
    for one in waiting {
        drop(lease_of(one).await);
    }
}

#[test]
fn a_stopped_holder_is_not_dead() {
    let store = Store::new();
    let (mut holder, mut other) = (Puppet::of(&store.url()), Puppet::of(&store.url()));
    let held = holder.lock("a");
    other.send_lock("a");
    store.until_waiters(1);
    holder.stop();
    // More than the interval at which waiters send WAIT.
    other.is_silent_for(Duration::from_millis(2_500));
    assert!(Puppet::of(&store.url()).finds_held("a"));
    holder.resume();
    holder.release("a");
    assert!(other.receive_lease().token > held.token);
}

/// Killed in a transaction, while opening the store, while waiting: at any moment.
#[test]
fn processes_killed_at_any_moment_leave_a_sound_store() {
    let store = Store::new();
    let file = store.dir().join("count");
    std::fs::write(&file, "0 0").expect("written");
    let line = format!("count a {} 1000000", file.display());
    let start = || {
        let mut puppet = Puppet::new();
        puppet.send(&format!("open {}", store.url()));
        puppet.send(&line);
        puppet
    };
    let mut puppets: Vec<_> = (0..3).map(|_| start()).collect();
    for round in 0..24 {
        std::thread::sleep(Duration::from_millis(fastrand::u64(20..120)));
        // The old process is killed when it is dropped.
        let index = round % puppets.len();
        puppets[index] = start();
    }
    let before = std::fs::read_to_string(&file).expect("the file");
    until("the processes continue", || {
        std::fs::read_to_string(&file).expect("the file") != before
    });
    drop(puppets);
    let mut last = Puppet::of(&store.url());
    let count = format!("count a {} 3", file.display());
    assert_eq!(
        last.request(&count),
        "counted",
        "the tokens grow all the same"
    );
    let check = "PRAGMA integrity_check";
    let sound: String = store
        .sql()
        .query_row(check, [], |row| row.get(0))
        .expect("an answer");
    assert_eq!(sound, "ok");
}
