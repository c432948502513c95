//! The line of waiters for one name, in memory.

use std::collections::{BTreeMap, BTreeSet};

use super::rules::micros;
use super::{Claim, LINE_KEPT, ORDER_KNOWN_AFTER};

/// Waiters ahead of another are counted up to here.
const FAR: usize = 1000;

/// Ticket and owner value: what the line is ordered by.
type Key = (u64, Box<[u8]>);

/// The waiters for one name in the order of their tickets, for nodes that keep the line in memory. See
/// [`Record`](super::Record).
///
/// ```
/// use leasehold::Name;
/// use leasehold::node::{Claim, Line};
/// use std::time::Duration;
///
/// let claim = |owner: &[u8], ticket| {
///     let name = Name::new("a").expect("a name");
///     Claim::new(name, owner, ticket, Duration::from_secs(10))
/// };
/// let mut line = Line::default();
/// line.join(&claim(b"later", 2), 1000);
/// line.join(&claim(b"earlier", 1), 1001);
/// assert_eq!(line.first().map(|(owner, _)| owner).as_deref(), Some(&b"earlier"[..]));
/// assert_eq!(line.before(b"later"), 1);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// When each waiter sent WAIT last.
    waiting: BTreeMap<Key, u64>,
    by_time: BTreeSet<(u64, Key)>,
    entries: BTreeMap<Box<[u8]>, Entry>,
    /// When the whole line is forgotten; see [`LINE_KEPT`].
    kept_until: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    ticket: u64,
    /// When it joined; 0 if its claim is on this node only.
    since: u64,
}

impl Line {
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
        let key: Key = (claim.token(), claim.owner().into());
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
            let key = (ticket, owner.into());
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
        let ((ticket, owner), _) = self.waiting.first_key_value()?;
        Some((owner.clone(), *ticket))
    }

    /// Whether this waiter joined so long ago that all nodes know it; see
    /// [`Record::is_order_known`](super::Record::is_order_known).
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
        let key = (ticket, owner.into());
        let before = self.waiting.range(..key).take(FAR).count();
        u32::try_from(before).unwrap_or(u32::MAX)
    }
}
