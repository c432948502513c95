//! The possible steps in a state, and their effects.

use super::{Attempt, Extensions, MAJORITY, Node, Phase, Sent, State, Step, Timed};
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
            result,
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
        if !released && phase == Phase::Holding && self.scenario.keep > 0 {
            steps.push(Step::Keep { attempt });
        }
        // Rule: a result counts when a majority has confirmed it.
        let enough = match self.scenario.fault {
            Some(Fault::ResultOfOneNode) => 1,
            _ => MAJORITY,
        };
        let stored = state.count(|node| node.stored, attempt);
        if matches!(result, Sent::Unconfirmed(_)) && stored >= enough {
            steps.push(Step::Stored { attempt });
        }
        for node in state.distinct_nodes().map(small) {
            steps.push(Step::AcquireArrives { attempt, node });
            match result {
                Sent::No if released => steps.push(Step::ReleaseArrives { attempt, node }),
                Sent::No => {}
                _ => steps.push(Step::KeepArrives { attempt, node }),
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
        let time = match record.is_kept() {
            true => self.scenario.counts(),
            false => self.scenario.ttl - self.scenario.node_error,
        };
        let due = age >= time || self.scenario.fault == Some(Fault::ClockJumpsAhead);
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
            Step::Keep { attempt } => {
                self.end(state, attempt);
                state.attempts[usize::from(attempt)].result = Sent::Unconfirmed(0);
            }
            Step::KeepArrives { attempt, node } => {
                let before = state.nodes[usize::from(node)].record;
                self.ask(Ask::ReleaseAndKeep, state, attempt, node);
                let node = &mut state.nodes[usize::from(node)];
                if node.record.is_kept() && !before.is_kept() {
                    node.stored.insert(attempt);
                }
            }
            Step::Stored { attempt } => {
                let result = &mut state.attempts[usize::from(attempt)].result;
                if let Sent::Unconfirmed(age) = *result {
                    *result = Sent::Counts(age);
                }
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
                node.age = (node.age + 1).min(self.scenario.ttl.max(self.scenario.keep));
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
            attempt.result = match attempt.result {
                Sent::Unconfirmed(age) | Sent::Counts(age) if age + 1 >= self.scenario.counts() => {
                    Sent::Over
                }
                Sent::Unconfirmed(age) => Sent::Unconfirmed(age + 1),
                Sent::Counts(age) => Sent::Counts(age + 1),
                result => result,
            };
        }
        // Confirmations of a period that is over no longer count.
        for (index, attempt) in state.attempts.iter().enumerate() {
            if attempt.result == Sent::Over {
                for node in &mut state.nodes {
                    node.stored.remove(small(index));
                }
            }
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
