//! Calls on their way: which of them go together, and what the replies mean.
//!
//! A script costs the server more than what it does for one claim. When many calls leave
//! in one write, those that are the common case share a script.

use redis::Value;

use super::reply::{self, Reply};
use super::scripts::{By, settles, shares_acquire};
use crate::clock::Moment;
use crate::node::{Call, NodeError, Verb, Vote};

/// Fewer calls than this are not worth a script of many.
const FEW: usize = 3;
/// How often one call may be sent again because the server had forgotten something.
const MAX_REDOS: u8 = 3;

/// A call on its way.
pub(super) struct Job {
    pub(super) call: Call,
    pub(super) deadline: Moment,
    pub(super) by: By,
    redos: u8,
    /// It turned out not to be the common case.
    alone: bool,
}

/// Calls that share one request, and so one reply.
pub(super) enum Unit {
    One(Job),
    AcquireMany(Vec<Job>),
    SettleMany(Vec<Job>),
}

/// What is left to do after a batch was answered.
#[derive(Default)]
pub(super) struct Aftermath {
    /// Calls to send again.
    pub(super) redo: Vec<Job>,
    /// The server has forgotten its scripts or its epoch.
    pub(super) forgot: bool,
    /// The server's clock.
    pub(super) now_us: Option<u64>,
    /// A reply made no sense.
    pub(super) garbage: Option<NodeError>,
}

impl Job {
    pub(super) fn new(call: Call, now: Moment) -> Self {
        let deadline = now + call.timeout();
        Self {
            call,
            deadline,
            by: By::Hash,
            redos: 0,
            alone: false,
        }
    }
}

/// Puts calls together that can share a request.
///
/// Calls take effect in the order in which they were submitted, where that matters:
/// - A settled release depends on nothing before it, so these go first.
/// - An acquire must come after the releases before it, which may be those of an earlier
///   attempt; so only acquires with no other call before them go together.
pub(super) fn plan(jobs: Vec<Job>, cap: u64) -> Vec<Unit> {
    if jobs.len() < FEW {
        return jobs.into_iter().map(Unit::One).collect();
    }
    let (mut settles_, mut acquires, mut others) = (Vec::new(), Vec::<Job>::new(), Vec::new());
    let mut in_order = true;
    for job in jobs {
        let acquire = job.call.verb() == Verb::Acquire;
        let ttl = acquires.first().map(|first| first.call.claim().ttl());
        if !job.alone && settles(&job.call) {
            settles_.push(job);
        } else if !job.alone && in_order && acquire && shares_acquire(&job.call, ttl, cap) {
            acquires.push(job);
        } else {
            in_order &= acquire;
            others.push(job);
        }
    }
    let mut units = Vec::with_capacity(2 + others.len());
    for (jobs, together) in [
        (settles_, Unit::SettleMany as fn(Vec<Job>) -> Unit),
        (acquires, Unit::AcquireMany),
    ] {
        match jobs.len() < FEW {
            true => units.extend(jobs.into_iter().map(Unit::One)),
            false => units.push(together(jobs)),
        }
    }
    units.extend(others.into_iter().map(Unit::One));
    units
}

impl Unit {
    pub(super) fn jobs(&self) -> &[Job] {
        match self {
            Self::One(job) => std::slice::from_ref(job),
            Self::AcquireMany(jobs) | Self::SettleMany(jobs) => jobs,
        }
    }

    pub(super) fn into_jobs(self) -> Vec<Job> {
        match self {
            Self::One(job) => vec![job],
            Self::AcquireMany(jobs) | Self::SettleMany(jobs) => jobs,
        }
    }

    /// Answers the calls.
    pub(super) fn answer(self, value: Value, after: &mut Aftermath) {
        match self {
            Self::One(job) => after.one(job, value),
            Self::AcquireMany(jobs) => after.many(jobs, value, 0, |value, call| match value {
                Value::Nil => Some(None),
                value => reply::is_token(value, call).then_some(Some(Vote::Granted)),
            }),
            Self::SettleMany(jobs) => {
                after.many(jobs, value, 1, |value, _| match value {
                    Value::Int(held @ 0..=1) => Some(Some(Vote::Released { held: *held == 1 })),
                    _ => None,
                });
            }
        }
    }
}

impl Aftermath {
    fn one(&mut self, mut job: Job, value: Value) {
        match reply::read(value, &job.call) {
            Reply::Answer(answer) => job.call.answer(answer),
            Reply::GrantedAt(now_us) => {
                self.now_us = self.now_us.max(Some(now_us));
                job.call.answer(Ok(Vote::Granted));
            }
            Reply::Garbage(error) => self.nonsense(job, error),
            Reply::NoScript | Reply::Forgot if job.redos >= MAX_REDOS => {
                let why = "the server keeps forgetting its scripts or its epoch".into();
                job.call.answer(Err(NodeError::Refused { why }));
            }
            Reply::NoScript | Reply::Forgot => {
                self.forgot = true;
                job.by = By::Text;
                job.redos += 1;
                self.alone(job);
            }
        }
    }

    /// Reads one value per call, behind `skip` others (the first of which then is the
    /// first call's owner value). `read` says `Some(None)` for a call to be sent alone.
    fn many(
        &mut self,
        jobs: Vec<Job>,
        value: Value,
        skip: usize,
        read: impl Fn(&Value, &Call) -> Option<Option<Vote>>,
    ) {
        let values = match value {
            Value::ServerError(_) => {
                // The same error for all, or the server has forgotten the script: each
                // finds out by itself.
                return jobs.into_iter().for_each(|job| self.alone(job));
            }
            Value::Array(values) if values.len() == jobs.len() + skip => values,
            other => vec![other],
        };
        let first = jobs.first().map(|job| job.call.claim().owner());
        let ours = skip == 0
            || matches!(values.first(), Some(Value::BulkString(owner)) if Some(&**owner) == first);
        let mut values = values.iter().skip(skip);
        for job in jobs {
            let value = values.next().filter(|_| ours);
            match value.and_then(|value| read(value, &job.call)) {
                Some(Some(vote)) => job.call.answer(Ok(vote)),
                Some(None) => self.alone(job),
                None => {
                    let why = "to a request of many".into();
                    self.nonsense(job, NodeError::Protocol { why });
                }
            }
        }
    }

    fn alone(&mut self, mut job: Job) {
        job.alone = true;
        self.redo.push(job);
    }

    fn nonsense(&mut self, job: Job, error: NodeError) {
        job.call.answer(Err(error.clone()));
        self.garbage = Some(error);
    }
}
