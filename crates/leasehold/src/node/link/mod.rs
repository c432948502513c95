//! The link to a Redis server, without its transport: what is sent when, over which connection, and
//! what becomes of a call when the connection breaks.
//!
//! A [`Transport`] connects, completes handshakes, writes requests and reads replies. In production
//! that is a socket and Lua scripts (`node/redis`); in the simulator it is a simulated network. All
//! else is here: which calls share a request and in which order (`plan.rs`), which releases need not
//! raise the fence, what is sent again over the next connection, time-outs, the restart guard, and
//! the pauses between attempts to connect.

mod handshake;
mod job;
mod outcome;
mod plan;
mod serving;
mod status;
mod task;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use tokio::sync::mpsc;

use super::{Call, NodeError};
use crate::base::backoff::Backoff;
use crate::base::clock::{Clock, Moment};
use crate::observe::NodeWatch;
use status::Status;

pub use handshake::{Handshake, Memory, Quarantine};
pub use job::Job;
#[cfg(test)]
pub(crate) use job::tests as testing;
pub use outcome::{Aftermath, LineLook, Reply};
pub use plan::{Native, Unit};
#[cfg(feature = "planted-bugs")]
pub use task::{FIRST_RETRY, LONGEST_RETRY};

/// The replies to what was sent in one write.
pub type Sent<R> = Pin<Box<dyn Future<Output = Result<R, NodeError>> + Send>>;

/// What carries requests to one server, and replies back.
///
/// Contract: the server executes the requests of a connection in the order in which
/// [`send`](Self::send) was called, and replies in the same order. It may execute a request after
/// the connection was dropped, but never after a later request of the same connection. That a
/// release may be a plain compare-and-delete depends on this; see `plan::mark_plain_deletes`.
pub trait Transport: Send + Sync + 'static {
    /// A connection that has completed its handshake. Dropping it closes it.
    type Connection: Send;
    /// The replies to the units of one write.
    type Replies: Send + 'static;

    /// The name of the server in logs.
    fn label(&self) -> &str;

    /// Connects and completes the handshake, within a time limit.
    ///
    /// Cancel safety: the connection is closed.
    fn connect(
        &self,
    ) -> impl Future<Output = Result<(Self::Connection, Handshake), NodeError>> + Send;

    /// Completes another handshake over the same connection.
    fn renew(
        &self,
        connection: &mut Self::Connection,
    ) -> impl Future<Output = Result<Handshake, NodeError>> + Send;

    /// Whether the server may still vote, after what is known of the client's other nodes.
    fn is_admitted(&self, connection: &mut Self::Connection) -> bool {
        let _ = connection;
        true
    }

    /// Sends units in one write. No acquire of a token above `cap` may rely on the server's clock
    /// being far enough. If `probe` is a time (now), the server is asked for its identity after
    /// all units.
    ///
    /// Requests leave in the order of these calls, at the latest when the future of one of them, or the
    /// connection, is polled.
    fn send(
        &self,
        connection: &mut Self::Connection,
        units: &[Unit],
        cap: u64,
        probe: Option<Moment>,
    ) -> Sent<Self::Replies>;

    /// Lets a connection that waits for no reply work: it may have to notify waiters.
    fn poll(&self, connection: &mut Self::Connection, cx: &mut Context<'_>) {
        let _ = (connection, cx);
    }

    /// Checks that there is a reply for each request, and that the server's identity, if it was
    /// asked for at `probe`, is that of the handshake. Otherwise no reply counts.
    fn check(
        &self,
        connection: &Self::Connection,
        units: &[Unit],
        replies: &mut Self::Replies,
        probe: Option<Moment>,
    ) -> Result<(), NodeError>;

    /// Passes the reply to each job to [`Aftermath::take`].
    fn read(
        &self,
        connection: &Self::Connection,
        units: Vec<Unit>,
        replies: Self::Replies,
        after: &mut Aftermath,
    );
}

/// A link to one server. Its task ends when this is dropped.
#[derive(Debug)]
pub struct Link {
    calls: mpsc::UnboundedSender<Call>,
    status: Arc<Status>,
}

impl Link {
    /// Starts the task of a link. It connects when it is first needed. It asks the server for its
    /// identity again when `verify_after` has passed. `watch` learns of the server's state.
    pub(crate) fn start<T: Transport>(
        transport: T,
        clock: Clock,
        verify_after: Duration,
        seed: u64,
        watch: NodeWatch,
    ) -> Self {
        let (calls, inbox) = mpsc::unbounded_channel();
        let status = Arc::new(Status::default());
        let task = task::Task {
            transport,
            clock,
            verify_after,
            status: Arc::clone(&status),
            inbox,
            waiting: VecDeque::new(),
            failures: 0,
            backoff: Backoff::new(task::RETRIES, seed),
            watch,
        };
        tokio::spawn(task.run());
        Self { calls, status }
    }

    /// Starts the task of a link in the simulator.
    #[cfg(feature = "planted-bugs")]
    pub fn simulated<T: Transport>(
        transport: T,
        source: Arc<dyn crate::TimeSource>,
        verify_after: Duration,
        seed: u64,
    ) -> Self {
        let clock = Clock::from_source(source);
        Self::start(transport, clock, verify_after, seed, NodeWatch::default())
    }

    /// Accepts a call: [`Node::submit`](super::Node::submit).
    pub fn submit(&self, call: Call) {
        if self.status.is_away() {
            // Directly: a dead node costs next to nothing.
            return call.answer(Err(self.status.excuse()));
        }
        // If the task is gone with its runtime, the call is dropped: unanswered.
        let _ = self.calls.send(call);
    }

    /// Starts to connect: [`Node::connect`](super::Node::connect).
    pub fn connect(&self) {
        self.status.needed.notify_one();
    }

    /// Whether the server can be asked: [`Node::status`](super::Node::status).
    pub fn status(&self) -> Option<Result<(), NodeError>> {
        self.status.get()
    }

    /// The server's floor: [`Node::floor`](super::Node::floor).
    pub fn floor(&self) -> u64 {
        self.status.floor()
    }
}
