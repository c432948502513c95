//! The line of waiters for one name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::rules::micros;
use super::{Claim, Mode, News};
use crate::base::holder::owner_mode;

/// A waiter that joined this long ago is known to all nodes, and so are all waiters with lower
/// tickets.
pub const ORDER_KNOWN_AFTER: Duration = Duration::from_millis(10);

/// A waiter that has sent no WAIT for this long is removed from the line.
pub const DEAD_AFTER: Duration = Duration::from_secs(3);

/// A node may forget a line this long after it was refreshed. Every request of a waiter refreshes
/// the line once a third of the time is over, so a line that goes away contains only waiters that
/// have been silent for longer than [`DEAD_AFTER`].
pub const LINE_KEPT: Duration = Duration::from_secs(9);
const _: () = assert!(LINE_KEPT.as_millis() - LINE_KEPT.as_millis() / 3 > DEAD_AFTER.as_millis());

/// The line of waiters for one name, while a node votes on one request. See [`Record`](super::Record).
pub trait Line {
    /// Whether there are no waiters. May return `false` although there are none.
    fn is_empty(&self) -> bool;

    /// Adds the claim to the line, in the order of tokens. Of equal tokens, exclusive claims are
    /// before shared ones: otherwise a reader would be served first, and the writer's ticket would
    /// be overtaken. After that, the owner value decides. If the claim is there already, notes that
    /// it sent WAIT now.
    fn join(&mut self, claim: &Claim);

    /// Removes a waiter from the line.
    fn leave(&mut self, owner: &[u8]);

    /// Removes all waiters whose last WAIT came before this moment of the node's clock. The work
    /// must not grow with the number of waiters that stay.
    fn remove_silent(&mut self, before: u64);

    /// The first in line: its owner value and its ticket.
    fn first(&self) -> Option<(Box<[u8]>, u64)>;

    /// The owner values of the first in line, at most this many, in order.
    fn front(&self, at_most: usize) -> Vec<Box<[u8]>>;

    /// Whether this waiter joined at least [`ORDER_KNOWN_AFTER`] ago, or its claim is on
    /// [this node only](Claim::is_on_one_node).
    fn is_order_known(&self, owner: &[u8]) -> bool;

    /// How many waiters are before this one. May stop counting at some large number.
    fn before(&self, owner: &[u8]) -> u32;

    /// Notifies a waiter. Returns `false` if its client is known to be gone.
    fn notify(&mut self, owner: &[u8], news: News) -> bool;
}

/// Waiters ahead of another are counted up to here.
const FAR: usize = 1000;

/// How far the place of a shared claim is behind its ticket. Tickets are multiples of 16, so it is
/// behind that of every exclusive claim with the same ticket, and before all with larger ones.
pub(crate) const BEHIND: u64 = 15;

/// What the line is ordered by: the ticket, and for a shared claim a little more.
pub(crate) fn place(ticket: u64, owner: &[u8]) -> u64 {
    match owner_mode(owner) {
        Mode::Exclusive => ticket,
        Mode::Shared => ticket.saturating_add(BEHIND),
    }
}

/// The ticket of the claim that stands at this place.
#[cfg_attr(not(all(feature = "local", unix)), allow(dead_code))]
pub(crate) fn ticket_at(place: u64, owner: &[u8]) -> u64 {
    match owner_mode(owner) {
        Mode::Exclusive => place,
        Mode::Shared => place.saturating_sub(BEHIND),
    }
}

/// Place and owner value.
type Key = (u64, Box<[u8]>);

fn key(ticket: u64, owner: &[u8]) -> Key {
    (place(ticket, owner), owner.into())
}

/// The waiters for one name in the order of their tickets, for nodes that keep the [`Line`] in memory.
///
/// ```
/// use leasehold::Name;
/// use leasehold::node::{Claim, MemoryLine};
/// use std::time::Duration;
///
/// let claim = |owner: &[u8], ticket| {
///     let name = Name::new("a").expect("a name");
///     Claim::new(name, owner, ticket, Duration::from_secs(10))
/// };
/// let mut line = MemoryLine::default();
/// line.join(&claim(b"later", 2), 1000);
/// line.join(&claim(b"earlier", 1), 1001);
/// assert_eq!(line.first().map(|(owner, _)| owner).as_deref(), Some(&b"earlier"[..]));
/// assert_eq!(line.before(b"later"), 1);
/// ```
#[derive(Clone, Default)]
pub struct MemoryLine {
    /// When each waiter sent WAIT last.
    waiting: BTreeMap<Key, u64>,
    by_time: BTreeSet<(u64, Key)>,
    entries: BTreeMap<Box<[u8]>, Entry>,
    /// When the whole line is forgotten; see [`LINE_KEPT`].
    kept_until: u64,
}

impl fmt::Debug for MemoryLine {
    /// Omits the owner values, which are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryLine")
            .field("waiters", &self.len())
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Copy)]
struct Entry {
    ticket: u64,
    /// When it joined; 0 if its claim is on this node only.
    since: u64,
}

impl MemoryLine {
    /// Whether there are no waiters.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The number of waiters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether this claim is in line.
    #[cfg(feature = "unstable-node")]
    #[must_use]
    pub fn contains(&self, owner: &[u8]) -> bool {
        self.entries.contains_key(owner)
    }

    /// Adds the claim, or notes that it sent WAIT now.
    pub fn join(&mut self, claim: &Claim, now: u64) {
        // All waiters have been silent for long enough to be removed; or there are none, and a new
        // line begins, whose time counts from now.
        if self.kept_until <= now || self.is_empty() {
            *self = Self::default();
        }
        let came = self.entries.get(claim.owner()).map(|entry| entry.since);
        self.leave(claim.owner());
        let key = key(claim.token(), claim.owner());
        let entry = Entry {
            ticket: claim.token(),
            since: match claim.is_on_one_node() {
                false => came.unwrap_or(now),
                true => 0,
            },
        };
        self.entries.insert(claim.owner().into(), entry);
        self.by_time.insert((now, key.clone()));
        self.waiting.insert(key, now);
        let kept = micros(LINE_KEPT);
        if self.kept_until.saturating_sub(now) < kept - kept / 3 {
            self.kept_until = now.saturating_add(kept);
        }
    }

    /// Removes a waiter.
    pub fn leave(&mut self, owner: &[u8]) {
        if let Some(Entry { ticket, .. }) = self.entries.remove(owner) {
            let key = key(ticket, owner);
            if let Some(asked) = self.waiting.remove(&key) {
                self.by_time.remove(&(asked, key));
            }
        }
    }

    /// Removes all waiters whose last WAIT came before then.
    pub fn remove_silent(&mut self, before: u64) {
        while let Some((_, (_, owner))) = self.by_time.first().filter(|(asked, _)| *asked < before)
        {
            let owner = owner.clone();
            self.leave(&owner);
        }
    }

    /// The first in line: owner value and ticket.
    #[must_use]
    pub fn first(&self) -> Option<(Box<[u8]>, u64)> {
        let ((_, owner), _) = self.waiting.first_key_value()?;
        let ticket = self.entries.get(owner)?.ticket;
        Some((owner.clone(), ticket))
    }

    /// See [`Line::front`].
    #[must_use]
    pub fn front(&self, at_most: usize) -> Vec<Box<[u8]>> {
        let owners = self.waiting.keys().map(|(_, owner)| owner.clone());
        owners.take(at_most).collect()
    }

    /// See [`Line::is_order_known`].
    #[must_use]
    pub fn is_order_known(&self, owner: &[u8], now: u64) -> bool {
        let entry = self.entries.get(owner);
        entry.is_some_and(|entry| entry.since.saturating_add(micros(ORDER_KNOWN_AFTER)) <= now)
    }

    /// How many waiters are before this one, counted up to 1000.
    #[must_use]
    pub fn before(&self, owner: &[u8]) -> u32 {
        let entry = self.entries.get(owner);
        let ticket = entry.map_or(u64::MAX, |entry| entry.ticket);
        let key = key(ticket, owner);
        let before = self.waiting.range(..key).take(FAR).count();
        u32::try_from(before).unwrap_or(u32::MAX)
    }
}
