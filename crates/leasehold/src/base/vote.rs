//! What a node answers: a vote, or an error. Both are plain values, which errors report.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::base::holder::Holder;

/// The vote of a node on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Vote {
    /// `Acquire` and `Extend`: the claim holds the lock for one TTL from now. `Wait`: the claim
    /// holds the lock since its turn came, for 2 s from then.
    Granted,
    /// `Release`: the claim does not hold the lock any more.
    Released {
        /// Whether the claim held the lock until now.
        held: bool,
    },
    /// Another claim holds the lock. Created with [`Vote::held`].
    #[non_exhaustive]
    Held {
        /// The holder. In a box, because most votes have none.
        holder: Box<Holder>,
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
    /// [ACQUIRE](crate::node::Verb::Acquire).
    YourTurn,
    /// `Wait` for a permit of a semaphore: this permit is free, and the claim is first in line. `Acquire`
    /// of a permit that is held: this permit is free, and there is no line. The client should acquire
    /// this permit.
    Free {
        /// The number of the permit.
        permit: u32,
    },
    /// `Acquire` and `Wait` for a permit: the semaphore has another number of permits.
    OtherPermits {
        /// How many it has.
        permits: u32,
    },
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

impl Vote {
    /// Creates a [`Vote::Held`] of a claim that does not wait in line. `fence` is the effective
    /// fence, and `now` the node's clock in µs since 1970.
    ///
    /// ```
    /// use leasehold::{Holder, node::Vote};
    /// use std::time::Duration;
    ///
    /// let holder = Holder::parse(b"another library's value");
    /// let vote = Vote::held(holder, Some(Duration::from_secs(3)), 41, 1_800_000_000_000_000);
    /// assert!(vote.to_string().ends_with("expires in 3.0s"));
    /// ```
    #[must_use]
    pub fn held(holder: Holder, remaining: Option<Duration>, fence: u64, now: u64) -> Self {
        Self::Held {
            holder: Box::new(holder),
            remaining,
            fence,
            now,
            place: None,
        }
    }

    /// Adds to a [`Vote::Held`] how many waiters are ahead of the claim. Other votes stay as they
    /// are.
    #[must_use]
    pub fn with_place(mut self, ahead: u32) -> Self {
        if let Self::Held { place, .. } = &mut self {
            *place = Some(ahead);
        }
        self
    }

    /// Whether this is a [`Vote::Held`] that names the first in line, which does not hold the lock
    /// yet: while the lock is free for that waiter's turn, the node refuses all others in its name. A
    /// grant makes the token the fence, and a ticket that is not above the fence does not stay in line.
    #[must_use]
    pub fn names_first_in_line(&self) -> bool {
        let Self::Held { holder, fence, .. } = self else {
            return false;
        };
        !holder.kept && holder.token.is_some_and(|token| token > *fence)
    }
}

impl fmt::Display for Vote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted => f.write_str("granted"),
            Self::Released { held: true } => f.write_str("released"),
            Self::Released { held: false } => f.write_str("not held"),
            Self::Held { holder, .. } if self.names_first_in_line() => {
                write!(f, "wanted by {holder}, which is first in line")
            }
            Self::Held {
                holder,
                remaining: Some(left),
                ..
            } => write!(f, "held by {holder}, expires in {left:.1?}"),
            Self::Held { holder, .. } => write!(f, "held by {holder}, without a TTL"),
            Self::YourTurn => f.write_str("free, and this claim is first in line"),
            Self::Free { permit } => {
                write!(f, "permit {permit} is free")
            }
            Self::OtherPermits { permits } => write!(f, "the semaphore has {permits} permits"),
            Self::Stale { fence, .. } => write!(f, "needs a token above {fence}"),
            Self::Ahead { now, .. } => {
                write!(f, "the token is too far ahead of the node's clock ({now})")
            }
            Self::Lost { fence } => write!(f, "the lease has ended (fence {fence})"),
            Self::Quarantined { up, remaining } => write!(
                f,
                "in service for {:.0?}, votes again in {:.1?}",
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
    #[non_exhaustive]
    TimedOut {
        /// The time limit.
        after: Duration,
    },
    /// The client is not connected to the node. The request was not sent.
    #[error("not connected: {why}")]
    #[non_exhaustive]
    Unreachable {
        /// Why the last attempt to connect failed.
        why: String,
    },
    /// The connection broke before the request was answered.
    #[error("disconnected: {why}")]
    #[non_exhaustive]
    Disconnected {
        /// Why it broke.
        why: String,
    },
    /// The TLS handshake failed: one side does not accept the other's certificate, or the
    /// server does not use TLS.
    #[error("TLS handshake failed: {why}")]
    #[non_exhaustive]
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
    /// The node granted the request, and then too few of its replicas acknowledged it in time, so it
    /// does not count. See [`Builder::replicas`](crate::Builder::replicas).
    #[error(
        "granted, but {acked} of {wanted} replicas have acknowledged it{}",
        because(error)
    )]
    #[non_exhaustive]
    NotReplicated {
        /// How many replicas have acknowledged it.
        acked: u32,
        /// How many must.
        wanted: u32,
        /// Why the number could not be found out, if it could not.
        error: Option<Box<NodeError>>,
    },
    /// The server cannot process requests at the moment (`BUSY`, `MASTERDOWN`, `CLUSTERDOWN`,
    /// `TRYAGAIN`, `NOREPLICAS`).
    #[error("the server cannot process requests now: {why}")]
    #[non_exhaustive]
    Unavailable {
        /// The server's message.
        why: String,
    },
    /// The embedded store cannot be used at the moment: another process keeps it locked, or its
    /// file was moved or deleted. The request had no effect.
    #[error("the store cannot be used now: {why}")]
    #[non_exhaustive]
    StoreUnavailable {
        /// Why it cannot be used.
        why: String,
    },
    /// The server is out of memory.
    #[error("the server is out of memory and refuses writes; raise its maxmemory")]
    OutOfMemory,
    /// The server or store refuses writes because it cannot persist them.
    #[error("cannot write to disk and refuses writes: {why}")]
    #[non_exhaustive]
    CannotPersist {
        /// The server's message.
        why: String,
    },
    /// The store cannot be used: it is damaged, not writable, or has another format version.
    #[error("{why}")]
    #[non_exhaustive]
    Unusable {
        /// What is wrong, and what to do.
        why: String,
    },
    /// The user does not have a permission that is needed.
    #[error("permission denied (NOPERM): {why}")]
    #[non_exhaustive]
    NoPermission {
        /// The server's message.
        why: String,
    },
    /// The user name or password is wrong, or missing.
    #[error("authentication failed: wrong or missing user name or password")]
    WrongPassword,
    /// The server is a member of a Redis Cluster and does not serve this key.
    #[error("the server is part of a Redis Cluster ({why}); use an independent server as a node")]
    #[non_exhaustive]
    Clustered {
        /// The server's message.
        why: String,
    },
    /// Two nodes are the same server, which would vote twice.
    #[error("{one} and {other} are the same server; each node must be an independent server")]
    #[non_exhaustive]
    SameServer {
        /// The label of one node.
        one: String,
        /// The label of the other.
        other: String,
    },
    /// The servers have a set of nodes on record that is not this client's set. Majorities of
    /// different sets need not have a server in common.
    #[error(
        "the set of nodes on record at {node} is [{theirs}], and this client's nodes are [{ours}]; use \
         the same nodes in all clients, use another prefix, or record the new set with \
         `leasehold init --replace`"
    )]
    #[non_exhaustive]
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
    #[non_exhaustive]
    OtherConstants {
        /// The constants on record.
        theirs: String,
        /// The constants of this client.
        ours: String,
    },
    /// A reply that does not belong to the request, or that is malformed.
    #[error("unexpected reply: {why}")]
    #[non_exhaustive]
    Protocol {
        /// What is wrong with it.
        why: String,
    },
    /// Any other error that the server or store reports.
    #[error("{why}")]
    #[non_exhaustive]
    Refused {
        /// The server's message.
        why: String,
    },
    /// The client gave the request up before it was sent, because it was cancelled.
    #[error("given up before it was sent")]
    GivenUp,
    /// The node dropped the call without answering it.
    #[error("the node did not answer")]
    Unanswered,
}

/// The end of a sentence that may have a reason.
fn because(error: &Option<Box<NodeError>>) -> String {
    let reason = |error: &NodeError| format!(": {error}");
    error.as_deref().map(reason).unwrap_or_default()
}

impl NodeError {
    /// Creates a [`NodeError::Unreachable`]: the request was not sent.
    ///
    /// ```
    /// use leasehold::node::NodeError;
    ///
    /// let error = NodeError::unreachable("connection refused");
    /// assert_eq!(error.to_string(), "not connected: connection refused");
    /// assert!(error.had_no_effect());
    /// ```
    #[must_use]
    pub fn unreachable(why: impl Into<String>) -> Self {
        let why = why.into();
        Self::Unreachable { why }
    }

    /// Creates a [`NodeError::Disconnected`]: the request was sent and may take effect.
    #[must_use]
    pub fn disconnected(why: impl Into<String>) -> Self {
        let why = why.into();
        Self::Disconnected { why }
    }

    /// Creates a [`NodeError::TimedOut`]: the request was sent and may take effect.
    #[must_use]
    pub fn timed_out(after: Duration) -> Self {
        Self::TimedOut { after }
    }

    /// Creates a [`NodeError::Unavailable`]: the store refused the request, and will accept it
    /// later without a change by the operator.
    #[must_use]
    pub fn unavailable(why: impl Into<String>) -> Self {
        let why = why.into();
        Self::Unavailable { why }
    }

    /// Creates a [`NodeError::Unusable`]: the store refused the request, and will refuse all others
    /// until the operator has changed something.
    #[must_use]
    pub fn unusable(why: impl Into<String>) -> Self {
        let why = why.into();
        Self::Unusable { why }
    }

    /// Creates a [`NodeError::Refused`]: any other error. The request may have taken effect.
    #[must_use]
    pub fn refused(why: impl Into<String>) -> Self {
        let why = why.into();
        Self::Refused { why }
    }

    /// Creates a [`NodeError::Protocol`]: a reply made no sense. The request may have taken effect.
    #[must_use]
    pub fn protocol(why: impl Into<String>) -> Self {
        let why = why.into();
        Self::Protocol { why }
    }

    /// Whether the request certainly had no effect on the node: it was not sent, or the node
    /// refused it before it wrote anything.
    ///
    /// A [missing permission](Self::NoPermission) is not such an error. A server checks permissions
    /// for each command of a script, and an earlier command may have written something.
    #[must_use]
    pub fn had_no_effect(&self) -> bool {
        match self {
            Self::NoPermission { .. } | Self::NotReplicated { .. } => false,
            Self::Unreachable { .. }
            | Self::GivenUp
            | Self::StoreUnavailable { .. }
            | Self::OutOfMemory
            | Self::CannotPersist { .. } => true,
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
        if let Self::NotReplicated { error, .. } = self {
            return error.as_ref().is_some_and(|error| error.is_permanent());
        }
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
