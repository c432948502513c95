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
use crate::store::{Ask, Epoch, Standing, Store};
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
        /// How long it has been up, in whole seconds.
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
    /// To a subscription.
    Subscribed,
    /// It is there.
    Pong,
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
            Request::Hello => {
                state.scripts = true;
                // The first run began long before the simulation did.
                let before = u64::from(state.runs == 0) * 86_400;
                Reply::Hello {
                    new: !state.store.is_of_run(run),
                    epoch: state.store.greet(run, now_us),
                    up: Duration::from_secs(before + (now - state.up_since) / SECOND),
                }
            }
            Request::Ask(_) if !state.scripts => {
                // The one who asks sends the text along when it asks again.
                state.scripts = true;
                Reply::NoScript
            }
            Request::Ask(ask) => {
                let State { store, board, .. } = state;
                match store.vote(ask, now_us, constants, bug, board) {
                    Some(vote) => Reply::Vote(vote),
                    None => Reply::Forgot,
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
        state.run.take().is_some()
    }

    /// Comes up again, in a new run.
    pub fn restart(&self, now: Nanos) {
        let state = &mut *locked(&self.state);
        if state.run.is_none() {
            state.runs += 1;
            state.run = Some(state.runs);
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
        state.run.is_some_and(|run| state.store.is_of_run(run))
    }

    /// The farthest ahead that its clock has been stepped.
    pub fn latest_offset_us(&self) -> i64 {
        locked(&self.state).latest_offset_us
    }

    /// The locks on it and those who stand in line, as text, with who that is.
    pub fn leftovers(&self, now: Nanos) -> Vec<(Holder, String)> {
        let state = locked(&self.state);
        let now_us = state.clock.at(now);
        let locks = state.store.locks(now_us).map(|(name, standing)| {
            let Standing { holder, reserved } = standing;
            let how = if reserved { "reserved for" } else { "held by" };
            let who = holder.label.clone().unwrap_or_default();
            let text = format!("{name} ({how} {who}, token {:?})", holder.token);
            (holder, text)
        });
        let lines = state.store.lines(now_us).map(|(name, holder)| {
            let who = holder.label.clone().unwrap_or_default();
            let text = format!("{who} in line for {name}, ticket {:?}", holder.token);
            (holder, text)
        });
        locks.chain(lines).collect()
    }

    /// Who has the lock of a name, by the label of its process: not one for whom it is only
    /// reserved.
    pub fn holder(&self, name: &Name, now: Nanos) -> Option<Holder> {
        let state = locked(&self.state);
        let mut locks = state.store.locks(state.clock.at(now));
        let (_, standing) = locks.find(|(of, standing)| *of == name && !standing.reserved)?;
        Some(standing.holder)
    }

    /// Whether this one stands in line.
    pub fn stands(&self, name: &Name, owner: &[u8]) -> bool {
        locked(&self.state).store.stands(name, owner)
    }
}
