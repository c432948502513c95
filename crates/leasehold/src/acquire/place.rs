//! A place in the line of a lock, on all nodes.

use std::sync::Arc;
use std::time::Duration;

use super::attempt::{Armed, Attempt, Refused};
use crate::base::clock::Moment;
use crate::base::error::{NodeOutcome, Refusal};
use crate::lease::grant::Won;
use crate::node::seat::{SEARCHED, Seat};
use crate::node::{Verb, Vote, Watch};
use crate::planted;
use crate::quorum::round::Advice;
use crate::quorum::{NodeSet, WaitSignals};

/// How often a waiter sends WAIT again: as a heartbeat, and in case a notification was lost. A
/// little more than a second, so that it is never more often than once a second.
const HEARTBEAT: Duration = Duration::from_millis(1100);

/// Waiters with this many others ahead of them send heartbeats half as often: their turn is not
/// near, and there may be very many of them.
const FAR_BACK: u32 = 100;

/// Only this many of the first in line ask again at the moment when the lock expires.
const ASK_AT_EXPIRY: u32 = 2;

/// How long to wait for the other nodes once one has notified the waiter that it is its turn.
const STRAGGLERS: Duration = Duration::from_millis(20);

/// A waiter that was granted the lock by some nodes for this long (or for some round trips, if these
/// take longer), and not by enough, releases it: waiters that the other nodes granted it to may be
/// waiting for these.
const SPLIT_VOTE_LIMIT: Duration = Duration::from_millis(200);
const SPLIT_VOTE_ROUND_TRIPS: u32 = 4;

pub(super) struct Place<'a> {
    pub(super) attempt: Attempt<'a>,
    /// The place of the overtaken claim that this one replaces. It is left when this one has
    /// joined; otherwise the waiters behind it would be served in between.
    leaving: Option<Armed<'a>>,
    signals: Arc<WaitSignals>,
    watches: Vec<Option<Watch>>,
    /// Since when some nodes have granted the lock, but not enough.
    split_since: Option<Moment>,
    /// How long the last request took.
    round_trip: Duration,
    /// The search for a free permit begins here, and has gone so far.
    search_from: u64,
    searched: u32,
}

/// What a waiter can expect, by the answers of the nodes.
pub(super) struct Outlook {
    /// Enough nodes have the claim in line and will notify it that no turn is missed.
    will_be_notified: bool,
    /// The fewest claims that a node has before it.
    before: u32,
    /// Some nodes, but not enough, say that it is the claim's turn.
    split: bool,
    /// The lock is held by another library, whose release notifies no waiter.
    foreign: bool,
}

impl<'a> Place<'a> {
    pub(super) fn new(attempt: Attempt<'a>, leaving: Option<Armed<'a>>) -> Self {
        attempt.claim.wait();
        let signals = WaitSignals::new(attempt.core.nodes.len());
        let nodes = attempt.core.nodes.iter().enumerate();
        let watches =
            nodes.map(|(index, node)| node.watch(&attempt.claim, &signals.notifier(index)));
        Self {
            watches: watches.collect(),
            signals,
            split_since: None,
            round_trip: Duration::ZERO,
            search_from: 0,
            searched: 0,
            leaving,
            attempt,
        }
    }

    /// Sends WAIT to all nodes. Returns when.
    pub(super) fn join(&mut self) -> Moment {
        let core = self.attempt.core;
        let sent_at = core.clock.now();
        if !planted::on(planted::Bug::GivesUpInSilence) {
            self.attempt.arm(sent_at);
        }
        if let Some(seat) = self.attempt.claim.seat() {
            if self.searched == 0 {
                self.search_from = core.next_seed() >> 1;
            }
            seat.search_from(self.search_from + u64::from(self.searched));
        }
        let question = self.attempt.question(Verb::Wait);
        self.signals.ask(&core.nodes, &question, sent_at);
        release(&mut self.leaving);
        sent_at
    }

    /// Sends WAIT to all nodes, and waits for the answers. `Ok`: it is the claim's turn on a majority.
    pub(super) async fn ask(&mut self) -> Result<(), Refused> {
        let (core, sent_at) = (self.attempt.core, self.join());
        loop {
            let refusal = {
                let state = self.signals.state();
                if state.is_turn() {
                    return Ok(());
                }
                state.refusal()
            };
            if let Some(round) = refusal {
                self.round_trip = core.clock.now().saturating_duration_since(sent_at);
                return Err(self.attempt.refused(&round, sent_at));
            }
            self.signals.changed().await;
        }
    }

    /// Waits for at most `pause`. `true`: it is the claim's turn; `false`: it is time to ask.
    pub(super) async fn is_notified_within(&self, pause: Duration) -> bool {
        let pause = match planted::on(planted::Bug::WaitsOnlyForNotifications) {
            false => pause,
            true => Duration::from_secs(86_400),
        };
        let core = self.attempt.core;
        let mut sleep = std::pin::pin!(core.clock.sleep(pause));
        loop {
            let is_notified = {
                let mut state = self.signals.state();
                if state.is_turn() {
                    return true;
                }
                if state.must_ask_again() {
                    return false;
                }
                state.take_notified()
            };
            if is_notified {
                sleep.set(core.clock.sleep(pause.min(STRAGGLERS)));
            }
            tokio::select! {
                biased;
                () = core.until_shut_down() => return false,
                () = self.signals.changed() => {}
                () = &mut sleep => return false,
            }
        }
    }

    /// Whether to go on at once with the search for a free permit: the waiter is first in line, and the
    /// nodes have not looked at all permits yet.
    pub(super) fn goes_on_searching(&mut self, outlook: &Outlook) -> bool {
        let permits = self.attempt.claim.seat().and_then(Seat::permits);
        self.searched += SEARCHED;
        let goes_on = outlook.before == 0 && self.searched < permits.unwrap_or(0);
        if !goes_on {
            self.searched = 0;
        }
        goes_on
    }

    /// Whether the claim's turn does not come although some nodes granted it the lock long ago.
    pub(super) fn is_split(&mut self) -> bool {
        let now = self.attempt.core.clock.now();
        let limit = SPLIT_VOTE_LIMIT.max(self.round_trip * SPLIT_VOTE_ROUND_TRIPS);
        let granted = self.signals.state().granted();
        granted.len() > 0 && now >= *self.split_since.get_or_insert(now) + limit
    }

    /// The permit that a majority of nodes has named as free.
    pub(super) fn free_permit(&self) -> Option<u32> {
        self.signals.state().free_permit()
    }

    /// What the nodes answered, if no use can be made of it: like that of nodes that are down.
    pub(super) fn unusable(&self) -> Refused {
        let (core, round) = (self.attempt.core, self.signals.state().round());
        Refused {
            advice: Advice::Outage { permanent: false },
            refusal: Box::new(core.refused(&self.attempt.claim, &round)),
        }
    }

    /// Takes the lock if a majority has granted it. Returns the attempt if it has to send ACQUIRE.
    pub(super) fn handed_over(self) -> Result<Won, Attempt<'a>> {
        let (granted, not_granted_at) = {
            let state = self.signals.state();
            (state.granted(), state.not_granted_at())
        };
        match not_granted_at {
            Some(since) => self.attempt.handed_over(granted, since, self.round_trip),
            None => Err(self.attempt),
        }
    }

    pub(super) fn outlook(&self, refusal: &Refusal) -> Outlook {
        let (mut notifying, mut before, mut split, mut foreign) = (0, u32::MAX, false, false);
        for (report, watch) in refusal.nodes.iter().zip(&self.watches) {
            match &report.outcome {
                NodeOutcome::Voted(Vote::Held { place, holder, .. }) => {
                    notifying += usize::from(place.is_some() && watch.is_some());
                    before = before.min(place.unwrap_or(u32::MAX));
                    foreign |= holder.token.is_none();
                }
                NodeOutcome::Voted(Vote::YourTurn | Vote::Free { .. } | Vote::Granted) => {
                    notifying += usize::from(watch.is_some());
                    split = true;
                }
                _ => {}
            }
        }
        Outlook {
            will_be_notified: notifying >= refusal.majority,
            before,
            split,
            foreign,
        }
    }
}

impl Outlook {
    /// How long to wait for a notification before asking again. `pause` is the pause of a waiter that
    /// gets no notifications.
    pub(super) fn pause(&self, pause: Duration, remaining: Option<Duration>) -> Duration {
        if !self.will_be_notified || self.split || self.foreign && self.before == 0 {
            return pause;
        }
        let expiry = remaining.map(|left| left.saturating_add(Duration::from_millis(1)));
        match expiry.filter(|_| self.before < ASK_AT_EXPIRY) {
            Some(expiry) => expiry.min(HEARTBEAT),
            None if self.before < FAR_BACK => HEARTBEAT,
            None => HEARTBEAT * 2,
        }
    }
}

/// Releases the place of an overtaken claim.
pub(super) fn release(leaving: &mut Option<Armed<'_>>) {
    if let Some(mut place) = leaving.take() {
        place.release(NodeSet::default());
    }
}
