//! Real replicas and sentinels: a service that fails over.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::server::{ask, server_program};
use crate::setup::blocking::{eventually, until};
use crate::{RedisServer, TempDir, free_port};

/// The name of the service.
pub const SERVICE: &str = "locks";

/// How long a sentinel waits before it takes a silent master to be down, where a test kills masters.
/// Not shorter: a machine that stands still for a moment must not cause failovers.
pub const DOWN_AFTER: Duration = Duration::from_millis(1_500);

/// A master, its replicas, and three sentinels that watch them. All are killed when dropped.
///
/// ```no_run
/// use leasehold_testkit::SentinelService;
///
/// let mut service = SentinelService::start(2);
/// println!("{}", service.url());
/// service.fail_over();
/// service.kill_master();
/// ```
pub struct SentinelService {
    /// All servers. Which of them is the master is for the sentinels to say.
    pub servers: Vec<RedisServer>,
    /// The sentinels.
    pub sentinels: Vec<Sentinel>,
}

/// A running sentinel. Killed when dropped.
pub struct Sentinel {
    child: Child,
    port: u16,
    _dir: TempDir,
}

impl SentinelService {
    /// Starts a master with this many replicas, and three sentinels, two of which must agree that the
    /// master is down.
    ///
    /// # Panics
    /// If a server does not start.
    #[must_use]
    pub fn start(replicas: usize) -> Self {
        Self::start_with(replicas, &[], &[])
    }

    /// The same, with more arguments for the servers and more lines for the configuration of the
    /// sentinels. `SERVICE` in a line is the name of the service.
    ///
    /// # Panics
    /// If a server does not start.
    #[must_use]
    pub fn start_with(replicas: usize, args: &[&str], lines: &[&str]) -> Self {
        let servers = replicated(replicas, args);
        let master = &servers[0];
        let sentinels = (0..3).map(|_| Sentinel::start(master.port(), lines));
        let service = Self {
            sentinels: sentinels.collect(),
            servers,
        };
        service.until_ready(replicas);
        service
    }

    /// `redis+sentinel://…/locks`, with all sentinels.
    #[must_use]
    pub fn url(&self) -> String {
        let address = |sentinel: &Sentinel| format!("127.0.0.1:{}", sentinel.port);
        let addresses: Vec<_> = self.sentinels.iter().map(address).collect();
        format!("redis+sentinel://{}/{SERVICE}", addresses.join(","))
    }

    /// The index of the server that a majority of the sentinels takes to be the master.
    ///
    /// # Panics
    /// If they do not agree within a minute.
    #[must_use]
    pub fn master(&self) -> usize {
        let agreed = || {
            let named: Vec<_> = self.sentinels.iter().filter_map(Sentinel::master).collect();
            let port = named.iter().find(|port| {
                named.iter().filter(|other| other == port).count() * 2 > self.sentinels.len()
            })?;
            let mut servers = self.servers.iter();
            servers.position(|server| server.port() == *port)
        };
        eventually("the sentinels agree on a master", agreed)
    }

    /// The server that the sentinels take to be the master.
    #[must_use]
    pub fn master_server(&self) -> &RedisServer {
        &self.servers[self.master()]
    }

    /// Tells a sentinel to fail over, and waits until the promoted server is the master. Returns its
    /// index.
    ///
    /// # Panics
    /// If this does not happen.
    pub fn fail_over(&self) -> usize {
        let old = self.master();
        until("a failover begins", || {
            let said = self.sentinels[0].ask(&[b"SENTINEL", b"FAILOVER", SERVICE.as_bytes()]);
            // `-INPROG`: the previous one has not ended. `-NOGOODSLAVE`: it has, a moment ago.
            said.starts_with("+OK")
        });
        self.promoted(old)
    }

    /// Kills the master, and waits until another server is the master. Returns the index of the dead
    /// server.
    ///
    /// # Panics
    /// If this does not happen.
    pub fn kill_master(&mut self) -> usize {
        let old = self.master();
        self.servers[old].kill();
        self.promoted(old);
        old
    }

    /// Waits until another server than this one is the master. Returns its index.
    ///
    /// # Panics
    /// If this does not happen.
    pub fn promoted(&self, old: usize) -> usize {
        eventually("another master", || {
            let new = self.master();
            let is_master = || self.servers[new].info("replication", "role") == "master";
            (new != old && is_master()).then_some(new)
        })
    }

    /// Waits until the master has this many replicas, and all sentinels know them and each other.
    ///
    /// # Panics
    /// If this does not happen.
    pub fn until_ready(&self, replicas: usize) {
        until("the replicas follow the master", || {
            let master = self.master_server();
            let is_master = master.info("replication", "role") == "master";
            is_master && online_replicas(master) == replicas
        });
        for sentinel in &self.sentinels {
            until("the sentinels know each other and the replicas", || {
                let number = |field| sentinel.field(field).parse::<usize>().unwrap_or(0);
                let has_others = number("num-other-sentinels") == self.sentinels.len() - 1;
                has_others && number("num-slaves") >= replicas && sentinel.has_good_replicas()
            });
        }
    }
}

impl Sentinel {
    fn start(master: u16, lines: &[&str]) -> Self {
        for _ in 0..10 {
            let (dir, port) = (TempDir::new(), free_port());
            let mut config = format!(
                "port {port}\nbind 127.0.0.1\ndir {}\n\
                 sentinel monitor {SERVICE} 127.0.0.1 {master} 2\n\
                 sentinel down-after-milliseconds {SERVICE} {}\n\
                 sentinel failover-timeout {SERVICE} 6000\n",
                dir.path().display(),
                DOWN_AFTER.as_millis()
            );
            for line in lines {
                config += &format!("{}\n", line.replace("SERVICE", SERVICE));
            }
            let path = dir.path().join("sentinel.conf");
            std::fs::write(&path, config).expect("a configuration");
            let log = std::fs::File::create(dir.path().join("sentinel.log")).expect("a log file");
            let child = Command::new(server_program())
                .arg(&path)
                .arg("--sentinel")
                .stdin(Stdio::null())
                .stderr(log.try_clone().expect("a log file"))
                .stdout(log)
                .spawn()
                .expect("a sentinel starts");
            let mut sentinel = Self {
                child,
                port,
                _dir: dir,
            };
            if sentinel.answers() {
                return sentinel;
            }
        }
        panic!("no sentinel could be started");
    }

    /// Waits until it answers. `false` if it has ended, because another process has the port.
    fn answers(&mut self) -> bool {
        eventually("a sentinel answers", || {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return Some(false);
            }
            ask(self.port, &[b"PING"]).is_ok().then_some(true)
        })
    }

    /// The TCP port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends one command. The reply is empty if it does not answer.
    #[must_use]
    pub fn ask(&self, parts: &[&[u8]]) -> String {
        let reply = ask(self.port, parts).unwrap_or_default();
        String::from_utf8_lossy(&reply).into_owned()
    }

    /// Sends a command that must succeed: words with spaces between them.
    ///
    /// # Panics
    /// If it is refused.
    pub fn run(&self, line: &str) -> String {
        let words: Vec<_> = line.split(' ').map(str::as_bytes).collect();
        let reply = self.ask(&words);
        assert!(
            !reply.is_empty() && !reply.starts_with('-'),
            "{line}: {reply}"
        );
        reply
    }

    /// The port of the server that it takes to be the master.
    #[must_use]
    pub fn master(&self) -> Option<u16> {
        let said = self.ask(&[b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", SERVICE.as_bytes()]);
        said.lines().nth(4)?.parse().ok()
    }

    /// A field of SENTINEL MASTER, or an empty string.
    #[must_use]
    pub fn field(&self, field: &str) -> String {
        let said = self.ask(&[b"SENTINEL", b"MASTER", SERVICE.as_bytes()]);
        let mut lines = said.lines().skip_while(|line| *line != field);
        lines.nth(2).unwrap_or_default().to_owned()
    }

    /// Whether it could promote a replica.
    fn has_good_replicas(&self) -> bool {
        let said = self.ask(&[b"SENTINEL", b"REPLICAS", SERVICE.as_bytes()]);
        let is_bad = |flags: &str| flags.contains("down") || flags.contains("disconnected");
        let mut lines = said.lines();
        let mut good = true;
        while let Some(line) = lines.next() {
            match line {
                "flags" => good &= lines.nth(1).is_some_and(|flags| !is_bad(flags)),
                "master-link-status" => good &= lines.nth(1) == Some("ok"),
                _ => {}
            }
        }
        good
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A master and replicas that have all its data. The master comes first.
///
/// # Panics
/// If a server does not start.
#[must_use]
pub fn replicated(replicas: usize, args: &[&str]) -> Vec<RedisServer> {
    let args = [&["--repl-diskless-sync-delay", "0"], args].concat();
    let start = |_| RedisServer::start_with(&args);
    let servers: Vec<_> = (0..=replicas).map(start).collect();
    let (master, followers) = servers.split_first().expect("a master");
    for replica in followers {
        replica.run(&format!("REPLICAOF 127.0.0.1 {}", master.port()));
    }
    for replica in followers {
        until("the replica follows", || {
            is_replica_of(replica, master.port())
        });
    }
    until("the master knows its replicas", || {
        online_replicas(master) == replicas
    });
    servers
}

/// How many replicas follow this server.
#[must_use]
pub fn online_replicas(master: &RedisServer) -> usize {
    let info = master.info_text("replication");
    info.matches("state=online").count()
}

fn is_replica_of(server: &RedisServer, port: u16) -> bool {
    server.info("replication", "master_port") == port.to_string()
        && server.info("replication", "master_link_status") == "up"
}
