//! Votes that count only when replicas have what they promise.
//!
//! A master replicates asynchronously, so a replica that is promoted may lack a lock. With
//! [`Builder::replicas`](crate::Builder::replicas), a vote that grants something is held back until
//! enough replicas have acknowledged it.
//!
//! - Replication is one ordered stream. So a write over a second connection, sent after the vote has
//!   arrived, and `WAIT` after it cover everything that the vote promises. The connection that carries
//!   votes never blocks, and one `WAIT` covers all votes that arrived before it.
//! - The server that acknowledges must be the one that voted, with the same memory. Otherwise the
//!   replicas of a promoted server would vouch for a lock that only its predecessor had. So the server
//!   is asked for its identity after the write. A server that hides its run id cannot be told from
//!   another one, so no vote of it counts.
//! - Votes are delayed or become errors, and no vote is added. Validity counts from before the request
//!   was sent, so a delay only shortens a lease. After an error, the client releases the claim.
//! - A notification of a grant is passed on as [`News::AskAgain`](crate::node::News), so that the
//!   answer to the next WAIT is the vote.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::{Pipeline, Value};
use tokio::sync::{mpsc, oneshot};

use super::Target;
use super::connection::Connection;
use super::identity::{self, Identity};
use super::reply::{glimpse, server_error};
use super::session::SharedMemory;
use crate::base::clock::{Clock, Moment};
use crate::node::{Call, NodeError, NodeSettings, Replicas, Shortfall, Verb, Vote};
use crate::observe::NodeWatch;

/// The key that is written so that `WAIT` has something to wait for.
pub(super) const MARKER_KEY: &str = "leasehold:replicated";
/// How long the marker is kept, in seconds. Nothing reads it.
const MARKER_KEPT_S: u32 = 60;
/// By how much a server may exceed the time limit of WAIT: it looks at the time ten times a second.
const WAIT_IS_LATE: Duration = Duration::from_millis(110);
/// A server whose reply is later than the time limit by this much is silent: its connection is closed.
const SILENCE: Duration = Duration::from_secs(1);
/// How many votes are received at a time.
const MAX_BATCH: usize = 256;

/// Holds back the votes of one server.
pub(super) struct Replication {
    votes: mpsc::UnboundedSender<HeldBack>,
    /// Sent with the first call.
    used: Mutex<Option<oneshot::Sender<()>>>,
    memory: SharedMemory,
    clock: Clock,
}

/// A vote that replicas must have first.
struct HeldBack {
    call: Call,
    vote: Vote,
    /// Who voted.
    by: Identity,
    /// When the call must be answered.
    deadline: Moment,
}

/// What a server reported about its replicas.
#[derive(Debug)]
struct Acknowledged {
    by: Identity,
    replicas: u32,
}

impl Replication {
    /// Starts the task that asks for acknowledgements. It ends when this is dropped.
    pub(super) fn start(
        target: Target,
        settings: &NodeSettings,
        replicas: Replicas,
        memory: SharedMemory,
        watch: NodeWatch,
    ) -> Self {
        let (votes, inbox) = mpsc::unbounded_channel();
        let (used, is_used) = oneshot::channel();
        let clock = settings.clock.clone();
        let task = Task {
            server: Server {
                target,
                wanted: replicas.wanted,
                connect_timeout: settings.connect_timeout,
                connection: None,
            },
            votes: Votes {
                inbox,
                asked: Vec::new(),
                waiting: Vec::new(),
                passes: false,
                replicas,
                clock: clock.clone(),
            },
            watch,
            is_short: false,
        };
        tokio::spawn(task.run(is_used));
        Self {
            votes,
            used: Mutex::new(Some(used)),
            memory,
            clock,
        }
    }

    /// Wraps a call, so that its answer is held back if replicas must have it first. With the first
    /// call, the task connects, as the link does.
    pub(super) fn hold_back(&self, call: Call) -> Call {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(used) = used.take() {
            let _ = used.send(());
        }
        let (votes, memory) = (self.votes.clone(), Arc::clone(&self.memory));
        let clock = self.clock.clone();
        call.relay(move |call, answer| match answer {
            Ok(vote) if must_be_replicated(call.verb(), &vote) => {
                // The link answers calls and completes handshakes in one task, so this is the
                // identity of the session that the vote came from.
                let Some(by) = memory.identity() else {
                    return call.answer(Err(NodeError::Unanswered));
                };
                // Counted from the vote: before it, the link may have had to connect.
                let deadline = clock.now() + call.timeout();
                // A vote that is dropped with the task counts as unanswered.
                let _ = votes.send(HeldBack {
                    call,
                    vote,
                    by,
                    deadline,
                });
            }
            answer => call.answer(answer),
        })
    }
}

/// Whether a vote promises something that a promoted replica must not lack: a lock, a name that stays
/// taken, or a stored result.
fn must_be_replicated(verb: Verb, vote: &Vote) -> bool {
    match vote {
        Vote::Granted => true,
        Vote::Released { held } => *held && matches!(verb, Verb::Release { keep: Some(_) }),
        Vote::Held { holder, .. } => holder.result.is_some(),
        _ => false,
    }
}

impl HeldBack {
    fn pass(self) {
        self.call.answer(Ok(self.vote));
    }

    fn refuse(self, acked: u32, wanted: u32, error: Option<NodeError>) {
        self.call.answer(Err(NodeError::NotReplicated {
            acked,
            wanted,
            error: error.map(Box::new),
        }));
    }

    /// Answers the call when its time is over.
    fn expire(self, replicas: Replicas) {
        let after = self.call.timeout();
        match replicas.otherwise {
            Shortfall::Warn => self.pass(),
            Shortfall::Refuse => {
                self.refuse(0, replicas.wanted, Some(NodeError::TimedOut { after }));
            }
        }
    }
}

/// The votes that are held back.
struct Votes {
    inbox: mpsc::UnboundedReceiver<HeldBack>,
    /// Those that the request under way is about.
    asked: Vec<HeldBack>,
    /// Those that have arrived since.
    waiting: Vec<HeldBack>,
    /// Votes are not held back for now.
    passes: bool,
    replicas: Replicas,
    clock: Clock,
}

impl Votes {
    /// Begins the next request. Returns whether there is anything to ask for, or `false` when no vote
    /// will come any more.
    async fn next(&mut self) -> bool {
        if self.waiting.is_empty() {
            self.inbox.recv_many(&mut self.waiting, MAX_BATCH).await;
        }
        std::mem::swap(&mut self.asked, &mut self.waiting);
        !self.asked.is_empty()
    }

    /// Receives votes, and answers those whose time is over, until `request` has ended.
    async fn receive_during<T>(&mut self, request: impl Future<Output = T>) -> T {
        let mut request = std::pin::pin!(request);
        loop {
            let due = earliest(&self.asked).min(earliest(&self.waiting));
            tokio::select! {
                biased;
                done = &mut request => return done,
                Some(vote) = self.inbox.recv() => match self.passes {
                    true => vote.pass(),
                    false => self.waiting.push(vote),
                },
                () = self.clock.sleep_until(due), if due != Moment::FAR => {
                    let now = self.clock.now();
                    for votes in [&mut self.asked, &mut self.waiting] {
                        let expired = votes.extract_if(.., |vote| vote.deadline <= now);
                        expired.for_each(|vote| vote.expire(self.replicas));
                    }
                }
            }
        }
    }

    /// Answers the calls that can be answered. Those that have time for another request wait for it.
    fn settle(&mut self, deadline: Moment, answer: &Result<Acknowledged, NodeError>) {
        let (now, wanted) = (self.clock.now(), self.replicas.wanted);
        for vote in self.asked.drain(..) {
            match answer {
                Ok(ack) if ack.replicas >= wanted && ack.by.continues(&vote.by) => vote.pass(),
                _ if self.replicas.otherwise == Shortfall::Warn => vote.pass(),
                Ok(ack) if !ack.by.continues(&vote.by) => {
                    let why = "another server answers, or the same with another memory".to_owned();
                    vote.refuse(0, wanted, Some(NodeError::Disconnected { why }));
                }
                Ok(_) if vote.deadline > deadline && vote.deadline > now => self.waiting.push(vote),
                Ok(ack) => vote.refuse(ack.replicas, wanted, None),
                Err(error) => vote.refuse(0, wanted, Some(error.clone())),
            }
        }
    }
}

/// The earliest deadline of these votes.
fn earliest(votes: &[HeldBack]) -> Moment {
    votes
        .iter()
        .map(|vote| vote.deadline)
        .min()
        .unwrap_or(Moment::FAR)
}

/// Asks for acknowledgements, one request at a time, and answers calls.
struct Task {
    server: Server,
    votes: Votes,
    watch: NodeWatch,
    /// Too few replicas acknowledged the latest write.
    is_short: bool,
}

impl Task {
    async fn run(mut self, used: oneshot::Receiver<()>) {
        if used.await.is_ok() {
            self.votes.receive_during(self.server.connect()).await;
        }
        while self.votes.next().await {
            let Some(by) = self.votes.asked.last().map(|vote| vote.by.clone()) else {
                continue;
            };
            let deadline = earliest(&self.votes.asked);
            let left = deadline.saturating_duration_since(self.votes.clock.now());
            // While replicas are missing and need not be there, no vote waits for them.
            self.votes.passes = self.is_short && self.votes.replicas.otherwise == Shortfall::Warn;
            if self.votes.passes {
                self.votes.asked.drain(..).for_each(HeldBack::pass);
            }
            let asking = self.server.ask(&by, left);
            let answer = self.votes.receive_during(asking).await;
            self.note(&answer);
            self.votes.settle(deadline, &answer);
        }
    }

    /// Reports when replicas begin to be missing, and when they are back.
    fn note(&mut self, answer: &Result<Acknowledged, NodeError>) {
        let (label, wanted) = (self.server.target.label(), self.server.wanted);
        let acked = answer.as_ref().map(|ack| ack.replicas);
        let is_short = acked.is_err() || acked.is_ok_and(|acked| acked < wanted);
        if is_short != self.is_short {
            self.is_short = is_short;
            self.watch.replicas(label, acked, wanted);
        }
    }
}

/// The server, over a connection of its own.
struct Server {
    target: Target,
    wanted: u32,
    connect_timeout: Duration,
    connection: Option<Connection>,
}

impl Server {
    /// Connects, so that the first vote need not wait for that. If it fails, the first vote tries again.
    async fn connect(&mut self) {
        self.connection = self.target.open_within(self.connect_timeout).await.ok();
    }

    /// Asks how many replicas have what the server has executed so far; waits for them within `limit`.
    ///
    /// Cancel safety: a connection whose replies were not awaited is not used again.
    async fn ask(&mut self, voter: &Identity, limit: Duration) -> Result<Acknowledged, NodeError> {
        let after = limit + SILENCE;
        let asking = tokio::time::timeout(after, self.ask_either(voter, limit)).await;
        asking.unwrap_or(Err(NodeError::TimedOut { after }))
    }

    /// Asks over the open connection or, if that is of no use any more, over a new one. It may have
    /// been idle for long, or lead to a server that is not the master any more.
    async fn ask_either(
        &mut self,
        voter: &Identity,
        limit: Duration,
    ) -> Result<Acknowledged, NodeError> {
        if let Some(open) = self.connection.take()
            && let Ok(ack) = self.ask_over(&open, limit).await
            && ack.by.continues(voter)
        {
            self.connection = Some(open);
            return Ok(ack);
        }
        let open = self.target.open().await?;
        let ack = self.ask_over(&open, limit).await?;
        self.connection = Some(open);
        Ok(ack)
    }

    async fn ask_over(
        &self,
        connection: &Connection,
        limit: Duration,
    ) -> Result<Acknowledged, NodeError> {
        let mut requests = Pipeline::new();
        let marker = requests.cmd("SET").arg(MARKER_KEY).arg("");
        marker.arg("EX").arg(MARKER_KEPT_S);
        identity::ask(&mut requests);
        // The number must arrive in time, too. A limit of 0 would mean: for ever.
        let wait = limit - WAIT_IS_LATE.min(limit / 2);
        let wait_ms = wait.as_millis().max(1) as u64;
        requests.cmd("WAIT").arg(self.wanted).arg(wait_ms);
        read(&connection.exchange(&requests).await?)
    }
}

/// Reads the replies to SET, INFO and WAIT.
fn read(replies: &[Value]) -> Result<Acknowledged, NodeError> {
    let [set, info @ .., wait] = replies else {
        let why = format!("to WAIT: {}", glimpse(replies));
        return Err(NodeError::Protocol { why });
    };
    if let Value::ServerError(error) = set {
        return Err(server_error(error));
    }
    let server = identity::ServerInfo::read(info)?;
    if server.run_id.is_none() {
        let why = "the server hides its run id (INFO), so it cannot be told from one that was promoted in \
                   its place; use a restart guard instead of replicas";
        return Err(NodeError::Unusable { why: why.into() });
    }
    let by = server.identity;
    match wait {
        Value::Int(replicas) => Ok(Acknowledged {
            by,
            replicas: u32::try_from(*replicas).unwrap_or(0),
        }),
        Value::ServerError(error) => Err(match server_error(error) {
            NodeError::Refused { why } if why.contains("unknown command") => NodeError::Unusable {
                why: format!("the server does not know WAIT: {why}"),
            },
            error => error,
        }),
        _ => {
            let why = format!("to WAIT: {}", glimpse(replies));
            Err(NodeError::Protocol { why })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::holder::Holder;

    #[test]
    fn votes_that_promise_something_are_held_back() {
        let keep = Verb::Release {
            keep: Some(Duration::from_secs(1)),
        };
        let release = Verb::Release { keep: None };
        let held = |value: &[u8]| Vote::held(Holder::parse(value), None, 1, 2);
        let kept = b"kept:1794780664497528:1@h:\n1794780664497\nresult";
        for (verb, vote, expected) in [
            (Verb::Acquire, Vote::Granted, true),
            (Verb::Extend, Vote::Granted, true),
            (Verb::Wait, Vote::Granted, true),
            (keep, Vote::Released { held: true }, true),
            (keep, Vote::Released { held: false }, false),
            (release, Vote::Released { held: true }, false),
            (Verb::Acquire, held(kept), true),
            (Verb::Acquire, held(b"another library's value"), false),
            (Verb::Wait, Vote::YourTurn, false),
            (Verb::Acquire, Vote::Stale { fence: 1, now: 2 }, false),
        ] {
            assert_eq!(
                must_be_replicated(verb, &vote),
                expected,
                "{verb:?}: {vote}"
            );
        }
    }

    #[test]
    fn a_server_that_hides_its_run_id_vouches_for_nothing() {
        let info = |run_id: &str| {
            let server = format!("# Server\r\n{run_id}\r\n");
            [
                Value::Okay,
                Value::BulkString(server.into_bytes()),
                Value::BulkString(b"role:master\r\n".to_vec()),
                Value::Int(1),
            ]
        };
        let shown = read(&info("run_id:abc")).expect("acknowledged");
        assert_eq!(shown.replicas, 1);
        let hidden = read(&info("redis_version:7.0.15")).expect_err("another server may answer");
        assert!(hidden.is_permanent() && hidden.to_string().contains("run id"));
    }
}
