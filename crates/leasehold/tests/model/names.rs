//! Several names at once: one request per node acquires all of them or none, with one token, and
//! each name's tokens are unique and grow.
//!
//! As in [`tokens`](crate::tokens) there is no time: requests arrive at any time and any number
//! of times, and locks vanish at any moment.

use stateright::{Model, Property};

use crate::bits::{Bits, small};
use crate::check::{breaks, changed, holds, holds_at_large};
use crate::fault::Fault;
use crate::node::{Ask, Record, Rules};

const UNIQUE: &str = "no two acquisitions of a name have the same token";
const GROWING: &str = "a later acquisition of a name has a larger token";

const NODES: usize = 3;
const MAJORITY: usize = 2;
const NAMES: usize = 2;

/// The names that an attempt acquires.
type Wanted = [bool; NAMES];
const BOTH: Wanted = [true, true];
const FIRST: Wanted = [true, false];
const SECOND: Wanted = [false, true];

struct Names<const A: usize> {
    wanted: [Wanted; A],
    tokens: u8,
    rules: Rules,
    fault: Option<Fault>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State<const A: usize> {
    nodes: [Node; NODES],
    attempts: [Attempt; A],
    /// For each name, the tokens of all its acquisitions.
    acquired: [Bits; NAMES],
    reused: bool,
    shrunk: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Node {
    records: [Record; NAMES],
    /// The attempts whose ACQUIRE it granted.
    granted: Bits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Attempt {
    Idle,
    Asking {
        token: u8,
        /// At the start, one of its names had been acquired with the same or a larger token.
        late: bool,
    },
    Holding {
        token: u8,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Start { attempt: u8, token: u8 },
    AcquireArrives { attempt: u8, node: u8 },
    Acquired { attempt: u8 },
    LockExpires { node: u8, name: u8 },
}

impl<const A: usize> Names<A> {
    fn new(wanted: [Wanted; A], fault: Option<Fault>) -> Self {
        let tokens = small(A);
        Self {
            wanted,
            tokens,
            rules: Rules::new(A, tokens).without(fault),
            fault,
        }
    }

    fn names(&self, attempt: u8) -> impl Iterator<Item = usize> {
        let wanted = self.wanted[usize::from(attempt)];
        (0..NAMES).filter(move |&name| wanted[name])
    }

    /// The node votes on each name separately, and stores the result only if all are granted.
    fn vote(&self, node: &mut Node, attempt: u8, token: u8) {
        let mut records = node.records;
        let mut granted = 0;
        for (nth, name) in self.names(attempt).enumerate() {
            let before = records[name];
            let yes = self
                .rules
                .vote(Ask::Acquire, &mut records[name], attempt, token);
            granted += usize::from(yes);
            if nth > 0 && self.fault == Some(Fault::OneFenceForAllNames) {
                records[name].fence = before.fence;
            }
        }
        let enough = match self.fault {
            Some(Fault::SomeNamesSuffice) => 1,
            _ => self.names(attempt).count(),
        };
        if granted >= enough {
            node.records = records;
            node.granted.insert(attempt);
        }
    }

    fn start(&self, state: &mut State<A>, attempt: u8, token: u8) {
        let mut newest = self
            .names(attempt)
            .filter_map(|name| state.acquired[name].max());
        let late = newest.any(|newest| token <= newest);
        state.attempts[usize::from(attempt)] = Attempt::Asking { token, late };
    }

    fn acquired(&self, state: &mut State<A>, attempt: u8) {
        let Attempt::Asking { token, late } = state.attempts[usize::from(attempt)] else {
            unreachable!("only an attempt that sent its requests can succeed");
        };
        state.shrunk |= late;
        for name in self.names(attempt) {
            state.reused |= state.acquired[name].contains(token);
            state.acquired[name].insert(token);
        }
        state.attempts[usize::from(attempt)] = Attempt::Holding { token };
    }

    fn take(&self, step: Step, state: &mut State<A>) {
        match step {
            Step::Start { attempt, token } => self.start(state, attempt, token),
            Step::AcquireArrives { attempt, node } => {
                if let Attempt::Asking { token, .. } | Attempt::Holding { token } =
                    state.attempts[usize::from(attempt)]
                {
                    self.vote(&mut state.nodes[usize::from(node)], attempt, token);
                }
            }
            Step::Acquired { attempt } => self.acquired(state, attempt),
            Step::LockExpires { node, name } => {
                let node = &mut state.nodes[usize::from(node)];
                self.rules.expire(&mut node.records[usize::from(name)]);
            }
        }
    }
}

impl<const A: usize> Model for Names<A> {
    type State = State<A>;
    type Action = Step;

    fn init_states(&self) -> Vec<Self::State> {
        vec![State {
            nodes: [Node::default(); NODES],
            attempts: [Attempt::Idle; A],
            acquired: [Bits::default(); NAMES],
            reused: false,
            shrunk: false,
        }]
    }

    fn actions(&self, state: &Self::State, steps: &mut Vec<Step>) {
        for (attempt, phase) in (0..).zip(&state.attempts) {
            let granted = |node: &&Node| node.granted.contains(attempt);
            match phase {
                Attempt::Idle => {
                    steps.extend((1..=self.tokens).map(|token| Step::Start { attempt, token }));
                    continue;
                }
                Attempt::Asking { .. }
                    if state.nodes.iter().filter(granted).count() >= MAJORITY =>
                {
                    steps.push(Step::Acquired { attempt });
                }
                _ => {}
            }
            let nodes = 0..small(NODES);
            steps.extend(nodes.map(|node| Step::AcquireArrives { attempt, node }));
        }
        for (node, Node { records, .. }) in (0..).zip(&state.nodes) {
            let locked = (0..)
                .zip(records)
                .filter(|(_, record)| record.lock.is_some());
            steps.extend(locked.map(|(name, _)| Step::LockExpires { node, name }));
        }
    }

    fn next_state(&self, before: &Self::State, step: Step) -> Option<Self::State> {
        let mut after = changed(before, |after| self.take(step, after))?;
        after.nodes.sort_unstable();
        Some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::<Self>::always(UNIQUE, |_, s| !s.reused),
            Property::<Self>::always(GROWING, |_, s| !s.shrunk),
            Property::<Self>::sometimes("each name is acquired twice", |_, s| {
                s.acquired.iter().all(|tokens| tokens.len() >= 2)
            }),
        ]
    }
}

#[test]
fn two_attempts_at_both_names() {
    holds(Names::new([BOTH, BOTH], None));
}

#[test]
fn large_overlapping_attempts() {
    holds_at_large(Names::new([BOTH, FIRST, SECOND], None));
}

#[test]
fn a_node_grants_all_names_or_none() {
    breaks(
        UNIQUE,
        Names::new([BOTH, FIRST], Some(Fault::SomeNamesSuffice)),
    );
}

#[test]
fn every_name_needs_its_own_fence() {
    breaks(
        GROWING,
        Names::new([BOTH, SECOND], Some(Fault::OneFenceForAllNames)),
    );
}
