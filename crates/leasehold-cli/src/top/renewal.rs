//! Tells from several looks at a lock whether its holder renews it.
//!
//! A node does not say when a lease was renewed, and not how long its TTL is. But a lease is renewed
//! every third of its TTL, which shows: the time left grows, and never falls below half of what it was.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use leasehold::Name;

use super::row::Row;

/// How far the time left may be off, because an answer takes time.
const TOLERANCE: Duration = Duration::from_millis(250);

/// Whether the holder of a lock renews it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Renews {
    /// A renewal was seen.
    Yes,
    /// Less than half of the time is left, which does not happen while the holder renews the lock.
    No,
    Unknown,
}

/// What is known of each lock, by its key and owner.
#[derive(Debug, Default)]
pub(super) struct Renewals(HashMap<(Name, String), Seen>);

#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Instant,
    left: Duration,
    /// The longest time that was left.
    most: Duration,
    renewed: bool,
}

impl Renewals {
    /// Takes in another look at all locks. Forgets those that are no longer held.
    pub(super) fn observe(&mut self, rows: &[Row], at: Instant, took: Duration) {
        let mut known = std::mem::take(&mut self.0);
        let seen = rows.iter().filter_map(|row| {
            let left = row.left.filter(|_| row.can_be_renewed)?;
            let before = known.remove(&id(row));
            Some((id(row), Seen::next(before, left, at, took.max(TOLERANCE))))
        });
        self.0 = seen.collect();
    }

    pub(super) fn of(&self, row: &Row) -> Renews {
        self.0.get(&id(row)).map_or(Renews::Unknown, Seen::verdict)
    }
}

/// Of several readers, the time left is that of the last one, whoever that is.
fn id(row: &Row) -> (Name, String) {
    let owner = match crate::show::state(&row.inspection) {
        "shared" => String::new(),
        _ => row.owner.clone(),
    };
    (row.key().clone(), owner)
}

impl Seen {
    fn next(before: Option<Self>, left: Duration, at: Instant, tolerance: Duration) -> Self {
        let Some(before) = before else {
            return Self {
                at,
                left,
                most: left,
                renewed: false,
            };
        };
        let passed = at.saturating_duration_since(before.at);
        let renewed = match before.left.checked_sub(passed) {
            Some(expected) => left > expected + tolerance,
            // It would have expired.
            None => left > tolerance || passed > before.left + tolerance,
        };
        Self {
            at,
            left,
            most: before.most.max(left),
            renewed: before.renewed || renewed,
        }
    }

    fn verdict(&self) -> Renews {
        match self.renewed {
            _ if self.left < self.most / 2 => Renews::No,
            true => Renews::Yes,
            false => Renews::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at a lock, a second apart, with these milliseconds left.
    fn verdict(lefts: &[u64]) -> Renews {
        let start = Instant::now();
        let mut seen = None;
        for (second, left) in (0..).zip(lefts) {
            let at = start + Duration::from_secs(second);
            let left = Duration::from_millis(*left);
            seen = Some(Seen::next(seen, left, at, TOLERANCE));
        }
        seen.map_or(Renews::Unknown, |seen| seen.verdict())
    }

    #[test]
    fn a_renewal_is_recognised() {
        for (lefts, expected) in [
            (&[9_000][..], Renews::Unknown),
            (&[9_000, 8_000, 7_000], Renews::Unknown),
            // Answers take time.
            (&[9_000, 8_200, 7_100], Renews::Unknown),
            (&[9_000, 8_000, 10_000, 9_000], Renews::Yes),
            // It would have expired between two looks.
            (&[900, 800], Renews::Yes),
            (&[900, 500], Renews::Yes),
            // It may be about to expire, and the answer took a while.
            (&[900, 200], Renews::No),
            // A lease of `acquire`, and one whose holder has stopped.
            (&[9_000, 8_000, 7_000, 6_000, 5_000, 4_000], Renews::No),
            (
                &[7_000, 10_000, 9_000, 8_000, 7_000, 6_000, 5_000, 4_000],
                Renews::No,
            ),
        ] {
            assert_eq!(verdict(lefts), expected, "{lefts:?}");
        }
    }
}
