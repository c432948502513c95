//! A process that does what the test tells it, one line at a time.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use leasehold::{Client, Error, Lease, Moment};
use leasehold_testkit::until_stopped;
use rustix::process::{Pid, Signal, kill_process};

use super::{FOREVER_MS as FOREVER, LONG, patient};

const PUPPET: &str = "LEASEHOLD_TEST_PUPPET";

/// The child: does what it reads, and answers each line with one. Not a test of its own:
/// without its parent it has nothing to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn puppet() {
    if std::env::var_os(PUPPET).is_none() {
        return;
    }
    let (sender, mut lines) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            // The parent has gone when nobody reads any more.
            let _ = sender.send(line);
        }
    });
    let mut part = Part::default();
    while let Some(line) = lines.recv().await {
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match part.play(&words).await {
            Ok(said) => said,
            Err(error) => format!("error {error}"),
        };
        println!("\n> {answer}");
    }
}

/// What a puppet has in its hands.
#[derive(Default)]
struct Part {
    client: Option<Client>,
    leases: HashMap<String, Lease>,
}

impl Part {
    async fn play(&mut self, words: &[&str]) -> Result<String, Error> {
        let number = |index: usize| words[index].parse::<u64>().expect("a number");
        match words[0] {
            "open" => {
                let builder = Client::builder().connect_timeout(LONG);
                let client = builder.node(words[1]).build()?;
                client.ready(LONG).await?;
                self.client = Some(client);
                Ok("open".into())
            }
            // Whether the store works is not waited for.
            "build" => {
                self.client = Some(Client::builder().node(words[1]).build()?);
                Ok("built".into())
            }
            "close" => {
                self.client = None;
                Ok("closed".into())
            }
            "lock" => self.lock(words[1], number(2), None).await,
            "wait" => {
                let wait = Duration::from_millis(number(3));
                self.lock(words[1], number(2), Some(wait)).await
            }
            "try" => self.lock(words[1], number(2), Some(Duration::ZERO)).await,
            "lock-detached" => {
                let mutex = self.client().mutex(words[1]);
                let mutex = mutex.with_options(|o| patient(o, FOREVER).detached());
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
        let said = format!("token {} {}", lease.token(), at());
        self.leases.insert(name.to_owned(), lease);
        said
    }

    async fn lock(
        &mut self,
        name: &str,
        ttl_ms: u64,
        wait: Option<Duration>,
    ) -> Result<String, Error> {
        let mutex = self.client().mutex(name);
        let mutex = mutex.with_options(|o| patient(o, ttl_ms));
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

    /// Counts a number in a plain file up, under the lock. The file has the token of the last
    /// who did so, too, which must be smaller.
    async fn count(&self, name: &str, file: &str, rounds: u64) -> Result<String, Error> {
        let mutex = self.client().mutex(name);
        let mutex = mutex.with_options(|o| patient(o, FOREVER));
        for _ in 0..rounds {
            let lease = mutex.lock().await?;
            let text = std::fs::read_to_string(file).expect("the file");
            let (count, token) = text.split_once(' ').expect("two numbers");
            let (count, token): (u64, u64) = (
                count.parse().expect("a number"),
                token.parse().expect("a token"),
            );
            assert!(lease.token() > token, "{} after {token}", lease.token());
            // Not the file itself: this process may be killed anywhere.
            let next = format!("{file}.{}", std::process::id());
            std::fs::write(&next, format!("{} {}", count + 1, lease.token())).expect("written");
            std::fs::rename(&next, file).expect("renamed");
            lease.release().await;
        }
        Ok("counted".into())
    }
}

impl Part {
    /// Takes the lock again and again, at once when it is given back, and writes each time into
    /// a file who had it.
    async fn turns(&self, name: &str, file: &str, rounds: u64) -> Result<String, Error> {
        let mutex = self.client().mutex(name);
        let mutex = mutex.with_options(|o| patient(o, FOREVER));
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

/// Now, on the clock that all processes of the machine share.
pub fn since_boot() -> Duration {
    Moment::now().saturating_duration_since(Moment::from_origin(Duration::ZERO))
}

fn at() -> u128 {
    since_boot().as_nanos()
}

/// What a puppet got: a lease, at a moment since boot.
#[derive(Clone, Copy, Debug)]
pub struct Got {
    pub token: u64,
    pub at: Duration,
}

/// A child process in the hand. Killed when dropped.
pub struct Puppet {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Puppet {
    pub fn new() -> Self {
        Self::through(&[])
    }

    /// One that has a store open.
    pub fn of(url: &str) -> Self {
        let mut puppet = Self::new();
        puppet.open(url);
        puppet
    }

    /// Started by another program, such as `unshare`.
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
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Some(said) = line.strip_prefix("> ") {
                    // The test may have ended.
                    let _ = sender.send(said.to_owned());
                }
            }
        });
        let input = child.stdin.take();
        Self {
            child,
            input,
            lines,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("its input");
        writeln!(input, "{line}").expect("the child lives");
    }

    pub fn hear(&self) -> String {
        let heard = self.lines.recv_timeout(LONG);
        heard.expect("the child answers")
    }

    pub fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.hear()
    }

    pub fn open(&mut self, url: &str) {
        assert_eq!(self.ask(&format!("open {url}")), "open");
    }

    pub fn ask_got(&mut self, line: &str) -> Got {
        self.say(line);
        self.hear_got()
    }

    /// Takes a lock, waiting for it, for longer than the test runs.
    pub fn lock(&mut self, name: &str) -> Got {
        self.say_lock(name);
        self.hear_got()
    }

    pub fn say_lock(&mut self, name: &str) {
        self.say(&format!("lock {name} {FOREVER}"));
    }

    pub fn hear_got(&self) -> Got {
        got(&self.hear())
    }

    /// Gives a lock back; when it began to.
    pub fn release(&mut self, name: &str) -> Duration {
        let said = self.ask(&format!("release {name}"));
        let at = said.strip_prefix("Released ").expect(&said);
        Duration::from_nanos(at.parse().expect("a number"))
    }

    /// Whether somebody else has the lock. If not, it is given back.
    pub fn finds_held(&mut self, name: &str) -> bool {
        let said = self.ask(&format!("try {name} {FOREVER}"));
        if said == "held" {
            return true;
        }
        got(&said);
        self.release(name);
        false
    }

    /// Makes sure that it says nothing for so long.
    pub fn is_silent_for(&self, time: Duration) {
        let heard = self.lines.recv_timeout(time);
        assert_eq!(heard, Err(RecvTimeoutError::Timeout), "too early");
    }

    /// Kills it (SIGKILL). It stays a zombie until `bury`.
    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
    }

    pub fn bury(&mut self) {
        self.child.wait().expect("dead");
    }

    /// Lets it end by itself, as a program does whose work is done.
    pub fn leave(mut self) {
        drop(self.input.take());
        let ended = self.child.wait().expect("it ends");
        assert!(ended.success());
    }

    /// The id of the child of a program that has started the puppet in a namespace.
    pub fn child_pid(&self) -> i32 {
        let children = format!("/proc/{0}/task/{0}/children", self.pid());
        let mut child = None;
        super::until("it has a child", || {
            let pids = std::fs::read_to_string(&children).expect("it lives");
            child = pids.trim().parse().ok();
            child.is_some()
        });
        child.expect("found")
    }

    /// Waits until all that could have answered are dead: its own children too.
    pub fn until_gone(&self) {
        until_closed(&self.lines);
    }

    /// Stops it (SIGSTOP): from here on it does nothing.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        until_stopped(self.pid());
    }

    /// Lets it go on (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        send(i32::try_from(self.pid()).expect("a pid"), signal);
    }

    /// How much time of the processors it has used.
    pub fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        let stat = stat.expect("it lives");
        let (_, fields) = stat.rsplit_once(") ").expect("fields");
        let ticks = fields.split(' ').skip(11).take(2);
        let ticks: u64 = ticks
            .map(|field| field.parse::<u64>().expect("ticks"))
            .sum();
        // USER_HZ, which is 100 on every Linux that there is.
        Duration::from_millis(ticks * 10)
    }
}

pub fn send(pid: i32, signal: Signal) {
    let pid = Pid::from_raw(pid).expect("a pid");
    kill_process(pid, signal).expect("signalled");
}

fn until_closed(lines: &Receiver<String>) {
    loop {
        match lines.recv_timeout(LONG) {
            Ok(_) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => panic!("it does not die"),
        }
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn got(said: &str) -> Got {
    let words = said.strip_prefix("token ").expect(said);
    let (token, at) = words.split_once(' ').expect("two numbers");
    Got {
        token: token.parse().expect("a token"),
        at: Duration::from_nanos(at.parse().expect("a number")),
    }
}
