//! Read, increment, write: twenty at a time, without one lost update.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_testkit::RedisServer;

use crate::Place;

const PROCESSES: usize = 20;
const RUNS: usize = 200;

/// A lease that survives although its process gets no time for half a minute. By default the tool
/// stops the command of a lease that has not been renewed for five seconds, and on a machine whose
/// cores compile something else, twenty processes may wait that long.
const PATIENT: &[&str] = &["--ttl", "60s"];

/// Counts in a file, and notes what it wrote with its token. The new count replaces the old
/// in one step, so that a command that is killed leaves one or the other.
const COUNT: &str = "read n < count; n=$((n + 1)); echo $n > count.new; mv count.new count; \
                     echo $n $LEASEHOLD_TOKEN >> log";

/// Runs twenty loops of the tool at once; how often each exit code came.
fn count(place: &Place, flags: &[&str], allowed: &[i32]) {
    std::fs::write(place.file("count"), "0\n").expect("written");
    let mut args = vec!["run", "counter"];
    args.extend(flags);
    args.extend(["-c", COUNT]);
    std::thread::scope(|scope| {
        for _ in 0..PROCESSES {
            scope.spawn(|| {
                let mut done = 0;
                while done < RUNS {
                    let ran = place.run(&args);
                    assert!(
                        ran.code == 0 || allowed.contains(&ran.code),
                        "{}: {}",
                        ran.code,
                        ran.err
                    );
                    done += usize::from(ran.code == 0);
                }
            });
        }
    });
}

/// No count was written twice, and tokens grow with the counts.
fn check(place: &Place) -> usize {
    let log = place.read("log");
    let entry = |line: &str| {
        let (count, token) = line.split_once(' ').expect("two numbers");
        let number = |text: &str| text.parse::<u64>().expect("a number");
        (number(count), number(token))
    };
    let entries: Vec<_> = log.lines().map(entry).collect();
    for pair in entries.windows(2) {
        assert!(pair[0].0 < pair[1].0, "lost update: {pair:?}");
        assert!(pair[0].1 < pair[1].1, "tokens do not grow: {pair:?}");
    }
    entries.len()
}

/// Says that a loop is over when this is dropped.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn on_the_embedded_store() {
    let place = Place::local();
    count(&place, PATIENT, &[]);
    assert_eq!(check(&place), PROCESSES * RUNS);
    assert_eq!(place.read("count").trim(), (PROCESSES * RUNS).to_string());
}

#[test]
fn on_one_server() {
    let servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    count(&place, PATIENT, &[]);
    assert_eq!(check(&place), PROCESSES * RUNS);
}

/// On five, while one after the other is killed and comes back without a memory. A run may
/// find no majority (69) or lose its lease (79), but no update is lost.
#[test]
fn on_five_servers_that_are_being_killed() {
    let mut servers = RedisServer::start_many(5);
    let place = Place::redis(&servers);
    let flags = ["--ttl", "2s", "--restart-guard", "2s"];
    // The guard of the first start.
    std::thread::sleep(Duration::from_secs(4));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut turn = 0;
            while !over.load(Ordering::SeqCst) {
                servers[turn % 5].kill();
                std::thread::sleep(Duration::from_millis(700));
                servers[turn % 5].restart();
                // It votes again after its guard. Sometimes the next is killed earlier.
                std::thread::sleep(Duration::from_millis([1_000, 3_500][turn % 2]));
                turn += 1;
            }
        });
        // Also if it fails, or this would never end.
        let _over = OnDrop(&over);
        count(&place, &flags, &[69, 79]);
    });
    // A run that was killed may have counted without saying so.
    assert!(check(&place) >= PROCESSES * RUNS);
}
