//! A node in the memory of this process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::rules::{Constants, View, Write};
use super::{Call, Claim, Line, News, Node, Notifier, Record, Survey, Vote, Watch, vote};
use crate::base::clock::{Clock, Moment, TimeSource};
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

struct Shared {
    label: String,
    clock: Clock,
    constants: Constants,
    store: Mutex<Store>,
}

struct Store {
    names: HashMap<Name, Entry>,
    /// When the map has grown to this, expired entries are looked for. Doubling
    /// keeps the work per request constant.
    sweep_at: usize,
    /// Pairs the node's wall clock with the clock that does not jump.
    started: Moment,
    started_us: u64,
    floor: u64,
    /// Those who wait, by their owner values.
    bells: HashMap<Box<[u8]>, Notifier>,
}

#[derive(Default)]
struct Entry {
    lock: Option<(Box<[u8]>, Moment)>,
    fence: Option<(u64, Moment)>,
    /// The token granted last, and when by the node's wall clock.
    granted: Option<(u64, u64)>,
    line: Line,
}

/// One name at one moment.
struct Desk<'a> {
    entry: &'a mut Entry,
    bells: &'a HashMap<Box<[u8]>, Notifier>,
    /// What to tell, once the store is unlocked.
    news: Vec<(Notifier, News)>,
    now: Moment,
    now_us: u64,
    floor: u64,
    constants: Constants,
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
        entry.expire(now);
        entry.lock.as_ref().map(|(owner, _)| owner.to_vec())
    }

    /// Puts a lock there without asking, as `SET` does on a Redis server. For tests of
    /// what leasehold does about the locks of others.
    pub fn set(&self, name: &Name, value: &[u8], ttl: Option<Duration>) {
        let expires = ttl.map_or(Moment::FAR, |ttl| self.shared.clock.now() + ttl);
        let mut store = self.shared.lock();
        let entry = store.names.entry(name.clone()).or_default();
        entry.lock = Some((value.into(), expires));
    }

    /// Forgets everything, as a server without persistence does when it restarts.
    pub fn forget(&self) {
        let shared = &*self.shared;
        let mut store = shared.lock();
        // Who listens is not a memory.
        let bells = std::mem::take(&mut store.bells);
        *store = Store::new(&shared.clock, &shared.constants);
        store.bells = bells;
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
            bells: HashMap::new(),
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
        let entry = self.names.entry(claim.name().clone()).or_default();
        entry.expire(now);
        let since_start = now.saturating_duration_since(self.started).as_micros();
        let since_start = u64::try_from(since_start).unwrap_or(u64::MAX);
        let mut desk = Desk {
            entry,
            bells: &self.bells,
            news: Vec::new(),
            now,
            now_us: self.started_us.saturating_add(since_start),
            floor: self.floor,
            constants,
        };
        let vote = vote(&mut desk, call.verb(), claim);
        (vote, desk.news)
    }

    fn sightings(&mut self, now: Moment, of: Option<&Name>) -> Vec<Sighting> {
        let of_name = |name: &Name| of.is_none_or(|of| of == name);
        let names = self.names.iter_mut().filter(|(name, _)| of_name(name));
        let locks = names.filter_map(|(name, entry)| {
            entry.expire(now);
            let remaining = entry.remaining(now);
            let (value, _) = entry.lock.as_ref()?;
            let fence = entry.fence.map(|(fence, _)| fence);
            let seen = Sighting::new(name.clone(), &**value, remaining);
            Some(seen.with_fence(fence).with_granted(entry.granted))
        });
        locks.collect()
    }

    fn sweep(&mut self, now: Moment) {
        if self.names.len() < self.sweep_at {
            return;
        }
        self.names.retain(|_, entry| {
            entry.expire(now);
            entry.lock.is_some() || entry.fence.is_some() || !entry.line.is_empty()
        });
        self.sweep_at = (self.names.len() * 2).max(FIRST_SWEEP);
    }
}

impl Entry {
    fn remaining(&self, now: Moment) -> Option<Duration> {
        let lock = self.lock.as_ref();
        lock.filter(|(_, expires)| *expires < Moment::FAR)
            .map(|(_, expires)| expires.saturating_duration_since(now))
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

impl Record for Desk<'_> {
    fn view(&self) -> View<'_> {
        View {
            lock: self.entry.lock.as_ref().map(|(owner, _)| &**owner),
            remaining: self.entry.remaining(self.now),
            fence: self.entry.fence.map(|(fence, _)| fence),
            floor: self.floor,
            now: self.now_us,
            constants: self.constants,
        }
    }

    fn write(&mut self, write: Write, claim: &Claim) {
        let (now, entry) = (self.now, &mut *self.entry);
        let fence_until = |ttl: Duration| now + self.constants.fence_ttl(ttl);
        match write {
            Write::Nothing => {}
            Write::Lock { fence, remaining } => {
                entry.lock = Some((claim.owner().into(), now + remaining));
                entry.note_grant(claim.token(), self.now_us);
                if let Some(fence) = fence {
                    entry.fence = Some((fence, fence_until(remaining)));
                }
            }
            Write::Unlock { fence } => {
                entry.lock = None;
                if let Some(fence) = fence {
                    entry.fence = Some((fence, fence_until(Duration::ZERO)));
                }
            }
            Write::Keep {
                value,
                remaining,
                fence,
            } => {
                entry.lock = Some((value.into(), now + remaining));
                if let Some(fence) = fence {
                    entry.fence = Some((fence, fence_until(remaining)));
                }
            }
        }
    }

    fn grant(&mut self, owner: &[u8], token: u64, time: Duration) {
        self.entry.lock = Some((owner.into(), self.now + time));
        self.entry.fence = Some((token, self.now + self.constants.fence_ttl(time)));
        self.entry.note_grant(token, self.now_us);
    }

    fn has_line(&self) -> bool {
        !self.entry.line.is_empty()
    }

    fn join(&mut self, claim: &Claim) {
        self.entry.line.join(claim, self.now_us);
    }

    fn leave(&mut self, owner: &[u8]) {
        self.entry.line.leave(owner);
    }

    fn remove_silent(&mut self, before: u64) {
        self.entry.line.remove_silent(before);
    }

    fn first(&self) -> Option<(Box<[u8]>, u64)> {
        self.entry.line.first()
    }

    fn is_order_known(&self, owner: &[u8]) -> bool {
        self.entry.line.is_order_known(owner, self.now_us)
    }

    fn before(&self, owner: &[u8]) -> u32 {
        self.entry.line.before(owner)
    }

    fn notify(&mut self, owner: &[u8], news: News) -> bool {
        // One without a notifier hears nothing, and asks from time to time.
        let notifier = self.bells.get(owner);
        self.news
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
        self.shared.lock().bells.remove(&self.owner);
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
        store.bells.insert(claim.owner().into(), notifier.clone());
        drop(store);
        Some(Watch::new(Unwatch {
            shared: Arc::clone(&self.shared),
            owner: claim.owner().into(),
        }))
    }

    fn survey(&self, name: Option<&Name>) -> Survey {
        let seen = self.shared.lock().sightings(self.shared.clock.now(), name);
        Box::pin(std::future::ready(Ok(seen)))
    }

    fn submit(&self, call: Call) {
        let shared = &*self.shared;
        let now = shared.clock.now();
        let (vote, news) = shared.lock().vote(now, shared.constants, &call);
        call.answer(Ok(vote));
        for (notifier, news) in news {
            notifier.notify(news);
        }
    }
}
