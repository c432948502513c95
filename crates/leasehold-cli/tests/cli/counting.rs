//! Twenty processes increment a counter in a file at the same time. No update may be lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold_testkit::RedisServer;

use crate::Place;

const PROCESSES: usize = 20;
const RUNS: usize = 200;

/// A TTL that survives half a minute without a renewal. By default, the tool stops the command after
/// five seconds without a renewal. On a busy machine, one of twenty processes may wait that long for
/// the processor.
const LONG_TTL: &[&str] = &["--ttl", "60s"];

/// Increments the counter and logs the new value with the token. The file is replaced atomically, so
/// that a command that is killed leaves either the old or the new value.
const COUNT: &str = "read n < count; n=$((n + 1)); echo $n > count.new; mv count.new count; \
                     echo $n $LEASEHOLD_TOKEN >> log";

/// Runs twenty loops of the tool at the same time. Exit codes other than 0 must be in `allowed`.
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

/// Checks that no value was written twice and that tokens increase with the values.
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
        assert!(pair[0].1 < pair[1].1, "tokens do not increase: {pair:?}");
    }
    entries.len()
}

/// Sets a flag when dropped.
struct OnDrop<'a>(&'a AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn no_update_is_lost_on_the_embedded_store() {
    let place = Place::local();
    count(&place, LONG_TTL, &[]);
    assert_eq!(check(&place), PROCESSES * RUNS);
    assert_eq!(place.read("count").trim(), (PROCESSES * RUNS).to_string());
}

#[test]
fn no_update_is_lost_on_one_server() {
    let servers = RedisServer::start_many(1);
    let place = Place::redis(&servers);
    count(&place, LONG_TTL, &[]);
    assert_eq!(check(&place), PROCESSES * RUNS);
}

/// One server after the other is killed and restarts without its data. A run may find no majority
/// (69) or lose its lease (79), but no update is lost.
#[test]
fn no_update_is_lost_while_servers_are_killed() {
    let mut servers = RedisServer::start_many(5);
    let place = Place::redis(&servers);
    let flags = ["--ttl", "2s", "--restart-guard", "2s"];
    // Waits for the restart guard of the first start.
    std::thread::sleep(Duration::from_secs(4));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut turn = 0;
            while !over.load(Ordering::SeqCst) {
                servers[turn % 5].kill();
                std::thread::sleep(Duration::from_millis(700));
                servers[turn % 5].restart();
                // The server votes again after its restart guard. Sometimes the next server is killed
                // earlier.
                std::thread::sleep(Duration::from_millis([1_000, 3_500][turn % 2]));
                turn += 1;
            }
        });
        // Ends the other thread also if the test fails.
        let _over = OnDrop(&over);
        count(&place, &flags, &[69, 79]);
    });
    // A command that was killed may have incremented the counter before.
    assert!(check(&place) >= PROCESSES * RUNS);
}
