//! Waiting for a lease: a first attempt, and then a place in the line.
//!
//! A client that is refused stands in line on all nodes, with a ticket that is the token of its
//! lease. When its turn comes, the nodes grant it the lock and notify it, and a majority makes it the
//! holder. The lease counts from when the nodes were known not to have granted it yet. If a node only
//! notifies it that it is its turn, or little of that time is left, it sends ACQUIRE.

use std::sync::Arc;
use std::time::Duration;

use super::attempt::{Armed, Attempt, NotTaken, Refused};
use super::patience::Patience;
use super::place::{self, Place};
use super::proposer::BLOCK;
use crate::base::error::Error;
use crate::base::holder::new_owner;
use crate::base::name::Name;
use crate::client::core::Core;
use crate::client::options::{OnRefusal, Options};
use crate::lease::grant::Won;
use crate::node::{Claim, Holders};
use crate::planted;
use crate::quorum::round::{Advice, Haste};

/// How often an attempt is repeated at once with a better token before it counts as
/// contention. Two nodes with odd clocks cannot keep a caller spinning.
const MAX_RETOKENS: u32 = 8;

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
        let pause = wait.on_refused(refused)?;
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
    fn on_refused(&mut self, mut refused: Refused) -> Result<Duration, Error> {
        let now = self.core.clock.now();
        refused.refusal.attempts = self.patience.count(now);
        if let Some(OnRefusal(tell)) = &self.options.on_refusal {
            tell(&refused.refusal);
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
        let split = loop {
            if self.core.is_shut_down() {
                return Err(Error::ShutDown);
            }
            let Err(mut refused) = place.ask().await else {
                self.core.proposer.set_uncontended(self.name);
                break false;
            };
            let in_line = matches!(refused.advice, Advice::Contended { .. });
            if self.retokens(&mut refused.advice).await {
                // A waiter with the same ticket was served, or one with a lower ticket that came
                // late. With the next ticket that can win, this waiter keeps its place.
                self.ticket.lowest = !self.joins && place.attempt.haste == Haste::Least;
                return Ok(Stood::Overtaken(place.attempt.take_armed()));
            }
            if in_line {
                self.joins = false;
                place.attempt.haste = self.haste();
            }
            let (advice, outlook) = (refused.advice, place.outlook(&refused.refusal));
            let mut pause = self.on_refused(refused)?;
            if let Advice::Contended { remaining } = advice {
                let pause_in_line = outlook.pause(pause, remaining);
                let now = self.core.clock.now();
                pause = self.patience.within_wait(pause_in_line, now);
            }
            if place.is_notified_within(pause).await {
                break false;
            }
            if place.is_split() {
                break true;
            }
        };
        self.joins = false;
        place.attempt.haste = self.haste();
        match place.handed_over() {
            Ok(won) => Ok(Stood::Won(won)),
            Err(attempt) => self.take_turn(attempt, split).await,
        }
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
            // Other waiters may need the nodes that this claim has.
            place::release(&mut place);
        }
        self.ticket.lowest = haste == Haste::Least;
        if !again {
            let pause = self.on_refused(refused)?;
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

/// How waiting at one place in line ended.
enum Stood<'a> {
    /// With the lock.
    Won(Won),
    /// The claim needs another ticket. Its place is to be left once the next claim has joined.
    Overtaken(Option<Armed<'a>>),
}
