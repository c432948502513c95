//! With all the rules in place there is one holder; without any one of them, two.

use super::{EXCLUSIVE, Scenario};
use crate::check::{breaks, holds, holds_at_large};
use crate::fault::Fault;

/// Clocks of nodes are up to a tick fast, and those of clients right.
fn good_clients<const A: usize>() -> Scenario<A> {
    Scenario {
        clients: std::array::from_fn(|attempt| [0, 1][attempt % 2]),
        tokens: u8::try_from(A).expect("attempts are few"),
        ttl: 3,
        node_error: 1,
        client_error: 0,
        drift: 1,
        extends: false,
        restarts: 0,
        guard: 0,
        fault: None,
    }
}

/// Clocks of nodes are up to a tick fast, and those of clients up to a tick slow.
fn slow_clients<const A: usize>() -> Scenario<A> {
    Scenario {
        ttl: 4,
        client_error: 1,
        drift: 2,
        ..good_clients()
    }
}

fn without<const A: usize>(fault: Fault, scenario: Scenario<A>) -> super::Timed<A> {
    Scenario {
        fault: Some(fault),
        ..scenario
    }
    .model()
}

#[test]
fn z_slow2() {
    holds(slow_clients::<2>().model());
}
#[test]
fn z_slow3() {
    holds(slow_clients::<3>().model());
}
#[test]
fn z_good3() {
    holds(good_clients::<3>().model());
}
#[test]
fn z_good2_ext() {
    holds(Scenario{ extends: true, ..good_clients::<2>()}.model());
}
#[test]
fn z_good2_ext_restart() {
    holds(Scenario{ extends: true, restarts:1, guard: 3,..good_clients::<2>()}.model());
}
#[test]
fn z_good2_restart2() {
    holds(Scenario{ restarts:2, guard: 3,..good_clients::<2>()}.model());
}
#[test]
fn z_good3_restart1() {
    holds(Scenario{ restarts:1, guard: 3,..good_clients::<3>()}.model());
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
    breaks(EXCLUSIVE, without(Fault::ValidityFromReply, slow_clients::<2>()));
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
fn after_its_release_an_attempt_cannot_succeed() {
    breaks(EXCLUSIVE, without(Fault::SucceedsAfterRelease, good_clients::<2>()));
}

#[test]
fn extensions_are_matched_to_their_request() {
    let scenario = Scenario {
        extends: true,
        ..good_clients::<2>()
    };
    breaks(EXCLUSIVE, without(Fault::CountsOldExtensions, scenario));
}

#[test]
fn a_node_that_forgot_must_not_vote_at_once() {
    let scenario = Scenario {
        restarts: 1,
        ..good_clients::<2>()
    };
    breaks(EXCLUSIVE, scenario.model());
}

#[test]
fn the_restart_guard_must_last_a_ttl() {
    let scenario = Scenario {
        restarts: 1,
        guard: 2,
        ..good_clients::<2>()
    };
    breaks(EXCLUSIVE, scenario.model());
}

/// No rule helps against this one; the token does.
#[test]
fn the_clock_of_a_node_must_not_jump() {
    breaks(EXCLUSIVE, without(Fault::ClockJumpsAhead, slow_clients::<2>()));
}
