//! A call on its way to a server.

use crate::base::clock::Moment;
use crate::node::{Call, NodeError, Verb, Vote};

/// How often one call may be sent again because the server forgot something or hung up.
pub(super) const MAX_REDOS: u8 = 3;

/// A call, and how it is sent.
#[derive(Debug)]
pub struct Job {
    /// The call.
    pub call: Call,
    pub(super) deadline: Moment,
    pub(super) redos: u8,
    /// It turned out not to be the common case.
    pub(super) alone: bool,
    /// It was sent over a connection that broke: it may have taken effect.
    pub in_doubt: bool,
    /// It is a plain compare-and-delete; see `plan::mark_plain_deletes`.
    pub is_plain_delete: bool,
    /// A plain command has set the lock although there may be a line.
    pub overtook: bool,
    /// A release that has been done, and only has to serve the line.
    pub released: bool,
}

impl Job {
    pub(crate) fn new(call: Call, now: Moment) -> Self {
        let deadline = now + call.timeout();
        Self {
            call,
            deadline,
            redos: 0,
            alone: false,
            in_doubt: false,
            is_plain_delete: false,
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

    /// Whether a grant that the server may have made for this job, and has not confirmed, can be
    /// released. Only the grant of a first ACQUIRE: no lease depends on it before it is confirmed.
    /// EXTEND belongs to a lease; and a claim that has waited may have been granted by a
    /// notification, and may be a lease by now.
    pub(super) fn may_be_undone(&self) -> bool {
        self.call.verb() == Verb::Acquire && !self.call.claim().has_waited()
    }

    /// Puts the job aside, to be sent again over the next connection. That is safe: the rules
    /// recognise the same request. `Err` if it would be in vain, or too late.
    pub(crate) fn again(mut self, now: Moment) -> Result<Self, Self> {
        if self.redos >= MAX_REDOS || self.deadline <= now || self.is_given_up() {
            return Err(self);
        }
        self.redos += 1;
        self.alone = true;
        self.in_doubt = true;
        self.call.claim().mark_sent_twice();
        Ok(self)
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
        self.give_up(NodeError::GivenUp);
    }

    /// Whether the claim is being released. Rule: from then on, no ACQUIRE, WAIT or EXTEND of the
    /// claim is sent. It could arrive after the release and take the lock, or a place in line, for a
    /// claim that has no owner any more.
    pub(super) fn is_given_up(&self) -> bool {
        let is_release = matches!(self.call.verb(), Verb::Release { .. });
        !is_release && self.call.claim().is_released()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    use super::super::plan::mark_plain_deletes;
    use super::*;
    use crate::base::holder::new_owner;
    use crate::base::name::Name;
    use crate::node::call::Tick;
    use crate::node::{Claim, Tally};

    pub(crate) const TOKEN: u64 = 1_794_780_664_497_528;

    pub(crate) type Answers = mpsc::Receiver<Result<Vote, NodeError>>;

    pub(crate) struct Receiver(pub(crate) mpsc::Sender<Result<Vote, NodeError>>);

    impl Tally for Receiver {
        fn count(self: Arc<Self>, _: usize, answer: Result<Vote, NodeError>) {
            // Nothing receives the answer to a job that a test drops.
            let _ = self.0.send(answer);
        }
    }

    pub(crate) fn job(verb: Verb, nothing_in_flight: bool) -> (Job, Arc<Claim>, Answers) {
        let ttl = Duration::from_secs(10);
        let name = Name::new("a").unwrap();
        let claim = Arc::new(Claim::new(name, new_owner(TOKEN, ""), TOKEN, ttl));
        let (sender, receiver) = mpsc::channel();
        let call = Call::new(verb, Arc::clone(&claim), ttl, Arc::new(Receiver(sender)), 0);
        let mut job = [Job::new(
            call.with_nothing_in_flight(nothing_in_flight),
            Moment::now(),
        )];
        mark_plain_deletes(&mut job, Tick::now());
        let [job] = job;
        (job, claim, receiver)
    }

    #[test]
    fn a_call_whose_claim_was_released_is_not_sent_again() {
        for (verb, given_up) in [
            (Verb::Wait, true),
            (Verb::Extend, true),
            (Verb::Release { keep: None }, false),
        ] {
            let (job, claim, _answers) = job(verb, false);
            claim.mark_released();
            assert_eq!(job.again(Moment::now()).is_err(), given_up, "{verb:?}");
        }
    }

    #[test]
    fn a_call_that_was_sent_is_never_said_to_have_had_no_effect() {
        let (job, _, answers) = job(Verb::Acquire, false);
        let job = job.again(Moment::now()).expect("in time");
        job.give_up(NodeError::Loading);
        let answer = answers.recv().unwrap();
        assert!(answer.is_err_and(|error| !error.had_no_effect()));
    }
}
