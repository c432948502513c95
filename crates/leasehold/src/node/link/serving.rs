//! A connection in use: sends calls, and cuts the connection when an answer is overdue.
//!
//! - Calls that arrive together leave in one write; many in two, so that the server works on one
//!   half while this side works on the other. While the server is busy, few calls wait until other
//!   tasks had their turn to add to them.
//! - One timer serves all requests.
//! - After a timeout or a reply that makes no sense the connection is dropped: a late reply
//!   must never answer the next request.
//! - It is also dropped when the server says that it is a replica, loading or busy, and when it turns
//!   out to have another memory than at the handshake: the next handshake decides.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::job::Job;
use super::outcome::Aftermath;
use super::plan::{Unit, mark_plain_deletes, plan};
use super::task::Task;
use super::{Handshake, Sent, Transport};
use crate::base::clock::Moment;
use crate::node::call::Tick;
use crate::node::{Call, NodeError};
use crate::planted::{self, Bug};

const MAX_BATCH: usize = 256;
/// Fewer calls than this are not worth two writes.
const MIN_HALF: usize = 24;
/// How many writes may be under way.
pub(super) const MAX_IN_FLIGHT: usize = 32;

/// Calls that were sent in one write.
struct Batch<R> {
    units: Vec<Unit>,
    calls: usize,
    deadline: Moment,
    timeout: Duration,
    /// It got its time again because this process was late itself.
    excused: bool,
    /// When it was sent, if it ends with the question for the server's identity.
    probe: Option<Moment>,
    replies: Sent<R>,
}

/// Why a connection is over.
pub(super) enum Ended {
    /// The link is not needed any more.
    Unused,
    Broken(NodeError),
}

/// What happens to a connection in use.
enum Event<R> {
    /// The replies to the oldest batch.
    Replies(Result<R, NodeError>),
    /// There are calls that waited for this connection.
    Waiting,
    /// This many calls have arrived; 0: the link is not needed any more.
    Calls(usize),
    /// The timer has fired.
    Timer,
}

/// A connection in use.
pub(super) struct Serving<'a, T: Transport> {
    link: &'a mut Task<T>,
    connection: T::Connection,
    /// When the connection was there; see [`mark_plain_deletes`].
    connected: Tick,
    server: Handshake,
    /// Sent and not answered yet. Replies come in the order of the requests, so only the
    /// oldest batch is ever waited for.
    batches: VecDeque<Batch<T::Replies>>,
    useful: bool,
    /// It has let other tasks run before it sends the next calls.
    has_yielded: bool,
}

impl<'a, T: Transport> Serving<'a, T> {
    pub(super) fn new(link: &'a mut Task<T>, connection: T::Connection, server: Handshake) -> Self {
        Self {
            link,
            connection,
            connected: Tick::now(),
            server,
            batches: VecDeque::new(),
            useful: false,
            has_yielded: false,
        }
    }

    /// Serves calls until the connection ends. Returns also whether the server answered any of them.
    pub(super) async fn run(mut self) -> (Ended, bool) {
        let clock = self.link.clock.clone();
        let mut calls = Vec::new();
        // Set only when it fires or is too late: not once per request.
        let mut timer_at = Moment::FAR;
        let mut timer = std::pin::pin!(clock.sleep_until(timer_at));
        let mut open = true;
        let ended = loop {
            let due = self
                .batches
                .iter()
                .map(|b| b.deadline)
                .chain(self.server.votes_at())
                .min();
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
                    let now = clock.now();
                    self.note_end_of_quarantine(now);
                    self.overdue(fired_at, now)
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
    #[inline]
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        open: bool,
        calls: &mut Vec<Call>,
        timer: Pin<&mut impl Future<Output = ()>>,
    ) -> Poll<Event<T::Replies>> {
        if let Some(oldest) = self.batches.front_mut()
            && let Poll::Ready(replies) = oldest.replies.as_mut().poll(cx)
        {
            return Poll::Ready(Event::Replies(replies));
        }
        let room = self.batches.len() < MAX_IN_FLIGHT;
        if room && !self.link.waiting.is_empty() {
            return Poll::Ready(Event::Waiting);
        }
        if open && room {
            if self.lets_others_run_first() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let most = self.half();
            if let Poll::Ready(received) = self.link.inbox.poll_recv_many(cx, calls, most) {
                return Poll::Ready(Event::Calls(received));
            }
        }
        if self.batches.is_empty() {
            self.link.transport.poll(&mut self.connection, cx);
        }
        let is_timed = !self.batches.is_empty() || self.server.votes_at().is_some();
        if is_timed && timer.poll(cx).is_ready() {
            return Poll::Ready(Event::Timer);
        }
        Poll::Pending
    }

    /// Whether to let other tasks run before the next calls are sent, once. They may submit more calls,
    /// and calls that leave together cost the server less. This costs no time that matters: the server
    /// is working on earlier calls meanwhile. If it is not, calls are sent at once.
    fn lets_others_run_first(&mut self) -> bool {
        let few = (1..MIN_HALF).contains(&self.link.inbox.len());
        self.has_yielded = few && !self.batches.is_empty() && !self.has_yielded;
        self.has_yielded
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
        if !self.link.transport.is_admitted(&mut self.connection) {
            // They wait for the next connection, whose handshake decides, before those that waited behind
            // them.
            let later = std::mem::take(&mut self.link.waiting);
            self.link.waiting.extend(jobs.into_iter().chain(later));
            let why = "the servers behind the client's nodes have changed".into();
            return Err(NodeError::Disconnected { why });
        }
        if jobs.is_empty() {
            return Ok(());
        }
        let asked = jobs.iter().map(|job| job.call.timeout()).min();
        let mut sending = Vec::with_capacity(jobs.len());
        self.note_end_of_quarantine(now);
        for job in jobs {
            // Its release may be on its way already, and must not be overtaken.
            if job.is_given_up() {
                job.given_up();
                continue;
            }
            if job.in_doubt && self.server.has_forgotten(&job.call, now) {
                if !job.may_be_undone() && !planted::on(Bug::ReleasesInDoubt) {
                    let why = "the server may have forgotten the request".into();
                    job.give_up(NodeError::Disconnected { why });
                    continue;
                }
                // The first request may have left a lock in what the server still knows. The
                // answer to the second says nothing about that, so it is released.
                sending.push(Job::new(job.call.release_unheard(), now));
            }
            match self.server.quarantined(&job.call, now) {
                Some(vote) => job.call.answer(Ok(vote)),
                None => sending.push(job),
            }
        }
        // While the server does not vote, its records are looked at all the same: an operator may
        // have recorded that it had nothing to forget.
        let is_used = !sending.is_empty() || self.server.votes_at().is_some();
        let probe = is_used.then(|| self.probe(now)).flatten();
        // Counted from the sending: a call that waited long for the connection must not
        // make the connection look slow.
        let timeout = sending.iter().map(|job| job.call.timeout()).min();
        let Some(timeout) = timeout.or(probe.and(asked)) else {
            return Ok(());
        };
        let calls = sending.len();
        let units = self.plan(sending);
        let (transport, connection) = (&self.link.transport, &mut self.connection);
        let replies = transport.send(connection, &units, self.server.cap(), probe);
        self.batches.push_back(Batch {
            units,
            calls,
            deadline: now + timeout,
            timeout,
            excused: false,
            probe,
            replies,
        });
        Ok(())
    }

    fn note_end_of_quarantine(&mut self, now: Moment) {
        if self.server.end_quarantine(now) {
            self.link.watch.votes_again(self.link.transport.label());
        }
    }

    /// Puts calls together that can share a request.
    fn plan(&self, mut jobs: Vec<Job>) -> Vec<Unit> {
        mark_plain_deletes(&mut jobs, self.connected);
        plan(jobs, self.server.cap(), self.server.native)
    }

    /// Rule: if the server was not asked for its identity within the last
    /// [second](crate::node::VERIFY_AFTER), the write ends with that question. It comes at the end
    /// because lost memory does not come back: what was executed before an unchanged identity was
    /// executed under it. Whatever is sent before the reply is answered after it, or not at all.
    fn probe(&mut self, now: Moment) -> Option<Moment> {
        if now < self.server.verified + self.link.verify_after {
            return None;
        }
        self.server.verified = now;
        Some(now)
    }

    /// Answers the calls of the oldest batch, and sends some again: those that the server
    /// could not make sense of because it had forgotten its scripts or its epoch, and those
    /// of a script of many that must go by themselves.
    async fn take(&mut self, replies: Result<T::Replies, NodeError>) -> Result<(), NodeError> {
        let Some(batch) = self.batches.pop_front() else {
            return Ok(());
        };
        let (transport, connection) = (&self.link.transport, &self.connection);
        let checked = replies.and_then(|mut replies| {
            transport.check(connection, &batch.units, &mut replies, batch.probe)?;
            Ok(replies)
        });
        let replies = match checked {
            Ok(replies) => replies,
            Err(why) => {
                self.batches.push_front(batch);
                return Err(why);
            }
        };
        let mut after = Aftermath::default();
        transport.read(connection, batch.units, replies, &mut after);
        if let Some(why) = after.cut {
            for job in after.redo {
                job.give_up(why.clone());
            }
            return Err(why);
        }
        self.useful = true;
        if after.native_refused {
            self.server.native = None;
        }
        if let Some(now_us) = after.now_us {
            self.server.now_us = self.server.now_us.max(now_us);
        }
        if after.forgot {
            self.renew(&mut after.redo).await?;
        }
        self.send(after.redo)
    }

    /// Completes another handshake over the same connection, so that `redo` can be sent.
    async fn renew(&mut self, redo: &mut Vec<Job>) -> Result<(), NodeError> {
        let Some(deadline) = redo.iter().map(|job| job.deadline).min() else {
            return Ok(());
        };
        let renewed = tokio::select! {
            biased;
            renewed = self.link.transport.renew(&mut self.connection) => renewed,
            () = self.link.clock.sleep_until(deadline) => {
                let after = redo[0].call.timeout();
                Err(NodeError::TimedOut { after })
            }
        };
        match renewed {
            Ok(server) => {
                self.link.status.set_floor(server.floor);
                let node = self.link.transport.label();
                self.link.watch.renewed(node, &server.found());
                self.server = server;
                Ok(())
            }
            Err(why) => {
                let now = self.link.clock.now();
                for job in redo.drain(..) {
                    self.set_aside(job, &why, now);
                }
                Err(why)
            }
        }
    }

    /// Looks for an overdue answer when the timer, set for `due`, has fired.
    fn overdue(&mut self, due: Moment, now: Moment) -> Result<(), NodeError> {
        let mut late = self.batches.iter().filter(|batch| batch.deadline <= now);
        let excused = late.clone().any(|batch| batch.excused);
        let Some(after) = late.next().map(|batch| batch.timeout) else {
            return Ok(());
        };
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
        if planted::on(Bug::UsedAfterTimeout) {
            // The calls go unanswered, and their replies are still to come.
            self.batches.retain(|batch| batch.deadline > now);
            return Ok(());
        }
        Err(NodeError::TimedOut { after })
    }

    /// Deals with everything that is under way; its outcome is unknown. What is sent again goes before
    /// the calls that have not been sent: an acquire must not overtake a release.
    fn abandon(&mut self, why: &NodeError) {
        let now = self.link.clock.now();
        let later = std::mem::take(&mut self.link.waiting);
        let units = self.batches.drain(..).flat_map(|batch| batch.units);
        let jobs: Vec<_> = units.flat_map(Unit::into_jobs).collect();
        for job in jobs {
            self.set_aside(job, why, now);
        }
        self.link.waiting.extend(later);
    }

    /// Handles a job that has no answer when the connection ends. If the server closed the
    /// connection (perhaps long ago, while the link was idle), the job is sent again over the next
    /// connection. If the server timed out or sent an invalid reply, the job is answered with that
    /// error.
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
