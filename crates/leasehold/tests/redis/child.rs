//! A process that is stopped for longer than its lease.

use std::future::poll_fn;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::task::Poll;
use std::time::Duration;

use leasehold::{Client, Error, Moment, Options};
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

/// Another child: works inside of `with`, on a runtime of one thread, and says so if its work
/// is polled after the deadline of its lease.
#[tokio::test]
async fn stopped_worker() {
    let Ok(url) = std::env::var(CHILD) else {
        return;
    };
    let client = Client::builder().node(url).build().expect("a client");
    let ttl = Duration::from_secs(3);
    let mutex = client.mutex("a").with_options(|o| options(o).ttl(ttl));
    let work = async move {
        let work = mutex.with(async |lease| {
            let mut said = false;
            poll_fn(|cx| {
                if !lease.is_valid() {
                    println!("\nended too late");
                }
                // After the check: the parent may stop this process at once.
                if !std::mem::replace(&mut said, true) {
                    println!("\nheld {}", lease.token());
                }
                // Busy, so that it is stopped here, and to be polled again at once: the runtime
                // looks at its timers only after dozens of polls.
                std::thread::sleep(Duration::from_millis(1));
                cx.waker().wake_by_ref();
                Poll::<()>::Pending
            })
            .await;
        });
        work.await
    };
    let outcome = tokio::spawn(work).await.expect("no panic");
    let Err(Error::Lost { .. }) = outcome else {
        panic!("{outcome:?}");
    };
    println!("\nended in time");
}

/// A child process that has told the token of its lease.
struct Stopped {
    child: Child,
    lines: Receiver<String>,
    token: u64,
}

impl Stopped {
    /// Starts the child, and stops it while it holds the lock.
    fn start(test: &str, server: &RedisServer) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", test, "--nocapture"])
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
        let token = 0;
        let mut stopped = Self {
            child,
            lines,
            token,
        };
        stopped.token = stopped.told("held ").parse().expect("a token");
        stopped.signal("-STOP");
        until_stopped(stopped.child.id());
        stopped
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let kill = Command::new("kill").args([name, &pid]).status();
        assert!(kill.expect("kill runs").success());
    }

    /// Waits for a line that begins with `word`. This blocks the runtime, which has nothing
    /// else to do then.
    fn told(&self, word: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(LONG).expect("the child says so");
            if let Some(said) = line.strip_prefix(word) {
                break said.to_owned();
            }
        }
    }
}

#[tokio::test]
async fn a_stopped_process_does_not_believe_its_old_lease() {
    let server = RedisServer::start();
    let mut child = Stopped::start("child::stopped_child", &server);
    // Its lease runs out, and another takes the lock.
    let client = Client::builder()
        .node(server.url())
        .build()
        .expect("a client");
    let mutex = client.mutex("a").with_options(super::patient);
    let lease = mutex.lock().await.expect("a lease");
    assert!(lease.token() > child.token);
    tokio::time::sleep(Duration::from_millis(2_000)).await;
    child.signal("-CONT");
    assert_eq!(child.told("woke "), "false", "it believed its old lease");
    let lag: u64 = child.told("lost ").parse().expect("a number");
    assert!(lag < 5_000, "told {lag} ms late");
    assert!(child.child.wait().expect("it ends").success());
    // And what it gave back late did not touch the new holder.
    lease.extend().await.expect("still held");
}

#[tokio::test]
async fn a_stopped_process_does_not_go_on_with_its_work() {
    let server = RedisServer::start();
    // A process can be stopped between the check of its lease and the check of this test, which
    // are next to each other. Not every time.
    let mut in_time = false;
    for _ in 0..3 {
        let mut child = Stopped::start("child::stopped_worker", &server);
        // Longer than its TTL of three seconds.
        tokio::time::sleep(Duration::from_millis(3_500)).await;
        child.signal("-CONT");
        in_time |= child.told("ended ") == "in time";
        assert!(child.child.wait().expect("it ends").success());
        if in_time {
            return;
        }
    }
    panic!("work went on after the deadline, every time");
}
