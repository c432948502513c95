//! A process that executes the test's commands, one line at a time.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use leasehold::{Client, Error, Lease, Moment};
use leasehold_testkit::process;
use leasehold_testkit::setup::{LONG, blocking};

use super::{FOREVER_MS as FOREVER, with_ttl};

const PUPPET: &str = "LEASEHOLD_TEST_PUPPET";

/// The child: executes each line it reads, and answers it with one line. On its own, without its
/// parent, this test does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn puppet() {
    if std::env::var_os(PUPPET).is_none() {
        return;
    }
    let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            // When the pipe is closed, the parent is gone.
            let _ = sender.send(line);
        }
    });
    let mut state = State::default();
    while let Some(line) = lines.recv().await {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match state.execute(&words).await {
            Ok(answer) => answer,
            Err(error) => format!("error {error}"),
        };
        println!("\n> {answer}");
    }
}

/// The state of a puppet.
#[derive(Default)]
struct State {
    client: Option<Client>,
    leases: HashMap<String, Lease>,
}

impl State {
    async fn execute(&mut self, words: &[&str]) -> Result<String, Error> {
        let number = |index: usize| words[index].parse::<u64>().expect("a number");
        match words[0] {
            "open" => {
                let builder = Client::builder().connect_timeout(LONG);
                let client = builder.node(words[1]).build()?;
                client.ready(LONG).await?;
                self.client = Some(client);
                Ok("open".into())
            }
            // Does not wait until the store works.
            "build" => {
                self.client = Some(Client::builder().node(words[1]).build()?);
                Ok("built".into())
            }
            "close" => {
                self.client = None;
                Ok("closed".into())
            }
            "lock" => self.lock(words[1], number(2), None).await,
            "read" => {
                let lock = self.client().rw_lock(words[1]);
                let lock = lock.with_options(|o| with_ttl(o, number(2)));
                let lease = lock.read().await?;
                Ok(self.keep(words[1], lease))
            }
            "wait" => {
                let wait = Duration::from_millis(number(3));
                self.lock(words[1], number(2), Some(wait)).await
            }
            "try" => self.lock(words[1], number(2), Some(Duration::ZERO)).await,
            "lock-detached" => {
                let mutex = self.client().mutex(words[1]);
                let mutex = mutex.with_options(|o| with_ttl(o, FOREVER).detached());
                let lease = mutex.lock().await?;
                Ok(self.keep(words[1], lease))
            }
            "detach" => Ok(self.take(words[1]).detach().await?.owner().to_owned()),
            "bind" => {
                let pids = words[2..].iter().map(|pid| pid.parse().expect("a pid"));
                let pids: Vec<u32> = pids.collect();
                let lease = self.leases.get(words[1]).expect("a lease");
                lease.bind_to_processes(&pids).await?;
                Ok("bound".into())
            }
            "extend" => {
                let lease = self.leases.get(words[1]).expect("a lease");
                lease.extend().await?;
                Ok("extended".into())
            }
            "release" => {
                let now = at();
                let released = self.take(words[1]).release().await;
                Ok(format!("{released:?} {now}"))
            }
            "count" => self.count(words[1], words[2], number(3)).await,
            "turns" => self.turns(words[1], words[2], number(3)).await,
            "shutdown" => {
                let owed = self.client().shutdown(LONG).await;
                Ok(format!("{owed} owed"))
            }
            other => panic!("no such line: {other}"),
        }
    }

    fn client(&self) -> &Client {
        self.client.as_ref().expect("opened before")
    }

    fn take(&mut self, name: &str) -> Lease {
        self.leases.remove(name).expect("a lease")
    }

    fn keep(&mut self, name: &str, lease: Lease) -> String {
        let answer = format!("token {} {}", lease.token(), at());
        self.leases.insert(name.to_owned(), lease);
        answer
    }

    async fn lock(
        &mut self,
        name: &str,
        ttl_ms: u64,
        wait: Option<Duration>,
    ) -> Result<String, Error> {
        let mutex = self.client().mutex(name);
        let mutex = mutex.with_options(|o| with_ttl(o, ttl_ms));
        let lease = match wait {
            None => mutex.lock().await,
            Some(Duration::ZERO) => match mutex.try_lock().await? {
                Some(lease) => Ok(lease),
                None => return Ok("held".into()),
            },
            Some(wait) => match mutex.lock_timeout(wait).await {
                Err(Error::TimedOut { .. }) => return Ok("timed out".into()),
                other => other,
            },
        }?;
        Ok(self.keep(name, lease))
    }

    /// Increments a number in a plain file, under the lock. The file also contains the token of
    /// the last increment, which must be smaller.
    async fn count(&self, name: &str, file: &str, rounds: u64) -> Result<String, Error> {
        let mutex = self.client().mutex(name);
        let mutex = mutex.with_options(|o| with_ttl(o, FOREVER));
        for _ in 0..rounds {
            let lease = mutex.lock().await?;
            let text = std::fs::read_to_string(file).expect("the file");
            let (count, token) = text.split_once(' ').expect("two numbers");
            let (count, token): (u64, u64) = (
                count.parse().expect("a number"),
                token.parse().expect("a token"),
            );
            assert!(lease.token() > token, "{} after {token}", lease.token());
            // Not in place: this process may be killed at any moment.
            let next = format!("{file}.{}", std::process::id());
            std::fs::write(&next, format!("{} {}", count + 1, lease.token())).expect("written");
            std::fs::rename(&next, file).expect("renamed");
            lease.release().await;
        }
        Ok("counted".into())
    }

    /// Acquires the lock again and again, immediately after each release, and each time appends
    /// to a file which process had it.
    async fn turns(&self, name: &str, file: &str, rounds: u64) -> Result<String, Error> {
        let mutex = self.client().mutex(name);
        let mutex = mutex.with_options(|o| with_ttl(o, FOREVER));
        for _ in 0..rounds {
            let lease = mutex.lock().await?;
            let mut log = std::fs::OpenOptions::new();
            let mut log = log.append(true).open(file).expect("the file");
            writeln!(log, "{}", std::process::id()).expect("written");
            lease.release().await;
        }
        Ok("done".into())
    }
}

/// The time by the clock that all processes of the machine share.
pub fn since_boot() -> Duration {
    Moment::now().saturating_duration_since(Moment::from_origin(Duration::ZERO))
}

fn at() -> u128 {
    since_boot().as_nanos()
}

/// A lease that a puppet acquired, and when, in time since boot.
#[derive(Clone, Copy, Debug)]
pub struct Got {
    pub token: u64,
    pub at: Duration,
}

/// A child process. Killed when dropped.
pub struct Puppet {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Puppet {
    pub fn new() -> Self {
        Self::through(&[])
    }

    /// A puppet with an open store.
    pub fn of(url: &str) -> Self {
        let mut puppet = Self::new();
        puppet.open(url);
        puppet
    }

    /// A puppet that is started by another program, such as `unshare`.
    pub fn through(wrapper: &[&str]) -> Self {
        Self::start(wrapper, |_| {})
    }

    pub fn start(wrapper: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        let program = std::env::current_exe().expect("this program");
        let program = program.to_str().expect("a path of text");
        let words = [wrapper, &[program]].concat();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .args(["--exact", "puppet::puppet", "--nocapture"])
            .env(PUPPET, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        change(&mut command);
        let mut child = command.spawn().expect("the child starts");
        let output = child.stdout.take().expect("its output");
        Self {
            input: child.stdin.take(),
            lines: process::lines(output),
            child,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn send(&mut self, line: &str) {
        let input = self.input.as_mut().expect("its input");
        writeln!(input, "{line}").expect("the child lives");
    }

    pub fn receive(&self) -> String {
        self.answer_within(LONG).expect("the child answers")
    }

    /// The next line that is an answer.
    fn answer_within(&self, time: Duration) -> Result<String, RecvTimeoutError> {
        let end = std::time::Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(std::time::Instant::now());
            let line = self.lines.recv_timeout(left)?;
            if let Some(answer) = line.strip_prefix("> ") {
                return Ok(answer.to_owned());
            }
        }
    }

    pub fn request(&mut self, line: &str) -> String {
        self.send(line);
        self.receive()
    }

    pub fn open(&mut self, url: &str) {
        assert_eq!(self.request(&format!("open {url}")), "open");
    }

    pub fn request_lease(&mut self, line: &str) -> Got {
        self.send(line);
        self.receive_lease()
    }

    /// Acquires a lock for longer than the test runs, and waits for it.
    pub fn lock(&mut self, name: &str) -> Got {
        self.send_lock(name);
        self.receive_lease()
    }

    pub fn read(&mut self, name: &str) -> Got {
        self.send(&format!("read {name} {FOREVER}"));
        self.receive_lease()
    }

    pub fn send_lock(&mut self, name: &str) {
        self.send(&format!("lock {name} {FOREVER}"));
    }

    pub fn receive_lease(&self) -> Got {
        got(&self.receive())
    }

    /// Releases a lock. Returns when it began to.
    pub fn release(&mut self, name: &str) -> Duration {
        let answer = self.request(&format!("release {name}"));
        released_at(&answer)
    }

    /// Whether another process holds the lock. If not, the lock is released again.
    pub fn finds_held(&mut self, name: &str) -> bool {
        let answer = self.request(&format!("try {name} {FOREVER}"));
        if answer == "held" {
            return true;
        }
        got(&answer);
        self.release(name);
        false
    }

    /// Checks that the puppet sends no line for this time.
    pub fn is_silent_for(&self, time: Duration) {
        let received = self.answer_within(time);
        assert_eq!(received, Err(RecvTimeoutError::Timeout), "too early");
    }

    /// Kills it (SIGKILL). It stays a zombie until `reap`.
    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
    }

    pub fn reap(&mut self) {
        self.child.wait().expect("dead");
    }

    /// Lets it end normally, like a program that has finished.
    pub fn leave(mut self) {
        drop(self.input.take());
        let ended = self.child.wait().expect("the process ends");
        assert!(ended.success());
    }

    /// The pid of the puppet, if a wrapper program has started it in a namespace.
    pub fn child_pid(&self) -> u32 {
        let children = format!("/proc/{0}/task/{0}/children", self.pid());
        blocking::eventually("the wrapper has a child", || {
            let pids = std::fs::read_to_string(&children).expect("the process lives");
            pids.trim().parse().ok()
        })
    }

    /// Waits until it and all its children are dead.
    pub fn until_gone(&self) {
        loop {
            match self.lines.recv_timeout(LONG) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => panic!("the process does not die"),
            }
        }
    }

    /// Stops it (SIGSTOP), and waits until it has stopped.
    pub fn stop(&self) {
        process::stop(self.pid());
    }

    /// Resumes it (SIGCONT).
    pub fn resume(&self) {
        process::signal(self.pid(), "CONT");
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// When the puppet began to release a lock, from its answer.
pub fn released_at(answer: &str) -> Duration {
    let at = answer.strip_prefix("Released ").expect(answer);
    Duration::from_nanos(at.parse().expect("a number"))
}

fn got(answer: &str) -> Got {
    let words = answer.strip_prefix("token ").expect(answer);
    let (token, at) = words.split_once(' ').expect("two numbers");
    Got {
        token: token.parse().expect("a token"),
        at: Duration::from_nanos(at.parse().expect("a number")),
    }
}
