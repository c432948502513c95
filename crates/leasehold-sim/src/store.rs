//! What a node stores: locks, fences, lines and its epoch. It votes by the library's own rules.

use std::collections::BTreeMap;
use std::time::Duration;

use leasehold::node::link::Reply as Said;
use leasehold::node::rules::{self, Constants, Write};
use leasehold::node::{
    Claim, DEAD_AFTER, LINE_KEPT, Line, MemoryLine, Record, Seat, Verb, Vote, vote,
};
use leasehold::{Holder, Mode, Name};

use crate::bug::Bug;
use crate::check::{leftovers, order};
use crate::message::Ask;
use crate::permits::NamedPermits;
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

/// The memory of a node. A clone is a snapshot.
#[derive(Clone, Default)]
pub struct Store {
    pub(crate) names: BTreeMap<Name, Entry>,
    epoch: Option<Epoch>,
    /// The promise that the node has broken, and how.
    broken: Option<(&'static str, String)>,
}

/// What a node stores about a name.
#[derive(Clone, Default)]
pub struct Entry {
    /// The owner value of the lock, and when it expires.
    pub lock: Option<(Box<[u8]>, u64)>,
    /// The owner values of readers, and when they expire. They count only while the lock is a
    /// marker.
    pub readers: BTreeMap<Box<[u8]>, u64>,
    /// The highest token granted, and until when it is remembered.
    pub fence: Option<(u64, u64)>,
    /// The highest token granted to an exclusive claim, if it is stored apart from the fence.
    pub write_fence: Option<u64>,
    /// The number of permits, if the name is the key of a semaphore, and until when it is kept.
    pub permits: Option<(u32, u64)>,
    /// The line.
    pub line: MemoryLine,
    /// Whether the fence has the mark of a line: a waiter stands in line, or did.
    pub lined: bool,
    /// When the line expires, like a key on a Redis server.
    line_until: u64,
    /// How to notify the waiters, by owner value.
    contacts: BTreeMap<Box<[u8]>, Contact>,
    /// Claims that were released here, with their tokens, unless the fence is above them. None of
    /// them may be granted the lock, or join the line, any more.
    released: Vec<(Box<[u8]>, u64)>,
    /// One of them, if it was.
    revived: Option<Holder>,
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
        // Servers drop what has expired in the background, too.
        for entry in self.names.values_mut() {
            entry.expire_fence(now_us);
        }
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

    /// Votes on a claim. The answer is another one if the epoch differs from the connection's, which
    /// then needs another handshake, or if this is not the common case of a script that others
    /// share.
    pub fn vote(
        &mut self,
        ask: &Ask,
        now: u64,
        constants: Constants,
        bug: Option<Bug>,
        subscriptions: &mut Subscriptions,
    ) -> Said {
        let epoch = self.epoch;
        if let Some(seat) = ask.claim.seat()
            && ask.verb != Verb::Extend
        {
            // The script of semaphores always looks at the epoch.
            if epoch != Some(ask.epoch) {
                return Said::Forgot;
            }
            let vote = self.vote_on_permit((ask, seat), now, constants, bug, subscriptions);
            return said(ask, now, vote);
        }
        let mut record = NameRecord {
            entry: self.entry(ask.claim.name(), now, bug),
            ask,
            now,
            constants,
            bug,
            subscriptions,
        };
        let is_plain = record.is_plain();
        if ask.shares && (!is_plain || !record.is_empty()) {
            return Said::Alone;
        }
        if !is_plain && epoch != Some(ask.epoch) {
            return Said::Forgot;
        }
        if ask.overtook && !record.is_empty() && record.entry.owner() == Some(ask.claim.owner()) {
            // The lock goes to the first in line.
            record.entry.unlock(bug);
        }
        if record.keeps_stale() {
            record.join(&ask.claim);
        }
        let mut vote = vote(&mut record, ask.verb, &ask.claim);
        if let (true, Vote::Stale { fence, now }) = (record.keeps_stale(), &vote) {
            let holder = record.entry.owner().map(Holder::parse).unwrap_or_default();
            let remaining = record.view(ask.claim.owner()).remaining;
            vote = Vote::held(holder, remaining, *fence, *now).with_place(0);
        }
        let entry = record.entry;
        if ask.verb != Verb::Extend {
            entry.tidy();
        }
        let revived = entry.revived.take();
        self.note_revived(revived);
        said(ask, now, vote)
    }

    fn note_revived(&mut self, revived: Option<Holder>) {
        if let Some(claim) = revived {
            let (who, token) = (claim.label.unwrap_or_default(), claim.token);
            let what = format!("granted token {token:?} of {who} after its release");
            self.broken = Some((leftovers::PROMISE, what));
        }
    }

    /// Votes on a claim of a semaphore, by the library's own rules.
    fn vote_on_permit(
        &mut self,
        (ask, seat): (&Ask, &Seat),
        now: u64,
        constants: Constants,
        bug: Option<Bug>,
        subscriptions: &mut Subscriptions,
    ) -> Vote {
        let claim = &ask.claim;
        let semaphore = seat.semaphore();
        let mut line = std::mem::take(self.entry(semaphore, now, bug));
        let mut permits = NamedPermits {
            names: &mut self.names,
            line: NameRecord {
                entry: &mut line,
                ask,
                now,
                constants,
                bug,
                subscriptions,
            },
        };
        let vote = leasehold::node::vote_on_permit(&mut permits, ask.verb, claim, seat);
        line.tidy();
        let mut revived = line.revived.take();
        self.names.insert(semaphore.clone(), line);
        if let Some(permit) = self.names.get_mut(claim.name()) {
            revived = revived.or(permit.revived.take());
        }
        self.note_revived(revived);
        vote
    }

    /// Sets a lock without a token, if the name is free.
    pub fn set(&mut self, claim: &Claim, now: u64, bug: Option<Bug>) -> bool {
        let entry = self.entry(claim.name(), now, bug);
        let is_free = entry.lock.is_none();
        if is_free {
            let until = now.saturating_add(claim.ttl().as_micros() as u64);
            entry.lock = Some((claim.owner().into(), until));
        }
        is_free
    }

    /// Deletes a lock, if it is the claim's. Leaves the line as it is.
    pub fn delete(&mut self, claim: &Claim, now: u64, bug: Option<Bug>) -> bool {
        let entry = self.entry(claim.name(), now, bug);
        let held = entry.owner() == Some(claim.owner());
        if held {
            entry.unlock(bug);
            entry.note_release(claim);
        }
        held
    }

    /// Whether there is a line.
    pub fn has_line(&mut self, name: &Name, now: u64, bug: Option<Bug>) -> bool {
        !self.entry(name, now, bug).line.is_empty()
    }

    fn entry(&mut self, name: &Name, now: u64, bug: Option<Bug>) -> &mut Entry {
        let entry = self.names.entry(name.clone()).or_default();
        if let Some(living) = entry.expire(now, bug) {
            let (who, ticket) = (living.label.unwrap_or_default(), living.token);
            let what = format!("forgot {who}, ticket {ticket:?}, which was alive");
            self.broken = Some((order::PROMISE, what));
        }
        entry
    }

    /// The promise that the node has broken, and how: it dropped a waiter that is alive by its own
    /// clock, because the whole line expired, or a request of a claim that was released took effect
    /// after all.
    pub fn take_broken(&mut self) -> Option<(&'static str, String)> {
        self.broken.take()
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
        self.names.iter().flat_map(move |(name, entry)| {
            let lock = entry.lock.as_ref().filter(|(_, until)| *until > now_us);
            let holders: Vec<Holder> = match lock {
                None => Vec::new(),
                Some(_) if entry.is_shared() => {
                    let readers = entry.readers.iter().filter(|(_, until)| **until > now_us);
                    readers.map(|(owner, _)| Holder::parse(owner)).collect()
                }
                Some((owner, _)) => vec![Holder::parse(owner)],
            };
            holders.into_iter().map(move |holder| (name, holder))
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

/// The answer with a vote.
fn said(ask: &Ask, now: u64, vote: Vote) -> Said {
    match vote {
        Vote::Granted if ask.verb == Verb::Acquire && !ask.is_within_cap => Said::GrantedAt(now),
        vote => Said::Answer(Ok(vote)),
    }
}

impl NameRecord<'_> {
    /// The common cases, in which the scripts do not check the epoch: a fence that exists has not
    /// been forgotten.
    fn is_plain(&self) -> bool {
        let (entry, claim) = (&*self.entry, &self.ask.claim);
        if claim.mode() == Mode::Shared || entry.write_fence.is_some() {
            return false;
        }
        let owned = entry.owner() == Some(claim.owner());
        match self.ask.verb {
            Verb::Acquire => {
                let takes = matches!(
                    rules::acquire(&self.view(claim.owner()), claim).1,
                    Write::Lock { .. }
                );
                entry.fence.is_some() && takes && entry.lock.is_none() && !entry.lined
            }
            Verb::Extend => owned && entry.fence.is_some_and(|(f, _)| f == claim.token()),
            Verb::Release { .. } if self.ask.is_plain_delete => true,
            Verb::Release { .. } => entry.lock.is_some() && !entry.lined,
            _ => false,
        }
    }
}

impl Entry {
    /// Whether readers hold the lock.
    pub fn is_shared(&self) -> bool {
        let holder = self.owner().map(Holder::parse);
        holder.is_some_and(|holder| holder.shared && !holder.kept)
    }

    /// The owner value of the lock.
    pub fn owner(&self) -> Option<&[u8]> {
        self.lock.as_ref().map(|(owner, _)| &**owner)
    }

    /// Removes what has expired. Returns a living waiter if the line expired with it.
    pub fn expire(&mut self, now: u64, bug: Option<Bug>) -> Option<Holder> {
        if self.lock.as_ref().is_some_and(|(_, until)| *until <= now) {
            self.unlock(bug);
        }
        let mut forgotten = None;
        if self.line_until <= now && bug != Some(Bug::DeadWaiterKept) {
            forgotten = self.living(now).first();
            self.line = MemoryLine::default();
            self.contacts.clear();
        }
        self.expire_fence(now);
        forgotten.map(|(owner, _)| Holder::parse(&owner))
    }

    fn expire_fence(&mut self, now: u64) {
        if self.fence.take_if(|(_, until)| *until <= now).is_some() {
            self.lined = false;
            self.write_fence = None;
        }
    }

    /// The waiters that have sent WAIT recently, by the node's clock.
    fn living(&self, now: u64) -> MemoryLine {
        let mut line = self.line.clone();
        line.remove_silent(now.saturating_sub(DEAD_AFTER.as_micros() as u64));
        line
    }

    /// Removes the lock.
    pub fn unlock(&mut self, bug: Option<Bug>) {
        self.lock = None;
        if bug == Some(Bug::FenceDiesWithLock) {
            self.fence = None;
            self.write_fence = None;
        }
    }

    /// Notes that a claim was released while no other claim had the lock.
    pub fn note_release(&mut self, claim: &Claim) {
        let fence = self.fence.map_or(0, |(fence, _)| fence);
        self.released.retain(|(_, token)| *token >= fence);
        if claim.is_fenced() && claim.token() >= fence {
            self.released.push((claim.owner().into(), claim.token()));
        }
    }

    /// Notes that a claim gets the lock, or joins the line.
    pub fn note_taking(&mut self, owner: &[u8]) {
        if self
            .released
            .iter()
            .any(|(released, _)| **released == *owner)
        {
            self.revived = Some(Holder::parse(owner));
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
            shares: false,
            is_plain_delete: false,
            overtook: false,
            is_within_cap: false,
            epoch,
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
        assert!(matches!(vote, Said::Answer(Ok(Vote::Stale { .. }))));
    }

    #[test]
    fn a_vote_with_a_stale_epoch_asks_for_a_handshake() {
        let constants = Constants::for_nodes(1);
        let mut store = Store::default();
        let epoch = store.greet(0, NOW);
        let token = epoch.floor(&constants) + 1;
        store.clear();
        let subscriptions = &mut Subscriptions::default();
        let vote = store.vote(&ask(token, epoch), NOW + 1, constants, None, subscriptions);
        assert!(matches!(vote, Said::Forgot));
        let epoch = store.greet(0, NOW + 1);
        let vote = store.vote(
            &ask(token + 1, epoch),
            NOW + 2,
            constants,
            None,
            subscriptions,
        );
        assert!(matches!(vote, Said::GrantedAt(_)));
    }
}
