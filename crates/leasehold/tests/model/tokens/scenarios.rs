//! With all rules in place, every property holds.

use super::{Releases, Scenario};
use crate::bits::small;
use crate::check::{holds, holds_at_large};

#[test]
fn three_nodes() {
    holds(Scenario::<3, 3>::default().model());
}

#[test]
fn four_nodes() {
    holds(Scenario::<4, 2>::default().model());
}

#[test]
fn five_nodes() {
    holds(Scenario::<5, 2>::default().model());
}

#[test]
fn a_late_request_loses_after_its_release() {
    holds(watched_releases::<2>().model());
}

#[test]
fn a_name_kept_after_its_release() {
    let scenario = Scenario::<3, 2> {
        tokens: 3,
        releases: Releases::Keeping,
        extends: true,
        ..Scenario::default()
    };
    holds(scenario.model());
}

#[test]
fn nodes_forget() {
    holds(silent(forgetful::<2>(2)).model());
}

#[test]
fn a_node_forgets_and_locks_are_released() {
    holds(brief(forgetful::<2>(1)).model());
}

#[test]
fn a_node_forgets_and_no_skew_is_allowed() {
    holds(no_skew(brief(forgetful::<2>(1))).model());
}

#[test]
fn a_node_returns_with_an_old_snapshot() {
    holds(silent(brief(snapshot::<2>())).model());
}

/// A server that was a replica for a while, without any connection that shows it.
#[test]
fn a_node_is_promoted_with_an_old_memory() {
    holds(silent(brief(promoted::<2>())).model());
}

#[test]
fn leases_are_extended_and_a_node_is_promoted_with_an_old_memory() {
    let scenario = Scenario {
        extends: true,
        ..promoted::<2>()
    };
    holds(silent(brief(scenario)).model());
}

#[test]
fn fences_expire() {
    let scenario = Scenario {
        tokens: 2,
        clock_max: 2,
        ..expiring_fences::<2>()
    };
    holds(scenario.model());
}

#[test]
fn fences_expire_and_a_node_forgets() {
    let scenario = Scenario {
        retention: Some(1),
        ..forgetful::<2>(1)
    };
    holds(silent(scenario).model());
}

#[test]
fn fences_expire_and_leases_are_extended() {
    let scenario = Scenario {
        tokens: 2,
        extends: true,
        ..expiring_fences::<2>()
    };
    holds(silent(scenario).model());
}

#[test]
fn leases_are_extended() {
    holds(extending::<2>().model());
}

#[test]
fn leases_are_extended_and_a_node_returns_with_an_old_snapshot() {
    let scenario = Scenario {
        extends: true,
        ..snapshot::<2>()
    };
    holds(silent(brief(scenario)).model());
}

#[test]
fn a_resource_that_checks_tokens() {
    holds(resource::<2>().model());
}

// The same models, larger.

#[test]
fn large_four_attempts() {
    holds_at_large(Scenario::<3, 4>::default().model());
}

#[test]
fn large_five_attempts() {
    holds_at_large(silent(Scenario::<3, 5>::default()).model());
}

#[test]
fn large_four_nodes() {
    holds_at_large(Scenario::<4, 3>::default().model());
}

#[test]
fn large_five_nodes() {
    holds_at_large(Scenario::<5, 3>::default().model());
}

#[test]
fn large_a_late_request_loses_after_its_release() {
    holds_at_large(watched_releases::<3>().model());
}

#[test]
fn large_nodes_forget() {
    holds_at_large(forgetful::<3>(2).model());
}

#[test]
fn large_nodes_forget_and_no_skew_is_allowed() {
    holds_at_large(no_skew(forgetful::<2>(2)).model());
}

#[test]
fn large_nodes_forget_three_times() {
    holds_at_large(silent(forgetful::<3>(3)).model());
}

#[test]
fn large_a_node_returns_with_an_old_snapshot() {
    holds_at_large(silent(snapshot::<3>()).model());
}

#[test]
fn large_fences_expire() {
    holds_at_large(expiring_fences::<3>().model());
}

#[test]
fn large_fences_expire_and_a_node_forgets() {
    let scenario = Scenario {
        retention: Some(1),
        clock_max: 3,
        ..forgetful::<2>(1)
    };
    holds_at_large(scenario.model());
}

#[test]
fn large_leases_are_extended() {
    holds_at_large(extending::<3>().model());
}

#[test]
fn large_leases_are_extended_and_nodes_forget() {
    let scenario = Scenario {
        extends: true,
        ..forgetful::<3>(2)
    };
    holds_at_large(silent(scenario).model());
}

/// All the rules together.
#[test]
fn large_leases_are_extended_and_a_node_returns_with_an_old_snapshot() {
    let scenario = Scenario {
        extends: true,
        ..snapshot::<2>()
    };
    holds_at_large(scenario.model());
}

#[test]
fn large_a_resource_that_checks_tokens() {
    holds_at_large(resource::<3>().model());
}

/// The same without RELEASE, which saves many states.
pub(super) fn silent<const N: usize, const A: usize>(scenario: Scenario<N, A>) -> Scenario<N, A> {
    Scenario {
        releases: Releases::Never,
        ..scenario
    }
}

/// The same for a shorter time, which saves many states.
pub(super) fn brief<const A: usize>(scenario: Scenario<3, A>) -> Scenario<3, A> {
    Scenario {
        tokens: 2,
        clock_max: 1,
        ..scenario
    }
}

/// The same with S = 0, so that clocks must advance further for the same tokens.
fn no_skew<const A: usize>(scenario: Scenario<3, A>) -> Scenario<3, A> {
    Scenario {
        skew: Some(0),
        clock_max: scenario.clock_max + 1,
        ..scenario
    }
}

/// Requests that are late by any time, recording what was released.
pub(super) fn watched_releases<const A: usize>() -> Scenario<3, A> {
    Scenario {
        // One token more than attempts: a release uses up the token after its own.
        tokens: small(A + 1),
        extends: true,
        releases: Releases::Watched,
        ..Scenario::default()
    }
}

/// Nodes that restart with empty memory, at any moment.
pub(super) fn forgetful<const A: usize>(restarts: u8) -> Scenario<3, A> {
    Scenario {
        tokens: 3,
        skew: Some(1),
        clock_max: 2,
        restarts,
        ..Scenario::default()
    }
}

/// A node that restarts with any earlier memory.
pub(super) fn snapshot<const A: usize>() -> Scenario<3, A> {
    Scenario {
        snapshots: true,
        ..forgetful(1)
    }
}

/// A node that continues with any earlier memory, without a restart.
pub(super) fn promoted<const A: usize>() -> Scenario<3, A> {
    Scenario {
        exchanges: true,
        ..snapshot()
    }
}

/// Fences that expire as soon as they may.
pub(super) fn expiring_fences<const A: usize>() -> Scenario<3, A> {
    Scenario {
        tokens: 3,
        retention: Some(1),
        clock_max: 3,
        ..Scenario::default()
    }
}

/// Holders that extend their leases.
pub(super) fn extending<const A: usize>() -> Scenario<3, A> {
    Scenario {
        extends: true,
        ..Scenario::default()
    }
}

/// Holders that read the resource, compute, and write it.
pub(super) fn resource<const A: usize>() -> Scenario<3, A> {
    Scenario {
        resource: true,
        ..Scenario::default()
    }
}
