//! Notifying waiters of this process and of other processes.

use std::cell::RefCell;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::line::Address;
use super::listener::Listener;
use super::local_waiters::LocalWaiters;
use super::sockets::{Peer, Sockets};
use crate::base::name::Name;
use crate::node::{News, Notifier};

/// Notifies waiters of other processes, and lets other processes notify the waiters of this one.
pub(super) struct Notifications {
    store: PathBuf,
    waiters: Arc<LocalWaiters>,
    sockets: RefCell<Option<Arc<Sockets>>>,
    listener: Option<Listener>,
}

/// News for one waiter, ready to be sent.
pub(super) struct Notification {
    to: Recipient,
    news: News,
}

enum Recipient {
    Here(Notifier),
    There(UnixDatagram, i64),
}

/// The waiter is dead.
pub(super) struct Dead;

impl Notifications {
    pub(super) fn new(store: &Path, waiters: Arc<LocalWaiters>) -> Self {
        Self {
            store: store.to_owned(),
            waiters,
            sockets: RefCell::default(),
            listener: None,
        }
    }

    /// Makes sure that other processes can notify this one. If the directory of the sockets was
    /// deleted, creates a new one.
    pub(super) fn listen(&mut self) {
        self.listener.take_if(|listener| !listener.is_reachable());
        if self.listener.is_some() {
            return;
        }
        let start = || Listener::start(self.sockets()?, Arc::clone(&self.waiters));
        match start() {
            Ok(listener) => self.listener = Some(listener),
            // Waiters poll nevertheless.
            Err(why) => tracing::debug!(%why, "waiters of this process cannot be notified"),
        }
    }

    /// Stops listening if this process has no waiters.
    pub(super) fn stop_if_idle(&mut self) {
        let waiters = &self.waiters;
        self.listener.take_if(|_| waiters.is_empty());
    }

    /// Returns where a waiter of this process is notified.
    pub(super) fn address(&self, owner: &[u8]) -> Address {
        let (listener, id) = (&self.listener, self.waiters.id_of(owner));
        match (listener, id) {
            (Some(listener), Some(id)) => Address {
                socket: listener.socket().to_owned(),
                id,
            },
            _ => Address::default(),
        }
    }

    /// Prepares a notification. `None` if the waiter cannot be notified but may be alive.
    pub(super) fn prepare(&self, to: &Address, news: News) -> Result<Option<Notification>, Dead> {
        if to.socket.is_empty() {
            return Ok(None);
        }
        if self.is_here(&to.socket) {
            let to = Recipient::Here(self.waiters.notifier(to.id).ok_or(Dead)?);
            return Ok(Some(Notification { to, news }));
        }
        match self.connect(&to.socket) {
            Peer::Open(socket) => {
                let to = Recipient::There(socket, to.id);
                Ok(Some(Notification { to, news }))
            }
            Peer::Dead => Err(Dead),
            Peer::Unknown => Ok(None),
        }
    }

    /// Whether the process of this socket is dead.
    pub(super) fn is_dead(&self, socket: &str) -> bool {
        let elsewhere = !socket.is_empty() && !self.is_here(socket);
        elsewhere && matches!(self.connect(socket), Peer::Dead)
    }

    fn is_here(&self, socket: &str) -> bool {
        let listener = self.listener.as_ref();
        listener.is_some_and(|listener| listener.socket() == socket)
    }

    fn connect(&self, socket: &str) -> Peer {
        match self.sockets().map(|sockets| sockets.connect(socket)) {
            Ok(peer) => peer,
            Err(_) => Peer::Unknown,
        }
    }

    /// Watches these processes: when one of them dies, the first waiter of this process asks again.
    /// If one is dead already, returns the notification for that.
    pub(super) fn watch_processes(&self, name: &Name, pids: &[u32]) -> Option<Notification> {
        let listener = self.listener.as_ref()?;
        let (added, missed) = self.waiters.watch_processes(name, pids);
        if added {
            listener.wake();
        }
        missed.map(|notifier| Notification {
            to: Recipient::Here(notifier),
            news: News::AskAgain,
        })
    }

    /// Returns the sockets beside the store, in a new directory if theirs was deleted.
    fn sockets(&self) -> std::io::Result<Arc<Sockets>> {
        let mut sockets = self.sockets.borrow_mut();
        if let Some(sockets) = sockets.as_ref().filter(|sockets| sockets.is_current()) {
            return Ok(Arc::clone(sockets));
        }
        Ok(Arc::clone(
            sockets.insert(Arc::new(Sockets::open(&self.store)?)),
        ))
    }
}

impl Notification {
    pub(super) fn send(self) {
        match self.to {
            Recipient::Here(notifier) => notifier.notify(self.news),
            // If its buffer is full, the waiter is not notified and finds out with its next WAIT.
            Recipient::There(socket, id) => {
                let _ = socket.send(message(id, self.news).as_bytes());
            }
        }
    }
}

fn message(id: i64, news: News) -> String {
    format!("{} {id}", news.to_text())
}

/// Parses a message: the id of the waiter, and the news.
pub(super) fn parse_message(message: &[u8]) -> Option<(i64, News)> {
    let space = message.iter().position(|&b| b == b' ')?;
    let (letter, permit) = message[..space].split_first()?;
    let id = std::str::from_utf8(&message[space + 1..]).ok()?;
    Some((id.parse().ok()?, News::read(*letter, permit)?))
}
