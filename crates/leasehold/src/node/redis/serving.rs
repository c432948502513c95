//! A connection in use: sends what is asked, and cuts the connection when an answer is
//! overdue.
//!
//! - Calls that arrive together leave in one write; many in two, so that the server works on one
//!   half while this side works on the other.
//! - One timer serves all requests.
//! - After a timeout or a reply that makes no sense the connection is dropped: a late reply
//!   must never answer the next request.
//! - So it is when the server says that it is a replica, loading or busy, and when it turns out to
//!   have another memory than at the handshake: the next handshake decides.

use std::collections::VecDeque;
use std::future::{poll_fn, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use redis::{RedisError, Value};

use super::batch::{Aftermath, Job, Unit};
use super::link::Link;
use super::reply::connection_error;
use super::session::{Sent, Session};
use crate::base::clock::Moment;
use crate::node::{Call, NodeError};

const MAX_BATCH: usize = 256;
/// Fewer calls than this are not worth two writes.
const MIN_HALF: usize = 24;
/// Fewer than the connection has room for (50), so that handing over never waits.
const MAX_IN_FLIGHT: usize = 32;

/// Calls that were sent in one write.
struct Batch {
    units: Vec<Unit>,
    calls: usize,
    deadline: Moment,
    /// It got its time again because this process was late itself.
    excused: bool,
    /// When it was sent, if it ends with the question whether the server is who it was.
    verifies: Option<Moment>,
    replies: Sent,
}

/// Why a connection is over.
pub(super) enum Ended {
    /// Nobody needs the node any more.
    Unused,
    Broken(NodeError),
}

type Replies = Result<Vec<Value>, RedisError>;

/// What happens to a connection in use.
enum Event {
    /// The replies to the oldest batch.
    Replies(Replies),
    /// The connection is broken.
    Broken(RedisError),
    /// There are calls that waited for this connection.
    Waiting,
    /// So many calls have arrived; none: nobody needs the node any more.
    Calls(usize),
    /// The timer has fired.
    Timer,
}

/// A connection in use.
pub(super) struct Serving<'a> {
    link: &'a mut Link,
    session: Session,
    /// Sent and not answered yet. Replies come in the order of the requests, so only the
    /// oldest batch is ever waited for.
    batches: VecDeque<Batch>,
    /// Whether the youngest batch has been handed to the connection.
    handed_over: bool,
    /// Whether more calls may be in the inbox than were taken.
    more: bool,
    useful: bool,
}

impl<'a> Serving<'a> {
    pub(super) fn new(link: &'a mut Link, session: Session) -> Self {
        Self {
            link,
            session,
            batches: VecDeque::new(),
            handed_over: true,
            more: false,
            useful: false,
        }
    }

    /// Serves until the connection is over; whether it was of any use.
    pub(super) async fn run(mut self) -> (Ended, bool) {
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
            if !open && self.batches.is_empty() && self.link.waiting.is_empty() {
                break Ended::Unused;
            }
            let event = poll_fn(|cx| self.poll(cx, open, &mut calls, timer.as_mut()));
            let outcome = match event.await {
                Event::Replies(replies) => self.take(replies).await,
                Event::Broken(error) => Err(broken(&error)),
                Event::Waiting => {
                    let count = self.link.waiting.len().min(MAX_BATCH);
                    let jobs = self.link.waiting.drain(..count).collect();
                    self.send(jobs)
                }
                Event::Calls(received) => {
                    open = received > 0;
                    let now = clock.now();
                    let jobs = calls.drain(..).map(|call| Job::new(call, now)).collect();
                    self.send(jobs)
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
            && (self.batches.len() > 1 || self.more)
            && let Some(youngest) = self.batches.back_mut()
        {
            // The first poll hands the requests to the connection. The replies may be there
            // at once, if it is quick; they are looked at in their turn.
            match youngest.replies.as_mut().poll(cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(values)) => youngest.replies = Box::pin(ready(Ok(values))),
                Poll::Ready(Err(error)) => return Poll::Ready(Event::Broken(error)),
            }
        }
        self.handed_over = true;
        if std::mem::take(&mut self.more) {
            // The connection is a task of its own: here it gets to write what it was handed.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(oldest) = self.batches.front_mut()
            && let Poll::Ready(replies) = oldest.replies.as_mut().poll(cx)
        {
            return Poll::Ready(Event::Replies(replies));
        }
        let room = self.batches.len() < MAX_IN_FLIGHT;
        if room && !self.link.waiting.is_empty() {
            return Poll::Ready(Event::Waiting);
        }
        let most = self.half();
        if open
            && room
            && let Poll::Ready(received) = self.link.inbox.poll_recv_many(cx, calls, most)
        {
            self.more = received == most;
            return Poll::Ready(Event::Calls(received));
        }
        if !self.batches.is_empty() && timer.poll(cx).is_ready() {
            return Poll::Ready(Event::Timer);
        }
        Poll::Pending
    }

    /// How many calls to send in one write. When all calls go together, they come back together,
    /// and the next go together again: server and client would work by turns.
    fn half(&self) -> usize {
        let under_way: usize = self.batches.iter().map(|batch| batch.calls).sum();
        let calls = under_way + self.link.inbox.len();
        calls.div_ceil(2).clamp(MIN_HALF, MAX_BATCH)
    }

    fn send(&mut self, jobs: Vec<Job>) -> Result<(), NodeError> {
        let now = self.link.clock.now();
        if !self.session.is_admitted(&self.link.connector) {
            // They wait for the next connection, whose handshake decides.
            self.link.waiting.extend(jobs);
            let why = "the servers behind the client's nodes have changed".into();
            return Err(NodeError::Disconnected { why });
        }
        let mut sending = Vec::with_capacity(jobs.len());
        for job in jobs {
            if job.is_in_doubt() && self.session.has_forgotten(&job.call, now) {
                // The first request may have left a lock in what the server still knows. The
                // answer to the second says nothing about that, so it is released.
                sending.push(Job::new(job.call.release_unheard(), now));
            }
            // Its release may be on its way already, and must not be overtaken.
            if job.is_given_up() {
                job.given_up();
            } else if let Some(vote) = self.session.quarantined(&job.call, now) {
                job.call.answer(Ok(vote));
            } else {
                sending.push(job);
            }
        }
        // Counted from the sending: a call that waited long for the connection must not
        // make the connection look slow.
        let Some(timeout) = sending.iter().map(|job| job.call.timeout()).min() else {
            return Ok(());
        };
        let calls = sending.len();
        let units = self.session.plan(sending);
        let (replies, verifies) = self.session.send(&units, now);
        self.handed_over = false;
        self.batches.push_back(Batch {
            units,
            calls,
            deadline: now + timeout,
            excused: false,
            verifies: verifies.then_some(now),
            replies,
        });
        Ok(())
    }

    /// Answers the calls of the oldest batch, and sends some again: those that the server
    /// could not make sense of because it had forgotten its scripts or its epoch, and those
    /// of a script of many that must go by themselves.
    async fn take(&mut self, replies: Replies) -> Result<(), NodeError> {
        let Some(batch) = self.batches.pop_front() else {
            return Ok(());
        };
        let values = match self.trusted(&batch, replies) {
            Ok(values) => values,
            Err(why) => {
                self.batches.push_front(batch);
                return Err(why);
            }
        };
        let mut after = Aftermath::default();
        let mut values = values.into_iter();
        for unit in batch.units {
            let value = self.session.explain(values.next().unwrap_or(Value::Nil));
            let next = (unit.requests() > 1).then(|| values.next()).flatten();
            unit.answer(value, next, &mut after);
        }
        if let Some(why) = after.cut {
            for job in after.redo {
                job.give_up(why.clone());
            }
            return Err(why);
        }
        self.useful = true;
        if after.native_refused {
            self.session.refuses_native();
        }
        if let Some(now_us) = after.now_us {
            self.session.learn_time(now_us, &self.link.connector);
        }
        if after.forgot {
            self.renew(&mut after.redo).await?;
        }
        self.send(after.redo)
    }

    /// The replies to a batch, if they are there and can be trusted.
    fn trusted(&self, batch: &Batch, replies: Replies) -> Result<Vec<Value>, NodeError> {
        let mut values = replies.map_err(|error| broken(&error))?;
        if let Some(asked) = batch.verifies {
            self.session.verify(&mut values)?;
            self.link.connector.seen(asked);
        }
        let sent: usize = batch.units.iter().map(Unit::requests).sum();
        match values.len() == sent {
            true => Ok(values),
            false => {
                let why = format!("{} replies to {sent} requests", values.len());
                Err(NodeError::Protocol { why })
            }
        }
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
            let now = self.link.clock.now();
            for job in redo.drain(..) {
                self.set_aside(job, why, now);
            }
        }
        renewed
    }

    /// Looks for an overdue answer when the timer, set for `due`, has fired.
    fn overdue(&mut self, due: Moment, now: Moment) -> Result<(), NodeError> {
        let mut late = self.batches.iter().filter(|batch| batch.deadline <= now);
        let excused = late.clone().any(|batch| batch.excused);
        let unit = late.next().and_then(|batch| batch.units.first());
        let Some(job) = unit.and_then(|unit| unit.jobs().first()) else {
            return Ok(());
        };
        let after = job.call.timeout();
        // If the timer itself is late, this process was stopped or starved, and the
        // replies may lie in its socket: they get their time again. But once: or a process that
        // is always late would wait for a silent node for as long as it is.
        if now.saturating_duration_since(due) > after / 2 && !excused {
            for batch in &mut self.batches {
                batch.deadline = now + after;
                batch.excused = true;
            }
            return Ok(());
        }
        Err(NodeError::TimedOut { after })
    }

    /// Deals with everything that is under way; its outcome is unknown.
    fn abandon(&mut self, why: &NodeError) {
        let now = self.link.clock.now();
        let units = self.batches.drain(..).flat_map(|batch| batch.units);
        let jobs: Vec<_> = units.flat_map(Unit::into_jobs).collect();
        for job in jobs {
            self.set_aside(job, why, now);
        }
    }

    /// Deals with a job that has no answer when the connection is over. If the server hung up (it
    /// may have done so long ago, while nobody asked), the same is asked again over the next
    /// connection. If it was silent, or made no sense, that is the answer.
    fn set_aside(&mut self, mut job: Job, why: &NodeError, now: Moment) {
        if let NodeError::Disconnected { .. } = why {
            match job.again(now) {
                Ok(again) => return self.link.waiting.push_back(again),
                Err(given_up) => job = given_up,
            }
        }
        let error = match why {
            NodeError::TimedOut { .. } if job.deadline <= now => NodeError::TimedOut {
                after: job.call.timeout(),
            },
            why => NodeError::Disconnected {
                why: why.to_string(),
            },
        };
        job.answer(Err(error));
    }
}

fn broken(error: &RedisError) -> NodeError {
    match connection_error(error) {
        // The connection was in use: whether a request took effect is not known.
        NodeError::Unreachable { why } | NodeError::Tls { why } => NodeError::Disconnected { why },
        other => other,
    }
}
