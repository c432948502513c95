//! The events that an observer receives.

use std::sync::Arc;
use std::time::Duration;

use crate::base::error::{Error, Loss};
use crate::base::mode::Mode;
use crate::base::name::Name;
use crate::base::vote::NodeError;
use crate::client::options::Goal;
use crate::node::Verb;

/// Something that happened to a lock, a lease or a node.
///
/// Later versions may add kinds of events, and fields to each of them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A call to acquire a lock begins to wait, because the lock is taken.
    Waiting(Waiting),
    /// A call to acquire a lock has ended.
    Acquire(Acquire),
    /// A renewal of a lease has succeeded or failed.
    Renewal(Renewal),
    /// A lease has ended.
    Ended(Ended),
    /// Something happened to a Redis node. Others report nothing:
    /// [`Stats::nodes`](super::Stats::nodes) asks them.
    Node(NodeEvent),
    /// A node answered a request, or failed to. Only for observers that [want
    /// requests](super::Observer::wants_requests).
    Request(Request),
}

/// A call that begins to wait. Each is followed by an [`Acquire`] of a call that [did
/// wait](Acquire::did_wait). Calls that never wait have none.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Waiting {
    /// The lock's name, without the client's prefix.
    pub name: Name,
    /// The [class](crate::Options::class) of the name.
    pub class: Arc<str>,
}

/// The end of a call to acquire a lock.
///
/// Calls for several locks or permits have one of these for each attempt at each of them. A call for
/// several permits ([`Semaphore::acquire_many`](crate::Semaphore::acquire_many)) also has one for the
/// lock that it holds while it collects them, under the semaphore's name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Acquire {
    /// The lock's name, without the client's prefix.
    pub name: Name,
    /// The [class](crate::Options::class) of the name.
    pub class: Arc<str>,
    /// How the call wanted to hold the lock.
    pub mode: Mode,
    /// How the call ended.
    pub outcome: Outcome,
    /// The token of the lease, if there is one.
    pub token: Option<u64>,
    /// How long the call took.
    pub waited: Duration,
    /// Whether the call found the lock taken.
    pub contended: bool,
    /// Whether the call waited, because it found the lock taken: there was an [`Event::Waiting`].
    pub did_wait: bool,
    /// Who handed the lease over to the call, if it was handed over.
    pub hand_over: Option<HandOver>,
}

/// How a call to acquire a lock ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// With a lease.
    Granted,
    /// [`Error::Held`]: the lock is taken, and the call did not wait, or has made all its
    /// [attempts](crate::Options::attempts).
    Held,
    /// With the stored result of a [`Once`](crate::Once), so that there is nothing to do.
    Result,
    /// [`Error::TimedOut`]: the lock was taken for as long as the call waited.
    TimedOut,
    /// [`Error::NoMajority`]: too few nodes answered.
    NoMajority,
    /// The future of the call was dropped.
    Cancelled,
    /// Another error: invalid options, or a client that was shut down.
    Failed,
}

impl Outcome {
    /// How a call with this goal ended with an error.
    pub(crate) fn of_error(error: &Error, goal: Goal) -> Self {
        match error {
            Error::Held(refusal) | Error::TimedOut { refusal, .. }
                if goal == Goal::LockOrResult && refusal.result().is_some() =>
            {
                Self::Result
            }
            Error::Held(_) => Self::Held,
            Error::TimedOut { .. } => Self::TimedOut,
            Error::NoMajority(_) => Self::NoMajority,
            _ => Self::Failed,
        }
    }

    /// Returns the outcome as the value of a label: `granted`, `held`, `result`, `timeout`,
    /// `no_majority`, `cancelled` or `error`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Held => "held",
            Self::Result => "result",
            Self::TimedOut => "timeout",
            Self::NoMajority => "no_majority",
            Self::Cancelled => "cancelled",
            Self::Failed => "error",
        }
    }
}

/// Who handed a lease over to a call that waited for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HandOver {
    /// Another task of this client passed its claim on. No request was sent.
    Local,
    /// The nodes granted the lock to the first in line, in the same step as the release.
    Node,
}

impl HandOver {
    /// Returns the value of a label: `local` or `node`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Node => "node",
        }
    }
}

/// A renewal of a lease.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Renewal {
    /// The lock's name, without the client's prefix.
    pub name: Name,
    /// The [class](crate::Options::class) of the name.
    pub class: Arc<str>,
    /// The token of the lease.
    pub token: u64,
    /// Whether a majority of nodes renewed the lease. If not, the client tries again until the
    /// deadline of the lease.
    pub ok: bool,
    /// How much of the lease was left when the renewal ended, before it moved the deadline. The
    /// less is left, the closer the lease was to being lost. Usually about two thirds of the TTL. Zero
    /// if the lease was lost before the renewal ended: then this event may come after the
    /// [`Event::Ended`].
    pub slack: Duration,
    /// The TTL of the lease.
    pub ttl: Duration,
    /// Whether nodes handed the lease over, and no renewal before this one succeeded. Such a lease
    /// begins with at most 2 s, so that little slack is normal.
    pub confirms_hand_over: bool,
}

/// The end of a lease.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Ended {
    /// The lock's name, without the client's prefix.
    pub name: Name,
    /// The [class](crate::Options::class) of the name.
    pub class: Arc<str>,
    /// The token of the lease.
    pub token: u64,
    /// How the lease ended.
    pub end: End,
    /// Why the lease was lost, if it was. Then `end` is [`End::Lost`], [`End::Broken`] or
    /// [`End::Expired`].
    pub loss: Option<Loss>,
    /// How long the lease was held.
    pub held: Duration,
}

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum End {
    /// It was released.
    Released,
    /// It was lost: it could not be renewed in time, another client has the lock, or the runtime
    /// ended.
    Lost,
    /// Its guard was dropped, which releases it.
    Dropped,
    /// Another client broke the lock.
    Broken,
    /// Its time was over: renewal is off, or it was held for
    /// [`max_hold`](crate::Options::max_hold).
    Expired,
    /// It was [detached](crate::Lease::detach): it goes on without this client.
    Detached,
}

impl End {
    /// Returns the value of a label: `released`, `lost`, `dropped`, `broken`, `expired` or
    /// `detached`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Lost => "lost",
            Self::Dropped => "dropped",
            Self::Broken => "broken",
            Self::Expired => "expired",
            Self::Detached => "detached",
        }
    }

    /// How a lease ended that was lost for this reason.
    pub(crate) fn of_loss(loss: Loss, renews: Renews) -> Self {
        match (loss, renews) {
            (Loss::Broken, _) => Self::Broken,
            (Loss::MaxHold, _) | (Loss::NotRenewed, Renews::Never) => Self::Expired,
            _ => Self::Lost,
        }
    }
}

/// Whether a client renews a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renews {
    InTime,
    Never,
}

/// Returns the value of a label for a reason: `not_renewed`, `taken_away`, `broken`, `max_hold` or
/// `runtime_ended`.
#[cfg(feature = "metrics")]
pub(crate) fn loss_as_str(loss: Loss) -> &'static str {
    match loss {
        Loss::NotRenewed => "not_renewed",
        Loss::TakenAway => "taken_away",
        Loss::Broken => "broken",
        Loss::MaxHold => "max_hold",
        Loss::RuntimeEnded => "runtime_ended",
    }
}

/// Something that happened to a node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeEvent {
    /// The node, without credentials.
    pub node: Arc<str>,
    /// What happened.
    pub change: NodeChange,
    /// How many more nodes may fail until there is no majority. Negative if there is none now. See
    /// [`Stats::quorum_margin`](super::Stats::quorum_margin).
    pub quorum_margin: i64,
}

/// What happened to a node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NodeChange {
    /// The client has a new connection.
    #[non_exhaustive]
    Connected {
        /// Whether there was a connection before.
        again: bool,
        /// By how many microseconds the node's clock is ahead of this client's wall clock. At most
        /// half of a round trip too much or too little.
        clock_offset_us: i64,
    },
    /// The node can be asked, and could not be asked before. Once per change.
    Up,
    /// The node cannot be asked any more. Once per change, not for every attempt to connect.
    #[non_exhaustive]
    Down {
        /// Why.
        why: NodeError,
    },
    /// The node has another memory than before: it restarted or was flushed, or another server
    /// answers.
    Epoch,
    /// The node does not vote for this time, because it may have lost locks. Again if the time gets
    /// longer.
    #[non_exhaustive]
    Quarantined {
        /// For how long.
        left: Duration,
    },
    /// The node votes again.
    QuarantineOver,
    /// Fewer replicas acknowledge locks than [`Builder::replicas`](crate::Builder::replicas) or
    /// `prefer_replicas` asks for. Once per change.
    #[non_exhaustive]
    TooFewReplicas {
        /// How many acknowledge them; `None` if that is not known.
        acked: Option<u32>,
        /// How many should.
        wanted: u32,
    },
    /// Enough replicas acknowledge locks again.
    EnoughReplicas,
}

/// A request to a node, and its answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The index of the node, in the order in which they were added to the client.
    pub index: usize,
    /// The node, without credentials.
    pub node: Arc<str>,
    /// What was requested.
    pub verb: Verb,
    /// How long the answer took. Near zero if the request was not sent, because the node is known to be
    /// down.
    pub took: Duration,
    /// Why there was no answer.
    pub error: Option<NodeError>,
}
