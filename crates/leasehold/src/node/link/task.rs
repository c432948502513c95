//! The task behind a link: keeps one connection, and makes a new one when it is over.
//!
//! Connecting and reconnecting happen here, never on the path of an acquire: while the
//! server is known to be away, calls are answered at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::job::Job;
use super::serving::{Ended, Serving};
use super::status::Status;
use super::{Handshake, Transport};
use crate::base::backoff::{Backoff, Pauses};
use crate::base::clock::{Clock, Moment};
use crate::node::{Call, NodeError};
use crate::observe::NodeWatch;

/// The pause before the second attempt to connect.
pub const FIRST_RETRY: Duration = Duration::from_millis(20);
/// The longest pause between two attempts to connect.
pub const LONGEST_RETRY: Duration = Duration::from_secs(1);
pub(super) const RETRIES: Pauses = Pauses::doubling(FIRST_RETRY, LONGEST_RETRY);

/// The task's state between connections.
pub(super) struct Task<T> {
    pub(super) transport: T,
    pub(super) clock: Clock,
    pub(super) verify_after: Duration,
    pub(super) status: Arc<Status>,
    pub(super) inbox: mpsc::UnboundedReceiver<Call>,
    /// Calls that wait for the connection.
    pub(super) waiting: VecDeque<Job>,
    /// Connections that failed or broke in a row.
    pub(super) failures: u32,
    pub(super) backoff: Backoff,
    pub(super) watch: NodeWatch,
}

impl<T: Transport> Task<T> {
    pub(super) async fn run(mut self) {
        // A client that only inspects locks uses a connection of its own and writes nothing: the
        // first handshake records constants and an epoch.
        tokio::select! {
            biased;
            () = self.status.needed.notified() => {}
            call = self.inbox.recv() => match call {
                None => return,
                Some(call) => self.waiting.push_back(Job::new(call, self.clock.now())),
            },
        }
        loop {
            let Some(connected) = self.connect().await else {
                return;
            };
            let why = match connected {
                Err(why) => why,
                Ok((connection, handshake)) => {
                    self.status.set_floor(handshake.floor);
                    self.status.set(Ok(()));
                    self.status.set_away(false);
                    let node = self.transport.label();
                    self.watch.connected(node, &handshake.found());
                    let serving = Serving::new(&mut self, connection, handshake);
                    let (ended, was_useful) = serving.run().await;
                    match ended {
                        Ended::Unused => return,
                        Ended::Broken(why) => {
                            if was_useful {
                                self.failures = 0;
                                self.backoff.reset();
                            }
                            why
                        }
                    }
                }
            };
            let node = self.transport.label();
            tracing::debug!(node, %why, failures = self.failures, "no connection");
            self.failures = self.failures.saturating_add(1);
            // A server that hung up may be back in a moment: calls wait for it. One that
            // was silent, or that has failed before, is skipped until it is back.
            let hung_up = matches!(why, NodeError::Disconnected { .. });
            self.status.set(Err(why.clone()));
            if self.failures == 1 && hung_up {
                continue;
            }
            self.status.set_away(true);
            self.watch.down(self.transport.label(), &why);
            self.answer_waiting();
            if !self.pause().await {
                return;
            }
        }
    }

    /// Connects, while calls wait. `None` if the link is not needed any more.
    async fn connect(&mut self) -> Option<Result<(T::Connection, Handshake), NodeError>> {
        let Self {
            transport,
            clock,
            status,
            inbox,
            waiting,
            ..
        } = self;
        let mut connecting = std::pin::pin!(transport.connect());
        loop {
            let next = waiting.front().map(|job| job.deadline);
            tokio::select! {
                biased;
                connected = &mut connecting => return Some(connected),
                call = inbox.recv() => {
                    let call = call?;
                    // It was submitted before the server was known to be away.
                    if status.is_away() {
                        call.answer(Err(status.excuse()));
                    } else {
                        waiting.push_back(Job::new(call, clock.now()));
                    }
                }
                () = clock.sleep_until(next.unwrap_or(Moment::FAR)), if next.is_some() => {
                    expire(waiting, clock.now(), || status.excuse());
                }
            }
        }
    }

    /// Waits before the next try. `false` if the link is not needed any more.
    async fn pause(&mut self) -> bool {
        let until = self.clock.now() + self.backoff.pause();
        let mut over = std::pin::pin!(self.clock.sleep_until(until));
        loop {
            tokio::select! {
                biased;
                () = &mut over => return true,
                call = self.inbox.recv() => match call {
                    None => return false,
                    Some(call) => call.answer(Err(self.status.excuse())),
                },
            }
        }
    }

    fn answer_waiting(&mut self) {
        for job in self.waiting.drain(..) {
            job.give_up(self.status.excuse());
        }
    }
}

fn expire(jobs: &mut VecDeque<Job>, now: Moment, why: impl Fn() -> NodeError) {
    for job in std::mem::take(jobs) {
        if job.deadline <= now {
            job.give_up(why());
        } else {
            jobs.push_back(job);
        }
    }
}
