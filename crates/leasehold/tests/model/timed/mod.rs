//! At most one holder at a time, as long as clocks run at about the right speed.
//!
//! Time passes in ticks, and only ages are kept, so time has no end and there are still finitely
//! many states. A lock lives for its TTL on the node's clock, which may run fast. A client trusts
//! its lease for the validity on its own clock, which may run slow. A lock may also live longer
//! than it should, even for ever: that does not affect safety. Requests may be lost, late by any
//! time, repeated and reordered.
//!
//! Leases are extended without end, even after they have expired, which a client of the library
//! never does: the nodes alone must make it safe. A node that restarts has no floor here, for the
//! same reason: exclusion must come from the restart guard alone.

mod scenarios;
mod steps;

use stateright::{Model, Property};

use crate::bits::Bits;
use crate::check::changed;
use crate::fault::Fault;
use crate::node::{Record, Rules};

pub const EXCLUSIVE: &str = "at most one client trusts its lease";
pub const KEPT: &str = "while a majority keeps a result, no client has the lease";

const NODES: usize = 3;
const MAJORITY: usize = 2;

/// What may happen in a run of the model, with `A` attempts. Times are in ticks.
#[derive(Clone, Debug)]
pub struct Scenario<const A: usize> {
    /// Which client makes which attempt. A client's attempts are one after the other. A separate
    /// client for each attempt covers all cases, as long as owner values are not shared.
    pub clients: [u8; A],
    /// Attempts pick tokens from 1 to here.
    pub tokens: u8,
    pub ttl: u8,
    /// How much less than the TTL a lock may live, on a node whose clock is fast.
    pub node_error: u8,
    /// How much longer than the validity a client may trust its lease, if its clock is slow.
    pub client_error: u8,
    /// What a client subtracts from the TTL for both errors.
    pub drift: u8,
    /// Holders may extend their lease.
    pub extends: bool,
    /// Claims stand in line: the nodes keep their ACQUIRE until it can be granted. Clients may
    /// learn that no node has granted it yet, and may send it again.
    pub waits: bool,
    /// Holders may release their lease with a result, which the nodes keep for this long; 0: never.
    pub keep: u8,
    /// How often some node restarts with empty memory.
    pub restarts: u8,
    /// How long it does not vote after a restart.
    pub guard: u8,
    /// The rule that is removed.
    pub fault: Option<Fault>,
}

impl<const A: usize> Scenario<A> {
    pub fn model(self) -> Timed<A> {
        let rules = Rules::new(A, self.tokens).without(self.fault);
        Timed {
            scenario: self,
            rules,
        }
    }

    /// For how long, in real time, a client may trust a lease.
    fn trusted(&self) -> u8 {
        self.ttl - self.drift + self.client_error
    }

    /// For how long, in real time, a result counts at least: the clock of a node may be fast.
    fn counts(&self) -> u8 {
        self.keep.saturating_sub(self.node_error)
    }

    /// Rule: a new owner value for every attempt.
    fn owner(&self, attempt: u8) -> u8 {
        match self.fault {
            Some(Fault::OwnerPerClient) => self.clients[usize::from(attempt)],
            _ => attempt,
        }
    }
}

/// The model of a [`Scenario`].
pub struct Timed<const A: usize> {
    scenario: Scenario<A>,
    rules: Rules,
}

/// The whole state at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct State<const A: usize> {
    nodes: [Node; NODES],
    attempts: [Attempt; A],
    restarts: u8,
}

/// A node, and the replies it has sent, which are under way for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Node {
    record: Record,
    /// How long ago the lock was set or extended, up to the TTL.
    age: u8,
    /// How much longer it does not vote.
    guarded: u8,
    /// The attempts whose ACQUIRE it granted, while that can still matter.
    granted: Bits,
    /// The attempts whose present EXTEND it granted.
    extended: Bits,
    /// The attempts whose result it has confirmed, while that can still matter.
    stored: Bits,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Attempt {
    phase: Phase,
    token: u8,
    /// RELEASE was sent.
    released: bool,
    /// How much longer the client trusts the lease.
    trusted: u8,
    /// How long ago the present EXTEND was sent.
    extending: Option<u8>,
    extensions: Extensions,
    result: Sent,
}

/// A release with a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Sent {
    #[default]
    No,
    /// This long ago. It counts once a majority has confirmed it.
    Unconfirmed(u8),
    /// This long ago, and a majority has confirmed it.
    Counts(u8),
    /// So long ago that the period is over.
    Over,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    Idle,
    Asking {
        /// How long ago ACQUIRE was sent, or was known not to be granted yet, up to when that no
        /// longer matters.
        age: u8,
    },
    Holding,
    Over,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Extensions {
    #[default]
    None,
    /// EXTEND was sent, and may arrive at any time from now on.
    Sent,
    /// EXTEND was sent, and has succeeded.
    Succeeded,
}

/// One step of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Tick,
    Start { attempt: u8, token: u8 },
    AcquireArrives { attempt: u8, node: u8 },
    NotGrantedYet { attempt: u8 },
    AskAgain { attempt: u8 },
    Acquired { attempt: u8 },
    End { attempt: u8 },
    ReleaseArrives { attempt: u8, node: u8 },
    Keep { attempt: u8 },
    KeepArrives { attempt: u8, node: u8 },
    Stored { attempt: u8 },
    StartExtending { attempt: u8 },
    ExtendArrives { attempt: u8, node: u8 },
    EarlierExtendArrives { attempt: u8, node: u8 },
    Extended { attempt: u8 },
    GiveUpExtending { attempt: u8 },
    LockExpires { node: u8 },
    Restarts { node: u8 },
}

impl<const A: usize> Model for Timed<A> {
    type State = State<A>;
    type Action = Step;

    fn init_states(&self) -> Vec<Self::State> {
        vec![State {
            nodes: [Node::default(); NODES],
            attempts: [Attempt::default(); A],
            restarts: 0,
        }]
    }

    fn actions(&self, state: &Self::State, steps: &mut Vec<Step>) {
        steps.push(Step::Tick);
        for attempt in 0..A {
            self.steps_of_attempt(state, attempt, steps);
        }
        for node in state.distinct_nodes() {
            self.steps_of_node(state, node, steps);
        }
    }

    fn next_state(&self, before: &Self::State, step: Step) -> Option<Self::State> {
        let mut after = changed(before, |after| self.take(step, after))?;
        after.nodes.sort_unstable();
        Some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::<Self>::always(EXCLUSIVE, |_, s| s.holders().count() <= 1),
            Property::<Self>::sometimes("a lease lapsed, and another has it now", |_, s| {
                let lapsed = |a: &Attempt| a.phase == Phase::Holding && a.trusted == 0;
                s.attempts.iter().any(lapsed) && s.holders().count() > 0
            }),
        ];
        if self.scenario.extends {
            properties.push(Property::<Self>::sometimes(
                "a lease was extended, and another has it now",
                |_, s| {
                    let extended = |a: &Attempt| a.extensions == Extensions::Succeeded;
                    s.attempts.iter().any(extended) && s.holders().any(|holder| !extended(holder))
                },
            ));
        }
        if self.scenario.keep > 0 {
            properties.push(Property::<Self>::always(KEPT, |_, s| {
                let counts = |a: &Attempt| matches!(a.result, Sent::Counts(_));
                !s.attempts.iter().any(counts) || s.holders().count() == 0
            }));
            properties.push(Property::<Self>::sometimes(
                "a result counts, and another client asks for the lock",
                |_, s| {
                    let counts = |a: &Attempt| matches!(a.result, Sent::Counts(_));
                    let asks = |a: &Attempt| matches!(a.phase, Phase::Asking { .. });
                    s.attempts.iter().any(counts) && s.attempts.iter().any(asks)
                },
            ));
            properties.push(Property::<Self>::sometimes(
                "a period is over, and another client has the lease",
                |_, s| s.attempts.iter().any(|a| a.result == Sent::Over) && s.holders().count() > 0,
            ));
        }
        if self.scenario.waits {
            properties.push(Property::<Self>::sometimes(
                "a lease lapsed, and another has a whole one",
                |m, s| {
                    let lapsed = |a: &Attempt| a.phase == Phase::Holding && a.trusted == 0;
                    let fresh = |a: &Attempt| a.trusted == m.scenario.trusted();
                    s.attempts.iter().any(lapsed) && s.holders().any(fresh)
                },
            ));
        }
        if self.scenario.restarts > 0 {
            properties.push(Property::<Self>::sometimes(
                "a lease after all the restarts, when all nodes vote again",
                |m, s| {
                    s.restarts == m.scenario.restarts
                        && s.nodes.iter().all(|node| node.guarded == 0)
                        && s.holders().count() > 0
                },
            ));
        }
        properties
    }
}

impl<const A: usize> State<A> {
    /// The attempts whose client believes that it has the lease.
    fn holders(&self) -> impl Iterator<Item = &Attempt> {
        self.attempts.iter().filter(|attempt| attempt.trusted > 0)
    }

    /// Nodes are interchangeable and sorted: of equal ones, the first stands for all.
    fn distinct_nodes(&self) -> impl Iterator<Item = usize> {
        (0..NODES).filter(|&i| i == 0 || self.nodes[i] != self.nodes[i - 1])
    }
}
