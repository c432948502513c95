//! Tests of the tool with real processes, signals, terminals and servers.

#![cfg(unix)]

mod also;
mod command;
mod config;
mod counting;
mod doctor;
mod documentation;
mod elect;
mod events;
mod exit_codes;
mod history;
mod init;
mod inspect;
mod lost_lease;
mod metrics_file;
mod nested;
mod node_options;
mod once;
mod permits;
mod scripts;
mod snapshots;
mod terminal;
#[cfg(feature = "top")]
mod top;
mod wait;

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use leasehold_testkit::setup::blocking::{LIMIT, eventually, until};
use leasehold_testkit::{RedisServer, TempDir, process};

/// A shell command that runs until the file `go` exists.
const UNTIL_GO: &str = "while [ ! -e go ]; do sleep 0.01; done";

/// A configuration file without settings.
const NO_CONFIG: &str = "/dev/null";

/// The nodes of a test, and a directory for its files.
struct Place {
    dir: TempDir,
    nodes: Option<String>,
}

/// The result of a run of the tool.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Place {
    /// Uses an embedded store in a new directory.
    fn local() -> Self {
        Self {
            dir: TempDir::new(),
            nodes: None,
        }
    }

    fn redis(servers: &[RedisServer]) -> Self {
        let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
        Self {
            dir: TempDir::new(),
            nodes: Some(urls.join(",")),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    /// Creates an empty file.
    fn touch(&self, name: &str) {
        std::fs::write(self.file(name), "").expect("written");
    }

    /// A command that runs the tool in the directory of this place.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command
            .args(args)
            .current_dir(self.dir.path())
            .env("XDG_STATE_HOME", self.dir.path().join("state"))
            .env("HOME", self.dir.path())
            .env_remove("XDG_CONFIG_HOME")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (key, _) in std::env::vars_os() {
            if key.to_string_lossy().starts_with("LEASEHOLD_") {
                command.env_remove(key);
            }
        }
        // Not the configuration of this machine.
        command.env("LEASEHOLD_CONFIG", NO_CONFIG);
        if let Some(nodes) = &self.nodes {
            command.env("LEASEHOLD_NODES", nodes);
        }
        command
    }

    fn spawn(&self, args: &[&str]) -> Running {
        Running::start(&mut self.command(args))
    }

    /// Runs the tool and waits until it exits.
    fn run(&self, args: &[&str]) -> Ran {
        self.spawn(args).end()
    }

    /// Runs the tool, checks that it succeeds, and returns its stdout.
    fn ok(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
        ran.out
    }

    /// Waits until a file contains at least one complete line.
    fn await_file(&self, name: &str) -> String {
        eventually(&format!("{name} appears"), || {
            Some(self.read(name)).filter(|text| text.ends_with('\n'))
        })
    }

    /// Starts `leasehold run` with a shell command, and waits until the command has reached the
    /// place that is marked with `@@`, or its beginning.
    fn holding(&self, name: &str, args: &[&str], command: &str) -> Running {
        let started = format!("started.{name}");
        let mark = format!("echo $$ > {started}.new; mv {started}.new {started}; ");
        let line = match command.contains("@@") {
            true => command.replace("@@", &mark),
            false => mark + command,
        };
        let mut all = vec!["run", name];
        all.extend(args);
        all.extend(["-c", &line]);
        let running = self.spawn(&all);
        self.await_file(&started);
        running
    }

    /// Waits until this many processes wait for a lock.
    fn until_waiters(&self, name: &str, count: usize) {
        let line = format!("waiters  {count}");
        until(&line, || self.ok(&["show", name]).contains(&line));
    }

    /// The id of the owner of a lock, as `show` prints it.
    fn owner_id(&self, name: &str) -> String {
        let page = self.ok(&["show", name]);
        let mut lines = page.lines();
        let owner = lines.find_map(|line| line.trim().strip_prefix("owner"));
        owner.expect("an owner").trim().to_owned()
    }

    /// Creates a named pipe, which lets a command wait without a loop.
    fn pipe(&self, name: &str) {
        let status = Command::new("mkfifo").arg(self.file(name)).status();
        assert!(status.expect("mkfifo runs").success());
    }

    /// Waits until the embedded store knows the process of the command. The lock is bound to it
    /// shortly after its start.
    fn await_bound(&self, name: &str) {
        let file = self.file("state/leasehold/locks.db");
        until("the lock is bound", || {
            let store = rusqlite::Connection::open(&file).expect("the store");
            let sql = "SELECT holders FROM names WHERE name = CAST(? AS BLOB)";
            let holders = store.query_row(sql, [name], |row| row.get::<_, Option<String>>(0));
            holders.is_ok_and(|holders| holders.is_some())
        });
    }
}

/// A command that another program runs, with the same environment and directory.
fn wrapped(program: &str, args: &[&str], inner: &Command) -> Command {
    let mut command = Command::new(program);
    command
        .args(args)
        .arg(inner.get_program())
        .args(inner.get_args());
    for (key, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    if let Some(dir) = inner.get_current_dir() {
        command.current_dir(dir);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A running process of the tool. Killed when dropped.
struct Running(Option<Child>);

impl Running {
    fn start(command: &mut Command) -> Self {
        Self(Some(command.spawn().expect("it starts")))
    }

    fn pid(&self) -> u32 {
        self.0.as_ref().expect("it runs").id()
    }

    fn signal(&self, signal: &str) {
        process::signal(self.pid(), signal);
    }

    /// Waits until it exits.
    fn end(mut self) -> Ran {
        let mut child = self.0.take().expect("it runs");
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let read = |from: Option<Box<dyn Read + Send>>| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                if let Some(mut from) = from {
                    let _ = from.read_to_end(&mut text);
                }
                String::from_utf8_lossy(&text).into_owned()
            })
        };
        let out = read(out.map(|out| Box::new(out) as Box<dyn Read + Send>));
        let err = read(err.map(|err| Box::new(err) as Box<dyn Read + Send>));
        let start = Instant::now();
        let status = loop {
            match child.try_wait().expect("it can be waited for") {
                Some(status) => break status,
                None if start.elapsed() > LIMIT => {
                    let _ = child.kill();
                    panic!("it hangs: {}", err.join().unwrap_or_default());
                }
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        Ran {
            code: status.code().expect("it exits by itself"),
            out: out.join().expect("read"),
            err: err.join().expect("read"),
        }
    }

    /// Kills it with SIGKILL and waits until it has ended.
    fn kill(mut self) {
        if let Some(mut child) = self.0.take() {
            child.kill().expect("it can be killed");
            child.wait().expect("it can be waited for");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Parses events, one JSON object per line.
fn events(text: &str) -> Vec<serde_json::Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
    text.lines().map(parse).collect()
}

/// The kind of each event.
fn kinds(events: &[serde_json::Value]) -> Vec<String> {
    let kinds = events.iter().map(|event| event["event"].as_str());
    kinds.map(|kind| kind.expect("a kind").to_owned()).collect()
}

/// The process id that a command has written to a file.
fn parse_pid(text: &str) -> u32 {
    text.trim().parse().expect("a process id")
}

fn kill(signal: &str, pid: &str) {
    process::signal(parse_pid(pid), signal);
}

/// Whether a process is running. A zombie is not.
fn is_alive(pid: &str) -> bool {
    process::state(parse_pid(pid)).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

fn output(command: &mut Command) -> Output {
    command.output().expect("it runs")
}
