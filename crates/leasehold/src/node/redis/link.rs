//! The task behind a Redis node: keeps one connection, and makes a new one when it is over.
//!
//! Connecting and reconnecting happen here, never on the path of an acquire: while the
//! server is known to be away, calls are answered at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;

use super::Status;
use super::batch::Job;
use super::serving::{Ended, Serving};
use super::session::{Connector, Session};
use crate::base::clock::{Clock, Moment};
use crate::node::{Call, NodeError};

const FIRST_RETRY: Duration = Duration::from_millis(20);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// The task's state between connections.
pub(super) struct Link {
    pub(super) connector: Connector,
    pub(super) clock: Clock,
    pub(super) status: Arc<Status>,
    pub(super) inbox: mpsc::UnboundedReceiver<Call>,
    /// Calls that wait for the connection.
    pub(super) waiting: VecDeque<Job>,
    /// Connections that failed or broke in a row.
    failures: u32,
}

impl Link {
    pub(super) fn new(
        connector: Connector,
        clock: Clock,
        status: Arc<Status>,
        inbox: mpsc::UnboundedReceiver<Call>,
    ) -> Self {
        Self {
            connector,
            clock,
            status,
            inbox,
            waiting: VecDeque::new(),
            failures: 0,
        }
    }

    pub(super) async fn run(mut self) {
        // A client that only looks at locks connects by itself and writes nothing: the first
        // handshake records constants and an epoch.
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
                Ok(session) => {
                    self.status.set_floor(session.floor());
                    self.status.set(Ok(()));
                    self.status.set_away(false);
                    let (ended, was_useful) = Serving::new(&mut self, session).run().await;
                    match ended {
                        Ended::Unused => return,
                        Ended::Broken(why) => {
                            if was_useful {
                                self.failures = 0;
                            }
                            why
                        }
                    }
                }
            };
            let node = self.connector.label();
            tracing::debug!(node, %why, failures = self.failures, "no connection");
            self.failures = self.failures.saturating_add(1);
            // A server that hung up may be back in a moment: calls wait for it. One that
            // was silent, or that has failed before, is skipped until it is back.
            let hung_up = matches!(why, NodeError::Disconnected { .. });
            self.status.set(Err(why));
            if self.failures == 1 && hung_up {
                continue;
            }
            self.status.set_away(true);
            self.answer_waiting();
            if !self.pause().await {
                return;
            }
        }
    }

    /// Connects, while calls wait. `None` if nobody needs the node any more.
    async fn connect(&mut self) -> Option<Result<Session, NodeError>> {
        let Self {
            connector,
            clock,
            status,
            inbox,
            waiting,
            ..
        } = self;
        let mut connecting = std::pin::pin!(connector.connect());
        loop {
            let next = waiting.front().map(|job| job.deadline);
            tokio::select! {
                biased;
                connected = &mut connecting => return Some(connected),
                call = inbox.recv() => {
                    let call = call?;
                    // One that was on its way here when the node was given up.
                    if status.away.load(Ordering::Acquire) {
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

    /// Waits before the next try. `false` if nobody needs the node any more.
    async fn pause(&mut self) -> bool {
        let doublings = self.failures.saturating_sub(1).min(10);
        let pause = (FIRST_RETRY * (1 << doublings)).min(LONGEST_RETRY);
        let until = self.clock.now() + pause.mul_f64(0.5 + fastrand::f64() / 2.0);
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
