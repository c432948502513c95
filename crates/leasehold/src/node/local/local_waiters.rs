//! The waiters of this process, and the processes that they watch.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::base::name::Name;
use crate::node::{Claim, News, Notifier, Watch};

/// The waiters of this process.
#[derive(Default)]
pub(super) struct LocalWaiters {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last_id: i64,
    waiting: HashMap<i64, Waiting>,
    ids: HashMap<Box<[u8]>, i64>,
    /// The tickets and ids of the waiters of each name.
    lines: HashMap<Name, BTreeSet<(u64, i64)>>,
    watched: HashMap<u32, WatchedProcess>,
}

struct Waiting {
    name: Name,
    ticket: u64,
    notifier: Notifier,
}

/// A watched process.
struct WatchedProcess {
    handle: Arc<OwnedFd>,
    /// The locks that it holds, or held.
    names: HashSet<Name>,
}

impl LocalWaiters {
    pub(super) fn watch(self: &Arc<Self>, claim: &Claim, notifier: &Notifier) -> Watch {
        let waiting = Waiting {
            name: claim.name().clone(),
            ticket: claim.token(),
            notifier: notifier.clone(),
        };
        self.state().join(claim.owner(), waiting);
        Watch::new(Unwatch {
            waiters: Arc::clone(self),
            owner: claim.owner().into(),
        })
    }

    /// Returns the id of a waiter at the socket of this process.
    pub(super) fn id_of(&self, owner: &[u8]) -> Option<i64> {
        self.state().ids.get(owner).copied()
    }

    pub(super) fn notifier(&self, id: i64) -> Option<Notifier> {
        let state = self.state();
        state
            .waiting
            .get(&id)
            .map(|waiting| waiting.notifier.clone())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state().waiting.is_empty()
    }

    /// Watches these processes: the first waiter of the name in this process asks again when one of
    /// them dies. Returns whether a process is newly watched, and the waiter to notify if one is
    /// dead already.
    pub(super) fn watch_processes(&self, name: &Name, pids: &[u32]) -> (bool, Option<Notifier>) {
        let (mut added, mut missed) = (false, None);
        let mut state = self.state();
        if !state.lines.contains_key(name) {
            return (false, None);
        }
        for &pid in pids {
            if let Some(process) = state.watched.get_mut(&pid) {
                process.names.insert(name.clone());
                continue;
            }
            match open_process(pid) {
                Opened::Process(process) => {
                    let names = HashSet::from([name.clone()]);
                    let handle = Arc::new(process);
                    state.watched.insert(pid, WatchedProcess { handle, names });
                    added = true;
                }
                Opened::Dead => missed = state.first(name),
                Opened::Unknown => {}
            }
        }
        (added, missed)
    }

    /// Returns the watched processes.
    pub(super) fn processes(&self) -> Vec<(u32, Arc<OwnedFd>)> {
        let state = self.state();
        let watched = state.watched.iter();
        watched
            .map(|(pid, process)| (*pid, Arc::clone(&process.handle)))
            .collect()
    }

    /// A process has died. For each lock that it held, the first waiter in this process asks again.
    /// The vote on that serves the line, whichever waiter is first in it.
    pub(super) fn died(&self, pid: u32) {
        let mut state = self.state();
        let process = state.watched.remove(&pid);
        let names = process.map(|process| process.names).unwrap_or_default();
        let notifiers: Vec<_> = names.iter().filter_map(|name| state.first(name)).collect();
        drop(state);
        for notifier in notifiers {
            notifier.notify(News::AskAgain);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn join(&mut self, owner: &[u8], waiting: Waiting) {
        self.leave(owner);
        self.last_id += 1;
        let id = self.last_id;
        self.ids.insert(owner.into(), id);
        let line = self.lines.entry(waiting.name.clone()).or_default();
        line.insert((waiting.ticket, id));
        self.waiting.insert(id, waiting);
    }

    fn leave(&mut self, owner: &[u8]) {
        let id = self.ids.remove(owner);
        let Some((id, waiting)) = id.and_then(|id| Some((id, self.waiting.remove(&id)?))) else {
            return;
        };
        let name = waiting.name;
        if let Some(line) = self.lines.get_mut(&name) {
            line.remove(&(waiting.ticket, id));
            if line.is_empty() {
                self.lines.remove(&name);
                self.watched.retain(|_, process| {
                    process.names.remove(&name);
                    !process.names.is_empty()
                });
            }
        }
    }

    fn first(&self, name: &Name) -> Option<Notifier> {
        let (_, id) = self.lines.get(name)?.first()?;
        Some(self.waiting.get(id)?.notifier.clone())
    }
}

/// Ends a watch when dropped.
struct Unwatch {
    waiters: Arc<LocalWaiters>,
    owner: Box<[u8]>,
}

impl Drop for Unwatch {
    fn drop(&mut self) {
        self.waiters.state().leave(&self.owner);
    }
}

/// The result of opening a process.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
enum Opened {
    Process(OwnedFd),
    Dead,
    /// The process cannot be watched. Waiters still poll.
    Unknown,
}

#[cfg(target_os = "linux")]
fn open_process(pid: u32) -> Opened {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    match pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) {
        Some(Ok(process)) => Opened::Process(process),
        Some(Err(rustix::io::Errno::SRCH)) => Opened::Dead,
        _ => Opened::Unknown,
    }
}

#[cfg(not(target_os = "linux"))]
fn open_process(_: u32) -> Opened {
    Opened::Unknown
}
