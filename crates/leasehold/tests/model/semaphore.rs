//! A semaphore whose permits are slots, each of which is a separate claim.
//!
//! Counting holders on each node is the obvious approach, and it is wrong: a majority of nodes
//! with a free permit each does not mean that a permit is free. Here no lock expires, so that
//! holders can be counted at every moment.

use stateright::{Model, Property};

use crate::bits::{Bits, small};
use crate::check::{breaks, changed, holds, holds_at_large};
use crate::fault::Fault;
use crate::node::{Ask, Record, Rules};

const WITHIN_LIMIT: &str = "there are no more holders than permits";

const PERMITS: usize = 2;

/// `C` clients of `N` nodes.
struct Semaphore<const N: usize, const C: usize> {
    tokens: u8,
    rules: Rules,
    fault: Option<Fault>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct State<const N: usize, const C: usize> {
    nodes: [Node; N],
    clients: [Client; C],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Node {
    slots: [Record; PERMITS],
    /// The clients counted, if there are no slots.
    counted: Bits,
    /// The clients it granted a permit, while that can still matter.
    granted: Bits,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    phase: Phase,
    slot: u8,
    token: u8,
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
    Start { client: u8, slot: u8, token: u8 },
    AcquireArrives { client: u8, node: u8 },
    Acquired { client: u8 },
    End { client: u8 },
    ReleaseArrives { client: u8, node: u8 },
}

impl<const N: usize, const C: usize> Semaphore<N, C> {
    fn new(tokens: u8, fault: Option<Fault>) -> Self {
        Self {
            tokens,
            rules: Rules::new(C, tokens).without(fault),
            fault,
        }
    }

    fn counts(&self) -> bool {
        self.fault == Some(Fault::PermitsCountedPerNode)
    }

    fn acquire(&self, node: &mut Node, client: u8, Client { phase, slot, token }: Client) {
        let granted = if self.counts() {
            let free = node.counted.len() < PERMITS;
            if free {
                node.counted.insert(client);
            }
            free
        } else {
            let slot = &mut node.slots[usize::from(slot)];
            self.rules.vote(Ask::Acquire, slot, client, token)
        };
        if granted && phase == Phase::Asking {
            node.granted.insert(client);
        }
    }

    fn release(&self, node: &mut Node, client: u8, Client { slot, token, .. }: Client) {
        node.counted.remove(client);
        let slot = &mut node.slots[usize::from(slot)];
        self.rules.vote(Ask::Release, slot, client, token);
    }

    fn take(&self, step: Step, state: &mut State<N, C>) {
        match step {
            Step::Start {
                client,
                slot,
                token,
            } => {
                state.clients[usize::from(client)] = Client {
                    phase: Phase::Asking,
                    slot,
                    token,
                };
            }
            Step::AcquireArrives { client, node } => {
                let node = &mut state.nodes[usize::from(node)];
                self.acquire(node, client, state.clients[usize::from(client)]);
            }
            Step::ReleaseArrives { client, node } => {
                let node = &mut state.nodes[usize::from(node)];
                self.release(node, client, state.clients[usize::from(client)]);
            }
            Step::Acquired { client } => decide(state, client, Phase::Holding),
            Step::End { client } => decide(state, client, Phase::Over),
        }
    }

    fn starts(&self, state: &State<N, C>, client: u8, steps: &mut Vec<Step>) {
        // Clients are interchangeable, so they start in order.
        let previous = usize::from(client).checked_sub(1);
        if previous.is_some_and(|previous| state.clients[previous].phase == Phase::Idle) {
            return;
        }
        let slots = if self.counts() { 1 } else { PERMITS };
        for slot in 0..small(slots) {
            let tokens = 1..=self.tokens;
            steps.extend(tokens.map(|token| Step::Start {
                client,
                slot,
                token,
            }));
        }
    }
}

/// The grants of a decided attempt no longer count.
fn decide<const N: usize, const C: usize>(state: &mut State<N, C>, client: u8, phase: Phase) {
    state.clients[usize::from(client)].phase = phase;
    for node in &mut state.nodes {
        node.granted.remove(client);
    }
}

impl<const N: usize, const C: usize> State<N, C> {
    fn holders(&self) -> usize {
        let clients = self.clients.iter();
        clients
            .filter(|client| client.phase == Phase::Holding)
            .count()
    }

    fn has_majority(&self, client: u8) -> bool {
        let nodes = self.nodes.iter();
        nodes.filter(|node| node.granted.contains(client)).count() > N / 2
    }
}

impl<const N: usize, const C: usize> Model for Semaphore<N, C> {
    type State = State<N, C>;
    type Action = Step;

    fn init_states(&self) -> Vec<Self::State> {
        vec![State {
            nodes: [Node::default(); N],
            clients: [Client::default(); C],
        }]
    }

    fn actions(&self, state: &Self::State, steps: &mut Vec<Step>) {
        for (client, Client { phase, .. }) in (0..).zip(&state.clients) {
            match phase {
                Phase::Idle => {
                    self.starts(state, client, steps);
                    continue;
                }
                Phase::Asking if state.has_majority(client) => {
                    steps.push(Step::Acquired { client });
                }
                _ => {}
            }
            if *phase != Phase::Over {
                steps.push(Step::End { client });
            }
            for node in 0..small(N) {
                steps.push(Step::AcquireArrives { client, node });
                if *phase == Phase::Over {
                    steps.push(Step::ReleaseArrives { client, node });
                }
            }
        }
    }

    fn next_state(&self, before: &Self::State, step: Step) -> Option<Self::State> {
        let mut after = changed(before, |after| self.take(step, after))?;
        after.nodes.sort_unstable();
        Some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::<Self>::always(WITHIN_LIMIT, |_, s| s.holders() <= PERMITS),
            Property::<Self>::sometimes("all permits are out", |_, s| s.holders() == PERMITS),
        ]
    }
}

#[test]
fn two_slots_three_clients() {
    holds(Semaphore::<3, 3>::new(2, None));
}

#[test]
fn large_two_slots_three_clients() {
    holds_at_large(Semaphore::<3, 3>::new(3, None));
}

#[test]
fn large_two_slots_four_clients() {
    holds_at_large(Semaphore::<3, 4>::new(2, None));
}

#[test]
fn permits_must_not_be_counted_per_node() {
    let fault = Some(Fault::PermitsCountedPerNode);
    breaks(WITHIN_LIMIT, Semaphore::<3, 3>::new(1, fault));
    breaks(WITHIN_LIMIT, Semaphore::<5, 3>::new(1, fault));
}
