//! Readers share the lock, writers do not, and tokens order every reader and writer that exclude
//! each other.
//!
//! Nodes vote by the library's own rules. A node keeps two fences: a writer's token must exceed
//! both, a reader's only that of the writers. Requests arrive at any time and any number of times.
//! Locks, shares and markers vanish at any moment, or, in a [`Scenario`] in which no lock expires,
//! once their claims have ended. Holders extend their leases, and nodes that lack a lease join it.
//! A writer downgrades to a reader. Nodes lose their memory.
//!
//! Tokens of claims are even, and the odd token above one is that of its downgrade: in the library,
//! the last of its block.

mod node;
mod scenarios;

use leasehold::Mode;
use leasehold::node::Verb;
use stateright::{Model, Property};

use crate::bits::{Bits, small};
use crate::fault::Fault;
use node::{Lock, Node, Rules};

const UNIQUE: &str = "no writer has the token of another writer or reader";
const GROWING: &str = "a later writer, or reader after a writer, has a larger token";
const EXCLUSIVE: &str = "a writer is alone while no lock expires";
const CONTINUOUS: &str = "no extension succeeds that began after a newer rival's acquisition";

const NODES: usize = 3;
const MAJORITY: usize = 2;

/// What may happen in a run of the model, with `A` attempts.
#[derive(Clone)]
struct Scenario<const A: usize> {
    modes: [Mode; A],
    /// Attempts pick tokens 2, 4, … up to twice this.
    tokens: u8,
    /// Whether the locks of holders may vanish. If not, holders must exclude each other, and only
    /// what claims that have ended left behind vanishes.
    locks_expire: bool,
    /// Holders may extend their lease, once each.
    extends: bool,
    /// Writers may downgrade.
    downgrades: bool,
    /// S, if nodes lose their memory; then their clocks run up to `clock_max`.
    skew: Option<u8>,
    clock_max: u8,
    /// How often some node restarts without its memory.
    restarts: u8,
    fault: Option<Fault>,
}

struct RwLock<const A: usize> {
    scenario: Scenario<A>,
    rules: Rules,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State<const A: usize> {
    nodes: [Node; NODES],
    attempts: [Attempt; A],
    /// The tokens with which writers have acquired the lock.
    written: Bits,
    /// The tokens with which readers have acquired it.
    read: Bits,
    restarts: u8,
    reused: bool,
    shrunk: bool,
    overtaken: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Attempt {
    phase: Phase,
    token: u8,
    /// At the start, an attempt that excludes this one had the same or a larger token.
    late: bool,
    extension: Extension,
    /// A downgrade was sent.
    downgraded: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    Idle,
    Asking,
    Holding,
    /// The exclusive lease has ended, and the shared one has not begun.
    Downgrading,
    /// The downgrade was confirmed.
    HoldingShared,
    Over,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Extension {
    #[default]
    None,
    /// EXTEND was sent.
    Asked {
        /// Before that, a rival had acquired the lock with a larger token.
        overtaken: bool,
    },
    Done,
    /// The attempt ended, but EXTEND may still be under way.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Start { attempt: u8, token: u8 },
    AcquireArrives { attempt: u8, node: u8 },
    Acquired { attempt: u8 },
    StartExtending { attempt: u8 },
    ExtendArrives { attempt: u8, node: u8 },
    Extended { attempt: u8 },
    StartDowngrading { attempt: u8 },
    DowngradeArrives { attempt: u8, node: u8 },
    Downgraded { attempt: u8 },
    End { attempt: u8 },
    ReleaseArrives { attempt: u8, node: u8 },
    LockExpires { node: u8 },
    ShareExpires { node: u8, owner: u8 },
    ClockTicks { node: u8 },
    Restarts { node: u8 },
}

impl<const A: usize> RwLock<A> {
    fn mode(&self, attempt: u8) -> Mode {
        self.scenario.modes[usize::from(attempt)]
    }

    fn majority(&self, attempt: u8) -> usize {
        match (self.mode(attempt), self.scenario.fault) {
            (Mode::Shared, Some(Fault::ReaderAsksOneNode)) => 1,
            _ => MAJORITY,
        }
    }

    /// Whether an earlier acquisition that excludes this mode had this token or a larger one.
    fn is_behind(state: &State<A>, mode: Mode, token: u8) -> bool {
        let rivals = match mode {
            Mode::Shared => [state.written, Bits::default()],
            _ => [state.written, state.read],
        };
        let newest = rivals.into_iter().filter_map(Bits::max).max();
        newest.is_some_and(|newest| token <= newest)
    }

    fn start(&self, state: &mut State<A>, attempt: u8, token: u8) {
        state.attempts[usize::from(attempt)] = Attempt {
            phase: Phase::Asking,
            token,
            late: Self::is_behind(state, self.mode(attempt), token),
            ..Attempt::default()
        };
    }

    /// A request of the attempt arrives, or of its downgrade. Returns whether the node grants it.
    fn ask(&self, state: &mut State<A>, verb: Verb, node: u8, (owner, token): (u8, u8)) -> bool {
        let tokens = state.attempts.map(|attempt| attempt.token);
        let node = &mut state.nodes[usize::from(node)];
        let token_of = |owner: u8| tokens[usize::from(owner)];
        self.rules.vote(verb, node, (owner, token), token_of)
    }

    fn acquire_arrives(&self, state: &mut State<A>, attempt: u8, node: u8) {
        let Attempt { phase, token, .. } = state.attempts[usize::from(attempt)];
        if self.ask(state, Verb::Acquire, node, (attempt, token)) && phase == Phase::Asking {
            state.nodes[usize::from(node)].granted.insert(attempt);
        }
    }

    fn acquired(&self, state: &mut State<A>, attempt: u8) {
        let mode = self.mode(attempt);
        let Attempt { token, late, .. } = state.attempts[usize::from(attempt)];
        state.reused |= state.written.contains(token);
        match mode {
            Mode::Shared => state.read.insert(token),
            _ => {
                state.reused |= state.read.contains(token);
                state.written.insert(token);
            }
        }
        state.shrunk |= late;
        state.attempts[usize::from(attempt)].phase = Phase::Holding;
        decided(state, attempt);
    }

    fn start_extending(&self, state: &mut State<A>, attempt: u8) {
        let Attempt { phase, token, .. } = state.attempts[usize::from(attempt)];
        let (mode, token) = match phase {
            Phase::HoldingShared => (Mode::Shared, token + 1),
            _ => (self.mode(attempt), token),
        };
        // Its own token is among them.
        let overtaken = Self::is_behind(state, mode, token + 1);
        state.attempts[usize::from(attempt)].extension = Extension::Asked { overtaken };
    }

    fn extend_arrives(&self, state: &mut State<A>, attempt: u8, node: u8) {
        let asking = state.attempts[usize::from(attempt)];
        let claim = match asking.downgraded {
            true => (self.rules.downgraded(attempt), asking.token + 1),
            false => (attempt, asking.token),
        };
        if self.ask(state, Verb::Extend, node, claim)
            && matches!(asking.extension, Extension::Asked { .. })
        {
            state.nodes[usize::from(node)].extended.insert(attempt);
        }
    }

    fn extended(state: &mut State<A>, attempt: u8) {
        let holder = &mut state.attempts[usize::from(attempt)];
        state.overtaken |= holder.extension == Extension::Asked { overtaken: true };
        holder.extension = Extension::Done;
        decided(state, attempt);
    }

    /// The exclusive lease ends before anything is sent.
    fn start_downgrading(state: &mut State<A>, attempt: u8) {
        let token = state.attempts[usize::from(attempt)].token + 1;
        let late = Self::is_behind(state, Mode::Shared, token);
        let holder = &mut state.attempts[usize::from(attempt)];
        (holder.phase, holder.downgraded) = (Phase::Downgrading, true);
        (holder.extension, holder.late) = (Extension::None, late);
        decided_keeping_late(state, attempt);
    }

    fn downgrade_arrives(&self, state: &mut State<A>, attempt: u8, node: u8) {
        let Attempt { phase, token, .. } = state.attempts[usize::from(attempt)];
        let claim = (self.rules.downgraded(attempt), token + 1);
        if self.ask(state, Verb::Extend, node, claim) && phase == Phase::Downgrading {
            state.nodes[usize::from(node)].granted.insert(attempt);
        }
    }

    fn downgraded(state: &mut State<A>, attempt: u8) {
        let Attempt { token, late, .. } = state.attempts[usize::from(attempt)];
        state.reused |= state.written.contains(token + 1);
        state.shrunk |= late;
        state.read.insert(token + 1);
        state.attempts[usize::from(attempt)].phase = Phase::HoldingShared;
        decided(state, attempt);
    }

    fn end(state: &mut State<A>, attempt: u8) {
        let ending = &mut state.attempts[usize::from(attempt)];
        ending.phase = Phase::Over;
        if ending.extension != Extension::None {
            ending.extension = Extension::Over;
        }
        decided(state, attempt);
    }

    /// Both claims of a downgrade are released.
    fn release_arrives(&self, state: &mut State<A>, attempt: u8, node: u8) {
        let Attempt {
            token, downgraded, ..
        } = state.attempts[usize::from(attempt)];
        let release = Verb::Release { keep: None };
        if downgraded {
            let claim = (self.rules.downgraded(attempt), token + 1);
            self.ask(state, release, node, claim);
        }
        self.ask(state, release, node, (attempt, token));
    }

    /// Rule: a node that lost its memory has a floor of `now + S`.
    fn restart(&self, state: &mut State<A>, node: u8) {
        let node = &mut state.nodes[usize::from(node)];
        *node = Node {
            clock: node.clock,
            floor: node.clock + self.scenario.skew.unwrap_or(0),
            granted: node.granted,
            extended: node.extended,
            ..Node::default()
        };
        state.restarts += 1;
    }

    fn take(&self, step: Step, state: &mut State<A>) {
        match step {
            Step::Start { attempt, token } => self.start(state, attempt, token),
            Step::AcquireArrives { attempt, node } => self.acquire_arrives(state, attempt, node),
            Step::Acquired { attempt } => self.acquired(state, attempt),
            Step::StartExtending { attempt } => self.start_extending(state, attempt),
            Step::ExtendArrives { attempt, node } => self.extend_arrives(state, attempt, node),
            Step::Extended { attempt } => Self::extended(state, attempt),
            Step::StartDowngrading { attempt } => Self::start_downgrading(state, attempt),
            Step::DowngradeArrives { attempt, node } => {
                self.downgrade_arrives(state, attempt, node);
            }
            Step::Downgraded { attempt } => Self::downgraded(state, attempt),
            Step::End { attempt } => Self::end(state, attempt),
            Step::ReleaseArrives { attempt, node } => self.release_arrives(state, attempt, node),
            Step::LockExpires { node } => self.rules.expire(&mut state.nodes[usize::from(node)]),
            Step::ShareExpires { node, owner } => {
                let node = &mut state.nodes[usize::from(node)];
                self.rules.expire_reader(node, owner);
            }
            Step::ClockTicks { node } => state.nodes[usize::from(node)].clock += 1,
            Step::Restarts { node } => self.restart(state, node),
        }
    }

    fn steps_of_attempt(&self, state: &State<A>, attempt: u8, steps: &mut Vec<Step>) {
        let Attempt {
            phase,
            extension,
            downgraded,
            ..
        } = state.attempts[usize::from(attempt)];
        let granted = state.nodes.iter().filter(|n| n.granted.contains(attempt));
        let extended = state.nodes.iter().filter(|n| n.extended.contains(attempt));
        let is_granted = granted.count() >= self.majority(attempt);
        match phase {
            Phase::Idle => {
                // Attempts of one mode are interchangeable, so they start in order.
                let before = usize::from(attempt).checked_sub(1);
                let same = before.filter(|b| self.scenario.modes[*b] == self.mode(attempt));
                if same.is_none_or(|b| state.attempts[b].phase != Phase::Idle) {
                    let tokens = (1..=self.scenario.tokens).map(|token| token * 2);
                    steps.extend(tokens.map(|token| Step::Start { attempt, token }));
                }
                return;
            }
            Phase::Asking if is_granted => steps.push(Step::Acquired { attempt }),
            Phase::Downgrading if is_granted => steps.push(Step::Downgraded { attempt }),
            Phase::Holding | Phase::HoldingShared => {
                if self.scenario.extends && extension == Extension::None {
                    steps.push(Step::StartExtending { attempt });
                }
                if extended.count() >= MAJORITY && matches!(extension, Extension::Asked { .. }) {
                    steps.push(Step::Extended { attempt });
                }
                let exclusive = self.mode(attempt) == Mode::Exclusive && !downgraded;
                if self.scenario.downgrades && exclusive {
                    steps.push(Step::StartDowngrading { attempt });
                }
            }
            _ => {}
        }
        if phase != Phase::Over {
            steps.push(Step::End { attempt });
        }
        for node in distinct(&state.nodes) {
            steps.push(Step::AcquireArrives { attempt, node });
            if extension != Extension::None {
                steps.push(Step::ExtendArrives { attempt, node });
            }
            if downgraded {
                steps.push(Step::DowngradeArrives { attempt, node });
            }
            if phase == Phase::Over {
                steps.push(Step::ReleaseArrives { attempt, node });
            }
        }
    }

    fn steps_of_node(&self, state: &State<A>, index: u8, steps: &mut Vec<Step>) {
        let node = &state.nodes[usize::from(index)];
        let may_expire = |owner: u8| {
            let attempt = state.attempts[usize::from(owner) % A];
            self.scenario.locks_expire || attempt.phase == Phase::Over
        };
        let readers = (0..small(2 * A)).filter(|owner| node.readers.contains(*owner));
        match node.lock {
            Lock::Owner(owner) if may_expire(owner) => {
                steps.push(Step::LockExpires { node: index });
            }
            Lock::Marker => {
                if readers.clone().all(may_expire) {
                    steps.push(Step::LockExpires { node: index });
                }
                let vanishing = readers.filter(|owner| may_expire(*owner));
                steps.extend(vanishing.map(|owner| Step::ShareExpires { node: index, owner }));
            }
            _ => {}
        }
        if node.clock < self.scenario.clock_max {
            steps.push(Step::ClockTicks { node: index });
        }
        if state.restarts < self.scenario.restarts {
            steps.push(Step::Restarts { node: index });
        }
    }

    /// Whether this attempt holds the lock, and in which mode.
    fn holds(&self, attempt: usize, state: &State<A>) -> Option<Mode> {
        let stays_exclusive = self.scenario.fault == Some(Fault::DowngradeStaysExclusive);
        match state.attempts[attempt].phase {
            Phase::Holding => Some(self.scenario.modes[attempt]),
            Phase::Downgrading if stays_exclusive => Some(Mode::Exclusive),
            Phase::HoldingShared => Some(Mode::Shared),
            _ => None,
        }
    }

    fn holding(&self, state: &State<A>, mode: Mode) -> usize {
        let holds = |attempt: &usize| self.holds(*attempt, state) == Some(mode);
        (0..A).filter(holds).count()
    }
}

/// Forgets what mattered only until the attempt was decided.
fn decided<const A: usize>(state: &mut State<A>, attempt: u8) {
    state.attempts[usize::from(attempt)].late = false;
    decided_keeping_late(state, attempt);
}

fn decided_keeping_late<const A: usize>(state: &mut State<A>, attempt: u8) {
    for node in &mut state.nodes {
        node.granted.remove(attempt);
        node.extended.remove(attempt);
    }
}

/// The indices of nodes that differ from one another. The nodes are sorted.
fn distinct(nodes: &[Node; NODES]) -> impl Iterator<Item = u8> {
    (0..NODES)
        .filter(|&i| i == 0 || nodes[i] != nodes[i - 1])
        .map(small)
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
            restarts: 0,
            reused: false,
            shrunk: false,
            overtaken: false,
        }]
    }

    fn actions(&self, state: &Self::State, steps: &mut Vec<Step>) {
        for attempt in 0..small(A) {
            self.steps_of_attempt(state, attempt, steps);
        }
        for node in distinct(&state.nodes) {
            self.steps_of_node(state, node, steps);
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
        if !self.scenario.locks_expire {
            properties.push(Property::<Self>::always(EXCLUSIVE, |m, s| {
                let (readers, writers) =
                    (m.holding(s, Mode::Shared), m.holding(s, Mode::Exclusive));
                writers == 0 || (writers == 1 && readers == 0)
            }));
        }
        if self.scenario.extends {
            properties.extend([
                Property::<Self>::always(CONTINUOUS, |_, s| !s.overtaken),
                Property::<Self>::sometimes("an extension", |_, s| {
                    let extended = |a: &Attempt| a.extension == Extension::Done;
                    s.attempts.iter().any(extended)
                }),
            ]);
        }
        if self.scenario.downgrades {
            properties.push(Property::<Self>::sometimes("a downgrade", |_, s| {
                let downgraded = |a: &Attempt| a.phase == Phase::HoldingShared;
                s.attempts.iter().any(downgraded)
            }));
        }
        if self.scenario.restarts > 0 {
            properties.push(Property::<Self>::sometimes(
                "a reader, a writer and all the restarts",
                |m, s| {
                    let both = !s.read.is_empty() && !s.written.is_empty();
                    both && s.restarts == m.scenario.restarts
                },
            ));
        }
        let readers = |mode: &&Mode| **mode == Mode::Shared;
        if self.scenario.modes.iter().filter(readers).count() >= 2 {
            properties.push(Property::<Self>::sometimes(
                "two readers at once",
                |m, s| m.holding(s, Mode::Shared) >= 2,
            ));
        }
        properties
    }
}
