//! A process that is stopped for longer than its lease.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use leasehold::{Client, Moment, Options};
use leasehold_testkit::{RedisServer, until_stopped};

use super::LONG;

const CHILD: &str = "LEASEHOLD_TEST_CHILD_URL";

fn options(options: Options) -> Options {
    let ttl = Duration::from_millis(1_000);
    options.ttl(ttl).node_timeout(ttl).outage_patience(LONG)
}

/// The child: takes the lock, says so, and says what it sees once a moment is missing.
/// Not a test of its own: without its parent it has nothing to do.
#[tokio::test]
async fn stopped_child() {
    let Ok(url) = std::env::var(CHILD) else {
        return;
    };
    let client = Client::builder().node(url).build().expect("a client");
    let mutex = client.mutex("a").with_options(options);
    let lease = mutex.lock().await.expect("a lease");
    // Before it says so: its parent may stop it at once.
    let mut before = Moment::now();
    println!("\nheld {}", lease.token());
    loop {
        // What a program sees that was stopped anywhere: it has not been told yet, and
        // must know all the same.
        let now = Moment::now();
        let gap = now.saturating_duration_since(before);
        if gap > Duration::from_millis(1_500) {
            println!("\nwoke {}", lease.is_valid());
            lease.lost().await;
            println!(
                "\nlost {}",
                Moment::now().saturating_duration_since(now).as_millis()
            );
            return;
        }
        before = now;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_stopped_process_does_not_believe_its_old_lease() {
    let server = RedisServer::start();
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "child::stopped_child", "--nocapture"])
        .env(CHILD, server.url())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the child starts");
    let output = child.stdout.take().expect("its output");
    let (sender, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // The test may have ended.
            let _ = sender.send(line);
        }
    });
    // Waiting here blocks the runtime, which has nothing else to do then.
    let told = |word: &str| loop {
        let line = lines.recv_timeout(LONG).expect("the child says so");
        if let Some(said) = line.strip_prefix(word) {
            break said.to_owned();
        }
    };
    let token: u64 = told("held ").parse().expect("a token");
    let signal = |name: &str| {
        let pid = child.id().to_string();
        let kill = Command::new("kill").args([name, &pid]).status();
        assert!(kill.expect("kill runs").success());
    };
    signal("-STOP");
    until_stopped(child.id());
    // Its lease runs out, and another takes the lock.
    let client = Client::builder()
        .node(server.url())
        .build()
        .expect("a client");
    let mutex = client.mutex("a").with_options(super::patient);
    let lease = mutex.lock().await.expect("a lease");
    assert!(lease.token() > token);
    tokio::time::sleep(Duration::from_millis(2_000)).await;
    signal("-CONT");
    assert_eq!(told("woke "), "false", "it believed its old lease");
    let lag: u64 = told("lost ").parse().expect("a number");
    assert!(lag < 5_000, "told {lag} ms late");
    assert!(child.wait().expect("it ends").success());
    // And what it gave back late did not touch the new holder.
    lease.extend().await.expect("still held");
}
