//! What a node stores: locks, fences, lines and its epoch. It votes by the library's own rules.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::node::rules::{self, Constants, Write};
use leasehold::node::{Claim, DEAD_AFTER, LINE_KEPT, Line, Record, Verb, Vote, vote};
use leasehold::{Holder, Name};

use crate::bug::Bug;
use crate::record::NameRecord;
use crate::subscriptions::{Channel, Subscriptions};

/// Since when a node has remembered everything, and the memory in which that was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    memory: u64,
    began_us: u64,
}

impl Epoch {
    /// The largest token that is never granted.
    pub fn floor(self, constants: &Constants) -> u64 {
        self.began_us
            .saturating_add(constants.skew.as_micros() as u64)
    }

    /// Its age by the node's clock.
    pub fn age(self, now_us: u64) -> Duration {
        Duration::from_micros(now_us.saturating_sub(self.began_us))
    }
}

/// A request about a claim, as it is sent over the network.
pub struct Ask {
    /// The verb.
    pub verb: Verb,
    /// The claim.
    pub claim: Claim,
    /// Whether no earlier message of the claim is under way.
    pub settled: bool,
    /// The node's epoch, as the connection knows it.
    pub epoch: Epoch,
    /// Whether the node must report its identity.
    pub verifies: bool,
    /// The channel that reaches the waiter, if any.
    pub channel: Option<Channel>,
}

impl Ask {
    /// Whether it releases a lock, and no message of its claim can arrive late.
    pub fn is_settled_release(&self) -> bool {
        self.settled && self.verb == Verb::Release { keep: None }
    }
}

/// The memory of a node. A clone is a snapshot.
#[derive(Clone, Default)]
pub struct Store {
    names: BTreeMap<Name, Entry>,
    epoch: Option<Epoch>,
    /// A living waiter that was dropped together with its line.
    forgotten: Option<String>,
}

/// What a node stores about a name.
#[derive(Clone, Default)]
pub struct Entry {
    /// The owner value of the lock, and when it expires.
    pub lock: Option<(Box<[u8]>, u64)>,
    /// The highest token granted, and until when it is remembered.
    pub fence: Option<(u64, u64)>,
    /// The line.
    pub line: Line,
    /// Whether the fence has the mark of a line: a waiter stands in line, or did.
    pub lined: bool,
    /// When the line expires, like a key on a Redis server.
    line_until: u64,
    /// How to notify the waiters, by owner value.
    contacts: BTreeMap<Box<[u8]>, Contact>,
    /// The number of arrivals, for the planted bug that orders the line by arrival.
    arrivals: u64,
}

#[derive(Clone)]
struct Contact {
    channel: Option<Channel>,
    ticket: u64,
    /// The number of its arrival.
    arrival: u64,
    /// It has left the line, but may still have to be notified.
    left: bool,
}

impl Store {
    /// The handshake. Returns the epoch, which begins now if its record is missing or from
    /// another memory of the node.
    pub fn greet(&mut self, memory: u64, now_us: u64) -> Epoch {
        match self.epoch {
            Some(epoch) if epoch.memory == memory => epoch,
            earlier => {
                // If the clock has gone back since the earlier epoch began, the earlier floor
                // stays.
                let began_us = earlier.map_or(now_us, |e| e.began_us.max(now_us));
                *self.epoch.insert(Epoch { memory, began_us })
            }
        }
    }

    /// Votes on a claim. Returns `None` if the epoch differs from the connection's, which then
    /// needs another handshake.
    pub fn vote(
        &mut self,
        ask: &Ask,
        now: u64,
        constants: Constants,
        bug: Option<Bug>,
        subscriptions: &mut Subscriptions,
    ) -> Option<Vote> {
        let entry = self.names.entry(ask.claim.name().clone()).or_default();
        if let Some(living) = entry.expire(now, bug) {
            let who = living.label.unwrap_or_default();
            self.forgotten = Some(format!("{who}, ticket {:?}", living.token));
        }
        let mut record = NameRecord {
            entry,
            ask,
            now,
            constants,
            bug,
            subscriptions,
        };
        if !record.is_plain() && self.epoch != Some(ask.epoch) {
            return None;
        }
        if record.keeps_stale() {
            record.join(&ask.claim);
        }
        let mut vote = vote(&mut record, ask.verb, &ask.claim);
        if let (true, Vote::Stale { fence, now }) = (record.keeps_stale(), &vote) {
            vote = Vote::Held {
                holder: record.entry.owner().map(Holder::parse).unwrap_or_default(),
                remaining: record.view().remaining,
                fence: *fence,
                now: *now,
                place: Some(0),
            };
        }
        if ask.verb != Verb::Extend {
            record.entry.tidy();
        }
        Some(vote)
    }

    /// A waiter that is alive by the node's own clock, and that the node has dropped because the
    /// whole line expired.
    pub fn take_forgotten(&mut self) -> Option<String> {
        self.forgotten.take()
    }

    /// Whether the epoch was recorded in this memory of the node.
    pub fn is_of_memory(&self, memory: u64) -> bool {
        self.epoch.is_some_and(|epoch| epoch.memory == memory)
    }

    /// The recorded epoch.
    pub fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }

    /// Loses all data, including the epoch.
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

    /// The waiters in line that are not long silent, with the names they wait for.
    pub fn lines(&self, now_us: u64) -> impl Iterator<Item = (&Name, Holder)> {
        self.names.iter().flat_map(move |(name, entry)| {
            let living = entry.living(now_us);
            let waiting = entry.contacts.keys().filter(|owner| living.contains(owner));
            let holders: Vec<_> = waiting.map(|owner| Holder::parse(owner)).collect();
            holders.into_iter().map(move |holder| (name, holder))
        })
    }

    /// Whether the claim with this owner value stands in line.
    pub fn stands(&self, name: &Name, owner: &[u8]) -> bool {
        let entry = self.names.get(name);
        entry.is_some_and(|entry| entry.line.contains(owner))
    }
}

impl NameRecord<'_> {
    /// The common cases, in which the scripts do not check the epoch: a fence that exists has not
    /// been forgotten.
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
    /// The owner value of the lock.
    pub fn owner(&self) -> Option<&[u8]> {
        self.lock.as_ref().map(|(owner, _)| &**owner)
    }

    /// Removes what has expired. Returns a living waiter if the line expired with it.
    fn expire(&mut self, now: u64, bug: Option<Bug>) -> Option<Holder> {
        if self.lock.as_ref().is_some_and(|(_, until)| *until <= now) {
            self.unlock(bug);
        }
        let mut forgotten = None;
        if self.line_until <= now && bug != Some(Bug::DeadWaiterKept) {
            forgotten = self.living(now).first();
            self.line = Line::default();
            self.contacts.clear();
        }
        if self.fence.take_if(|(_, until)| *until <= now).is_some() {
            self.lined = false;
        }
        forgotten.map(|(owner, _)| Holder::parse(&owner))
    }

    /// The waiters that have sent WAIT recently, by the node's clock.
    fn living(&self, now: u64) -> Line {
        let mut line = self.line.clone();
        line.remove_silent(now.saturating_sub(DEAD_AFTER.as_micros() as u64));
        line
    }

    /// Removes the lock.
    pub fn unlock(&mut self, bug: Option<Bug>) {
        self.lock = None;
        if bug == Some(Bug::FenceDiesWithLock) {
            self.fence = None;
        }
    }

    /// Adds a claim to the line, or refreshes it there.
    pub fn join(&mut self, claim: &Claim, channel: Option<Channel>, now: u64, bug: Option<Bug>) {
        self.arrivals += 1;
        let earlier = self
            .contacts
            .get(claim.owner())
            .filter(|contact| !contact.left);
        let contact = Contact {
            channel,
            ticket: claim.token(),
            arrival: earlier.map_or(self.arrivals, |contact| contact.arrival),
            left: false,
        };
        if bug == Some(Bug::LineByArrival) {
            let (name, owner) = (claim.name().clone(), claim.owner());
            let placed = Claim::new(name, owner, contact.arrival, claim.ttl());
            let placed = placed.on_one_node(claim.is_on_one_node());
            self.line.join(&placed, now);
        } else {
            self.line.join(claim, now);
        }
        self.contacts.insert(claim.owner().into(), contact);
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

    /// Removes a claim from the line.
    pub fn leave(&mut self, owner: &[u8]) {
        self.line.leave(owner);
        if let Some(contact) = self.contacts.get_mut(owner) {
            contact.left = true;
        }
    }

    /// The first in line, and its ticket.
    pub fn first(&self) -> Option<(Box<[u8]>, u64)> {
        let (owner, place) = self.line.first()?;
        let ticket = self
            .contacts
            .get(&owner)
            .map_or(place, |contact| contact.ticket);
        Some((owner, ticket))
    }

    /// The channel that reaches the waiter with this owner value.
    pub fn channel_of(&self, owner: &[u8]) -> Option<Channel> {
        self.contacts.get(owner)?.channel
    }

    /// Removes the entries of claims that have left, and the mark of an empty line.
    fn tidy(&mut self) {
        let line = &self.line;
        self.contacts.retain(|owner, _| line.contains(owner));
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
            channel: None,
        }
    }

    /// Found by the simulator: a node was flushed while its clock was ahead, its clock was set
    /// back, and it restarted with its whole memory. It then granted old tokens.
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
            &mut Subscriptions::default(),
        );
        assert!(matches!(vote, Some(Vote::Stale { .. })), "{vote:?}");
    }

    #[test]
    fn a_vote_with_a_stale_epoch_asks_for_a_handshake() {
        let constants = Constants::for_nodes(1);
        let mut store = Store::default();
        let epoch = store.greet(0, NOW);
        let token = epoch.floor(&constants) + 1;
        store.clear();
        let subscriptions = &mut Subscriptions::default();
        assert_eq!(
            store.vote(&ask(token, epoch), NOW + 1, constants, None, subscriptions),
            None
        );
        let epoch = store.greet(0, NOW + 1);
        let vote = store.vote(
            &ask(token + 1, epoch),
            NOW + 2,
            constants,
            None,
            subscriptions,
        );
        assert_eq!(vote, Some(Vote::Granted));
    }
}
