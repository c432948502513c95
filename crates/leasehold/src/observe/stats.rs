//! A snapshot of a client's counters.

use std::time::Duration;

use crate::base::vote::NodeError;

/// What a client has done since it was created, and its state now: see
/// [`Client::stats`](crate::Client::stats). Numbers that change at the same time may be read a moment
/// apart.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// let client = leasehold::Client::in_memory();
/// let _lease = client.mutex("orders/42").lock().await?;
/// let stats = client.stats();
/// assert_eq!((stats.leases_held, stats.acquires.granted, stats.waiters), (1, 1, 0));
/// assert_eq!((stats.nodes.len(), stats.quorum_margin), (1, 0));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Leases that are held now. A call for several permits
    /// ([`Semaphore::acquire_many`](crate::Semaphore::acquire_many)) holds one more while it collects
    /// them.
    pub leases_held: u64,
    /// Calls that wait for a lock now.
    pub waiters: u64,
    /// Calls to acquire a lock that have ended, by outcome.
    pub acquires: Acquires,
    /// Calls that found the lock taken, also those that did not wait.
    pub contended: u64,
    /// Leases that were handed over to a call that waited.
    pub hand_overs: HandOvers,
    /// Renewals that have ended.
    pub renewals: Renewals,
    /// Leases that have ended, by how they ended.
    pub ended: Ends,
    /// Leases that were lost, by reason, and those that [expired](Ends::expired). They are also in
    /// `ended`.
    pub lost: Losses,
    /// The nodes, in the order in which they were added to the client.
    pub nodes: Vec<NodeStats>,
    /// How many more nodes may fail until there is no majority. Negative if there is none now: by as many
    /// nodes as are missing. Nodes that are down, that were not asked yet, or that are in quarantine
    /// count as failed.
    pub quorum_margin: i64,
    /// Events that no observer received, because observers were too slow:
    /// [`Event::Request`](super::Event::Request) and [`Event::Renewal`](super::Event::Renewal), and no
    /// others.
    pub events_dropped: u64,
    /// Events during which an observer panicked.
    pub observer_panics: u64,
}

/// Calls to acquire a lock, by [outcome](super::Outcome).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Acquires {
    /// The call returned a lease.
    pub granted: u64,
    /// The lock was taken, and the call did not wait, or has made all its
    /// [attempts](crate::Options::attempts).
    pub held: u64,
    /// The call returned the stored result of a [`Once`](crate::Once). Of the tasks of a client that
    /// want a result at the same time, only the first asks the nodes and counts.
    pub result: u64,
    /// The lock was taken for as long as the call waited.
    pub timed_out: u64,
    /// Too few nodes answered.
    pub no_majority: u64,
    /// The future of the call was dropped.
    pub cancelled: u64,
    /// Another error.
    pub failed: u64,
}

/// Leases that were [handed over](super::HandOver).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandOvers {
    /// By another task of this client.
    pub local: u64,
    /// By the nodes.
    pub node: u64,
}

/// [Renewals](super::Renewal).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renewals {
    /// A majority of nodes renewed the lease.
    pub ok: u64,
    /// Too few nodes did. The client tries again until the deadline of the lease.
    pub failed: u64,
}

/// Leases that have ended, by [how](super::End).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ends {
    /// Released.
    pub released: u64,
    /// Lost.
    pub lost: u64,
    /// The guard was dropped.
    pub dropped: u64,
    /// Another client broke the lock.
    pub broken: u64,
    /// The time was over.
    pub expired: u64,
    /// Detached.
    pub detached: u64,
}

impl Ends {
    pub(crate) fn total(&self) -> u64 {
        let Self {
            released,
            lost,
            dropped,
            broken,
            expired,
            detached,
        } = self;
        released + lost + dropped + broken + expired + detached
    }
}

/// Leases that were lost, by [reason](crate::Loss).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Losses {
    /// [`Loss::NotRenewed`](crate::Loss::NotRenewed).
    pub not_renewed: u64,
    /// [`Loss::TakenAway`](crate::Loss::TakenAway).
    pub taken_away: u64,
    /// [`Loss::Broken`](crate::Loss::Broken).
    pub broken: u64,
    /// [`Loss::MaxHold`](crate::Loss::MaxHold).
    pub max_hold: u64,
    /// [`Loss::RuntimeEnded`](crate::Loss::RuntimeEnded).
    pub runtime_ended: u64,
}

/// What a client knows of one of its nodes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeStats {
    /// The node, without credentials.
    pub node: String,
    /// Whether the node can be asked.
    pub state: NodeState,
    /// Requests for this node, also those that were not sent because it is down.
    pub requests: u64,
    /// Requests that the node did not answer, or answered with an error.
    pub errors: u64,
    /// How often the client connected again. Only Redis nodes have a connection; 0 for others.
    pub reconnects: u64,
    /// How often the node turned out to have lost its memory, or to be another server. 0 for nodes
    /// without a connection.
    pub epochs: u64,
    /// How much longer the node does not vote because it may have lost locks. Zero if it votes, and
    /// for nodes without a connection.
    pub quarantine_left: Duration,
    /// By how many microseconds the node's clock was ahead of this client's wall clock when the client
    /// connected. `None` for nodes without a connection.
    pub clock_offset_us: Option<i64>,
}

/// Whether a node can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeState {
    /// It is not known yet. Clients connect when a lock is first requested.
    Unknown,
    /// It can.
    Up,
    /// It cannot.
    #[non_exhaustive]
    Down {
        /// Why, if that is known.
        why: Option<NodeError>,
    },
}
