//! What a node keeps: locks, fences, the lines of those who wait, and its epoch. It votes by
//! the library's own rules.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::node::rules::{self, Constants, Write};
use leasehold::node::{Claim, DEAD_AFTER, LINE_KEPT, Line, Record, Verb, Vote, vote};
use leasehold::{Holder, Name};

use crate::bug::Bug;
use crate::desk::Desk;
use crate::switchboard::{Channel, Switchboard};

/// Since when a node has remembered everything, and in which memory of it that was noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    memory: u64,
    began_us: u64,
}

impl Epoch {
    /// No token up to here is granted.
    pub fn floor(self, constants: &Constants) -> u64 {
        self.began_us
            .saturating_add(constants.skew.as_micros() as u64)
    }

    /// How long it has lasted, by the node's clock.
    pub fn age(self, now_us: u64) -> Duration {
        Duration::from_micros(now_us.saturating_sub(self.began_us))
    }
}

/// What a node is asked to do with a claim, as it goes over the wire.
pub struct Ask {
    /// What to do.
    pub verb: Verb,
    /// With which claim.
    pub claim: Claim,
    /// Whether nothing of the claim is on its way.
    pub settled: bool,
    /// What the connection knows of the node's epoch.
    pub epoch: Epoch,
    /// The node is to say who it is.
    pub verifies: bool,
    /// Where the one who asks can be told something, if anywhere.
    pub bell: Option<Channel>,
}

impl Ask {
    /// Whether it gives a lock back, and nothing of its claim can arrive late.
    pub fn is_settled_release(&self) -> bool {
        self.settled && self.verb == Verb::Release { keep: None }
    }
}

/// The memory of a node. A clone is a snapshot.
#[derive(Clone, Default)]
pub struct Store {
    names: BTreeMap<Name, Entry>,
    epoch: Option<Epoch>,
    /// A living waiter that was forgotten together with its line.
    forgotten: Option<String>,
}

/// What a node keeps of a name.
#[derive(Clone, Default)]
pub struct Entry {
    /// The owner value, and until when.
    pub lock: Option<(Box<[u8]>, u64)>,
    /// The highest token granted, and until when it is remembered.
    pub fence: Option<(u64, u64)>,
    /// Those who wait.
    pub line: Line,
    /// The fence is marked: somebody stands in line, or did.
    pub lined: bool,
    /// When the line expires, as a key does on a Redis server.
    line_until: u64,
    /// Where those who wait are told something.
    bells: BTreeMap<Box<[u8]>, Bell>,
    /// For those who are ordered by their arrival on purpose.
    arrivals: u64,
}

#[derive(Clone)]
struct Bell {
    channel: Option<Channel>,
    ticket: u64,
    /// Which arrival it was.
    arrival: u64,
    /// It has left the line, but may have to be told why.
    left: bool,
}

impl Store {
    /// The handshake: the epoch, which begins now if the record of it is missing or from
    /// another memory of the node.
    pub fn greet(&mut self, memory: u64, now_us: u64) -> Epoch {
        match self.epoch {
            Some(epoch) if epoch.memory == memory => epoch,
            earlier => {
                // If the clock has gone back since the earlier epoch began, its floor holds on.
                let began_us = earlier.map_or(now_us, |e| e.began_us.max(now_us));
                *self.epoch.insert(Epoch { memory, began_us })
            }
        }
    }

    /// Votes on a claim. `None`: the epoch is another than the connection thinks, so it has
    /// to shake hands again first.
    pub fn vote(
        &mut self,
        ask: &Ask,
        now: u64,
        constants: Constants,
        bug: Option<Bug>,
        board: &mut Switchboard,
    ) -> Option<Vote> {
        let entry = self.names.entry(ask.claim.name().clone()).or_default();
        if let Some(living) = entry.expire(now, bug) {
            let who = living.label.unwrap_or_default();
            self.forgotten = Some(format!("{who}, ticket {:?}", living.token));
        }
        let mut desk = Desk {
            entry,
            ask,
            now,
            constants,
            bug,
            board,
        };
        if !desk.is_plain() && self.epoch != Some(ask.epoch) {
            return None;
        }
        if desk.keeps_stale() {
            desk.join(&ask.claim);
        }
        let mut vote = vote(&mut desk, ask.verb, &ask.claim);
        if let (true, Vote::Stale { fence, now }) = (desk.keeps_stale(), &vote) {
            vote = Vote::Held {
                holder: desk.entry.owner().map(Holder::parse).unwrap_or_default(),
                remaining: desk.view().remaining,
                fence: *fence,
                now: *now,
                place: Some(0),
            };
        }
        if ask.verb != Verb::Extend {
            desk.entry.tidy();
        }
        Some(vote)
    }

    /// A waiter that is alive by the node's own clock, and that the node has forgotten because
    /// the whole line expired.
    pub fn take_forgotten(&mut self) -> Option<String> {
        self.forgotten.take()
    }

    /// Whether the epoch was noted in this memory of the node.
    pub fn is_of_memory(&self, memory: u64) -> bool {
        self.epoch.is_some_and(|epoch| epoch.memory == memory)
    }

    /// The epoch, as it is on record.
    pub fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }

    /// Forgets everything, the epoch too.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// The locks that have not expired, and their holders.
    pub fn locks(&self, now_us: u64) -> impl Iterator<Item = (&Name, Holder)> {
        self.names.iter().filter_map(move |(name, entry)| {
            let (owner, _) = entry.lock.as_ref().filter(|(_, until)| *until > now_us)?;
            Some((name, Holder::parse(owner)))
        })
    }

    /// Those who stand in line and have not been dead for long, and for which name.
    pub fn lines(&self, now_us: u64) -> impl Iterator<Item = (&Name, Holder)> {
        self.names.iter().flat_map(move |(name, entry)| {
            let living = entry.living(now_us);
            let waiting = entry.bells.keys().filter(|owner| living.contains(owner));
            let holders: Vec<_> = waiting.map(|owner| Holder::parse(owner)).collect();
            holders.into_iter().map(move |holder| (name, holder))
        })
    }

    /// Whether this one stands in line.
    pub fn stands(&self, name: &Name, owner: &[u8]) -> bool {
        let entry = self.names.get(name);
        entry.is_some_and(|entry| entry.line.contains(owner))
    }
}

impl Desk<'_> {
    /// The common cases, in which the scripts do not look at the epoch: a fence that is there
    /// has not been forgotten.
    fn is_plain(&self) -> bool {
        let (entry, claim) = (&*self.entry, &self.ask.claim);
        let owned = entry.owner() == Some(claim.owner());
        match self.ask.verb {
            Verb::Acquire => {
                let takes = matches!(rules::acquire(&self.view(), claim).1, Write::Lock { .. });
                entry.fence.is_some() && takes && entry.lock.is_none() && !entry.lined
            }
            Verb::Wait => false,
            Verb::Extend => owned && entry.fence.is_some_and(|(f, _)| f == claim.token()),
            Verb::Release { .. } if self.ask.is_settled_release() => true,
            Verb::Release { .. } => entry.lock.is_some() && !entry.lined,
        }
    }
}

impl Entry {
    /// Whose the lock is.
    pub fn owner(&self) -> Option<&[u8]> {
        self.lock.as_ref().map(|(owner, _)| &**owner)
    }

    /// Forgets what has expired. Returns a living waiter if the line expired with it.
    fn expire(&mut self, now: u64, bug: Option<Bug>) -> Option<Holder> {
        if self.lock.as_ref().is_some_and(|(_, until)| *until <= now) {
            self.unlock(bug);
        }
        let mut forgotten = None;
        if self.line_until <= now && bug != Some(Bug::DeadWaiterKept) {
            forgotten = self.living(now).first();
            self.line = Line::default();
            self.bells.clear();
        }
        if self.fence.take_if(|(_, until)| *until <= now).is_some() {
            self.lined = false;
        }
        forgotten.map(|(owner, _)| Holder::parse(&owner))
    }

    /// Those who have asked lately, by the node's clock.
    fn living(&self, now: u64) -> Line {
        let mut line = self.line.clone();
        line.bury(now.saturating_sub(DEAD_AFTER.as_micros() as u64));
        line
    }

    /// The lock goes away.
    pub fn unlock(&mut self, bug: Option<Bug>) {
        self.lock = None;
        if bug == Some(Bug::FenceDiesWithLock) {
            self.fence = None;
        }
    }

    /// Stands in line from now on, or still.
    pub fn join(&mut self, claim: &Claim, channel: Option<Channel>, now: u64, bug: Option<Bug>) {
        self.arrivals += 1;
        let earlier = self.bells.get(claim.owner()).filter(|bell| !bell.left);
        let bell = Bell {
            channel,
            ticket: claim.token(),
            arrival: earlier.map_or(self.arrivals, |bell| bell.arrival),
            left: false,
        };
        if bug == Some(Bug::LineByArrival) {
            let (name, owner) = (claim.name().clone(), claim.owner());
            let placed = Claim::new(name, owner, bell.arrival, claim.ttl());
            let placed = placed.on_one_node(claim.is_on_one_node());
            self.line.join(&placed, now);
        } else {
            self.line.join(claim, now);
        }
        self.bells.insert(claim.owner().into(), bell);
        self.lined = true;
        let (kept, left) = (
            LINE_KEPT.as_micros() as u64,
            self.line_until.saturating_sub(now),
        );
        let refreshes = match bug {
            Some(Bug::LineKeptByFirst) => self.line.before(claim.owner()) == 0,
            _ => left < kept - kept / 3,
        };
        if refreshes {
            self.line_until = now.saturating_add(kept);
        }
    }

    /// No longer.
    pub fn leave(&mut self, owner: &[u8]) {
        self.line.leave(owner);
        if let Some(bell) = self.bells.get_mut(owner) {
            bell.left = true;
        }
    }

    /// The first in line, and its ticket.
    pub fn first(&self) -> Option<(Box<[u8]>, u64)> {
        let (owner, place) = self.line.first()?;
        let ticket = self.bells.get(&owner).map_or(place, |bell| bell.ticket);
        Some((owner, ticket))
    }

    /// Where to tell it something.
    pub fn bell(&self, owner: &[u8]) -> Option<Channel> {
        self.bells.get(owner)?.channel
    }

    /// Forgets those who have left, and the mark of a line in which nobody stands.
    fn tidy(&mut self) {
        let line = &self.line;
        self.bells.retain(|owner, _| line.contains(owner));
        self.lined &= !line.is_empty();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000_000_000;

    fn ask(token: u64, epoch: Epoch) -> Ask {
        let name = Name::new("a").expect("a name");
        let ttl = Duration::from_secs(10);
        Ask {
            verb: Verb::Acquire,
            claim: Claim::new(name, token.to_string().into_bytes(), token, ttl),
            settled: false,
            epoch,
            verifies: false,
            bell: None,
        }
    }

    /// Found by a run: flushed while its clock was ahead, set back, and then restarted with
    /// everything it knew, a node handed out old tokens.
    #[test]
    fn a_restart_keeps_the_floor_of_a_clock_that_was_ahead() {
        let constants = Constants::for_nodes(1);
        let hour = 3_600_000_000;
        let mut store = Store::default();
        let ahead = store.greet(0, NOW + hour);
        let back = store.greet(1, NOW);
        assert_eq!(back.floor(&constants), ahead.floor(&constants));
        let vote = store.vote(
            &ask(NOW + 1, back),
            NOW,
            constants,
            None,
            &mut Switchboard::default(),
        );
        assert!(matches!(vote, Some(Vote::Stale { .. })), "{vote:?}");
    }

    #[test]
    fn another_epoch_than_the_connection_knows_is_told() {
        let constants = Constants::for_nodes(1);
        let mut store = Store::default();
        let epoch = store.greet(0, NOW);
        let token = epoch.floor(&constants) + 1;
        store.clear();
        let board = &mut Switchboard::default();
        assert_eq!(
            store.vote(&ask(token, epoch), NOW + 1, constants, None, board),
            None
        );
        let epoch = store.greet(0, NOW + 1);
        let vote = store.vote(&ask(token + 1, epoch), NOW + 2, constants, None, board);
        assert_eq!(vote, Some(Vote::Granted));
    }
}
