//! Signals that arrive at this process.

use std::task::Poll;

use nix::sys::signal::Signal;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

/// Passed on to the command; while waiting for the lock, they end the wait.
const FORWARDED: [Signal; 6] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
];

/// Listens to several signals.
pub(crate) struct Signals(Vec<(Signal, Stream)>);

impl Signals {
    /// From now on none of these ends the process by itself. Those that were ignored when it
    /// was started (by `nohup`, for one) stay so, also for the command.
    pub(crate) fn forwarded() -> std::io::Result<Self> {
        let ignored = ignored();
        let heeded = |signal: &&Signal| ignored >> (**signal as i32 - 1) & 1 == 0;
        let heeded: Vec<_> = FORWARDED.iter().filter(heeded).copied().collect();
        Self::of(&heeded)
    }

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
