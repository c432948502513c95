//! Telling those who wait, in whatever process they are.

use std::cell::RefCell;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::bells::Bells;
use super::line::Address;
use super::sockets::{Line, Sockets};
use super::waking::Listener;
use crate::base::name::Name;
use crate::node::{News, Notifier};

/// How those who wait elsewhere are told, and those who wait here can be.
pub(super) struct Post {
    store: PathBuf,
    bells: Arc<Bells>,
    sockets: RefCell<Option<Arc<Sockets>>>,
    listener: Option<Listener>,
}

/// News for somebody, ready to be sent.
pub(super) struct Letter {
    to: Recipient,
    news: News,
}

enum Recipient {
    Here(Notifier),
    There(UnixDatagram, i64),
}

/// Whoever it was for is dead.
pub(super) struct Dead;

impl Post {
    pub(super) fn new(store: &Path, bells: Arc<Bells>) -> Self {
        Self {
            store: store.to_owned(),
            bells,
            sockets: RefCell::default(),
            listener: None,
        }
    }

    /// Makes sure that this process can be told; in a new directory if that for the sockets
    /// was deleted.
    pub(super) fn listen(&mut self) {
        self.listener.take_if(|listener| !listener.is_reachable());
        if self.listener.is_some() {
            return;
        }
        let start = || Listener::start(self.sockets()?, Arc::clone(&self.bells));
        match start() {
            Ok(listener) => self.listener = Some(listener),
            // Those who wait ask from time to time all the same.
            Err(why) => tracing::debug!(%why, "those who wait here cannot be told"),
        }
    }

    /// Stops listening if nobody waits here.
    pub(super) fn rest(&mut self) {
        let bells = &self.bells;
        self.listener.take_if(|_| bells.is_empty());
    }

    /// Where one who waits here is told.
    pub(super) fn address(&self, owner: &[u8]) -> Address {
        let (listener, id) = (&self.listener, self.bells.id_of(owner));
        match (listener, id) {
            (Some(listener), Some(id)) => Address {
                socket: listener.socket().to_owned(),
                id,
            },
            _ => Address::default(),
        }
    }

    /// Writes to one who waits. Nothing, if it cannot be told but may be alive.
    pub(super) fn write(&self, to: &Address, news: News) -> Result<Option<Letter>, Dead> {
        if to.socket.is_empty() {
            return Ok(None);
        }
        if self.is_here(&to.socket) {
            let to = Recipient::Here(self.bells.notifier(to.id).ok_or(Dead)?);
            return Ok(Some(Letter { to, news }));
        }
        match self.call(&to.socket) {
            Line::Open(socket) => {
                let to = Recipient::There(socket, to.id);
                Ok(Some(Letter { to, news }))
            }
            Line::Dead => Err(Dead),
            Line::Unknown => Ok(None),
        }
    }

    /// Whether nobody listens to this socket any more.
    pub(super) fn is_dead(&self, socket: &str) -> bool {
        let elsewhere = !socket.is_empty() && !self.is_here(socket);
        elsewhere && matches!(self.call(socket), Line::Dead)
    }

    fn is_here(&self, socket: &str) -> bool {
        let listener = self.listener.as_ref();
        listener.is_some_and(|listener| listener.socket() == socket)
    }

    fn call(&self, socket: &str) -> Line {
        match self.sockets().map(|sockets| sockets.call(socket)) {
            Ok(line) => line,
            Err(_) => Line::Unknown,
        }
    }

    /// Those who wait here are told when one of these processes dies; at once, by this letter,
    /// if one has.
    pub(super) fn await_deaths(&self, name: &Name, pids: &[u32]) -> Option<Letter> {
        let listener = self.listener.as_ref()?;
        let (added, missed) = self.bells.await_deaths(name, pids);
        if added {
            listener.nudge();
        }
        missed.map(|notifier| Letter {
            to: Recipient::Here(notifier),
            news: News::AskAgain,
        })
    }

    /// The sockets beside the store: in another directory by now if theirs was deleted.
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

impl Letter {
    pub(super) fn send(self) {
        match self.to {
            Recipient::Here(notifier) => notifier.notify(self.news),
            // If it has more to read than it can hold it is not told, and asks by itself.
            Recipient::There(socket, id) => {
                let _ = socket.send(message(id, self.news).as_bytes());
            }
        }
    }
}

fn message(id: i64, news: News) -> String {
    format!("{}{id}", news.letter())
}

/// Whom a message is for, and what it says.
pub(super) fn read_message(message: &[u8]) -> Option<(i64, News)> {
    let (news, id) = message.split_first()?;
    let news = News::from_letter(*news)?;
    Some((std::str::from_utf8(id).ok()?.parse().ok()?, news))
}
