//! Which token to ask for.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crate::base::clock::{Clock, Moment};
use crate::base::name::Name;
use crate::node::rules::MAX_TOKEN;

/// The token of every claim is a multiple of this. The tokens up to the next multiple are for
/// holders to whom the claim is passed on. They are above every token of an earlier claim and below
/// every token of a later claim, so they need no vote. The last of them is for the shared claim to
/// which a holder downgrades.
pub(crate) const BLOCK: u64 = 16;

/// Clocks that differ by no more than this are not corrected.
const ALIGNED: Duration = Duration::from_millis(5);
/// How long a name counts as contended.
const CONTENDED: Duration = Duration::from_secs(1);
const NAME_SLOTS: usize = 256;

/// Chooses tokens: `t = max(clock in µs, more than the highest token or fence seen)`, rounded
/// up to a multiple of [`BLOCK`].
///
/// Nothing depends on the clock being right: a node that refuses a token says which tokens it would
/// grant. A good guess saves that round trip.
pub(crate) struct Proposer {
    /// What is known about names. Several names may share a slot.
    slots: Box<[NameSlot; NAME_SLOTS]>,
    /// What to add to this machine's clock to get near the nodes' clocks.
    correction_us: AtomicI64,
}

#[derive(Default)]
struct NameSlot {
    /// The latest token.
    last: AtomicU64,
    /// When a request for the name was refused because another client held the lock.
    contended_at: AtomicU64,
}

impl Default for Proposer {
    fn default() -> Self {
        Self {
            slots: Box::new(std::array::from_fn(|_| NameSlot::default())),
            correction_us: AtomicI64::new(0),
        }
    }
}

impl Proposer {
    /// A token of at least `at_least`, and above the floor of every node whose floor is
    /// not too far ahead for the others.
    pub(crate) fn propose(
        &self,
        clock: &Clock,
        name: &Name,
        at_least: u64,
        floors: impl Iterator<Item = u64>,
        skew_us: u64,
    ) -> u64 {
        let correction = self.correction_us.load(Ordering::Relaxed);
        let now = clock.unix_us().saturating_add_signed(correction);
        let cap = now.saturating_add(skew_us);
        let floor = floors.filter(|floor| *floor < cap).max().unwrap_or(0);
        // In the first seconds of a node, its floor is ahead of its clock. The time since then is
        // added to the floor, at an eighth of its speed: tokens still follow the order of requests,
        // and the clock soon catches up with them. This does not apply once a node has said which
        // token it would grant (`at_least`).
        let above_floor = match floor < now || at_least > 0 {
            true => 1,
            false => cap.saturating_sub(floor) / 8 + 1,
        };
        let at_least = now.max(at_least).max(floor.saturating_add(above_floor));
        let mut token = 0;
        // The closure always returns `Some`, so this cannot fail.
        let _ = self
            .slot(name)
            .last
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| {
                let at_least = at_least.max(last.saturating_add(1));
                token = at_least.min(MAX_TOKEN - BLOCK).next_multiple_of(BLOCK);
                Some(token)
            });
        token
    }

    /// Notes that the nodes' clocks say `now`, and that tokens were too far ahead of them.
    pub(crate) fn reclock(&self, clock: &Clock, name: &Name, now: u64) {
        self.correction_us
            .store(ahead(now, clock), Ordering::Relaxed);
        self.slot(name).last.store(0, Ordering::Release);
    }

    /// Notes that the nodes' clocks said `now` at most `ago` ago. Tickets are tokens. Waiters are
    /// served in the order in which they came, whatever their own clocks say, only if tickets follow
    /// the clocks of the nodes.
    pub(crate) fn align(&self, clock: &Clock, now: u64, ago: Duration) {
        let off = ahead(now, clock);
        let noise = u64::try_from((ago + ALIGNED).as_micros()).unwrap_or(u64::MAX);
        if self.correction_us.load(Ordering::Relaxed).abs_diff(off) > noise {
            self.correction_us.store(off, Ordering::Relaxed);
        }
    }

    /// Whether a request for the name was refused a moment ago: a hint that joining the line at once
    /// saves a request.
    pub(crate) fn is_contended(&self, name: &Name, now: Moment) -> bool {
        let at = self.slot(name).contended_at.load(Ordering::Relaxed);
        at > 0 && now.saturating_duration_since(Moment::from_nanos(at)) < CONTENDED
    }

    pub(crate) fn set_contended(&self, name: &Name, now: Moment) {
        let contended_at = &self.slot(name).contended_at;
        contended_at.store(now.as_nanos(), Ordering::Relaxed);
    }

    pub(crate) fn set_uncontended(&self, name: &Name) {
        self.slot(name).contended_at.store(0, Ordering::Relaxed);
    }

    fn slot(&self, name: &Name) -> &NameSlot {
        let bytes = name.as_bytes().iter();
        let hash = bytes.fold(0_usize, |hash, byte| {
            hash.wrapping_mul(31).wrapping_add(usize::from(*byte))
        });
        &self.slots[(hash ^ hash >> 8) % NAME_SLOTS]
    }
}

/// How far `now` is ahead of this machine's clock.
fn ahead(now: u64, clock: &Clock) -> i64 {
    let ours = i64::try_from(clock.unix_us()).unwrap_or(i64::MAX);
    let theirs = i64::try_from(now).unwrap_or(i64::MAX);
    theirs.saturating_sub(ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SKEW_US: u64 = 10_000_000;

    fn name() -> Name {
        Name::new("a").unwrap()
    }

    fn propose(proposer: &Proposer, at_least: u64, floors: &[u64]) -> u64 {
        let floors = floors.iter().copied();
        proposer.propose(&Clock::default(), &name(), at_least, floors, SKEW_US)
    }

    #[test]
    fn proposals_grow_and_respect_what_was_seen() {
        let proposer = Proposer::default();
        let first = propose(&proposer, 0, &[]);
        let second = propose(&proposer, 0, &[]);
        assert!(second > first);
        let seen = second + 5_000_000;
        assert_eq!(propose(&proposer, seen, &[]), seen);
        assert_eq!(propose(&proposer, 0, &[]), seen + BLOCK);
    }

    /// Rule of blocks: the tokens up to the next multiple belong to the tasks to which the claim is
    /// passed on.
    #[test]
    fn proposals_leave_room_for_a_block() {
        let proposer = Proposer::default();
        for at_least in 0..100 {
            let token = propose(&proposer, u64::from(u32::MAX) << 20 | at_least, &[]);
            assert_eq!(token % BLOCK, 0);
        }
    }

    #[test]
    fn proposals_are_above_the_floors_but_not_above_those_far_ahead() {
        let now = Clock::default().unix_us();
        let (near, far) = (now + SKEW_US / 2, now + SKEW_US * 100);
        let token = propose(&Proposer::default(), 0, &[0, near, far]);
        assert!(token > near && token < near + SKEW_US / 8, "{token}");
        // Later ones are above those of a moment ago, in other clients too.
        std::thread::sleep(Duration::from_millis(2));
        assert!(propose(&Proposer::default(), 0, &[near]) > token);
    }

    #[test]
    fn proposals_follow_the_nodes_clocks_when_told() {
        let (proposer, clock) = (Proposer::default(), Clock::default());
        propose(&proposer, 0, &[]);
        proposer.reclock(&clock, &name(), 1_000_000);
        let token = propose(&proposer, 0, &[]);
        let hour = 3_600_000_000;
        assert!((1_000_000..1_000_000 + hour).contains(&token), "{token}");
    }

    #[test]
    fn tickets_go_by_the_nodes_clocks() {
        let (proposer, clock) = (Proposer::default(), Clock::default());
        let now = clock.unix_us() - 3_000_000;
        proposer.align(&clock, now, Duration::ZERO);
        let token = propose(&proposer, 0, &[]);
        assert!(token < clock.unix_us() - 2_000_000, "{token}");
        // Not for noise.
        proposer.align(&clock, now + 1000, Duration::from_millis(10));
        assert!(propose(&proposer, 0, &[]) < clock.unix_us() - 2_000_000);
    }

    #[test]
    fn tokens_stay_exact_in_lua() {
        assert!(propose(&Proposer::default(), u64::MAX, &[]) + BLOCK <= MAX_TOKEN + 1);
    }
}
