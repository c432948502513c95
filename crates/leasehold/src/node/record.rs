//! How a node votes, from the state of one name to an answer: the rules, and the line of
//! those who wait.
//!
//! A node orders those who wait by their tickets, which are their tokens, so that all nodes
//! agree on who is next. When the lock is free it is *reserved* for the first in line, for a
//! moment, and the first is told. A reservation grants nothing: whoever is told asks for the lock
//! like anybody else, with [`Verb::Acquire`], by the same rules. So nothing that is said here
//! is part of the argument why tokens are safe.

use std::time::Duration;

use super::rules::{self, View, Write};
use super::{Claim, Verb, Vote};

/// For how long a lock is reserved for the one whose turn it is.
pub const TURN: Duration = Duration::from_secs(1);

/// One who waits and has not asked for so long is taken for dead.
pub const DEAD_AFTER: Duration = Duration::from_secs(3);

/// What one who waits is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The lock is reserved for it here.
    YourTurn,
    /// It is worth asking again: what it knew is no longer so.
    AskAgain,
}

/// What a node keeps of one name, at one moment: what [`vote`] works on.
///
/// Whatever is done to a record by one vote takes effect at once, or not at all.
pub trait Record {
    /// The lock and the fence.
    fn view(&self) -> View<'_>;

    /// Stores what a rule says.
    fn write(&mut self, write: Write, claim: &Claim);

    /// Reserves the lock for one of those who wait: it becomes the lock's value for so long. The
    /// fence stays as it is.
    fn reserve(&mut self, owner: &[u8], time: Duration);

    /// Whether anybody stands in line. May be wrong in saying so.
    fn has_line(&self) -> bool;

    /// The claim stands in line from now on, in the order of tokens (and of owner values where
    /// these are the same), or stands there still: it has asked now.
    fn join(&mut self, claim: &Claim);

    /// No longer.
    fn leave(&mut self, owner: &[u8]);

    /// Removes all who asked last before this moment of the node's clock. The work must not
    /// grow with the number of those who stay.
    fn bury(&mut self, before: u64);

    /// The first in line: its owner value and its ticket.
    fn first(&self) -> Option<(Box<[u8]>, u64)>;

    /// How many stand before this one, as far as is worth counting.
    fn before(&self, owner: &[u8]) -> u32;

    /// Tells one who waits. `false` if it is known to be dead.
    fn tell(&mut self, owner: &[u8], news: News) -> bool;
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
    let joins = verb == Verb::Wait && rules::may_wait(&record.view(), claim);
    if joins {
        record.join(claim);
    }
    if !record.has_line() {
        let (vote, write) = rules::vote(&record.view(), verb, claim);
        record.write(write, claim);
        return vote;
    }
    let displaced = reserved_for(record).filter(|owner| **owner != *claim.owner());
    if matches!(verb, Verb::Release { .. }) || verb == Verb::Wait && !joins {
        record.leave(claim.owner());
    }
    // Before the vote: of a lock that has expired, too, the first in line is next. But one who
    // holds the lease of a majority may join it here before that.
    if verb != Verb::Extend {
        serve(record, claim);
    }
    let (mut vote, write) = rules::vote(&record.view(), verb, claim);
    record.write(write, claim);
    match &mut vote {
        Vote::Granted => record.leave(claim.owner()),
        Vote::Held { place, .. } if joins => *place = Some(record.before(claim.owner())),
        _ => {}
    }
    // After it: a lock that was given back goes to the first in line.
    if verb != Verb::Extend {
        serve(record, claim);
    }
    if let Some(owner) = displaced
        && record.view().lock != Some(&*owner)
    {
        record.tell(&owner, News::AskAgain);
    }
    vote
}

/// For whom the lock is reserved, if it is.
fn reserved_for(record: &impl Record) -> Option<Box<[u8]>> {
    let view = record.view();
    view.lock
        .filter(|owner| view.is_reserved(owner))
        .map(Box::from)
}

/// Reserves a lock that nobody has for the first in line, and tells it; not `asking`, who gets
/// an answer anyway.
fn serve(record: &mut impl Record, asking: &Claim) {
    let dead = rules::micros(DEAD_AFTER);
    let before = record.view().now.saturating_sub(dead);
    record.bury(before);
    while let Some((first, ticket)) = record.first() {
        let view = record.view();
        // A ticket that was overtaken wins nothing any more: its owner takes a new one.
        if ticket <= view.effective_fence() {
            record.leave(&first);
            record.tell(&first, News::AskAgain);
            continue;
        }
        let free = match view.lock {
            None => true,
            Some(owner) => *owner != *first && view.is_reserved(owner),
        };
        if !free {
            return;
        }
        if *first != *asking.owner() && !record.tell(&first, News::YourTurn) {
            record.leave(&first);
            continue;
        }
        record.reserve(&first, TURN);
        return;
    }
}
