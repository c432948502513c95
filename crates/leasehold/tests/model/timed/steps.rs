//! The possible steps in a state, and their effects.

use super::{Attempt, Extensions, MAJORITY, Node, Phase, State, Step, Timed};
use crate::bits::{Bits, small};
use crate::fault::Fault;
use crate::node::{Ask, Record};

/// The steps that are possible.
impl<const A: usize> Timed<A> {
    pub(super) fn steps_of_attempt(&self, state: &State<A>, index: usize, steps: &mut Vec<Step>) {
        let attempt = small(index);
        let Attempt {
            phase,
            released,
            extending,
            extensions,
            ..
        } = state.attempts[index];
        match phase {
            Phase::Idle => return self.starts(state, index, steps),
            Phase::Asking { age } => {
                let agreed = state.count(|node| node.granted, attempt);
                if agreed >= MAJORITY && age < self.scenario.trusted() {
                    steps.push(Step::Acquired { attempt });
                }
                if self.scenario.waits && age > 0 {
                    steps.push(Step::AskAgain { attempt });
                    let owner = Some(self.scenario.owner(attempt));
                    if state.nodes.iter().all(|node| node.record.lock != owner) && agreed == 0 {
                        steps.push(Step::NotGrantedYet { attempt });
                    }
                }
            }
            Phase::Holding if self.scenario.extends => self.extends(state, index, steps),
            Phase::Holding | Phase::Over => {}
        }
        if !released {
            steps.push(Step::End { attempt });
        }
        for node in state.distinct_nodes().map(small) {
            steps.push(Step::AcquireArrives { attempt, node });
            if released {
                steps.push(Step::ReleaseArrives { attempt, node });
            }
            if extending.is_some() {
                steps.push(Step::ExtendArrives { attempt, node });
            }
            if extensions != Extensions::None {
                steps.push(Step::EarlierExtendArrives { attempt, node });
            }
        }
    }

    fn starts(&self, state: &State<A>, index: usize, steps: &mut Vec<Step>) {
        // Attempts are interchangeable, so they start in order.
        let in_order = index == 0 || state.attempts[index - 1].phase != Phase::Idle;
        let client = self.scenario.clients[index];
        let previous = (0..index).rfind(|&other| self.scenario.clients[other] == client);
        if in_order && previous.is_none_or(|other| state.attempts[other].released) {
            let attempt = small(index);
            steps.extend((1..=self.scenario.tokens).map(|token| Step::Start { attempt, token }));
        }
    }

    fn extends(&self, state: &State<A>, index: usize, steps: &mut Vec<Step>) {
        let attempt = small(index);
        match state.attempts[index].extending {
            None => steps.push(Step::StartExtending { attempt }),
            Some(age) => {
                let agreed = state.count(|node| node.extended, attempt);
                if agreed >= MAJORITY && age < self.scenario.trusted() {
                    steps.push(Step::Extended { attempt });
                }
                steps.push(Step::GiveUpExtending { attempt });
            }
        }
    }

    pub(super) fn steps_of_node(&self, state: &State<A>, index: usize, steps: &mut Vec<Step>) {
        let node = small(index);
        let Node { record, age, .. } = state.nodes[index];
        let due = age >= self.scenario.ttl - self.scenario.node_error
            || self.scenario.fault == Some(Fault::ClockJumpsAhead);
        if record.lock.is_some() && due {
            steps.push(Step::LockExpires { node });
        }
        if state.restarts < self.scenario.restarts {
            steps.push(Step::Restarts { node });
        }
    }
}

impl<const A: usize> State<A> {
    /// The number of nodes with a reply to `attempt` among `replies`.
    fn count(&self, replies: impl Fn(&Node) -> Bits, attempt: u8) -> usize {
        let nodes = self.nodes.iter();
        nodes.filter(|node| replies(node).contains(attempt)).count()
    }
}

/// The effects of the steps.
impl<const A: usize> Timed<A> {
    pub(super) fn take(&self, step: Step, state: &mut State<A>) {
        match step {
            Step::Tick => self.tick(state),
            Step::Start { attempt, token } => {
                let starting = &mut state.attempts[usize::from(attempt)];
                starting.phase = Phase::Asking { age: 0 };
                starting.token = token;
            }
            Step::AcquireArrives { attempt, node } => self.acquire(state, attempt, node),
            // Rule: a lease that is handed over counts from the last moment at which it was known
            // not to be granted.
            Step::NotGrantedYet { attempt } => {
                state.attempts[usize::from(attempt)].phase = Phase::Asking { age: 0 };
            }
            // Only grants from now on count.
            Step::AskAgain { attempt } => {
                state.attempts[usize::from(attempt)].phase = Phase::Asking { age: 0 };
                forget_grants(state, attempt);
            }
            Step::Acquired { attempt } => self.acquired(state, attempt),
            Step::End { attempt } => self.end(state, attempt),
            Step::ReleaseArrives { attempt, node } => {
                self.ask(Ask::Release, state, attempt, node);
            }
            Step::StartExtending { attempt } => self.start_extending(state, attempt),
            Step::ExtendArrives { attempt, node } => {
                if self.ask(Ask::Extend, state, attempt, node) {
                    state.nodes[usize::from(node)].extended.insert(attempt);
                }
            }
            // It extends the lock, but its reply no longer matters.
            Step::EarlierExtendArrives { attempt, node } => {
                self.ask(Ask::Extend, state, attempt, node);
            }
            Step::Extended { attempt } => self.extended(state, attempt),
            Step::GiveUpExtending { attempt } => {
                state.attempts[usize::from(attempt)].extending = None;
                self.forget_extensions(state, attempt);
            }
            Step::LockExpires { node } => {
                let node = &mut state.nodes[usize::from(node)];
                self.rules.expire(&mut node.record);
                node.age = 0;
            }
            Step::Restarts { node } => self.restart(state, node),
        }
    }

    fn tick(&self, state: &mut State<A>) {
        for node in &mut state.nodes {
            if node.record.lock.is_some() {
                node.age = (node.age + 1).min(self.scenario.ttl);
            }
            node.guarded = node.guarded.saturating_sub(1);
        }
        let useless = self.scenario.trusted();
        for attempt in &mut state.attempts {
            attempt.trusted = attempt.trusted.saturating_sub(1);
            if let Phase::Asking { age } = &mut attempt.phase {
                *age = (*age + 1).min(useless);
            }
            attempt.extending = attempt.extending.map(|age| (age + 1).min(useless));
        }
    }

    /// Lets a node vote, unless its restart guard is active. Returns whether it granted the
    /// claim.
    fn ask(&self, ask: Ask, state: &mut State<A>, attempt: u8, node: u8) -> bool {
        let token = state.attempts[usize::from(attempt)].token;
        let node = &mut state.nodes[usize::from(node)];
        if node.guarded > 0 {
            return false;
        }
        let owner = self.scenario.owner(attempt);
        let had = node.record.lock;
        let granted = self.rules.vote(ask, &mut node.record, owner, token);
        let again = ask == Ask::Acquire && node.record.lock == had;
        let keeps = again && self.scenario.fault == Some(Fault::AgainKeepsTtl);
        if node.record.lock != had || granted && !keeps {
            node.age = 0;
        }
        granted
    }

    fn acquire(&self, state: &mut State<A>, attempt: u8, node: u8) {
        let asking = matches!(
            state.attempts[usize::from(attempt)].phase,
            Phase::Asking { .. }
        );
        if self.ask(Ask::Acquire, state, attempt, node) && asking {
            state.nodes[usize::from(node)].granted.insert(attempt);
        }
    }

    /// Rule: validity is counted from before the first byte was sent.
    fn acquired(&self, state: &mut State<A>, attempt: u8) {
        let acquiring = &mut state.attempts[usize::from(attempt)];
        let Phase::Asking { age } = acquiring.phase else {
            unreachable!("only an attempt that sent its requests can succeed");
        };
        acquiring.phase = Phase::Holding;
        acquiring.trusted = match self.scenario.fault {
            Some(Fault::ValidityFromReply) => self.scenario.trusted(),
            _ => self.scenario.trusted() - age,
        };
        forget_grants(state, attempt);
    }

    /// The client is done, or gives up waiting, and sends RELEASE. Its requests may still be
    /// under way.
    fn end(&self, state: &mut State<A>, attempt: u8) {
        let ending = &mut state.attempts[usize::from(attempt)];
        ending.released = true;
        let asking = matches!(ending.phase, Phase::Asking { .. });
        if asking && self.scenario.fault == Some(Fault::SucceedsAfterRelease) {
            return;
        }
        ending.phase = Phase::Over;
        ending.trusted = 0;
        ending.extending = None;
        forget_grants(state, attempt);
        self.forget_extensions(state, attempt);
    }

    fn start_extending(&self, state: &mut State<A>, attempt: u8) {
        let holder = &mut state.attempts[usize::from(attempt)];
        holder.extending = Some(0);
        if holder.extensions == Extensions::None {
            holder.extensions = Extensions::Sent;
        }
        self.forget_extensions(state, attempt);
    }

    /// Rule: an extension that succeeds counts from before its own send.
    fn extended(&self, state: &mut State<A>, attempt: u8) {
        let holder = &mut state.attempts[usize::from(attempt)];
        let age = holder
            .extending
            .take()
            .expect("only an EXTEND that was sent succeeds");
        holder.trusted = holder.trusted.max(self.scenario.trusted() - age);
        holder.extensions = Extensions::Succeeded;
        self.forget_extensions(state, attempt);
    }

    /// Rule: replies are matched to their exact request.
    fn forget_extensions(&self, state: &mut State<A>, attempt: u8) {
        if self.scenario.fault != Some(Fault::CountsOldExtensions) {
            for node in &mut state.nodes {
                node.extended.remove(attempt);
            }
        }
    }

    /// The node has lost its memory. The replies it has sent are still under way.
    fn restart(&self, state: &mut State<A>, node: u8) {
        let node = &mut state.nodes[usize::from(node)];
        node.record = Record::default();
        node.age = 0;
        // Its clock may be fast here, too.
        node.guarded = self.scenario.guard.saturating_sub(self.scenario.node_error);
        state.restarts += 1;
    }
}

/// The grants of a decided attempt no longer count. Forgetting them merges the states that differ
/// only in them.
fn forget_grants<const A: usize>(state: &mut State<A>, attempt: u8) {
    for node in &mut state.nodes {
        node.granted.remove(attempt);
    }
}
