//! What a node answers.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::base::holder::Holder;

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
    /// No vote yet: the node restarted or was promoted not long ago and may have forgotten locks,
    /// or its set of nodes took the place of another whose leases may still run.
    Quarantined {
        /// How long it has had its memory.
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
    /// The TLS handshake failed: one side does not accept the other's certificate, or the
    /// server does not use TLS.
    #[error("TLS handshake failed: {why}")]
    Tls {
        /// What was wrong.
        why: String,
    },
    /// The server has no database with the index in the URL.
    #[error("the server has no database with this index")]
    NoSuchDatabase,
    /// The key holds something that is not a lock.
    #[error("the key holds a value of another type, not a lock; use another name or a prefix")]
    WrongType,
    /// The server is a replica: for the time of a failover, or because it was named instead of its
    /// master.
    #[error("the server is a replica now (READONLY) and grants nothing; name its master")]
    ReadOnly,
    /// The server is loading its data.
    #[error("the server is loading its data")]
    Loading,
    /// The server cannot do what it is asked at the moment (`BUSY`, `MASTERDOWN`, `CLUSTERDOWN`,
    /// `TRYAGAIN`, `NOREPLICAS`).
    #[error("the server cannot do this now: {why}")]
    Unavailable {
        /// Its message.
        why: String,
    },
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
    /// Two nodes are the same server, which would vote twice.
    #[error("{one} and {other} are the same server; each node must be a server of its own")]
    SameServer {
        /// The label of one node.
        one: String,
        /// The label of the other.
        other: String,
    },
    /// The servers have another set of nodes on record than this client's, so that two
    /// majorities need not share a server.
    #[error(
        "{node} belongs to the nodes [{theirs}], and this client's are [{ours}]; name the same nodes \
         in all clients, use another prefix, or record the new list with `leasehold init --replace`"
    )]
    OtherNodes {
        /// The server that has other nodes on record.
        node: String,
        /// The nodes on record.
        theirs: String,
        /// This client's nodes.
        ours: String,
    },
    /// Clients with other constants use the node. They must agree, or the fence
    /// and the guard do not protect.
    #[error(
        "other clients use it with {theirs}, this one with {ours}; give all clients the same \
         values, use another prefix, or change them for all with `leasehold init --replace`"
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
    ///
    /// A [missing permission](Self::NoPermission) does not say so. A server checks it for each
    /// command of a script, and an earlier command may have written something.
    #[must_use]
    pub fn had_no_effect(&self) -> bool {
        match self {
            Self::NoPermission { .. } => false,
            Self::Unreachable { .. } | Self::OutOfMemory | Self::CannotPersist { .. } => true,
            error => error.is_permanent() || error.is_passing(),
        }
    }

    /// Whether the server says that it cannot serve requests at the moment: while it is a replica,
    /// starts, or is busy. Nothing has to be changed for this to end, and nothing that was known
    /// of the server need be so after it.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::ReadOnly | Self::Loading | Self::Unavailable { .. }
        )
    }

    /// Whether trying again cannot help until somebody changes something.
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

    /// A server checks permissions for each command of a script, after others have run.
    #[test]
    fn a_missing_permission_may_have_left_something() {
        let error = NodeError::NoPermission { why: why() };
        assert!(error.is_permanent() && !error.had_no_effect());
    }

    #[test]
    fn a_passing_state_is_tried_again() {
        for error in [
            NodeError::ReadOnly,
            NodeError::Loading,
            NodeError::Unavailable { why: why() },
        ] {
            assert!(error.is_passing() && !error.is_permanent() && error.had_no_effect());
        }
    }
}
