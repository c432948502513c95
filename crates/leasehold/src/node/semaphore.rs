//! How a node votes on the claims of a semaphore.
//!
//! The permits of a semaphore are locks with names of their own, each with its own fence: at most one
//! claim holds a permit, by the same rules and the same majority as for any lock. So the number of
//! holders is bounded by the number of names, and nothing here is part of that argument. (Nodes that
//! counted holders would not do: three nodes that each grant two permits can have three holders, each
//! with a majority.)
//!
//! Clients that wait stand in one line, under the semaphore's key, with a claim that serves only as
//! their **ticket**. While there is a line, only the first in line can acquire a permit. It is notified
//! of a permit that is free here, and acquires it with a claim of its own, which names the ticket. It
//! stays in line until a node grants it a permit: **nodes see releases in different orders, so a node
//! must not remove a waiter that other nodes still serve.**
//!
//! A client with another number of permits is refused. The number is kept on record as long as a fence.

use std::time::Duration;

use super::record::SERVED_AT_ONCE;
use super::rules::{self, Constants};
use super::seat::Seat;
use super::{Claim, DEAD_AFTER, Line, News, TURN, Verb, Vote};
use crate::base::holder::Holder;
use crate::planted::{self, Bug};

/// The largest number of permits.
pub(crate) const MAX_PERMITS: u32 = 1024;

/// What a node stores for a semaphore, while it votes on one request: what [`vote_on_permit`] works on.
///
/// All changes of one vote must take effect together, or not at all.
pub trait SemaphoreRecord {
    /// The line of waiters.
    type Line: Line;

    /// The line, under the semaphore's key.
    fn line(&mut self) -> &mut Self::Line;

    /// The number of permits on record.
    fn permits(&mut self) -> Option<u32>;

    /// Puts the number of permits on record, to be kept as long as a fence that is written now.
    fn set_permits(&mut self, permits: u32);

    /// The value of the lock of a permit and the time until it expires. `None`: the permit is free.
    fn lock_of(&mut self, permit: u32) -> Option<(Holder, Option<Duration>)>;

    /// Votes on a claim for a permit as on that for any other lock: by [`rules::vote`].
    fn vote(&mut self, verb: Verb, claim: &Claim) -> Vote;

    /// The floor, the clock, and the constants of the node; see [`rules::View`].
    fn clock(&self) -> (u64, u64, Constants);
}

/// Votes on a claim of a semaphore.
pub fn vote_on_permit(
    node: &mut impl SemaphoreRecord,
    verb: Verb,
    claim: &Claim,
    seat: &Seat,
) -> Vote {
    // Rule: the same request again has the same answer, whatever has changed since. (WAIT writes
    // nothing to the lock.)
    let again = verb == Verb::Acquire && node.vote(Verb::Wait, claim) == Vote::Granted;
    if let (Verb::Acquire | Verb::Wait, Some(ours), false) = (verb, seat.permits(), again) {
        match node.permits() {
            Some(permits) if permits != ours && !planted::on(Bug::OtherNumberAccepted) => {
                return Vote::OtherPermits { permits };
            }
            _ => {}
        }
    }
    let (_, now, _) = node.clock();
    if verb != Verb::Extend && !node.line().is_empty() {
        let before = now.saturating_sub(rules::micros(DEAD_AFTER));
        node.line().remove_silent(before);
    }
    match (verb, seat.number()) {
        (Verb::Wait, _) => wait(node, claim, seat),
        (Verb::Acquire, _) => acquire(node, claim, seat, again),
        (Verb::Extend, _) => node.vote(verb, claim),
        (Verb::Release { .. }, permit) => {
            if let (true, Some(permits)) = (seat.resizes(), seat.permits()) {
                node.set_permits(permits);
            }
            refresh_permits(node);
            let vote = match permit {
                // Rule: the ticket stays. This may be the release of a request that failed, after which
                // the client still waits.
                Some(_) => node.vote(verb, claim),
                None => {
                    node.line().leave(claim.owner());
                    Vote::Released { held: false }
                }
            };
            announce(node, seat);
            vote
        }
    }
}

/// WAIT: joins the line, or stays there. The first in line is told which permit is free.
fn wait(node: &mut impl SemaphoreRecord, claim: &Claim, seat: &Seat) -> Vote {
    let (fence, now, constants) = node.clock();
    // The rules of any line: a ticket within the cap and above the floor. It is above no fence, because
    // it is not known yet for which permit it will be used.
    let ahead = claim.token() > now.saturating_add(constants.skew_us());
    if ahead || claim.token() <= fence {
        node.line().leave(claim.owner());
        announce(node, seat);
        return match ahead {
            true => Vote::Ahead { fence, now },
            false => Vote::Stale { fence, now },
        };
    }
    node.line().join(claim);
    refresh_permits(node);
    let is_first = node
        .line()
        .first()
        .is_some_and(|(first, _)| *first == *claim.owner());
    if is_first && let Some(permit) = free_permit(node, seat) {
        if planted::on(Bug::LeavesWhenTold) {
            node.line().leave(claim.owner());
        }
        return Vote::Free { permit };
    }
    let place = node.line().before(claim.owner());
    let soonest = match is_first {
        true => seat
            .searched()
            .filter_map(|permit| node.lock_of(permit))
            .min_by_key(left),
        false => None,
    };
    let (holder, remaining) = soonest.unwrap_or_default();
    // No holder of a permit is taken for the first in line, whose ticket is above the fence.
    let fence = fence.max(holder.token.unwrap_or(0));
    Vote::held(holder, remaining, fence, now).with_place(place)
}

/// ACQUIRE of a permit. Rule: while there is a line, only the first in line can acquire a permit.
fn acquire(node: &mut impl SemaphoreRecord, claim: &Claim, seat: &Seat, again: bool) -> Vote {
    let place = seat.place(claim.owner());
    if !again
        && let Some((first, _)) = node.line().first()
        && place != Some(&*first)
        && !planted::on(Bug::TicketIgnored)
    {
        let (fence, now, _) = node.clock();
        return Vote::held(Holder::parse(&first), Some(TURN), fence, now);
    }
    let vote = node.vote(Verb::Acquire, claim);
    // A client that guessed is told which permit is free.
    if let (Vote::Held { .. }, None) = (&vote, place)
        && let Some(permit) = free_permit(node, seat)
    {
        return Vote::Free { permit };
    }
    if vote == Vote::Granted {
        if let Some(permits) = seat.permits() {
            node.set_permits(permits);
        }
        if let Some(place) = place {
            node.line().leave(place);
            if !planted::on(Bug::RestNotAnnounced) {
                announce(node, seat);
            }
        }
    }
    vote
}

/// Notifies the first in line if a permit is free.
fn announce(node: &mut impl SemaphoreRecord, seat: &Seat) {
    for _ in 0..SERVED_AT_ONCE {
        let Some((first, _)) = node.line().first() else {
            return;
        };
        let Some(permit) = free_permit(node, seat) else {
            return;
        };
        let is_notified = node.line().notify(&first, News::Free(permit));
        if !is_notified || planted::on(Bug::LeavesWhenTold) {
            node.line().leave(&first);
        }
        if is_notified {
            return;
        }
    }
}

/// The number of permits is kept on record for as long as the semaphore is used.
fn refresh_permits(node: &mut impl SemaphoreRecord) {
    if let Some(permits) = node.permits() {
        node.set_permits(permits);
    }
}

/// A permit that is free. Rule: none beyond the number on record. The request may be that of a client
/// with another number, which leaves the line, or which acquired its permit before the number changed.
fn free_permit(node: &mut impl SemaphoreRecord, seat: &Seat) -> Option<u32> {
    let permits = node.permits().unwrap_or(u32::MAX);
    seat.searched()
        .filter(|permit| *permit < permits)
        .find(|permit| node.lock_of(*permit).is_none())
}

fn left((_, remaining): &(Holder, Option<Duration>)) -> Duration {
    remaining.unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests;
