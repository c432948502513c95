//! The rules by which a node votes, as pure functions.
//!
//! They are what makes tokens unique and growing with no assumption about client
//! clocks, pauses or the network. Every node obeys them: the in-memory node calls
//! them, the Redis scripts restate them in Lua (and a test holds the two against
//! each other), and the model checker explores them.
//!
//! All times are microseconds of the node's own clock, since 1970.

use std::fmt;
use std::time::Duration;

use super::{Claim, Verb, Vote};
use crate::base::holder::{Holder, kept_value};

/// Tokens are doubles in Lua: exact below 2^53.
pub(crate) const MAX_TOKEN: u64 = (1 << 53) - 1;

/// What all clients of a node must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy)]
pub struct View<'a> {
    /// The owner value of the lock, if there is one that has not expired.
    pub lock: Option<&'a [u8]>,
    /// When that lock expires, if ever.
    pub remaining: Option<Duration>,
    /// The fence, if the node has one for this name.
    pub fence: Option<u64>,
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
            .field("floor", &self.floor)
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl View<'_> {
    /// Rule: `eff = max(fence or now − F, floor)`. A missing fence is never 0.
    pub(crate) fn effective_fence(&self) -> u64 {
        self.fence
            .unwrap_or_else(|| self.now.saturating_sub(self.constants.retention_us()))
            .max(self.floor)
    }

    /// Whether the lock was granted to this claim. The owner value is new for every attempt, so
    /// it is the claim's own lock, and a fence that equals its token says that the node granted
    /// nothing newer since. Nothing up to the floor counts, not even a token that equals the floor:
    /// the node may have granted the lock after it lost its memory and before any client noticed,
    /// when the same token may have been granted to another claim.
    fn is_granted_to(&self, claim: &Claim) -> bool {
        self.lock == Some(claim.owner())
            && self.fence == Some(claim.token())
            && self.floor < claim.token()
    }

    fn cap(&self) -> u64 {
        self.now.saturating_add(self.constants.skew_us())
    }

    fn held(&self, value: &[u8]) -> Vote {
        Vote::Held {
            holder: Holder::parse(value),
            remaining: self.remaining,
            fence: self.effective_fence(),
            now: self.now,
            place: None,
        }
    }

    fn stale(&self) -> Vote {
        Vote::Stale {
            fence: self.effective_fence(),
            now: self.now,
        }
    }

    fn ahead(&self) -> Vote {
        Vote::Ahead {
            fence: self.effective_fence(),
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
        /// The fence from now on; `None`: as it was.
        fence: Option<u64>,
        /// How long the lock lives from now: the claim's TTL, or longer if it was the claim's
        /// and had more left.
        remaining: Duration,
    },
    /// The lock goes away, if there is one.
    Unlock {
        /// The fence from now on; `None`: as it was.
        fence: Option<u64>,
    },
    /// The lock stays for so long, with a value that nobody owns.
    Keep {
        /// That value.
        value: Vec<u8>,
        /// How long it stays.
        remaining: Duration,
        /// The fence from now on; `None`: as it was.
        fence: Option<u64>,
    },
}

/// ACQUIRE: takes the lock if it is free and the token is above everything granted.
#[must_use]
pub fn acquire(view: &View<'_>, claim: &Claim) -> (Vote, Write) {
    let fence = view.effective_fence();
    match view.lock {
        // Rule: a claim without a token is a plain lock, which touches no fence.
        Some(owner) if !claim.is_fenced() && owner != claim.owner() => {
            (view.held(owner), Write::Nothing)
        }
        _ if !claim.is_fenced() => lock(view, claim, None),
        // The same request again, or one who was handed the lock when its turn came and has
        // not heard of it. Its validity counts from before this request, and so does the TTL.
        Some(_) if view.is_granted_to(claim) => lock(view, claim, Some(claim.token())),
        Some(owner) if owner != claim.owner() || fence > claim.token() => {
            (view.held(owner), Write::Nothing)
        }
        // Free. (Or the claim's own lock, whose fence was evicted.)
        // Without the cap, the floor of a node that forgot would not be above
        // everything it granted before.
        _ if claim.token() > view.cap() => (view.ahead(), Write::Nothing),
        // Ties lose: or two owners could have the same token.
        _ if fence >= claim.token() => (view.stale(), Write::Nothing),
        _ => lock(view, claim, Some(claim.token())),
    }
}

/// Rule: nothing that a holder sends shortens its lock. The reply may be lost, and the holder
/// would still rely on the longer time. (A lock without a TTL, which only somebody else can have
/// made of it, gets one.)
fn lock(view: &View<'_>, claim: &Claim, fence: Option<u64>) -> (Vote, Write) {
    let owned = view.lock == Some(claim.owner());
    let left = view.remaining.filter(|_| owned).unwrap_or_default();
    let remaining = left.max(claim.ttl());
    (Vote::Granted, Write::Lock { fence, remaining })
}

/// WAIT: stands in line for the lock. Whether the claim [may](may_wait) is decided before.
/// Grants nothing by itself. A waiter that was granted the lock when its turn came is told so; a
/// waiter whose turn it is sends [`acquire`].
#[must_use]
pub fn wait(view: &View<'_>, claim: &Claim) -> (Vote, Write) {
    let vote = match view.lock {
        Some(_) if view.is_granted_to(claim) => Vote::Granted,
        _ if claim.token() > view.cap() => view.ahead(),
        _ if view.effective_fence() >= claim.token() => view.stale(),
        Some(owner) if owner != claim.owner() => view.held(owner),
        _ => Vote::YourTurn,
    };
    (vote, Write::Nothing)
}

/// Whether a claim may stand in line: its token can still win.
#[must_use]
pub fn may_wait(view: &View<'_>, claim: &Claim) -> bool {
    claim.token() <= view.cap() && view.effective_fence() < claim.token()
}

/// Votes by the rule of the verb, whoever may stand in line. A node that knows of no line
/// needs nothing else; one that does uses [`node::vote`](super::vote).
#[must_use]
pub fn vote(view: &View<'_>, verb: Verb, claim: &Claim) -> (Vote, Write) {
    match verb {
        Verb::Acquire => acquire(view, claim),
        Verb::Wait => wait(view, claim),
        Verb::Extend => extend(view, claim),
        Verb::Release { keep } => release(view, claim, keep),
    }
}

/// EXTEND: keeps the lock for another TTL, and never shortens what is left of it. A node that lacks the lock joins the
/// lease, which the fence makes safe.
#[must_use]
pub fn extend(view: &View<'_>, claim: &Claim) -> (Vote, Write) {
    let fence = view.effective_fence();
    let lost = (Vote::Lost { fence }, Write::Nothing);
    if !claim.is_fenced() {
        // No fence tells whether another has had the lock meanwhile: so no node can join.
        return match view.lock {
            Some(owner) if owner == claim.owner() => lock(view, claim, None),
            Some(owner) => (view.held(owner), Write::Nothing),
            None => lost,
        };
    }
    // The node lost its memory after this token: what it has is an old snapshot.
    if view.floor >= claim.token() {
        return lost;
    }
    match view.lock {
        Some(owner) if owner != claim.owner() => return (view.held(owner), Write::Nothing),
        Some(_) => {}
        // A newer token was granted here, and may have been used and released.
        None if fence > claim.token() => return lost,
        None if claim.token() > view.cap() => return (view.ahead(), Write::Nothing),
        None => {}
    }
    lock(view, claim, Some(fence.max(claim.token())))
}

/// RELEASE: gives the lock back if it is the claim's, and makes sure that a late
/// ACQUIRE or EXTEND of the same claim loses.
#[must_use]
pub fn release(view: &View<'_>, claim: &Claim, keep: Option<Duration>) -> (Vote, Write) {
    let held = view.lock == Some(claim.owner());
    let vote = Vote::Released { held };
    if view.lock.is_some() && !held {
        // Never raise the fence under a live holder.
        return (vote, Write::Nothing);
    }
    // `token + 1` is burnt: nobody gets it here.
    let raise = view.effective_fence() <= claim.token() && claim.token() <= view.cap();
    let fence = raise.then(|| claim.token().saturating_add(1));
    let write = match keep.filter(|_| held) {
        None => Write::Unlock { fence },
        Some(remaining) => Write::Keep {
            value: kept_value(claim.owner()),
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
    fn one_who_was_handed_the_lock_is_told_when_it_asks() {
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
    fn anothers_lock_is_respected_by_all_three() {
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
