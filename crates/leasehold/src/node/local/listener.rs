//! The thread that receives notifications for the waiters of this process.
//!
//! A process with waiters has a datagram socket beside the store. Its thread sleeps on the socket
//! and on the processes that hold the locks, so it learns when one of them dies.

use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, poll};

use super::local_waiters::LocalWaiters;
use super::notify::parse_message;
use super::sockets::{Peer, Sockets};

/// The socket and the thread.
pub(super) struct Listener {
    socket: String,
    sockets: Arc<Sockets>,
    closed: Arc<AtomicBool>,
}

impl Listener {
    pub(super) fn start(
        sockets: Arc<Sockets>,
        waiters: Arc<LocalWaiters>,
    ) -> std::io::Result<Self> {
        let name = format!("{}-{:016x}.sock", std::process::id(), fastrand::u64(..));
        let socket = sockets.bind(&name)?;
        let listener = Self {
            socket: name,
            sockets,
            closed: Arc::default(),
        };
        let closed = Arc::clone(&listener.closed);
        std::thread::Builder::new()
            .name("leasehold-wake".into())
            .spawn(move || listen(&socket, &waiters, &closed))?;
        Ok(listener)
    }

    /// The name of the socket, for other processes.
    pub(super) fn socket(&self) -> &str {
        &self.socket
    }

    /// Whether other processes can find the socket. It may have been deleted.
    pub(super) fn is_reachable(&self) -> bool {
        self.sockets.has(&self.socket)
    }

    /// Wakes the thread, so that it watches the current set of processes.
    pub(super) fn wake(&self) {
        // If this fails, waiters still poll.
        if let Peer::Open(socket) = self.sockets.connect(&self.socket) {
            let _ = socket.send(b"");
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        self.wake();
        self.sockets.remove(&self.socket);
    }
}

fn listen(socket: &UnixDatagram, waiters: &LocalWaiters, closed: &AtomicBool) {
    loop {
        receive(socket, waiters);
        if closed.load(Ordering::Acquire) {
            return;
        }
        let processes = waiters.processes();
        let mut fds = vec![PollFd::new(socket, PollFlags::IN)];
        fds.extend(
            processes
                .iter()
                .map(|(_, fd)| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)),
        );
        // An interrupted poll is like one that returned.
        let _ = poll(&mut fds, None);
        for (fd, (pid, _)) in fds[1..].iter().zip(&processes) {
            if !fd.revents().is_empty() {
                waiters.died(*pid);
            }
        }
    }
}

/// Notifies the waiters of all messages that have arrived.
fn receive(socket: &UnixDatagram, waiters: &LocalWaiters) {
    let mut message = [0; 32];
    while let Ok(length) = socket.recv(&mut message) {
        let Some((id, news)) = parse_message(&message[..length]) else {
            continue;
        };
        if let Some(notifier) = waiters.notifier(id) {
            notifier.notify(news);
        }
    }
}
