//! The servers of all measurements.

use std::time::{Duration, Instant};

use leasehold_testkit::RedisServer;

use crate::contenders::Kind;
use crate::pin::Placement;

/// A server that leasehold uses for the first time may have lost tokens. So for as long as clocks
/// may differ (10 s by default) it accepts only tokens from the future. Measurements start after
/// that, because it is not the usual state.
pub(crate) const SETTLED_AFTER: Duration = Duration::from_secs(11);

/// More than any scenario needs. A server that may not open that many files accepts fewer.
const MOST_CLIENTS: &str = "50000";

/// Commands that only clients send. The server also counts the commands that scripts call, but
/// these are not requests.
const REQUESTS: [&str; 9] = [
    "eval",
    "fcall",
    "script",
    "hello",
    "client",
    "ping",
    "subscribe",
    "psubscribe",
    "ssubscribe",
];

/// The counters of a server.
pub(crate) struct Counts {
    /// Requests, as far as they can be distinguished from the commands of scripts.
    requests: u64,
    /// How often it read from a connection.
    reads: u64,
}

/// How a node fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Harm {
    /// The process is killed: its connections break, new ones are refused.
    Kill,
    /// The process is stopped: it accepts connections and requests, and never answers.
    Stop,
}

/// Servers that are the nodes of one deployment. The server of a single-node deployment is never
/// one of five: leasehold records in a server what its clients agreed on.
pub(crate) struct Servers {
    servers: Vec<RedisServer>,
    met_leasehold: Instant,
}

impl Servers {
    pub(crate) fn start(count: usize) -> Result<Self, String> {
        let start = |_| RedisServer::start_with(&["--maxclients", MOST_CLIENTS]);
        let mut servers = Self {
            servers: (0..count).map(start).collect(),
            met_leasehold: Instant::now(),
        };
        servers.meet_leasehold()?;
        Ok(servers)
    }

    /// Waits until leasehold's first use of the servers is long enough ago.
    pub(crate) fn settle(&self) {
        std::thread::sleep(SETTLED_AFTER.saturating_sub(self.met_leasehold.elapsed()));
    }

    /// Pins the servers according to the placement.
    pub(crate) fn place(&self, placement: Placement) -> Result<(), String> {
        for (index, pid) in self.pids()?.into_iter().enumerate() {
            placement.pin_server(index, pid)?;
        }
        Ok(())
    }

    pub(crate) fn count(&self) -> usize {
        self.servers.len()
    }

    /// The process ids of the servers.
    pub(crate) fn pids(&self) -> Result<Vec<u32>, String> {
        let pids = self.servers.iter().map(|server| {
            let pid =
                info(server, "process_id").ok_or("a server does not report its process id")?;
            pid.parse().map_err(|_| format!("no process id: {pid}"))
        });
        pids.collect()
    }

    /// The present counters of each server.
    pub(crate) fn counts(&self) -> Vec<Counts> {
        self.servers.iter().map(counts).collect()
    }

    /// The number of requests that all servers together have received since then, at least. A
    /// request with an unknown command still counts as a read from its connection.
    pub(crate) fn requests_since(&self, before: &[Counts]) -> u64 {
        let now = self.counts();
        let each = now.iter().zip(before).map(|(now, before)| {
            let requests = now.requests.saturating_sub(before.requests);
            requests.max(now.reads.saturating_sub(before.reads))
        });
        each.sum()
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.servers.iter().map(RedisServer::url).collect()
    }

    /// The version of the servers, such as `redis 7.0.15`.
    pub(crate) fn version(&self) -> String {
        let server = &self.servers[0];
        info(server, "valkey_version")
            .map(|version| format!("valkey {version}"))
            .or_else(|| Some(format!("redis {}", info(server, "redis_version")?)))
            .unwrap_or_else(|| "unknown".into())
    }

    /// Kills or stops the last `count` servers.
    pub(crate) fn harm(&mut self, count: usize, harm: Harm) {
        for server in self.last(count) {
            match harm {
                Harm::Kill => server.kill(),
                Harm::Stop => server.stop(),
            }
        }
    }

    /// Restarts or resumes the servers. Those that were killed have lost their memory, and have
    /// to [settle](Self::settle) again.
    pub(crate) fn mend(&mut self, count: usize, harm: Harm) -> Result<(), String> {
        for server in self.last(count) {
            match harm {
                Harm::Kill => server.restart(),
                Harm::Stop => server.resume(),
            }
        }
        match harm {
            Harm::Kill => self.meet_leasehold(),
            Harm::Stop => Ok(()),
        }
    }

    fn last(&mut self, count: usize) -> &mut [RedisServer] {
        let first = self.servers.len().saturating_sub(count);
        &mut self.servers[first..]
    }

    fn meet_leasehold(&mut self) -> Result<(), String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        runtime.block_on(Kind::Leasehold.connect(&self.urls()))?;
        self.met_leasehold = Instant::now();
        Ok(())
    }
}

fn counts(server: &RedisServer) -> Counts {
    let stats = server.command(&[b"INFO", b"commandstats"]);
    let calls = stats.lines().filter_map(|line| {
        let (name, counts) = line.strip_prefix("cmdstat_")?.split_once(':')?;
        let known = REQUESTS.iter().any(|request| name.starts_with(request));
        known.then_some(counts.strip_prefix("calls=")?)
    });
    let calls = calls.filter_map(|counts| counts.split(',').next()?.parse::<u64>().ok());
    let stats = server.command(&[b"INFO", b"stats"]);
    let reads = stats
        .lines()
        .find_map(|line| line.strip_prefix("total_reads_processed:"));
    Counts {
        requests: calls.sum(),
        reads: reads.and_then(|reads| reads.parse().ok()).unwrap_or(0),
    }
}

fn info(server: &RedisServer, field: &str) -> Option<String> {
    let info = server.command(&[b"INFO", b"server"]);
    let mut lines = info.lines();
    lines.find_map(|line| Some(line.strip_prefix(field)?.strip_prefix(':')?.to_owned()))
}
