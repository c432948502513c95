//! Real `redis-server` (or `valkey-server`) processes, on free ports, stopped when dropped.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{TempDir, process};

/// How long a server may take to start on a slow machine.
const START_WITHIN: Duration = Duration::from_secs(30);

/// A running server. Killed, and its files removed, when dropped.
///
/// ```no_run
/// use leasehold_testkit::RedisServer;
///
/// let mut server = RedisServer::start();
/// println!("{}", server.url());
/// server.kill();
/// server.restart();
/// ```
pub struct RedisServer {
    child: Option<Child>,
    port: u16,
    dir: TempDir,
    args: Vec<String>,
    env: Vec<(&'static str, OsString)>,
    /// A program, with arguments, that runs the server.
    under: Vec<String>,
    stopped: bool,
}

/// The wall clock of a server, which stands still until it is set.
pub struct FrozenClock {
    file: std::fs::File,
}

impl FrozenClock {
    /// Sets the clock, in microseconds since 1970.
    ///
    /// # Panics
    ///
    /// If the clock cannot be set.
    pub fn set(&self, at_us: u64) {
        use std::os::unix::fs::FileExt;
        let at_us = i64::try_from(at_us).expect("the time is in range");
        let written = self.file.write_all_at(&at_us.to_ne_bytes(), 0);
        written.expect("the clock is set");
    }
}

impl RedisServer {
    /// Starts a server without persistence.
    ///
    /// # Panics
    /// If there is no `redis-server` or `valkey-server` on the path, or it does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with more arguments, such as `["--requirepass", "secret"]`.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_with(args: &[&str]) -> Self {
        Self::start_in(TempDir::new(), args, Vec::new())
    }

    /// Starts a server that another program runs, such as
    /// `["valgrind", "--tool=callgrind", "--callgrind-out-file=out"]`. It must stay the same process.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_under(under: &[&str]) -> Self {
        let mut server = Self::new(TempDir::new(), &[], Vec::new());
        server.under = under.iter().map(ToString::to_string).collect();
        server.started()
    }

    /// Starts a server whose wall clock shows `at_us`, in microseconds since 1970, until it is set
    /// (Linux only). It is always `redis-server`: the clock of Valkey cannot be stopped.
    ///
    /// # Panics
    /// As [`start`](Self::start), or if there is no C compiler called `cc`, or no `redis-server`.
    #[must_use]
    pub fn start_frozen(at_us: u64, args: &[&str]) -> (Self, FrozenClock) {
        let dir = TempDir::new();
        let path = |name: &str| dir.path().join(name);
        let (source, library) = (path("frozen_clock.c"), path("frozen_clock.so"));
        std::fs::write(&source, include_str!("frozen_clock.c")).expect("written");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&library, &source])
            .status();
        let compiled = compiled.expect("a C compiler (`cc`) must be on the path");
        assert!(compiled.success(), "cc could not compile the clock");
        let clock = FrozenClock {
            file: std::fs::File::create(path("clock")).expect("a file"),
        };
        clock.set(at_us);
        let env = vec![
            ("LD_PRELOAD", library.into_os_string()),
            ("FROZEN_CLOCK", path("clock").into_os_string()),
        ];
        (Self::start_in(dir, args, env), clock)
    }

    fn start_in(dir: TempDir, args: &[&str], env: Vec<(&'static str, OsString)>) -> Self {
        Self::new(dir, args, env).started()
    }

    fn new(dir: TempDir, args: &[&str], env: Vec<(&'static str, OsString)>) -> Self {
        Self {
            child: None,
            port: 0,
            dir,
            args: args.iter().map(ToString::to_string).collect(),
            env,
            under: Vec::new(),
            stopped: false,
        }
    }

    fn started(mut self) -> Self {
        // Another process may take the free port first, so there are several attempts.
        for _ in 0..10 {
            self.port = free_port();
            if self.spawn() {
                return self;
            }
        }
        panic!("no server could be started; see {}", self.dir().display());
    }

    /// Starts `count` servers.
    #[must_use]
    pub fn start_many(count: usize) -> Vec<Self> {
        (0..count).map(|_| Self::start()).collect()
    }

    /// `redis://127.0.0.1:port`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The TCP port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The server's directory; its Unix socket is `redis.sock` in there.
    #[must_use]
    pub fn dir(&self) -> &std::path::Path {
        self.dir.path()
    }

    /// `kill -9`. Nothing that was not persisted survives.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.stopped = false;
    }

    /// Lets the server end by itself, and waits for that.
    pub fn shut_down(&mut self) {
        // It closes the connection instead of an answer.
        let _ = self.try_command(&[b"SHUTDOWN", b"NOSAVE"]);
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
    }

    /// Restarts the server on the same port, after [`kill`](Self::kill).
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        self.kill();
        let start = Instant::now();
        while !self.spawn() {
            assert!(
                start.elapsed() < START_WITHIN,
                "the server does not restart"
            );
        }
    }

    /// Sends SIGSTOP: the server is silent, and its connections stay open.
    ///
    /// # Panics
    /// If it cannot be stopped.
    pub fn stop(&mut self) {
        if let Some(child) = &self.child {
            process::stop(child.id());
        }
        self.stopped = true;
    }

    /// Sends SIGCONT.
    pub fn resume(&mut self) {
        if let Some(child) = &self.child {
            process::signal(child.id(), "CONT");
        }
        self.stopped = false;
    }

    /// Sends one command and returns the raw reply, with invalid UTF-8 replaced.
    ///
    /// # Panics
    /// If the server does not answer.
    #[must_use]
    pub fn command(&self, parts: &[&[u8]]) -> String {
        let reply = self.try_command(parts).expect("the server answers");
        String::from_utf8_lossy(&reply).into_owned()
    }

    /// Sends a command that must succeed, such as `"CONFIG SET maxmemory 1"`: words with spaces
    /// between them. Returns the raw reply.
    ///
    /// # Panics
    /// If the server does not answer, or answers with an error.
    pub fn run(&self, line: &str) -> String {
        let words: Vec<_> = line.split(' ').map(str::as_bytes).collect();
        let reply = self.command(&words);
        assert!(!reply.starts_with('-'), "{line}: {reply}");
        reply
    }

    /// A field of a section of INFO, or an empty string.
    ///
    /// # Panics
    /// If the server does not answer.
    #[must_use]
    pub fn info(&self, section: &str, field: &str) -> String {
        let info = self.info_text(section);
        let value = |line: &str| Some(line.strip_prefix(field)?.strip_prefix(':')?.to_owned());
        info.lines().find_map(value).unwrap_or_default()
    }

    /// A section of INFO. Asks again a few times: a sentinel that changes the role of a server closes
    /// its connections.
    ///
    /// # Panics
    /// If the server does not answer.
    #[must_use]
    pub fn info_text(&self, section: &str) -> String {
        let ask = |_| self.try_command(&[b"INFO", section.as_bytes()]).ok();
        let info = (0..5).find_map(ask).expect("the server answers INFO");
        String::from_utf8_lossy(&info).into_owned()
    }

    /// How often clients and scripts have called a command, such as `evalsha`.
    ///
    /// # Panics
    /// If the server does not answer.
    #[must_use]
    pub fn calls(&self, command: &str) -> u64 {
        let stats = self.info("commandstats", &format!("cmdstat_{command}"));
        let calls = stats.strip_prefix("calls=").unwrap_or("0");
        let calls = calls.split(',').next().expect("the number of calls");
        calls.parse().expect("a number")
    }

    /// The string at a key, if there is one.
    ///
    /// # Panics
    /// If the server does not answer.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let reply = self
            .try_command(&[b"GET", key])
            .expect("the server answers");
        let body = reply.strip_prefix(b"$").filter(|_| reply != b"$-1\r\n")?;
        let line = body.windows(2).position(|two| two == b"\r\n")?;
        Some(body[line + 2..body.len() - 2].to_vec())
    }

    fn try_command(&self, parts: &[&[u8]]) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        // QUIT makes the server close the connection after its reply.
        stream.write_all(&[request(parts), request(&[b"QUIT"])].concat())?;
        let mut reply = Vec::new();
        stream.take(64 * 1024).read_to_end(&mut reply)?;
        Ok(reply.strip_suffix(b"+OK\r\n").unwrap_or(&reply).to_vec())
    }

    /// Starts the process. Returns whether the server came up on its port.
    fn spawn(&mut self) -> bool {
        let log = std::fs::File::create(self.dir().join("server.log")).expect("a log file");
        // Valkey adds the time of the processor's own counter, which cannot be stopped.
        let program = match self.env.is_empty() {
            true => server_program(),
            false => "redis-server".into(),
        };
        let mut command = match self.under.split_first() {
            Some((under, args)) => {
                let mut command = Command::new(under);
                command.args(args).arg(program);
                command
            }
            None => Command::new(program),
        };
        let child = command
            .args(["--port", &self.port.to_string()])
            .args(["--bind", "127.0.0.1"])
            .args(["--save", ""])
            .args(["--appendonly", "no"])
            .args(["--daemonize", "no"])
            .args([
                "--unixsocket",
                &self.dir().join("redis.sock").to_string_lossy(),
            ])
            .args(["--dir", &self.dir().to_string_lossy()])
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stderr(log.try_clone().expect("a log file"))
            .stdout(log)
            .spawn()
            .expect("redis-server starts");
        let pid = child.id();
        self.child = Some(child);
        let start = Instant::now();
        while start.elapsed() < START_WITHIN {
            if self
                .child
                .as_mut()
                .is_some_and(|c| !matches!(c.try_wait(), Ok(None)))
            {
                return false;
            }
            if self.answers_as(pid) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    }

    /// Whether the server on the port is this one, and not another process on the same port. A
    /// server that requires a password is assumed to be this one. When it answers, it listens on all
    /// its ports.
    fn answers_as(&self, pid: u32) -> bool {
        match self.try_command(&[b"INFO", b"server"]) {
            Ok(info) if info.starts_with(b"-NOAUTH") => true,
            Ok(info) => String::from_utf8_lossy(&info).contains(&format!("process_id:{pid}\r")),
            Err(_) => false,
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        if self.stopped {
            self.resume();
        }
        self.kill();
    }
}

/// Sends one command to a sentinel, over a connection of its own, and returns the raw reply. Sentinels
/// do not know QUIT; they close the connection after the reply because this side sends nothing more.
pub(crate) fn ask(port: u16, parts: &[&[u8]]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(&request(parts))?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut reply = Vec::new();
    stream.take(64 * 1024).read_to_end(&mut reply)?;
    Ok(reply)
}

fn request(parts: &[&[u8]]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", parts.len()).into_bytes();
    for part in parts {
        request.extend(format!("${}\r\n", part.len()).bytes());
        request.extend_from_slice(part);
        request.extend(b"\r\n");
    }
    request
}

/// The program named by `LEASEHOLD_TEST_SERVER`, or else `redis-server`, or else `valkey-server`.
pub(crate) fn server_program() -> OsString {
    if let Some(chosen) = std::env::var_os("LEASEHOLD_TEST_SERVER") {
        return chosen;
    }
    let runs = |program: &&str| {
        let mut command = Command::new(program);
        command.arg("--version").stdout(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    ["redis-server", "valkey-server"]
        .into_iter()
        .find(runs)
        .expect("redis-server or valkey-server must be on the path; `./test` installs one")
        .into()
}

/// A port on which no program listens at the moment.
///
/// # Panics
/// If all ports are in use.
#[must_use]
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its address").port()
}
