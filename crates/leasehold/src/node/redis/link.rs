//! The task behind a Redis node: keeps one connection, sends what is asked, and cuts the
//! connection when an answer is overdue.
//!
//! - Connecting and reconnecting happen here, never on the path of an acquire: while the
//!   server is known to be away, calls are answered at once.
//! - Calls that arrive together leave in one write.
//! - One timer serves all requests. After a timeout or a reply that makes no sense the
//!   connection is dropped: a late reply must never answer the next request.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use redis::{RedisError, Value};
use tokio::sync::mpsc;

use super::Status;
use super::reply::{self, Reply, connection_error};
use super::scripts::By;
use super::session::{Connector, Sent, Session};
use crate::clock::{Clock, Moment};
use crate::node::{Call, NodeError, Vote};

const MAX_BATCH: usize = 256;
/// Fewer than the connection has room for (50), so that handing over never waits.
const MAX_IN_FLIGHT: usize = 32;
const FIRST_RETRY: Duration = Duration::from_millis(20);
const LONGEST_RETRY: Duration = Duration::from_secs(1);
/// How often one call may be sent again because the server had forgotten something.
const MAX_REDOS: u8 = 3;

/// The task's state between connections.
pub(super) struct Link {
    connector: Connector,
    clock: Clock,
    status: Arc<Status>,
    inbox: mpsc::UnboundedReceiver<Call>,
    /// Calls that wait for the connection.
    waiting: VecDeque<Job>,
    /// Connections that failed or broke in a row.
    failures: u32,
}

/// A call on its way.
struct Job {
    call: Call,
    deadline: Moment,
    by: By,
    redos: u8,
}

/// Calls that were sent in one write.
struct Batch {
    jobs: Vec<Job>,
    deadline: Moment,
    replies: Sent,
}

/// Why a connection is over.
enum Ended {
    /// Nobody needs the node any more.
    Unused,
    Broken(NodeError),
}

type Replies = Result<Vec<Value>, RedisError>;

/// What happens to a connection in use.
enum Event {
    /// The replies to the oldest batch.
    Replies(Replies),
    /// The connection gave an answer out of turn: an error, or worse.
    Broken(Option<RedisError>),
    /// So many calls have arrived; none: nobody needs the node any more.
    Calls(usize),
    /// The timer has fired.
    Timer,
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
            let next = waiting.iter().map(|job| job.deadline).min();
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
            job.call.answer(Err(unreachable(Some(Err(why.clone())))));
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
            job.call.answer(Err(why()));
        } else {
            jobs.push_back(job);
        }
    }
}

impl Job {
    fn new(call: Call, now: Moment) -> Self {
        let deadline = now + call.timeout();
        Self {
            call,
            deadline,
            by: By::Hash,
            redos: 0,
        }
    }
}

/// A connection in use.
struct Serving<'a> {
    link: &'a mut Link,
    session: Session,
    /// Sent and not answered yet. Replies come in the order of the requests, so only the
    /// oldest batch is ever waited for.
    batches: VecDeque<Batch>,
    /// Whether the youngest batch has been handed to the connection.
    handed_over: bool,
    useful: bool,
}

impl<'a> Serving<'a> {
    fn new(link: &'a mut Link, session: Session) -> Self {
        Self {
            link,
            session,
            batches: VecDeque::new(),
            handed_over: true,
            useful: false,
        }
    }

    /// Serves until the connection is over; whether it was of any use.
    async fn run(mut self) -> (Ended, bool) {
        let waiting = std::mem::take(&mut self.link.waiting);
        self.send(waiting.into());
        let clock = self.link.clock.clone();
        let mut calls = Vec::new();
        // Set only when it fires or is too late: not once per request.
        let mut timer_at = Moment::FAR;
        let mut timer = std::pin::pin!(clock.sleep_until(timer_at));
        let mut open = true;
        let ended = loop {
            let due = self.batches.iter().map(|b| b.deadline).min();
            if let Some(due) = due.filter(|&due| due < timer_at) {
                timer_at = due;
                timer.set(clock.sleep_until(timer_at));
            }
            if !open && self.batches.is_empty() {
                break Ended::Unused;
            }
            let event = poll_fn(|cx| self.poll(cx, open, &mut calls, timer.as_mut()));
            let outcome = match event.await {
                Event::Replies(replies) => self.take(replies).await,
                Event::Broken(error) => Err(broken(error.as_ref())),
                Event::Calls(received) => {
                    open = received > 0;
                    let now = clock.now();
                    let jobs = calls.drain(..).map(|call| Job::new(call, now)).collect();
                    self.send(jobs);
                    Ok(())
                }
                Event::Timer => {
                    let fired_at = std::mem::replace(&mut timer_at, Moment::FAR);
                    self.overdue(fired_at, clock.now())
                }
            };
            if let Err(why) = outcome {
                break Ended::Broken(why);
            }
        };
        if let Ended::Broken(why) = &ended {
            self.abandon(why);
        }
        (ended, self.useful)
    }

    /// Replies first: they make room, and a late timer must not overtake them.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        open: bool,
        calls: &mut Vec<Call>,
        timer: Pin<&mut impl Future<Output = ()>>,
    ) -> Poll<Event> {
        if !self.handed_over
            && self.batches.len() > 1
            && let Some(youngest) = self.batches.back_mut()
        {
            // The first poll hands the requests to the connection. Its replies come after
            // the older ones', unless the connection is broken.
            if let Poll::Ready(replies) = youngest.replies.as_mut().poll(cx) {
                return Poll::Ready(Event::Broken(replies.err()));
            }
        }
        self.handed_over = true;
        if let Some(oldest) = self.batches.front_mut()
            && let Poll::Ready(replies) = oldest.replies.as_mut().poll(cx)
        {
            return Poll::Ready(Event::Replies(replies));
        }
        if open
            && self.batches.len() < MAX_IN_FLIGHT
            && let Poll::Ready(received) = self.link.inbox.poll_recv_many(cx, calls, MAX_BATCH)
        {
            return Poll::Ready(Event::Calls(received));
        }
        if !self.batches.is_empty() && timer.poll(cx).is_ready() {
            return Poll::Ready(Event::Timer);
        }
        Poll::Pending
    }

    fn send(&mut self, jobs: Vec<Job>) {
        let now = self.link.clock.now();
        let mut sending = Vec::with_capacity(jobs.len());
        for job in jobs {
            match self.session.quarantined(&job.call, now) {
                Some(vote) => job.call.answer(Ok(vote)),
                None => sending.push(job),
            }
        }
        let Some(deadline) = sending.iter().map(|job| job.deadline).min() else {
            return;
        };
        let calls = sending.iter().map(|job| (&job.call, job.by));
        let replies = self.session.send(calls);
        self.handed_over = false;
        self.batches.push_back(Batch {
            jobs: sending,
            deadline,
            replies,
        });
    }

    /// Answers the calls of a batch, and sends again those that the server could not
    /// make sense of because it had forgotten its scripts or its epoch.
    async fn take(&mut self, replies: Replies) -> Result<(), NodeError> {
        let Some(batch) = self.batches.pop_front() else {
            return Ok(());
        };
        let values = match replies {
            Ok(values) if values.len() == batch.jobs.len() => values,
            Ok(values) => {
                let why = format!("{} replies to {} requests", values.len(), batch.jobs.len());
                self.batches.push_front(batch);
                return Err(NodeError::Protocol { why });
            }
            Err(error) => {
                self.batches.push_front(batch);
                return Err(broken(Some(&error)));
            }
        };
        self.useful = true;
        let (mut redo, mut forgot, mut garbage) = (Vec::new(), false, None);
        for (mut job, value) in batch.jobs.into_iter().zip(values) {
            match reply::read(value, &job.call) {
                Reply::Answer(answer) => job.call.answer(answer),
                Reply::GrantedAt(now_us) => {
                    self.session.learn_time(now_us, &self.link.connector);
                    job.call.answer(Ok(Vote::Granted));
                }
                Reply::Garbage(error) => {
                    job.call.answer(Err(error.clone()));
                    garbage = Some(error);
                }
                Reply::NoScript | Reply::Forgot if job.redos >= MAX_REDOS => {
                    let why = "the server keeps forgetting its scripts or its epoch".into();
                    job.call.answer(Err(NodeError::Refused { why }));
                }
                missing => {
                    forgot |= matches!(missing, Reply::Forgot);
                    job.by = By::Text;
                    job.redos += 1;
                    redo.push(job);
                }
            }
        }
        if let Some(why) = garbage {
            return Err(why);
        }
        if forgot {
            self.renew(&mut redo).await?;
        }
        self.send(redo);
        Ok(())
    }

    /// Shakes hands again on the same connection, for the sake of `redo`.
    async fn renew(&mut self, redo: &mut Vec<Job>) -> Result<(), NodeError> {
        let Some(deadline) = redo.iter().map(|job| job.deadline).min() else {
            return Ok(());
        };
        let renewed = tokio::select! {
            biased;
            renewed = self.session.renew(&self.link.connector) => renewed,
            () = self.link.clock.sleep_until(deadline) => {
                let after = redo[0].call.timeout();
                Err(NodeError::TimedOut { after })
            }
        };
        self.link.status.set_floor(self.session.floor());
        if let Err(why) = &renewed {
            for job in redo.drain(..) {
                job.call.answer(Err(why.clone()));
            }
        }
        renewed
    }

    /// Looks for an overdue answer when the timer, set for `due`, has fired.
    fn overdue(&mut self, due: Moment, now: Moment) -> Result<(), NodeError> {
        let mut late = self.batches.iter().filter(|batch| batch.deadline <= now);
        let Some(job) = late.next().and_then(|batch| batch.jobs.first()) else {
            return Ok(());
        };
        let after = job.call.timeout();
        // If the timer itself is late, this process was stopped or starved, and the
        // replies may lie in its socket: they get their time again.
        if now.saturating_duration_since(due) > after / 2 {
            for batch in &mut self.batches {
                batch.deadline = now + after;
            }
            return Ok(());
        }
        Err(NodeError::TimedOut { after })
    }

    /// Answers everything that is under way: its outcome is unknown.
    fn abandon(&mut self, why: &NodeError) {
        let now = self.link.clock.now();
        for job in self.batches.drain(..).flat_map(|batch| batch.jobs) {
            let error = match why {
                NodeError::TimedOut { .. } if job.deadline <= now => NodeError::TimedOut {
                    after: job.call.timeout(),
                },
                why => NodeError::Disconnected {
                    why: why.to_string(),
                },
            };
            job.call.answer(Err(error));
        }
    }
}

fn broken(error: Option<&RedisError>) -> NodeError {
    match error.map(connection_error) {
        Some(NodeError::Unreachable { why }) => NodeError::Disconnected { why },
        Some(other) => other,
        None => NodeError::Protocol {
            why: "out of turn".into(),
        },
    }
}
