//! The rules by which a node votes, as pure functions.
//!
//! They make tokens unique and growing, with no assumption about client clocks, pauses or the
//! network. Every node obeys them: the in-memory node calls them, the Redis scripts restate them in
//! Lua (and a differential test compares the two), and the model checker explores them.
//!
//! A claim is exclusive or shared ([`Mode`]). The rules of shared claims, in `rules/shared.rs`, need
//! two numbers: F, the highest token granted to any claim ([`View::fence`]), and W, the highest
//! granted to an exclusive claim ([`View::write_fence`]). An exclusive claim needs a token above F,
//! a shared claim one above W. So tokens grow between claims that exclude each other.
//!
//! All times are microseconds of the node's own clock, since 1970.

mod shared;

use std::fmt;
use std::time::Duration;

use super::{Claim, Mode, Verb, Vote};
use crate::base::holder::{Holder, is_marker, owner_mode};

/// Tokens are doubles in Lua: exact below 2^53.
pub(crate) const MAX_TOKEN: u64 = (1 << 53) - 1;

/// What all clients of a node must agree on.
///
/// ```
/// use leasehold::node::Constants;
/// use std::time::Duration;
///
/// let mut constants = Constants::for_nodes(3);
/// constants.skew = Duration::from_secs(5);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Constants {
    /// S: how far a token may be ahead of a node's clock.
    pub skew: Duration,
    /// F: how long a fence is kept after its last use. A missing fence reads as
    /// `now − F`.
    pub fence_retention: Duration,
    /// How long a restarted node does not vote; `None` if the guard is off.
    pub restart_guard: Option<Duration>,
}

impl Constants {
    /// The defaults for a client of `nodes` nodes: S = 10 s, F = 24 h, and a restart
    /// guard of 60 s from three nodes on.
    #[must_use]
    pub fn for_nodes(nodes: usize) -> Self {
        Self {
            skew: Duration::from_secs(10),
            fence_retention: Duration::from_secs(24 * 3600),
            restart_guard: (nodes >= 3).then_some(Duration::from_secs(60)),
        }
    }

    pub(crate) fn skew_us(&self) -> u64 {
        micros(self.skew)
    }

    pub(crate) fn retention_us(&self) -> u64 {
        micros(self.fence_retention)
    }

    /// How long to keep a fence that is written now. A fence may vanish only when
    /// `now − F`, which a missing one reads as, is not below it. It is at most
    /// `now + S + 1`, so F + S keeps it long enough; the hour is for rounding and
    /// for a clock that is being slewed. The lock itself must not outlive it either.
    pub(crate) fn fence_ttl(&self, lock_ttl: Duration) -> Duration {
        self.fence_retention + self.skew + lock_ttl + Duration::from_secs(3600)
    }
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// What a node knows about a name at the moment it votes.
///
/// Not `#[non_exhaustive]`, and neither is [`Write`]: a node that does not fill in a new field, or
/// does not store a new kind of write, must not compile.
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The value of the lock, if there is one that has not expired: an owner value, or the marker
    /// of readers.
    pub lock: Option<&'a [u8]>,
    /// When that lock expires, if ever. A marker expires with the reader that stays longest.
    pub remaining: Option<Duration>,
    /// F, if the node has a fence for this name: the highest token granted.
    pub fence: Option<u64>,
    /// W, if a shared claim has been granted since an exclusive one: the highest token granted to
    /// an exclusive claim. `None`: the same as F.
    pub write_fence: Option<u64>,
    /// How long the claim in question is still one of the readers, if it is.
    pub share: Option<Duration>,
    /// No token up to here is granted: `T + S`, where `T` is when the node first
    /// found that it had lost its memory (or had none yet). The cap on tokens makes
    /// this safe: nothing above `T + S` can have been granted before.
    pub floor: u64,
    /// The node's clock.
    pub now: u64,
    /// What all clients agree on.
    pub constants: Constants,
}

impl fmt::Debug for View<'_> {
    /// Without the lock's value, which is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View")
            .field("locked", &self.lock.is_some())
            .field("remaining", &self.remaining)
            .field("fence", &self.fence)
            .field("write_fence", &self.write_fence)
            .field("share", &self.share)
            .field("floor", &self.floor)
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl View<'_> {
    /// Rule: `eff = max(fence or now − F, floor)`. A missing fence is never 0.
    fn effective_fence(&self) -> u64 {
        self.fence
            .unwrap_or_else(|| self.now.saturating_sub(self.constants.retention_us()))
            .max(self.floor)
    }

    /// The same for W. `F` alone means that W = F.
    fn effective_write_fence(&self) -> u64 {
        self.write_fence
            .map_or_else(|| self.effective_fence(), |fence| fence.max(self.floor))
    }

    /// The highest token that a claim of this mode must exceed.
    pub(crate) fn need(&self, mode: Mode) -> u64 {
        match mode {
            Mode::Exclusive => self.effective_fence(),
            Mode::Shared => self.effective_write_fence(),
        }
    }

    /// Whether readers hold the lock.
    pub(crate) fn is_shared(&self) -> bool {
        self.lock.is_some_and(is_marker)
    }

    /// Whether the lock is not in the way of a claim of this mode.
    pub(crate) fn is_free_for(&self, mode: Mode) -> bool {
        self.lock.is_none() || mode == Mode::Shared && self.is_shared()
    }

    /// How long the claim is still one of the readers. Rule: readers count only while the lock is
    /// a marker. If the marker was deleted, their claims were too.
    pub(crate) fn own_share(&self) -> Option<Duration> {
        self.share.filter(|_| self.is_shared())
    }

    /// Whether the lock was granted to this claim. The owner value is new for every attempt, so
    /// it is the claim's own lock, and a fence that equals its token says that the node granted
    /// nothing newer since. Nothing up to the floor counts, not even a token that equals the floor:
    /// the node may have granted the lock after it lost its memory and before any client noticed,
    /// when the same token may have been granted to another claim.
    fn is_granted_to(&self, claim: &Claim) -> bool {
        match claim.mode() {
            Mode::Exclusive => {
                self.lock == Some(claim.owner())
                    && self.fence == Some(claim.token())
                    && self.write_fence.is_none()
                    && self.floor < claim.token()
            }
            Mode::Shared => {
                self.own_share().is_some() && self.effective_write_fence() < claim.token()
            }
        }
    }

    fn cap(&self) -> u64 {
        self.now.saturating_add(self.constants.skew_us())
    }

    fn held(&self, value: &[u8], claim: &Claim) -> Vote {
        Vote::Held {
            holder: Box::new(Holder::parse(value)),
            remaining: self.remaining,
            fence: self.need(claim.mode()),
            now: self.now,
            place: None,
        }
    }

    fn stale(&self, claim: &Claim) -> Vote {
        Vote::Stale {
            fence: self.need(claim.mode()),
            now: self.now,
        }
    }

    fn ahead(&self, claim: &Claim) -> Vote {
        Vote::Ahead {
            fence: self.need(claim.mode()),
            now: self.now,
        }
    }
}

/// What the node must store, together with answering.
#[derive(Clone, Debug, PartialEq, Eq)] // the value of `Keep` has lost its secret
pub enum Write {
    /// Nothing.
    Nothing,
    /// The lock becomes the claim's, or stays so.
    Lock {
        /// F from now on, and no W; `None`: both as they were.
        fence: Option<u64>,
        /// How long the lock lives from now: the claim's TTL, or longer if it was the claim's
        /// and had more left.
        remaining: Duration,
    },
    /// The lock goes away, if there is one.
    Unlock {
        /// F from now on, and no W; `None`: both as they were.
        fence: Option<u64>,
    },
    /// The lock stays for some time, with a value that has no owner.
    Keep {
        /// That value.
        value: Vec<u8>,
        /// How long it stays.
        remaining: Duration,
        /// F from now on, and no W; `None`: both as they were.
        fence: Option<u64>,
    },
    /// The claim becomes one of the readers, or stays so. If the lock is no marker, earlier readers
    /// are forgotten. The lock becomes the marker of this claim, and expires with the reader that
    /// stays longest.
    Share {
        /// F from now on.
        fence: u64,
        /// W from now on.
        write_fence: u64,
        /// How long the claim stays a reader: its TTL, or longer if it had more left.
        remaining: Duration,
    },
    /// The claim is no reader any more. If no readers are left, the marker goes away; otherwise it
    /// expires with the reader that stays longest. F and W stay.
    Unshare {
        /// The value that takes its place among the readers, and for how long.
        kept: Option<(Vec<u8>, Duration)>,
    },
}

/// The write that grants the lock to the claim with this owner value, for this time. By the rule of
/// ACQUIRE: the lock is free for the claim, and its token is above what it needs and within the cap.
#[must_use]
pub fn grant(view: &View<'_>, owner: &[u8], token: u64, time: Duration) -> Write {
    match owner_mode(owner) {
        Mode::Exclusive => Write::Lock {
            fence: Some(token),
            remaining: time,
        },
        Mode::Shared => shared::share(view, token, 0, time),
    }
}

/// ACQUIRE: takes the lock if it is free and the token is above everything granted.
#[must_use]
pub fn acquire(view: &View<'_>, claim: &Claim) -> (Vote, Write) {
    if claim.mode() == Mode::Shared {
        return shared::acquire(view, claim);
    }
    let fence = view.effective_fence();
    match view.lock {
        // Rule: a claim without a token is a plain lock, which touches no fence.
        Some(owner) if !claim.is_fenced() && owner != claim.owner() => {
            (view.held(owner, claim), Write::Nothing)
        }
        _ if !claim.is_fenced() => lock(view, claim, None),
        // The same request again, or the claim was handed the lock when its turn came. Its validity
        // counts from before this request, and so does the TTL.
        Some(_) if view.is_granted_to(claim) => lock(view, claim, Some(claim.token())),
        Some(owner) if owner != claim.owner() || fence > claim.token() => {
            (view.held(owner, claim), Write::Nothing)
        }
        // Free. (Or the claim's own lock, whose fence was evicted.)
        // Without the cap, the floor of a node that forgot would not be above
        // everything it granted before.
        _ if claim.token() > view.cap() => (view.ahead(claim), Write::Nothing),
        // Ties lose: or two owners could have the same token.
        _ if fence >= claim.token() => (view.stale(claim), Write::Nothing),
        _ => lock(view, claim, Some(claim.token())),
    }
}

/// Rule: nothing that a holder sends shortens its lock. The reply may be lost, and the holder
/// would still rely on the longer time. (A lock without a TTL gets one. Only another program can
/// have removed the TTL.)
fn lock(view: &View<'_>, claim: &Claim, fence: Option<u64>) -> (Vote, Write) {
    let owned = view.lock == Some(claim.owner());
    let left = view.remaining.filter(|_| owned).unwrap_or_default();
    let remaining = left.max(claim.ttl());
    (Vote::Granted, Write::Lock { fence, remaining })
}

/// WAIT: stands in line for the lock. Whether the claim [may](may_wait) is decided before.
/// Grants nothing by itself. The vote is `Granted` if the claim was handed the lock when its turn
/// came. A waiter whose turn it is sends [`acquire`].
#[must_use]
pub fn wait(view: &View<'_>, claim: &Claim) -> (Vote, Write) {
    let vote = match view.lock {
        Some(_) if view.is_granted_to(claim) => Vote::Granted,
        _ if claim.token() > view.cap() => view.ahead(claim),
        _ if view.need(claim.mode()) >= claim.token() => view.stale(claim),
        Some(owner) if owner != claim.owner() && !view.is_free_for(claim.mode()) => {
            view.held(owner, claim)
        }
        _ => Vote::YourTurn,
    };
    (vote, Write::Nothing)
}

/// Whether a claim may stand in line: its token can still win, and it is not a reader already. (The
/// token of an exclusive claim that was granted the lock is the fence, and cannot win again.)
#[must_use]
pub fn may_wait(view: &View<'_>, claim: &Claim) -> bool {
    let can_win = claim.token() <= view.cap() && view.need(claim.mode()) < claim.token();
    can_win && view.own_share().is_none()
}

/// Votes by the rule of the verb, without regard to the line. A node without lines needs nothing
/// else. A node with lines uses [`node::vote`](super::vote).
#[must_use]
pub fn vote(view: &View<'_>, verb: Verb, claim: &Claim) -> (Vote, Write) {
    match verb {
        Verb::Acquire => acquire(view, claim),
        Verb::Wait => wait(view, claim),
        Verb::Extend => extend(view, claim),
        Verb::Release { keep } => release(view, claim, keep),
    }
}

/// EXTEND: keeps the lock for another TTL, and never shortens it. A node that lacks the lock joins
/// the lease, which the fence makes safe.
#[must_use]
pub fn extend(view: &View<'_>, claim: &Claim) -> (Vote, Write) {
    if claim.mode() == Mode::Shared {
        return shared::extend(view, claim);
    }
    let fence = view.effective_fence();
    let lost = (Vote::Lost { fence }, Write::Nothing);
    if !claim.is_fenced() {
        // Without a token the node cannot know whether another claim held the lock meanwhile, so it
        // cannot join.
        return match view.lock {
            Some(owner) if owner == claim.owner() => lock(view, claim, None),
            Some(owner) => (view.held(owner, claim), Write::Nothing),
            None => lost,
        };
    }
    // The node lost its memory after this token: what it has is an old snapshot.
    if view.floor >= claim.token() {
        return lost;
    }
    match view.lock {
        Some(owner) if owner != claim.owner() => return (view.held(owner, claim), Write::Nothing),
        Some(_) => {}
        // A newer token was granted here, and may have been used and released.
        None if fence > claim.token() => return lost,
        None if claim.token() > view.cap() => return (view.ahead(claim), Write::Nothing),
        None => {}
    }
    lock(view, claim, Some(fence.max(claim.token())))
}

/// RELEASE: removes the lock if it is the claim's, and makes sure that a late ACQUIRE or EXTEND of
/// the same claim is refused.
#[must_use]
pub fn release(view: &View<'_>, claim: &Claim, keep: Option<Duration>) -> (Vote, Write) {
    if claim.mode() == Mode::Shared {
        return shared::release(view, claim, keep);
    }
    let held = view.lock == Some(claim.owner());
    // The same request again: the name is kept already.
    if keep.is_some()
        && claim.is_fenced()
        && view.lock.is_some_and(|lock| *lock == claim.kept_value())
    {
        return (Vote::Released { held: true }, Write::Nothing);
    }
    let vote = Vote::Released { held };
    if view.lock.is_some() && !held {
        // Never raise the fence under a live holder.
        return (vote, Write::Nothing);
    }
    // `token + 1` is burnt: this node never grants it.
    let raise = view.effective_fence() <= claim.token() && claim.token() <= view.cap();
    let fence = raise.then(|| claim.token().saturating_add(1));
    let write = match keep.filter(|_| held) {
        None => Write::Unlock { fence },
        Some(remaining) => Write::Keep {
            value: claim.kept_value(),
            remaining,
            fence,
        },
    };
    (vote, write)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::name::Name;

    const NOW: u64 = 1_800_000_000_000_000;
    const OURS: &[u8] = b"ours";

    fn claim(token: u64) -> Claim {
        Claim::new(
            Name::new("a").unwrap(),
            OURS,
            token,
            Duration::from_secs(10),
        )
    }

    fn locked(fence: Option<u64>) -> (Vote, Write) {
        let remaining = claim(0).ttl();
        (Vote::Granted, Write::Lock { fence, remaining })
    }

    fn view(lock: Option<&'static [u8]>, fence: Option<u64>) -> View<'static> {
        View {
            lock,
            remaining: lock.map(|_| Duration::from_secs(5)),
            fence,
            write_fence: None,
            share: None,
            floor: 0,
            now: NOW,
            constants: Constants::for_nodes(1),
        }
    }

    #[test]
    fn a_token_must_be_above_the_fence() {
        let free = view(None, Some(NOW));
        assert!(matches!(
            acquire(&free, &claim(NOW - 1)).0,
            Vote::Stale { .. }
        ));
        assert!(
            matches!(acquire(&free, &claim(NOW)).0, Vote::Stale { .. }),
            "ties lose"
        );
        let granted = locked(Some(NOW + 1));
        assert_eq!(acquire(&free, &claim(NOW + 1)), granted);
    }

    #[test]
    fn a_missing_fence_is_a_day_ago_and_not_zero() {
        let (free, day) = (view(None, None), 24 * 3600 * 1_000_000);
        assert!(matches!(
            acquire(&free, &claim(NOW - day)).0,
            Vote::Stale { .. }
        ));
        assert_eq!(acquire(&free, &claim(NOW - day + 1)).0, Vote::Granted);
        assert!(matches!(
            extend(&free, &claim(NOW - day - 1)).0,
            Vote::Lost { .. }
        ));
    }

    #[test]
    fn a_token_must_be_above_the_floor_and_within_the_cap() {
        let free = View {
            floor: NOW + 5,
            ..view(None, None)
        };
        assert!(matches!(
            acquire(&free, &claim(NOW + 5)).0,
            Vote::Stale { .. }
        ));
        assert_eq!(acquire(&free, &claim(NOW + 6)).0, Vote::Granted);
        let cap = NOW + 10_000_000;
        assert_eq!(acquire(&free, &claim(cap)).0, Vote::Granted);
        assert!(matches!(
            acquire(&free, &claim(cap + 1)).0,
            Vote::Ahead { .. }
        ));
        assert!(matches!(
            extend(&free, &claim(cap + 1)).0,
            Vote::Ahead { .. }
        ));
    }

    #[test]
    fn the_same_request_again_is_granted_again_for_a_whole_ttl() {
        let held = view(Some(OURS), Some(NOW));
        assert_eq!(acquire(&held, &claim(NOW)), locked(Some(NOW)));
    }

    /// Found by a review: an extend with a shorter TTL whose reply was lost made a second holder.
    #[test]
    fn nothing_that_a_holder_sends_shortens_its_lock() {
        let left = Duration::from_secs(30);
        let held = View {
            remaining: Some(left),
            ..view(Some(OURS), Some(NOW))
        };
        for token in [NOW, 0] {
            let kept = Write::Lock {
                fence: Some(token).filter(|token| *token > 0),
                remaining: left,
            };
            for rule in [extend, acquire] {
                assert_eq!(rule(&held, &claim(token)), (Vote::Granted, kept.clone()));
            }
        }
        let endless = View {
            remaining: None,
            ..held
        };
        assert_eq!(extend(&endless, &claim(NOW)), locked(Some(NOW)));
    }

    #[test]
    fn a_wait_after_a_hand_over_is_answered_with_granted() {
        let granted = view(Some(OURS), Some(NOW));
        assert_eq!(wait(&granted, &claim(NOW)), (Vote::Granted, Write::Nothing));
        let free = view(None, Some(NOW - 9));
        assert_eq!(wait(&free, &claim(NOW)).0, Vote::YourTurn);
    }

    #[test]
    fn a_lock_without_a_token_touches_no_fence() {
        let (plain, locked) = (claim(0), locked(None));
        let (free, ours) = (view(None, Some(NOW)), view(Some(OURS), Some(NOW)));
        let theirs = view(Some(b"another"), Some(NOW));
        assert_eq!(acquire(&free, &plain), locked);
        assert_eq!(acquire(&ours, &plain), locked);
        assert_eq!(extend(&ours, &plain), locked);
        assert!(matches!(extend(&free, &plain).0, Vote::Lost { .. }));
        for rule in [acquire, extend] {
            let (vote, write) = rule(&theirs, &plain);
            assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
            assert_eq!(write, Write::Nothing);
        }
        let unlocked = |held| (Vote::Released { held }, Write::Unlock { fence: None });
        assert_eq!(release(&ours, &plain, None), unlocked(true));
        assert_eq!(release(&free, &plain, None), unlocked(false));
    }

    /// Found by the model: a node came back with an old snapshot at a moment that made its floor
    /// equal to the token of the claim whose lock was in the snapshot.
    #[test]
    fn a_floor_makes_no_grant() {
        let snapshot = View {
            floor: NOW,
            ..view(Some(OURS), Some(NOW - 9))
        };
        let (vote, write) = acquire(&snapshot, &claim(NOW));
        assert!(matches!(vote, Vote::Stale { .. }), "{vote:?}");
        assert_eq!(write, Write::Nothing);
    }

    #[test]
    fn every_rule_respects_the_lock_of_another_claim() {
        let held = view(Some(b"another"), Some(NOW - 9));
        for (vote, write) in [acquire(&held, &claim(NOW)), extend(&held, &claim(NOW))] {
            assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
            assert_eq!(write, Write::Nothing);
        }
        let nothing = (Vote::Released { held: false }, Write::Nothing);
        assert_eq!(release(&held, &claim(NOW), None), nothing);
    }

    #[test]
    fn a_node_may_join_a_lease_unless_it_granted_a_newer_token_or_forgot() {
        assert_eq!(extend(&view(None, Some(NOW)), &claim(NOW)).0, Vote::Granted);
        let newer = view(None, Some(NOW + 1));
        assert!(matches!(extend(&newer, &claim(NOW)).0, Vote::Lost { .. }));
        let forgot = View {
            floor: NOW,
            ..view(Some(OURS), Some(NOW))
        };
        assert!(matches!(extend(&forgot, &claim(NOW)).0, Vote::Lost { .. }));
    }

    #[test]
    fn a_release_burns_the_next_token() {
        let fence = Some(NOW + 1);
        let unlocked = |held| (Vote::Released { held }, Write::Unlock { fence });
        let ours = view(Some(OURS), Some(NOW));
        assert_eq!(release(&ours, &claim(NOW), None), unlocked(true));
        // Also where the request it follows has not arrived yet.
        assert_eq!(
            release(&view(None, None), &claim(NOW), None),
            unlocked(false)
        );
        // But nothing that is newer is touched.
        let newer = view(None, Some(NOW + 9));
        let untouched = (
            Vote::Released { held: false },
            Write::Unlock { fence: None },
        );
        assert_eq!(release(&newer, &claim(NOW), None), untouched);
    }
}
