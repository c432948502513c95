//! Many processes on one store.

use std::path::PathBuf;

use super::puppet::Puppet;
use super::store::Store;

const PROCESSES: usize = 8;

/// A file with a counter, beside the store.
fn counter(store: &Store) -> PathBuf {
    let file = store.dir().join("count");
    std::fs::write(&file, "0 0").expect("written");
    file
}

/// The value of the counter.
fn counted(file: &PathBuf) -> usize {
    let text = std::fs::read_to_string(file).expect("the file");
    let (count, _) = text.split_once(' ').expect("two numbers");
    count.parse().expect("a number")
}

#[test]
fn many_processes_lose_no_update_and_none_starves() {
    const ROUNDS: usize = 150;
    let store = Store::new();
    let file = counter(&store);
    let mut puppets: Vec<_> = (0..PROCESSES).map(|_| Puppet::of(&store.url())).collect();
    for puppet in &mut puppets {
        puppet.send(&format!("count a {} {ROUNDS}", file.display()));
    }
    // The counting processes check that tokens grow.
    for puppet in &puppets {
        assert_eq!(puppet.receive(), "counted");
    }
    assert_eq!(counted(&file), PROCESSES * ROUNDS, "a lost update");
}

/// If they did not all use the same store, two processes would count at once.
#[test]
fn many_processes_may_create_the_same_store_at_once() {
    const ROUNDS: usize = 3;
    let mut puppets: Vec<_> = (0..PROCESSES).map(|_| Puppet::new()).collect();
    for _ in 0..10 {
        let store = Store::new();
        let file = counter(&store);
        for puppet in &mut puppets {
            // They find the store busy for a while, and retry.
            puppet.send(&format!("build {}", store.url()));
            puppet.send(&format!("count a {} {ROUNDS}", file.display()));
        }
        for puppet in &puppets {
            assert_eq!(puppet.receive(), "built");
            assert_eq!(puppet.receive(), "counted");
        }
        assert_eq!(counted(&file), PROCESSES * ROUNDS, "a lost update");
    }
}

/// Short-lived processes must also write back the log beside the file: no long-lived process does
/// it for them. Together they write about eight megabytes.
#[test]
fn the_log_does_not_grow_with_the_number_of_processes() {
    let store = Store::new();
    let file = counter(&store);
    let mut largest = 0;
    for _ in 0..24 {
        let mut puppet = Puppet::of(&store.url());
        let line = format!("count a {} 40", file.display());
        assert_eq!(puppet.request(&line), "counted");
        assert_eq!(puppet.request("shutdown"), "0 owed");
        puppet.leave();
        let log = std::fs::metadata(store.beside("-wal")).expect("a log");
        largest = log.len().max(largest);
    }
    assert!(largest < 4 << 20, "{largest} bytes");
}
