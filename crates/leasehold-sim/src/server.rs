//! A node's server: it runs, crashes, and restarts with what it kept.

use std::sync::Mutex;
use std::time::Duration;

use leasehold::node::NodeError;
use leasehold::node::link::Reply as Said;
use leasehold::node::rules::Constants;
use leasehold::{Holder, Name};

use crate::agenda::{Nanos, SECOND};
use crate::bug::Bug;
use crate::clock::NodeClock;
use crate::message::{Ask, Reply, Request};
use crate::network::ConnectionId;
use crate::store::Store;
use crate::subscriptions::{Notification, Subscriptions};
use crate::sync::locked;

/// What a server still knows after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Everything.
    Kept,
    /// The last snapshot.
    Snapshot,
    /// Nothing.
    Lost,
}

/// A node's server.
pub struct Server {
    state: Mutex<State>,
}

struct State {
    store: Store,
    snapshot: Store,
    subscriptions: Subscriptions,
    clock: NodeClock,
    /// The current run of the server, or `None` while it is down.
    run: Option<u64>,
    runs: u64,
    /// Identifies its memory: it changes at a restart and at a promotion.
    memory: u64,
    /// Whether it is a replica, which refuses requests.
    replica: bool,
    /// Whether it was promoted in this run.
    promoted: bool,
    up_since: Nanos,
    scripts: bool,
    /// The latest time that its clock has shown to a client. Tokens may exceed it by up to S.
    latest_us: u64,
    latest_offset_us: i64,
}

impl State {
    /// Runs a script for a claim.
    fn run_script(
        &mut self,
        ask: &Ask,
        now_us: u64,
        constants: Constants,
        bug: Option<Bug>,
    ) -> Said {
        if ask.shares && (self.replica || !self.scripts) {
            // An error for all of them.
            return Said::Alone;
        }
        if self.replica {
            return Said::Answer(Err(NodeError::ReadOnly));
        }
        if !self.scripts {
            return Said::NoScript;
        }
        let subscriptions = &mut self.subscriptions;
        self.store.vote(ask, now_us, constants, bug, subscriptions)
    }
}

impl Server {
    /// A server that has been up for a long time, with empty memory.
    pub fn new(clock: NodeClock) -> Self {
        Self {
            state: Mutex::new(State {
                store: Store::default(),
                snapshot: Store::default(),
                subscriptions: Subscriptions::default(),
                clock,
                run: Some(0),
                runs: 0,
                memory: 0,
                replica: false,
                promoted: false,
                up_since: 0,
                scripts: true,
                latest_us: 0,
                latest_offset_us: 0,
            }),
        }
    }

    /// Answers a request that arrived over a connection of this `run`, and returns the
    /// notifications to send. `None` if the connection is unknown here, or the server is down.
    pub fn answer(
        &self,
        (run, connection): (u64, ConnectionId),
        request: &Request,
        now: Nanos,
        constants: Constants,
        bug: Option<Bug>,
    ) -> Option<(Reply, Vec<Notification>)> {
        let state = &mut *locked(&self.state);
        if state.run != Some(run) {
            return None;
        }
        let now_us = state.clock.at(now);
        state.latest_us = state.latest_us.max(now_us);
        let reply = match request {
            Request::Subscribe(channel) => {
                state.subscriptions.subscribe(*channel, connection);
                Reply::Subscribed
            }
            Request::Ping | Request::Bye => Reply::Pong,
            Request::Script(asks) => {
                let mut answer = |ask| state.run_script(ask, now_us, constants, bug);
                Reply::Script(asks.iter().map(&mut answer).collect())
            }
            _ if state.replica => Reply::ReadOnly,
            Request::Hello => {
                state.scripts = true;
                // The first run began long before the simulation.
                let before = u64::from(state.runs == 0) * 86_400;
                let up = Duration::from_secs(before + (now - state.up_since) / SECOND);
                let new = !state.store.is_of_memory(state.memory);
                let epoch = state.store.greet(state.memory, now_us);
                Reply::Hello {
                    new,
                    epoch,
                    memory: state.memory,
                    now_us,
                    up: match state.promoted {
                        true => up.min(epoch.age(now_us)),
                        false => up,
                    },
                }
            }
            Request::Set(ask) => Reply::Bool(state.store.set(&ask.claim, now_us, bug)),
            Request::Delete(ask) => Reply::Bool(state.store.delete(&ask.claim, now_us, bug)),
            Request::Look(name) => Reply::Bool(state.store.has_line(name, now_us, bug)),
            Request::Probe => Reply::Identity {
                memory: state.memory,
                epoch: state.store.epoch(),
            },
        };
        Some((reply, state.subscriptions.take()))
    }

    /// The promise that the node has broken, and how; see [`Store::take_broken`].
    pub fn take_broken(&self) -> Option<(&'static str, String)> {
        locked(&self.state).store.take_broken()
    }

    /// Ends the subscriptions of a connection that is closed at this end.
    pub fn close(&self, connection: ConnectionId) {
        locked(&self.state).subscriptions.close(connection);
    }

    /// The current run of the server, or `None` while it is down.
    pub fn run(&self) -> Option<u64> {
        locked(&self.state).run
    }

    /// Identifies its memory. A server that is down has lost it, or may have.
    pub fn memory(&self) -> u64 {
        let state = locked(&self.state);
        state.memory + u64::from(state.run.is_none())
    }

    /// Saves its memory, for a later crash.
    pub fn snapshot(&self) {
        let state = &mut *locked(&self.state);
        state.snapshot = state.store.clone();
    }

    /// Whether tokens stay safe if it loses its memory now: its clock must not have gone back
    /// since.
    pub fn may_forget(&self, now: Nanos) -> bool {
        let state = locked(&self.state);
        state.clock.at(now) >= state.latest_us
    }

    /// Goes down. Returns `false` if it is down already.
    pub fn crash(&self, memory: Memory) -> bool {
        let state = &mut *locked(&self.state);
        match memory {
            Memory::Kept => {}
            Memory::Snapshot => state.store = state.snapshot.clone(),
            Memory::Lost => state.store.clear(),
        }
        state.subscriptions = Subscriptions::default();
        state.replica = false;
        state.run.take().is_some()
    }

    /// Becomes a replica. Returns `false` if it is one already, or is down.
    pub fn demote(&self) -> bool {
        let state = &mut *locked(&self.state);
        state.run.is_some() && !std::mem::replace(&mut state.replica, true)
    }

    /// A copy of its memory, as a replica has it.
    pub fn copy(&self) -> Store {
        locked(&self.state).store.clone()
    }

    /// Becomes a master again, in the same run and with all its connections, but with the given
    /// memory of another server, if any. Returns `false` if it is not a replica.
    pub fn promote(&self, memory: Option<Store>, bug: Option<Bug>) -> bool {
        let state = &mut *locked(&self.state);
        if !std::mem::take(&mut state.replica) {
            return false;
        }
        if let Some(memory) = memory {
            state.store = memory;
        }
        if bug != Some(Bug::PromotionIgnored) {
            state.memory += 1;
            state.promoted = true;
        }
        true
    }

    /// Restarts, in a new run.
    pub fn restart(&self, now: Nanos) {
        let state = &mut *locked(&self.state);
        if state.run.is_none() {
            state.runs += 1;
            state.run = Some(state.runs);
            state.memory += 1;
            state.promoted = false;
            state.up_since = now;
            state.scripts = false;
        }
    }

    /// Loses all data, but keeps running.
    pub fn flush(&self) {
        locked(&self.state).store.clear();
    }

    /// Forgets the scripts.
    pub fn forget_scripts(&self) {
        locked(&self.state).scripts = false;
    }

    /// Steps its clock.
    pub fn step_clock(&self, by_us: i64) {
        let state = &mut *locked(&self.state);
        state.clock.step(by_us);
        let offset = state.clock.offset_us();
        state.latest_offset_us = state.latest_offset_us.max(offset);
    }

    /// How far its clock has been stepped.
    pub fn clock_offset_us(&self) -> i64 {
        locked(&self.state).clock.offset_us()
    }

    /// Whether its epoch is on record, so that a jump back of its clock cannot make it forget
    /// what it granted.
    pub fn remembers(&self) -> bool {
        let state = locked(&self.state);
        state.run.is_some() && !state.replica && state.store.is_of_memory(state.memory)
    }

    /// The largest value by which its clock has been stepped ahead.
    pub fn latest_offset_us(&self) -> i64 {
        locked(&self.state).latest_offset_us
    }

    /// The locks on it and the waiters in its lines, with a description of each.
    pub fn leftovers(&self, now: Nanos) -> Vec<(Holder, String)> {
        let state = locked(&self.state);
        let now_us = state.clock.at(now);
        let locks = state.store.locks(now_us).map(|(name, holder)| {
            let who = holder.label.clone().unwrap_or_default();
            let text = format!("{name} (held by {who}, token {:?})", holder.token);
            (holder, text)
        });
        let lines = state.store.lines(now_us).map(|(name, holder)| {
            let who = holder.label.clone().unwrap_or_default();
            let text = format!("{who} in line for {name}, ticket {:?}", holder.token);
            (holder, text)
        });
        locks.chain(lines).collect()
    }

    /// The holders of a name, with the labels of their processes.
    pub fn holders(&self, name: &Name, now: Nanos) -> Vec<Holder> {
        let state = locked(&self.state);
        let locks = state.store.locks(state.clock.at(now));
        let of_name = locks.filter(|(of, _)| *of == name);
        of_name.map(|(_, holder)| holder).collect()
    }

    /// Whether the claim with this owner value stands in line.
    pub fn stands(&self, name: &Name, owner: &[u8]) -> bool {
        locked(&self.state).store.stands(name, owner)
    }
}
