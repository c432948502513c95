//! A lease in the hand: the guard, and what the keeper shares with it.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::client::Core;
use crate::clock::{Clock, Moment};
use crate::detached::Detached;
use crate::error::{Error, NodeReport, Refusal};
use crate::janitor::Return;
use crate::node::{Claim, Holders, Node, Verb};
use crate::options::Options;
use crate::planted;
use crate::quorum::round::{self, Decision};
use crate::quorum::{Canvass, NodeSet, Question};

const HELD: u8 = 0;
const LOST: u8 = 1;
const CLOSED: u8 = 2;

/// A lock that is held, for a time. Released when dropped.
///
/// The lease is renewed in the background every third of its TTL. It is over when it is
/// [released](Lease::release), dropped, or [lost](Lease::lost).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, Released};
///
/// let client = Client::in_memory();
/// let lease = client.mutex("orders/42").lock().await?;
/// println!("token {} for the next {:?}", lease.token(), lease.remaining());
/// assert_eq!(lease.release().await, Released::Released);
/// # Ok(()) }
/// ```
#[must_use = "a lease that is dropped is released at once"]
pub struct Lease {
    core: Arc<Core>,
    held: Arc<Held>,
}

/// What became of a lease that was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// It was still held, and has been given back: free now where nodes confirmed, and
    /// elsewhere as soon as they can be reached, or after its TTL. (Or taken until its
    /// `min_hold` is over.)
    Released,
    /// It had been lost before: another may have held the lock meanwhile.
    WasLost,
}

/// Why a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// Its deadline came, and not enough nodes had confirmed a renewal.
    NotRenewed,
    /// A majority of nodes says that it is over: somebody broke or deleted the lock, or the
    /// nodes lost their memory.
    TakenAway,
    /// It had been held for [`max_hold`](crate::Options::max_hold).
    MaxHold,
    /// The runtime whose task renewed it has ended.
    RuntimeEnded,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotRenewed => "its deadline came without a renewal",
            Self::TakenAway => "a majority of nodes says that it is over",
            Self::MaxHold => "it had been held for as long as it may be",
            Self::RuntimeEnded => "the runtime that renewed it has ended",
        })
    }
}

/// What the keeper and the guard share about a lease.
pub(crate) struct Held {
    pub(crate) id: u64,
    /// Where the lease stands in the keeper's book; guarded by the book's lock.
    pub(crate) due: AtomicU64,
    core: std::sync::Weak<Core>,
    pub(crate) claim: Arc<Claim>,
    pub(crate) drift: Duration,
    pub(crate) timeout: Duration,
    renewal: bool,
    /// The name stays taken until then.
    keep_until: Option<Moment>,
    /// The lease does not go on beyond this.
    max_until: Moment,
    /// When the last request that the deadline rests on was sent.
    sent_at: AtomicU64,
    deadline: AtomicU64,
    state: AtomicU8,
    loss: OnceLock<Loss>,
    lost: Notify,
    /// The nodes where no request has put the claim so far.
    rounds: Mutex<Rounds>,
    #[cfg(feature = "cancellation")]
    token: tokio_util::sync::CancellationToken,
}

/// The requests that may have put the claim on nodes.
struct Rounds {
    /// Nodes that all earlier requests left untouched.
    untouched: NodeSet,
    latest: Arc<Canvass>,
    /// Whether the latest is not the first.
    extended: bool,
}

/// An EXTEND on its way.
#[derive(Clone)]
pub(crate) struct Extension {
    pub(crate) canvass: Arc<Canvass>,
    sent_at: Moment,
}

/// What an EXTEND came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Extended,
    /// Unknown is a state: a lost reply is neither yes nor no.
    Unknown,
    /// The lease is lost or was given back.
    Over,
}

/// A claim that a majority granted, on its way to become a [`Lease`].
pub(crate) struct Won {
    pub(crate) claim: Arc<Claim>,
    pub(crate) canvass: Arc<Canvass>,
    pub(crate) sent_at: Moment,
    pub(crate) deadline: Moment,
}

impl Lease {
    pub(crate) fn new(core: &Arc<Core>, won: Won, options: &Options) -> Self {
        let max_until = options
            .max_hold
            .map_or(Moment::FAR, |max_hold| won.sent_at + max_hold);
        let held = Arc::new(Held {
            id: core.next_id(),
            due: AtomicU64::new(0),
            core: Arc::downgrade(core),
            drift: options.drift_of_ttl(),
            timeout: options.timeout_of_node(),
            renewal: options.renewal,
            keep_until: (!options.min_hold.is_zero()).then(|| won.sent_at + options.min_hold),
            max_until,
            sent_at: AtomicU64::new(won.sent_at.as_nanos()),
            deadline: AtomicU64::new(won.deadline.min(max_until).as_nanos()),
            state: AtomicU8::new(HELD),
            loss: OnceLock::new(),
            lost: Notify::new(),
            rounds: Mutex::new(Rounds {
                untouched: NodeSet::all(),
                latest: won.canvass,
                extended: false,
            }),
            claim: won.claim,
            #[cfg(feature = "cancellation")]
            token: tokio_util::sync::CancellationToken::new(),
        });
        core.keeper.keep(&held);
        Self {
            core: Arc::clone(core),
            held,
        }
    }

    /// The fencing token: larger than that of every earlier lease of this name. Pass it
    /// to the resource and let that refuse a smaller one than it has seen.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.held.claim.token
    }

    /// The lock's name, as it stands on the nodes.
    #[must_use]
    pub fn name(&self) -> &crate::Name {
        &self.held.claim.name
    }

    /// Until when the lease is valid, as far as is known now. Renewal moves it.
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.held.deadline()
    }

    /// How long the lease is valid yet; zero if it is over. Local, no I/O.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if !self.held.is_open() {
            return Duration::ZERO;
        }
        let now = self.core.clock.now();
        self.held.deadline().saturating_duration_since(now)
    }

    /// Whether the lease is valid now. Local, no I/O, and right also after the process
    /// was stopped or the machine suspended.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Resolves when the lease is lost, a little before its deadline can pass. Never
    /// resolves for a lease that is released in time.
    ///
    /// Cancel safety: leaves nothing behind; may be asked for again.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # async fn work() {}
    /// # let client = leasehold::Client::in_memory();
    /// let lease = client.mutex("x").lock().await?;
    /// tokio::select! {
    ///     () = work() => println!("done"),
    ///     () = lease.lost() => println!("lost; stop at once"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn lost(&self) -> impl Future<Output = ()> + Send + 'static {
        let held = Arc::clone(&self.held);
        async move {
            loop {
                let mut lost = std::pin::pin!(held.lost.notified());
                lost.as_mut().enable();
                if held.state.load(Ordering::Acquire) == LOST {
                    return;
                }
                lost.await;
            }
        }
    }

    /// Why the lease was lost, once it is.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        match self.held.state.load(Ordering::Acquire) {
            LOST => self.held.loss.get().copied(),
            _ => None,
        }
    }

    /// Ties the lease to processes of this machine instead of this one: nodes that free the
    /// locks of dead processes at once (the embedded store) do so when all of these are
    /// dead. Renews the lease.
    ///
    /// # Errors
    /// As [`extend`](Lease::extend).
    ///
    /// Cancel safety: if dropped, the next renewal does it.
    pub async fn bind_to_processes(&self, pids: &[u32]) -> Result<(), Error> {
        self.held.claim.set_holders(Holders::Processes(pids.into()));
        self.extend().await
    }

    /// Takes the lease out of the guard's hands: it is neither renewed nor released any
    /// more, but ends with its TTL unless somebody extends it.
    ///
    /// # Errors
    /// As [`extend`](Lease::extend), which it may have to do; the lease is released then.
    ///
    /// Cancel safety: if dropped, the lease is released in the background.
    pub async fn detach(self) -> Result<Detached, Error> {
        if self.held.claim.holders() != Holders::Nobody {
            self.held.claim.set_holders(Holders::Nobody);
            self.extend().await?;
        }
        match self.close() {
            Some(_) => Ok(Detached::of_lease(&self.core, &self.held)),
            None => Err(self.held.lost_error()),
        }
    }

    /// A token that is cancelled when the lease is lost.
    #[cfg(feature = "cancellation")]
    #[must_use]
    pub fn cancellation_token(&self) -> tokio_util::sync::CancellationToken {
        self.held.token.clone()
    }

    /// Renews the lease now, for another TTL. Renewal in the background goes on as well.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lease is over. [`Error::NoMajority`] if not enough nodes
    /// answered: the old deadline stands.
    ///
    /// Cancel safety: if dropped, the nodes may keep the lock longer than the deadline
    /// says, by up to one TTL.
    pub async fn extend(&self) -> Result<(), Error> {
        let (held, core) = (&self.held, &self.core);
        if !self.is_valid() {
            held.lose(held.loss_at_deadline());
            return Err(held.lost_error());
        }
        let Some(extension) = held.start_extension(&core.nodes, &core.clock) else {
            return Err(held.lost_error());
        };
        extension.canvass.decided().await;
        match held.finish_extension(&extension, &core.clock) {
            Progress::Extended => Ok(()),
            Progress::Over => Err(held.lost_error()),
            Progress::Unknown => Err(Error::NoMajority(Box::new(
                core.refusal(&held.claim, &extension.canvass),
            ))),
        }
    }

    /// Gives the lease back and tells whether it was still held. Waits for a majority
    /// to confirm, at most the node timeout; nodes that fail are asked again in the
    /// background until the lock has expired there.
    ///
    /// Cancel safety: once polled, the release is under way and goes on if this is
    /// dropped; before that, dropping it drops the lease, which releases it too.
    pub async fn release(self) -> Released {
        let valid = self.is_valid();
        let Some(item) = self.close() else {
            return Released::WasLost;
        };
        let canvass = self.core.janitor.give_back(item);
        let decision = canvass.decided().await;
        let refuted = decision == Decision::Failed && canvass.with_round(|r| r.is_refuted());
        if valid && !refuted {
            Released::Released
        } else {
            Released::WasLost
        }
    }

    /// Takes the lease out of the keeper's hands. `None` if it was over already, in
    /// which case it is being given back.
    fn close(&self) -> Option<Return> {
        if !self.held.end(CLOSED) {
            return None;
        }
        self.core.keeper.leave(&self.held);
        Some(self.held.to_return(self.held.keep_until))
    }
}

impl Drop for Lease {
    /// Posts the claim to the janitor; does not wait.
    fn drop(&mut self) {
        if let Some(item) = self.close() {
            self.core.janitor.post(item);
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("name", self.name())
            .field("token", &self.token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

impl Held {
    pub(crate) fn deadline(&self) -> Moment {
        Moment::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state.load(Ordering::Acquire) == HELD
    }

    pub(crate) fn renews(&self) -> bool {
        // A deadline at `max_until` cannot move any more.
        self.renewal && self.deadline() < self.max_until
    }

    /// The lost signal fires so long before the deadline that the holder hears it
    /// before the deadline can pass.
    pub(crate) fn lost_at(&self) -> Moment {
        if planted::on(planted::Bug::LostTooLate) {
            return self.deadline();
        }
        let margin =
            (self.claim.ttl / 50).clamp(Duration::from_millis(1), Duration::from_millis(100));
        self.deadline().saturating_sub(margin)
    }

    pub(crate) fn next_renewal(&self) -> Moment {
        if !self.renews() {
            return Moment::FAR;
        }
        Moment::from_nanos(self.sent_at.load(Ordering::Acquire)) + self.claim.ttl / 3
    }

    pub(crate) fn retry_pause(&self) -> Duration {
        (self.claim.ttl / 20).min(Duration::from_millis(250))
    }

    /// Sends an EXTEND to all nodes: a majority of all N must agree, not of those that
    /// granted the lease. `None` if the lease is over.
    ///
    /// The lock makes this and giving back take turns. A lease ends before its return is
    /// made out, so no EXTEND is sent after its RELEASE; and a return that is made out
    /// afterwards knows of this EXTEND.
    pub(crate) fn start_extension(
        &self,
        nodes: &[Arc<dyn Node>],
        clock: &Clock,
    ) -> Option<Extension> {
        let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_open() {
            return None;
        }
        // Before the first byte is sent.
        let sent_at = clock.now();
        let question = Question::new(Verb::Extend, &self.claim, self.timeout);
        let canvass = Canvass::send(nodes, question);
        let earlier = rounds.latest.untouched();
        rounds.untouched = rounds.untouched.intersect(earlier);
        rounds.latest = Arc::clone(&canvass);
        rounds.extended = true;
        Some(Extension { canvass, sent_at })
    }

    /// Takes note of what an EXTEND came to.
    pub(crate) fn finish_extension(&self, extension: &Extension, clock: &Clock) -> Progress {
        let now = clock.now();
        // Past the deadline the lease is lost, whatever a server says later.
        if !self.is_open() || now >= self.deadline() {
            self.lose(self.loss_at_deadline());
            return Progress::Over;
        }
        let (carried, refuted) = extension
            .canvass
            .with_round(|r| (r.decision() == Some(Decision::Carried), r.is_refuted()));
        // Planted bug, or nothing.
        let carried = carried || self.is_carried_by_subset(extension);
        if carried {
            let sent_at = extension.sent_at;
            if let Some(deadline) = round::deadline(sent_at, self.claim.ttl, self.drift, now) {
                let deadline = deadline.min(self.max_until);
                // An older extension that ends later must not take anything back.
                self.deadline
                    .fetch_max(deadline.as_nanos(), Ordering::AcqRel);
                self.sent_at.fetch_max(sent_at.as_nanos(), Ordering::AcqRel);
                return Progress::Extended;
            }
        } else if refuted {
            self.lose(Loss::TakenAway);
            return Progress::Over;
        }
        Progress::Unknown
    }

    /// Planted bug: a majority of the nodes that the lease may be on, instead of all N.
    fn is_carried_by_subset(&self, extension: &Extension) -> bool {
        if !planted::on(planted::Bug::SubsetMajority) {
            return false;
        }
        let rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let nodes = extension.canvass.with_round(|r| r.stories().len());
        let subset = (0..nodes).filter(|node| !rounds.untouched.contains(*node));
        extension.canvass.granted().len() >= round::Round::majority(subset.count())
    }

    /// The lease is lost: tells the holder, and gives back what is left of it.
    pub(crate) fn lose(&self, why: Loss) {
        if !self.end(LOST) {
            return;
        }
        // Only the first to end the lease comes here.
        let _ = self.loss.set(why);
        tracing::warn!(name = %self.claim.name, token = self.claim.token, %why, "lease lost");
        self.lost.notify_waiters();
        #[cfg(feature = "cancellation")]
        self.token.cancel();
        if let Some(core) = self.core.upgrade() {
            core.keeper.leave(self);
            core.janitor.post(self.to_return(None));
        }
    }

    /// Why it is lost when its deadline has come.
    pub(crate) fn loss_at_deadline(&self) -> Loss {
        match self.deadline() < self.max_until {
            true => Loss::NotRenewed,
            false => Loss::MaxHold,
        }
    }

    /// Ends the lease one way or the other; only the first to end it gets `true`.
    fn end(&self, how: u8) -> bool {
        self.state
            .compare_exchange(HELD, how, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    fn to_return(&self, keep_until: Option<Moment>) -> Return {
        let rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let skip = rounds.untouched.intersect(rounds.latest.untouched());
        // Where the only request was answered, nothing of the claim can arrive late.
        let settled = match rounds.extended {
            true => NodeSet::default(),
            false => rounds.latest.granted(),
        };
        // The last EXTEND was sent before the deadline, so within a TTL of `sent_at`;
        // what it set has expired another TTL after that.
        let sent_at = Moment::from_nanos(self.sent_at.load(Ordering::Acquire));
        Return {
            claim: Arc::clone(&self.claim),
            keep_until,
            timeout: self.timeout,
            skip,
            settled,
            until: sent_at + self.claim.ttl * 2 + self.timeout,
        }
    }

    fn lost_error(&self) -> Error {
        Error::Lost {
            name: self.claim.name.clone(),
            token: self.claim.token,
        }
    }
}

impl Core {
    /// The story of a refused claim.
    pub(crate) fn refusal(&self, claim: &Claim, canvass: &Canvass) -> Refusal {
        let stories = canvass.with_round(|round| round.stories().to_vec());
        let reports = self.nodes.iter().zip(stories);
        Refusal {
            name: claim.name.clone(),
            majority: round::Round::majority(self.nodes.len()),
            nodes: reports
                .map(|(node, story)| NodeReport {
                    node: node.label().to_owned(),
                    story,
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::Progress;
    use crate::{Client, MemoryNode, Moment, TimeSource};

    /// A renewal that comes late must not bring a lock back that was given back.
    #[tokio::test]
    async fn nothing_is_extended_after_the_end() {
        let client = Client::in_memory();
        let lease = client.mutex("a").lock().await.unwrap();
        let (core, held) = (lease.core.clone(), lease.held.clone());
        assert!(held.start_extension(&core.nodes, &core.clock).is_some());
        lease.release().await;
        assert!(held.start_extension(&core.nodes, &core.clock).is_none());
        assert!(client.mutex("a").try_lock().await.unwrap().is_some());
    }

    /// A clock that goes on when told to, as after a suspend: no timer has noticed yet.
    #[derive(Clone, Default)]
    struct Jumping(Arc<AtomicU64>);

    impl TimeSource for Jumping {
        fn now(&self) -> Moment {
            Moment::from_origin(Duration::from_millis(self.0.load(Ordering::SeqCst)))
        }

        fn unix_us(&self) -> u64 {
            1_800_000_000_000_000 + self.0.load(Ordering::SeqCst) * 1000
        }
    }

    /// Past the deadline the lease is lost, also if nothing but the clock says so yet, and
    /// whatever a server says.
    #[tokio::test]
    async fn an_extend_is_not_believed_past_the_deadline() {
        let clock = Jumping::default();
        let node = MemoryNode::with_time_source("memory", Arc::new(clock.clone()));
        clock.0.store(1, Ordering::SeqCst);
        let builder = Client::builder().time_source(clock.clone());
        let client = builder.custom_node(node).build().unwrap();
        let lease = client.mutex("a").lock().await.unwrap();
        let (core, deadline) = (lease.core.clone(), lease.deadline());
        let extension = lease
            .held
            .start_extension(&core.nodes, &core.clock)
            .unwrap();
        clock.0.store(9_950, Ordering::SeqCst);
        assert!(!lease.is_valid());
        let progress = lease.held.finish_extension(&extension, &core.clock);
        assert_eq!(progress, Progress::Over);
        assert_eq!(lease.deadline(), deadline);
        lease.lost().await;
    }
}
