//! The rules of shared claims: readers, which exclude exclusive claims and not each other.
//!
//! Why they are safe:
//! - The majorities of a reader and of a writer share a node. There, the later of the two finds the
//!   lock of the earlier: an exclusive claim finds the marker, a reader finds the owner value. So
//!   they exclude each other, based on time, like two exclusive claims.
//! - On that node, a later writer finds F at or above the reader's token, and a later reader finds W
//!   at or above the writer's token. So tokens grow between claims that exclude each other. Readers
//!   among themselves may have tokens in any order.
//! - A node that forgot has a floor, which counts for F and W alike.

use std::time::Duration;

use super::{View, Write};
use crate::base::holder::{is_marker, owned_token};
use crate::node::{Claim, Vote};

/// ACQUIRE: becomes a reader if no exclusive claim has the lock, and none with the same or a larger
/// token ever had it.
pub(super) fn acquire(view: &View<'_>, claim: &Claim) -> (Vote, Write) {
    // The same request again, or the claim was handed the lock when its turn came.
    if view.is_granted_to(claim) {
        return granted(view, claim);
    }
    if let Some(owner) = excluding(view, claim) {
        return (view.held(owner, claim), Write::Nothing);
    }
    // As for exclusive claims: without the cap, the floor of a node that forgot would not be above
    // everything it granted before.
    if claim.token() > view.cap() {
        return (view.ahead(claim), Write::Nothing);
    }
    // Ties lose: a writer may have the same token.
    if view.effective_write_fence() >= claim.token() {
        return (view.stale(claim), Write::Nothing);
    }
    granted(view, claim)
}

/// EXTEND: stays a reader for another TTL. A node that lacks the claim lets it join, unless it has
/// granted an exclusive claim with the same or a larger token.
///
/// A claim that [replaces](Claim::replaces) an exclusive one takes its lock as free.
pub(super) fn extend(view: &View<'_>, claim: &Claim) -> (Vote, Write) {
    // The floor is part of W: nothing counts that was granted before the node lost its memory.
    let fence = view.effective_write_fence().max(replaced_token(claim));
    let lost = (Vote::Lost { fence }, Write::Nothing);
    if view.floor >= claim.token() {
        return lost;
    }
    if let Some(owner) = excluding(view, claim) {
        return (view.held(owner, claim), Write::Nothing);
    }
    if fence >= claim.token() {
        return lost;
    }
    if view.own_share().is_none() && claim.token() > view.cap() {
        return (view.ahead(claim), Write::Nothing);
    }
    granted(view, claim)
}

/// RELEASE: is no reader any more.
///
/// Raises neither F nor W: that would end the leases of other readers. So a request of the claim
/// that arrives after its release makes it a reader again, until its TTL ends.
///
/// A client of a version without readers may have handed the lock to the claim as if it were
/// exclusive. Such a lock is deleted.
pub(super) fn release(view: &View<'_>, claim: &Claim, keep: Option<Duration>) -> (Vote, Write) {
    if view.lock == Some(claim.owner()) {
        return (Vote::Released { held: true }, Write::Unlock { fence: None });
    }
    let held = view.own_share().is_some();
    let write = match held {
        false => Write::Nothing,
        true => Write::Unshare {
            kept: keep.map(|time| (claim.kept_value(), time)),
        },
    };
    (Vote::Released { held }, write)
}

/// The value of a lock that excludes this claim.
fn excluding<'v>(view: &View<'v>, claim: &Claim) -> Option<&'v [u8]> {
    let replaced = |owner: &&[u8]| claim.replaces() == Some(*owner);
    view.lock
        .filter(|owner| !is_marker(owner) && !replaced(owner))
}

/// The token of the exclusive claim that this one replaces; 0 if there is none.
fn replaced_token(claim: &Claim) -> u64 {
    claim.replaces().and_then(owned_token).unwrap_or(0)
}

/// Rule: nothing that a holder sends shortens its lock.
fn granted(view: &View<'_>, claim: &Claim) -> (Vote, Write) {
    let remaining = view.own_share().unwrap_or_default().max(claim.ttl());
    let replaced = replaced_token(claim);
    (
        Vote::Granted,
        share(view, claim.token(), replaced, remaining),
    )
}

/// The write that makes a claim a reader. `replaced` is the token of the exclusive claim that it
/// takes over: the node may never have granted that claim, and it counts as a writer all the same.
pub(super) fn share(view: &View<'_>, token: u64, replaced: u64, remaining: Duration) -> Write {
    Write::Share {
        // Rule: F covers readers, so that a later writer has a larger token.
        fence: view.effective_fence().max(token),
        // Rule: W does not, so that readers do not overtake each other.
        write_fence: view.effective_write_fence().max(replaced),
        remaining,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Constants, acquire, extend, may_wait, release, wait};
    use super::*;
    use crate::base::holder::{marker_value, new_owner, new_owner_in};
    use crate::base::name::Name;
    use crate::node::Mode;

    const NOW: u64 = 1_800_000_000_000_000;
    const TTL: Duration = Duration::from_secs(10);

    fn claim(mode: Mode, token: u64) -> Claim {
        let name = Name::new("a").unwrap();
        Claim::new(name, new_owner_in(mode, token, ""), token, TTL)
    }

    fn reader(token: u64) -> Claim {
        claim(Mode::Shared, token)
    }

    fn view<'v>(lock: Option<&'v [u8]>, fence: Option<u64>, write: Option<u64>) -> View<'v> {
        View {
            lock,
            remaining: lock.map(|_| Duration::from_secs(5)),
            fence,
            write_fence: write,
            share: None,
            floor: 0,
            now: NOW,
            constants: Constants::for_nodes(1),
        }
    }

    fn share(fence: u64, write_fence: u64) -> (Vote, Write) {
        let write = Write::Share {
            fence,
            write_fence,
            remaining: TTL,
        };
        (Vote::Granted, write)
    }

    fn marker() -> Vec<u8> {
        marker_value(&new_owner_in(Mode::Shared, NOW, ""))
    }

    #[test]
    fn readers_share_whatever_the_order_of_their_tokens() {
        let marker = marker();
        for token in [NOW - 1, NOW, NOW + 1] {
            let shared = view(Some(&marker), Some(NOW), Some(NOW - 5));
            let vote = acquire(&shared, &reader(token));
            assert_eq!(vote, share(NOW.max(token), NOW - 5));
        }
    }

    #[test]
    fn a_reader_needs_a_token_above_those_of_writers() {
        let marker = marker();
        for free in [
            view(None, Some(NOW), None),
            view(None, Some(NOW + 9), Some(NOW)),
            view(Some(&marker), Some(NOW + 9), Some(NOW)),
        ] {
            for token in [NOW - 1, NOW] {
                let vote = acquire(&free, &reader(token)).0;
                assert_eq!(
                    vote,
                    Vote::Stale {
                        fence: NOW,
                        now: NOW
                    }
                );
            }
            assert_eq!(acquire(&free, &reader(NOW + 1)).0, Vote::Granted);
        }
    }

    #[test]
    fn a_writer_needs_a_token_above_all_and_finds_the_marker() {
        let free = view(None, Some(NOW), Some(NOW - 5));
        let writer = claim(Mode::Exclusive, NOW - 1);
        assert!(matches!(acquire(&free, &writer).0, Vote::Stale { .. }));
        let marker = marker();
        let shared = view(Some(&marker), Some(NOW), Some(NOW - 5));
        for rule in [acquire, extend] {
            let (vote, write) = rule(&shared, &claim(Mode::Exclusive, NOW + 1));
            let Vote::Held { holder, fence, .. } = vote else {
                panic!("{vote:?}");
            };
            assert!(holder.shared);
            assert_eq!((fence, write), (NOW, Write::Nothing));
        }
        let (vote, write) = release(&shared, &claim(Mode::Exclusive, NOW + 1), None);
        assert_eq!(
            (vote, write),
            (Vote::Released { held: false }, Write::Nothing)
        );
    }

    #[test]
    fn a_lock_of_another_excludes_readers() {
        let writer = new_owner(NOW - 9, "");
        for lock in [&writer[..], b"of another library", b"kept:1:2@h:"] {
            let held = view(Some(lock), Some(NOW - 9), None);
            for rule in [acquire, extend] {
                let (vote, write) = rule(&held, &reader(NOW));
                assert!(matches!(vote, Vote::Held { .. }), "{vote:?}");
                assert_eq!(write, Write::Nothing);
            }
            assert!(matches!(wait(&held, &reader(NOW)).0, Vote::Held { .. }));
        }
    }

    #[test]
    fn the_same_request_again_never_shortens() {
        let (marker, left) = (marker(), Duration::from_secs(30));
        let shared = View {
            share: Some(left),
            ..view(Some(&marker), Some(NOW), Some(NOW - 5))
        };
        for rule in [acquire, extend] {
            let (vote, write) = rule(&shared, &reader(NOW));
            assert_eq!(vote, Vote::Granted);
            let expected = Write::Share {
                fence: NOW,
                write_fence: NOW - 5,
                remaining: left,
            };
            assert_eq!(write, expected);
        }
        assert_eq!(wait(&shared, &reader(NOW)).0, Vote::Granted);
        assert!(!may_wait(&shared, &reader(NOW)), "it is a reader already");
    }

    /// Rule: readers count only while the lock is a marker.
    #[test]
    fn a_reader_whose_marker_is_gone_is_none() {
        let writer = new_owner(NOW + 5, "");
        let taken = View {
            share: Some(TTL),
            ..view(Some(&writer), Some(NOW + 5), None)
        };
        assert!(matches!(acquire(&taken, &reader(NOW)).0, Vote::Held { .. }));
        let released = Vote::Released { held: false };
        assert_eq!(
            release(&taken, &reader(NOW), None),
            (released, Write::Nothing)
        );
    }

    #[test]
    fn a_node_lets_a_reader_join_unless_a_writer_came_after_it_or_it_forgot() {
        let marker = marker();
        for lock in [None, Some(&marker[..])] {
            let joins = view(lock, Some(NOW + 9), Some(NOW - 1));
            assert_eq!(extend(&joins, &reader(NOW)), share(NOW + 9, NOW - 1));
            let newer = view(lock, Some(NOW + 9), Some(NOW));
            assert!(matches!(extend(&newer, &reader(NOW)).0, Vote::Lost { .. }));
            let forgot = View {
                floor: NOW,
                share: Some(TTL),
                ..joins
            };
            assert!(matches!(extend(&forgot, &reader(NOW)).0, Vote::Lost { .. }));
            assert!(matches!(
                acquire(&forgot, &reader(NOW)).0,
                Vote::Stale { .. }
            ));
            let ahead = reader(NOW + 10_000_001);
            assert!(matches!(extend(&joins, &ahead).0, Vote::Ahead { .. }));
            assert!(matches!(acquire(&joins, &ahead).0, Vote::Ahead { .. }));
        }
    }

    #[test]
    fn a_missing_fence_is_a_day_ago_for_readers_too() {
        let day = 24 * 3600 * 1_000_000;
        let free = view(None, None, None);
        assert!(matches!(
            acquire(&free, &reader(NOW - day)).0,
            Vote::Stale { .. }
        ));
        assert_eq!(acquire(&free, &reader(NOW)), share(NOW, NOW - day));
    }

    #[test]
    fn the_release_of_a_reader_raises_nothing() {
        let marker = marker();
        let shared = View {
            share: Some(TTL),
            ..view(Some(&marker), Some(NOW), Some(NOW - 5))
        };
        let (vote, write) = release(&shared, &reader(NOW), None);
        assert_eq!(vote, Vote::Released { held: true });
        assert_eq!(write, Write::Unshare { kept: None });
        let (_, write) = release(&shared, &reader(NOW), Some(TTL));
        let Write::Unshare {
            kept: Some((value, time)),
        } = write
        else {
            panic!("{write:?}");
        };
        assert!(value.starts_with(b"kept:") && time == TTL);
        let free = view(None, Some(NOW), Some(NOW - 5));
        let released = Vote::Released { held: false };
        assert_eq!(
            release(&free, &reader(NOW), None),
            (released, Write::Nothing)
        );
    }

    /// As an older version leaves it that hands the lock to the first in line.
    #[test]
    fn a_reader_that_was_granted_the_lock_alone_can_release_it() {
        let claim = reader(NOW);
        let alone = view(Some(claim.owner()), Some(NOW + 15), None);
        let released = Vote::Released { held: true };
        let deleted = (released, Write::Unlock { fence: None });
        assert_eq!(release(&alone, &claim, None), deleted);
        // Nothing tells that no writer came after it.
        assert!(!matches!(extend(&alone, &claim).0, Vote::Granted));
    }

    /// A downgrade: the exclusive claim's lock counts as none, and its token as a writer's.
    #[test]
    fn a_reader_replaces_the_writer_that_it_was() {
        let writer = new_owner(NOW, "");
        let downgraded = || reader(NOW + 15).replacing(writer.clone());
        let held = view(Some(&writer), Some(NOW), None);
        assert_eq!(extend(&held, &downgraded()), share(NOW + 15, NOW));
        // Also where the node has forgotten the fence, or never had the lock.
        for known in [None, Some(NOW - 9)] {
            let free = view(None, known, None);
            assert_eq!(extend(&free, &downgraded()), share(NOW + 15, NOW));
        }
        let other = new_owner(NOW + 16, "");
        let taken = view(Some(&other), Some(NOW + 16), None);
        assert!(matches!(extend(&taken, &downgraded()).0, Vote::Held { .. }));
        let newer = view(None, Some(NOW + 16), None);
        assert!(matches!(extend(&newer, &downgraded()).0, Vote::Lost { .. }));
    }
}
