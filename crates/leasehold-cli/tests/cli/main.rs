//! The tool as people use it: real processes, real signals, real terminals, real servers.

#![cfg(unix)]

mod children;
mod codes;
mod counting;
mod init;
mod looking;
mod losing;
mod nested;
mod scripts;
mod snapshots;
mod terminal;
mod texts;
mod waiting;

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use leasehold_testkit::{RedisServer, TempDir};

/// Nothing takes longer, unless something hangs.
const LIMIT: Duration = Duration::from_secs(180);

/// Where the locks of a test are, and a directory for its files.
struct Place {
    dir: TempDir,
    nodes: Option<String>,
}

/// What a run of the tool came to.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Place {
    /// An embedded store of its own.
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

    /// The tool, to be run in the directory of this place.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
        command
            .args(args)
            .current_dir(self.dir.path())
            .env("XDG_STATE_HOME", self.dir.path().join("state"))
            .env_remove("LEASEHOLD_OWNER")
            .env_remove("LEASEHOLD_NAME")
            .env_remove("LEASEHOLD_NODES")
            .env_remove("LEASEHOLD_NODES_FILE")
            .env_remove("LEASEHOLD_PREFIX")
            .env_remove("LEASEHOLD_HELD")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(nodes) = &self.nodes {
            command.env("LEASEHOLD_NODES", nodes);
        }
        command
    }

    fn spawn(&self, args: &[&str]) -> Running {
        Running(Some(self.command(args).spawn().expect("it starts")))
    }

    /// Runs the tool to its end.
    fn run(&self, args: &[&str]) -> Ran {
        self.spawn(args).end()
    }

    /// Runs the tool; its standard output, if all went well.
    fn ok(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
        ran.out
    }

    /// Waits until a file is there, with something in it.
    fn await_file(&self, name: &str) -> String {
        eventually(&format!("{name} appears"), || {
            Some(self.read(name)).filter(|text| text.ends_with('\n'))
        })
    }

    /// The tool holds `name` while it runs `command`, which has started: it has come to the
    /// place that it marks with `@@`, or to its beginning.
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
}

impl Place {
    /// A pipe with a name, to keep a command waiting without a loop.
    fn pipe(&self, name: &str) {
        let status = Command::new("mkfifo").arg(self.file(name)).status();
        assert!(status.expect("mkfifo runs").success());
    }

    /// Waits until the embedded store knows the command's process: the lock is bound to it in
    /// a moment after its start.
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

/// A command run by another, with the same surroundings.
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

/// A run of the tool that has not ended. Killed when dropped.
struct Running(Option<Child>);

impl Running {
    fn pid(&self) -> u32 {
        self.0.as_ref().expect("it runs").id()
    }

    fn signal(&self, signal: &str) {
        kill(signal, &self.pid().to_string());
    }

    /// Waits for its end, which must come.
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

    /// Kills it with -9 and waits for its end.
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

/// Events, one JSON object on each line.
fn events(text: &str) -> Vec<serde_json::Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
    text.lines().map(parse).collect()
}

/// What kind each event is.
fn kinds(events: &[serde_json::Value]) -> Vec<String> {
    let kinds = events.iter().map(|event| event["event"].as_str());
    kinds.map(|kind| kind.expect("a kind").to_owned()).collect()
}

fn kill(signal: &str, pid: &str) {
    let status = Command::new("kill").args(["-s", signal, pid]).status();
    assert!(
        status.expect("kill runs").success(),
        "kill -s {signal} {pid}"
    );
}

/// Whether a process runs: a zombie does not.
fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Tries until it works out.
fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < LIMIT, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn until(what: &str, mut so: impl FnMut() -> bool) {
    eventually(what, || so().then_some(()));
}

fn output(command: &mut Command) -> Output {
    command.output().expect("it runs")
}
