//! Waking those who wait, in whatever process they are, without anybody polling.
//!
//! A process that waits has a datagram socket beside the store and a thread that sleeps on
//! it. Whoever frees a name sends a datagram to the first who waits for it. The thread also
//! sleeps on the processes that hold what is waited for, and so hears when one dies.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};

use super::rows::Waiter;
use crate::name::Name;
use crate::node::Bell;

/// More are not remembered: who is missed asks by itself, a second later.
const MAX_EARLY: usize = 64;

/// The directory of the sockets of a store.
pub(super) struct Sockets {
    path: PathBuf,
    /// The permissions of the store.
    mode: u32,
    /// A short way there: the paths of sockets may be about 100 bytes long.
    #[cfg(target_os = "linux")]
    dir: OwnedFd,
}

impl Sockets {
    pub(super) fn open(store: &Path) -> std::io::Result<Self> {
        let mut path = store.as_os_str().to_owned();
        path.push(".wake");
        let path = PathBuf::from(path);
        match std::fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let sockets = Self {
            #[cfg(target_os = "linux")]
            dir: {
                use rustix::fs::{Mode, OFlags, open};
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                open(&path, flags, Mode::empty())?
            },
            mode: std::fs::metadata(store)?.mode(),
            path,
        };
        sockets.share(&sockets.path)?;
        Ok(sockets)
    }

    /// Lets those in who may write the store: its group, or everybody.
    fn share(&self, path: &Path) -> std::io::Result<()> {
        let group = if self.mode & 0o020 == 0 { 0 } else { 0o070 };
        let others = if self.mode & 0o002 == 0 { 0 } else { 0o007 };
        // What hands the group on to what is made in there stays.
        let special = std::fs::metadata(path)?.mode() & 0o7000;
        let mode = std::fs::Permissions::from_mode(special | 0o700 | group | others);
        match std::fs::set_permissions(path, mode) {
            // It is another's, who has done so.
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
            done => done,
        }
    }

    /// The way to a socket. The names of sockets come from a file that others write: one that
    /// leads elsewhere is none.
    fn address(&self, name: &str) -> std::io::Result<PathBuf> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        if !name.ends_with(".sock") || !name.chars().all(plain) {
            return Err(std::io::ErrorKind::NotFound.into());
        }
        #[cfg(target_os = "linux")]
        {
            use std::os::fd::AsRawFd;
            let dir = self.dir.as_raw_fd();
            Ok(PathBuf::from(format!("/proc/self/fd/{dir}/{name}")))
        }
        #[cfg(not(target_os = "linux"))]
        Ok(self.path.join(name))
    }

    /// Sends a message, without waiting.
    fn send(&self, name: &str, message: &str) -> Sent {
        use std::io::ErrorKind::{ConnectionRefused, NotFound};
        let sent = self.address(name).and_then(|address| {
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            socket.send_to(message.as_bytes(), address)
        });
        match sent {
            Ok(_) => Sent::Heard,
            Err(error) if matches!(error.kind(), ConnectionRefused | NotFound) => {
                self.remove(name);
                Sent::Gone
            }
            // It has more to read than it can hold, and will look at everything; or it is
            // another user's, who lets nobody knock.
            Err(_) => Sent::Unknown,
        }
    }

    fn remove(&self, name: &str) {
        if let Ok(address) = self.address(name) {
            let _ = std::fs::remove_file(address);
        }
    }

    /// Whether nobody listens to this socket any more. What is left of it is removed.
    pub(super) fn is_dead(&self, name: &str) -> bool {
        matches!(self.send(name, "0"), Sent::Gone)
    }

    /// Wakes the first of these that can be woken; those before it who are gone.
    pub(super) fn wake_first(&self, waiters: &[Waiter]) -> Vec<Waiter> {
        let mut gone = Vec::new();
        for waiter in waiters {
            match self.send(&waiter.socket, &waiter.id.to_string()) {
                Sent::Heard => break,
                Sent::Gone => gone.push(waiter.clone()),
                // It may be stopped, so the next is told as well.
                Sent::Unknown => {}
            }
        }
        gone
    }
}

/// What became of a message.
enum Sent {
    Heard,
    /// The process that listened is dead.
    Gone,
    Unknown,
}

/// The ear of this process.
pub(super) struct Listener {
    socket: String,
    sockets: Arc<Sockets>,
    shared: Arc<Shared>,
}

struct Shared {
    socket: UnixDatagram,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    bells: HashMap<i64, (Name, Bell)>,
    /// Rung for by others before they were entered here.
    early: Vec<i64>,
    deaths: Vec<Death>,
    closed: bool,
}

/// A process whose death is waited for.
struct Death {
    pid: u32,
    name: Name,
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    process: OwnedFd,
}

impl Listener {
    pub(super) fn start(sockets: Arc<Sockets>) -> std::io::Result<Self> {
        let name = format!("{}-{:016x}.sock", std::process::id(), fastrand::u64(..));
        let shared = Arc::new(Shared {
            socket: UnixDatagram::bind(sockets.address(&name)?)?,
            state: Mutex::default(),
        });
        sockets.share(&sockets.address(&name)?)?;
        shared.socket.set_nonblocking(true)?;
        let listener = Self {
            socket: name,
            sockets,
            shared: Arc::clone(&shared),
        };
        std::thread::Builder::new()
            .name("leasehold-wake".into())
            .spawn(move || listen(&shared))?;
        Ok(listener)
    }

    /// The socket's name, for those who wake.
    pub(super) fn socket(&self) -> &str {
        &self.socket
    }

    pub(super) fn enter(&self, id: i64, name: Name, bell: Bell) {
        let mut state = self.shared.state();
        if state.early.contains(&id) {
            bell.ring();
        }
        // Ids grow: those before this one will not be entered any more.
        state.early.retain(|early| *early > id);
        state.bells.insert(id, (name, bell));
    }

    pub(super) fn strike(&self, id: i64) {
        let mut state = self.shared.state();
        if let Some((name, _)) = state.bells.remove(&id)
            && !state.is_awaited(&name)
        {
            state.deaths.retain(|death| death.name != name);
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.shared.state().bells.is_empty()
    }

    pub(super) fn awaits(&self, name: &Name) -> bool {
        self.shared.state().is_awaited(name)
    }

    /// Rings when one of these processes dies.
    pub(super) fn await_deaths(&self, name: &Name, pids: &[u32]) {
        let mut state = self.shared.state();
        let mut added = false;
        for &pid in pids {
            let known = |death: &Death| death.pid == pid && death.name == *name;
            if state.deaths.iter().any(known) {
                continue;
            }
            match open_process(pid) {
                Some(process) => state.deaths.push(Death {
                    pid,
                    name: name.clone(),
                    process,
                }),
                None => continue,
            }
            added = true;
        }
        drop(state);
        if added {
            self.nudge();
        }
    }

    /// Makes the thread look at the state again.
    fn nudge(&self) {
        // If it cannot be nudged, the waiters ask from time to time.
        self.sockets.send(&self.socket, "0");
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.shared.state().closed = true;
        self.nudge();
        self.sockets.remove(&self.socket);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_awaited(&self, name: &Name) -> bool {
        self.bells.values().any(|(awaited, _)| awaited == name)
    }

    /// Rings for the first who waits for a name here.
    fn ring_first(&self, name: &Name) {
        let waiting = self
            .bells
            .iter()
            .filter(|(_, (awaited, _))| awaited == name);
        if let Some((_, (_, bell))) = waiting.min_by_key(|(id, _)| **id) {
            bell.ring();
        }
    }
}

fn listen(shared: &Shared) {
    loop {
        hear(shared);
        let processes: Vec<_> = {
            let state = shared.state();
            if state.closed {
                return;
            }
            let deaths = state.deaths.iter();
            deaths
                .filter_map(|death| death.process.try_clone().ok())
                .collect()
        };
        let mut fds = vec![PollFd::new(&shared.socket, PollFlags::IN)];
        fds.extend(
            processes
                .iter()
                .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)),
        );
        // An interrupted sleep is as good as one that ended.
        let _ = poll(&mut fds, None);
        bury(&mut shared.state());
    }
}

/// Rings for every datagram that has arrived.
fn hear(shared: &Shared) {
    let mut message = [0; 32];
    while let Ok(length) = shared.socket.recv(&mut message) {
        let id = std::str::from_utf8(&message[..length]).ok();
        let Some(id) = id.and_then(|text| text.parse().ok()) else {
            continue;
        };
        let mut state = shared.state();
        match state.bells.get(&id) {
            Some((_, bell)) => bell.ring(),
            None if id > 0 && state.early.len() < MAX_EARLY => state.early.push(id),
            None => {}
        }
    }
}

/// Rings for those who wait for processes that have died.
fn bury(state: &mut State) {
    let has_died = |death: &Death| {
        let mut fd = [PollFd::new(&death.process, PollFlags::IN)];
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut fd, Some(&now)).is_ok_and(|ready| ready > 0)
    };
    let (dead, living) = std::mem::take(&mut state.deaths)
        .into_iter()
        .partition(has_died);
    state.deaths = living;
    let dead: Vec<Death> = dead;
    for death in dead {
        state.ring_first(&death.name);
    }
}

#[cfg(target_os = "linux")]
fn open_process(pid: u32) -> Option<OwnedFd> {
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

#[cfg(not(target_os = "linux"))]
fn open_process(_: u32) -> Option<OwnedFd> {
    None
}
