//! Readers share the lock, writers do not, and tokens order every reader and writer that exclude
//! each other.
//!
//! A node keeps two fences. A writer's token must exceed both, a reader's only that of the
//! writers. Both need a majority, so that every majority of a reader overlaps with every majority
//! of a writer. Each vote is decided by the rule of ACQUIRE, which sees the locks and fences that
//! conflict with the claim. Requests arrive at any time and any number of times.

use stateright::{Model, Property};

use crate::bits::{Bits, small};
use crate::check::{breaks, holds, holds_at_large};
use crate::fault::Fault;
use crate::node::{Ask, Record, Rules};

const UNIQUE: &str = "no writer has the token of another writer or reader";
const GROWING: &str = "a later writer, or reader after a writer, has a larger token";
const EXCLUSIVE: &str = "a writer is alone while no lock expires";

const NODES: usize = 3;
const MAJORITY: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reader,
    Writer,
}
use Kind::{Reader, Writer};

struct RwLock<const A: usize> {
    kinds: [Kind; A],
    tokens: u8,
    /// Whether locks may vanish at any moment. If not, holders must exclude each other.
    locks_expire: bool,
    rules: Rules,
    fault: Option<Fault>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State<const A: usize> {
    nodes: [Node; NODES],
    attempts: [Attempt; A],
    /// The tokens with which writers have acquired the lock.
    written: Bits,
    /// The tokens with which readers have acquired it.
    read: Bits,
    reused: bool,
    shrunk: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Node {
    writer: Option<u8>,
    readers: Bits,
    write_fence: Option<u8>,
    read_fence: Option<u8>,
    /// The attempts whose ACQUIRE it granted, while that can still matter.
    granted: Bits,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Attempt {
    phase: Phase,
    token: u8,
    /// At the start, an attempt that excludes this one had the same or a larger token.
    late: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    Idle,
    Asking,
    Holding,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Start { attempt: u8, token: u8 },
    AcquireArrives { attempt: u8, node: u8 },
    Acquired { attempt: u8 },
    End { attempt: u8 },
    ReleaseArrives { attempt: u8, node: u8 },
    LockExpires { attempt: u8, node: u8 },
}

impl Node {
    /// The locks and fences that conflict with a new lock of this kind.
    fn obstacles(&self, kind: Kind, fault: Option<Fault>) -> Record {
        let (lock, fence) = match kind {
            Reader if fault == Some(Fault::ReaderIgnoresFence) => (self.writer, None),
            Reader => (self.writer, self.write_fence),
            Writer if fault == Some(Fault::WriterIgnoresReadFence) => {
                (self.writer.or(self.readers.max()), self.write_fence)
            }
            Writer => (
                self.writer.or(self.readers.max()),
                self.write_fence.max(self.read_fence),
            ),
        };
        Record {
            lock,
            fence,
            ..Record::default()
        }
    }

    fn lock(&mut self, kind: Kind, attempt: u8, token: u8) {
        match kind {
            Reader => {
                self.readers.insert(attempt);
                self.read_fence = self.read_fence.max(Some(token));
            }
            Writer => {
                self.writer = Some(attempt);
                self.write_fence = Some(token);
            }
        }
    }

    fn unlock(&mut self, attempt: u8) {
        self.readers.remove(attempt);
        self.writer.take_if(|owner| *owner == attempt);
    }

    fn is_locked_by(&self, attempt: u8) -> bool {
        self.readers.contains(attempt) || self.writer == Some(attempt)
    }
}

impl<const A: usize> RwLock<A> {
    fn new(kinds: [Kind; A], fault: Option<Fault>) -> Self {
        let tokens = small(A);
        Self {
            kinds,
            tokens,
            locks_expire: true,
            rules: Rules::new(A, tokens).without(fault),
            fault,
        }
    }

    /// The same, but no lock expires.
    fn alive(self) -> Self {
        Self {
            locks_expire: false,
            ..self
        }
    }

    fn kind(&self, attempt: u8) -> Kind {
        self.kinds[usize::from(attempt)]
    }

    fn majority(&self, attempt: u8) -> usize {
        match (self.kind(attempt), self.fault) {
            (Reader, Some(Fault::ReaderAsksOneNode)) => 1,
            _ => MAJORITY,
        }
    }

    /// The tokens of all claims that this kind excludes.
    fn excluded(&self, state: &State<A>, kind: Kind) -> [Bits; 2] {
        match kind {
            Reader => [state.written, Bits::default()],
            Writer => [state.written, state.read],
        }
    }

    fn start(&self, state: &mut State<A>, attempt: u8, token: u8) {
        let excluded = self.excluded(state, self.kind(attempt));
        let newest = excluded.into_iter().filter_map(Bits::max).max();
        state.attempts[usize::from(attempt)] = Attempt {
            phase: Phase::Asking,
            token,
            late: newest.is_some_and(|newest| token <= newest),
        };
    }

    fn vote(&self, state: &mut State<A>, attempt: u8, node: u8) {
        let Attempt { phase, token, .. } = state.attempts[usize::from(attempt)];
        let node = &mut state.nodes[usize::from(node)];
        let kind = self.kind(attempt);
        let mut obstacles = node.obstacles(kind, self.fault);
        if self
            .rules
            .vote(Ask::Acquire, &mut obstacles, attempt, token)
        {
            node.lock(kind, attempt, token);
            if phase == Phase::Asking {
                node.granted.insert(attempt);
            }
        }
    }

    fn acquired(&self, state: &mut State<A>, attempt: u8) {
        let kind = self.kind(attempt);
        let excluded = self.excluded(state, kind);
        let acquiring = &mut state.attempts[usize::from(attempt)];
        state.reused |= excluded
            .iter()
            .any(|tokens| tokens.contains(acquiring.token));
        state.shrunk |= acquiring.late;
        match kind {
            Reader => state.read.insert(acquiring.token),
            Writer => state.written.insert(acquiring.token),
        }
        acquiring.phase = Phase::Holding;
        settle(state, attempt);
    }

    fn take(&self, step: Step, state: &mut State<A>) {
        match step {
            Step::Start { attempt, token } => self.start(state, attempt, token),
            Step::AcquireArrives { attempt, node } => self.vote(state, attempt, node),
            Step::Acquired { attempt } => self.acquired(state, attempt),
            Step::End { attempt } => {
                state.attempts[usize::from(attempt)].phase = Phase::Over;
                settle(state, attempt);
            }
            Step::ReleaseArrives { attempt, node } | Step::LockExpires { attempt, node } => {
                state.nodes[usize::from(node)].unlock(attempt);
            }
        }
    }

    fn steps(&self, state: &State<A>, attempt: u8, steps: &mut Vec<Step>) {
        let phase = state.attempts[usize::from(attempt)].phase;
        let granted = |node: &&Node| node.granted.contains(attempt);
        match phase {
            Phase::Idle => {
                steps.extend((1..=self.tokens).map(|token| Step::Start { attempt, token }));
                return;
            }
            Phase::Asking
                if state.nodes.iter().filter(granted).count() >= self.majority(attempt) =>
            {
                steps.push(Step::Acquired { attempt });
            }
            _ => {}
        }
        if phase != Phase::Over {
            steps.push(Step::End { attempt });
        }
        for (node, it) in (0..).zip(&state.nodes) {
            steps.push(Step::AcquireArrives { attempt, node });
            if !it.is_locked_by(attempt) {
                continue;
            }
            if phase == Phase::Over {
                steps.push(Step::ReleaseArrives { attempt, node });
            } else if self.locks_expire {
                steps.push(Step::LockExpires { attempt, node });
            }
        }
    }

    fn holding(&self, state: &State<A>, kind: Kind) -> usize {
        let attempts = self.kinds.iter().zip(&state.attempts);
        attempts
            .filter(|(k, attempt)| **k == kind && attempt.phase == Phase::Holding)
            .count()
    }
}

/// Forgets what mattered only until the attempt was decided.
fn settle<const A: usize>(state: &mut State<A>, attempt: u8) {
    state.attempts[usize::from(attempt)].late = false;
    for node in &mut state.nodes {
        node.granted.remove(attempt);
    }
}

impl<const A: usize> Model for RwLock<A> {
    type State = State<A>;
    type Action = Step;

    fn init_states(&self) -> Vec<Self::State> {
        vec![State {
            nodes: [Node::default(); NODES],
            attempts: [Attempt::default(); A],
            written: Bits::default(),
            read: Bits::default(),
            reused: false,
            shrunk: false,
        }]
    }

    fn actions(&self, state: &Self::State, steps: &mut Vec<Step>) {
        for attempt in 0..small(A) {
            self.steps(state, attempt, steps);
        }
    }

    fn next_state(&self, before: &Self::State, step: Step) -> Option<Self::State> {
        let mut after = *before;
        self.take(step, &mut after);
        if after == *before {
            return None;
        }
        after.nodes.sort_unstable();
        Some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::<Self>::always(UNIQUE, |_, s| !s.reused),
            Property::<Self>::always(GROWING, |_, s| !s.shrunk),
            Property::<Self>::sometimes("a reader and a writer", |_, s| {
                !s.read.is_empty() && !s.written.is_empty()
            }),
        ];
        if !self.locks_expire {
            properties.push(Property::<Self>::always(EXCLUSIVE, |m, s| {
                let (readers, writers) = (m.holding(s, Reader), m.holding(s, Writer));
                writers == 0 || (writers == 1 && readers == 0)
            }));
        }
        if self.kinds.iter().filter(|kind| **kind == Reader).count() >= 2 {
            properties.push(Property::<Self>::sometimes(
                "two readers at once",
                |m, s| m.holding(s, Reader) >= 2,
            ));
        }
        properties
    }
}

#[test]
fn a_writer_and_a_reader() {
    holds(RwLock::new([Writer, Reader], None));
}

#[test]
fn a_writer_and_two_readers_exclude_each_other() {
    holds(RwLock::new([Writer, Reader, Reader], None).alive());
}

#[test]
fn large_a_writer_and_two_readers() {
    holds_at_large(RwLock::new([Writer, Reader, Reader], None));
}

#[test]
fn large_two_writers_and_a_reader() {
    holds_at_large(RwLock::new([Writer, Writer, Reader], None));
}

#[test]
fn a_writer_must_obey_the_readers_fence() {
    let fault = Some(Fault::WriterIgnoresReadFence);
    breaks(GROWING, RwLock::new([Writer, Reader], fault));
}

#[test]
fn a_reader_must_obey_the_writers_fence() {
    let fault = Some(Fault::ReaderIgnoresFence);
    breaks(GROWING, RwLock::new([Writer, Reader], fault));
}

#[test]
fn a_reader_needs_a_majority_too() {
    let fault = Some(Fault::ReaderAsksOneNode);
    breaks(EXCLUSIVE, RwLock::new([Writer, Reader], fault).alive());
}
