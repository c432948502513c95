//! A lease while it is held: what its guard and the keeper share.

use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;

use crate::acquire::local_queue::LocalTurn;
use crate::base::clock::{Clock, Moment};
use crate::base::error::{Error, Loss, NodeOutcome};
use crate::base::name::Name;
use crate::base::past_lease::LeaseEnd;
use crate::client::core::Core;
use crate::client::options::Options;
use crate::lease::grant::{Grant, Won, least_left};
use crate::lease::holding::Holding;
use crate::lease::janitor::PendingRelease;
use crate::node::{Claim, Holders, Verb, Vote, majority};
use crate::observe::sight::{EndedLease, Subject};
use crate::observe::{End, Renewal, Renews};
use crate::planted;
use crate::quorum::round::{Decision, Round};
use crate::quorum::{Broadcast, Nodes, Question};

/// The states of a lease. Larger numbers say why it was lost: [`FIRST_LOSS`] and the place of the
/// reason in [`LOSSES`].
const HELD: u8 = 0;
const CLOSED: u8 = 1;
const FIRST_LOSS: u8 = 2;

/// All reasons, in the order of their declaration.
const LOSSES: [Loss; 5] = [
    Loss::NotRenewed,
    Loss::TakenAway,
    Loss::Broken,
    Loss::MaxHold,
    Loss::RuntimeEnded,
];

/// Returns why a claim has ended that a majority of nodes no longer extends. Only a release raises
/// the fence to one above the claim's token: tokens of claims are multiples of
/// [`BLOCK`](crate::acquire::proposer::BLOCK).
pub(crate) fn taken_away(claim: &Claim, round: &Round) -> Loss {
    let released = Vote::Lost {
        fence: claim.token + 1,
    };
    let said = |so: &dyn Fn(&Vote) -> bool| {
        let mut outcomes = round.outcomes().iter();
        outcomes.any(|outcome| matches!(outcome, NodeOutcome::Voted(vote) if so(vote)))
    };
    let held = said(&|vote| matches!(vote, Vote::Held { .. }));
    match said(&|vote| *vote == released) && !held {
        true => Loss::Broken,
        false => Loss::TakenAway,
    }
}

/// The state of a lease that the keeper and the guard share.
pub(crate) struct Held {
    pub(crate) id: u64,
    /// The position of the lease in the keeper's schedule; protected by the schedule's lock.
    pub(crate) due: AtomicU64,
    core: Weak<Core>,
    /// The name as the caller gave it.
    pub(crate) name: Name,
    pub(crate) grant: Arc<Grant>,
    /// The token of the claim, or a later one of its block.
    pub(crate) token: u64,
    /// The turn of this process for the name, which passes to the next task.
    turn: Mutex<Option<LocalTurn>>,
    renewal: bool,
    taken_at: Moment,
    /// Until when the name stays taken after a release.
    keep_until: OnceLock<Moment>,
    /// The end of the lease, even if it is renewed.
    max_until: Moment,
    /// [`HELD`], [`CLOSED`], or the reason for the loss.
    state: AtomicU8,
    /// How many guards there are; see [`Lease::again`](crate::Lease::again).
    guards: AtomicUsize,
    lost: Notify,
    /// The lease in events and spans. `None` if there are neither.
    holding: Option<Box<Holding>>,
    #[cfg(feature = "cancellation")]
    pub(crate) cancellation: tokio_util::sync::CancellationToken,
}

/// An EXTEND that was sent.
#[derive(Clone)]
pub(crate) struct Extension {
    pub(crate) broadcast: Arc<Broadcast>,
    sent_at: Moment,
    purpose: Purpose,
}

/// Why an EXTEND is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Renewal,
    /// Nodes learn of other holders of the claim. This comes when nothing is due, so it says nothing
    /// about how well renewals work, and is not reported as one.
    NewHolders,
}

/// The result of an EXTEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Extended,
    /// No majority has answered. A lost reply is neither yes nor no.
    Unknown,
    /// The lease was lost or released.
    Over,
}

impl Held {
    pub(crate) fn new(
        core: &Arc<Core>,
        won: Won,
        options: &Options,
        turn: Option<LocalTurn>,
        holding: Option<Box<Holding>>,
    ) -> Self {
        core.sight().began();
        let taken_at = won.taken_at;
        let max_until = options
            .max_hold
            .map_or(Moment::FAR, |max_hold| taken_at + max_hold);
        let held = Self {
            id: core.next_id(),
            due: AtomicU64::new(0),
            core: Arc::downgrade(core),
            name: core.name_of(&won.grant.claim.name),
            renewal: options.renewal,
            taken_at,
            keep_until: OnceLock::new(),
            max_until,
            state: AtomicU8::new(HELD),
            guards: AtomicUsize::new(1),
            lost: Notify::new(),
            token: won.token,
            turn: Mutex::new(turn),
            grant: won.grant,
            holding,
            #[cfg(feature = "cancellation")]
            cancellation: tokio_util::sync::CancellationToken::new(),
        };
        held.set_min_hold(options.min_hold);
        held
    }

    /// Keeps the name taken for this long from when the lease began, even if the lease is released
    /// earlier. The first time counts.
    pub(crate) fn set_min_hold(&self, min_hold: Duration) {
        if !min_hold.is_zero() {
            let _ = self.keep_until.set(self.taken_at + min_hold);
        }
    }

    /// The lease of a claim that replaces this one's, on the same terms.
    pub(crate) fn continued_by(&self, core: &Arc<Core>, won: Won) -> Self {
        Self {
            id: core.next_id(),
            due: AtomicU64::new(0),
            core: Weak::clone(&self.core),
            name: self.name.clone(),
            renewal: self.renewal,
            taken_at: self.taken_at,
            keep_until: self.keep_until.clone(),
            max_until: self.max_until,
            state: AtomicU8::new(HELD),
            guards: AtomicUsize::new(1),
            lost: Notify::new(),
            token: won.token,
            turn: Mutex::new(None),
            grant: won.grant,
            holding: self.holding.as_deref().map(Holding::take),
            #[cfg(feature = "cancellation")]
            cancellation: tokio_util::sync::CancellationToken::new(),
        }
    }

    pub(crate) fn claim(&self) -> &Arc<Claim> {
        &self.grant.claim
    }

    /// The lock in events.
    pub(super) fn subject(&self) -> Option<&Subject> {
        self.holding.as_ref()?.subject.as_ref()
    }

    /// How long the lease has been held. Zero if that is not reported.
    pub(super) fn held_for(&self, clock: &Clock) -> Duration {
        match self.subject() {
            None => Duration::ZERO,
            Some(_) => clock.now().saturating_duration_since(self.taken_at),
        }
    }

    /// Closes the span of the lease.
    pub(super) fn end_span(&self, end: End) {
        if let Some(holding) = &self.holding {
            holding.end(end);
        }
    }

    /// How the lease ends if it is lost for this reason.
    pub(super) fn end_by(&self, why: Loss) -> End {
        let renews = match self.renewal {
            true => Renews::InTime,
            false => Renews::Never,
        };
        End::of_loss(why, renews)
    }

    pub(crate) fn deadline(&self) -> Moment {
        self.grant.deadline().min(self.max_until)
    }

    /// Whether the time of [`max_hold`](crate::Options::max_hold) is over.
    pub(crate) fn is_over_max_hold(&self, now: Moment) -> bool {
        now >= self.max_until
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state.load(Ordering::Acquire) == HELD
    }

    pub(crate) fn add_guard(&self) {
        self.guards.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a guard. Returns whether it was the last.
    pub(crate) fn remove_guard(&self) -> bool {
        self.guards.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub(crate) fn has_one_guard(&self) -> bool {
        self.guards.load(Ordering::Acquire) == 1
    }

    /// Returns why the lease was lost. `None` if it was not lost.
    pub(crate) fn loss(&self) -> Option<Loss> {
        let state = self.state.load(Ordering::Acquire);
        let place = state.checked_sub(FIRST_LOSS)?;
        LOSSES.get(usize::from(place)).copied()
    }

    /// Whether the lease is lost. The clock decides, not the keeper: after this process was
    /// stopped, other tasks may run before the keeper's task.
    pub(crate) fn is_lost_at(&self, now: Moment) -> bool {
        if self.is_open() && now >= self.deadline() {
            self.lose(self.loss_at_deadline());
        }
        self.loss().is_some()
    }

    /// Resolves when the lease is lost. Reads the clock on every poll.
    ///
    /// Cancel safety: dropping the future has no effect.
    pub(crate) async fn lost(&self, clock: &Clock) {
        let mut signal = std::pin::pin!(self.lost_signal(clock));
        let by_flag = planted::on(planted::Bug::LostByFlag);
        poll_fn(|cx| match !by_flag && self.is_lost_at(clock.now()) {
            true => Poll::Ready(()),
            false => signal.as_mut().poll(cx),
        })
        .await;
    }

    /// Wakes the task when the keeper reports the loss, and at the deadline, because the keeper's
    /// runtime may not be running.
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

    /// Returns when the lost signal fires: early enough that the holder is notified before the
    /// deadline passes.
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

    /// Sends an EXTEND to all nodes. A majority of all N must agree, not of those that granted the
    /// lease. `None` if the lease has ended.
    ///
    /// The lock on `rounds` excludes a release at the same time. A lease ends before its
    /// [`PendingRelease`] is created, so no EXTEND is sent after its RELEASE; and a release that is
    /// created afterwards takes this EXTEND into account.
    pub(crate) fn start_extension(
        &self,
        nodes: &Nodes,
        clock: &Clock,
        purpose: Purpose,
    ) -> Option<Extension> {
        let mut rounds = self.grant.rounds();
        if !self.is_open() {
            return None;
        }
        // Read before the first byte is sent.
        let sent_at = clock.now();
        let question = Question::new(Verb::Extend, self.claim(), self.grant.timeout);
        let broadcast = Broadcast::send(nodes, question);
        rounds.extend(Arc::clone(&broadcast));
        Some(Extension {
            broadcast,
            sent_at,
            purpose,
        })
    }

    /// Applies the result of an EXTEND.
    pub(crate) fn finish_extension(&self, extension: &Extension, clock: &Clock) -> Progress {
        let now = clock.now();
        // After the deadline the lease is lost, whatever a node answers.
        let confirms_hand_over = self.is_handed_over();
        let report = |ok, slack| {
            if extension.purpose == Purpose::Renewal {
                self.report_renewal(ok, slack, confirms_hand_over);
            }
        };
        if !self.is_open() || now >= self.deadline() {
            self.lose(self.loss_at_deadline());
            // A lease that the caller has released was not lost.
            if self.loss().is_some() {
                report(false, Duration::ZERO);
            }
            return Progress::Over;
        }
        let slack = self.deadline().saturating_duration_since(now);
        let decision = extension.broadcast.with_round(Round::decision);
        // The second condition is a planted bug. It is false without that feature.
        if (decision == Some(Decision::Carried) || self.is_carried_by_subset(extension))
            && self.grant.extended(extension.sent_at, now)
        {
            report(true, slack);
            return Progress::Extended;
        }
        report(false, slack);
        if decision == Some(Decision::Refuted) {
            self.lose(taken_away(self.claim(), &extension.broadcast.round()));
            return Progress::Over;
        }
        Progress::Unknown
    }

    /// Whether nodes handed the lease over, and it was not renewed since.
    fn is_handed_over(&self) -> bool {
        self.renews() && self.grant.is_handed_over()
    }

    /// Reports a renewal. `slack` was left of the lease when it ended.
    fn report_renewal(&self, ok: bool, slack: Duration, confirms_hand_over: bool) {
        let Some(core) = self.core.upgrade() else {
            return;
        };
        core.sight()
            .renewed(self.subject(), ok, |Subject { name, class }| Renewal {
                name,
                class,
                token: self.token,
                ok,
                slack,
                ttl: self.claim().ttl,
                confirms_hand_over,
            });
    }

    /// Planted bug: a majority of the nodes that the lease may be on, instead of all N.
    fn is_carried_by_subset(&self, extension: &Extension) -> bool {
        if !planted::on(planted::Bug::SubsetMajority) {
            return false;
        }
        let untouched = self.grant.rounds().untouched_before();
        let nodes = extension.broadcast.with_round(|r| r.outcomes().len());
        let subset = (0..nodes).filter(|node| !untouched.contains(*node));
        extension.broadcast.granted().len() >= majority(subset.count())
    }

    /// Marks the lease as lost, notifies the holder, and queues the claim for release.
    pub(crate) fn lose(&self, why: Loss) {
        if !self.end(FIRST_LOSS + why as u8) {
            return;
        }
        self.lost.notify_waiters();
        #[cfg(feature = "cancellation")]
        self.cancellation.cancel();
        if let Some(core) = self.core.upgrade() {
            core.keeper.leave(self);
            core.janitor.post(self.to_release(None));
            self.record_end(&core, &LeaseEnd::of_loss(why));
        }
        self.end_turn();
        self.report_loss(why);
    }

    /// Reports that the lease was lost, after the holder was notified.
    fn report_loss(&self, why: Loss) {
        let end = self.end_by(why);
        let (name, token) = (&self.name, self.token);
        match &self.holding {
            None => tracing::warn!(%name, token, %why, "lease lost"),
            Some(holding) => {
                tracing::warn!(parent: &holding.current(), %name, token, %why, "lease lost");
            }
        }
        self.end_span(end);
        if let Some(core) = self.core.upgrade() {
            let ended = EndedLease {
                token,
                end,
                loss: Some(why),
                held: self.held_for(&core.clock),
            };
            core.sight().lost(self.subject(), ended);
        }
    }

    fn take_turn(&self) -> Option<LocalTurn> {
        self.turn
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Ends the lease by passing its claim on to the next task of this process that waits for it.
    /// `None` if no task waits, or if the claim should be released instead: because too little of
    /// it is left, or because it has been passed on too often.
    pub(crate) fn pass_on(&self, now: Moment) -> Option<()> {
        // Each task gets the next token, so a claim without a token cannot be passed on.
        let plain = self.keep_until.get().is_none()
            && self.claim().holders() == Holders::ThisProcess
            && self.claim().is_fenced();
        let left = self.deadline().saturating_duration_since(now);
        // A lease that was handed over and is about to be extended has little time left.
        let least = match self.is_handed_over() {
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
        // Ended first, so that this holder adds no more requests to the grant.
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
        if let Some(core) = self.core.upgrade() {
            self.record_end(&core, &LeaseEnd::Released);
        }
        taken.pass(won);
        Some(())
    }

    /// Returns why the lease is lost when its deadline has passed.
    pub(crate) fn loss_at_deadline(&self) -> Loss {
        match self.deadline() < self.max_until {
            true => Loss::NotRenewed,
            false => Loss::MaxHold,
        }
    }

    /// Ends the lease. Returns `true` only for the first call.
    fn end(&self, how: u8) -> bool {
        self.state
            .compare_exchange(HELD, how, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Ends the lease and returns the release to send. `None` if the lease had already ended; then
    /// its release is already on its way. The name stays taken until `keep_until`, or as long as
    /// the options say, whichever is later.
    pub(crate) fn close(&self, keep_until: Option<Moment>) -> Option<PendingRelease> {
        let keep_until = keep_until.max(self.keep_until.get().copied());
        self.end(CLOSED).then(|| self.to_release(keep_until))
    }

    /// Records how the lease ended, or that it is held by another process now, if the client records
    /// a history.
    pub(crate) fn record_end(&self, core: &Core, end: &LeaseEnd) {
        if let Some(recorder) = &core.recorder {
            // The lease of a later task of the process, or of a downgrade, began after the first one.
            let acquired = self.taken_at.max(self.grant.won_at);
            recorder.record(self.claim(), self.token, acquired, end);
        }
    }

    /// Records that the lease is held, unless it has ended.
    pub(crate) fn record_held(&self) {
        if self.is_open()
            && let Some(core) = self.core.upgrade()
        {
            self.record_end(&core, &LeaseEnd::StillHeld);
        }
    }

    /// Lets the next task of this process try. Call it after the release was sent.
    pub(crate) fn end_turn(&self) {
        drop(self.take_turn());
    }

    fn to_release(&self, keep_until: Option<Moment>) -> PendingRelease {
        self.grant.to_release(keep_until)
    }

    /// Creates the error for a lost lease, with the answers of the nodes to its last renewal.
    pub(crate) fn lost_error(&self) -> Error {
        let renewal = self.grant.rounds().last_renewal();
        let core = self.core.upgrade();
        let nodes = core.zip(renewal);
        Error::Lost {
            name: self.name.clone(),
            token: self.token,
            // If no loss was recorded, another client released the lease.
            why: self.loss().unwrap_or(Loss::TakenAway),
            nodes: nodes.map_or_else(Vec::new, |(core, renewal)| core.answers(&renewal)),
        }
    }
}
