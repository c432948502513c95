//! Waiting for a lease: a first try, and a place in the line.
//!
//! Who is refused stands in line on all nodes, with a ticket that is the token it will have.
//! When its turn comes the nodes grant it the lock and tell it, and a majority of them makes it
//! the holder. Its validity counts from when it knew that it was not granted yet. Where a node
//! only tells that it is its turn, or little of that time is left, it asks for the lock like
//! anybody else.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::acquire::attempt::{Armed, Attempt, NotTaken, Refused};
use crate::acquire::patience::Patience;
use crate::acquire::proposer::BLOCK;
use crate::base::clock::Moment;
use crate::base::error::{Error, Refusal, Story};
use crate::base::holder::new_owner;
use crate::base::name::Name;
use crate::client::core::Core;
use crate::client::options::{OnRefusal, Options};
use crate::lease::state::Won;
use crate::node::{Claim, Ears, Holders, NodeError, Tally, Verb, Vote, Watch};
use crate::planted;
use crate::quorum::round::{Advice, Haste, Round};
use crate::quorum::{Broadcast, NodeSet, Question};

/// How often an attempt is repeated at once with a better token before it counts as
/// contention. Two nodes with odd clocks cannot keep a caller spinning.
const MAX_RETOKENS: u32 = 8;

/// How often one who waits asks again: to show that it lives, and as the net under a missed
/// bell. A little more than a second, so that it is never more often than once a second.
const HEARTBEAT: Duration = Duration::from_millis(1100);

/// Those before whom so many stand ask half as often: their turn is not near, and there may be
/// very many of them.
const FAR_BACK: u32 = 100;

/// Only so many of the first in line ask again at the moment when the lock expires.
const EARLY_BIRDS: u32 = 2;

/// How long to wait for other nodes to say that it is one's turn, when one has said so.
const STRAGGLERS: Duration = Duration::from_millis(20);

/// Whoever was granted the lock by some nodes for so long (or for some round trips, if these take
/// longer), and not by enough, gives it back: the others may be waiting for the very same.
const TORN: Duration = Duration::from_millis(200);
const TORN_ROUND_TRIPS: u32 = 4;

/// Wins a claim, waiting for it as the options say. It must be made a lease at once: nobody
/// gives it back any more.
///
/// Cancel safety: if dropped, an attempt that is under way is given back by the
/// janitor, and so is a place in the line; nothing is left beyond the TTL.
pub(crate) async fn acquire(
    core: &Arc<Core>,
    name: &Name,
    options: &Options,
    patience: Patience,
) -> Result<Won, Error> {
    let mut wait = Waiting {
        core,
        name,
        options,
        patience,
        ticket: Ticket::default(),
        joins: false,
        fenced: options.fencing,
    };
    if options.stands_in_line() && core.proposer.is_contended(name, core.clock.now()) {
        return wait.stand().await;
    }
    loop {
        let mut refused = match wait.attempt()?.take().await {
            Ok(won) => return Ok(won),
            Err(not_taken) => not_taken.refused,
        };
        if wait.retokens(&mut refused.advice).await {
            continue;
        }
        let contended = matches!(refused.advice, Advice::Contended { .. });
        let pause = wait.disappointed(refused)?;
        if contended && options.stands_in_line() {
            return wait.stand().await;
        }
        core.clock.sleep(pause).await;
        if pause.is_zero() {
            tokio::task::yield_now().await;
        }
    }
}

/// A call that waits.
struct Waiting<'a> {
    core: &'a Arc<Core>,
    name: &'a Name,
    options: &'a Options,
    patience: Patience,
    ticket: Ticket,
    /// It wants to join the line, and has had no place in it so far.
    joins: bool,
    /// With a token. In line everybody has one.
    fenced: bool,
}

/// What is known about the token to ask for.
#[derive(Clone, Copy, Default)]
struct Ticket {
    at_least: u64,
    /// The lowest that will do, so as not to lose one's place.
    lowest: bool,
    /// How many tokens in a row did not suit the nodes.
    retokens: u32,
    /// One of them was too far ahead of the nodes' clocks.
    ahead: bool,
}

impl<'a> Waiting<'a> {
    /// A new claim. Its owner value is new too: rule "a new random value for every attempt".
    fn attempt(&self) -> Result<Attempt<'a>, Error> {
        let Self { core, options, .. } = *self;
        if core.is_shut_down() {
            return Err(Error::ShutDown);
        }
        let token = match self.ticket.lowest {
            _ if !self.fenced => 0,
            true => self.ticket.at_least.next_multiple_of(BLOCK),
            false => {
                let floors = core.nodes.iter().map(|node| node.floor());
                let skew_us = core.constants.skew_us();
                core.proposer.propose(
                    &core.clock,
                    self.name,
                    self.ticket.at_least,
                    floors,
                    skew_us,
                )
            }
        };
        let owner = new_owner(token, &options.label);
        let claim = Claim::new(self.name.clone(), owner, token, options.ttl).made_now();
        let claim = Arc::new(claim.on_one_node(core.nodes.len() == 1));
        if options.detached {
            claim.set_holders(Holders::Nobody);
        }
        Ok(Attempt::new(core, options, claim, self.haste()))
    }

    /// A client that was overtaken takes a lead over those that are nearer to the nodes. Not at
    /// the first time if it has a place in line: it would lose the place. Nor for the first
    /// request for a free lock: a token ahead of the clock costs the next client a round trip.
    /// Nor after a token that was too far ahead for some node.
    fn haste(&self) -> Haste {
        match self.ticket.retokens + u32::from(self.joins) {
            0 => Haste::Least,
            _ if self.ticket.ahead => Haste::Least,
            times => Haste::Lead {
                times,
                skew: self.core.constants.skew,
            },
        }
    }

    /// Whether to try again at once with another token, of which note is taken. If not, what the
    /// refusal comes to is noted in `advice`.
    async fn retokens(&mut self, advice: &mut Advice) -> bool {
        let Ticket {
            retokens, ahead, ..
        } = self.ticket;
        let (at_least, reclock) = match *advice {
            Advice::Retoken { at_least } => (at_least, None),
            Advice::Reclock { now, at_least } => (at_least, Some(now)),
            _ => {
                self.ticket = Ticket::default();
                return false;
            }
        };
        let ahead = ahead || reclock.is_some();
        if retokens >= MAX_RETOKENS {
            // Either the clocks of nodes are so far apart that no token suits a majority, or
            // other clients were quicker each time.
            *advice = match ahead {
                true => Advice::Outage { permanent: false },
                false => Advice::Contended { remaining: None },
            };
            self.ticket = Ticket::default();
            return false;
        }
        if let Some(now) = reclock {
            let Core {
                proposer, clock, ..
            } = &**self.core;
            proposer.reclock(clock, self.name, now);
            // A node that was made this very moment has no token to give yet: between its
            // floor and what its clock allows lies the time since.
            clock.sleep(Duration::from_millis(1)).await;
        }
        self.ticket = Ticket {
            at_least,
            lowest: false,
            retokens: retokens + 1,
            ahead,
        };
        true
    }

    /// Takes note of a refusal: how long to pause, or the error to give up with.
    fn disappointed(&mut self, mut refused: Refused) -> Result<Duration, Error> {
        let now = self.core.clock.now();
        refused.refusal.attempts = self.patience.count(now);
        if let Some(OnRefusal(tell)) = &self.options.on_refusal {
            tell(&refused.refusal);
        }
        self.patience.pause(refused.advice, refused.refusal, now)
    }

    /// Waits in line.
    async fn stand(mut self) -> Result<Won, Error> {
        (self.fenced, self.joins) = (true, true);
        let mut leaving = None;
        'ticket: loop {
            let mut place = Place::new(self.attempt()?, leaving.take());
            let (mut first, mut torn) = (true, false);
            loop {
                if self.core.is_shut_down() {
                    return Err(Error::ShutDown);
                }
                let asked = place.ask().await;
                if asked.is_ok() && std::mem::take(&mut first) {
                    self.core.proposer.set_uncontended(self.name);
                }
                if let Err(mut refused) = asked {
                    let in_line = matches!(refused.advice, Advice::Contended { .. });
                    if self.retokens(&mut refused.advice).await {
                        // One with the same ticket was served, or one before it that came
                        // late: with the next ticket that can win, it keeps its place.
                        self.ticket.lowest = !self.joins && place.attempt.haste == Haste::Least;
                        leaving = place.attempt.take_armed();
                        leave_first(&mut leaving);
                        continue 'ticket;
                    }
                    if in_line {
                        self.joins = false;
                        place.attempt.haste = self.haste();
                    }
                    let advice = refused.advice;
                    let line = place.look(&refused.refusal);
                    let mut pause = self.disappointed(refused)?;
                    if let Advice::Contended { remaining } = advice {
                        let longer = line.pause(pause, remaining);
                        pause = self.patience.within_wait(longer, self.core.clock.now());
                    }
                    if !place.hears_its_turn(pause).await {
                        torn = place.is_torn();
                        if !torn {
                            continue;
                        }
                    }
                }
                self.joins = false;
                place.attempt.haste = self.haste();
                let attempt = match place.handed_over() {
                    Ok(won) => return Ok(won),
                    Err(attempt) => attempt,
                };
                if planted::on(planted::Bug::TurnIsGrant) {
                    return Ok(attempt.believe());
                }
                let (token, haste) = (attempt.claim.token, attempt.haste);
                let NotTaken { mut refused, place } = match attempt.take().await {
                    Ok(won) => return Ok(won),
                    Err(not_taken) => not_taken,
                };
                leaving = place;
                leave_first(&mut leaving);
                let again = self.retokens(&mut refused.advice).await;
                let contended = matches!(refused.advice, Advice::Contended { .. });
                if torn || !again && !contended {
                    // Others may wait for what this claim has on some nodes.
                    leave(&mut leaving);
                }
                self.ticket.lowest = haste == Haste::Least;
                if !again {
                    let pause = self.disappointed(refused)?;
                    if !contended {
                        self.core.clock.sleep(pause).await;
                    }
                    // Another client was quicker, or it was too late: with the next token that
                    // can win, it keeps its place.
                    self.ticket.at_least = token.saturating_add(1);
                    self.ticket.lowest = true;
                }
                continue 'ticket;
            }
        }
    }
}

/// Gives up the place of an overtaken claim.
fn leave(leaving: &mut Option<Armed<'_>>) {
    if let Some(mut place) = leaving.take() {
        place.release(NodeSet::default());
    }
}

/// Planted bug: before the client has joined with its new ticket.
fn leave_first(leaving: &mut Option<Armed<'_>>) {
    if planted::on(planted::Bug::LeavesBeforeItJoins) {
        leave(leaving);
    }
}

/// A place in the line.
struct Place<'a> {
    attempt: Attempt<'a>,
    /// The place of the overtaken claim that this one replaces. It is left when this one has
    /// joined: or those behind it would be served in between.
    leaving: Option<Armed<'a>>,
    ears: Arc<Ears>,
    watches: Vec<Option<Watch>>,
    waited: Arc<Waited>,
    /// Since when some nodes have granted the lock, but not enough.
    torn_since: Option<Moment>,
    /// How long the last question took.
    round_trip: Duration,
}

/// By node, a moment at which it had not granted the lock: when the last request was sent that
/// it answered so, or the first of all.
#[derive(Default)]
struct Waited(Mutex<Vec<Moment>>);

/// One question to all nodes.
struct Asked {
    ears: Arc<Ears>,
    waited: Arc<Waited>,
    sent_at: Moment,
}

/// Where one stands, by the answers of the nodes.
struct Standing {
    /// So many nodes have it in line, and will tell when its turn has come, that no turn is
    /// missed.
    told: bool,
    /// The fewest that stand before it.
    before: u32,
    /// Some, but not enough nodes have reserved the lock for it.
    torn: bool,
    /// The lock is another library's, which tells nobody when it gives it back.
    foreign: bool,
}

impl<'a> Place<'a> {
    fn new(attempt: Attempt<'a>, leaving: Option<Armed<'a>>) -> Self {
        attempt.claim.wait();
        let ears = Arc::new(Ears::default());
        let nodes = attempt.core.nodes.iter().enumerate();
        let watches = nodes.map(|(index, node)| node.watch(&attempt.claim, &ears.bell(index)));
        Self {
            watches: watches.collect(),
            waited: Arc::default(),
            torn_since: None,
            round_trip: Duration::ZERO,
            ears,
            leaving,
            attempt,
        }
    }

    fn is_its_turn(&self) -> bool {
        self.ears.turns() >= Round::majority(self.attempt.core.nodes.len())
    }

    /// Asks all nodes how things stand. `Ok`: it is its turn on a majority.
    async fn ask(&mut self) -> Result<(), Refused> {
        let core = self.attempt.core;
        let sent_at = core.clock.now();
        if !planted::on(planted::Bug::GivesUpInSilence) {
            self.attempt.arm(sent_at);
        }
        self.ears.clear();
        self.waited.begin(sent_at, core.nodes.len());
        let asked = Asked {
            ears: Arc::clone(&self.ears),
            waited: Arc::clone(&self.waited),
            sent_at,
        };
        let question = Question {
            also: Some(Arc::new(asked)),
            ..self.attempt.question(Verb::Wait)
        };
        let broadcast = Broadcast::send(&core.nodes, question);
        leave(&mut self.leaving);
        loop {
            if self.is_its_turn() {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = self.ears.heard() => {}
                _ = broadcast.decided() => {
                    self.round_trip = core.clock.now().saturating_duration_since(sent_at);
                    return match self.is_its_turn() {
                        true => Ok(()),
                        false => Err(self.attempt.refused(&broadcast, sent_at)),
                    };
                }
            }
        }
    }

    /// The nodes that have granted the lock.
    fn granted(&self) -> NodeSet {
        let nodes = 0..self.attempt.core.nodes.len();
        nodes
            .filter(|node| self.ears.is_granted_by(*node))
            .collect()
    }

    /// Whether its turn does not come though some nodes have granted the lock for long.
    fn is_torn(&mut self) -> bool {
        let now = self.attempt.core.clock.now();
        let most = TORN.max(self.round_trip * TORN_ROUND_TRIPS);
        self.granted().len() > 0 && now >= *self.torn_since.get_or_insert(now) + most
    }

    /// Takes the lock, if a majority has granted it; gives the attempt back if it has to ask.
    fn handed_over(self) -> Result<Won, Attempt<'a>> {
        let majority = Round::majority(self.attempt.core.nodes.len());
        let granted = self.granted();
        // As many as are needed, those that were known not to have granted it the latest.
        let mut since: Vec<Moment> = {
            let waited = self.waited.lock();
            granted
                .iter()
                .filter_map(|node| waited.get(node).copied())
                .collect()
        };
        since.sort_unstable_by(|a, b| b.cmp(a));
        match since.get(majority - 1) {
            Some(since) => self.attempt.handed_over(granted, *since),
            None => Err(self.attempt),
        }
    }

    /// Sleeps for so long at most. `true`: it is its turn; `false`: it is time to ask.
    async fn hears_its_turn(&self, pause: Duration) -> bool {
        let pause = match planted::on(planted::Bug::AsksOnlyWhenTold) {
            false => pause,
            true => Duration::from_secs(86_400),
        };
        let mut sleep = std::pin::pin!(self.attempt.core.clock.sleep(pause));
        loop {
            if self.is_its_turn() {
                return true;
            }
            if self.ears.is_to_ask() {
                return false;
            }
            if self.ears.take_rung() {
                sleep.set(self.attempt.core.clock.sleep(pause.min(STRAGGLERS)));
            }
            tokio::select! {
                biased;
                () = self.attempt.core.until_shut_down() => return false,
                () = self.ears.heard() => {}
                () = &mut sleep => return false,
            }
        }
    }

    fn look(&self, refusal: &Refusal) -> Standing {
        let (mut told, mut before, mut torn, mut foreign) = (0, u32::MAX, false, false);
        for (report, watch) in refusal.nodes.iter().zip(&self.watches) {
            match &report.story {
                Story::Voted(Vote::Held { place, holder, .. }) => {
                    told += usize::from(place.is_some() && watch.is_some());
                    before = before.min(place.unwrap_or(u32::MAX));
                    foreign |= holder.token.is_none();
                }
                Story::Voted(Vote::YourTurn | Vote::Granted) => {
                    told += usize::from(watch.is_some());
                    torn = true;
                }
                _ => {}
            }
        }
        Standing {
            told: told >= refusal.majority,
            before,
            torn,
            foreign,
        }
    }
}

impl Standing {
    /// How long to sleep unless a bell rings, instead of `pause`, which is what one would sleep
    /// who hears nothing.
    fn pause(&self, pause: Duration, remaining: Option<Duration>) -> Duration {
        // Those whose votes are split, and the first behind a lock whose release nobody tells.
        if !self.told || self.torn || self.foreign && self.before == 0 {
            return pause;
        }
        let expiry = remaining.map(|left| left.saturating_add(Duration::from_millis(1)));
        match expiry.filter(|_| self.before < EARLY_BIRDS) {
            Some(expiry) => expiry.min(HEARTBEAT),
            None if self.before < FAR_BACK => HEARTBEAT,
            None => HEARTBEAT * 2,
        }
    }
}

impl Waited {
    fn lock(&self) -> MutexGuard<'_, Vec<Moment>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node has answered what was sent then: it had not granted it.
    fn note(&self, node: usize, sent_at: Moment) {
        if let Some(waited) = self.lock().get_mut(node) {
            *waited = sent_at.max(*waited);
        }
    }

    /// Before the first question is sent, no node can have granted anything.
    fn begin(&self, sent_at: Moment, nodes: usize) {
        self.lock().resize(nodes, sent_at);
    }
}

impl Tally for Asked {
    /// Counts an answer to WAIT: the node may say at once that it is the asker's turn.
    fn count(self: Arc<Self>, node: usize, answer: Result<Vote, NodeError>) {
        match answer {
            Ok(Vote::Held { .. }) => self.waited.note(node, self.sent_at),
            Ok(Vote::YourTurn) => {
                self.waited.note(node, self.sent_at);
                self.ears.answered(node, false);
            }
            Ok(Vote::Granted) => self.ears.answered(node, true),
            _ => {}
        }
    }
}
