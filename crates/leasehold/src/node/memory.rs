//! A node in the memory of this process.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::rules::{Constants, View, Write};
use super::{
    Call, Claim, HISTORY_ENTRIES, HISTORY_KEPT, HistoryEntry, HistoryRead, HistoryWritten, Line,
    MemoryLine, News, Node, Notifier, Record, SemaphoreRecord, Survey, Verb, Vote, Watch, rules,
    vote, vote_on_permit,
};
use crate::base::clock::{Clock, Moment, TimeSource};
use crate::base::holder::{Holder, is_marker, marker_value};
use crate::base::name::Name;
use crate::node::Sighting;

/// A node in the memory of this process: for tests, and for programs of one process
/// that may later move to Redis. Clones share one store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::{Client, MemoryNode};
///
/// let node = MemoryNode::new("memory");
/// let one = Client::builder().custom_node(node.clone()).build()?;
/// let two = Client::builder().custom_node(node).build()?;
/// let _lease = one.mutex("x").lock().await?;
/// assert!(two.mutex("x").try_lock().await?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MemoryNode {
    shared: Arc<Shared>,
}

impl fmt::Debug for MemoryNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryNode")
            .field("label", &self.shared.label)
            .finish_non_exhaustive()
    }
}

struct Shared {
    label: String,
    clock: Clock,
    constants: Constants,
    store: Mutex<Store>,
}

struct Store {
    names: HashMap<Name, Entry>,
    /// When the map has grown to this size, expired entries are removed. Doubling keeps the work
    /// per request constant.
    sweep_at: usize,
    /// Pairs the node's wall clock with the clock that does not jump.
    started: Moment,
    started_us: u64,
    floor: u64,
    /// The notifiers of waiters, by their owner values.
    notifiers: HashMap<Box<[u8]>, Notifier>,
    /// The history of names, the latest entry last, and when that was written.
    history: HashMap<Name, (Moment, VecDeque<HistoryEntry>)>,
    /// How many names with a history there may be before old ones are deleted.
    sweep_history_at: usize,
}

/// Whether a history is not too old, whose last entry was written at this time.
fn is_kept(now: Moment, last_written: Moment) -> bool {
    now.saturating_duration_since(last_written) < HISTORY_KEPT
}

#[derive(Default)]
struct Entry {
    lock: LockState,
    line: MemoryLine,
    /// The number of permits, if the name is that of a semaphore, and until when it is kept.
    permits: Option<(u32, Moment)>,
}

#[derive(Default)]
struct LockState {
    lock: Option<(Box<[u8]>, Moment)>,
    /// The owner values of readers, and how long they stay. They count only while the lock is a
    /// marker.
    readers: BTreeMap<Box<[u8]>, Moment>,
    fence: Option<(Fence, Moment)>,
    /// The token granted last, and when by the node's wall clock.
    granted: Option<(u64, u64)>,
}

/// F and W, kept and forgotten together. See [`View`].
#[derive(Clone, Copy)]
struct Fence {
    highest: u64,
    /// `None`: the same as the highest.
    written: Option<u64>,
}

/// One name during a vote.
struct NameRecord<'a> {
    lock: &'a mut LockState,
    line: NameLine<'a>,
    now: Moment,
    floor: u64,
    constants: Constants,
}

/// The line of one name during a vote.
struct NameLine<'a> {
    line: &'a mut MemoryLine,
    notifiers: &'a HashMap<Box<[u8]>, Notifier>,
    /// Notifications to send once the store is unlocked.
    outgoing: Vec<(Notifier, News)>,
    now_us: u64,
}

const FIRST_SWEEP: usize = 1024;

impl MemoryNode {
    /// An empty node.
    #[must_use]
    pub fn new(label: impl Into<String>) -> Self {
        Self::with_clock(label, Clock::default(), Constants::for_nodes(1))
    }

    pub(crate) fn with_clock(label: impl Into<String>, clock: Clock, constants: Constants) -> Self {
        let store = Store::new(&clock, &constants);
        Self {
            shared: Arc::new(Shared {
                label: label.into(),
                store: Mutex::new(store),
                clock,
                constants,
            }),
        }
    }

    /// A node whose time comes from elsewhere, for simulations.
    #[must_use]
    pub fn with_time_source(label: impl Into<String>, source: Arc<dyn TimeSource>) -> Self {
        let clock = Clock::from_source(source);
        Self::with_clock(label, clock, Constants::for_nodes(1))
    }

    /// The value of a lock, if there is one: what `GET` shows on a Redis server.
    #[must_use]
    pub fn get(&self, name: &Name) -> Option<Vec<u8>> {
        let now = self.shared.clock.now();
        let mut store = self.shared.lock();
        let entry = store.names.get_mut(name)?;
        entry.lock.expire(now);
        entry.lock.owner().map(<[u8]>::to_vec)
    }

    /// Puts a lock there without asking, as `SET` does on a Redis server. For tests of
    /// what leasehold does about the locks of others.
    pub fn set(&self, name: &Name, value: &[u8], ttl: Option<Duration>) {
        let expires = ttl.map_or(Moment::FAR, |ttl| self.shared.clock.now() + ttl);
        let mut store = self.shared.lock();
        let entry = store.names.entry(name.clone()).or_default();
        entry.lock.lock = Some((value.into(), expires));
    }

    /// Forgets everything, as a server without persistence does when it restarts.
    pub fn forget(&self) {
        let shared = &*self.shared;
        let mut store = shared.lock();
        // Subscriptions belong to clients, which go on.
        let notifiers = std::mem::take(&mut store.notifiers);
        *store = Store::new(&shared.clock, &shared.constants);
        store.notifiers = notifiers;
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Store> {
        // A panic while the store is locked can only come from a bug in the rules;
        // an entry is written last, so what is there is whole.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    fn new(clock: &Clock, constants: &Constants) -> Self {
        let started_us = clock.unix_us();
        Self {
            names: HashMap::new(),
            sweep_at: FIRST_SWEEP,
            started: clock.now(),
            started_us,
            // A new store may replace one that was lost; see `View::floor`.
            floor: started_us.saturating_add(constants.skew_us()),
            notifiers: HashMap::new(),
            history: HashMap::new(),
            sweep_history_at: FIRST_SWEEP,
        }
    }

    fn vote(
        &mut self,
        now: Moment,
        constants: Constants,
        call: &Call,
    ) -> (Vote, Vec<(Notifier, News)>) {
        self.sweep(now);
        let claim = call.claim();
        let since_start = now.saturating_duration_since(self.started).as_micros();
        let since_start = u64::try_from(since_start).unwrap_or(u64::MAX);
        let now_us = self.started_us.saturating_add(since_start);
        if let Some(seat) = claim.seat() {
            let entry = self.names.entry(seat.semaphore().clone()).or_default();
            let mut line = std::mem::take(&mut entry.line);
            let mut semaphore = NamedPermits {
                names: &mut self.names,
                name: seat.semaphore(),
                line: NameLine::new(&mut line, &self.notifiers, now_us),
                now,
                floor: self.floor,
                constants,
            };
            let vote = vote_on_permit(&mut semaphore, call.verb(), claim, seat);
            let outgoing = semaphore.line.outgoing;
            self.names.entry(seat.semaphore().clone()).or_default().line = line;
            return (vote, outgoing);
        }
        let entry = self.names.entry(claim.name().clone()).or_default();
        entry.lock.expire(now);
        let mut record = NameRecord {
            lock: &mut entry.lock,
            line: NameLine::new(&mut entry.line, &self.notifiers, now_us),
            now,
            floor: self.floor,
            constants,
        };
        let vote = vote(&mut record, call.verb(), claim);
        (vote, record.line.outgoing)
    }

    fn sightings(&mut self, now: Moment, of: Option<&Name>) -> Vec<Sighting> {
        let of_name = |name: &Name| of.is_none_or(|of| of == name);
        let names = self.names.iter_mut().filter(|(name, _)| of_name(name));
        let locks = names.flat_map(|(name, entry)| {
            let lock = &mut entry.lock;
            lock.expire(now);
            let fence = lock.fence.map(|(fence, _)| fence.highest);
            let holders = lock.holders(now).into_iter();
            let seen = holders.map(move |(value, left)| {
                let seen = Sighting::new(name.clone(), value, left);
                seen.with_fence(fence).with_granted(lock.granted)
            });
            seen.collect::<Vec<_>>()
        });
        locks.collect()
    }

    fn write_history(&mut self, now: Moment, entries: Vec<HistoryEntry>) {
        if self.history.len() >= self.sweep_history_at {
            self.history.retain(|_, (at, _)| is_kept(now, *at));
            self.sweep_history_at = (self.history.len() * 2).max(FIRST_SWEEP);
        }
        for entry in entries {
            if entry.begins_history() || self.history.contains_key(entry.name()) {
                let history = self.history.entry(entry.name().clone());
                let (at, entries) = history.or_insert_with(|| (now, VecDeque::new()));
                if !is_kept(now, *at) {
                    entries.clear();
                }
                *at = now;
                entries.push_back(entry);
                entries.drain(..entries.len().saturating_sub(HISTORY_ENTRIES));
            }
        }
    }

    fn sweep(&mut self, now: Moment) {
        if self.names.len() < self.sweep_at {
            return;
        }
        self.names.retain(|_, entry| {
            let Entry {
                lock,
                line,
                permits,
            } = entry;
            lock.expire(now);
            permits.take_if(|(_, until)| *until <= now);
            let kept = lock.fence.is_some() || permits.is_some();
            lock.lock.is_some() || kept || !line.is_empty()
        });
        self.sweep_at = (self.names.len() * 2).max(FIRST_SWEEP);
    }
}

impl LockState {
    fn owner(&self) -> Option<&[u8]> {
        self.lock.as_ref().map(|(owner, _)| &**owner)
    }

    fn remaining(&self, now: Moment) -> Option<Duration> {
        let lock = self.lock.as_ref();
        lock.filter(|(_, expires)| *expires < Moment::FAR)
            .map(|(_, expires)| expires.saturating_duration_since(now))
    }

    fn is_shared(&self) -> bool {
        self.owner().is_some_and(is_marker)
    }

    /// How long the claim with this owner value stays a reader.
    fn share(&self, owner: &[u8], now: Moment) -> Option<Duration> {
        let until = self.readers.get(owner).filter(|until| **until > now)?;
        Some(until.saturating_duration_since(now))
    }

    /// The values of those that hold the lock, and when they expire: its owner, or its readers.
    fn holders(&self, now: Moment) -> Vec<(Vec<u8>, Option<Duration>)> {
        if !self.is_shared() {
            let owner = self.owner().map(<[u8]>::to_vec);
            return owner
                .map(|o| (o, self.remaining(now)))
                .into_iter()
                .collect();
        }
        let readers = self.readers.iter().filter(|(_, until)| **until > now);
        let left = |until: &Moment| Some(until.saturating_duration_since(now));
        readers
            .map(|(value, until)| (value.to_vec(), left(until)))
            .collect()
    }

    /// Adds a reader, or lets it stay longer.
    fn add_reader(&mut self, owner: &[u8], until: Moment, now: Moment) {
        // Rule: a new marker has no readers yet.
        if !self.is_shared() {
            self.readers.clear();
        }
        self.readers.insert(owner.into(), until);
        self.mark(marker_value(owner), now);
    }

    /// Removes a reader, and puts what is kept of it in its place.
    fn remove_reader(&mut self, owner: &[u8], kept: Option<(Vec<u8>, Moment)>, now: Moment) {
        self.readers.remove(owner);
        if let Some((value, until)) = kept {
            let known = self.readers.entry(value.into()).or_insert(until);
            *known = until.max(*known);
        }
        let marker = self.owner().map(<[u8]>::to_vec);
        self.mark(marker.unwrap_or_default(), now);
    }

    /// Makes the marker expire with the reader that stays longest.
    fn mark(&mut self, marker: Vec<u8>, now: Moment) {
        self.readers.retain(|_, until| *until > now);
        let longest = self.readers.values().max();
        self.lock = longest.map(|until| (marker.into(), *until));
    }

    /// Records when a token was first granted. A lock without a token is not recorded.
    fn note_grant(&mut self, token: u64, now_us: u64) {
        if token > 0 && self.granted.is_none_or(|(known, _)| known != token) {
            self.granted = Some((token, now_us));
        }
    }

    fn expire(&mut self, now: Moment) {
        self.lock.take_if(|(_, expires)| *expires <= now);
        self.fence.take_if(|(_, expires)| *expires <= now);
    }
}

impl<'a> Record for NameRecord<'a> {
    type Line = NameLine<'a>;

    fn view(&self, owner: &[u8]) -> View<'_> {
        let fence = self.lock.fence.map(|(fence, _)| fence);
        View {
            lock: self.lock.owner(),
            remaining: self.lock.remaining(self.now),
            fence: fence.map(|fence| fence.highest),
            write_fence: fence.and_then(|fence| fence.written),
            share: self.lock.share(owner, self.now),
            floor: self.floor,
            now: self.line.now_us,
            constants: self.constants,
        }
    }

    fn write(&mut self, write: Write, claim: &Claim) {
        self.store(write, claim.owner(), claim.token());
    }

    fn grant(&mut self, owner: &[u8], token: u64, write: Write) {
        self.store(write, owner, token);
    }

    fn line(&mut self) -> &mut NameLine<'a> {
        &mut self.line
    }
}

/// A semaphore during a vote.
struct NamedPermits<'a> {
    names: &'a mut HashMap<Name, Entry>,
    name: &'a Name,
    line: NameLine<'a>,
    now: Moment,
    floor: u64,
    constants: Constants,
}

impl<'a> SemaphoreRecord for NamedPermits<'a> {
    type Line = NameLine<'a>;

    fn line(&mut self) -> &mut NameLine<'a> {
        &mut self.line
    }

    fn permits(&mut self) -> Option<u32> {
        let (permits, until) = self.names.get(self.name)?.permits?;
        (until > self.now).then_some(permits)
    }

    fn set_permits(&mut self, permits: u32) {
        let until = self.now + self.constants.fence_ttl(Duration::ZERO);
        let entry = self.names.entry(self.name.clone()).or_default();
        entry.permits = Some((permits, until));
    }

    fn lock_of(&mut self, permit: u32) -> Option<(Holder, Option<Duration>)> {
        let entry = self.names.get_mut(&self.name.permit(permit))?;
        entry.lock.expire(self.now);
        let value = entry.lock.owner()?;
        Some((Holder::parse(value), entry.lock.remaining(self.now)))
    }

    fn vote(&mut self, verb: Verb, claim: &Claim) -> Vote {
        let entry = self.names.entry(claim.name().clone()).or_default();
        entry.lock.expire(self.now);
        let mut record = NameRecord {
            lock: &mut entry.lock,
            line: NameLine::new(&mut entry.line, self.line.notifiers, self.line.now_us),
            now: self.now,
            floor: self.floor,
            constants: self.constants,
        };
        let (vote, write) = rules::vote(&record.view(claim.owner()), verb, claim);
        record.write(write, claim);
        vote
    }

    fn clock(&self) -> (u64, u64, Constants) {
        (self.floor, self.line.now_us, self.constants)
    }
}

impl NameRecord<'_> {
    fn store(&mut self, write: Write, owner: &[u8], token: u64) {
        let (now, state) = (self.now, &mut *self.lock);
        let exclusive = |fence: u64| Fence {
            highest: fence,
            written: None,
        };
        let (kept, fence) = match write {
            Write::Nothing => return,
            Write::Lock { fence, remaining } => {
                state.note_grant(token, self.line.now_us);
                state.lock = Some((owner.into(), now + remaining));
                (remaining, fence.map(exclusive))
            }
            Write::Unlock { fence } => {
                state.lock = None;
                (Duration::ZERO, fence.map(exclusive))
            }
            Write::Keep {
                value,
                remaining,
                fence,
            } => {
                state.lock = Some((value.into(), now + remaining));
                (remaining, fence.map(exclusive))
            }
            Write::Share {
                fence,
                write_fence,
                remaining,
            } => {
                state.note_grant(token, self.line.now_us);
                state.add_reader(owner, now + remaining, now);
                let fence = Fence {
                    highest: fence,
                    written: Some(write_fence),
                };
                (state.remaining(now).unwrap_or(remaining), Some(fence))
            }
            Write::Unshare { kept } => {
                let kept = kept.map(|(value, time)| (value, now + time));
                state.remove_reader(owner, kept, now);
                (Duration::ZERO, None)
            }
        };
        if let Some(fence) = fence {
            state.fence = Some((fence, now + self.constants.fence_ttl(kept)));
        }
    }
}

impl<'a> NameLine<'a> {
    fn new(
        line: &'a mut MemoryLine,
        notifiers: &'a HashMap<Box<[u8]>, Notifier>,
        now_us: u64,
    ) -> Self {
        Self {
            line,
            notifiers,
            outgoing: Vec::new(),
            now_us,
        }
    }
}

impl Line for NameLine<'_> {
    fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    fn join(&mut self, claim: &Claim) {
        self.line.join(claim, self.now_us);
    }

    fn leave(&mut self, owner: &[u8]) {
        self.line.leave(owner);
    }

    fn remove_silent(&mut self, before: u64) {
        self.line.remove_silent(before);
    }

    fn first(&self) -> Option<(Box<[u8]>, u64)> {
        self.line.first()
    }

    fn front(&self, at_most: usize) -> Vec<Box<[u8]>> {
        self.line.front(at_most)
    }

    fn is_order_known(&self, owner: &[u8]) -> bool {
        self.line.is_order_known(owner, self.now_us)
    }

    fn before(&self, owner: &[u8]) -> u32 {
        self.line.before(owner)
    }

    fn notify(&mut self, owner: &[u8], news: News) -> bool {
        // A waiter without a notifier relies on its heartbeats.
        let notifier = self.notifiers.get(owner);
        self.outgoing
            .extend(notifier.map(|notifier| (notifier.clone(), news)));
        true
    }
}

/// Ends a watch when dropped.
struct Unwatch {
    shared: Arc<Shared>,
    owner: Box<[u8]>,
}

impl Drop for Unwatch {
    fn drop(&mut self) {
        self.shared.lock().notifiers.remove(&self.owner);
    }
}

impl Node for MemoryNode {
    fn label(&self) -> &str {
        &self.shared.label
    }

    fn floor(&self) -> u64 {
        self.shared.lock().floor
    }

    fn watch(&self, claim: &Claim, notifier: &Notifier) -> Option<Watch> {
        let mut store = self.shared.lock();
        store
            .notifiers
            .insert(claim.owner().into(), notifier.clone());
        drop(store);
        Some(Watch::new(Unwatch {
            shared: Arc::clone(&self.shared),
            owner: claim.owner().into(),
        }))
    }

    fn has_semaphores(&self) -> bool {
        true
    }

    fn survey(&self, name: Option<&Name>) -> Survey {
        let seen = self.shared.lock().sightings(self.shared.clock.now(), name);
        Box::pin(std::future::ready(Ok(seen)))
    }

    fn write_history(&self, entries: Vec<HistoryEntry>) -> HistoryWritten {
        let now = self.shared.clock.now();
        self.shared.lock().write_history(now, entries);
        Box::pin(std::future::ready(Ok(())))
    }

    fn read_history(&self, name: &Name) -> HistoryRead {
        let now = self.shared.clock.now();
        let store = self.shared.lock();
        let kept = store.history.get(name).filter(|(at, _)| is_kept(now, *at));
        let entries = kept.into_iter().flat_map(|(_, entries)| entries).cloned();
        Box::pin(std::future::ready(Ok(entries.collect())))
    }

    fn submit(&self, call: Call) {
        let shared = &*self.shared;
        let now = shared.clock.now();
        let (vote, outgoing) = shared.lock().vote(now, shared.constants, &call);
        call.answer(Ok(vote));
        for (notifier, news) in outgoing {
            notifier.notify(news);
        }
    }
}
