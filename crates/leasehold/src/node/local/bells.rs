//! Those who wait in this process, and the processes whose death they wait for.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::base::name::Name;
use crate::node::{Claim, News, Notifier, Watch};

/// The bells of this process.
#[derive(Default)]
pub(super) struct Bells {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    last_id: i64,
    waiting: HashMap<i64, Waiting>,
    ids: HashMap<Box<[u8]>, i64>,
    /// Tickets and ids, by what is waited for.
    lines: HashMap<Name, BTreeSet<(u64, i64)>>,
    deaths: HashMap<u32, Death>,
}

struct Waiting {
    name: Name,
    ticket: u64,
    notifier: Notifier,
}

/// A process whose death is waited for.
struct Death {
    process: Arc<OwnedFd>,
    /// What it holds, or held.
    names: HashSet<Name>,
}

impl Bells {
    pub(super) fn watch(self: &Arc<Self>, claim: &Claim, notifier: &Notifier) -> Watch {
        let waiting = Waiting {
            name: claim.name().clone(),
            ticket: claim.token(),
            notifier: notifier.clone(),
        };
        self.state().enter(claim.owner(), waiting);
        Watch::new(Unwatch {
            bells: Arc::clone(self),
            owner: claim.owner().into(),
        })
    }

    /// How one who waits is called at the socket of this process.
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

    /// The first in line here asks again when one of these processes dies. Whether there is
    /// one to be watched that was not; and whose notifier is to be rung if one has died already.
    pub(super) fn await_deaths(&self, name: &Name, pids: &[u32]) -> (bool, Option<Notifier>) {
        let (mut added, mut missed) = (false, None);
        let mut state = self.state();
        if !state.lines.contains_key(name) {
            return (false, None);
        }
        for &pid in pids {
            if let Some(death) = state.deaths.get_mut(&pid) {
                death.names.insert(name.clone());
                continue;
            }
            match open_process(pid) {
                Opened::Process(process) => {
                    let names = HashSet::from([name.clone()]);
                    let process = Arc::new(process);
                    state.deaths.insert(pid, Death { process, names });
                    added = true;
                }
                Opened::Dead => missed = state.first(name),
                Opened::Unknown => {}
            }
        }
        (added, missed)
    }

    /// The processes whose death is waited for.
    pub(super) fn processes(&self) -> Vec<(u32, Arc<OwnedFd>)> {
        let state = self.state();
        let deaths = state.deaths.iter();
        deaths
            .map(|(pid, death)| (*pid, Arc::clone(&death.process)))
            .collect()
    }

    /// A process has died: whoever is first here in a line for what it held asks again, and
    /// the vote on that serves the line, whoever is first there.
    pub(super) fn died(&self, pid: u32) {
        let mut state = self.state();
        let death = state.deaths.remove(&pid);
        let names = death.map(|death| death.names).unwrap_or_default();
        let bells: Vec<_> = names.iter().filter_map(|name| state.first(name)).collect();
        drop(state);
        for notifier in bells {
            notifier.notify(News::AskAgain);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn enter(&mut self, owner: &[u8], waiting: Waiting) {
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
                self.deaths.retain(|_, death| {
                    death.names.remove(&name);
                    !death.names.is_empty()
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
    bells: Arc<Bells>,
    owner: Box<[u8]>,
}

impl Drop for Unwatch {
    fn drop(&mut self) {
        self.bells.state().leave(&self.owner);
    }
}

/// What there is of a process.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
enum Opened {
    Process(OwnedFd),
    Dead,
    /// It cannot be watched; those who wait ask from time to time.
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
