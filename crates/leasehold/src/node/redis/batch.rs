//! Calls on their way: which of them go together, and what the replies mean.
//!
//! A script costs the server more than what it does for one claim. When many calls leave
//! in one write, those that are the common case share a script.

use std::ptr;

use redis::Value;

use super::reply::{self, Native, Reply};
use super::scripts::{By, settles, shares_script};
use crate::base::clock::Moment;
use crate::node::call::Tick;
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
    /// It was sent over a connection that broke: it may have taken effect.
    in_doubt: bool,
    /// It is a plain compare-and-delete; see [`settle`].
    pub(super) settles: bool,
    /// The lock was set by a plain command although others may wait for it in line.
    pub(super) overtook: bool,
    /// A release that has been done, and only has to serve those who stand in line.
    pub(super) released: bool,
}

/// Calls that share one request, and so one reply.
pub(super) enum Unit {
    One(Job),
    /// A lock without a token: a look at whether anybody stands in line, and a single command.
    Plain(Job),
    /// A release by the server's own command, and a look at whether anybody stands in line.
    Native(Job, Native),
    AcquireMany(Vec<Job>),
    ExtendMany(Vec<Job>),
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
    /// The server has refused its own compare-and-delete.
    pub(super) native_refused: bool,
    /// Why the connection cannot be used any more: a reply made no sense, or the server says that
    /// it cannot serve requests at the moment.
    pub(super) cut: Option<NodeError>,
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
            in_doubt: false,
            settles: false,
            overtook: false,
            released: false,
        }
    }

    pub(super) fn answer(self, answer: Result<Vote, NodeError>) {
        self.call.answer(match self.released {
            false => answer,
            true => Ok(Vote::Released { held: true }),
        });
    }

    /// Puts the job aside, to be sent again over the next connection. Asking the same
    /// again is safe: the rules recognise it. `Err` if that would be in vain, or too late.
    pub(super) fn again(mut self, now: Moment) -> Result<Self, Self> {
        if self.redos >= MAX_REDOS || self.deadline <= now || self.is_given_up() {
            return Err(self);
        }
        self.redos += 1;
        self.alone = true;
        self.in_doubt = true;
        Ok(self)
    }

    /// Whether it was sent over a connection that broke: it may have taken effect.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.in_doubt
    }

    /// Answers a job that waited for a connection in vain, or that the server refused.
    pub(super) fn give_up(self, why: NodeError) {
        let error = match why {
            NodeError::Unreachable { why } if self.in_doubt => NodeError::Disconnected { why },
            why if self.in_doubt && why.had_no_effect() => NodeError::Disconnected {
                why: why.to_string(),
            },
            why => why,
        };
        self.answer(Err(error));
    }

    /// Answers a job that [was given up](Self::is_given_up) before it was sent.
    pub(super) fn given_up(self) {
        let why = "given up before it was sent".into();
        self.give_up(NodeError::Unreachable { why });
    }

    /// Whether the claim is being given back meanwhile: then the job, if it were sent now,
    /// could overtake that and take the lock, or a place in the line, for nobody.
    pub(super) fn is_given_up(&self) -> bool {
        let gives_back = matches!(self.call.verb(), Verb::Release { .. });
        !gives_back && self.call.claim().is_given_back()
    }
}

/// Finds the releases that need not raise the fence, because nothing of their claims can arrive
/// after them: those that the caller says so of; and those of claims that were asked for over
/// this connection only, which has been there since `connected`. The server answers a connection
/// in order. Should it break, the release is sent again, and raises the fence then.
pub(super) fn settle(jobs: &mut [Job], connected: Tick) {
    for at in 0..jobs.len() {
        let (before, rest) = jobs.split_at_mut(at);
        let [job, ..] = rest else { return };
        let claim = job.call.claim();
        let in_order = || {
            // One that stood in line may stand there still, and has to leave.
            !job.in_doubt
                && !claim.has_waited()
                && claim.is_only_since(connected)
                // A plan puts releases that settle before all others.
                && !before.iter().any(|job| ptr::eq(job.call.claim(), claim))
        };
        let gives_back = job.call.verb() == Verb::Release { keep: None };
        job.settles = !job.released && (settles(&job.call) || gives_back && in_order());
    }
}

/// Puts calls together that can share a request.
///
/// Calls take effect in the order in which they were submitted, where that matters:
/// - A settled release depends on nothing before it, so these go first.
/// - An acquire must come after the releases before it, which may be those of an earlier
///   attempt; so only acquires with no such call before them go together.
/// - An extend must come before the release of its claim, and nothing else matters to it.
///
/// A settled release that goes alone is done by the server's own command, if it has one; but not
/// that of a claim that has stood in line, since others may stand there still.
pub(super) fn plan(jobs: Vec<Job>, cap: u64, native: Option<Native>) -> Vec<Unit> {
    let one = |job: Job| match native {
        _ if job.call.verb() == Verb::Acquire && !job.call.claim().is_fenced() && !job.alone => {
            Unit::Plain(job)
        }
        Some(native) if job.settles && !job.alone && !job.call.claim().has_waited() => {
            Unit::Native(job, native)
        }
        _ => Unit::One(job),
    };
    if jobs.len() < FEW {
        return jobs.into_iter().map(one).collect();
    }
    let (mut settled, mut acquires, mut extends) = (Vec::new(), Vec::<Job>::new(), Vec::new());
    let (mut others, mut in_order) = (Vec::new(), true);
    for job in jobs {
        let verb = job.call.verb();
        let shares = |with: &[Job]| {
            let ttl = with.first().map(|first| first.call.claim().ttl());
            !job.alone && shares_script(&job.call, ttl, cap)
        };
        if !job.alone && job.settles && !job.call.claim().has_waited() {
            settled.push(job);
        } else if verb == Verb::Acquire && in_order && shares(&acquires) {
            acquires.push(job);
        } else if verb == Verb::Extend && shares(&extends) {
            extends.push(job);
        } else {
            in_order &= verb == Verb::Acquire;
            others.push(job);
        }
    }
    let mut units = Vec::with_capacity(3 + others.len());
    for (jobs, together) in [
        (settled, Unit::SettleMany as fn(Vec<Job>) -> Unit),
        (acquires, Unit::AcquireMany),
        (extends, Unit::ExtendMany),
    ] {
        match jobs.len() < FEW {
            true => units.extend(jobs.into_iter().map(one)),
            false => units.push(together(jobs)),
        }
    }
    units.extend(others.into_iter().map(one));
    units
}

impl Unit {
    pub(super) fn jobs(&self) -> &[Job] {
        match self {
            Self::One(job) | Self::Plain(job) | Self::Native(job, _) => std::slice::from_ref(job),
            Self::AcquireMany(jobs) | Self::ExtendMany(jobs) | Self::SettleMany(jobs) => jobs,
        }
    }

    pub(super) fn into_jobs(self) -> Vec<Job> {
        match self {
            Self::One(job) | Self::Plain(job) | Self::Native(job, _) => vec![job],
            Self::AcquireMany(jobs) | Self::ExtendMany(jobs) | Self::SettleMany(jobs) => jobs,
        }
    }

    /// How many requests it is.
    pub(super) fn requests(&self) -> usize {
        match self {
            Self::Native(..) | Self::Plain(_) => 2,
            _ => 1,
        }
    }

    /// Answers the calls by the reply, or by that and the next where there are
    /// [two requests](Self::requests).
    pub(super) fn answer(self, value: Value, next: Option<Value>, after: &mut Aftermath) {
        match self {
            Self::One(job) => after.one(job, value),
            Self::Plain(job) => after.plain(job, &value, next.as_ref()),
            Self::Native(job, _) => after.native(job, &value, next.as_ref()),
            Self::AcquireMany(jobs) | Self::ExtendMany(jobs) => {
                after.many(jobs, &value, |_| Vote::Granted);
            }
            Self::SettleMany(jobs) => {
                after.many(jobs, &value, |done| Vote::Released { held: done == 1 });
            }
        }
    }
}

impl Aftermath {
    fn plain(&mut self, mut job: Job, line: &Value, set: Option<&Value>) {
        match (line, set) {
            (Value::Int(0), Some(Value::Okay)) => job.answer(Ok(Vote::Granted)),
            // Somebody waits for it, or that is not known: the script serves the line first.
            (_, Some(Value::Okay)) => {
                job.overtook = true;
                job.in_doubt = true;
                self.alone(job);
            }
            // Another has it, whom the script names; or it finds the same error.
            (_, Some(Value::Nil | Value::ServerError(_))) => self.alone(job),
            _ => {
                let why = "to SET".into();
                self.nonsense(job, NodeError::Protocol { why });
            }
        }
    }

    fn native(&mut self, mut job: Job, deleted: &Value, line: Option<&Value>) {
        match (deleted, line) {
            (Value::Int(held @ 0..=1), Some(Value::Int(0))) => {
                job.answer(Ok(Vote::Released { held: *held == 1 }));
            }
            // There are waiters, or that is not known: the script serves the line. Also if the lock
            // was not held: it may have expired, and nothing else has served the line.
            (Value::Int(held @ 0..=1), line) => {
                self.native_refused |= matches!(line, Some(Value::ServerError(_)));
                job.released = *held == 1;
                self.alone(job);
            }
            (Value::ServerError(_), _) => {
                self.native_refused = true;
                self.alone(job);
            }
            _ => {
                let why = "to a compare-and-delete".into();
                self.nonsense(job, NodeError::Protocol { why });
            }
        }
    }

    fn one(&mut self, mut job: Job, value: Value) {
        match reply::read(value, &job.call, job.settles) {
            Reply::Answer(Ok(vote)) => job.answer(Ok(vote)),
            Reply::Answer(Err(error)) => {
                if error.is_passing() {
                    self.cut = Some(error.clone());
                }
                job.give_up(error);
            }
            Reply::GrantedAt(now_us) => {
                self.now_us = self.now_us.max(Some(now_us));
                job.answer(Ok(Vote::Granted));
            }
            Reply::Garbage(error) => self.nonsense(job, error),
            Reply::NoScript | Reply::Forgot if job.redos >= MAX_REDOS => {
                let why = "the server keeps forgetting its scripts or its epoch".into();
                job.answer(Err(NodeError::Refused { why }));
            }
            Reply::NoScript | Reply::Forgot => {
                self.forgot = true;
                job.by = By::Text;
                job.redos += 1;
                self.alone(job);
            }
        }
    }

    /// Reads the reply to a script of many: the first call's owner value, if all were done, or
    /// that and for each call 1 or 2 if it was done, 0 if it is to be sent alone.
    fn many(&mut self, jobs: Vec<Job>, value: &Value, vote: impl Fn(i64) -> Vote) {
        if let Value::ServerError(_) = value {
            // The same error for all, or the server has forgotten the script: each finds out
            // by itself.
            return jobs.into_iter().for_each(|job| self.alone(job));
        }
        let first = jobs.first().map(|job| job.call.claim().owner());
        let ours =
            |value: &Value| matches!(value, Value::BulkString(owner) if Some(&**owner) == first);
        let (all, each): (_, &[Value]) = match value {
            Value::Array(values) => match &values[..] {
                [owner, each @ ..] if ours(owner) && each.len() == jobs.len() => (false, each),
                _ => (false, &[]),
            },
            value => (ours(value), &[]),
        };
        let mut each = each.iter();
        for job in jobs {
            let done = match each.next() {
                None if all => 1,
                Some(Value::Int(done @ 0..=2)) => *done,
                _ => {
                    let why = "to a request of many".into();
                    self.nonsense(job, NodeError::Protocol { why });
                    continue;
                }
            };
            match done {
                0 => self.alone(job),
                done => job.call.answer(Ok(vote(done))),
            }
        }
    }

    /// Sends a call again, by itself; it has had no effect so far.
    fn alone(&mut self, mut job: Job) {
        if job.is_given_up() {
            return job.given_up();
        }
        job.alone = true;
        self.redo.push(job);
    }

    fn nonsense(&mut self, job: Job, error: NodeError) {
        job.call.answer(Err(error.clone()));
        self.cut = Some(error);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    use super::*;
    use crate::base::holder::new_owner;
    use crate::base::name::Name;
    use crate::node::{Claim, Holders, Tally};

    const TOKEN: u64 = 1_794_780_664_497_528;

    struct Answers(mpsc::Sender<Result<Vote, NodeError>>);

    impl Tally for Answers {
        fn count(self: Arc<Self>, _: usize, answer: Result<Vote, NodeError>) {
            // A job that a test drops has nobody to tell.
            let _ = self.0.send(answer);
        }
    }

    fn job(
        verb: Verb,
        settled: bool,
    ) -> (Job, Arc<Claim>, mpsc::Receiver<Result<Vote, NodeError>>) {
        let ttl = Duration::from_secs(10);
        let name = Name::new("a").unwrap();
        let claim = Arc::new(Claim::new(name, new_owner(TOKEN, ""), TOKEN, ttl));
        let (sender, receiver) = mpsc::channel();
        let call = Call::new(verb, Arc::clone(&claim), ttl, Arc::new(Answers(sender)), 0);
        let mut job = [Job::new(call.settled(settled), Moment::now())];
        settle(&mut job, Tick::now());
        let [job] = job;
        (job, claim, receiver)
    }

    fn shape(units: &[Unit]) -> String {
        let letter = |job: &Job| match (job.call.verb(), job.settles) {
            (Verb::Acquire, _) => 'A',
            (Verb::Extend, _) => 'E',
            (_, true) => 'S',
            (_, false) => 'R',
        };
        let unit = |unit: &Unit| unit.jobs().iter().map(letter).collect::<String>();
        units.iter().map(unit).collect::<Vec<_>>().join(" ")
    }

    fn planned(calls: &str, cap: u64) -> String {
        let jobs = calls.chars().map(|letter| match letter {
            'A' => job(Verb::Acquire, false).0,
            'E' => job(Verb::Extend, false).0,
            'S' => job(Verb::Release { keep: None }, true).0,
            _ => job(Verb::Release { keep: None }, false).0,
        });
        shape(&plan(jobs.collect(), cap, None))
    }

    #[test]
    fn calls_go_together_where_their_order_does_not_matter() {
        assert_eq!(planned("AA", TOKEN), "A A");
        assert_eq!(planned("ASASAS", TOKEN), "SSS AAA");
        // No acquire overtakes a release that may be of an earlier attempt.
        assert_eq!(planned("AAARAAAS", TOKEN), "S AAA R A A A");
        assert_eq!(planned("EAAEAE", TOKEN), "AAA EEE");
        assert_eq!(planned("EAAE", TOKEN), "A A E E");
        // A token that may be beyond the cap needs the clock.
        assert_eq!(planned("AAA", TOKEN - 1), "A A A");
    }

    #[test]
    fn a_release_over_the_same_connection_needs_no_fence() {
        let connected = Tick::now();
        let claim = || {
            let name = Name::new("a").unwrap();
            Claim::new(name, new_owner(TOKEN, ""), TOKEN, Duration::from_secs(10))
        };
        let call = |verb, claim: &Arc<Claim>| {
            let (sender, _) = mpsc::channel();
            let answers = Arc::new(Answers(sender));
            let call = Call::new(verb, Arc::clone(claim), claim.ttl(), answers, 0);
            Job::new(call, Moment::now())
        };
        let give_back = Verb::Release { keep: None };
        let settles = |jobs: Vec<Job>, connected| {
            let mut jobs = jobs;
            settle(&mut jobs, connected);
            jobs.last().expect("a job").settles
        };
        let ours = Arc::new(claim().made_now());
        assert!(settles(vec![call(give_back, &ours)], connected));
        assert!(!settles(vec![call(Verb::Extend, &ours)], connected));
        let keep = Some(Duration::from_secs(1));
        assert!(!settles(
            vec![call(Verb::Release { keep }, &ours)],
            connected
        ));
        // The connection is younger: the claim was asked for over another, perhaps.
        assert!(!settles(vec![call(give_back, &ours)], Tick::now()));
        // What it was asked for would be sent after it.
        let both = vec![call(Verb::Acquire, &ours), call(give_back, &ours)];
        assert!(!settles(both, connected));
        let other = Arc::new(claim().made_now());
        let both = vec![call(Verb::Acquire, &other), call(give_back, &ours)];
        assert!(settles(both, connected));
        // It was sent before, over a connection that broke.
        let again = call(give_back, &ours).again(Moment::now()).ok();
        assert!(!settles(vec![again.expect("in time")], connected));
        // It may stand in line.
        ours.wait();
        assert!(!settles(vec![call(give_back, &ours)], connected));
        // Others may ask for the same claim.
        other.set_holders(Holders::Nobody);
        assert!(!settles(vec![call(give_back, &other)], connected));
        assert!(!settles(
            vec![call(give_back, &Arc::new(claim()))],
            connected
        ));
    }

    #[test]
    fn a_call_that_was_given_up_is_not_sent_again() {
        let (job_, claim, answers) = job(Verb::Acquire, false);
        claim.give_back();
        let mut after = Aftermath::default();
        let refused = [Value::BulkString(claim.owner().to_vec()), Value::Int(0)];
        Unit::AcquireMany(vec![job_]).answer(Value::Array(refused.into()), None, &mut after);
        assert!(after.redo.is_empty());
        let answer = answers.recv().unwrap();
        assert!(answer.is_err_and(|error| error.had_no_effect()));
        for (verb, given_up) in [
            (Verb::Wait, true),
            (Verb::Extend, true),
            (Verb::Release { keep: None }, false),
        ] {
            let (job, claim, _answers) = job(verb, false);
            claim.give_back();
            assert_eq!(job.again(Moment::now()).is_err(), given_up, "{verb:?}");
        }
    }

    #[test]
    fn a_call_that_was_sent_is_never_said_to_have_had_no_effect() {
        let (job, _, answers) = job(Verb::Acquire, false);
        let job = job.again(Moment::now()).ok().expect("in time");
        job.give_up(NodeError::Loading);
        let answer = answers.recv().unwrap();
        assert!(answer.is_err_and(|error| !error.had_no_effect()));
    }

    #[test]
    fn the_servers_own_command_is_for_a_release_that_goes_alone() {
        let native = Some(Native::DelIfEq);
        let release = || job(Verb::Release { keep: None }, true);
        let (one, _, _) = release();
        assert!(matches!(
            plan(vec![one], TOKEN, native)[..],
            [Unit::Native(..)]
        ));
        let (waited, claim, _) = release();
        claim.wait();
        let (again, _, _) = release();
        let again = again.again(Moment::now()).ok().expect("in time");
        let (unsettled, _, _) = job(Verb::Release { keep: None }, false);
        for job in [waited, again, unsettled] {
            assert!(matches!(plan(vec![job], TOKEN, native)[..], [Unit::One(_)]));
        }
        let many = (0..3).map(|_| release().0).collect();
        let units = plan(many, TOKEN, native);
        assert!(matches!(units[..], [Unit::SettleMany(_)]));
    }

    #[test]
    fn a_release_by_the_servers_own_command_serves_the_line() {
        let answer = |deleted: Value, line: Value| {
            let (job, _, answers) = job(Verb::Release { keep: None }, true);
            let mut after = Aftermath::default();
            Unit::Native(job, Native::DelEx).answer(deleted, Some(line), &mut after);
            (after, answers)
        };
        for held in [true, false] {
            let (after, answers) = answer(Value::Int(held.into()), Value::Int(0));
            assert_eq!(answers.recv().unwrap(), Ok(Vote::Released { held }));
            assert!(after.redo.is_empty() && !after.native_refused);
        }
        // Somebody waits, or that could not be told: the script is sent, and what it finds
        // (nothing) does not make it a lock that was lost.
        let refused = || redis::parse_redis_value(b"-NOPERM no\r\n").expect("an error as a value");
        for (line, refused) in [(Value::Int(1), false), (refused(), true)] {
            let (mut after, answers) = answer(Value::Int(1), line);
            assert_eq!(after.native_refused, refused);
            let job = after.redo.pop().expect("the script");
            assert!(job.released);
            job.answer(Ok(Vote::Released { held: false }));
            assert_eq!(answers.recv().unwrap(), Ok(Vote::Released { held: true }));
        }
        // The lock was not held any more: the script serves the line, and the answer stays "not held".
        let (mut after, answers) = answer(Value::Int(0), Value::Int(1));
        let job = after.redo.pop().expect("the script");
        job.answer(Ok(Vote::Released { held: false }));
        assert_eq!(answers.recv().unwrap(), Ok(Vote::Released { held: false }));
        // A user who may not use it: nothing was done, the script does all.
        let (mut after, _answers) = answer(refused(), Value::Int(0));
        assert!(after.native_refused);
        assert!(!after.redo.pop().expect("the script").released);
        let (after, answers) = answer(Value::Int(7), Value::Int(0));
        assert!(after.cut.is_some());
        assert!(answers.recv().unwrap().is_err());
    }

    #[test]
    fn replies_to_many_are_matched_to_their_requests() {
        type Together = fn(Vec<Job>) -> Unit;
        let cases = [
            (Unit::AcquireMany as Together, Verb::Acquire, Vote::Granted),
            (Unit::ExtendMany, Verb::Extend, Vote::Granted),
            (
                Unit::SettleMany,
                Verb::Release { keep: None },
                Vote::Released { held: true },
            ),
        ];
        for (together, verb, done) in cases {
            let ask = |reply: &dyn Fn(Value) -> Value| {
                let (one, claim, first) = job(verb, true);
                let (two, _, second) = job(verb, true);
                let reply = reply(Value::BulkString(claim.owner().to_vec()));
                let mut after = Aftermath::default();
                together(vec![one, two]).answer(reply, None, &mut after);
                (first.try_recv(), second.try_recv(), after)
            };
            let (first, second, _) = ask(&|ours| ours);
            assert_eq!(
                (first.unwrap(), second.unwrap()),
                (Ok(done.clone()), Ok(done.clone()))
            );
            let flags = |of: Value| Value::Array(vec![of, Value::Int(1), Value::Int(0)]);
            let (first, second, after) = ask(&flags);
            assert_eq!(first.unwrap(), Ok(done));
            // What was not done is sent by itself.
            assert!(second.is_err());
            assert_eq!(after.redo.len(), 1);
            if matches!(verb, Verb::Release { .. }) {
                let not_held = |of: Value| Value::Array(vec![of, Value::Int(1), Value::Int(2)]);
                let (_, second, _) = ask(&not_held);
                assert_eq!(second.unwrap(), Ok(Vote::Released { held: false }));
            }
            // Of somebody else, of too few, or of no known kind.
            let stranger = || Value::BulkString(b"somebody else".to_vec());
            let nonsense: [&dyn Fn(Value) -> Value; 5] = [
                &|_| stranger(),
                &|_| flags(stranger()),
                &|ours| Value::Array(vec![ours, Value::Int(1)]),
                &|ours| Value::Array(vec![ours, Value::Int(3), Value::Nil]),
                &|_| Value::Okay,
            ];
            for reply in nonsense {
                let (first, second, after) = ask(reply);
                assert!(first.unwrap().is_err() && second.unwrap().is_err());
                assert!(after.cut.is_some());
            }
        }
    }
}
