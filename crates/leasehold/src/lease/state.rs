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
use crate::lease::grant::{Grant, Won, least_left};
use crate::lease::janitor::Return;
use crate::node::{Claim, Holders, Node, Verb, Vote};
use crate::planted;
use crate::quorum::round::{Decision, Round};
use crate::quorum::{Broadcast, Question};

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

/// What the keeper and the guard share about a lease.
pub(crate) struct Held {
    pub(crate) id: u64,
    /// Where the lease stands in the keeper's schedule; guarded by the schedule's lock.
    pub(crate) due: AtomicU64,
    core: Weak<Core>,
    /// The name as the caller gave it.
    pub(crate) name: Name,
    pub(crate) grant: Arc<Grant>,
    /// That of the claim, or a later one of its block.
    pub(crate) token: u64,
    /// What this holder has to give to the next of this process.
    turn: Mutex<Option<LocalTurn>>,
    renewal: bool,
    /// The name stays taken until then.
    keep_until: Option<Moment>,
    /// The lease does not go on beyond this.
    max_until: Moment,
    /// [`HELD`], [`CLOSED`], or why it was lost.
    state: AtomicU8,
    lost: Notify,
    #[cfg(feature = "cancellation")]
    pub(crate) cancellation: tokio_util::sync::CancellationToken,
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
            name: core.name_of(&won.grant.claim.name),
            renewal: options.renewal,
            keep_until: (!options.min_hold.is_zero()).then(|| since + options.min_hold),
            max_until,
            state: AtomicU8::new(HELD),
            lost: Notify::new(),
            token: won.token,
            turn: Mutex::new(turn),
            grant: won.grant,
            #[cfg(feature = "cancellation")]
            cancellation: tokio_util::sync::CancellationToken::new(),
        }
    }

    pub(crate) fn claim(&self) -> &Arc<Claim> {
        &self.grant.claim
    }

    pub(crate) fn deadline(&self) -> Moment {
        self.grant.deadline().min(self.max_until)
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
            (self.claim().ttl / 50).clamp(Duration::from_millis(1), Duration::from_millis(100));
        self.deadline().saturating_sub(margin)
    }

    pub(crate) fn next_renewal(&self) -> Moment {
        if !self.renews() {
            return Moment::FAR;
        }
        self.grant.renew_at()
    }

    pub(crate) fn retry_pause(&self) -> Duration {
        (self.claim().ttl / 20).min(Duration::from_millis(250))
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
        let mut rounds = self.grant.rounds();
        if !self.is_open() {
            return None;
        }
        // Before the first byte is sent.
        let sent_at = clock.now();
        let question = Question::new(Verb::Extend, self.claim(), self.grant.timeout);
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
            if self.grant.extended(extension.sent_at, now) {
                return Progress::Extended;
            }
        } else if decision == Some(Decision::Refuted) {
            self.lose(taken_away(self.claim(), &extension.broadcast.round()));
            return Progress::Over;
        }
        Progress::Unknown
    }

    /// Planted bug: a majority of the nodes that the lease may be on, instead of all N.
    fn is_carried_by_subset(&self, extension: &Extension) -> bool {
        if !planted::on(planted::Bug::SubsetMajority) {
            return false;
        }
        let untouched = self.grant.rounds().untouched_before();
        let nodes = extension.broadcast.with_round(|r| r.stories().len());
        let subset = (0..nodes).filter(|node| !untouched.contains(*node));
        extension.broadcast.granted().len() >= Round::majority(subset.count())
    }

    /// The lease is lost: tells the holder, and gives back what is left of it.
    pub(crate) fn lose(&self, why: Loss) {
        if !self.end(why as u8) {
            return;
        }
        tracing::warn!(name = %self.claim().name, token = self.token, %why, "lease lost");
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
            && self.claim().holders() == Holders::ThisProcess
            && self.claim().is_fenced();
        let left = self.deadline().saturating_duration_since(now);
        // Of one that was handed over and is about to be extended, little is left.
        let handed_over =
            self.renews() && self.grant.renew_at() < self.grant.won_at + self.claim().ttl / 3;
        let least = match handed_over {
            true => least_left(self.claim().ttl),
            false => self.claim().ttl / 2,
        };
        if !plain || left < least {
            return None;
        }
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let passes = self.token - self.claim().token;
        turn.as_ref()
            .filter(|turn| turn.is_wanted(self.grant.won_at, passes, now))?;
        // Ended first, so that this holder adds no request to the grant any more.
        if !self.end(CLOSED) {
            return None;
        }
        let won = Won {
            grant: Arc::clone(&self.grant),
            token: self.token + 1,
            taken_at: now,
        };
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
        self.grant.to_return(keep_until)
    }

    /// Why the lease is over, with what the nodes said to its last renewal.
    pub(crate) fn lost_error(&self) -> Error {
        let renewal = self.grant.rounds().last_renewal();
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
