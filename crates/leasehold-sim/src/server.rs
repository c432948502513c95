//! A node's server: it runs, crashes, and comes back with what it kept.

use std::sync::Mutex;
use std::time::Duration;

use leasehold::node::Vote;
use leasehold::node::rules::Constants;

use crate::agenda::{Nanos, SECOND};
use crate::bug::Bug;
use crate::clock::NodeClock;
use crate::store::{Ask, Epoch, Store};
use crate::sync::locked;

/// What a server is asked over a connection.
pub enum Request {
    /// The handshake.
    Hello,
    /// To do something with a claim.
    Ask(Box<Ask>),
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
    },
    /// To a claim.
    Vote(Vote),
    /// It is in another epoch.
    Forgot,
    /// It does not know the script.
    NoScript,
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

    /// Answers a request that arrived over a connection made in this `run`.
    /// `None`: the connection is not known here, or the server is down.
    pub fn answer(
        &self,
        run: u64,
        request: &Request,
        now: Nanos,
        constants: Constants,
        bug: Option<Bug>,
    ) -> Option<Reply> {
        let state = &mut *locked(&self.state);
        if state.run != Some(run) {
            return None;
        }
        let now_us = state.clock.at(now);
        state.latest_us = state.latest_us.max(now_us);
        Some(match request {
            Request::Hello => {
                state.scripts = true;
                // The first run began long before the simulation did.
                let before = u64::from(state.runs == 0) * 86_400;
                Reply::Hello {
                    epoch: state.store.greet(run, now_us),
                    up: Duration::from_secs(before + (now - state.up_since) / SECOND),
                }
            }
            Request::Ask(_) if !state.scripts => {
                // The one who asks sends the text along when it asks again.
                state.scripts = true;
                Reply::NoScript
            }
            Request::Ask(ask) => match state.store.vote(ask, now_us, constants, bug) {
                Some(vote) => Reply::Vote(vote),
                None => Reply::Forgot,
            },
        })
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

    /// The locks on it, as text; without those that only `min_hold` keeps, if so wished.
    pub fn locks(&self, now: Nanos, kept_too: bool) -> Vec<String> {
        let state = locked(&self.state);
        let locks = state.store.locks(state.clock.at(now));
        locks
            .filter(|(_, holder)| kept_too || !holder.kept)
            .map(|(name, holder)| {
                let by = holder.label.unwrap_or_default();
                format!("{name} (by {by}, token {:?})", holder.token)
            })
            .collect()
    }
}
