//! The task behind a Redis node: keeps one connection, and makes a new one when it is over.
//!
//! Connecting and reconnecting happen here, never on the path of an acquire: while the
//! server is known to be away, calls are answered at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::Status;
use super::batch::Job;
use super::serving::{Ended, Serving};
use super::session::{Connector, Session};
use crate::clock::{Clock, Moment};
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
        loop {
            let Some(connected) = self.connect().await else {
                return;
            };
            let why = match connected {
                Err(why) => why,
                Ok(session) => {
                    self.status.set_floor(session.floor());
                    self.status.set(Ok(()));
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
            // What breaks a useful connection may be over in a moment: calls wait for the
            // next one. An overdue answer is no such thing.
            if self.failures > 0 || matches!(why, NodeError::TimedOut { .. }) {
                self.answer_waiting(&why);
            }
            self.failures = self.failures.saturating_add(1);
            let reconnecting = matches!(why, NodeError::Disconnected { .. }) && self.failures == 1;
            self.status.set(Err(why.clone()));
            if !reconnecting && !self.pause(&why).await {
                return;
            }
        }
    }

    /// Connects, while calls wait (if there is reason to hope) or are answered at once.
    /// `None` if nobody needs the node any more.
    async fn connect(&mut self) -> Option<Result<Session, NodeError>> {
        let Self {
            connector,
            clock,
            status,
            inbox,
            waiting,
            failures,
        } = self;
        let hopeful =
            *failures <= 1 && !matches!(status.get(), Some(Err(NodeError::TimedOut { .. })));
        let mut connecting = std::pin::pin!(connector.connect());
        loop {
            let next = waiting.front().map(|job| job.deadline);
            tokio::select! {
                biased;
                connected = &mut connecting => return Some(connected),
                call = inbox.recv() => match call {
                    None => return None,
                    Some(call) if hopeful => waiting.push_back(Job::new(call, clock.now())),
                    Some(call) => call.answer(Err(unreachable(status.get()))),
                },
                () = clock.sleep_until(next.unwrap_or(Moment::FAR)), if next.is_some() => {
                    expire(waiting, clock.now(), || unreachable(status.get()));
                }
            }
        }
    }

    /// Waits before the next try, answering calls at once. `false` if nobody needs the
    /// node any more.
    async fn pause(&mut self, why: &NodeError) -> bool {
        let doublings = self.failures.saturating_sub(1).min(10);
        let pause = (FIRST_RETRY * (1 << doublings)).min(LONGEST_RETRY);
        let until = self.clock.now() + pause.mul_f64(0.5 + fastrand::f64() / 2.0);
        self.answer_waiting(why);
        loop {
            tokio::select! {
                biased;
                () = self.clock.sleep_until(until) => return true,
                call = self.inbox.recv() => match call {
                    None => return false,
                    Some(call) => call.answer(Err(unreachable(Some(Err(why.clone()))))),
                },
            }
        }
    }

    fn answer_waiting(&mut self, why: &NodeError) {
        for job in self.waiting.drain(..) {
            job.give_up(unreachable(Some(Err(why.clone()))));
        }
    }
}

/// What to say of a call that was never sent. Errors that name a cause to mend are passed
/// on as they are; only a call that was not sent may be said to be `Unreachable`.
fn unreachable(status: Option<Result<(), NodeError>>) -> NodeError {
    match status {
        Some(Err(error)) if error.is_permanent() => error,
        Some(Err(error @ (NodeError::Unreachable { .. } | NodeError::Loading))) => error,
        Some(Err(NodeError::Disconnected { why })) => NodeError::Unreachable { why },
        Some(Err(error)) => NodeError::Unreachable {
            why: error.to_string(),
        },
        _ => NodeError::Unreachable {
            why: "still connecting".into(),
        },
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
