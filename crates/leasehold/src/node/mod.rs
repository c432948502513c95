//! What a lease needs of a store: the [`Node`] trait and the messages it takes.

mod call;
mod line;
#[cfg(all(feature = "local", unix))]
pub(crate) mod local;
pub(crate) mod memory;
mod record;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub mod rules;
mod settings;
mod sighting;
mod vote;
pub(crate) mod watch;

use std::future::Future;
use std::pin::Pin;

use crate::base::name::Name;

pub(crate) use call::Tally;
pub use call::{Call, Claim, Holders, Verb};
pub use line::Line;
pub use record::{DEAD_AFTER, HANDED_OVER, LINE_KEPT, Record, SETTLED, TURN, vote};
#[cfg(feature = "redis")]
pub use redis::{Change, Initialized};
pub(crate) use settings::{NodeSettings, Tls, VERIFY_AFTER};
pub use sighting::Sighting;
pub use vote::{NodeError, Vote};
pub(crate) use watch::Listener;
pub use watch::{News, Notifier, Watch};

/// What [`Node::flush`] returns.
pub type Flush = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a node answers to [`Node::survey`].
pub type Survey = Pin<Box<dyn Future<Output = Result<Vec<Sighting>, NodeError>> + Send>>;

/// A store of locks: one voter of a quorum.
///
/// A client has one node or several independent ones, and a lease is a claim that
/// a majority of them granted. A node keeps for each name the **lock** (an owner
/// value and when it expires) and the **fence** (the highest token granted; it
/// outlives the lock), and the line of those who wait. It votes on a claim by [`vote`] (or,
/// without a line, by [`rules::vote`]), atomically. Whoever stores locks somewhere new
/// implements this trait and [`Record`], and runs the conformance suite of
/// `leasehold-testkit`.
///
/// # Contract
/// - [`submit`](Node::submit) returns at once. It never blocks and never panics.
/// - Every [`Call`] is answered, within [`Call::timeout`]. Dropping a call unanswered
///   is an answer too: [`NodeError::Unanswered`].
/// - An answer belongs to exactly the call it is given to. A reply that may belong to
///   another request is an error, not a vote.
/// - Calls submitted one after the other take effect in that order, unless one of them
///   failed. (So the release of an attempt takes effect before the next attempt.)
/// - A call that was answered with an error may take effect later, or never; with one that
///   [had no effect](NodeError::had_no_effect), never.
/// - The node's clock does not go back, and a node that has lost its memory says so by
///   its [floor](rules::View::floor).
///
/// ```
/// use leasehold::{Client, node::{Call, Node, NodeError, Vote}};
///
/// /// A node that is always out of order.
/// struct Broken;
///
/// impl Node for Broken {
///     fn label(&self) -> &str {
///         "broken"
///     }
///     fn submit(&self, call: Call) {
///         call.answer(Err(NodeError::Unreachable { why: "out of order".into() }));
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let client = Client::builder().custom_node(Broken).build().unwrap();
/// let error = client.mutex("x").try_lock().await.unwrap_err();
/// assert!(error.to_string().contains("out of order"));
/// # }
/// ```
pub trait Node: Send + Sync + 'static {
    /// How the node is called in errors and logs. No credentials.
    fn label(&self) -> &str;

    /// Takes a request, to be answered through [`Call::answer`].
    fn submit(&self, call: Call);

    /// Starts to connect in the background, unless that has begun. By default there is nothing
    /// to do.
    fn connect(&self) {}

    /// Whether the node can be asked now: `Ok` once it is known to work, an error
    /// if it is known not to, `None` while that is not known yet.
    fn status(&self) -> Option<Result<(), NodeError>> {
        Some(Ok(()))
    }

    /// A hint: as far as is known, no token up to here is granted (the node's
    /// [floor](rules::View::floor)). A proposal above it saves a round trip and wins the
    /// node's vote; nothing depends on it being right.
    fn floor(&self) -> u64 {
        0
    }

    /// Rings `notifier` when there are [news](News) for a claim that [waits](Verb::Wait); called
    /// before it waits. A missed ring costs time and nothing else: who waits also asks from
    /// time to time. `None`, as by default, if the node cannot tell.
    fn watch(&self, claim: &Claim, notifier: &Notifier) -> Option<Watch> {
        let _ = (claim, notifier);
        None
    }

    /// Whether the node frees a lock as soon as its [holders](Claim::holders) are dead.
    fn frees_the_locks_of_the_dead(&self) -> bool {
        false
    }

    /// Resolves when everything that was asked of the node so far has been done, watches that
    /// have ended included: what a process waits for before it exits.
    fn flush(&self) -> Flush {
        Box::pin(std::future::ready(()))
    }

    /// The locks that are on the node now: that of this name, or all that leasehold has to
    /// do with. By default an error: the node cannot tell.
    fn survey(&self, name: Option<&Name>) -> Survey {
        let _ = name;
        let why = "this kind of node cannot say what locks it has".into();
        Box::pin(std::future::ready(Err(NodeError::Refused { why })))
    }
}
