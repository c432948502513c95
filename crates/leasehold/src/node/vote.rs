//! What a node answers.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::holder::Holder;

/// A node's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vote {
    /// `Acquire` and `Extend`: the lock is the claim's for a TTL from now. `Wait`: it is the
    /// claim's since its turn came, for [`HANDED_OVER`](super::HANDED_OVER) from then.
    Granted,
    /// `Release`: it is not the claim's any more.
    Released {
        /// Whether it was until now.
        held: bool,
    },
    /// Another owner has the lock.
    Held {
        /// Who.
        holder: Holder,
        /// For how long yet; `None` if the lock has no TTL.
        remaining: Option<Duration>,
        /// The effective fence.
        fence: u64,
        /// The node's clock, in µs since 1970.
        now: u64,
        /// `Wait`: how many stand in line before this one, as far as was worth counting;
        /// `None` if it does not stand there.
        place: Option<u32>,
    },
    /// `Wait`: the lock is free and reserved for the claim, which may [ask](super::Verb::Acquire)
    /// for it.
    YourTurn,
    /// `Acquire` and `Wait`: the token is not above the fence.
    Stale {
        /// The effective fence.
        fence: u64,
        /// The node's clock, in µs since 1970.
        now: u64,
    },
    /// The token is further ahead of the node's clock than the allowed skew.
    Ahead {
        /// The effective fence.
        fence: u64,
        /// The node's clock, in µs since 1970.
        now: u64,
    },
    /// `Extend`: a newer token was granted here, or the node lost its memory since.
    Lost {
        /// The effective fence.
        fence: u64,
    },
    /// The node restarted not long ago and may have forgotten locks: no vote yet.
    Quarantined {
        /// How long it has been up.
        up: Duration,
        /// When it votes again.
        remaining: Duration,
    },
}

impl fmt::Display for Vote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted => f.write_str("granted"),
            Self::Released { held: true } => f.write_str("released"),
            Self::Released { held: false } => f.write_str("was not held here"),
            Self::Held {
                holder,
                remaining: Some(left),
                ..
            } => write!(f, "held by {holder}, {left:.1?} left"),
            Self::Held { holder, .. } => write!(f, "held by {holder}, without a TTL"),
            Self::YourTurn => f.write_str("free, and reserved for this one"),
            Self::Stale { fence, .. } => write!(f, "a newer token was granted ({fence})"),
            Self::Ahead { now, .. } => write!(f, "its clock is far behind the token ({now})"),
            Self::Lost { fence } => write!(f, "the lease is over here (fence {fence})"),
            Self::Quarantined { up, remaining } => write!(
                f,
                "restarted {:.0?} ago, votes again in {:.1?}",
                Duration::from_secs(up.as_secs()),
                remaining
            ),
        }
    }
}

/// Why a node did not vote.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NodeError {
    /// No answer in time. The request may still take effect.
    #[error("no answer within {after:?}")]
    TimedOut {
        /// The time it had.
        after: Duration,
    },
    /// The node cannot be reached; the request was not sent.
    #[error("unreachable: {why}")]
    Unreachable {
        /// What the last try to connect met.
        why: String,
    },
    /// The connection broke while the request was under way.
    #[error("disconnected: {why}")]
    Disconnected {
        /// What broke it.
        why: String,
    },
    /// The key holds something that is not a lock.
    #[error("the key holds a value of another type, not a lock; use another name or a prefix")]
    WrongType,
    /// The server is a replica.
    #[error("the server is read-only (a replica?); name its master")]
    ReadOnly,
    /// The server is loading its data.
    #[error("the server is loading its data")]
    Loading,
    /// The server is out of memory.
    #[error("the server is out of memory and refuses writes; raise its maxmemory")]
    OutOfMemory,
    /// The server or store refuses writes because it cannot persist them.
    #[error("it cannot write to disk and refuses writes: {why}")]
    CannotPersist {
        /// Its message.
        why: String,
    },
    /// A store that cannot be used as it is: damaged, not writable, or of a newer version.
    #[error("{why}")]
    Unusable {
        /// What is wrong, and what to do.
        why: String,
    },
    /// The user lacks a permission.
    #[error("permission denied (NOPERM): {why}")]
    NoPermission {
        /// The server's message.
        why: String,
    },
    /// The user name or password is wrong, or missing.
    #[error("authentication failed: wrong or missing user name or password")]
    WrongPassword,
    /// The server is a member of a Redis Cluster and does not serve this key.
    #[error("the server is part of a Redis Cluster ({why}); a node must be a server of its own")]
    Clustered {
        /// Its message.
        why: String,
    },
    /// The same server is in the list of nodes twice, so it would vote twice.
    #[error("the same server as node {other}; each node must be a server of its own")]
    SameServer {
        /// The other one's label.
        other: String,
    },
    /// Clients with other constants use the node. They must agree, or the fence
    /// and the guard do not protect.
    #[error(
        "other clients use it with {theirs}, this one with {ours}; give all clients the same \
         values (to change them, stop all clients and delete the key `leasehold:epoch`)"
    )]
    OtherConstants {
        /// What the node has on record.
        theirs: String,
        /// What this client was given.
        ours: String,
    },
    /// A reply that does not belong to the request, or that makes no sense.
    #[error("unexpected reply: {why}")]
    Protocol {
        /// What was wrong with it.
        why: String,
    },
    /// Any other error that the server or store reports.
    #[error("{why}")]
    Refused {
        /// Its message.
        why: String,
    },
    /// The node dropped the call without an answer.
    #[error("the node gave no answer")]
    Unanswered,
}

impl NodeError {
    /// Whether the request certainly left nothing at the node: it was not sent, or it was
    /// refused before anything was written.
    #[must_use]
    pub fn had_no_effect(&self) -> bool {
        self.is_permanent()
            || matches!(
                self,
                Self::Unreachable { .. }
                    | Self::Loading
                    | Self::OutOfMemory
                    | Self::CannotPersist { .. }
            )
    }

    /// Whether trying again cannot help until somebody changes something.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        matches!(
            self,
            Self::WrongType
                | Self::ReadOnly
                | Self::Unusable { .. }
                | Self::NoPermission { .. }
                | Self::WrongPassword
                | Self::Clustered { .. }
                | Self::SameServer { .. }
                | Self::OtherConstants { .. }
        )
    }
}
