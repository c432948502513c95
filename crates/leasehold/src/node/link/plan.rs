//! Which calls share a request, and in which order requests are sent.
//!
//! A script costs the server more than what it does for one claim. When many calls leave
//! in one write, those that are the common case share a script.

use std::ptr;
use std::time::Duration;

use super::job::Job;
use crate::node::call::Tick;
use crate::node::{Call, Mode, Verb};
use crate::planted::{self, Bug};

/// Fewer calls than this are not worth a script of many.
const FEW: usize = 3;

/// Calls that share one request, and so one reply.
#[derive(Debug)]
pub enum Unit {
    /// One call, by a script.
    One(Job),
    /// A lock without a token: a look at whether there is a line, and a single command.
    Plain(Job),
    /// A release by the server's own command, and a look at whether there is a line.
    Native(Job, Native),
    /// Acquires of the common case, in one script.
    AcquireMany(Vec<Job>),
    /// Extends of the common case, in one script.
    ExtendMany(Vec<Job>),
    /// Plain deletes, in one script.
    DeleteMany(Vec<Job>),
}

/// A command that deletes a key if it has a certain value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Native {
    /// Of Valkey, from version 9 on.
    DelIfEq,
    /// Of Redis, from version 8.4 on.
    DelEx,
}

/// Finds the releases that need not raise the fence, because no request of their claims that takes
/// effect after them can be granted. There are two kinds:
///
/// - The caller knows that nothing of the claim is [in flight](Call::nothing_in_flight).
/// - All requests of the claim went over this connection, which has been there since `connected`.
///   A server executes the requests of a connection in order (see
///   [`Transport`](super::Transport)), so it has executed all of them before the release. That is
///   so if the claim was made after `connected`, by this process and for it alone, and the release
///   itself was not sent over another connection before. If this connection breaks, the release is
///   sent again over the next one, and raises the fence then.
///
/// The second does not apply to a claim that has waited: it may still stand in line, and has to
/// leave.
pub(crate) fn mark_plain_deletes(jobs: &mut [Job], connected: Tick) {
    for at in 0..jobs.len() {
        let (before, rest) = jobs.split_at_mut(at);
        let [job, ..] = rest else { return };
        let claim = job.call.claim();
        let over_this_connection = || {
            planted::on(Bug::PlainDeleteAcrossConnections)
                || !job.in_doubt && claim.is_only_since(connected)
        };
        let in_order = || {
            !claim.has_waited()
                && over_this_connection()
                // A plan puts plain deletes before all others.
                && !before.iter().any(|job| ptr::eq(job.call.claim(), claim))
        };
        let is_release = may_be_plain_delete(&job.call);
        job.is_plain_delete =
            !job.released && (is_plain_delete(&job.call) || is_release && in_order());
    }
}

/// Puts calls together that can share a request.
///
/// Calls take effect in the order in which they were submitted, where that matters:
/// - A plain delete depends on nothing before it, so these go first.
/// - An acquire must come after the releases before it, which may be those of an earlier
///   attempt; so only acquires with no such call before them go together.
/// - An extend must come before the release of its claim, and nothing else matters to it.
///
/// A plain delete that goes alone is done by the server's own command, if it has one; but not
/// that of a claim that has waited, since there may still be other waiters.
pub(crate) fn plan(jobs: Vec<Job>, cap: u64, native: Option<Native>) -> Vec<Unit> {
    let one = |job: Job| match native {
        _ if job.call.verb() == Verb::Acquire && !job.call.claim().is_fenced() && !job.alone => {
            Unit::Plain(job)
        }
        Some(native) if job.is_plain_delete && !job.alone && !job.call.claim().has_waited() => {
            Unit::Native(job, native)
        }
        _ => Unit::One(job),
    };
    if jobs.len() < FEW {
        return jobs.into_iter().map(one).collect();
    }
    let (mut plain_deletes, mut acquires, mut extends) =
        (Vec::new(), Vec::<Job>::new(), Vec::new());
    let (mut others, mut in_order) = (Vec::new(), true);
    for job in jobs {
        let verb = job.call.verb();
        let shares = |with: &[Job]| {
            let ttl = with.first().map(|first| first.call.claim().ttl());
            !job.alone && shares_script(&job.call, ttl, cap)
        };
        if !job.alone && job.is_plain_delete && !job.call.claim().has_waited() {
            plain_deletes.push(job);
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
        (plain_deletes, Unit::DeleteMany as fn(Vec<Job>) -> Unit),
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

/// Whether an acquire or extend can share a request with others, whose ttl is `ttl`. Its token
/// must stand in the owner value where the script looks for it. That of an acquire must be within
/// the cap; an extend that shares a request only keeps what was granted.
fn shares_script(call: &Call, ttl: Option<Duration>, cap: u64) -> bool {
    let claim = call.claim();
    claim.mode() == Mode::Exclusive
        && (claim.seat().is_none() || call.verb() == Verb::Extend)
        && (claim.token() <= cap || call.verb() == Verb::Extend)
        && claim.has_token_in_place()
        && claim.ttl() < Duration::from_millis(10_000_000)
        && ttl.is_none_or(|ttl| ttl == claim.ttl())
}

/// Whether a release may be a plain compare-and-delete. Not that of a reader, whose owner value is not
/// at the lock's key, nor that of a permit, which the first in line is notified of.
fn may_be_plain_delete(call: &Call) -> bool {
    let claim = call.claim();
    let plain = claim.mode() == Mode::Exclusive && claim.seat().is_none();
    call.verb() == Verb::Release { keep: None } && plain
}

/// Whether a release is a plain compare-and-delete, whatever was sent before it.
fn is_plain_delete(call: &Call) -> bool {
    let plain = call.nothing_in_flight() || !call.claim().is_fenced();
    plain && may_be_plain_delete(call)
}

impl Unit {
    /// The jobs that share the request.
    pub fn jobs(&self) -> &[Job] {
        match self {
            Self::One(job) | Self::Plain(job) | Self::Native(job, _) => std::slice::from_ref(job),
            Self::AcquireMany(jobs) | Self::ExtendMany(jobs) | Self::DeleteMany(jobs) => jobs,
        }
    }

    /// The same, taken out of the unit.
    pub fn into_jobs(self) -> Vec<Job> {
        match self {
            Self::One(job) | Self::Plain(job) | Self::Native(job, _) => vec![job],
            Self::AcquireMany(jobs) | Self::ExtendMany(jobs) | Self::DeleteMany(jobs) => jobs,
        }
    }

    /// How many requests it is.
    pub fn requests(&self) -> usize {
        match self {
            Self::Native(..) | Self::Plain(_) => 2,
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use super::super::job::tests::{Receiver, TOKEN, job};
    use super::*;
    use crate::base::clock::Moment;
    use crate::base::holder::new_owner;
    use crate::base::name::Name;
    use crate::node::{Claim, Holders};

    fn shape(units: &[Unit]) -> String {
        let letter = |job: &Job| match (job.call.verb(), job.is_plain_delete) {
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
            let answers = Arc::new(Receiver(sender));
            let call = Call::new(verb, Arc::clone(claim), claim.ttl(), answers, 0);
            Job::new(call, Moment::now())
        };
        let release = Verb::Release { keep: None };
        let is_plain_delete = |jobs: Vec<Job>, connected| {
            let mut jobs = jobs;
            mark_plain_deletes(&mut jobs, connected);
            jobs.last().expect("a job").is_plain_delete
        };
        let ours = Arc::new(claim().made_now());
        assert!(is_plain_delete(vec![call(release, &ours)], connected));
        assert!(!is_plain_delete(vec![call(Verb::Extend, &ours)], connected));
        let keep = Some(Duration::from_secs(1));
        assert!(!is_plain_delete(
            vec![call(Verb::Release { keep }, &ours)],
            connected
        ));
        // The connection is younger: the claim was asked for over another, perhaps.
        assert!(!is_plain_delete(vec![call(release, &ours)], Tick::now()));
        // What it was asked for would be sent after it.
        let both = vec![call(Verb::Acquire, &ours), call(release, &ours)];
        assert!(!is_plain_delete(both, connected));
        let other = Arc::new(claim().made_now());
        let both = vec![call(Verb::Acquire, &other), call(release, &ours)];
        assert!(is_plain_delete(both, connected));
        // It was sent before, over a connection that broke.
        let again = call(release, &ours).again(Moment::now()).ok();
        assert!(!is_plain_delete(vec![again.expect("in time")], connected));
        // It may stand in line.
        ours.wait();
        assert!(!is_plain_delete(vec![call(release, &ours)], connected));
        // Others may ask for the same claim.
        other.set_holders(Holders::Nobody);
        assert!(!is_plain_delete(vec![call(release, &other)], connected));
        assert!(!is_plain_delete(
            vec![call(release, &Arc::new(claim()))],
            connected
        ));
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
        let again = again.again(Moment::now()).expect("in time");
        let (raises_fence, _, _) = job(Verb::Release { keep: None }, false);
        for job in [waited, again, raises_fence] {
            assert!(matches!(plan(vec![job], TOKEN, native)[..], [Unit::One(_)]));
        }
        let many = (0..3).map(|_| release().0).collect();
        let units = plan(many, TOKEN, native);
        assert!(matches!(units[..], [Unit::DeleteMany(_)]));
    }
}
