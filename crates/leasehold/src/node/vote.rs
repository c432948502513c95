//! What a node answers.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::base::holder::Holder;

/// The vote of a node on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vote {
    /// `Acquire` and `Extend`: the claim holds the lock for one TTL from now. `Wait`: the claim
    /// holds the lock since its turn came, for [`HANDED_OVER`](super::HANDED_OVER) from then.
    Granted,
    /// `Release`: the claim does not hold the lock any more.
    Released {
        /// Whether the claim held the lock until now.
        held: bool,
    },
    /// Another claim holds the lock.
    Held {
        /// The holder.
        holder: Holder,
        /// The time until the lock expires; `None` if it has no TTL.
        remaining: Option<Duration>,
        /// The effective fence.
        fence: u64,
        /// The node's clock, in µs since 1970.
        now: u64,
        /// `Wait`: how many waiters are ahead of the claim, counted up to a limit; `None` if the
        /// claim does not wait in line.
        place: Option<u32>,
    },
    /// `Wait`: the lock is free and the claim is first in line. It should send
    /// [ACQUIRE](super::Verb::Acquire).
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
    /// `Extend`: the node granted a newer token, or lost its memory since it granted the claim.
    Lost {
        /// The effective fence.
        fence: u64,
    },
    /// The node does not vote yet: it restarted or was promoted recently and may have lost locks,
    /// or its set of nodes replaced another set whose leases may still be valid.
    Quarantined {
        /// How long the node has had its memory.
        up: Duration,
        /// The time until the node votes again.
        remaining: Duration,
    },
}

impl fmt::Display for Vote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted => f.write_str("granted"),
            Self::Released { held: true } => f.write_str("released"),
            Self::Released { held: false } => f.write_str("not held"),
            Self::Held {
                holder,
                remaining: Some(left),
                ..
            } => write!(f, "held by {holder}, expires in {left:.1?}"),
            Self::Held { holder, .. } => write!(f, "held by {holder}, without a TTL"),
            Self::YourTurn => f.write_str("free, and this claim is first in line"),
            Self::Stale { fence, .. } => write!(f, "granted a newer token ({fence})"),
            Self::Ahead { now, .. } => {
                write!(f, "the token is too far ahead of the node's clock ({now})")
            }
            Self::Lost { fence } => write!(f, "the lease has ended (fence {fence})"),
            Self::Quarantined { up, remaining } => write!(
                f,
                "up for {:.0?}, votes again in {:.1?}",
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
        /// The time limit.
        after: Duration,
    },
    /// The client is not connected to the node. The request was not sent.
    #[error("not connected: {why}")]
    Unreachable {
        /// Why the last attempt to connect failed.
        why: String,
    },
    /// The connection broke before the request was answered.
    #[error("disconnected: {why}")]
    Disconnected {
        /// Why it broke.
        why: String,
    },
    /// The TLS handshake failed: one side does not accept the other's certificate, or the
    /// server does not use TLS.
    #[error("TLS handshake failed: {why}")]
    Tls {
        /// What failed.
        why: String,
    },
    /// The server has no database with the index in the URL.
    #[error("the server has no database with this index")]
    NoSuchDatabase,
    /// The key contains something that is not a lock.
    #[error("the key contains a value of another type, not a lock; use another name or a prefix")]
    WrongType,
    /// The server is a replica: during a failover, or because the client names it instead of its
    /// master.
    #[error(
        "the server is a replica now (READONLY) and grants no locks; use the URL of its master"
    )]
    ReadOnly,
    /// The server is loading its data.
    #[error("the server is loading its data")]
    Loading,
    /// The server cannot process requests at the moment (`BUSY`, `MASTERDOWN`, `CLUSTERDOWN`,
    /// `TRYAGAIN`, `NOREPLICAS`).
    #[error("the server cannot process requests now: {why}")]
    Unavailable {
        /// The server's message.
        why: String,
    },
    /// The server is out of memory.
    #[error("the server is out of memory and refuses writes; raise its maxmemory")]
    OutOfMemory,
    /// The server or store refuses writes because it cannot persist them.
    #[error("cannot write to disk and refuses writes: {why}")]
    CannotPersist {
        /// The server's message.
        why: String,
    },
    /// The store cannot be used: it is damaged, not writable, or has another format version.
    #[error("{why}")]
    Unusable {
        /// What is wrong, and what to do.
        why: String,
    },
    /// The user does not have a permission that is needed.
    #[error("permission denied (NOPERM): {why}")]
    NoPermission {
        /// The server's message.
        why: String,
    },
    /// The user name or password is wrong, or missing.
    #[error("authentication failed: wrong or missing user name or password")]
    WrongPassword,
    /// The server is a member of a Redis Cluster and does not serve this key.
    #[error("the server is part of a Redis Cluster ({why}); use an independent server as a node")]
    Clustered {
        /// The server's message.
        why: String,
    },
    /// Two nodes are the same server, which would vote twice.
    #[error("{one} and {other} are the same server; each node must be an independent server")]
    SameServer {
        /// The label of one node.
        one: String,
        /// The label of the other.
        other: String,
    },
    /// The servers have a set of nodes on record that is not this client's set. Majorities of
    /// different sets need not have a server in common.
    #[error(
        "the set of nodes on record is [{theirs}], and this client's nodes are [{ours}]; use the same \
         nodes in all clients, use another prefix, or record the new set with \
         `leasehold init --replace`"
    )]
    OtherNodes {
        /// The server that has the other set on record.
        node: String,
        /// The nodes on record.
        theirs: String,
        /// This client's nodes.
        ours: String,
    },
    /// Other clients use the node with other constants. All clients must use the same ones, or
    /// fences and the restart guard do not protect.
    #[error(
        "other clients use {theirs}, this client uses {ours}; use the same values in all clients, \
         use another prefix, or change the values for all with `leasehold init --replace`"
    )]
    OtherConstants {
        /// The constants on record.
        theirs: String,
        /// The constants of this client.
        ours: String,
    },
    /// A reply that does not belong to the request, or that is malformed.
    #[error("unexpected reply: {why}")]
    Protocol {
        /// What is wrong with it.
        why: String,
    },
    /// Any other error that the server or store reports.
    #[error("{why}")]
    Refused {
        /// The server's message.
        why: String,
    },
    /// The node dropped the call without answering it.
    #[error("the node did not answer")]
    Unanswered,
}

impl NodeError {
    /// Whether the request certainly had no effect on the node: it was not sent, or the node
    /// refused it before it wrote anything.
    ///
    /// A [missing permission](Self::NoPermission) is not such an error. A server checks permissions
    /// for each command of a script, and an earlier command may have written something.
    #[must_use]
    pub fn had_no_effect(&self) -> bool {
        match self {
            Self::NoPermission { .. } => false,
            Self::Unreachable { .. } | Self::OutOfMemory | Self::CannotPersist { .. } => true,
            error => error.is_permanent() || error.is_passing(),
        }
    }

    /// Whether the server cannot process requests at the moment, because it is a replica, is
    /// starting, or is busy. This ends without a change by the operator. What the client knew about
    /// the server before may be outdated afterwards.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::ReadOnly | Self::Loading | Self::Unavailable { .. }
        )
    }

    /// Whether a retry cannot succeed until the configuration of the client or of the node has
    /// changed.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        matches!(
            self,
            Self::WrongType
                | Self::Tls { .. }
                | Self::NoSuchDatabase
                | Self::Unusable { .. }
                | Self::NoPermission { .. }
                | Self::WrongPassword
                | Self::Clustered { .. }
                | Self::SameServer { .. }
                | Self::OtherNodes { .. }
                | Self::OtherConstants { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why() -> String {
        String::new()
    }

    /// A server checks permissions for each command of a script, after earlier commands have run.
    #[test]
    fn a_missing_permission_may_have_had_an_effect() {
        let error = NodeError::NoPermission { why: why() };
        assert!(error.is_permanent() && !error.had_no_effect());
    }

    #[test]
    fn a_passing_state_is_retried() {
        for error in [
            NodeError::ReadOnly,
            NodeError::Loading,
            NodeError::Unavailable { why: why() },
        ] {
            assert!(error.is_passing() && !error.is_permanent() && error.had_no_effect());
        }
    }
}
