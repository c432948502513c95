//! Signals that arrive at this process.

use std::task::Poll;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// See [`Listening::forwarded`].
const FORWARDED: [Signal; 6] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// All signals that are listened to from the start.
pub(crate) struct Listening {
    /// Passed on to the command; while waiting for the lock, they end the wait.
    pub(crate) forwarded: Signals,
    /// Ctrl-Z.
    pub(crate) stops: Signals,
    /// This process was stopped, and has been continued.
    pub(crate) continues: Signals,
}

impl Listening {
    /// From now on none of these has its default effect. Those that were ignored when this
    /// process was started (by `nohup`, for one) stay so, also for the command.
    pub(crate) fn start() -> std::io::Result<Self> {
        let ignored = ignored();
        let heeded = |signal: &&Signal| ignored >> (**signal as i32 - 1) & 1 == 0;
        let heeded =
            |signals: &[Signal]| -> Vec<_> { signals.iter().filter(heeded).copied().collect() };
        Ok(Self {
            forwarded: Signals::of(&heeded(&FORWARDED))?,
            stops: Signals::of(&heeded(&[Signal::SIGTSTP]))?,
            continues: Signals::of(&[Signal::SIGCONT])?,
        })
    }

    /// Whether this process was stopped and continued since the last that was noticed.
    pub(crate) async fn was_continued(&mut self) -> bool {
        // Lets the runtime see signals that have arrived.
        tokio::task::yield_now().await;
        tokio::select! {
            biased;
            _ = self.continues.next() => true,
            () = std::future::ready(()) => false,
        }
    }
}

/// Listens to several signals.
pub(crate) struct Signals(Vec<(Signal, Stream)>);

impl Signals {
    pub(crate) fn of(signals: &[Signal]) -> std::io::Result<Self> {
        let listen = |&one: &Signal| Ok((one, signal(SignalKind::from_raw(one as i32))?));
        Ok(Self(
            signals.iter().map(listen).collect::<std::io::Result<_>>()?,
        ))
    }

    /// The next that arrives.
    ///
    /// Cancel safety: none is lost.
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

/// The signals that are ignored, one bit each, as far as can be told.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

/// Stops this process, or its group (0), until it is continued. Returns at once if no process
/// could continue it.
pub(crate) fn stop(whom: Pid) -> bool {
    can_be_continued() && kill(whom, Signal::SIGSTOP).is_ok()
}

/// Whether there is a shell with job control that could continue our process group if it stopped:
/// an ancestor in another group of the same session.
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

    /// A signal that has arrived is noticed without a wait, once.
    #[tokio::test]
    async fn a_continued_process_knows_it() {
        let mut signals = Listening {
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
