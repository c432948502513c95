//! What an operator sees of the locks of a running program: an [`Observer`] receives typed
//! [events](Event), and [`Stats`] is a snapshot of counters.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
//! use leasehold::observe::Event;
//! use leasehold::{Client, MemoryNode};
//!
//! let client = Client::builder()
//!     .custom_node(MemoryNode::new("memory"))
//!     .observer(|event: &Event| println!("{event:?}"))
//!     .build()?;
//! client.mutex("orders/42").lock().await?.release().await;
//! let stats = client.stats();
//! assert_eq!((stats.acquires.granted, stats.leases_held), (1, 0));
//! # Ok(()) }
//! ```
//!
//! With the feature `metrics`, `MetricsObserver` records the events with the `metrics` facade. The
//! page `docs/observability.md` of the repository lists the metrics and says what to alert on.

mod class;
pub(crate) mod counters;
mod deliver;
mod event;
#[cfg(feature = "metrics")]
mod metrics;
mod node_watch;
pub(crate) mod sight;
mod stats;

#[cfg(feature = "metrics")]
pub use self::metrics::MetricsObserver;
pub use event::{
    Acquire, End, Ended, Event, HandOver, NodeChange, NodeEvent, Outcome, Renewal, Request, Waiting,
};
pub use stats::{Acquires, Ends, HandOvers, Losses, NodeState, NodeStats, Renewals, Stats};

pub(crate) use event::Renews;
#[cfg(any(feature = "redis", feature = "planted-bugs"))]
pub(crate) use node_watch::{Found, NodeWatch};
pub(crate) use sight::Sight;

/// Receives what happens to the locks of a client. See
/// [`Builder::observer`](crate::Builder::observer). A closure that takes `&Event` is an observer.
///
/// # How it is called
/// - **On the task that makes the call**: [`Event::Waiting`], [`Event::Acquire`], and the
///   [`Event::Ended`] of a lease that was released, dropped or detached. At an [`Event::Acquire`],
///   the lease exists. At an [`Event::Ended`], the release was sent; that of a lease that was
///   dropped may still be queued for a background task.
/// - **By a task of its own**, through a queue: everything that the client's background tasks
///   notice, which is renewals, lost leases, and what happens to nodes. So a slow observer does not
///   delay renewals. It must return, though: a task that blocks for long keeps a thread of the
///   runtime, and the only one of a runtime with one thread.
/// - Never while the client holds one of its locks: an observer may use the client.
///
/// # What an observer cannot break
/// - **It panics**: the panic is caught and counted ([`Stats::observer_panics`]). The lock, the lease
///   and the other observers are not affected.
/// - **It is slow**: the call that it observes returns later, by as much. The queue has room for
///   1024 [`Event::Request`] and [`Event::Renewal`]. More of these are dropped and counted
///   ([`Stats::events_dropped`]). No other event is dropped.
/// - **The runtime ends**: of the events that go through the queue, it still receives the ends of
///   leases. Those of calls are delivered as before, for example the [`Event::Acquire`] of a call
///   that fails because the runtime has ended.
///
/// ```
/// use leasehold::observe::{Event, Observer};
///
/// /// Reports leases that were nearly lost.
/// struct Slack;
///
/// impl Observer for Slack {
///     fn event(&self, event: &Event) {
///         if let Event::Renewal(renewal) = event
///             && renewal.slack < renewal.ttl / 4
///             && !renewal.confirms_hand_over
///         {
///             eprintln!("{}: only {:?} left", renewal.name, renewal.slack);
///         }
///     }
/// }
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Receives an event. It should return quickly, and never block.
    fn event(&self, event: &Event);

    /// Whether the observer also receives [`Event::Request`], of which there is one for each request
    /// to each node. Asked once, when the client is created. Default: `false`.
    fn wants_requests(&self) -> bool {
        false
    }
}

impl<F> Observer for F
where
    F: Fn(&Event) + Send + Sync + 'static,
{
    fn event(&self, event: &Event) {
        self(event);
    }
}
