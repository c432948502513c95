//! What was read from the nodes, before any judgement.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::{Info, NodeFacts};
use crate::node::{Constants, NodeError, Replicas};

/// What all judgements need to know of the client.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) labels: Vec<String>,
    pub(crate) ttl: Duration,
    pub(crate) node_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) constants: Constants,
    /// How many replicas must have each lock, if that is asked for.
    pub(crate) replicas: Option<Replicas>,
}

/// What was read from one node.
#[derive(Debug)]
pub(crate) enum Facts {
    Server(Result<Box<ServerFacts>, Unexamined>),
    Store(Box<StoreFacts>),
    /// A node of another kind reports only whether it works.
    Other(Option<Result<(), NodeError>>),
}

/// Why a server could not be examined.
#[derive(Clone, Debug)]
pub(crate) struct Unexamined {
    pub(crate) error: NodeError,
    /// `None` if the sentinels do not say where the server is.
    pub(crate) address: Option<Address>,
}

impl From<NodeError> for Unexamined {
    fn from(error: NodeError) -> Self {
        let address = None;
        Self { error, address }
    }
}

/// What was read from a server. An `Err` contains the reason why something could not be read.
#[derive(Clone, Debug)]
pub(crate) struct ServerFacts {
    pub(crate) address: Address,
    /// How long the certificate is valid. `None` without TLS.
    pub(crate) certificate: Option<Result<Duration, String>>,
    /// The name of the user.
    pub(crate) user: String,
    pub(crate) commands: Commands,
    /// INFO, at the beginning and at the end of the examination.
    pub(crate) before: Info,
    pub(crate) after: Info,
    /// The time between the two.
    pub(crate) interval: Duration,
    /// The settings that the server shows.
    pub(crate) config: BTreeMap<String, String>,
    pub(crate) clock: Result<(ClockSample, ClockSample), String>,
    /// Round trips, sorted.
    pub(crate) latency: Vec<Duration>,
    /// The slowest command of the last hour.
    pub(crate) slow: Result<Option<Slow>, String>,
    pub(crate) push: Result<(), String>,
    pub(crate) scripts: Result<(), String>,
    /// What the server has on record. A replica is not asked.
    pub(crate) record: Result<Record, NodeError>,
    pub(crate) locks: Result<Locks, String>,
    /// `None` if the node is named by its address.
    pub(crate) sentinels: Option<Sentinels>,
}

/// What the sentinels of a service answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sentinels {
    /// Their addresses. An error is the reason why one does not name a master.
    pub(crate) answers: Vec<(String, Result<SentinelView, String>)>,
}

/// What one sentinel says.
#[derive(Clone, Debug, Default)]
pub(crate) struct SentinelView {
    pub(crate) master: String,
    pub(crate) failover: Failover,
    /// How many other sentinels it knows.
    pub(crate) others: Option<usize>,
    /// Its id, if it says it.
    pub(crate) id: Option<String>,
}

/// Whether a sentinel takes a failover to be possible.
#[derive(Clone, Debug, Default)]
pub(crate) enum Failover {
    #[default]
    Possible,
    /// It does not, and this is why.
    Impossible(String),
    /// It could not be asked, and this is why.
    Unknown(String),
}

/// What became of the commands that locks need, each in a form that changes nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commands {
    /// What the user may not do: a command, or the keys of locks.
    pub(crate) denied: Vec<String>,
    /// Commands that the server does not know, for example because they were renamed.
    pub(crate) unknown: Vec<String>,
    /// The user may not use WAIT, or the server does not know it. Looked at if locks prefer replicas.
    pub(crate) no_wait: bool,
    /// Why the server refuses the requests of any user.
    pub(crate) refused: Option<NodeError>,
}

/// What a look at a node found, and what is compared between nodes.
#[derive(Debug, Default)]
pub(crate) struct Glance {
    pub(crate) facts: NodeFacts,
    pub(crate) run_id: Option<String>,
    pub(crate) set: Option<SetRecord>,
}

/// How a server is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Socket(String),
    Tcp {
        host: String,
        port: u16,
    },
    Tls {
        host: String,
        port: u16,
        files: TlsFiles,
    },
}

/// Which certificates the client has for TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// That of the authority that issued the server's certificate.
    pub(crate) root: bool,
    /// Its own, with a key.
    pub(crate) client: bool,
}

/// A look at a server's clock: the one with the shortest round trip of several.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockSample {
    /// The local clock that never goes back, in the middle of the round trip.
    pub(crate) local_us: i64,
    /// The local wall clock at the same time.
    pub(crate) wall_us: i64,
    pub(crate) server_us: i64,
    pub(crate) round_trip: Duration,
}

impl ClockSample {
    /// How far the server's clock is ahead of that of this machine.
    pub(crate) fn offset_us(&self) -> i64 {
        self.server_us.saturating_sub(self.wall_us)
    }
}

/// A command that blocked the server.
#[derive(Clone, Debug)]
pub(crate) struct Slow {
    pub(crate) command: String,
    pub(crate) took: Duration,
}

/// What a server has on record about the deployment.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// When the server votes. Zero: now.
    pub(crate) votes_in: Duration,
    /// Whether there is an epoch record of this run of the server.
    pub(crate) has_epoch: bool,
    /// The key of the epoch record, if its value is not one of leasehold.
    pub(crate) foreign: Option<String>,
    /// The constants on record and those of this client, if they differ.
    pub(crate) other_constants: Option<(String, String)>,
    pub(crate) set: Option<SetRecord>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SetRecord {
    pub(crate) id: String,
    pub(crate) nodes: usize,
    /// Sorted.
    pub(crate) labels: Vec<String>,
}

/// The locks on a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locks {
    pub(crate) count: usize,
    /// The names of locks without a TTL.
    pub(crate) endless: Vec<String>,
    /// The names of leases that expire later than the restart guard allows, and when.
    pub(crate) long: Vec<(String, Duration)>,
}

/// What was found out about the embedded store.
#[derive(Clone, Debug)]
pub(crate) struct StoreFacts {
    pub(crate) path: PathBuf,
    /// Whether the store can be opened and written.
    pub(crate) opened: Result<(), NodeError>,
    /// The mode of the file and of its directory.
    pub(crate) modes: Option<(u32, u32)>,
    /// The kind of the file system, such as `nfs`, if it is known.
    pub(crate) file_system: Result<FileSystem, String>,
    /// Free bytes and all bytes of the disk.
    pub(crate) space: Result<(u64, u64), String>,
    pub(crate) processes: Result<Processes, String>,
}

/// A file system, as far as a store cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileSystem {
    Local,
    Network(&'static str),
    Memory,
    /// FUSE, behind which may be anything, or a number of the kernel that is not in the table.
    Other(u32),
}

/// Which processes hold locks in a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Processes {
    /// Whether the processes of this machine can be recognised.
    pub(crate) visible: bool,
    /// Locks of processes that cannot be judged from here, as in another container.
    pub(crate) elsewhere: usize,
}
