//! A node's server: it runs, crashes, and comes back with what it kept.

use std::sync::Mutex;
use std::time::Duration;

use leasehold::node::Vote;
use leasehold::node::rules::Constants;
use leasehold::{Holder, Name};

use crate::agenda::{Nanos, SECOND};
use crate::bug::Bug;
use crate::clock::NodeClock;
use crate::network::ConnectionId;
use crate::store::{Ask, Epoch, Store};
use crate::switchboard::{Channel, Switchboard, Telling};
use crate::sync::locked;

/// What a server is asked over a connection.
pub enum Request {
    /// The handshake.
    Hello,
    /// To do something with a claim.
    Ask(Box<Ask>),
    /// To send over this connection whatever comes over the channel.
    Subscribe(Channel),
    /// Whether it is there.
    Ping,
    /// Nothing: the other end is closed.
    Bye,
}

/// What it says.
#[derive(Clone)]
pub enum Reply {
    /// To the handshake.
    Hello {
        /// Since when it has remembered everything.
        epoch: Epoch,
        /// Which memory it has.
        memory: u64,
        /// How long it has been up, in whole seconds; or, if it was promoted since, how long it has
        /// been in its epoch.
        up: Duration,
        /// The epoch begins with this.
        new: bool,
    },
    /// To a claim.
    Vote(Vote),
    /// It is in another epoch.
    Forgot,
    /// It does not know the script.
    NoScript,
    /// It is a replica.
    ReadOnly,
    /// To a claim, if asked to say who it is: which memory and which epoch it has after it did what
    /// the other reply says.
    Verified {
        /// The other reply.
        reply: Box<Reply>,
        /// Which memory.
        memory: u64,
        /// Which epoch.
        epoch: Option<Epoch>,
    },
    /// To a subscription.
    Subscribed,
    /// It is there.
    Pong,
}

impl Reply {
    /// The reply without what verifies it.
    pub fn bare(&self) -> &Self {
        match self {
            Self::Verified { reply, .. } => reply,
            reply => reply,
        }
    }
}

/// What a server comes back with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Everything.
    Kept,
    /// What it knew when the last snapshot was made.
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
    board: Switchboard,
    clock: NodeClock,
    /// Which run of the server this is; `None` while it is down.
    run: Option<u64>,
    runs: u64,
    /// What tells its memory from any other: another after a restart and after a promotion.
    memory: u64,
    /// It is a replica, and refuses what it is asked.
    replica: bool,
    /// It was promoted in this run.
    promoted: bool,
    up_since: Nanos,
    scripts: bool,
    /// The latest that its clock has shown to anybody. Tokens may be as high as that and S.
    latest_us: u64,
    latest_offset_us: i64,
}

impl Server {
    /// A server that has long been up, with nothing stored.
    pub fn new(clock: NodeClock) -> Self {
        Self {
            state: Mutex::new(State {
                store: Store::default(),
                snapshot: Store::default(),
                board: Switchboard::default(),
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

    /// Answers a request that arrived over a connection made in this `run`, and says what is
    /// to be told to those who listen.
    /// `None`: the connection is not known here, or the server is down.
    pub fn answer(
        &self,
        (run, connection): (u64, ConnectionId),
        request: &Request,
        now: Nanos,
        constants: Constants,
        bug: Option<Bug>,
    ) -> Option<(Reply, Vec<Telling>)> {
        let state = &mut *locked(&self.state);
        if state.run != Some(run) {
            return None;
        }
        let now_us = state.clock.at(now);
        state.latest_us = state.latest_us.max(now_us);
        let reply = match request {
            Request::Hello | Request::Ask(_) if state.replica => Reply::ReadOnly,
            Request::Hello => {
                state.scripts = true;
                // The first run began long before the simulation did.
                let before = u64::from(state.runs == 0) * 86_400;
                let up = Duration::from_secs(before + (now - state.up_since) / SECOND);
                let new = !state.store.is_of_memory(state.memory);
                let epoch = state.store.greet(state.memory, now_us);
                Reply::Hello {
                    new,
                    epoch,
                    memory: state.memory,
                    up: match state.promoted {
                        true => up.min(epoch.age(now_us)),
                        false => up,
                    },
                }
            }
            Request::Ask(ask) => {
                let State { store, board, .. } = state;
                let reply = match std::mem::replace(&mut state.scripts, true) {
                    // The one who asks sends the text along when it asks again.
                    false => Reply::NoScript,
                    true => match store.vote(ask, now_us, constants, bug, board) {
                        Some(vote) => Reply::Vote(vote),
                        None => Reply::Forgot,
                    },
                };
                match ask.verifies {
                    true => Reply::Verified {
                        reply: Box::new(reply),
                        memory: state.memory,
                        epoch: state.store.epoch(),
                    },
                    false => reply,
                }
            }
            Request::Subscribe(channel) => {
                state.board.subscribe(*channel, connection);
                Reply::Subscribed
            }
            Request::Ping | Request::Bye => Reply::Pong,
        };
        Some((reply, state.board.take()))
    }

    /// A living waiter that was forgotten; see [`Store::take_forgotten`].
    pub fn take_forgotten(&self) -> Option<String> {
        locked(&self.state).store.take_forgotten()
    }

    /// A connection is closed at this end.
    pub fn close(&self, connection: ConnectionId) {
        locked(&self.state).board.close(connection);
    }

    /// Which run of the server this is; `None` while it is down.
    pub fn run(&self) -> Option<u64> {
        locked(&self.state).run
    }

    /// Keeps what it knows now, for a crash to come.
    pub fn snapshot(&self) {
        let state = &mut *locked(&self.state);
        state.snapshot = state.store.clone();
    }

    /// Whether it may lose its memory now and tokens still be safe: the clock must not have
    /// gone back since.
    pub fn may_forget(&self, now: Nanos) -> bool {
        let state = locked(&self.state);
        state.clock.at(now) >= state.latest_us
    }

    /// Goes down. `false` if it is down.
    pub fn crash(&self, memory: Memory) -> bool {
        let state = &mut *locked(&self.state);
        match memory {
            Memory::Kept => {}
            Memory::Snapshot => state.store = state.snapshot.clone(),
            Memory::Lost => state.store.clear(),
        }
        state.board = Switchboard::default();
        state.replica = false;
        state.run.take().is_some()
    }

    /// Becomes a replica. `false` if it is one, or is down.
    pub fn demote(&self) -> bool {
        let state = &mut *locked(&self.state);
        state.run.is_some() && !std::mem::replace(&mut state.replica, true)
    }

    /// What it knows now, as a replica of it has it.
    pub fn copy(&self) -> Store {
        locked(&self.state).store.clone()
    }

    /// Becomes a master again, in the same run and with all its connections; but with what another
    /// server knew, if that is given. `false` if it is no replica.
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

    /// Comes up again, in a new run.
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

    /// Forgets everything, but runs on.
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

    /// Whether it knows since when it has remembered everything: a jump back of its clock
    /// cannot make it forget what it granted.
    pub fn remembers(&self) -> bool {
        let state = locked(&self.state);
        state.run.is_some() && !state.replica && state.store.is_of_memory(state.memory)
    }

    /// The farthest ahead that its clock has been stepped.
    pub fn latest_offset_us(&self) -> i64 {
        locked(&self.state).latest_offset_us
    }

    /// The locks on it and those who stand in line, as text, with who that is.
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

    /// Who has the lock of a name, by the label of its process.
    pub fn holder(&self, name: &Name, now: Nanos) -> Option<Holder> {
        let state = locked(&self.state);
        let mut locks = state.store.locks(state.clock.at(now));
        locks.find(|(of, _)| *of == name).map(|(_, holder)| holder)
    }

    /// Whether this one stands in line.
    pub fn stands(&self, name: &Name, owner: &[u8]) -> bool {
        locked(&self.state).store.stands(name, owner)
    }
}
