//! With all rules in place there is one holder. Without any one of them, there can be two.

use super::{EXCLUSIVE, KEPT, Scenario, Timed};
use crate::bits::small;
use crate::check::{breaks, holds, holds_at_large};
use crate::fault::Fault;

/// The clocks of nodes are up to a tick fast, and those of clients are right.
fn good_clients<const A: usize>() -> Scenario<A> {
    Scenario {
        clients: std::array::from_fn(small),
        tokens: small(A),
        ttl: 3,
        node_error: 1,
        client_error: 0,
        drift: 1,
        extends: false,
        waits: false,
        keep: 0,
        restarts: 0,
        guard: 0,
        fault: None,
    }
}

/// The clocks of nodes are up to a tick fast, and those of clients up to a tick slow.
fn slow_clients<const A: usize>() -> Scenario<A> {
    Scenario {
        ttl: 4,
        client_error: 1,
        drift: 2,
        ..good_clients()
    }
}

fn without<const A: usize>(fault: Fault, scenario: Scenario<A>) -> Timed<A> {
    Scenario {
        fault: Some(fault),
        ..scenario
    }
    .model()
}

/// All clocks are right, and leases are short, which saves many states.
fn good_clocks<const A: usize>() -> Scenario<A> {
    Scenario {
        ttl: 1,
        node_error: 0,
        drift: 0,
        ..good_clients()
    }
}

/// Holders extend their leases.
fn extending<const A: usize>() -> Scenario<A> {
    Scenario {
        extends: true,
        ..good_clients()
    }
}

/// Claims stand in line.
fn waiting<const A: usize>(scenario: Scenario<A>) -> Scenario<A> {
    Scenario {
        waits: true,
        ..scenario
    }
}

/// Holders release their leases with results.
fn keeping<const A: usize>(scenario: Scenario<A>) -> Scenario<A> {
    Scenario {
        keep: 3,
        ..scenario
    }
}

/// Nodes restart with empty memory, and do not vote for a TTL.
fn guarded<const A: usize>(restarts: u8) -> Scenario<A> {
    Scenario {
        restarts,
        guard: 3,
        ..good_clients()
    }
}

/// The same with more tokens than attempts: a release uses up the token after its own.
fn more_tokens<const A: usize>(scenario: Scenario<A>) -> Scenario<A> {
    Scenario {
        tokens: scenario.tokens + 1,
        ..scenario
    }
}

#[test]
fn one_holder_with_clocks_that_are_about_right() {
    holds(more_tokens(slow_clients::<2>()).model());
}

#[test]
fn one_holder_of_three_attempts() {
    holds(good_clocks::<3>().model());
}

#[test]
fn one_holder_though_leases_are_extended() {
    holds(extending::<2>().model());
}

#[test]
fn one_holder_though_locks_are_handed_over() {
    holds(waiting(slow_clients::<2>()).model());
}

#[test]
fn one_holder_though_locks_are_handed_over_and_a_node_loses_its_memory() {
    holds(waiting(guarded::<2>(1)).model());
}

#[test]
fn nobody_acquires_while_a_majority_keeps_a_result() {
    holds(more_tokens(keeping(good_clients::<2>())).model());
    holds(keeping(waiting(good_clients::<2>())).model());
}

#[test]
fn nobody_acquires_while_a_majority_keeps_a_result_of_a_lease_that_was_extended() {
    holds(keeping(extending::<2>()).model());
}

#[test]
fn a_majority_must_keep_a_result() {
    breaks(
        KEPT,
        without(Fault::ResultOfOneNode, keeping(good_clients::<2>())),
    );
}

#[test]
fn one_holder_though_a_node_loses_its_memory() {
    holds(more_tokens(guarded::<2>(1)).model());
}

#[test]
fn large_three_attempts() {
    holds_at_large(slow_clients::<3>().model());
}

#[test]
fn large_leases_are_extended() {
    holds_at_large(more_tokens(extending::<2>()).model());
}

#[test]
fn large_three_attempts_are_extended() {
    holds_at_large(extending::<3>().model());
}

#[test]
fn large_nodes_forget() {
    holds_at_large(guarded::<3>(2).model());
}

#[test]
fn large_leases_are_extended_and_nodes_forget() {
    let scenario = Scenario {
        extends: true,
        ..guarded::<2>(2)
    };
    holds_at_large(more_tokens(scenario).model());
}

#[test]
fn the_drift_must_cover_both_clocks() {
    let scenario = Scenario {
        drift: 1,
        ..slow_clients::<2>()
    };
    breaks(EXCLUSIVE, scenario.model());
}

#[test]
fn validity_counts_from_before_the_send() {
    breaks(
        EXCLUSIVE,
        without(Fault::ValidityFromReply, slow_clients::<2>()),
    );
}

#[test]
fn a_lock_handed_over_counts_from_when_it_was_not_granted_yet() {
    breaks(
        EXCLUSIVE,
        without(Fault::ValidityFromReply, waiting(good_clients::<2>())),
    );
}

#[test]
fn an_acquire_of_a_lock_handed_over_gets_a_whole_ttl() {
    breaks(
        EXCLUSIVE,
        without(Fault::AgainKeepsTtl, waiting(good_clients::<2>())),
    );
}

#[test]
fn every_attempt_needs_its_own_owner_value() {
    let scenario = Scenario {
        clients: [0, 0, 1],
        ..good_clients::<3>()
    };
    breaks(EXCLUSIVE, without(Fault::OwnerPerClient, scenario));
}

#[test]
fn release_must_leave_the_lock_of_another() {
    breaks(
        EXCLUSIVE,
        without(Fault::ReleaseIgnoresOwner, good_clocks::<3>()),
    );
}

#[test]
fn after_its_release_an_attempt_cannot_succeed() {
    breaks(
        EXCLUSIVE,
        without(
            Fault::SucceedsAfterRelease,
            more_tokens(good_clients::<2>()),
        ),
    );
}

#[test]
fn extensions_are_matched_to_their_request() {
    breaks(
        EXCLUSIVE,
        without(Fault::CountsOldExtensions, extending::<2>()),
    );
}

#[test]
fn a_node_that_forgot_must_not_vote_at_once() {
    let scenario = Scenario {
        guard: 0,
        ..guarded::<2>(1)
    };
    breaks(EXCLUSIVE, scenario.model());
}

#[test]
fn the_restart_guard_must_last_a_ttl() {
    let scenario = Scenario {
        guard: 2,
        ..guarded::<2>(1)
    };
    breaks(EXCLUSIVE, scenario.model());
}

/// No rule protects against this. Only the token does.
#[test]
fn the_clock_of_a_node_must_not_jump() {
    breaks(
        EXCLUSIVE,
        without(Fault::ClockJumpsAhead, slow_clients::<2>()),
    );
}
