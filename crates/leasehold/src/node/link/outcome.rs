//! What the replies of a server mean for the jobs that they answer.

use super::job::{Job, MAX_REDOS};
use crate::node::{NodeError, Vote};

/// What a server answered to one job.
#[derive(Debug)]
pub enum Reply {
    /// The call's answer.
    Answer(Result<Vote, NodeError>),
    /// The call was granted, and the server's clock shows this.
    GrantedAt(u64),
    /// Nothing was done: this is not the common case, and the job must be sent by itself.
    Alone,
    /// A plain command has set the lock.
    Set(LineLook),
    /// The server's own compare-and-delete ran.
    Deleted {
        /// Whether the lock was the claim's.
        held: bool,
        /// Whether there are waiters.
        line: LineLook,
    },
    /// The server refused its own compare-and-delete.
    NativeRefused,
    /// The server does not know the script.
    NoScript,
    /// The server's epoch is not the one that this connection knows.
    Forgot,
    /// Not a reply to this request: the connection cannot be trusted any more.
    Garbage(NodeError),
}

/// Whether there are waiters for a lock, as far as a plain command shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineLook {
    /// There are none.
    Empty,
    /// There may be some.
    Waiters,
    /// The server refused to say.
    Refused,
}

/// What is left to do after a batch was answered.
#[derive(Default, Debug)]
pub struct Aftermath {
    /// Calls to send again.
    pub(crate) redo: Vec<Job>,
    /// The server has forgotten its scripts or its epoch.
    pub(super) forgot: bool,
    /// The server's clock.
    pub(super) now_us: Option<u64>,
    /// The server has refused its own compare-and-delete.
    pub(crate) native_refused: bool,
    /// Why the connection cannot be used any more: a reply made no sense, or the server says that
    /// it cannot serve requests at the moment.
    pub(crate) cut: Option<NodeError>,
}

impl Aftermath {
    /// Answers a job, or notes what else is to be done with it.
    pub fn take(&mut self, mut job: Job, reply: Reply) {
        match reply {
            // The first copy of the request may have released it.
            Reply::Answer(Ok(Vote::Released { held: false })) if job.in_doubt && !job.released => {
                let why = "it was sent twice, and the first may have taken effect".into();
                job.answer(Err(NodeError::Disconnected { why }));
            }
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
            Reply::Alone => self.alone(job),
            Reply::Set(LineLook::Empty) => job.answer(Ok(Vote::Granted)),
            // The script serves the line first.
            Reply::Set(LineLook::Waiters | LineLook::Refused) => {
                job.overtook = true;
                job.in_doubt = true;
                self.alone(job);
            }
            Reply::Deleted {
                held,
                line: LineLook::Empty,
            } => job.answer(Ok(Vote::Released { held })),
            // The script serves the line. Also if the lock was not held: it may have expired, and
            // nothing else has served the line.
            Reply::Deleted { held, line } => {
                self.native_refused |= line == LineLook::Refused;
                job.released = held;
                self.alone(job);
            }
            Reply::NativeRefused => {
                self.native_refused = true;
                self.alone(job);
            }
            Reply::NoScript | Reply::Forgot if job.redos >= MAX_REDOS => {
                let why = "the server keeps forgetting its scripts or its epoch".into();
                job.give_up(NodeError::Refused { why });
            }
            Reply::NoScript | Reply::Forgot => {
                self.forgot = true;
                job.redos += 1;
                self.alone(job);
            }
            Reply::Garbage(error) => {
                job.call.answer(Err(error.clone()));
                self.cut = Some(error);
            }
        }
    }

    /// Sends a job again, by itself.
    fn alone(&mut self, mut job: Job) {
        if job.is_given_up() {
            return job.given_up();
        }
        job.alone = true;
        self.redo.push(job);
    }
}

#[cfg(test)]
mod tests {
    use super::super::job::tests::job;
    use super::*;
    use crate::node::Verb;

    #[test]
    fn a_call_whose_claim_was_released_is_not_sent_alone() {
        let (job, claim, answers) = job(Verb::Acquire, false);
        claim.mark_released();
        let mut after = Aftermath::default();
        after.take(job, Reply::Alone);
        assert!(after.redo.is_empty());
        let answer = answers.recv().unwrap();
        assert!(answer.is_err_and(|error| error.had_no_effect()));
    }
}
