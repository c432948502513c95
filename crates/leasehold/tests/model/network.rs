//! The same properties as in [`tokens`](crate::tokens), modelled differently: actors send each
//! other messages, and clients choose their tokens as those of the library do.
//!
//! A message that was sent stays in the network and may be delivered at any time, again and
//! again, or never. This explores less than that model, which does not even relate replies to
//! requests. It exists because it shares no code with it but the rules, and so would reveal a
//! mistake in it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use stateright::Expectation;
use stateright::actor::{Actor, ActorModel, Envelope, Id, Network, Out, model_timeout};

use crate::bits::{Bits, small};
use crate::check::{breaks, holds, holds_at_large};
use crate::fault::Fault;
use crate::node::{Ask, Record, Rules};

const UNIQUE: &str = "no two acquisitions have the same token";
const GROWING: &str = "a later acquisition has a larger token";

const NODES: usize = 3;
const MAJORITY: usize = 2;
/// More than any client reaches.
const TOKENS: u8 = 20;

/// A claim. Every attempt has a new owner, so the owner also identifies the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Claim {
    owner: u8,
    token: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    Acquire(Claim),
    Release(Claim),
    Granted(Claim),
    Refused {
        claim: Claim,
        fence: u8,
    },
    /// To the observer, which does nothing: the history records it when it is sent.
    Acquired(Claim),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Timer {
    LockExpires,
    AttemptEnds,
}

enum Role {
    Node {
        rules: Rules,
        /// The owners to which it explains a refusal: those whose client tries again. The others
        /// have no use for the explanation.
        explains_to: Bits,
    },
    Observer,
    Client(Client),
}

struct Client {
    /// The owner value of its first attempt.
    first_owner: u8,
    attempts: u8,
    /// It does not move: clients with the same clock collide as often as they can.
    clock: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    Node(Record),
    Observer,
    Asking {
        claim: Claim,
        granted: Bits,
        /// The largest fence that a node reported.
        seen: u8,
    },
    Holding {
        claim: Claim,
        seen: u8,
    },
    Done,
}

impl Client {
    /// Rule: `t = max(clock, highest fence seen + 1)`.
    fn begin(&self, owner: u8, seen: u8, out: &mut Out<Role>) -> State {
        let token = self.clock.max(seen + 1);
        let claim = Claim { owner, token };
        out.broadcast(&nodes(), &Message::Acquire(claim));
        out.set_timer(Timer::AttemptEnds, model_timeout());
        State::Asking {
            claim,
            granted: Bits::default(),
            seen,
        }
    }

    /// A client releases on all nodes, including those where it does not know the outcome.
    fn end(&self, claim: Claim, seen: u8, out: &mut Out<Role>) -> State {
        out.broadcast(&nodes(), &Message::Release(claim));
        let next = claim.owner + 1;
        if next < self.first_owner + self.attempts {
            self.begin(next, seen, out)
        } else {
            State::Done
        }
    }
}

fn nodes() -> [Id; NODES] {
    std::array::from_fn(Id::from)
}

fn observer() -> Id {
    Id::from(NODES)
}

/// A node answers.
fn answer(
    rules: &Rules,
    explains_to: Bits,
    state: &mut Cow<'_, State>,
    from: Id,
    message: Message,
    out: &mut Out<Role>,
) {
    let State::Node(before) = **state else { return };
    let mut record = before;
    match message {
        Message::Acquire(claim) => {
            if rules.vote(Ask::Acquire, &mut record, claim.owner, claim.token) {
                out.send(from, Message::Granted(claim));
            } else if let Some(fence) = record.fence
                && explains_to.contains(claim.owner)
            {
                out.send(from, Message::Refused { claim, fence });
            }
        }
        Message::Release(claim) => {
            rules.vote(Ask::Release, &mut record, claim.owner, claim.token);
        }
        _ => {}
    }
    match (before.lock, record.lock) {
        (None, Some(_)) => out.set_timer(Timer::LockExpires, model_timeout()),
        (Some(_), None) => out.cancel_timer(Timer::LockExpires),
        _ => {}
    }
    if record != before {
        *state.to_mut() = State::Node(record);
    }
}

/// A client counts the replies to its present request, by node.
fn count(state: &mut Cow<'_, State>, from: Id, message: Message, out: &mut Out<Role>) {
    let State::Asking {
        claim,
        mut granted,
        seen,
    } = **state
    else {
        return;
    };
    let after = match message {
        Message::Granted(of) if of == claim => {
            granted.insert(small(from.into()));
            if granted.len() >= MAJORITY {
                out.send(observer(), Message::Acquired(claim));
                State::Holding { claim, seen }
            } else {
                State::Asking {
                    claim,
                    granted,
                    seen,
                }
            }
        }
        Message::Refused { claim: of, fence } if of == claim => State::Asking {
            claim,
            granted,
            seen: seen.max(fence),
        },
        _ => return,
    };
    if **state != after {
        *state.to_mut() = after;
    }
}

impl Actor for Role {
    type Msg = Message;
    type State = State;
    type Timer = Timer;
    type Random = ();
    type Storage = ();

    fn on_start(&self, _: Id, _: &Option<()>, out: &mut Out<Self>) -> State {
        match self {
            Self::Node { .. } => State::Node(Record::default()),
            Self::Observer => State::Observer,
            Self::Client(client) => client.begin(client.first_owner, 0, out),
        }
    }

    fn on_msg(
        &self,
        _: Id,
        state: &mut Cow<'_, State>,
        from: Id,
        message: Message,
        out: &mut Out<Self>,
    ) {
        match self {
            Self::Node { rules, explains_to } => {
                answer(rules, *explains_to, state, from, message, out)
            }
            Self::Observer => {}
            Self::Client(_) => count(state, from, message, out),
        }
    }

    fn on_timeout(&self, _: Id, state: &mut Cow<'_, State>, _: &Timer, out: &mut Out<Self>) {
        let after = match (self, &**state) {
            (Self::Node { rules, .. }, State::Node(record)) => {
                let mut record = *record;
                rules.expire(&mut record);
                State::Node(record)
            }
            (
                Self::Client(client),
                State::Asking { claim, seen, .. } | State::Holding { claim, seen },
            ) => client.end(*claim, *seen, out),
            _ => return,
        };
        *state.to_mut() = after;
    }
}

/// The record of an observer that sees everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct History {
    acquired: BTreeSet<u8>,
    /// For each attempt, the largest token acquired before it started.
    before: BTreeMap<u8, u8>,
    reused: bool,
    shrunk: bool,
}

impl History {
    fn note(&self, sent: Envelope<&Message>) -> Option<Self> {
        let mut after = self.clone();
        match *sent.msg {
            Message::Acquire(Claim { owner, .. }) => {
                let newest = self.acquired.last().copied().unwrap_or(0);
                after.before.insert(owner, newest);
            }
            Message::Acquired(Claim { owner, token }) => {
                after.shrunk |= after.before.remove(&owner) >= Some(token);
                after.reused |= !after.acquired.insert(token);
            }
            Message::Release(Claim { owner, .. }) => {
                after.before.remove(&owner)?;
            }
            _ => return None,
        }
        Some(after)
    }
}

/// Clients with these clocks and numbers of attempts.
fn model<const C: usize>(
    clients: [(u8, u8); C],
    fault: Option<Fault>,
) -> ActorModel<Role, (), History> {
    let mut owners = 0;
    let mut explains_to = Bits::default();
    let clients = clients.map(|(clock, attempts)| {
        let first_owner = owners;
        owners += attempts;
        (first_owner..owners - 1).for_each(|owner| explains_to.insert(owner));
        Role::Client(Client {
            first_owner,
            attempts,
            clock,
        })
    });
    let rules = Rules::new(owners.into(), TOKENS).without(fault);
    ActorModel::new((), History::default())
        .actors((0..NODES).map(|_| Role::Node {
            rules: rules.clone(),
            explains_to,
        }))
        .actor(Role::Observer)
        .actors(clients)
        .init_network(Network::new_unordered_duplicating([]))
        .record_msg_out(|(), history, sent| history.note(sent))
        // When all clients are done, no acquisition is possible any more.
        .within_boundary(|(), state| {
            let busy = |s: &Arc<State>| matches!(**s, State::Asking { .. } | State::Holding { .. });
            state.actor_states.iter().any(busy)
        })
        .property(Expectation::Always, UNIQUE, |_, s| !s.history.reused)
        .property(Expectation::Always, GROWING, |_, s| !s.history.shrunk)
        .property(Expectation::Sometimes, "two acquisitions", |_, s| {
            s.history.acquired.len() >= 2
        })
}

#[test]
fn one_attempt_each() {
    holds(model([(2, 1), (1, 1)], None));
}

#[test]
fn large_a_second_attempt() {
    holds_at_large(model([(1, 2), (1, 1)], None));
}

#[test]
fn large_three_clients() {
    holds_at_large(model([(1, 1), (1, 1), (2, 1)], None));
}

#[test]
fn ties_must_lose() {
    breaks(UNIQUE, model([(1, 1), (1, 1)], Some(Fault::TiesWin)));
}
