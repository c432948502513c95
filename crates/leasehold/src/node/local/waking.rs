//! Waking those who wait in this process, without anybody polling.
//!
//! A process that waits has a datagram socket beside the store and a thread that sleeps on
//! it, and on the processes that hold what is waited for: so it hears when one dies.

use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, poll};

use super::bells::Bells;
use super::post::read_message;
use super::sockets::{Line, Sockets};

/// The ear of this process.
pub(super) struct Listener {
    socket: String,
    sockets: Arc<Sockets>,
    closed: Arc<AtomicBool>,
}

impl Listener {
    pub(super) fn start(sockets: Arc<Sockets>, bells: Arc<Bells>) -> std::io::Result<Self> {
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
            .spawn(move || listen(&socket, &bells, &closed))?;
        Ok(listener)
    }

    /// The socket's name, for those who wake.
    pub(super) fn socket(&self) -> &str {
        &self.socket
    }

    /// Whether others can find the socket. Somebody may have deleted it.
    pub(super) fn is_reachable(&self) -> bool {
        self.sockets.has(&self.socket)
    }

    /// Makes the thread look again whose deaths are waited for.
    pub(super) fn nudge(&self) {
        // If it cannot be nudged, those who wait ask from time to time.
        if let Line::Open(socket) = self.sockets.call(&self.socket) {
            let _ = socket.send(b"");
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        self.nudge();
        self.sockets.remove(&self.socket);
    }
}

fn listen(socket: &UnixDatagram, bells: &Bells, closed: &AtomicBool) {
    loop {
        hear(socket, bells);
        if closed.load(Ordering::Acquire) {
            return;
        }
        let processes = bells.processes();
        let mut fds = vec![PollFd::new(socket, PollFlags::IN)];
        fds.extend(
            processes
                .iter()
                .map(|(_, fd)| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)),
        );
        // An interrupted sleep is as good as one that ended.
        let _ = poll(&mut fds, None);
        for (fd, (pid, _)) in fds[1..].iter().zip(&processes) {
            if !fd.revents().is_empty() {
                bells.died(*pid);
            }
        }
    }
}

/// Rings for every message that has arrived.
fn hear(socket: &UnixDatagram, bells: &Bells) {
    let mut message = [0; 32];
    while let Ok(length) = socket.recv(&mut message) {
        let Some((id, news)) = read_message(&message[..length]) else {
            continue;
        };
        if let Some(notifier) = bells.notifier(id) {
            notifier.notify(news);
        }
    }
}
