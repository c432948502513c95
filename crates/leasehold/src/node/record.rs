//! How a node votes on one name: the rules, and the line of waiters.
//!
//! A node orders waiters by their tickets, which are their tokens, so all nodes agree on who is
//! next. When the lock is free, the node *hands it over* to the first in line: it grants the lock as
//! if the waiter's ACQUIRE had arrived at this moment. A WAIT is an ACQUIRE that the node keeps until
//! it can be granted. Messages may be late anyway, so nothing here is part of the argument why
//! tokens are safe.
//!
//! A grant raises the fence and is not taken back, so nodes that disagree on who is first would
//! split their votes. A waiter with a lower ticket may have reached other nodes and not yet this
//! one. So a waiter that joined less than [`ORDER_KNOWN_AFTER`] ago is granted nothing: the node notifies it
//! that it is its turn, and it sends ACQUIRE. Nothing is stored for that. **While the lock is free
//! and has a line, only the first in line can acquire it**; a waiter that joins with a lower ticket
//! becomes the first.
//!
//! Readers share a lock. For a reader, a lock that other readers hold is free, too, so the same rule
//! says that no reader overtakes a writer in line. Consecutive readers are granted the lock together.

use std::time::Duration;

use super::rules::{self, View, Write};
use super::{Claim, DEAD_AFTER, Line, Mode, News, Verb, Vote};
use crate::base::holder::owner_mode;

/// The remaining time that other clients are given for a free lock while it is a waiter's turn. On
/// Redis, other libraries are kept from acquiring the lock for this time.
pub const TURN: Duration = Duration::from_secs(1);

/// How long a lock is granted to the first in line. Short, so that a dead waiter costs little; long
/// enough that a waiter, which sends WAIT every 1.1 s, can extend it in time.
pub const HANDED_OVER: Duration = Duration::from_secs(2);

/// How many of the first in line are notified of a result. The others ask within a few seconds
/// anyway, and each notification costs the node time in which it answers nobody.
pub const ANNOUNCED_TO: usize = 100;

/// How many of the first in line one request serves: readers that are granted the lock, and waiters
/// that were overtaken or cannot be notified. The next request goes on. So the time that one request
/// takes does not grow with the number of waiters that died.
pub(crate) const SERVED_AT_ONCE: usize = 100;

/// What a node stores for one name, while it votes on one request: what [`vote`] works on.
///
/// All changes of one vote must take effect together, or not at all.
pub trait Record {
    /// The line of waiters for the name.
    type Line: Line;

    /// The lock and the fence, as they concern the claim with this owner value.
    fn view(&self, owner: &[u8]) -> View<'_>;

    /// Stores what a rule says.
    fn write(&mut self, write: Write, claim: &Claim);

    /// Stores a grant to a waiter, or the refresh of one: what [`rules::grant`] says.
    fn grant(&mut self, owner: &[u8], token: u64, write: Write);

    /// The line.
    fn line(&mut self) -> &mut Self::Line;
}

/// Votes on a claim.
///
/// ```
/// use leasehold::{Client, MemoryNode};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// // Every node of this crate votes by this function; the node in memory is the shortest.
/// let client = Client::builder().custom_node(MemoryNode::new("a")).build()?;
/// client.mutex("x").lock().await?.release().await;
/// # Ok(()) }
/// ```
pub fn vote(record: &mut impl Record, verb: Verb, claim: &Claim) -> Vote {
    let joins = verb == Verb::Wait && rules::may_wait(&record.view(claim.owner()), claim);
    if joins {
        record.line().join(claim);
    }
    if record.line().is_empty() {
        let (vote, write) = rules::vote(&record.view(claim.owner()), verb, claim);
        record.write(write, claim);
        refresh(record, verb, claim, &vote);
        return vote;
    }
    if matches!(verb, Verb::Release { .. }) || verb == Verb::Wait && !joins {
        record.line().leave(claim.owner());
    }
    // Before the vote: an expired lock goes to the first in line, too. But the holder of a lease of
    // a majority may join it here before that.
    if verb != Verb::Extend {
        serve(record, verb, claim);
    }
    let (mut vote, write) = decide(record, verb, claim);
    let keeps = matches!(write, Write::Keep { .. });
    record.write(write, claim);
    refresh(record, verb, claim, &vote);
    match &mut vote {
        Vote::Granted => record.line().leave(claim.owner()),
        Vote::Held { place, .. } if joins => *place = Some(record.line().before(claim.owner())),
        _ => {}
    }
    if keeps && claim.has_result() {
        announce(record.line());
    }
    // After it: a lock that was released goes to the first in line. So does one that a writer shares
    // from now on, if the first is a reader. A WAIT changes nothing, but its ticket may have been
    // overtaken by what was just handed over, and then it does not stay in line.
    let serves = match verb {
        Verb::Acquire | Verb::Release { .. } => true,
        Verb::Wait => joins && matches!(vote, Vote::Stale { .. }),
        Verb::Extend => claim.replaces().is_some() && vote == Vote::Granted,
    };
    if serves {
        serve(record, verb, claim);
    }
    vote
}

/// Notifies waiters that there is a result, for which some of them wait. The name stays taken, so it
/// is nobody's turn.
fn announce(line: &mut impl Line) {
    for waiter in line.front(ANNOUNCED_TO) {
        line.notify(&waiter, News::AskAgain);
    }
}

/// Votes by the rule of the verb. Rule: if the lock is free and another claim is first in line, the
/// request is refused as if that claim held the lock. Only EXTEND may join a free lock, whatever the
/// line: the holder of a lease of a majority comes before all waiters.
///
/// For a reader, a lock that other readers hold is free. A claim that is one of them keeps its share.
fn decide(record: &mut impl Record, verb: Verb, claim: &Claim) -> (Vote, Write) {
    let view = record.view(claim.owner());
    let free = view.is_free_for(claim.mode()) && view.own_share().is_none();
    let first = match free && verb != Verb::Extend {
        true => record.line().first(),
        false => None,
    };
    let mut view = record.view(claim.owner());
    if let Some((first, _)) = &first
        && **first != *claim.owner()
    {
        (view.lock, view.remaining) = (Some(&**first), Some(TURN));
    }
    rules::vote(&view, verb, claim)
}

/// A waiter that was granted the lock here and still sends WAIT is waiting for other nodes. It keeps
/// the lock meanwhile; otherwise, with slow messages, the grant would expire here before the others
/// come. A lock that it has extended since is not shortened.
fn refresh(record: &mut impl Record, verb: Verb, claim: &Claim, vote: &Vote) {
    if (verb, vote) != (Verb::Wait, &Vote::Granted) {
        return;
    }
    let view = record.view(claim.owner());
    let remaining = match claim.mode() {
        Mode::Exclusive => view.remaining,
        Mode::Shared => view.own_share(),
    };
    if remaining.is_some_and(|left| left < HANDED_OVER) {
        let write = rules::grant(&view, claim.owner(), claim.token(), HANDED_OVER);
        record.grant(claim.owner(), claim.token(), write);
    }
}

/// Hands a free lock to the first in line and notifies it, unless that is `asking`, which gets an
/// answer anyway. Goes on with the next after a reader.
///
/// While an exclusive claim has the lock there is nothing to hand over. Then only a WAIT looks for
/// waiters that are silent or were overtaken; all other requests leave that to the waiters and to the
/// release.
fn serve(record: &mut impl Record, verb: Verb, asking: &Claim) {
    let view = record.view(asking.owner());
    if verb != Verb::Wait && view.lock.is_some() && !view.is_shared() {
        return;
    }
    let before = view.now.saturating_sub(rules::micros(DEAD_AFTER));
    record.line().remove_silent(before);
    for _ in 0..SERVED_AT_ONCE {
        let Some((first, ticket)) = record.line().first() else {
            return;
        };
        let (mode, view) = (owner_mode(&first), record.view(&first));
        let overtaken = ticket <= view.need(mode);
        let (free, shared) = (view.is_free_for(mode), view.is_shared());
        let line = record.line();
        // A ticket that was overtaken cannot win: its owner takes a new one.
        if overtaken {
            line.leave(&first);
            line.notify(&first, News::AskAgain);
            continue;
        }
        if !free {
            return;
        }
        // Among readers there are no votes to split.
        let grants = shared || line.is_order_known(&first);
        let news = match grants {
            true => News::Granted,
            false => News::YourTurn,
        };
        if *first != *asking.owner() && !line.notify(&first, news) {
            line.leave(&first);
            continue;
        }
        if !grants {
            return;
        }
        let write = rules::grant(&record.view(&first), &first, ticket, HANDED_OVER);
        record.grant(&first, ticket, write);
        record.line().leave(&first);
        if mode == Mode::Exclusive {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
