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
    /// From now on none of these ends the process by itself.
    pub(crate) fn forwarded() -> std::io::Result<Self> {
        Self::of(&FORWARDED)
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
