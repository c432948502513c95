//! The possible steps in a state, and their effects.

use super::{
    Attempt, Copied, Extension, Node, Phase, Releases, Remembered, State, Step, Tokens, distinct,
};
use crate::bits::{Bits, small};
use crate::fault::Fault;
use crate::node::{Ask, Record};

/// The steps that are possible.
impl<const N: usize, const A: usize> Tokens<N, A> {
    pub(super) fn steps_of_attempt(
        &self,
        state: &State<N, A>,
        index: usize,
        steps: &mut Vec<Step>,
    ) {
        let attempt = small(index);
        let Attempt {
            phase, extension, ..
        } = state.attempts[index];
        match phase {
            Phase::Idle => return self.starts(state, index, steps),
            Phase::Asking => {
                if self.is_majority(self.grants(state, index)) {
                    steps.push(Step::Acquired { attempt });
                }
            }
            Phase::Holding => self.steps_of_holder(state, index, steps),
            Phase::Over => {}
        }
        if self.ends() && phase != Phase::Over {
            steps.push(Step::End { attempt });
        }
        for node in distinct(&state.nodes).map(small) {
            steps.push(Step::AcquireArrives { attempt, node });
            if extension != Extension::None {
                steps.push(Step::ExtendArrives { attempt, node });
            }
            if self.scenario.fault == Some(Fault::TurnCounts) {
                steps.push(Step::Offered { attempt, node });
            }
            if phase == Phase::Over && self.scenario.releases != Releases::Never {
                steps.push(Step::ReleaseArrives { attempt, node });
            }
        }
    }

    /// Attempts are interchangeable, so they start in order.
    fn starts(&self, state: &State<N, A>, index: usize, steps: &mut Vec<Step>) {
        if index == 0 || state.attempts[index - 1].phase != Phase::Idle {
            let attempt = small(index);
            steps.extend((1..=self.scenario.tokens).map(|token| Step::Start { attempt, token }));
        }
    }

    fn steps_of_holder(&self, state: &State<N, A>, index: usize, steps: &mut Vec<Step>) {
        let attempt = small(index);
        let Attempt {
            extension, copy, ..
        } = state.attempts[index];
        match extension {
            Extension::None if self.scenario.extends => {
                steps.push(Step::StartExtending { attempt });
            }
            Extension::Asked { .. } => {
                let nodes = state.nodes.iter();
                let agreed = nodes.filter(|node| node.extended.contains(attempt));
                if self.is_majority(agreed.count()) {
                    steps.push(Step::Extended { attempt });
                }
            }
            _ => {}
        }
        match copy {
            Copied::Nothing if self.scenario.resource => {
                steps.push(Step::ReadResource { attempt });
            }
            Copied::Fresh | Copied::Outdated => steps.push(Step::WriteResource { attempt }),
            _ => {}
        }
    }

    /// An attempt that merely does nothing more is covered by one that has not got there yet, so
    /// ending matters only where something depends on it.
    fn ends(&self) -> bool {
        self.scenario.releases != Releases::Never || self.old_replies_matter()
    }

    /// The number of nodes that have granted an attempt. Rule: only its own grants count.
    fn grants(&self, state: &State<N, A>, index: usize) -> usize {
        let previous = index.checked_sub(1).filter(|&previous| {
            self.old_replies_matter() && state.attempts[previous].phase == Phase::Over
        });
        let counts = |granted: Bits| {
            let counts = |attempt| granted.contains(small(attempt));
            counts(index) || previous.is_some_and(counts)
        };
        let nodes = state.nodes.iter();
        nodes.filter(|node| counts(node.granted)).count()
    }

    /// Rule: a majority of all nodes, and distinct nodes are counted.
    fn is_majority(&self, agreed: usize) -> bool {
        let repeated = self.scenario.fault == Some(Fault::CountsRepliesNotNodes);
        agreed >= self.scenario.quorum || (repeated && agreed > 0)
    }

    pub(super) fn steps_of_node(&self, state: &State<N, A>, index: usize, steps: &mut Vec<Step>) {
        let node = small(index);
        let record = &state.nodes[index].record;
        if record.lock.is_some() {
            steps.push(Step::LockExpires { node });
        } else if record
            .fence
            .is_some_and(|fence| self.may_expire(record, fence))
        {
            steps.push(Step::FenceExpires { node });
        }
        if record.clock < self.scenario.clock_max {
            steps.push(Step::ClockTicks { node });
        }
        if state.nodes[index].unnoticed {
            steps.push(Step::Noticed { node });
        }
        if state.restarts < self.scenario.restarts {
            let memories = self.memories(state, index).into_iter();
            steps.extend(memories.map(|with| Step::Restarts { node, with }));
        }
    }

    /// A fence may vanish once a missing one reads as at least the same.
    fn may_expire(&self, record: &Record, fence: u8) -> bool {
        let old = |retention| record.clock >= fence + retention;
        self.scenario.fault == Some(Fault::FenceExpiresEarly)
            || self.scenario.retention.is_some_and(old)
    }

    /// The possible memories of a node after a restart: none, or with snapshots any fence up to
    /// the present one and the lock of any past owner.
    fn memories(&self, state: &State<N, A>, index: usize) -> Vec<Remembered> {
        let node = &state.nodes[index];
        let known = node.record.fence.unwrap_or(0);
        let fences = |below: u8| std::iter::once(None).chain((1..below).map(Some));
        let mut memories = vec![(None, None)];
        if self.scenario.snapshots {
            memories = fences(known + 1).map(|fence| (None, fence)).collect();
            for owner in (0..small(A)).filter(|&owner| node.past_owners.contains(owner)) {
                memories.extend(fences(known + 1).map(|fence| (Some(owner), fence)));
            }
        }
        let earliest = match self.scenario.fault {
            Some(Fault::ClockStepsBack) => 0,
            _ => node.record.clock,
        };
        let clocks = earliest..=node.record.clock;
        let at = |clock| {
            let with = move |&(lock, fence)| Remembered { lock, fence, clock };
            memories.iter().map(with)
        };
        clocks.flat_map(at).collect()
    }
}

/// The effects of the steps.
impl<const N: usize, const A: usize> Tokens<N, A> {
    pub(super) fn take(&self, step: Step, state: &mut State<N, A>) {
        match step {
            Step::Start { attempt, token } => start(state, attempt, token),
            Step::AcquireArrives { attempt, node } => self.acquire(state, attempt, node),
            Step::Acquired { attempt } => self.acquired(state, attempt),
            Step::End { attempt } => self.end(state, attempt),
            Step::ReleaseArrives { attempt, node } => self.release(state, attempt, node),
            Step::StartExtending { attempt } => start_extending(state, attempt),
            Step::ExtendArrives { attempt, node } => self.extend(state, attempt, node),
            Step::Extended { attempt } => extended(state, attempt),
            Step::Offered { attempt, node } => self.offer(state, attempt, node),
            Step::ReadResource { attempt } => self.read(state, attempt),
            Step::WriteResource { attempt } => write(state, attempt),
            Step::LockExpires { node } => {
                self.rules
                    .expire(&mut state.nodes[usize::from(node)].record);
            }
            Step::FenceExpires { node } => state.nodes[usize::from(node)].record.fence = None,
            Step::ClockTicks { node } => state.nodes[usize::from(node)].record.clock += 1,
            Step::Noticed { node } => self.notice(&mut state.nodes[usize::from(node)]),
            Step::Restarts { node, with } => self.restart(state, usize::from(node), with),
        }
    }

    fn acquire(&self, state: &mut State<N, A>, attempt: u8, node: u8) {
        let Attempt { token, phase, .. } = state.attempts[usize::from(attempt)];
        let node = &mut state.nodes[usize::from(node)];
        if self
            .rules
            .vote(Ask::Acquire, &mut node.record, attempt, token)
        {
            let counts = self.is_trusted(node);
            if counts && (phase == Phase::Asking || self.old_replies_matter()) {
                node.granted.insert(attempt);
            }
            if self.scenario.snapshots {
                node.past_owners.insert(attempt);
            }
        }
    }

    /// The node notifies a waiter of its turn, which changes nothing on the node. Only a client
    /// without the rule takes it for a grant.
    fn offer(&self, state: &mut State<N, A>, attempt: u8, node: u8) {
        let Attempt { token, phase, .. } = state.attempts[usize::from(attempt)];
        let node = &mut state.nodes[usize::from(node)];
        if phase == Phase::Asking && self.rules.may_offer(&node.record, attempt, token) {
            node.granted.insert(attempt);
        }
    }

    /// The grants of a decided attempt no longer count. Forgetting them merges the states that
    /// differ only in them.
    fn forget_replies(&self, state: &mut State<N, A>, attempt: u8) {
        for node in &mut state.nodes {
            if !self.old_replies_matter() {
                node.granted.remove(attempt);
            }
            node.extended.remove(attempt);
        }
    }

    fn old_replies_matter(&self) -> bool {
        self.scenario.fault == Some(Fault::CountsOldReplies)
    }

    fn acquired(&self, state: &mut State<N, A>, attempt: u8) {
        let acquiring = &mut state.attempts[usize::from(attempt)];
        state.violated.unique |= state.acquired.contains(acquiring.token);
        state.violated.growing |= acquiring.late;
        state.acquired.insert(acquiring.token);
        acquiring.phase = Phase::Holding;
        acquiring.late = false;
        self.forget_replies(state, attempt);
    }

    fn end(&self, state: &mut State<N, A>, attempt: u8) {
        let ending = &mut state.attempts[usize::from(attempt)];
        ending.phase = Phase::Over;
        ending.late = false;
        ending.copy = Copied::Nothing;
        if ending.extension != Extension::None {
            ending.extension = Extension::Over;
        }
        self.forget_replies(state, attempt);
    }

    fn release(&self, state: &mut State<N, A>, attempt: u8, node: u8) {
        let token = state.attempts[usize::from(attempt)].token;
        let node = &mut state.nodes[usize::from(node)];
        let ask = match self.scenario.releases {
            Releases::Keeping => Ask::ReleaseAndKeep,
            _ => Ask::Release,
        };
        self.rules.vote(ask, &mut node.record, attempt, token);
        // Under the lock of another owner, a RELEASE changes nothing.
        if self.scenario.releases == Releases::Watched && node.record.lock.is_none() {
            node.released.insert(attempt);
        }
    }

    fn extend(&self, state: &mut State<N, A>, attempt: u8, node: u8) {
        let Attempt {
            token, extension, ..
        } = state.attempts[usize::from(attempt)];
        let node = &mut state.nodes[usize::from(node)];
        if self
            .rules
            .vote(Ask::Extend, &mut node.record, attempt, token)
        {
            if matches!(extension, Extension::Asked { .. }) && self.is_trusted(node) {
                node.extended.insert(attempt);
            }
            if self.scenario.snapshots {
                node.past_owners.insert(attempt);
            }
        }
    }

    fn read(&self, state: &mut State<N, A>, attempt: u8) {
        let reader = &mut state.attempts[usize::from(attempt)];
        if self.scenario.fault != Some(Fault::ResourceIgnoresReads) {
            if reader.token < state.resource.highest {
                return;
            }
            state.resource.highest = reader.token;
        }
        reader.copy = Copied::Fresh;
    }

    /// The node lost its memory. Rule: `floor = now + S`. It must grant neither a token that it
    /// granted before, which it does not know, nor any smaller one.
    fn restart(&self, state: &mut State<N, A>, index: usize, with: Remembered) {
        let peers = state.nodes.iter().enumerate().filter(|(i, _)| *i != index);
        let of_peers = peers.filter_map(|(_, peer)| peer.record.fence).max();
        let skew = self.scenario.skew.unwrap_or(0);
        let (fence, floor) = match self.scenario.fault {
            Some(Fault::NoFloor) => (with.fence, 0),
            Some(Fault::FloorWithoutSkew) => (with.fence, with.clock),
            Some(Fault::FloorFromPeers) => (of_peers, 0),
            _ => (with.fence, with.clock + skew),
        };
        let mut record = Record {
            lock: with.lock,
            fence,
            floor,
            clock: with.clock,
        };
        let node = &mut state.nodes[index];
        if self.scenario.exchanges {
            record.floor = node.record.floor;
            node.unnoticed = self.scenario.fault != Some(Fault::PromotionIgnored);
        }
        node.record = record;
        state.restarts += 1;
    }

    /// Rule: the replies of a node count only if it has the same memory as at the handshake.
    fn is_trusted(&self, node: &Node) -> bool {
        !node.unnoticed || self.scenario.fault == Some(Fault::NeverVerified)
    }

    /// The first handshake after the memory was replaced sets the floor.
    fn notice(&self, node: &mut Node) {
        node.unnoticed = false;
        node.record.floor = node.record.clock + self.scenario.skew.unwrap_or(0);
    }
}

fn start<const N: usize, const A: usize>(state: &mut State<N, A>, attempt: u8, token: u8) {
    let late = state.acquired.max().is_some_and(|newest| token <= newest);
    state.attempts[usize::from(attempt)] = Attempt {
        phase: Phase::Asking,
        token,
        late,
        ..Attempt::default()
    };
}

fn start_extending<const N: usize, const A: usize>(state: &mut State<N, A>, attempt: u8) {
    let holder = &mut state.attempts[usize::from(attempt)];
    let overtaken = state
        .acquired
        .max()
        .is_some_and(|newest| newest > holder.token);
    holder.extension = Extension::Asked { overtaken };
}

fn extended<const N: usize, const A: usize>(state: &mut State<N, A>, attempt: u8) {
    let holder = &mut state.attempts[usize::from(attempt)];
    state.violated.continuous |= holder.extension == Extension::Asked { overtaken: true };
    holder.extension = Extension::Done;
    for node in &mut state.nodes {
        node.extended.remove(attempt);
    }
}

/// Read, compute, write: an update is lost if another wrote in between.
fn write<const N: usize, const A: usize>(state: &mut State<N, A>, attempt: u8) {
    let writer = state.attempts[usize::from(attempt)];
    if writer.token < state.resource.highest {
        return;
    }
    state.resource.highest = writer.token;
    state.resource.writes += 1;
    state.violated.update_lost |= writer.copy == Copied::Outdated;
    for other in &mut state.attempts {
        if other.copy == Copied::Fresh {
            other.copy = Copied::Outdated;
        }
    }
    state.attempts[usize::from(attempt)].copy = Copied::Written;
}
