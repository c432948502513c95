//! A request to a node, and its answer.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

#[cfg(doc)]
use super::Node;
use super::seat::Seat;
use super::{Mode, NodeError, Vote};
use crate::base::holder::{kept_value, owner_mode};
use crate::base::name::Name;

/// One attempt to acquire a lock: its name, mode, owner value and token.
pub struct Claim {
    pub(crate) name: Name,
    mode: Mode,
    pub(crate) owner: Box<[u8]>,
    pub(crate) token: u64,
    pub(crate) ttl: Duration,
    /// When the claim was created, if only this client sends requests for it.
    made: Option<Tick>,
    on_one_node: bool,
    waited: AtomicBool,
    released: AtomicBool,
    sent_twice: AtomicBool,
    holders: Mutex<Holders>,
    /// What a release that keeps the name leaves there, if that is a result.
    left_behind: OnceLock<Vec<u8>>,
    replaces: Option<Box<[u8]>>,
    seat: Option<Seat>,
}

/// The processes that hold a claim. The claim ends when all of them are dead, on nodes that can
/// tell.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Holders {
    /// The process that acquired it.
    #[default]
    ThisProcess,
    /// These processes of this machine, by process id.
    Processes(Box<[u32]>),
    /// No process: the claim outlives the process that acquired it.
    Nobody,
}

impl Claim {
    /// Creates a claim, for tests of a node. Clients create their own claims. The owner value
    /// contains the mode.
    #[must_use]
    pub fn new(name: Name, owner: impl Into<Box<[u8]>>, token: u64, ttl: Duration) -> Self {
        let owner = owner.into();
        let mode = owner_mode(&owner);
        Self::in_mode(mode, name, owner, token, ttl)
    }

    /// The same, where the mode is known.
    pub(crate) fn in_mode(
        mode: Mode,
        name: Name,
        owner: Box<[u8]>,
        token: u64,
        ttl: Duration,
    ) -> Self {
        Self {
            seat: Seat::of_permit(&name),
            name,
            mode,
            owner,
            token,
            ttl,
            made: None,
            on_one_node: false,
            waited: AtomicBool::new(false),
            released: AtomicBool::new(false),
            sent_twice: AtomicBool::new(false),
            holders: Mutex::default(),
            left_behind: OnceLock::new(),
            replaces: None,
        }
    }

    /// Sets the owner value of the exclusive claim that this shared claim takes over. EXTEND of
    /// this claim replaces the lock of that claim, so that no writer can come between the two. That
    /// claim must send no request any more.
    #[must_use]
    pub fn replacing(mut self, owner: impl Into<Box<[u8]>>) -> Self {
        self.replaces = Some(owner.into());
        self
    }

    /// Returns the owner value of the exclusive claim that this shared claim takes over, if any.
    #[must_use]
    pub fn replaces(&self) -> Option<&[u8]> {
        self.replaces.as_deref()
    }

    /// Makes the claim one of a semaphore.
    #[doc(hidden)]
    #[must_use]
    pub fn in_seat(mut self, seat: Seat) -> Self {
        self.seat = Some(seat);
        self
    }

    /// What the claim has to do with a semaphore, if it is for a permit, or for a place in line.
    #[doc(hidden)]
    #[must_use]
    pub fn seat(&self) -> Option<&Seat> {
        self.seat.as_ref()
    }

    /// Marks the claim as created now: no request for it was sent before.
    pub(crate) fn made_now(mut self) -> Self {
        self.made = Some(Tick::now());
        self
    }

    /// Whether this client sent all requests for this claim, and sent them after `tick`.
    #[cfg_attr(
        not(any(feature = "redis", feature = "planted-bugs")),
        allow(dead_code)
    )]
    pub(crate) fn is_only_since(&self, tick: Tick) -> bool {
        self.made.is_some_and(|made| made > tick) && self.holders() == Holders::ThisProcess
    }

    /// Sets whether only one node votes on the claim.
    #[must_use]
    pub fn on_one_node(mut self, so: bool) -> Self {
        self.on_one_node = so;
        self
    }

    /// Whether only one node votes on the claim. Then no waiter can be ahead of it on another node.
    #[must_use]
    pub fn is_on_one_node(&self) -> bool {
        self.on_one_node
    }

    /// Marks the claim as waiting in line.
    pub(crate) fn wait(&self) {
        self.waited.store(true, Ordering::Release);
    }

    /// Whether the claim has waited in line. Then other claims may wait there, too.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn has_waited(&self) -> bool {
        self.waited.load(Ordering::Acquire)
    }

    /// Sets the value that a release that keeps the name leaves there: one with a result.
    pub(crate) fn leave_behind(&self, value: Vec<u8>) {
        let _ = self.left_behind.set(value);
    }

    /// Lets a claim leave the same result as another: for nodes that make a claim of their own for
    /// each request.
    #[doc(hidden)]
    #[must_use]
    pub fn with_result_of(self, other: &Self) -> Self {
        if let Some(value) = other.left_behind.get() {
            self.leave_behind(value.clone());
        }
        self
    }

    /// Whether a release that keeps the name leaves a result there.
    pub(crate) fn has_result(&self) -> bool {
        self.left_behind.get().is_some()
    }

    /// The value that the name has while a release keeps it. It has no secret.
    pub(crate) fn kept_value(&self) -> Vec<u8> {
        let result = self.left_behind.get().cloned();
        result.unwrap_or_else(|| kept_value(&self.owner))
    }

    pub(crate) fn set_holders(&self, holders: Holders) {
        *self.holders.lock().unwrap_or_else(PoisonError::into_inner) = holders;
    }

    /// Returns the processes that hold the claim. A node that knows that all of them are dead may
    /// free the lock before its TTL is over.
    #[must_use]
    pub fn holders(&self) -> Holders {
        self.holders
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Marks the claim as released. From now on, no ACQUIRE, WAIT or EXTEND of it may be sent.
    pub(crate) fn mark_released(&self) {
        self.released.store(true, Ordering::Release);
    }

    /// Notes that a request of the claim is sent again, because its connection broke.
    #[cfg(any(feature = "redis", feature = "planted-bugs"))]
    pub(crate) fn mark_sent_twice(&self) {
        self.sent_twice.store(true, Ordering::Release);
    }

    /// Whether a request of the claim was sent twice. The first copy may take effect after the second
    /// was refused.
    pub(crate) fn was_sent_twice(&self) -> bool {
        self.sent_twice.load(Ordering::Acquire)
    }

    /// Whether the claim is being released. If a node has deferred an ACQUIRE, WAIT or EXTEND of it
    /// (for example to send it again), it must not send it any more.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire)
    }

    /// The key of the lock.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// How the claim holds the lock.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The value of the lock. It identifies the attempt, and with it the token. It is a secret: a
    /// client that knows it can release the lock.
    #[must_use]
    pub fn owner(&self) -> &[u8] {
        &self.owner
    }

    /// The fencing token; 0 if there is none.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Whether the claim has a fencing token. A claim without one is a plain lock, as in other
    /// libraries: nodes neither check nor raise the fence.
    #[must_use]
    pub fn is_fenced(&self) -> bool {
        self.token != 0
    }

    /// Whether the owner value has the token, as 16 digits, where scripts look for it.
    #[cfg(any(feature = "redis", feature = "planted-bugs"))]
    pub(crate) fn has_token_in_place(&self) -> bool {
        let digits = self.owner.get(41..57).unwrap_or_default();
        let token = str::from_utf8(digits)
            .ok()
            .and_then(|digits| digits.parse().ok());
        token == Some(self.token)
    }

    /// The TTL of the lock, in whole milliseconds.
    #[must_use]
    pub fn ttl(&self) -> Duration {
        self.ttl
    }
}

/// A logical clock: the order of events in this process, whatever the clocks say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tick(u64);

impl Tick {
    pub(crate) fn now() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Debug for Claim {
    /// Omits the owner, which is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claim")
            .field("name", &self.name)
            .field("token", &self.token)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

/// What a request asks a node to do with a [`Claim`].
///
/// A node answers a verb that it does not know with [`NodeError::Refused`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verb {
    /// Acquire the lock, if it is free and the token is above the fence.
    Acquire,
    /// Wait in line for the lock, or stay in line. Clients send it again every 1.1 s, or every 2.2 s
    /// with 100 or more waiters ahead.
    Wait,
    /// Renew the lock for another TTL.
    Extend,
    /// Release the lock, or leave the line. No request of the claim that arrives later may acquire
    /// the lock.
    Release {
        /// Keep the name taken for this time, without an owner.
        keep: Option<Duration>,
    },
}

/// One request to one node. See [`Node`].
pub struct Call {
    verb: Verb,
    claim: Arc<Claim>,
    timeout: Duration,
    nothing_in_flight: bool,
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
            nothing_in_flight: false,
            ballot: Ballot { to: Some(to), node },
        }
    }

    pub(crate) fn with_nothing_in_flight(mut self, so: bool) -> Self {
        self.nothing_in_flight = so;
        self
    }

    /// A hint that a node may ignore: whether this node has answered all earlier requests for the
    /// claim, and the last one with [`Vote::Granted`]. Then no request can arrive late, and a
    /// release need not raise the fence against late requests.
    #[must_use]
    pub fn nothing_in_flight(&self) -> bool {
        self.nothing_in_flight
    }

    /// What the request asks for.
    #[must_use]
    pub fn verb(&self) -> Verb {
        self.verb
    }

    /// The claim of the request.
    #[must_use]
    pub fn claim(&self) -> &Claim {
        &self.claim
    }

    /// The time within which the call must be answered.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Answers the call.
    pub fn answer(mut self, answer: Result<Vote, NodeError>) {
        self.ballot.cast(answer);
    }

    /// Creates a release of the same claim. Its answer is ignored.
    #[cfg(any(feature = "redis", feature = "planted-bugs"))]
    pub(crate) fn release_unheard(&self) -> Self {
        let verb = Verb::Release { keep: None };
        let claim = Arc::clone(&self.claim);
        Self::new(verb, claim, self.timeout, Arc::new(Unheard), 0)
    }

    /// Creates a call for another node to answer. `then` gets that answer, and this call, which it
    /// must answer. For nodes that wrap other nodes: to log, delay or fail calls.
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
        let (timeout, nothing_in_flight) = (self.timeout, self.nothing_in_flight);
        let relay = Arc::new(Relay(Mutex::new(Some((self, then)))));
        Self::new(verb, claim, timeout, relay, 0).with_nothing_in_flight(nothing_in_flight)
    }

    /// Answers the call with the result of `work`, or with [`NodeError::TimedOut`] if `work` takes
    /// longer than [`timeout`](Self::timeout). For nodes whose store has an async API. Spawn the
    /// returned future.
    ///
    /// Cancel safety: if the future is dropped, the call counts as unanswered.
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

/// Counts the answers to the calls of one round.
pub(crate) trait Tally: Send + Sync {
    fn count(self: Arc<Self>, node: usize, answer: Result<Vote, NodeError>);
}

/// Ignores answers.
#[cfg(any(feature = "redis", feature = "planted-bugs"))]
struct Unheard;

#[cfg(any(feature = "redis", feature = "planted-bugs"))]
impl Tally for Unheard {
    fn count(self: Arc<Self>, _: usize, _: Result<Vote, NodeError>) {}
}

/// Receives the answer of a [relayed](Call::relay) call.
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

/// The right to cast one vote. Counts as unanswered when dropped.
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
