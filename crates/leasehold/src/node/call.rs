//! A request to a node, on its way and back.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

#[cfg(doc)]
use super::{Node, rules};
use super::{NodeError, Vote};
use crate::base::name::Name;

/// What is claimed: one attempt's name, owner and token.
pub struct Claim {
    pub(crate) name: Name,
    pub(crate) owner: Box<[u8]>,
    pub(crate) token: u64,
    pub(crate) ttl: Duration,
    /// When it was made, if all its requests are made by this client.
    made: Option<Tick>,
    on_one_node: bool,
    waited: AtomicBool,
    given_back: AtomicBool,
    holders: Mutex<Holders>,
}

/// The processes that hold a claim. When all of them are dead, so is the claim.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Holders {
    /// The process that took it.
    #[default]
    ThisProcess,
    /// These processes of this machine, by their ids.
    Processes(Box<[u32]>),
    /// None: the claim outlives the process that took it.
    Nobody,
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
            made: None,
            on_one_node: false,
            waited: AtomicBool::new(false),
            given_back: AtomicBool::new(false),
            holders: Mutex::default(),
        }
    }

    /// That claim, which nobody has asked any node for so far.
    pub(crate) fn made_now(mut self) -> Self {
        self.made = Some(Tick::now());
        self
    }

    /// Whether everything that was ever asked for this claim was asked by this client, and after
    /// `tick`.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn is_only_since(&self, tick: Tick) -> bool {
        self.made.is_some_and(|made| made > tick) && self.holders() == Holders::ThisProcess
    }

    /// That claim, on which only one node votes, if so.
    #[must_use]
    pub fn on_one_node(mut self, so: bool) -> Self {
        self.on_one_node = so;
        self
    }

    /// Whether the node is the only one that votes on the claim. Then nobody can be before it
    /// elsewhere.
    #[must_use]
    pub fn is_on_one_node(&self) -> bool {
        self.on_one_node
    }

    /// It stands in line from now on.
    pub(crate) fn wait(&self) {
        self.waited.store(true, Ordering::Release);
    }

    /// Whether it has stood in line. Then others may stand there too.
    #[must_use]
    pub fn has_waited(&self) -> bool {
        self.waited.load(Ordering::Acquire)
    }

    pub(crate) fn set_holders(&self, holders: Holders) {
        *self.holders.lock().unwrap_or_else(PoisonError::into_inner) = holders;
    }

    /// Who must be alive for the claim to be. A node that can tell whether they are may
    /// free the lock of the dead before its TTL is over.
    #[must_use]
    pub fn holders(&self) -> Holders {
        self.holders
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
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

    /// The fencing token; 0 if there is none.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Whether it has a fencing token. One without is a plain lock, as other libraries take it:
    /// the fence is neither asked nor raised.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.token != 0
    }

    /// How long the lock is to live. Whole milliseconds.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.ttl
    }
}

/// The order in which things happened in this process, whatever its clocks say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(u64);

impl Tick {
    pub(crate) fn now() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
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
    /// Stand in line for it, or stand there still: [`rules::wait`]. Asked again about every
    /// second, or every other.
    Wait,
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

    /// A release of the same claim. Its answer is not awaited by anything.
    #[cfg(feature = "redis")]
    pub(crate) fn release_unheard(&self) -> Self {
        let verb = Verb::Release { keep: None };
        let claim = Arc::clone(&self.claim);
        Self::new(verb, claim, self.timeout, Arc::new(Unheard), 0)
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

/// Takes answers that nothing depends on.
#[cfg(feature = "redis")]
struct Unheard;

#[cfg(feature = "redis")]
impl Tally for Unheard {
    fn count(self: Arc<Self>, _: usize, _: Result<Vote, NodeError>) {}
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
