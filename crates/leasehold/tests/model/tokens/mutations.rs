//! Without any one of the rules, a property is violated.

use super::scenarios::{
    brief, expiring_fences, extending, forgetful, promoted, resource, silent, snapshot,
    watched_releases,
};
use super::{
    CONTINUOUS, FENCE_IS_TOKEN, GROWING, NO_LOST_UPDATE, NO_ORPHAN, Scenario, Tokens, UNIQUE,
};
use crate::check::breaks;
use crate::fault::Fault;

fn without<const A: usize>(fault: Fault, scenario: Scenario<3, A>) -> Tokens<3, A> {
    Scenario {
        fault: Some(fault),
        ..scenario
    }
    .model()
}

#[test]
fn ties_must_lose() {
    breaks(UNIQUE, without::<2>(Fault::TiesWin, Scenario::default()));
}

#[test]
fn the_fence_must_outlive_the_lock() {
    breaks(
        GROWING,
        without::<2>(Fault::FenceDiesWithLock, Scenario::default()),
    );
}

#[test]
fn a_missing_fence_must_not_read_as_zero() {
    breaks(
        GROWING,
        without(Fault::MissingFenceIsZero, expiring_fences::<2>()),
    );
}

#[test]
fn extend_must_not_read_a_missing_fence_as_zero() {
    let scenario = Scenario {
        tokens: 2,
        extends: true,
        ..silent(expiring_fences::<2>())
    };
    breaks(CONTINUOUS, without(Fault::MissingFenceIsZero, scenario));
}

#[test]
fn the_fence_must_not_expire_early() {
    breaks(
        GROWING,
        without(Fault::FenceExpiresEarly, expiring_fences::<2>()),
    );
}

#[test]
fn extend_must_obey_the_fence() {
    breaks(
        CONTINUOUS,
        without(Fault::ExtendIgnoresFence, extending::<2>()),
    );
}

#[test]
fn release_must_raise_the_fence() {
    breaks(
        NO_ORPHAN,
        without(Fault::ReleaseLeavesFence, watched_releases::<2>()),
    );
}

#[test]
fn release_must_not_raise_the_fence_of_another() {
    let fault = Fault::ReleaseRaisesUnderLock;
    breaks(FENCE_IS_TOKEN, without(fault, watched_releases::<2>()));
}

#[test]
fn old_replies_must_not_count() {
    breaks(
        GROWING,
        without::<3>(Fault::CountsOldReplies, Scenario::default()),
    );
}

#[test]
fn nodes_are_counted_not_replies() {
    breaks(
        UNIQUE,
        without::<2>(Fault::CountsRepliesNotNodes, Scenario::default()),
    );
}

#[test]
fn a_turn_is_not_a_grant() {
    let fault = Fault::TurnCounts;
    breaks(UNIQUE, without::<2>(fault, Scenario::default()));
    breaks(GROWING, without::<2>(fault, Scenario::default()));
}

#[test]
fn a_floor_does_not_make_a_grant() {
    let scenario = silent(brief(promoted::<2>()));
    breaks(UNIQUE, without(Fault::FloorMakesGrant, scenario));
}

#[test]
fn half_of_the_nodes_is_not_a_majority() {
    let scenario = Scenario::<4, 2> {
        quorum: 2,
        ..Scenario::default()
    };
    breaks(UNIQUE, scenario.model());
}

#[test]
fn a_node_that_lost_its_memory_needs_a_floor() {
    breaks(UNIQUE, without(Fault::NoFloor, forgetful::<2>(1)));
    breaks(GROWING, without(Fault::NoFloor, forgetful::<2>(1)));
}

#[test]
fn a_promotion_is_another_memory() {
    let fault = Fault::PromotionIgnored;
    breaks(UNIQUE, without(fault, silent(promoted::<2>())));
    breaks(GROWING, without(fault, silent(promoted::<2>())));
}

#[test]
fn a_connection_must_be_verified() {
    let fault = Fault::NeverVerified;
    breaks(UNIQUE, without(fault, silent(promoted::<2>())));
    breaks(GROWING, without(fault, silent(promoted::<2>())));
}

#[test]
fn an_extension_needs_the_floor_of_a_node_that_lost_its_memory() {
    let scenario = Scenario {
        extends: true,
        ..silent(forgetful::<2>(1))
    };
    breaks(CONTINUOUS, without(Fault::NoFloor, scenario));
}

#[test]
fn the_floor_must_include_the_skew() {
    breaks(GROWING, without(Fault::FloorWithoutSkew, forgetful::<2>(1)));
}

#[test]
fn the_floor_needs_a_cap_on_tokens() {
    breaks(GROWING, without(Fault::NoCap, forgetful::<2>(1)));
}

/// The peers' present fences do not reflect a grant that is still on its way to a client.
#[test]
fn the_peers_fences_are_not_a_floor() {
    breaks(UNIQUE, without(Fault::FloorFromPeers, forgetful::<2>(1)));
    breaks(GROWING, without(Fault::FloorFromPeers, forgetful::<2>(1)));
}

#[test]
fn extend_must_obey_the_floor() {
    let scenario = Scenario {
        extends: true,
        ..silent(brief(snapshot::<2>()))
    };
    breaks(CONTINUOUS, without(Fault::ExtendIgnoresFloor, scenario));
}

/// No rule protects against this: it is the one assumption about a node that lost its memory.
#[test]
fn the_clock_of_a_node_must_not_go_back() {
    breaks(GROWING, without(Fault::ClockStepsBack, forgetful::<2>(1)));
}

#[test]
fn the_resource_must_check_reads_too() {
    breaks(
        NO_LOST_UPDATE,
        without(Fault::ResourceIgnoresReads, resource::<2>()),
    );
}

#[test]
fn the_resource_needs_unique_tokens() {
    breaks(NO_LOST_UPDATE, without(Fault::TiesWin, resource::<2>()));
}
