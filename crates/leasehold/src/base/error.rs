//! Outcomes that are not a lease. Five different things, never confused: held by
//! another, timed out while waiting, no majority reachable, lost while held, and
//! bad input; each with the story of every node, and no secret in any of them.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::base::holder::Holder;
use crate::base::name::Name;
use crate::lease::state::Loss;
use crate::node::{NodeError, Vote};

/// Why an operation did not give a lease.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// Somebody else holds the lock, and the options say not to wait
    /// ([`Wait::No`](crate::Wait::No)) or to stop after so many attempts.
    #[error("{}{}", .0.gave_up(), .0.held())]
    Held(Box<Refusal>),
    /// The time to wait ran out while somebody else held the lock.
    #[error("timed out after {waited:?}: {}", .refusal.held())]
    TimedOut {
        /// How long the call waited.
        waited: Duration,
        /// What the last attempt was told.
        refusal: Box<Refusal>,
    },
    /// So many nodes did not vote that no majority could be reached: an outage,
    /// not contention.
    #[error("{}{}", .0.gave_up(), .0.no_majority())]
    NoMajority(Box<Refusal>),
    /// The lease was lost while it was held: its deadline passed without a
    /// renewal, or a majority of nodes said that it is over.
    #[error("the lease on `{name}` (token {token}) was lost: {why}{}", nodes_text(.nodes))]
    Lost {
        /// The lock's name.
        name: Name,
        /// The token of the lease that was lost.
        token: u64,
        /// Why.
        why: Loss,
        /// What each node said to the last renewal. Empty if there was none.
        nodes: Vec<NodeReport>,
    },
    /// An argument, option or URL that cannot work, or a node that refuses this client for good.
    /// No lock was asked for.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The client was shut down.
    #[error("the client was shut down")]
    ShutDown,
    /// The `tokio` runtime on which the client was created has shut down. With it ended the
    /// tasks that talk to the nodes and renew leases.
    #[error(
        "the runtime that this client was created on has shut down; create the client inside \
         the runtime that uses it"
    )]
    RuntimeEnded,
}

impl Error {
    /// What each node said, where nodes were asked.
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
    /// Who holds the lock instead, by the first node that said so.
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

fn holder(nodes: &[NodeReport]) -> Option<&Holder> {
    nodes.iter().find_map(|report| match &report.story {
        Story::Voted(Vote::Held { holder, .. }) => Some(holder),
        _ => None,
    })
}

/// What each node said, at the end of a message.
fn nodes_text(nodes: &[NodeReport]) -> String {
    if nodes.is_empty() {
        return String::new();
    }
    let reports: Vec<_> = nodes.iter().map(ToString::to_string).collect();
    format!(" [{}]", reports.join("; "))
}

/// An attempt that was refused, and the story of every node.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Refusal {
    /// The lock's name; `None` if the nodes were asked about no lock in particular
    /// ([`Client::ready`](crate::Client::ready), [`Client::inspect_all`](crate::Client::inspect_all)).
    pub name: Option<Name>,
    /// How many attempts the call had made, if [`Options::attempts`](crate::Options::attempts)
    /// limits them.
    pub attempts: Option<u32>,
    /// How many nodes had to grant it.
    pub majority: usize,
    /// What each node said, in the order of the client's nodes.
    pub nodes: Vec<NodeReport>,
}

impl Refusal {
    /// Who holds the lock, by the first node that told.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        holder(&self.nodes)
    }

    /// When the lock runs out if nobody renews it: the shortest time that a node
    /// told. `None` if no node told, or if the lock has no TTL.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.nodes
            .iter()
            .filter_map(|report| match &report.story {
                Story::Voted(Vote::Held { remaining, .. }) => *remaining,
                _ => None,
            })
            .min()
    }

    /// How many stand in line before the one that was refused: the most that a node told.
    /// `None` unless it stands in line on a majority of nodes.
    #[must_use]
    pub fn place(&self) -> Option<u32> {
        let places = self.nodes.iter().filter_map(|report| match &report.story {
            Story::Voted(Vote::Held { place, .. }) => *place,
            Story::Voted(Vote::YourTurn | Vote::Granted) => Some(0),
            _ => None,
        });
        let (count, most) =
            places.fold((0, 0), |(count, most), place| (count + 1, place.max(most)));
        (count >= self.majority).then_some(most)
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
        let mut text = match self.holder() {
            Some(holder) => format!("`{name}` is held by {holder}"),
            None => format!("`{name}` is contended"),
        };
        if let Some(remaining) = self.remaining() {
            text += &format!(", {remaining:.1?} left");
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

/// What one node said.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeReport {
    /// The node, without credentials.
    pub node: String,
    /// What happened there.
    pub story: Story,
}

impl fmt::Display for NodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.node, self.story)
    }
}

/// What happened at one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Story {
    /// It had not answered when the outcome was decided.
    Pending,
    /// It can be asked ([`Client::ready`](crate::Client::ready)).
    Connected,
    /// It answered.
    Voted(Vote),
    /// It could not be asked, did not answer in time, or failed. Whether the
    /// request took effect is unknown.
    Failed(NodeError),
}

impl Story {
    /// Whether the request certainly left nothing at the node: it was refused there
    /// (and each request takes effect once), or never sent.
    pub(crate) fn rules_out_effect(&self) -> bool {
        match self {
            Self::Pending | Self::Connected => false,
            Self::Voted(vote) => !matches!(vote, Vote::Granted),
            Self::Failed(error) => error.had_no_effect(),
        }
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pending => f.write_str("no answer yet"),
            Self::Connected => f.write_str("connected"),
            Self::Voted(vote) => vote.fmt(f),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

/// What a client needs for TLS. See [`Invalid::Tls`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsPart {
    /// The certificate authority of the nodes.
    RootCertificate,
    /// The certificate that the client shows to the nodes.
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

/// Input that cannot work, with what would.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Invalid {
    /// A name that is empty or too long.
    #[error("a lock's name must be 1 to {max} bytes long, not {len}", max = Name::MAX_LEN)]
    Name {
        /// Its length in bytes.
        len: usize,
    },
    /// A name that the side keys on a server could have.
    #[error("a lock's name must not begin with `leasehold:`, as the side keys on a server do")]
    ReservedName,
    /// A duration outside of what its option allows.
    #[error("{option} must be between {min:?} and {max:?}, not {value:?}")]
    Duration {
        /// The option.
        option: &'static str,
        /// What was given.
        value: Duration,
        /// The least it may be.
        min: Duration,
        /// The most it may be.
        max: Duration,
    },
    /// A TTL longer than the restart guard protects.
    #[error(
        "a ttl of {ttl:?} is longer than the restart guard of {guard:?}: a restarted node could \
         vote while such a lease still runs; set `restart_guard` to {ttl:?} or more (on every \
         client), or use a shorter ttl with renewal"
    )]
    TtlBeyondGuard {
        /// The TTL asked for.
        ttl: Duration,
        /// The guard's length.
        guard: Duration,
    },
    /// A number outside of what its option allows.
    #[error("{option} must be between {min} and {max}, not {value}")]
    Number {
        /// The option.
        option: &'static str,
        /// What was given.
        value: u64,
        /// The least it may be.
        min: u64,
        /// The most it may be.
        max: u64,
    },
    /// A label that is too long or has control characters.
    #[error("a label must be at most {max} bytes without control characters", max = crate::client::options::MAX_LABEL)]
    Label,
    /// An owner value that leasehold did not make.
    #[error(
        "not an owner value: give the whole text that `detach` (or `leasehold acquire`) gave, \
         which begins with 40 hex digits and the token"
    )]
    Owner,
    /// No node was given.
    #[error("no nodes were given; add at least one with `node(\"redis://host:6379\")`")]
    NoNodes,
    /// A certificate or key (PEM) that cannot be used.
    #[error("{what}: {why}")]
    Tls {
        /// Which of those that were given.
        what: TlsPart,
        /// What is wrong with it.
        why: String,
    },
    /// A node's URL that cannot be used. The URL is not shown: it may hold a password.
    #[error("node {index}: {why}")]
    NodeUrl {
        /// Which node, counted from 1.
        index: usize,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// A node that refuses this client for good: a wrong password, missing
    /// permissions, the same server twice, other constants than other clients'.
    #[error("node {node}: {error}")]
    Node {
        /// The node, without credentials.
        node: String,
        /// Why it refuses.
        error: NodeError,
    },
}
