//! Which token to ask for.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Clock;
use crate::node::rules::MAX_TOKEN;

/// Clocks this close to each other are aligned.
const ALIGNED: Duration = Duration::from_millis(5);

/// Chooses tokens: `t = max(clock in µs, more than the highest token or fence seen)`.
///
/// Nothing depends on the clock being right: a token that is too low or too high is
/// refused, and the nodes tell a better one. A good guess makes it one round trip.
#[derive(Default)]
pub(crate) struct Proposer {
    last: AtomicU64,
    /// What to add to this machine's clock to get near the nodes' clocks.
    correction_us: AtomicI64,
}

impl Proposer {
    /// A token of at least `at_least`, and above the floor of every node whose floor is
    /// not too far ahead for the others.
    pub(crate) fn propose(
        &self,
        clock: &Clock,
        at_least: u64,
        floors: impl Iterator<Item = u64>,
        skew_us: u64,
    ) -> u64 {
        let correction = self.correction_us.load(Ordering::Relaxed);
        let now = clock.unix_us().saturating_add_signed(correction);
        let cap = now.saturating_add(skew_us);
        let floor = floors.filter(|floor| *floor < cap).max().unwrap_or(0);
        let at_least = at_least.max(floor.saturating_add(1));
        let mut token = 0;
        // The closure always returns `Some`, so this cannot fail.
        let _ = self
            .last
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| {
                // Not `last + 1`: the release of `last` burnt that.
                token = now
                    .max(at_least)
                    .max(last.saturating_add(2))
                    .min(MAX_TOKEN - 1);
                Some(token)
            });
        token
    }

    /// The nodes' clocks say `now`.
    pub(crate) fn reclock(&self, clock: &Clock, now: u64) {
        let ours = i64::try_from(clock.unix_us()).unwrap_or(i64::MAX);
        let theirs = i64::try_from(now).unwrap_or(i64::MAX);
        self.correction_us
            .store(theirs.saturating_sub(ours), Ordering::Relaxed);
        self.last.store(0, Ordering::Release);
    }

    /// The nodes' clocks said `now` at most `ago` ago. Tickets are tokens: for those who wait
    /// to be served in the order of their coming, whatever their own clocks say, they must go
    /// by clocks that all of them see.
    pub(crate) fn align(&self, clock: &Clock, now: u64, ago: Duration) {
        let ours = i64::try_from(clock.unix_us()).unwrap_or(i64::MAX);
        let theirs = i64::try_from(now).unwrap_or(i64::MAX);
        let (correction, off) = (self.correction_us.load(Ordering::Relaxed), theirs - ours);
        let noise = u64::try_from((ago + ALIGNED).as_micros()).unwrap_or(u64::MAX);
        if correction.abs_diff(off) > noise {
            self.correction_us.store(off, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SKEW_US: u64 = 10_000_000;

    fn propose(proposer: &Proposer, at_least: u64, floors: &[u64]) -> u64 {
        let floors = floors.iter().copied();
        proposer.propose(&Clock::default(), at_least, floors, SKEW_US)
    }

    #[test]
    fn proposals_grow_and_respect_what_was_seen() {
        let proposer = Proposer::default();
        let first = propose(&proposer, 0, &[]);
        let second = propose(&proposer, 0, &[]);
        assert!(second > first);
        let seen = second + 5_000_000;
        assert_eq!(propose(&proposer, seen, &[]), seen);
        assert_eq!(propose(&proposer, 0, &[]), seen + 2);
    }

    #[test]
    fn proposals_are_above_the_floors_but_not_above_those_far_ahead() {
        let now = Clock::default().unix_us();
        let (near, far) = (now + SKEW_US / 2, now + SKEW_US * 100);
        let token = propose(&Proposer::default(), 0, &[0, near, far]);
        assert_eq!(token, near + 1);
    }

    #[test]
    fn proposals_follow_the_nodes_clocks_when_told() {
        let (proposer, clock) = (Proposer::default(), Clock::default());
        propose(&proposer, 0, &[]);
        proposer.reclock(&clock, 1_000_000);
        let token = propose(&proposer, 0, &[]);
        let hour = 3_600_000_000;
        assert!((1_000_000..1_000_000 + hour).contains(&token), "{token}");
    }

    #[test]
    fn tokens_stay_exact_in_lua() {
        assert!(propose(&Proposer::default(), u64::MAX, &[]) < MAX_TOKEN);
    }
}
