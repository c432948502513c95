//! Signals that this process receives.

use std::task::Poll;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// See [`SignalStreams::forwarded`].
const FORWARDED: [Signal; 6] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// The signals that this process handles from its start on.
pub(crate) struct SignalStreams {
    /// Signals that are forwarded to the command. During the wait for the lock, they end the wait.
    pub(crate) forwarded: Signals,
    /// SIGTSTP (Ctrl-Z).
    pub(crate) stops: Signals,
    /// SIGCONT: this process was stopped and has been continued.
    pub(crate) continues: Signals,
}

impl SignalStreams {
    /// Installs the handlers. Signals that were ignored when this process started (for example
    /// because of `nohup`) stay ignored, also for the command.
    pub(crate) fn start() -> std::io::Result<Self> {
        let ignored = ignored();
        let handled = |signal: &&Signal| ignored >> (**signal as i32 - 1) & 1 == 0;
        let handled =
            |signals: &[Signal]| -> Vec<_> { signals.iter().filter(handled).copied().collect() };
        Ok(Self {
            forwarded: Signals::of(&handled(&FORWARDED))?,
            stops: Signals::of(&handled(&[Signal::SIGTSTP]))?,
            continues: Signals::of(&[Signal::SIGCONT])?,
        })
    }

    /// Waits for a signal that ends this process. Ctrl-Z stops this process, if a shell can continue it.
    ///
    /// Cancel safety: no signal that ends this process is lost.
    pub(crate) async fn until_ended(&mut self) -> Signal {
        loop {
            tokio::select! {
                biased;
                signal = self.forwarded.next() => return signal,
                _ = self.stops.next() => {
                    stop(getpid());
                    // A wait for a lock that begins later was not interrupted.
                    self.was_continued().await;
                }
            }
        }
    }

    /// Whether this process was stopped and continued since the last call.
    pub(crate) async fn was_continued(&mut self) -> bool {
        // Lets the runtime process signals that have arrived.
        tokio::task::yield_now().await;
        tokio::select! {
            biased;
            _ = self.continues.next() => true,
            () = std::future::ready(()) => false,
        }
    }
}

/// A stream of several signals.
pub(crate) struct Signals(Vec<(Signal, Stream)>);

impl Signals {
    pub(crate) fn of(signals: &[Signal]) -> std::io::Result<Self> {
        let listen = |&one: &Signal| Ok((one, signal(SignalKind::from_raw(one as i32))?));
        Ok(Self(
            signals.iter().map(listen).collect::<std::io::Result<_>>()?,
        ))
    }

    /// Waits for the next signal.
    ///
    /// Cancel safety: no signal is lost.
    pub(crate) async fn next(&mut self) -> Signal {
        std::future::poll_fn(|cx| {
            for (signal, stream) in &mut self.0 {
                if stream.poll_recv(cx).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The mask of ignored signals. Without `/proc`, no signal counts as ignored.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// Stops this process, or its group (0), until it is continued. Returns `false` at once if no
/// process could continue it.
pub(crate) fn stop(target: Pid) -> bool {
    can_be_continued() && kill(target, Signal::SIGSTOP).is_ok()
}

/// Whether a shell with job control could continue our process group: an ancestor in another group
/// of the same session.
pub(crate) fn can_be_continued() -> bool {
    use nix::unistd::{getpgid, getpgrp, getppid, getsid};
    const GENERATIONS: usize = 64;
    let session = getsid(None);
    let mut ancestor = getppid();
    for _ in 0..GENERATIONS {
        if ancestor.as_raw() <= 0 || getsid(Some(ancestor)) != session {
            return false;
        }
        if getpgid(Some(ancestor)) != Ok(getpgrp()) {
            return true;
        }
        ancestor = match parent_of(ancestor) {
            Some(parent) => parent,
            None => return false,
        };
    }
    false
}

fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let parent = fields.split(' ').nth(1)?.parse().ok()?;
    Some(Pid::from_raw(parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A signal that has arrived is reported once, without waiting.
    #[tokio::test]
    async fn sigcont_is_noticed() {
        let mut signals = SignalStreams {
            forwarded: Signals(Vec::new()),
            stops: Signals(Vec::new()),
            continues: Signals::of(&[Signal::SIGCONT]).expect("a listener"),
        };
        for _ in 0..100 {
            assert!(!signals.was_continued().await);
            nix::sys::signal::raise(Signal::SIGCONT).expect("raised");
            assert!(signals.was_continued().await);
        }
    }
}
