//! Waiting for a lease: a first attempt, and then a place in the line.
//!
//! A client that is refused stands in line on all nodes, with a ticket that is the token of its
//! lease. When its turn comes, the nodes grant it the lock and notify it, and a majority makes it the
//! holder. The lease counts from when the nodes were known not to have granted it yet. If a node only
//! notifies it that it is its turn, or little of that time is left, it sends ACQUIRE.

mod permit;

use std::sync::Arc;
use std::time::Duration;

use super::acquiring::Acquiring;
use super::attempt::{Armed, Attempt, NotTaken, Refused};
use super::look;
use super::patience::Patience;
use super::place::{self, Place};
use super::proposer::BLOCK;
use super::want::Want;
use crate::base::error::Error;
use crate::client::core::Core;
use crate::client::options::{Goal, OnRefusal, Options};
use crate::lease::grant::Won;
use crate::node::seat::Seat;
use crate::node::{Claim, Holders};
use crate::planted;
use crate::quorum::round::{Advice, Haste};
pub(crate) use permit::acquire_permit;

/// How often an attempt is repeated at once with a better token before it counts as contention.
/// The limit keeps nodes with wrong clocks from making a caller spin.
const MAX_RETOKENS: u32 = 8;

/// Wins a claim, waiting for it as the options say. The caller must make it a lease at once, because
/// nothing else releases it.
///
/// Cancel safety: if dropped, the janitor releases an attempt that is under way, and leaves the
/// line. At worst the claim ends with its TTL.
pub(crate) async fn acquire(
    core: &Arc<Core>,
    want: &Want,
    options: &Options,
    patience: Patience,
    call: &Acquiring<'_>,
) -> Result<Won, Error> {
    let wait = Waiting {
        core,
        call,
        want,
        options,
        patience,
        ticket: Ticket::default(),
        joins: false,
        fenced: options.fencing,
        seat: None,
    };
    // A call that may end with a result needs no place in line to learn of it.
    let may_stand_at_once = options.stands_in_line() && options.goal != Goal::LockOrResult;
    if may_stand_at_once && core.proposer.is_contended(&want.name, core.clock.now()) {
        return Box::pin(wait.stand()).await;
    }
    match wait.attempt()?.take().await {
        Ok(won) => Ok(won),
        // In a box: most calls win at once, and their futures are small.
        Err(not_taken) => Box::pin(wait.go_on(not_taken.refused)).await,
    }
}

/// A call that waits.
struct Waiting<'a> {
    core: &'a Arc<Core>,
    call: &'a Acquiring<'a>,
    want: &'a Want,
    options: &'a Options,
    patience: Patience,
    ticket: Ticket,
    /// The call wants to join the line, and has had no place in it so far.
    joins: bool,
    /// Whether the claim has a token. All claims in line have one.
    fenced: bool,
    /// What the claims have to do with a semaphore.
    seat: Option<Seat>,
}

/// What is known about the token of the next attempt.
#[derive(Clone, Copy, Default)]
struct Ticket {
    at_least: u64,
    /// Take the lowest token that can win, to keep the place in line.
    lowest: bool,
    /// How many tokens in a row the nodes refused as too low or too far ahead.
    retokens: u32,
    /// One of them was too far ahead of the nodes' clocks.
    ahead: bool,
}

impl<'a> Waiting<'a> {
    /// Goes on after a first refusal.
    async fn go_on(mut self, mut refused: Refused) -> Result<Won, Error> {
        loop {
            if !self.retokens(&mut refused.advice).await {
                let contended = matches!(refused.advice, Advice::Contended { .. });
                let pause = self.on_refused(refused).await?;
                if contended && self.options.stands_in_line() {
                    return self.stand().await;
                }
                self.core.clock.sleep(pause).await;
                if pause.is_zero() {
                    tokio::task::yield_now().await;
                }
            }
            refused = match self.attempt()?.take().await {
                Ok(won) => return Ok(won),
                Err(not_taken) => not_taken.refused,
            };
        }
    }

    /// A new claim, with a new owner value: rule "a new random value for every attempt".
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
                let (name, at_least) = (&self.want.name, self.ticket.at_least);
                core.proposer
                    .propose(&core.clock, name, at_least, floors, skew_us)
            }
        };
        let Want { name, mode } = self.want;
        let owner = core.secrets.new_owner(*mode, token, &options.label);
        let claim = Claim::in_mode(*mode, name.clone(), owner, token, options.ttl).made_now();
        let claim = match &self.seat {
            Some(seat) => claim.in_seat(seat.copied()),
            None => claim,
        };
        let claim = Arc::new(claim.on_one_node(core.nodes.len() == 1));
        if options.detached {
            claim.set_holders(Holders::Nobody);
        }
        Ok(Attempt::new(core, options, claim, self.haste()))
    }

    /// How far the next token is ahead of the lowest that can win. A lead helps against clients
    /// that are nearer to the nodes.
    ///
    /// | case | lead | why |
    /// |---|---|---|
    /// | first request for a lock | none | a token ahead of the clock costs the next client a round trip |
    /// | in line, not overtaken | none | the waiter would lose its place |
    /// | joins the line | 1 step | else clients near the nodes overtake it |
    /// | overtaken n times | n steps, one more if it joins | the same |
    /// | a token was too far ahead for a node | none | that node would refuse it again |
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

    /// Whether to try again at once with another token, which is noted. If not, `advice` says what
    /// the refusal amounts to.
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
            proposer.reclock(clock, &self.want.name, now);
            // A node that was created at this moment cannot grant any token yet: the range between
            // its floor and the cap grows with its clock.
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

    /// Counts a refusal. Returns how long to pause, or the error to give up with.
    async fn on_refused(&mut self, mut refused: Refused) -> Result<Duration, Error> {
        if self.options.goal == Goal::LockOrResult {
            // The round ended when it could not be won any more. Nodes that have not answered may
            // keep the result, too.
            if refused.refusal.may_have_result() {
                let answers = look::ask(self.core, &self.want.name, self.options).await;
                refused.refusal = Box::new(answers);
            }
            if refused.refusal.result().is_some() {
                return Err(Error::Held(refused.refusal));
            }
        }
        let now = self.core.clock.now();
        if matches!(refused.advice, Advice::Contended { .. }) {
            self.call.contend_on_nodes();
        }
        self.call.refused(&refused.refusal, now);
        refused.refusal.attempts = self.patience.count(now);
        if let Some(OnRefusal(callback)) = &self.options.on_refusal {
            callback(&refused.refusal);
        }
        self.patience.pause(refused.advice, refused.refusal, now)
    }

    /// Waits in line, with as many tickets one after the other as it takes.
    async fn stand(mut self) -> Result<Won, Error> {
        (self.fenced, self.joins) = (true, true);
        let mut leaving = None;
        loop {
            let place = Place::new(self.attempt()?, leaving.take());
            match self.wait_at(place).await? {
                Stood::Won(won) => return Ok(won),
                Stood::Overtaken(place) => leaving = place,
            }
            if planted::on(planted::Bug::LeavesBeforeItJoins) {
                place::release(&mut leaving);
            }
        }
    }

    /// Waits at one place in line, and takes the lock when its turn comes.
    async fn wait_at(&mut self, mut place: Place<'a>) -> Result<Stood<'a>, Error> {
        let split = match self.wait_for_turn(&mut place).await? {
            Turn::Overtaken => return Ok(Stood::Overtaken(place.attempt.take_armed())),
            Turn::Split => true,
            Turn::Come => false,
        };
        match place.handed_over() {
            Ok(won) => Ok(Stood::Won(won)),
            Err(attempt) => self.take_turn(attempt, split).await,
        }
    }

    /// Waits at one place in line until something is to be done.
    async fn wait_for_turn(&mut self, place: &mut Place<'a>) -> Result<Turn, Error> {
        let turn = loop {
            if self.core.is_shut_down() {
                return Err(Error::ShutDown);
            }
            let Err(mut refused) = place.ask().await else {
                self.core.proposer.set_uncontended(&self.want.name);
                break Turn::Come;
            };
            let in_line = matches!(refused.advice, Advice::Contended { .. });
            if self.retokens(&mut refused.advice).await {
                // A waiter with the same ticket was served, or one with a lower ticket that came
                // late. With the next ticket that can win, this waiter keeps its place.
                self.ticket.lowest = !self.joins && place.attempt.haste == Haste::Least;
                return Ok(Turn::Overtaken);
            }
            if in_line {
                self.joins = false;
                place.attempt.haste = self.haste();
            }
            if !in_line && refused.refusal.lacks_replicas() {
                // The nodes have granted it the lock all the same, and would grant it again with each
                // WAIT. So it leaves, and joins the line again behind waiters that may need no replicas.
                place::release(&mut place.attempt.take_armed());
                let pause = self.on_refused(refused).await?;
                self.core.clock.sleep(pause).await;
                self.joins = true;
                return Ok(Turn::Overtaken);
            }
            let (advice, outlook) = (refused.advice, place.outlook(&refused.refusal));
            if in_line && place.goes_on_searching(&outlook) {
                continue;
            }
            let mut pause = self.on_refused(refused).await?;
            if let Advice::Contended { remaining } = advice {
                let pause_in_line = outlook.pause(pause, remaining);
                let now = self.core.clock.now();
                pause = self.patience.within_wait(pause_in_line, now);
            }
            if place.is_notified_within(pause).await {
                break Turn::Come;
            }
            if place.is_split() {
                break Turn::Split;
            }
        };
        self.joins = false;
        place.attempt.haste = self.haste();
        Ok(turn)
    }

    /// Sends ACQUIRE for a claim whose turn it is, or whose votes are split.
    async fn take_turn(&mut self, attempt: Attempt<'a>, split: bool) -> Result<Stood<'a>, Error> {
        if planted::on(planted::Bug::TurnIsGrant) {
            return Ok(Stood::Won(attempt.believe()));
        }
        let (token, haste) = (attempt.claim.token, attempt.haste);
        let not_taken = match attempt.take().await {
            Ok(won) => return Ok(Stood::Won(won)),
            Err(not_taken) => not_taken,
        };
        let NotTaken {
            mut refused,
            mut place,
        } = not_taken;
        let again = self.retokens(&mut refused.advice).await;
        let contended = matches!(refused.advice, Advice::Contended { .. });
        if split || !again && !contended {
            // Other waiters may need the nodes on which this claim has the lock.
            place::release(&mut place);
        }
        self.ticket.lowest = haste == Haste::Least;
        if !again {
            let pause = self.on_refused(refused).await?;
            if !contended {
                self.core.clock.sleep(pause).await;
            }
            // Another client was quicker, or the request was late. With the next token that can
            // win, this waiter keeps its place.
            self.ticket.at_least = token.saturating_add(1);
            self.ticket.lowest = true;
        }
        Ok(Stood::Overtaken(place))
    }
}

/// Why a waiter stops waiting at its place.
enum Turn {
    /// It is its turn.
    Come,
    /// Some nodes have granted it the lock, but not enough.
    Split,
    /// It needs another ticket.
    Overtaken,
}

/// How waiting at one place in line ended.
enum Stood<'a> {
    /// With the lock.
    Won(Won),
    /// The claim needs another ticket. Its place is to be left once the next claim has joined.
    Overtaken(Option<Armed<'a>>),
}
