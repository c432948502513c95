//! Errors. Five outcomes are kept apart: held by another client, timed out while waiting, no
//! majority, lost while held, and invalid input. Errors about nodes contain the answer of each
//! node. No error contains a secret.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::base::holder::{Holder, MAX_LABEL};
use crate::base::name::Name;
use crate::base::vote::{NodeError, Vote};

/// Why an operation failed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// Another client holds the lock, and the options say not to wait
    /// ([`Wait::No`](crate::Wait::No)) or to stop after a number of attempts
    /// ([`Options::attempts`](crate::Options::attempts)).
    #[error("{}{}", .0.gave_up(), .0.held())]
    Held(Box<Refusal>),
    /// Another client held the lock until the time to wait was over.
    #[error("timed out after {waited:?}: {}", .refusal.held())]
    #[non_exhaustive]
    TimedOut {
        /// How long the call waited.
        waited: Duration,
        /// What the nodes answered to the last attempt.
        refusal: Box<Refusal>,
    },
    /// Too few nodes voted for a majority. This is an outage, not contention.
    #[error("{}{}", .0.gave_up(), .0.no_majority())]
    NoMajority(Box<Refusal>),
    /// The lease was lost while it was held: its deadline passed without a renewal, or a majority
    /// of nodes answered that it has ended.
    #[error("the lease on `{name}` (token {token}) was lost: {why}{}", nodes_text(.nodes))]
    #[non_exhaustive]
    Lost {
        /// The lock's name.
        name: Name,
        /// The token of the lease that was lost.
        token: u64,
        /// Why it was lost.
        why: Loss,
        /// What each node answered to the last renewal. Empty if there was no renewal.
        nodes: Vec<NodeReport>,
    },
    /// An invalid argument, option or URL, or a node that refuses this client permanently. No lock
    /// was requested.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The client was shut down.
    #[error("the client was shut down")]
    ShutDown,
    /// The `tokio` runtime on which the client was created has shut down, and with it the tasks
    /// that talk to the nodes and renew leases.
    #[error(
        "the runtime that this client was created on has shut down; create the client inside \
         the runtime that uses it"
    )]
    RuntimeEnded,
}

impl Error {
    /// Returns what each node answered. Empty for errors that are not about nodes.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, Error, Wait};
    ///
    /// let client = Client::in_memory();
    /// let mutex = client.mutex("report");
    /// let _held = mutex.lock().await?;
    /// let error = mutex.with_options(|o| o.wait(Wait::No)).lock().await.unwrap_err();
    /// assert!(matches!(error, Error::Held(_)));
    /// assert_eq!(error.nodes().len(), 1);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn nodes(&self) -> &[NodeReport] {
        match self {
            Self::Held(refusal) | Self::NoMajority(refusal) | Self::TimedOut { refusal, .. } => {
                &refusal.nodes
            }
            Self::Lost { nodes, .. } => nodes,
            Self::Invalid(_) | Self::ShutDown | Self::RuntimeEnded => &[],
        }
    }
}

impl Error {
    /// Returns the holder of the lock, as reported by the first node that named one.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// use leasehold::Wait;
    ///
    /// let mutex = client.mutex("report").with_options(|o| o.label("web-1"));
    /// let _held = mutex.lock().await?;
    /// let error = mutex.with_options(|o| o.wait(Wait::No)).lock().await.unwrap_err();
    /// assert!(error.holder().unwrap().to_string().contains("web-1"));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        holder(self.nodes())
    }
}

/// Why a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// Its deadline came, and not enough nodes had confirmed a renewal.
    NotRenewed,
    /// A majority of nodes answered that it has ended: another client has acquired the lock
    /// ([`Error::holder`] says which one), or the nodes lost their memory.
    TakenAway,
    /// A client that does not hold the lease released its lock, and no client has acquired the lock
    /// since: [`break_lock`](crate::Client::break_lock), or a release with its owner value.
    Broken,
    /// It had been held for [`max_hold`](crate::Options::max_hold).
    MaxHold,
    /// The runtime whose task renewed it has shut down.
    RuntimeEnded,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotRenewed => "its deadline passed without a renewal",
            Self::TakenAway => "another client acquired the lock, or the nodes lost their memory",
            Self::Broken => "the lock was broken",
            Self::MaxHold => "it was held for as long as `max_hold` allows",
            Self::RuntimeEnded => "the runtime that renewed it has shut down",
        })
    }
}

fn holder(nodes: &[NodeReport]) -> Option<&Holder> {
    nodes.iter().find_map(|report| match &report.outcome {
        NodeOutcome::Voted(Vote::Held { holder, .. }) => Some(&**holder),
        _ => None,
    })
}

/// The answers of the nodes, as the end of a message.
fn nodes_text(nodes: &[NodeReport]) -> String {
    if nodes.is_empty() {
        return String::new();
    }
    let reports: Vec<_> = nodes.iter().map(ToString::to_string).collect();
    format!(" [{}]", reports.join("; "))
}

/// A refused attempt, with the answer of each node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Refusal {
    /// The lock's name. `None` if the request was not about one lock
    /// ([`Client::ready`](crate::Client::ready),
    /// [`Client::inspect_all`](crate::Client::inspect_all)).
    pub name: Option<Name>,
    /// How many attempts the call made, if [`Options::attempts`](crate::Options::attempts) limits
    /// them.
    pub attempts: Option<u32>,
    /// How many permits the semaphore has, if the call was for a permit.
    pub permits: Option<u32>,
    /// Whether the call waits for another client that collects several permits of the semaphore, which
    /// one client at a time can do.
    pub collecting: bool,
    /// How many nodes are a majority.
    pub majority: usize,
    /// What each node answered, in the order of the client's nodes.
    pub nodes: Vec<NodeReport>,
}

impl Refusal {
    /// Returns the holder of the lock, as reported by the first node that named one.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        holder(&self.nodes)
    }

    /// Whether a node granted the lock, and too few of its replicas have it.
    pub(crate) fn lacks_replicas(&self) -> bool {
        let lacks = |outcome: &NodeOutcome| {
            matches!(
                outcome,
                NodeOutcome::Failed(NodeError::NotReplicated { .. })
            )
        };
        self.nodes.iter().any(|report| lacks(&report.outcome))
    }

    /// Returns the time until the lock expires unless it is renewed: the shortest time that a node
    /// reported. `None` if no node reported one, or if the lock has no TTL.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.nodes
            .iter()
            .filter_map(|report| match &report.outcome {
                NodeOutcome::Voted(Vote::Held { remaining, .. }) => *remaining,
                _ => None,
            })
            .min()
    }

    /// Returns how many waiters are ahead of the refused claim: the largest number that a node
    /// reported. `None` unless the claim waits in line on a majority of nodes.
    #[must_use]
    pub fn place(&self) -> Option<u32> {
        let places = self
            .nodes
            .iter()
            .filter_map(|report| match &report.outcome {
                NodeOutcome::Voted(Vote::Held { place, .. }) => *place,
                NodeOutcome::Voted(Vote::YourTurn | Vote::Free { .. } | Vote::Granted) => Some(0),
                _ => None,
            });
        let (count, most) =
            places.fold((0, 0), |(count, most), place| (count + 1, place.max(most)));
        (count >= self.majority).then_some(most)
    }

    /// The permit that most nodes named as free.
    pub(crate) fn free_permit(&self) -> Option<u32> {
        let named = self.nodes.iter().filter_map(|report| match report.outcome {
            NodeOutcome::Voted(Vote::Free { permit }) => Some(permit),
            _ => None,
        });
        let times = |permit: &u32| named.clone().filter(|named| named == permit).count();
        named.clone().max_by_key(times)
    }

    fn gave_up(&self) -> String {
        match self.attempts {
            None => String::new(),
            Some(1) => "gave up after 1 attempt: ".to_owned(),
            Some(attempts) => format!("gave up after {attempts} attempts: "),
        }
    }

    fn held(&self) -> String {
        let name = self.name.as_ref().map(ToString::to_string);
        let name = name.unwrap_or_default();
        if let Some(permits) = self.permits {
            return format!("no permit of `{name}` ({permits}) is free, or others wait for one");
        }
        let mut text = match self.holder() {
            Some(holder) => format!("`{name}` is held by {holder}"),
            None => format!("`{name}` is contended"),
        };
        if let Some(remaining) = self.remaining() {
            text += &format!("; expires in {remaining:.1?}");
            if !self.holder().is_some_and(|holder| holder.kept) {
                text += " unless renewed";
            }
        }
        text + &nodes_text(&self.nodes)
    }

    fn no_majority(&self) -> String {
        let (majority, nodes) = (self.majority, self.nodes.len());
        let text = match &self.name {
            Some(name) => {
                format!("no majority for `{name}`: {majority} of {nodes} nodes must grant it")
            }
            None => format!("no majority: {majority} of {nodes} nodes must answer"),
        };
        text + &nodes_text(&self.nodes)
    }
}

/// What one node answered.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeReport {
    /// The node, without credentials.
    pub node: String,
    /// What the node answered, or why it did not.
    pub outcome: NodeOutcome,
}

impl fmt::Display for NodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.node, self.outcome)
    }
}

/// What one node answered, or why it did not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeOutcome {
    /// The node had not answered when the outcome was decided.
    Pending,
    /// The client is connected to the node ([`Client::ready`](crate::Client::ready)).
    Connected,
    /// The node voted.
    Voted(Vote),
    /// The request could not be sent, was not answered in time, or failed. Unless
    /// [`NodeError::had_no_effect`] is true, it may have taken effect.
    Failed(NodeError),
}

impl NodeOutcome {
    /// Whether the request certainly had no effect on the node: the node refused it (and each
    /// request takes effect at most once), or it was never sent.
    pub(crate) fn rules_out_effect(&self) -> bool {
        match self {
            Self::Pending | Self::Connected => false,
            Self::Voted(vote) => !matches!(vote, Vote::Granted),
            Self::Failed(error) => error.had_no_effect(),
        }
    }
}

impl fmt::Display for NodeOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pending => f.write_str("no answer yet"),
            Self::Connected => f.write_str("connected"),
            Self::Voted(vote) => vote.fmt(f),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

/// A certificate or key that a client uses for TLS. See [`Invalid::Tls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsPart {
    /// The certificate authority of the nodes.
    RootCertificate,
    /// The certificate that the client presents to the nodes.
    ClientCertificate,
    /// The key of that certificate.
    ClientKey,
}

impl fmt::Display for TlsPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RootCertificate => "the root certificate",
            Self::ClientCertificate => "the client certificate",
            Self::ClientKey => "the client key",
        })
    }
}

/// Invalid input. The message says what is valid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Invalid {
    /// A name that is empty or too long.
    #[error("a lock's name must be 1 to {max} bytes long, not {len}", max = Name::MAX_LEN)]
    #[non_exhaustive]
    Name {
        /// The length in bytes.
        len: usize,
    },
    /// The same name twice among names that are locked together.
    #[error("`{name}` is among the names twice")]
    SameName {
        /// The name.
        name: Name,
    },
    /// A party that a latch does not have.
    #[error("the latch has no party `{party}`")]
    UnknownParty {
        /// The party.
        party: Name,
    },
    /// A name that begins like the keys that leasehold keeps for itself.
    #[error("a lock's name must not begin with `leasehold:`, which is reserved")]
    ReservedName,
    /// A duration outside of the range of its option.
    #[error("{option} must be between {min:?} and {max:?}, not {value:?}")]
    #[non_exhaustive]
    Duration {
        /// The option.
        option: &'static str,
        /// The invalid value.
        value: Duration,
        /// The smallest valid value.
        min: Duration,
        /// The largest valid value.
        max: Duration,
    },
    /// A TTL that is longer than the restart guard.
    #[error(
        "a ttl of {ttl:?} is longer than the restart guard of {guard:?}: a restarted node could \
         vote while such a lease is still valid; set `restart_guard` to {ttl:?} or more (on every \
         client), or use a shorter ttl with renewal"
    )]
    #[non_exhaustive]
    TtlBeyondGuard {
        /// The requested TTL.
        ttl: Duration,
        /// The length of the guard.
        guard: Duration,
    },
    /// A number outside of the range of its option.
    #[error("{option} must be between {min} and {max}, not {value}")]
    #[non_exhaustive]
    Number {
        /// The option.
        option: &'static str,
        /// The invalid value.
        value: u64,
        /// The smallest valid value.
        min: u64,
        /// The largest valid value.
        max: u64,
    },
    /// A label that is too long or has control characters.
    #[error("a label must be at most {max} bytes without control characters", max = MAX_LABEL)]
    Label,
    /// A shared lock without a token: without fences, nodes cannot tell whether a writer came in
    /// between.
    #[error("a shared lock needs a token: it cannot be used with `without_fencing`")]
    SharedWithoutFencing,
    /// A permit without a token.
    #[error("a permit needs a token: a semaphore cannot be used with `without_fencing`")]
    PermitWithoutFencing,
    /// A semaphore with another number of permits than on record.
    #[error(
        "the semaphore `{name}` has {theirs} permits, not {ours}: use the same number everywhere, or \
         change it with `resize`"
    )]
    OtherPermits {
        /// The name.
        name: Name,
        /// The number on record.
        theirs: u32,
        /// The number of this client.
        ours: u32,
    },
    /// A custom node that has no semaphores.
    #[error("node {node}: this kind of node has no semaphores")]
    NoSemaphores {
        /// The node.
        node: String,
    },
    /// The lease of a permit cannot be shared.
    #[error("the lease of a permit cannot be downgraded: a permit has one holder")]
    SharedPermit,
    /// An owner value that leasehold did not create.
    #[error(
        "invalid owner value: it must be the complete text from `Detached::owner` (or from \
         `leasehold acquire`), which begins with 40 hex digits and the token"
    )]
    Owner,
    /// A lease cannot be detached, or released with its name kept, while it has other guards
    /// ([`Lease::again`](crate::Lease::again)).
    #[error("the lease has other guards (`Lease::again`); release them first")]
    OtherGuards,
    /// The client has no nodes.
    #[error("no nodes: add at least one with `node(\"redis://host:6379\")`")]
    NoNodes,
    /// A certificate or key (PEM) that cannot be used.
    #[error("{what}: {why}")]
    #[non_exhaustive]
    Tls {
        /// Which certificate or key.
        what: TlsPart,
        /// What is wrong.
        why: String,
    },
    /// The URL of a node is invalid. The error does not contain the URL, which may contain a
    /// password.
    #[error("node {index}: {why}")]
    #[non_exhaustive]
    NodeUrl {
        /// Which node, counted from 1.
        index: usize,
        /// What is wrong, and what is valid.
        why: String,
    },
    /// A node refuses this client permanently: a wrong password, missing permissions, the same
    /// server twice, or other constants than those of other clients.
    #[error("node {node}: {error}")]
    #[non_exhaustive]
    Node {
        /// The node, without credentials.
        node: String,
        /// Why it refuses.
        error: NodeError,
    },
}
