//! What a lease needs of a store: the [`Node`] trait and the messages it takes.

pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub mod rules;

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use thiserror::Error;

use crate::holder::Holder;
use crate::name::Name;

/// A store of locks: one voter of a quorum.
///
/// A client has one node or several independent ones, and a lease is a claim that
/// a majority of them granted. A node keeps for each name the **lock** (an owner
/// value and when it expires) and the **fence** (the highest token granted; it
/// outlives the lock), and applies the three verbs of [`Verb`] by the rules in
/// [`rules`], each atomically. Whoever stores locks somewhere new implements this
/// trait, uses the rules, and runs the conformance suite of `leasehold-testkit`.
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
}

/// What `rediss://` nodes are shown and believed.
#[derive(Clone, Default)]
#[cfg_attr(not(feature = "tls"), allow(dead_code))]
pub(crate) struct Tls {
    pub(crate) root: Option<Vec<u8>>,
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

/// What is claimed: one attempt's name, owner and token.
pub struct Claim {
    pub(crate) name: Name,
    pub(crate) owner: Box<[u8]>,
    pub(crate) token: u64,
    pub(crate) ttl: Duration,
    given_back: AtomicBool,
}

impl Claim {
    /// A claim, for tests of a node. Clients make their own.
    #[must_use]
    pub fn new(name: Name, owner: impl Into<Box<[u8]>>, token: u64, ttl: Duration) -> Self {
        Self {
            name,
            owner: owner.into(),
            token,
            ttl,
            given_back: AtomicBool::new(false),
        }
    }

    /// From now on, no request to take or keep the claim may be sent.
    pub(crate) fn give_back(&self) {
        self.given_back.store(true, Ordering::Release);
    }

    /// Whether the claim is being given back. A node that has put a request to take or
    /// keep it aside (to send it again, say) must not send it any more.
    #[must_use]
    pub fn is_given_back(&self) -> bool {
        self.given_back.load(Ordering::Acquire)
    }

    /// The key of the lock.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The value of the lock. It identifies the attempt (and with it the token), and
    /// it is a secret: whoever knows it can release the lock.
    #[must_use]
    pub fn owner(&self) -> &[u8] {
        &self.owner
    }

    /// The fencing token.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// How long the lock is to live. Whole milliseconds.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.ttl
    }
}

impl fmt::Debug for Claim {
    /// Without the owner, which is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("name", &self.name)
            .field("token", &self.token)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

/// What a node is asked to do with a [`Claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Take the lock: [`rules::acquire`].
    Acquire,
    /// Keep it for another TTL: [`rules::extend`].
    Extend,
    /// Give it back: [`rules::release`].
    Release {
        /// Keep the name taken for so long, owned by nobody.
        keep: Option<Duration>,
    },
}

/// One request to one node. See [`Node`].
pub struct Call {
    verb: Verb,
    claim: Arc<Claim>,
    timeout: Duration,
    settled: bool,
    ballot: Ballot,
}

impl Call {
    pub(crate) fn new(
        verb: Verb,
        claim: Arc<Claim>,
        timeout: Duration,
        to: Arc<dyn Tally>,
        node: usize,
    ) -> Self {
        Self {
            verb,
            claim,
            timeout,
            settled: false,
            ballot: Ballot { to: Some(to), node },
        }
    }

    pub(crate) fn settled(mut self, settled: bool) -> Self {
        self.settled = settled;
        self
    }

    /// A hint that a node may ignore: whether this node has answered every earlier
    /// request of the claim, the last with [`Vote::Granted`]. Then nothing of it can
    /// arrive late, and a release need not raise the fence against that.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.settled
    }

    /// What to do.
    #[must_use]
    pub fn verb(&self) -> Verb {
        self.verb
    }

    /// With which claim.
    #[must_use]
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// The call must be answered within this time.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Answers the call.
    pub fn answer(mut self, answer: Result<Vote, NodeError>) {
        self.ballot.cast(answer);
    }

    /// Makes a call for another node to answer; `then` gets that answer, and this call to
    /// answer with it. For nodes in front of others: to log, to delay, to fail at will.
    ///
    /// ```
    /// use leasehold::{MemoryNode, node::{Call, Node}};
    ///
    /// struct Logged(MemoryNode);
    ///
    /// impl Node for Logged {
    ///     fn label(&self) -> &str {
    ///         self.0.label()
    ///     }
    ///     fn submit(&self, call: Call) {
    ///         self.0.submit(call.relay(|call, answer| {
    ///             println!("{call:?}: {answer:?}");
    ///             call.answer(answer);
    ///         }));
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn relay<F>(self, then: F) -> Self
    where
        F: FnOnce(Self, Result<Vote, NodeError>) + Send + 'static,
    {
        let (verb, claim) = (self.verb, Arc::clone(&self.claim));
        let (timeout, settled) = (self.timeout, self.settled);
        let relay = Arc::new(Relay(Mutex::new(Some((self, then)))));
        Self::new(verb, claim, timeout, relay, 0).settled(settled)
    }

    /// Answers the call with the outcome of `work`, or with
    /// [`NodeError::TimedOut`] when it takes longer than [`timeout`](Self::timeout).
    /// For nodes whose store is asked by a future; spawn the result.
    ///
    /// Cancel safety: if dropped, the call counts as unanswered.
    pub async fn serve(self, work: impl Future<Output = Result<Vote, NodeError>>) {
        let after = self.timeout;
        let answer = tokio::time::timeout(after, work)
            .await
            .unwrap_or(Err(NodeError::TimedOut { after }));
        self.answer(answer);
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("verb", &self.verb)
            .field("name", &self.claim.name)
            .field("token", &self.claim.token)
            .finish_non_exhaustive()
    }
}

/// Where the answers to one round of calls are counted.
pub(crate) trait Tally: Send + Sync {
    fn count(self: Arc<Self>, node: usize, answer: Result<Vote, NodeError>);
}

/// Gets the answer of a [relayed](Call::relay) call.
struct Relay<F>(Mutex<Option<(Call, F)>>);

impl<F> Tally for Relay<F>
where
    F: FnOnce(Call, Result<Vote, NodeError>) + Send,
{
    fn count(self: Arc<Self>, _: usize, answer: Result<Vote, NodeError>) {
        let relayed = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((call, then)) = relayed {
            then(call, answer);
        }
    }
}

/// The right to cast one vote, once. Cast as unanswered when dropped.
struct Ballot {
    to: Option<Arc<dyn Tally>>,
    node: usize,
}

impl Ballot {
    fn cast(&mut self, answer: Result<Vote, NodeError>) {
        if let Some(to) = self.to.take() {
            to.count(self.node, answer);
        }
    }
}

impl Drop for Ballot {
    fn drop(&mut self) {
        self.cast(Err(NodeError::Unanswered));
    }
}

/// A node's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vote {
    /// `Acquire` and `Extend`: the lock is the claim's for a TTL from now.
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
    },
    /// `Acquire`: the token is not above the fence.
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
    /// The server refuses writes because it cannot persist them.
    #[error("the server cannot write to disk and refuses writes (MISCONF): {why}")]
    CannotPersist {
        /// Its message.
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
                | Self::NoPermission { .. }
                | Self::WrongPassword
                | Self::Clustered { .. }
                | Self::SameServer { .. }
                | Self::OtherConstants { .. }
        )
    }
}
