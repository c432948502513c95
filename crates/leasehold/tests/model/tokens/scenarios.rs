//! With all the rules in place, nothing goes wrong.

use super::{Releases, Scenario};
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
    holds(forgetful::<2>(2).model());
}

#[test]
fn nodes_forget_and_no_skew_is_allowed() {
    let scenario = Scenario::<3, 2> {
        skew: Some(0),
        clock_max: 3,
        ..forgetful(2)
    };
    holds(scenario.model());
}

#[test]
fn a_node_returns_with_an_old_snapshot() {
    holds(snapshot::<2>().model());
}

#[test]
fn fences_expire() {
    holds(expiring_fences::<2>().model());
}

#[test]
fn fences_expire_and_a_node_forgets() {
    let scenario = Scenario::<3, 2> {
        retention: Some(1),
        clock_max: 3,
        ..forgetful(1)
    };
    holds(scenario.model());
}

#[test]
fn leases_are_extended() {
    holds(extending::<2>().model());
}

#[test]
fn leases_are_extended_and_a_node_returns_with_an_old_snapshot() {
    let scenario = Scenario::<3, 2> {
        extends: true,
        ..snapshot()
    };
    holds(scenario.model());
}

#[test]
fn a_resource_that_checks_tokens() {
    holds(resource::<2>().model());
}

// The same, larger.

#[test]
fn large_four_attempts() {
    holds_at_large(Scenario::<3, 4>::default().model());
}

#[test]
fn large_five_attempts_without_release() {
    let scenario = Scenario::<3, 5> {
        releases: Releases::Never,
        ..Scenario::default()
    };
    holds_at_large(scenario.model());
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
    holds_at_large(forgetful::<3>(3).model());
}

#[test]
fn large_a_node_returns_with_an_old_snapshot() {
    holds_at_large(snapshot::<3>().model());
}

#[test]
fn large_fences_expire() {
    holds_at_large(expiring_fences::<3>().model());
}

#[test]
fn large_fences_expire_and_a_node_forgets() {
    let scenario = Scenario::<3, 3> {
        retention: Some(1),
        clock_max: 3,
        ..forgetful(1)
    };
    holds_at_large(scenario.model());
}

#[test]
fn large_leases_are_extended() {
    holds_at_large(extending::<3>().model());
}

#[test]
fn large_leases_are_extended_and_nodes_forget() {
    let scenario = Scenario::<3, 3> {
        extends: true,
        releases: Releases::Never,
        ..forgetful(2)
    };
    holds_at_large(scenario.model());
}

#[test]
fn large_a_resource_that_checks_tokens() {
    holds_at_large(resource::<3>().model());
}

/// Requests that are late by any time, remembering what was released.
pub(super) fn watched_releases<const A: usize>() -> Scenario<3, A> {
    Scenario {
        // One token more than attempts: a release burns the one after its own.
        tokens: u8::try_from(A + 1).expect("attempts are few"),
        extends: true,
        releases: Releases::Watched,
        ..Scenario::default()
    }
}

/// Nodes that restart with nothing, in the middle of anything.
pub(super) fn forgetful<const A: usize>(restarts: u8) -> Scenario<3, A> {
    Scenario {
        tokens: 3,
        skew: Some(1),
        clock_max: 2,
        restarts,
        ..Scenario::default()
    }
}

/// A node that restarts with anything it ever knew.
pub(super) fn snapshot<const A: usize>() -> Scenario<3, A> {
    Scenario {
        snapshots: true,
        ..forgetful(1)
    }
}

/// Fences that vanish as soon as they may.
pub(super) fn expiring_fences<const A: usize>() -> Scenario<3, A> {
    Scenario {
        tokens: 3,
        retention: Some(1),
        clock_max: 3,
        ..Scenario::default()
    }
}

/// Holders that extend.
pub(super) fn extending<const A: usize>() -> Scenario<3, A> {
    Scenario {
        extends: true,
        ..Scenario::default()
    }
}

/// Holders that read the resource, think, and write it.
pub(super) fn resource<const A: usize>() -> Scenario<3, A> {
    Scenario {
        resource: true,
        ..Scenario::default()
    }
}
