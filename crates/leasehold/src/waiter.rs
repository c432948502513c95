//! Waiting for a lease: a first try, and a place in the line.
//!
//! Who is refused stands in line on all nodes, with a ticket that is the token it will have.
//! When its turn comes the nodes grant it the lock and tell it, and a majority of them makes it
//! the holder. Its validity counts from when it knew that it was not granted yet. Where a node
//! only tells that it is its turn, or little of that time is left, it asks for the lock like
//! anybody else.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::bid::{Bid, Refused};
use crate::clock::Moment;
use crate::core::Core;
use crate::error::{Error, Refusal, Story};
use crate::held::Won;
use crate::holder::new_owner;
use crate::name::Name;
use crate::node::{Claim, Ears, Holders, NodeError, Tally, Verb, Vote, Watch};
use crate::options::{OnRefusal, Options};
use crate::patience::Patience;
use crate::planted;
use crate::proposer::BLOCK;
use crate::quorum::round::{Advice, Round};
use crate::quorum::{Canvass, NodeSet, Question};

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
        fenced: options.fencing,
    };
    if options.stands_in_line() && core.proposer.is_contended(name, core.clock.now()) {
        return wait.stand().await;
    }
    loop {
        let refused = match wait.bid()?.take().await {
            Ok(won) => return Ok(won),
            Err(refused) => refused,
        };
        if wait.retokens(refused.advice).await {
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
    /// With a token. In line everybody has one.
    fenced: bool,
}

/// What is known about the token to ask for.
#[derive(Clone, Copy, Default)]
struct Ticket {
    at_least: u64,
    /// The lowest that will do, so as not to lose one's place.
    lowest: bool,
    retokens: u32,
}

impl<'a> Waiting<'a> {
    /// A new claim. Its owner value is new too: rule "a new random value for every attempt".
    fn bid(&self) -> Result<Bid<'a>, Error> {
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
        Ok(Bid::new(core, options, claim))
    }

    /// Whether to try again at once with another token, of which note is taken.
    async fn retokens(&mut self, advice: Advice) -> bool {
        let again = self.ticket.retokens < MAX_RETOKENS;
        let at_least = match advice {
            Advice::Retoken { at_least } if again => at_least,
            Advice::Reclock { now, at_least } if again => {
                let Core {
                    proposer, clock, ..
                } = &**self.core;
                proposer.reclock(clock, self.name, now);
                // A node that was made this very moment has no token to give yet: between its
                // floor and what its clock allows lies the time since.
                clock.sleep(Duration::from_millis(1)).await;
                at_least
            }
            _ => {
                self.ticket = Ticket::default();
                return false;
            }
        };
        self.ticket = Ticket {
            at_least,
            lowest: false,
            retokens: self.ticket.retokens + 1,
        };
        true
    }

    /// Takes note of a refusal: how long to pause, or the error to give up with.
    fn disappointed(&mut self, refused: Refused) -> Result<Duration, Error> {
        if let Some(OnRefusal(tell)) = &self.options.on_refusal {
            tell(&refused.refusal);
        }
        let now = self.core.clock.now();
        self.patience.pause(refused.advice, refused.refusal, now)
    }

    /// Waits in line.
    async fn stand(mut self) -> Result<Won, Error> {
        self.fenced = true;
        'ticket: loop {
            let mut place = Place::new(self.bid()?);
            let (mut first, mut stood) = (true, false);
            loop {
                if self.core.is_shut_down() {
                    return Err(Error::ShutDown);
                }
                let asked = place.ask().await;
                if asked.is_ok() && std::mem::take(&mut first) {
                    self.core.proposer.set_uncontended(self.name);
                }
                if let Err(refused) = asked {
                    if self.retokens(refused.advice).await {
                        // Somebody with the same ticket was served, or one before it that
                        // came late: with the next that can win, it keeps its place.
                        self.ticket.lowest = stood;
                        continue 'ticket;
                    }
                    let advice = refused.advice;
                    stood |= matches!(advice, Advice::Contended { .. });
                    let line = place.look(&refused.refusal);
                    let mut pause = self.disappointed(refused)?;
                    if let Advice::Contended { remaining } = advice {
                        let longer = line.pause(pause, remaining);
                        pause = self.patience.within_wait(longer, self.core.clock.now());
                    }
                    if !place.hears_its_turn(pause).await && !place.is_torn() {
                        continue;
                    }
                }
                let bid = match place.handed_over() {
                    Ok(won) => return Ok(won),
                    Err(bid) => bid,
                };
                if planted::on(planted::Bug::ReservationIsGrant) {
                    return Ok(bid.believe());
                }
                let token = bid.claim.token;
                let refused = match bid.take().await {
                    Ok(won) => return Ok(won),
                    Err(refused) => refused,
                };
                if !self.retokens(refused.advice).await {
                    let contended = matches!(refused.advice, Advice::Contended { .. });
                    let pause = self.disappointed(refused)?;
                    if !contended {
                        self.core.clock.sleep(pause).await;
                    }
                    // Somebody was quicker, or it was too late: with the next token that can
                    // win, it keeps its place.
                    self.ticket.at_least = token.saturating_add(1);
                    self.ticket.lowest = true;
                }
                continue 'ticket;
            }
        }
    }
}

/// A place in the line.
struct Place<'a> {
    bid: Bid<'a>,
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
    fn new(bid: Bid<'a>) -> Self {
        bid.claim.wait();
        let ears = Arc::new(Ears::default());
        let nodes = bid.core.nodes.iter().enumerate();
        let watches = nodes.map(|(index, node)| node.watch(&bid.claim, &ears.bell(index)));
        Self {
            watches: watches.collect(),
            waited: Arc::default(),
            torn_since: None,
            round_trip: Duration::ZERO,
            ears,
            bid,
        }
    }

    fn is_its_turn(&self) -> bool {
        self.ears.turns() >= Round::majority(self.bid.core.nodes.len())
    }

    /// Asks all nodes how things stand. `Ok`: it is its turn on a majority.
    async fn ask(&mut self) -> Result<(), Refused> {
        let core = self.bid.core;
        let sent_at = core.clock.now();
        if !planted::on(planted::Bug::GivesUpInSilence) {
            self.bid.arm(sent_at);
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
            ..self.bid.question(Verb::Wait)
        };
        let canvass = Canvass::send(&core.nodes, question);
        loop {
            if self.is_its_turn() {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = self.ears.heard() => {}
                _ = canvass.decided() => {
                    self.round_trip = core.clock.now().saturating_duration_since(sent_at);
                    return match self.is_its_turn() {
                        true => Ok(()),
                        false => Err(self.bid.refused(&canvass, sent_at)),
                    };
                }
            }
        }
    }

    /// The nodes that have granted the lock.
    fn granted(&self) -> NodeSet {
        let nodes = 0..self.bid.core.nodes.len();
        nodes
            .filter(|node| self.ears.is_granted_by(*node))
            .collect()
    }

    /// Whether its turn does not come though some nodes have granted the lock for long.
    fn is_torn(&mut self) -> bool {
        let now = self.bid.core.clock.now();
        let most = TORN.max(self.round_trip * TORN_ROUND_TRIPS);
        self.granted().len() > 0 && now >= *self.torn_since.get_or_insert(now) + most
    }

    /// Takes the lock, if a majority has granted it; gives the bid back if it has to ask.
    fn handed_over(self) -> Result<Won, Bid<'a>> {
        let majority = Round::majority(self.bid.core.nodes.len());
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
            Some(since) => self.bid.handed_over(granted, *since),
            None => Err(self.bid),
        }
    }

    /// Sleeps for so long at most. `true`: it is its turn; `false`: it is time to ask.
    async fn hears_its_turn(&self, pause: Duration) -> bool {
        let pause = match planted::on(planted::Bug::AsksOnlyWhenTold) {
            false => pause,
            true => Duration::from_secs(86_400),
        };
        let mut sleep = std::pin::pin!(self.bid.core.clock.sleep(pause));
        loop {
            if self.is_its_turn() {
                return true;
            }
            if self.ears.is_to_ask() {
                return false;
            }
            if self.ears.take_rung() {
                sleep.set(self.bid.core.clock.sleep(pause.min(STRAGGLERS)));
            }
            tokio::select! {
                biased;
                () = self.bid.core.until_shut_down() => return false,
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
