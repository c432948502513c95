//! What is explored, and what breaks without each of the rules.

use leasehold::Mode::{self, Exclusive as Writer, Shared as Reader};

use super::node::Rules;
use super::{CONTINUOUS, EXCLUSIVE, GROWING, RwLock, Scenario};
use crate::bits::small;
use crate::check::{breaks, holds, holds_at_large};
use crate::fault::Fault;

impl<const A: usize> Scenario<A> {
    fn new(modes: [Mode; A]) -> Self {
        Self {
            modes,
            tokens: small(A),
            locks_expire: true,
            extends: false,
            downgrades: false,
            skew: None,
            clock_max: 0,
            restarts: 0,
            fault: None,
        }
    }

    /// No lock of a holder expires.
    fn alive(self) -> Self {
        Self {
            locks_expire: false,
            ..self
        }
    }

    fn extending(self) -> Self {
        Self {
            extends: true,
            ..self
        }
    }

    fn downgrading(self) -> Self {
        Self {
            downgrades: true,
            ..self
        }
    }

    /// A node loses its memory, and clocks run.
    fn forgetful(self) -> Self {
        Self {
            skew: Some(2),
            clock_max: 3,
            restarts: 1,
            ..self
        }
    }

    fn with_tokens(self, tokens: u8) -> Self {
        Self { tokens, ..self }
    }

    fn model(self) -> RwLock<A> {
        let highest = self.tokens * 2 + 1;
        RwLock {
            rules: Rules::new(&self.modes, highest, self.skew, self.fault),
            scenario: self,
        }
    }

    fn without(self, rule: Fault) -> RwLock<A> {
        let fault = Some(rule);
        Self { fault, ..self }.model()
    }
}

#[test]
fn a_writer_and_a_reader() {
    holds(Scenario::new([Writer, Reader]).model());
}

#[test]
fn a_writer_and_a_reader_exclude_each_other() {
    holds(Scenario::new([Writer, Reader]).alive().model());
}

#[test]
fn a_writer_and_a_reader_extend() {
    holds(Scenario::new([Writer, Reader]).extending().model());
}

#[test]
fn a_writer_downgrades_next_to_a_reader() {
    let scenario = Scenario::new([Writer, Reader]).downgrading();
    holds(scenario.clone().alive().model());
    holds(scenario.extending().model());
}

#[test]
fn a_writer_downgrades_next_to_a_writer() {
    let scenario = Scenario::new([Writer, Writer]).downgrading();
    holds(scenario.clone().alive().model());
}

#[test]
fn a_node_forgets_a_writer_or_a_reader() {
    holds(Scenario::new([Writer, Reader]).forgetful().model());
}

#[test]
fn large_a_writer_and_two_readers_exclude_each_other() {
    holds_at_large(Scenario::new([Writer, Reader, Reader]).alive().model());
}

#[test]
fn large_two_writers_and_a_reader_exclude_each_other() {
    holds_at_large(Scenario::new([Writer, Writer, Reader]).alive().model());
}

#[test]
fn large_a_writer_and_two_readers() {
    holds_at_large(Scenario::new([Writer, Reader, Reader]).model());
}

#[test]
fn large_a_writer_and_two_readers_extend() {
    let scenario = Scenario::new([Writer, Reader, Reader]).with_tokens(2);
    holds_at_large(scenario.extending().model());
}

#[test]
fn large_two_writers_and_a_reader() {
    holds_at_large(Scenario::new([Writer, Writer, Reader]).model());
}

#[test]
fn large_a_writer_downgrades_next_to_a_writer_and_a_reader() {
    let scenario = Scenario::new([Writer, Writer, Reader]).downgrading();
    holds_at_large(scenario.alive().with_tokens(2).model());
}

#[test]
fn large_a_node_forgets_while_a_writer_and_a_reader_extend() {
    let scenario = Scenario::new([Writer, Reader]).forgetful();
    holds_at_large(scenario.extending().downgrading().model());
}

#[test]
fn a_writer_must_obey_the_readers_fence() {
    let scenario = Scenario::new([Writer, Reader]);
    breaks(GROWING, scenario.without(Fault::WriterIgnoresReadFence));
}

#[test]
fn a_shared_grant_must_raise_the_fence() {
    let scenario = Scenario::new([Writer, Reader]);
    breaks(GROWING, scenario.without(Fault::ReaderLeavesFence));
}

#[test]
fn a_reader_must_obey_the_writers_fence() {
    let scenario = Scenario::new([Writer, Reader]);
    breaks(GROWING, scenario.without(Fault::ReaderIgnoresFence));
}

#[test]
fn an_exclusive_grant_must_remove_the_write_fence() {
    let scenario = Scenario::new([Writer, Reader, Reader]);
    breaks(GROWING, scenario.without(Fault::ExclusiveKeepsWriteFence));
}

#[test]
fn a_reader_must_not_join_after_a_newer_writer() {
    let scenario = Scenario::new([Writer, Reader]).extending();
    breaks(CONTINUOUS, scenario.without(Fault::ReaderJoinsAnyway));
}

#[test]
fn a_writer_must_not_join_after_a_newer_reader() {
    let scenario = Scenario::new([Writer, Reader]).extending();
    breaks(CONTINUOUS, scenario.without(Fault::WriterJoinsByWriteFence));
}

#[test]
fn readers_of_an_earlier_marker_must_not_count() {
    let scenario = Scenario::new([Writer, Writer, Reader]).alive();
    breaks(EXCLUSIVE, scenario.without(Fault::StaleReadersCount));
}

#[test]
fn a_writer_must_respect_a_marker() {
    let scenario = Scenario::new([Writer, Reader]).alive();
    breaks(EXCLUSIVE, scenario.without(Fault::WriterIgnoresMarker));
}

#[test]
fn a_downgrade_must_not_forget_that_it_was_a_writer() {
    let scenario = Scenario::new([Writer, Reader]).downgrading();
    breaks(GROWING, scenario.without(Fault::DowngradeForgetsWriter));
}

#[test]
fn the_exclusive_lease_must_end_before_a_downgrade() {
    let scenario = Scenario::new([Writer, Reader]).downgrading().alive();
    breaks(EXCLUSIVE, scenario.without(Fault::DowngradeStaysExclusive));
}

#[test]
fn readers_need_the_floor_of_a_node_that_lost_its_memory() {
    let scenario = Scenario::new([Writer, Reader]).forgetful();
    breaks(GROWING, scenario.without(Fault::NoFloorForReaders));
}

#[test]
fn a_reader_needs_a_majority_too() {
    let scenario = Scenario::new([Writer, Reader]).alive();
    breaks(EXCLUSIVE, scenario.without(Fault::ReaderAsksOneNode));
}
