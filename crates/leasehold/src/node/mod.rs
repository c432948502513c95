//! The interface of a store of locks: the [`Node`] trait and its messages.
//!
//! This is enough to write a node that wraps other nodes, or that uses a store with atomic
//! operations of its own. With the feature `unstable-node`, the module also exports the rules by
//! which the nodes of this crate vote: `vote`, `Record`, `Line`, `rules`, and the time constants of
//! waiting. That part has no promise of stability: any release may change it.

mod call;
mod history;
mod line;
#[cfg(feature = "planted-bugs")]
#[doc(hidden)]
pub mod link;
#[cfg(all(feature = "redis", not(feature = "planted-bugs")))]
mod link;
#[cfg(all(feature = "local", unix))]
pub(crate) mod local;
pub(crate) mod memory;
mod record;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "unstable-node")]
pub mod rules;
#[cfg(not(feature = "unstable-node"))]
pub(crate) mod rules;
pub(crate) mod seat;
pub(crate) mod semaphore;
mod settings;
pub(crate) mod sighting;
pub(crate) mod watch;

use std::future::Future;
use std::pin::Pin;

use crate::base::name::Name;

pub(crate) use crate::base::mode::Mode;
pub use crate::base::vote::{NodeError, Vote};
pub(crate) use call::Tally;
pub use call::{Call, Claim, Holders, Verb};
pub use history::{HISTORY_ENTRIES, HISTORY_KEPT, HistoryEntry, HistoryRead, HistoryWritten};
#[cfg(feature = "unstable-node")]
pub use line::{DEAD_AFTER, LINE_KEPT, Line, MemoryLine, ORDER_KNOWN_AFTER};
#[cfg(not(feature = "unstable-node"))]
#[cfg_attr(not(feature = "redis"), allow(unused_imports))]
pub(crate) use line::{DEAD_AFTER, LINE_KEPT, Line, MemoryLine, ORDER_KNOWN_AFTER};
#[cfg(feature = "unstable-node")]
pub use record::{ANNOUNCED_TO, HANDED_OVER, Record, TURN, vote};
#[cfg(not(feature = "unstable-node"))]
#[cfg_attr(not(feature = "redis"), allow(unused_imports))]
pub(crate) use record::{ANNOUNCED_TO, HANDED_OVER, Record, TURN, vote};
#[cfg(feature = "redis")]
pub use redis::{Change, Initialized};
pub use rules::Constants;
#[cfg(feature = "unstable-node")]
pub use seat::{SEARCHED, Seat};
#[cfg(feature = "unstable-node")]
pub use semaphore::{SemaphoreRecord, vote_on_permit};
#[cfg(not(feature = "unstable-node"))]
pub(crate) use semaphore::{SemaphoreRecord, vote_on_permit};
pub(crate) use settings::{NodeSettings, Replicas, Shortfall, Tls, VERIFY_AFTER};
pub(crate) use sighting::Sighting;
pub(crate) use watch::Listener;
pub use watch::{News, Notifier, Watch};

/// Returns how many of `nodes` nodes are a majority. A majority is always a majority **of all N**,
/// also if some cannot be reached: two majorities of subsets need not have a node in common.
pub(crate) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

const NO_HISTORY: &str = "this kind of node keeps no history";

/// The future that [`Node::flush`] returns.
pub type Flush = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The future that [`Node::survey`] returns.
pub type Survey = Pin<Box<dyn Future<Output = Result<Vec<Sighting>, NodeError>> + Send>>;

/// A store of locks: one voter of a quorum.
///
/// A client has one node or several independent ones, and a lease is a claim that a majority of
/// them granted. For each name, a node keeps the **lock** (an owner value and its expiry), the
/// **fence** (the largest token granted, which outlives the lock) and the line of waiters. It votes
/// on a claim by the rules of the module `rules`, atomically.
///
/// To log, delay or fail the calls of another node, wrap it ([`Call::relay`]). To store locks
/// elsewhere, implement this trait and run the conformance suite of `leasehold-testkit`. Either the
/// store applies the rules itself, as the Lua scripts for Redis do, or the node implements `Record`
/// and calls `vote`, which need the feature `unstable-node`.
///
/// # Contract
/// - [`submit`](Node::submit) returns immediately. It never blocks and never panics.
/// - The node answers every [`Call`] within [`Call::timeout`]. Dropping a call without an answer
///   counts as [`NodeError::Unanswered`].
/// - An answer belongs to exactly one call. If a reply may belong to another request, the node
///   answers with an error, not with a vote.
/// - Calls take effect in the order in which they were submitted, unless one of them failed. (So
///   the release of an attempt takes effect before the next attempt.)
/// - A call that was answered with an error may take effect later, or never. If the error [had no
///   effect](NodeError::had_no_effect), the call never takes effect.
/// - The node's clock does not go back. A node that has lost its memory raises its
///   [floor](Node::floor): it grants no token up to the time at which it noticed the loss plus the
///   [allowed skew](Constants::skew).
///
/// ```
/// use leasehold::{Client, node::{Call, Node, NodeError, Vote}};
///
/// /// A node that always fails.
/// struct Broken;
///
/// impl Node for Broken {
///     fn label(&self) -> &str {
///         "broken"
///     }
///     fn submit(&self, call: Call) {
///         call.answer(Err(NodeError::unreachable("no cable")));
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let client = Client::builder().custom_node(Broken).build().unwrap();
/// let error = client.mutex("x").try_lock().await.unwrap_err();
/// assert!(error.to_string().contains("no cable"));
/// # }
/// ```
pub trait Node: Send + Sync + 'static {
    /// The name of the node in errors and logs. Must not contain credentials.
    fn label(&self) -> &str;

    /// Accepts a request. The node answers it with [`Call::answer`].
    fn submit(&self, call: Call);

    /// Starts to connect in the background, if the node has not started yet. The default does
    /// nothing.
    fn connect(&self) {}

    /// Returns `Ok` if the node is known to work, an error if it is known not to work, and `None`
    /// while that is unknown.
    fn status(&self) -> Option<Result<(), NodeError>> {
        Some(Ok(()))
    }

    /// Returns a hint: as far as is known, the node grants no token up to this number. A proposal
    /// above it saves a round trip. No guarantee depends on the hint.
    fn floor(&self) -> u64 {
        0
    }

    /// Registers `notifier`, which the node uses when there is [news](News) for a claim that
    /// [waits](Verb::Wait). Called before the claim waits. A lost notification costs time and
    /// nothing else, because waiters re-send WAIT every 1.1 s or 2.2 s. The default, `None`, means
    /// that the node cannot notify.
    fn watch(&self, claim: &Claim, notifier: &Notifier) -> Option<Watch> {
        let _ = (claim, notifier);
        None
    }

    /// Whether the node frees a lock as soon as its [holders](Claim::holders) are dead.
    fn frees_the_locks_of_the_dead(&self) -> bool {
        false
    }

    /// Whether the node votes on the claims of semaphores. Semaphores need nodes that do.
    fn has_semaphores(&self) -> bool {
        false
    }

    /// Resolves when all earlier calls, and the ends of watches, have been processed. A process
    /// waits for this before it exits.
    fn flush(&self) -> Flush {
        Box::pin(std::future::ready(()))
    }

    /// Returns the locks that are on the node now: the lock of this name, or all locks that
    /// leasehold knows of. The default returns an error.
    fn survey(&self, name: Option<&Name>) -> Survey {
        let _ = name;
        let why = "this kind of node cannot list its locks";
        Box::pin(std::future::ready(Err(NodeError::refused(why))))
    }

    /// Adds entries to the history of their names, and drops the oldest of each name beyond
    /// [`HISTORY_ENTRIES`]. A client calls this in the background, and only if it
    /// [records a history](crate::Builder::history). No vote depends on it. The default returns an error.
    fn write_history(&self, entries: Vec<HistoryEntry>) -> HistoryWritten {
        let _ = entries;
        Box::pin(std::future::ready(Err(NodeError::refused(NO_HISTORY))))
    }

    /// Returns the entries in the history of a name, in any order. The default returns an error.
    fn read_history(&self, name: &Name) -> HistoryRead {
        let _ = name;
        Box::pin(std::future::ready(Err(NodeError::refused(NO_HISTORY))))
    }
}
