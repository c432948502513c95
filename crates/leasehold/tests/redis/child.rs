//! A process that is stopped for longer than its lease lasts.

use std::future::poll_fn;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::task::Poll;
use std::time::Duration;

use leasehold::{Client, Error, Moment, Options};
use leasehold_testkit::setup::{LONG, client, lock, pause};
use leasehold_testkit::{RedisServer, process};

const CHILD: &str = "LEASEHOLD_TEST_CHILD_URL";

fn options(options: Options) -> Options {
    let ttl = Duration::from_millis(1_000);
    options.ttl(ttl).node_timeout(ttl).outage_patience(LONG)
}

/// The child: acquires the lock, reports it, and reports what it sees once it notices a gap in
/// time. On its own, without its parent, this test does nothing.
#[tokio::test]
async fn stopped_child() {
    let Ok(url) = std::env::var(CHILD) else {
        return;
    };
    let client = Client::builder().node(url).build().expect("a client");
    let mutex = client.mutex("a").with_options(options);
    let lease = mutex.lock().await.expect("a lease");
    // Before the report: the parent may stop this process at once.
    let mut before = Moment::now();
    println!("\nheld {}", lease.token());
    loop {
        // What a program sees that was stopped anywhere: it has not been notified of the loss,
        // but must know of it all the same.
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
        pause(5).await;
    }
}

/// Another child: works inside of `with`, on a runtime with one thread, and reports whether its
/// work was polled after the deadline of its lease.
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
                // Busy, so that the process is stopped here, and ready to be polled again at
                // once: the runtime checks its timers only after dozens of polls.
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

/// A child process that has reported the token of its lease.
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
        let mut stopped = Self {
            child,
            lines: process::lines(output),
            token: 0,
        };
        stopped.token = stopped.reported("held ").parse().expect("a token");
        process::stop(stopped.child.id());
        stopped
    }

    fn resume(&self) {
        process::signal(self.child.id(), "CONT");
    }

    /// Waits for a line that begins with `word`. This blocks the runtime, which has nothing else
    /// to do then.
    fn reported(&self, word: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(LONG).expect("the child reports it");
            if let Some(said) = line.strip_prefix(word) {
                break said.to_owned();
            }
        }
    }
}

#[tokio::test]
async fn a_stopped_process_knows_that_its_lease_has_expired() {
    let server = RedisServer::start();
    let mut child = Stopped::start("child::stopped_child", &server);
    // The lease expires, and another client acquires the lock.
    let lease = lock(&client(&[&server]).await, "a").await;
    assert!(lease.token() > child.token);
    pause(2_000).await;
    child.resume();
    assert_eq!(
        child.reported("woke "),
        "false",
        "the process took its expired lease for valid"
    );
    let lag: u64 = child.reported("lost ").parse().expect("a number");
    assert!(lag < 5_000, "notified {lag} ms late");
    assert!(child.child.wait().expect("it ends").success());
    // The late release did not affect the new holder.
    lease.extend().await.expect("still held");
}

#[tokio::test]
async fn a_stopped_process_does_not_continue_its_work() {
    let server = RedisServer::start();
    // A process can be stopped between the check of its lease and the check of this test, which
    // are next to each other, but not every time.
    let mut in_time = false;
    for _ in 0..3 {
        let mut child = Stopped::start("child::stopped_worker", &server);
        // Longer than the TTL of three seconds.
        pause(3_500).await;
        child.resume();
        in_time |= child.reported("ended ") == "in time";
        assert!(child.child.wait().expect("it ends").success());
        if in_time {
            return;
        }
    }
    panic!("the work continued after the deadline, every time");
}
