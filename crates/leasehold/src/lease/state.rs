//! A lease while it is held: what its guard and the keeper share.

use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;

use crate::acquire::local_queue::LocalTurn;
use crate::base::clock::{Clock, Moment};
use crate::base::error::{Error, Story};
use crate::base::name::Name;
use crate::client::core::Core;
use crate::client::options::Options;
use crate::lease::janitor::Return;
use crate::node::{Claim, DEAD_AFTER, HANDED_OVER, Holders, Node, Verb, Vote};
use crate::planted;
use crate::quorum::round::{self, Decision, Round};
use crate::quorum::{Broadcast, NodeSet, Question};

/// The states of a lease. Others are a [`Loss`].
const HELD: u8 = 0;
const CLOSED: u8 = 1;

/// Why a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum Loss {
    /// Its deadline came, and not enough nodes had confirmed a renewal.
    NotRenewed = 2,
    /// A majority of nodes says that it is over: another client has acquired the lock (which
    /// one, says [`Error::holder`]), or the nodes lost their memory.
    TakenAway,
    /// Its lock was released by another than its holder, and nobody has acquired it since:
    /// [`break_lock`](crate::Client::break_lock), or a release with its owner value.
    Broken,
    /// It had been held for [`max_hold`](crate::Options::max_hold).
    MaxHold,
    /// The runtime whose task renewed it has shut down.
    RuntimeEnded,
}

const LOSSES: [Loss; 5] = [
    Loss::NotRenewed,
    Loss::TakenAway,
    Loss::Broken,
    Loss::MaxHold,
    Loss::RuntimeEnded,
];

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

/// Why a claim is over that a majority of nodes does not extend any more. Only a release raises
/// the fence to one above the claim's token: tokens of claims are multiples of
/// [`BLOCK`](crate::acquire::proposer::BLOCK).
pub(crate) fn taken_away(claim: &Claim, round: &Round) -> Loss {
    let released = Vote::Lost {
        fence: claim.token + 1,
    };
    let said = |so: &dyn Fn(&Vote) -> bool| {
        let mut stories = round.stories().iter();
        stories.any(|story| matches!(story, Story::Voted(vote) if so(vote)))
    };
    let held = said(&|vote| matches!(vote, Vote::Held { .. }));
    match said(&|vote| *vote == released) && !held {
        true => Loss::Broken,
        false => Loss::TakenAway,
    }
}

/// So much of a lease that was handed over must be left to take it.
pub(crate) fn least_left(ttl: Duration) -> Duration {
    (ttl / 2).min(HANDED_OVER / 4)
}

/// A claim that a majority granted, on its way to become a lease.
pub(crate) struct Won {
    pub(crate) claim: Arc<Claim>,
    pub(crate) rounds: Rounds,
    /// When the last request that the deadline rests on was sent.
    pub(crate) sent_at: Moment,
    pub(crate) deadline: Moment,
    /// When it is to be extended.
    pub(crate) renew_at: Moment,
    /// The holder's own, which is the claim's for the first.
    pub(crate) token: u64,
    /// When the claim was asked for, and when this holder got it.
    pub(crate) won_at: Moment,
    pub(crate) taken_at: Moment,
    pub(crate) timeout: Duration,
    pub(crate) drift: Duration,
    pub(crate) label: Arc<str>,
}

impl Won {
    /// Whether a call with these options can take over what another has won.
    pub(crate) fn fits(&self, options: &Options) -> bool {
        let same = (self.claim.ttl, &self.label) == (options.ttl, &options.label);
        // The deadline was counted with this drift.
        let timing = (self.drift, self.timeout);
        let same = same && self.claim.is_fenced() >= options.fencing;
        same && !options.detached && timing == (options.drift_of_ttl(), options.timeout_of_node())
    }

    /// To be given back, because nobody wants it.
    pub(crate) fn into_return(self) -> Return {
        to_return(&self.claim, &self.rounds, self.timeout, self.sent_at, None)
    }
}

/// What the keeper and the guard share about a lease.
pub(crate) struct Held {
    pub(crate) id: u64,
    /// Where the lease stands in the keeper's book; guarded by the book's lock.
    pub(crate) due: AtomicU64,
    core: Weak<Core>,
    /// The name as the caller gave it.
    pub(crate) name: Name,
    pub(crate) claim: Arc<Claim>,
    /// That of the claim, or a later one of its block.
    pub(crate) token: u64,
    won_at: Moment,
    /// What this holder has to give to the next of this process.
    turn: Mutex<Option<LocalTurn>>,
    label: Arc<str>,
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
    renew_at: AtomicU64,
    /// [`HELD`], [`CLOSED`], or why it was lost.
    state: AtomicU8,
    lost: Notify,
    /// The nodes where no request has put the claim so far.
    rounds: Mutex<Rounds>,
    #[cfg(feature = "cancellation")]
    pub(crate) cancellation: tokio_util::sync::CancellationToken,
}

/// The requests that may have put the claim on nodes.
#[derive(Clone)]
pub(crate) struct Rounds {
    /// Nodes that all requests before the latest left untouched.
    untouched: NodeSet,
    latest: Latest,
}

#[derive(Clone)]
enum Latest {
    /// The ACQUIRE that won the claim. There was no request after it.
    Acquire(Arc<Broadcast>),
    /// These nodes granted the claim when its turn came. There was no request after that.
    HandedOver(NodeSet),
    Extend(Arc<Broadcast>),
}

impl Rounds {
    /// Only this request so far.
    pub(crate) fn first(acquire: Arc<Broadcast>) -> Self {
        Self {
            untouched: NodeSet::all(),
            latest: Latest::Acquire(acquire),
        }
    }

    /// This request, of a claim that has stood in line. It may stand there still on nodes that did
    /// not grant it.
    pub(crate) fn after_waiting(acquire: Arc<Broadcast>) -> Self {
        Self {
            untouched: NodeSet::default(),
            latest: Latest::Acquire(acquire),
        }
    }

    /// These nodes granted the claim when its turn came.
    pub(crate) fn handed_over(granted: NodeSet) -> Self {
        Self {
            untouched: NodeSet::default(),
            latest: Latest::HandedOver(granted),
        }
    }

    /// Where nothing has to be released.
    fn untouched(&self) -> NodeSet {
        match &self.latest {
            Latest::Acquire(latest) | Latest::Extend(latest) => {
                self.untouched.intersect(latest.untouched())
            }
            Latest::HandedOver(_) => self.untouched,
        }
    }

    /// Where the only request was answered: nothing of the claim can arrive late there.
    fn settled(&self) -> NodeSet {
        match &self.latest {
            Latest::Acquire(acquire) => acquire.granted(),
            Latest::HandedOver(granted) => *granted,
            Latest::Extend(_) => NodeSet::default(),
        }
    }

    /// Adds an EXTEND.
    fn extend(&mut self, extend: Arc<Broadcast>) {
        self.untouched = self.untouched();
        self.latest = Latest::Extend(extend);
    }
}

/// An EXTEND on its way.
#[derive(Clone)]
pub(crate) struct Extension {
    pub(crate) broadcast: Arc<Broadcast>,
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

impl Held {
    pub(crate) fn new(
        core: &Arc<Core>,
        won: Won,
        options: &Options,
        turn: Option<LocalTurn>,
    ) -> Self {
        let since = won.taken_at;
        let max_until = options
            .max_hold
            .map_or(Moment::FAR, |max_hold| since + max_hold);
        Self {
            id: core.next_id(),
            due: AtomicU64::new(0),
            core: Arc::downgrade(core),
            name: core.name_of(&won.claim.name),
            drift: options.drift_of_ttl(),
            timeout: options.timeout_of_node(),
            renewal: options.renewal,
            keep_until: (!options.min_hold.is_zero()).then(|| since + options.min_hold),
            max_until,
            sent_at: AtomicU64::new(won.sent_at.as_nanos()),
            deadline: AtomicU64::new(won.deadline.min(max_until).as_nanos()),
            renew_at: AtomicU64::new(won.renew_at.as_nanos()),
            state: AtomicU8::new(HELD),
            lost: Notify::new(),
            rounds: Mutex::new(won.rounds),
            token: won.token,
            won_at: won.won_at,
            turn: Mutex::new(turn),
            label: won.label,
            claim: won.claim,
            #[cfg(feature = "cancellation")]
            cancellation: tokio_util::sync::CancellationToken::new(),
        }
    }

    pub(crate) fn deadline(&self) -> Moment {
        Moment::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state.load(Ordering::Acquire) == HELD
    }

    /// Why it was lost, if it was.
    pub(crate) fn loss(&self) -> Option<Loss> {
        let state = self.state.load(Ordering::Acquire);
        let lost = |loss: &Loss| *loss as u8 == state;
        LOSSES.into_iter().find(lost)
    }

    /// Whether the lease is lost. The clock decides, not the keeper: after this process was
    /// stopped, its tasks may run before the keeper's does.
    pub(crate) fn is_lost_at(&self, now: Moment) -> bool {
        if self.is_open() && now >= self.deadline() {
            self.lose(self.loss_at_deadline());
        }
        self.loss().is_some()
    }

    /// Resolves when the lease is lost. Reads the clock on every poll.
    ///
    /// Cancel safety: leaves nothing behind.
    pub(crate) async fn lost(&self, clock: &Clock) {
        let mut signal = std::pin::pin!(self.lost_signal(clock));
        let by_flag = planted::on(planted::Bug::LostByFlag);
        poll_fn(|cx| match !by_flag && self.is_lost_at(clock.now()) {
            true => Poll::Ready(()),
            false => signal.as_mut().poll(cx),
        })
        .await;
    }

    /// Wakes its task when the keeper says that the lease is lost, and at the deadline: the
    /// keeper's runtime may not be running.
    async fn lost_signal(&self, clock: &Clock) {
        loop {
            let mut lost = std::pin::pin!(self.lost.notified());
            lost.as_mut().enable();
            if self.is_lost_at(clock.now()) {
                return;
            }
            // A lease that was released is never lost.
            tokio::select! {
                biased;
                () = lost => {}
                () = clock.timer_at(self.deadline()), if self.is_open() => {}
            }
        }
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
        self.renew_at()
    }

    fn renew_at(&self) -> Moment {
        Moment::from_nanos(self.renew_at.load(Ordering::Acquire))
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
        let broadcast = Broadcast::send(nodes, question);
        rounds.extend(Arc::clone(&broadcast));
        Some(Extension { broadcast, sent_at })
    }

    /// Takes note of what an EXTEND came to.
    pub(crate) fn finish_extension(&self, extension: &Extension, clock: &Clock) -> Progress {
        let now = clock.now();
        // Past the deadline the lease is lost, whatever a server says later.
        if !self.is_open() || now >= self.deadline() {
            self.lose(self.loss_at_deadline());
            return Progress::Over;
        }
        let decision = extension.broadcast.with_round(Round::decision);
        // The second is a planted bug, or nothing.
        if decision == Some(Decision::Carried) || self.is_carried_by_subset(extension) {
            let sent_at = extension.sent_at;
            if let Some(deadline) = round::deadline(sent_at, self.claim.ttl, self.drift, now) {
                let deadline = deadline.min(self.max_until);
                // An older extension that ends later must not take anything back.
                self.deadline
                    .fetch_max(deadline.as_nanos(), Ordering::AcqRel);
                self.sent_at.fetch_max(sent_at.as_nanos(), Ordering::AcqRel);
                let renew_at = sent_at + self.claim.ttl / 3;
                self.renew_at
                    .fetch_max(renew_at.as_nanos(), Ordering::AcqRel);
                return Progress::Extended;
            }
        } else if decision == Some(Decision::Refuted) {
            self.lose(taken_away(&self.claim, &extension.broadcast.round()));
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
        let nodes = extension.broadcast.with_round(|r| r.stories().len());
        let subset = (0..nodes).filter(|node| !rounds.untouched.contains(*node));
        extension.broadcast.granted().len() >= Round::majority(subset.count())
    }

    /// The lease is lost: tells the holder, and gives back what is left of it.
    pub(crate) fn lose(&self, why: Loss) {
        if !self.end(why as u8) {
            return;
        }
        tracing::warn!(name = %self.claim.name, token = self.token, %why, "lease lost");
        self.lost.notify_waiters();
        #[cfg(feature = "cancellation")]
        self.cancellation.cancel();
        if let Some(core) = self.core.upgrade() {
            core.keeper.leave(self);
            core.janitor.post(self.to_return(None));
        }
        self.end_turn();
    }

    fn take_turn(&self) -> Option<LocalTurn> {
        self.turn
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Ends the lease in order by passing its claim on to the next of this process who waits
    /// for it. `None` if nobody does, or if so little is left of it, or it has been passed on
    /// so often, that it had better be given back.
    pub(crate) fn pass_on(&self, now: Moment) -> Option<()> {
        // Without a token there is none to count on with.
        let plain = self.keep_until.is_none()
            && self.claim.holders() == Holders::ThisProcess
            && self.claim.is_fenced();
        let left = self.deadline().saturating_duration_since(now);
        // Of one that was handed over and is about to be extended, little is left.
        let handed_over = self.renews() && self.renew_at() < self.won_at + self.claim.ttl / 3;
        let least = match handed_over {
            true => least_left(self.claim.ttl),
            false => self.claim.ttl / 2,
        };
        if !plain || left < least {
            return None;
        }
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let passes = self.token - self.claim.token;
        turn.as_ref()
            .filter(|turn| turn.is_wanted(self.won_at, passes, now))?;
        // Ended before the rounds are copied, so that they are complete.
        if !self.end(CLOSED) {
            return None;
        }
        let rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let won = Won {
            claim: Arc::clone(&self.claim),
            rounds: rounds.clone(),
            sent_at: Moment::from_nanos(self.sent_at.load(Ordering::Acquire)),
            deadline: self.deadline(),
            renew_at: self.renew_at(),
            token: self.token + 1,
            won_at: self.won_at,
            taken_at: now,
            timeout: self.timeout,
            drift: self.drift,
            label: Arc::clone(&self.label),
        };
        drop(rounds);
        let taken = turn.take()?;
        drop(turn);
        taken.pass(won);
        Some(())
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

    /// Ends the lease in order; what is to be given back. `None` if it was over already, in
    /// which case it is being given back.
    /// The name stays taken until `keep_until`, or for as long as the options say.
    pub(crate) fn close(&self, keep_until: Option<Moment>) -> Option<Return> {
        let keep_until = keep_until.max(self.keep_until);
        self.end(CLOSED).then(|| self.to_return(keep_until))
    }

    /// The next of this process may try. After what there is to give back has been sent.
    pub(crate) fn end_turn(&self) {
        drop(self.take_turn());
    }

    fn to_return(&self, keep_until: Option<Moment>) -> Return {
        let rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let sent_at = Moment::from_nanos(self.sent_at.load(Ordering::Acquire));
        to_return(&self.claim, &rounds, self.timeout, sent_at, keep_until)
    }

    /// Why the lease is over, with what the nodes said to its last renewal.
    pub(crate) fn lost_error(&self) -> Error {
        let rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let renewal = match &rounds.latest {
            Latest::Extend(renewal) => Some(renewal.round()),
            _ => None,
        };
        drop(rounds);
        let core = self.core.upgrade();
        let nodes = core.zip(renewal);
        Error::Lost {
            name: self.name.clone(),
            token: self.token,
            // One that was lost without notice had been released by another.
            why: self.loss().unwrap_or(Loss::TakenAway),
            nodes: nodes.map_or_else(Vec::new, |(core, renewal)| core.answers(&renewal)),
        }
    }
}

/// What has to be given back of a claim that was won.
fn to_return(
    claim: &Arc<Claim>,
    rounds: &Rounds,
    timeout: Duration,
    sent_at: Moment,
    keep_until: Option<Moment>,
) -> Return {
    Return {
        claim: Arc::clone(claim),
        keep_until,
        timeout,
        skip: rounds.untouched(),
        settled: rounds.settled(),
        // The last EXTEND was sent before the deadline, so within a TTL of `sent_at`;
        // what it set has expired another TTL after that, and nobody stands in line any more.
        until: sent_at + (claim.ttl * 2).max(DEAD_AFTER + HANDED_OVER) + timeout,
    }
}
