//! The common record of the contenders of a turn: which one held the lock, and how long the
//! others waited.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::tally::Tally;

#[derive(Default)]
pub(super) struct Ledger {
    /// When the turn began. Waits are counted from then on.
    start: Option<Instant>,
    /// The waiting contenders, and since when they wait.
    waiting: HashMap<usize, Instant>,
    last: Option<usize>,
    last_token: Option<u64>,
    inside: bool,
    pairs: u64,
    handovers: u64,
    held: Duration,
    waits: Waits,
}

/// The sum of waits.
#[derive(Clone, Copy, Default)]
struct Waits {
    count: u32,
    total: Duration,
    longest: Duration,
}

impl Waits {
    fn add(&mut self, time: Duration) {
        self.count += 1;
        self.total += time;
        self.longest = self.longest.max(time);
    }
}

impl Ledger {
    /// Begins the turn.
    pub(super) fn begin(&mut self, now: Instant) {
        self.start = Some(now);
    }

    /// Whether a turn of this length is over.
    pub(super) fn is_over(&self, length: Duration) -> bool {
        self.start.is_some_and(|start| start.elapsed() >= length)
    }

    /// A contender starts to wait for the lock.
    pub(super) fn ask(&mut self, who: usize, now: Instant) {
        self.waiting.insert(who, now);
    }

    /// A contender has acquired the lock.
    ///
    /// # Errors
    ///
    /// If another contender holds it, too, or if its token is not larger than all before.
    pub(super) fn enter(
        &mut self,
        who: usize,
        token: Option<u64>,
        now: Instant,
    ) -> Result<(), String> {
        if std::mem::replace(&mut self.inside, true) {
            return Err("two held the lock at once".into());
        }
        if let (Some(before), Some(token)) = (self.last_token, token)
            && token <= before
        {
            return Err(format!("token {token} came after {before}"));
        }
        self.last_token = token;
        if self.last.replace(who).is_some_and(|last| last != who) {
            self.handovers += 1;
        }
        if let Some(asked) = self.waiting.remove(&who) {
            self.waits.add(self.waited(asked, now));
        }
        Ok(())
    }

    /// The contender is about to release the lock.
    pub(super) fn leave(&mut self, held: Duration) {
        self.inside = false;
        self.pairs += 1;
        self.held += held;
    }

    /// The figures of the turn. A contender that still waits has waited until now.
    pub(super) fn tally(&self, now: Instant) -> Tally {
        let mut waits = self.waits;
        for &asked in self.waiting.values() {
            waits.add(self.waited(asked, now));
        }
        Tally {
            length: now.saturating_duration_since(self.start.unwrap_or(now)),
            pairs: self.pairs,
            handovers: self.handovers,
            mean_wait: waits.total / waits.count.max(1),
            longest_wait: waits.longest,
            held: self.held / u32::try_from(self.pairs).unwrap_or(u32::MAX).max(1),
            errors: 0,
        }
    }

    fn waited(&self, asked: Instant, now: Instant) -> Duration {
        let since = self.start.map_or(asked, |start| start.max(asked));
        now.saturating_duration_since(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn only_another_contender_is_a_hand_over() {
        let (mut ledger, start) = (Ledger::default(), Instant::now());
        ledger.begin(start);
        for (who, waited) in [(3, 1), (3, 2), (4, 9), (3, 4)] {
            ledger.ask(who, start);
            ledger.enter(who, None, start + waited * MS).unwrap();
            ledger.leave(MS);
        }
        let tally = ledger.tally(start + 500 * MS);
        assert_eq!((tally.pairs, tally.handovers), (4, 2));
        assert_eq!((tally.mean_wait, tally.longest_wait), (4 * MS, 9 * MS));
        assert_eq!(tally.handovers_per_s(), 4.0);
    }

    #[test]
    fn an_unfinished_wait_counts_from_the_beginning_of_the_turn() {
        let (mut ledger, asked) = (Ledger::default(), Instant::now());
        ledger.ask(0, asked);
        ledger.begin(asked + 100 * MS);
        let tally = ledger.tally(asked + 130 * MS);
        assert_eq!((tally.longest_wait, tally.pairs), (30 * MS, 0));
    }

    #[test]
    fn two_holders_at_once_are_detected() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        ledger.enter(0, None, now).unwrap();
        assert!(ledger.enter(1, None, now).is_err());
    }

    #[test]
    fn a_token_that_does_not_grow_is_detected() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        ledger.enter(0, Some(7), now).unwrap();
        ledger.leave(MS);
        assert!(ledger.enter(1, Some(7), now).is_err());
    }
}
