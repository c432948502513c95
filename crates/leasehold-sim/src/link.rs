//! A process's end of its connection to one node, which the client uses as a `Node`.
//!
//! It behaves like the library's own Redis node:
//! - It completes a handshake before the first request, and sends requests in order.
//! - It closes the connection when an answer is overdue.
//! - When the node closes the connection, it sends unanswered requests again, unless their claim
//!   is being released.
//! - While the node is known to be unreachable, requests fail at once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::Moment;
use leasehold::node::{Call, Claim, Node, NodeError, Notifier, Verb, Vote, Watch};

use crate::bug::Bug;
use crate::network::ConnectionId;
use crate::process::Process;
use crate::server::{Reply, Request};
use crate::store::{Ask, Epoch};
use crate::subscriber::Subscriber;
use crate::sync::locked;
use crate::world::World;

/// The delay before the second attempt to connect.
pub const FIRST_RETRY: Duration = Duration::from_millis(20);
/// The longest delay between two attempts to connect.
pub const LONGEST_RETRY: Duration = Duration::from_secs(1);
/// How long a session is used before the node is asked for its identity again, as in the library.
pub const VERIFY_AFTER: Duration = Duration::from_secs(1);
/// How often one call may be sent again.
const MAX_REDOS: u8 = 3;

/// A node as a process sees it.
pub struct Link {
    world: Arc<World>,
    end: Arc<End>,
    label: String,
}

/// A process's end of its connection to one node.
pub struct End {
    /// The process.
    pub process: Arc<Process>,
    /// The node.
    pub server: usize,
    /// The waiters of the process, and their subscription.
    pub subscriber: Subscriber,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connection: Option<ConnectionId>,
    session: Option<Session>,
    /// Sent, and not answered yet.
    asked: VecDeque<Job>,
    /// Not sent yet, because there is no connection.
    waiting: VecDeque<Job>,
    /// The node is known to be unreachable: calls fail at once.
    away: bool,
    failures: u32,
    floor: u64,
    /// When the last handshake was sent.
    greeted: Option<Moment>,
    /// The node's memory as of the last handshake, and since when the node has had it.
    known: Option<(u64, Moment)>,
    numbers: u64,
    timer: Option<Moment>,
}

/// The result of a handshake.
struct Session {
    epoch: Epoch,
    /// The node's memory.
    memory: u64,
    /// When the node was last asked for its identity.
    verified: Moment,
    /// The node restarted: when that was, and until when it does not vote.
    quarantine: Option<(Moment, Moment)>,
    /// Another handshake is under way, because the node forgot its epoch.
    renewing: bool,
}

struct Job {
    call: Call,
    /// Its owner value, as the nodes see it.
    owner: Arc<[u8]>,
    number: u64,
    deadline: Moment,
    redos: u8,
    /// It has been sent before, and may have taken effect.
    in_doubt: bool,
}

/// Answers to deliver once the state is unlocked: their receivers may send another request at
/// once.
type Answers = Vec<(Call, Result<Vote, NodeError>)>;

impl Link {
    /// Creates a link from a process to a node, and starts to connect.
    pub fn new(world: &Arc<World>, process: &Arc<Process>, server: usize) -> Self {
        let end = Arc::new(End {
            process: Arc::clone(process),
            server,
            subscriber: Subscriber::new(world.new_channel()),
            state: Mutex::default(),
        });
        end.connect(world, &mut locked(&end.state));
        Self {
            world: Arc::clone(world),
            end,
            label: format!("n{server}"),
        }
    }
}

impl Node for Link {
    fn label(&self) -> &str {
        &self.label
    }

    fn submit(&self, call: Call) {
        self.end.submit(&self.world, call);
    }

    fn floor(&self) -> u64 {
        locked(&self.end.state).floor
    }

    fn watch(&self, claim: &Claim, notifier: &Notifier) -> Option<Watch> {
        Some(self.end.watch(&self.world, claim, notifier))
    }
}

impl Job {
    /// Whether the claim is being released: a request that is sent again could overtake the
    /// release.
    fn is_given_up(&self) -> bool {
        !matches!(self.call.verb(), Verb::Release { .. }) && self.call.claim().is_given_back()
    }

    fn request(&self, epoch: Epoch, verifies: bool, subscriber: &Subscriber) -> Request {
        let claim = self.call.claim();
        let (name, owner) = (claim.name().clone(), &*self.owner);
        Request::Ask(Box::new(Ask {
            verb: self.call.verb(),
            claim: Claim::new(name, owner, claim.token(), claim.ttl())
                .on_one_node(claim.is_on_one_node()),
            settled: self.call.is_settled(),
            epoch,
            verifies,
            channel: subscriber.channel(),
        }))
    }
}

fn disconnected(why: &str) -> NodeError {
    let why = why.to_owned();
    NodeError::Disconnected { why }
}

fn unreachable() -> NodeError {
    let why = "no connection".to_owned();
    NodeError::Unreachable { why }
}

fn deliver(answers: Answers) {
    for (call, answer) in answers {
        call.answer(answer);
    }
}

impl End {
    fn submit(self: &Arc<Self>, world: &Arc<World>, call: Call) {
        if self.process.is_dead() {
            // Destructors of the process still run, but it sends nothing any more.
            return;
        }
        let owner = world.asked(&self.process, call.verb(), call.claim());
        let mut answers = Answers::new();
        {
            let state = &mut *locked(&self.state);
            if state.away {
                answers.push((call, Err(unreachable())));
            } else {
                state.numbers += 1;
                let deadline = self.process.now(world) + call.timeout();
                state.waiting.push_back(Job {
                    call,
                    owner,
                    number: state.numbers,
                    deadline,
                    redos: 0,
                    in_doubt: false,
                });
                self.ask_waiting(world, state, &mut answers);
            }
        }
        deliver(answers);
    }

    /// Connects and sends the handshake.
    fn connect(self: &Arc<Self>, world: &Arc<World>, state: &mut State) {
        let id = world.network.open(self);
        state.connection = Some(id);
        state.session = None;
        state.greeted = Some(self.process.now(world));
        world.network.send(world, id, 0, Request::Hello);
        let end = Arc::clone(self);
        self.process
            .after(world, world.plan.connect_timeout(), move |world| {
                let mut answers = Answers::new();
                {
                    let state = &mut *locked(&end.state);
                    if state.connection == Some(id) && state.session.is_none() {
                        end.broken(world, state, false, &mut answers);
                    }
                }
                deliver(answers);
            });
    }

    /// Sends the waiting requests, in order.
    fn ask_waiting(self: &Arc<Self>, world: &Arc<World>, state: &mut State, answers: &mut Answers) {
        let now = self.process.now(world);
        let Some(id) = state.connection else { return };
        while let Some(session) = state.session.as_ref().filter(|s| !s.renewing) {
            let (epoch, quarantine) = (session.epoch, session.quarantine);
            let verified = session.verified;
            let Some(job) = state.waiting.pop_front() else {
                break;
            };
            if job.is_given_up() {
                let error = match job.in_doubt {
                    true => disconnected("released meanwhile"),
                    false => unreachable(),
                };
                answers.push((job.call, Err(error)));
                continue;
            }
            let releases = matches!(job.call.verb(), Verb::Release { .. });
            let guarded = quarantine.is_some_and(|(_, until)| now < until);
            let claim = job.call.claim();
            let forgotten = guarded || claim.is_fenced() && claim.token() <= state.floor;
            if job.in_doubt && forgotten && !releases {
                answers.push((job.call, Err(disconnected("the node lost its memory"))));
                continue;
            }
            if let Some((since, until)) = quarantine.filter(|(_, until)| now < *until && !releases)
            {
                let up = now.saturating_duration_since(since);
                let remaining = until.saturating_duration_since(now);
                answers.push((job.call, Ok(Vote::Quarantined { up, remaining })));
                continue;
            }
            let verifies = now >= verified + VERIFY_AFTER && world.bug != Some(Bug::NeverVerified);
            if let Some(session) = state.session.as_mut().filter(|_| verifies) {
                session.verified = now;
            }
            let request = job.request(epoch, verifies, &self.subscriber);
            world.network.send(world, id, job.number, request);
            state.asked.push_back(job);
        }
        self.set_timer(world, state);
    }

    /// One timer for all requests, set for the earliest deadline.
    fn set_timer(self: &Arc<Self>, world: &Arc<World>, state: &mut State) {
        let jobs = state.asked.iter().chain(&state.waiting);
        let Some(due) = jobs.map(|job| job.deadline).min() else {
            return;
        };
        let now = self.process.now(world);
        if state.timer.is_some_and(|at| at <= due) {
            return;
        }
        state.timer = Some(due);
        let end = Arc::clone(self);
        let left = due.saturating_duration_since(now);
        self.process.after(world, left, move |world| {
            let mut answers = Answers::new();
            {
                let state = &mut *locked(&end.state);
                if state.timer.is_some_and(|at| at <= end.process.now(world)) {
                    state.timer = None;
                }
                end.look_for_overdue(world, state, &mut answers);
            }
            deliver(answers);
        });
    }

    fn look_for_overdue(
        self: &Arc<Self>,
        world: &Arc<World>,
        state: &mut State,
        answers: &mut Answers,
    ) {
        let now = self.process.now(world);
        if world.bug == Some(Bug::WrongReply) {
            // Planted bug: the call fails, and its connection stays in use.
            while state.asked.front().is_some_and(|job| job.deadline <= now) {
                let Some(job) = state.asked.pop_front() else {
                    break;
                };
                let after = job.call.timeout();
                answers.push((job.call, Err(NodeError::TimedOut { after })));
            }
        }
        let renewing = state.session.as_ref().is_some_and(|s| s.renewing);
        let stuck = renewing && state.waiting.iter().any(|job| job.deadline <= now);
        if stuck || state.asked.iter().any(|job| job.deadline <= now) {
            return self.broken(world, state, false, answers);
        }
        for job in std::mem::take(&mut state.waiting) {
            match job.deadline <= now {
                true => answers.push(job.give_up()),
                false => state.waiting.push_back(job),
            }
        }
        self.set_timer(world, state);
    }

    /// The connection has ended: an answer was overdue, or the node closed it.
    fn broken(
        self: &Arc<Self>,
        world: &Arc<World>,
        state: &mut State,
        hung_up: bool,
        answers: &mut Answers,
    ) {
        let Some(id) = state.connection.take() else {
            return;
        };
        world.network.close(id);
        let now = self.process.now(world);
        state.session = None;
        let mut again = VecDeque::new();
        for mut job in state.asked.drain(..) {
            let hopeless = job.redos >= MAX_REDOS || job.deadline <= now || job.is_given_up();
            if hung_up && !hopeless {
                job.redos += 1;
                job.in_doubt = true;
                again.push_back(job);
            } else {
                let after = job.call.timeout();
                let error = match hung_up {
                    false if job.deadline <= now => NodeError::TimedOut { after },
                    _ => disconnected("the connection was closed"),
                };
                answers.push((job.call, Err(error)));
            }
        }
        again.append(&mut state.waiting);
        state.waiting = again;
        state.failures += 1;
        if hung_up && state.failures == 1 {
            // The node may be back soon.
            return self.connect(world, state);
        }
        state.away = true;
        answers.extend(state.waiting.drain(..).map(Job::give_up));
        let doublings = state.failures.saturating_sub(1).min(10);
        let pause = (FIRST_RETRY * (1 << doublings)).min(LONGEST_RETRY);
        let end = Arc::clone(self);
        self.process.after(world, pause, move |world| {
            let state = &mut *locked(&end.state);
            if state.connection.is_none() {
                end.connect(world, state);
            }
        });
    }

    /// The node has closed the connection, or does not know it.
    pub fn hung_up(self: &Arc<Self>, world: &Arc<World>, id: ConnectionId) {
        let mut answers = Answers::new();
        {
            let state = &mut *locked(&self.state);
            if state.connection == Some(id) {
                self.broken(world, state, true, &mut answers);
            }
        }
        deliver(answers);
        self.unsubscribed(world, id);
    }

    /// A reply has arrived.
    pub fn replied(
        self: &Arc<Self>,
        world: &Arc<World>,
        id: ConnectionId,
        number: u64,
        reply: Reply,
    ) {
        if matches!(reply, Reply::Subscribed | Reply::Pong) {
            return self.subscription_replied(world, id, &reply);
        }
        let mut answers = Answers::new();
        {
            let state = &mut *locked(&self.state);
            // Nothing answers what was sent over an earlier connection.
            if state.connection == Some(id) {
                self.take(world, state, number, reply, &mut answers);
            }
        }
        deliver(answers);
    }

    fn take(
        self: &Arc<Self>,
        world: &Arc<World>,
        state: &mut State,
        number: u64,
        reply: Reply,
        answers: &mut Answers,
    ) {
        if number == 0 && matches!(reply, Reply::ReadOnly) {
            return self.broken(world, state, false, answers);
        }
        if let Reply::Hello {
            epoch, memory, up, ..
        } = reply
        {
            let quarantine = self.quarantine(world, &mut state.known, memory, up);
            state.floor = match world.bug {
                Some(Bug::NoFloor) => 0,
                _ => epoch.floor(&world.plan.constants),
            };
            state.session = Some(Session {
                epoch,
                memory,
                // From before the request was sent.
                verified: state.greeted.unwrap_or_else(|| self.process.now(world)),
                quarantine,
                renewing: false,
            });
            state.away = false;
            return self.ask_waiting(world, state, answers);
        }
        let reply = match reply {
            Reply::Verified {
                reply,
                memory,
                epoch,
            } => {
                let known = state.session.as_ref();
                if known.is_none_or(|s| s.memory != memory || Some(s.epoch) != epoch) {
                    // The answer that came with it does not count, and the request is sent again.
                    return self.broken(world, state, true, answers);
                }
                *reply
            }
            reply => reply,
        };
        let position = match world.bug {
            // Planted bug: any reply answers the oldest request.
            Some(Bug::WrongReply) => (!state.asked.is_empty()).then_some(0),
            _ => state.asked.iter().position(|job| job.number == number),
        };
        let Some(mut job) = position.and_then(|at| state.asked.remove(at)) else {
            return;
        };
        state.failures = 0;
        match reply {
            Reply::Vote(vote) => answers.push((job.call, Ok(vote))),
            Reply::Forgot | Reply::NoScript => {
                if job.redos >= MAX_REDOS {
                    return answers.push((job.call, Err(disconnected("too many retries"))));
                }
                job.redos += 1;
                // In the order in which the calls were submitted.
                let at = state.waiting.partition_point(|w| w.number < job.number);
                state.waiting.insert(at, job);
                if let (Reply::Forgot, Some(session)) = (reply, &mut state.session)
                    && !session.renewing
                {
                    session.renewing = true;
                    state.greeted = Some(self.process.now(world));
                    world
                        .network
                        .send(world, state.connection.unwrap_or(0), 0, Request::Hello);
                }
                self.ask_waiting(world, state, answers);
            }
            Reply::ReadOnly => {
                let error = match job.in_doubt {
                    true => disconnected("the node is a replica"),
                    false => NodeError::ReadOnly,
                };
                answers.push((job.call, Err(error)));
                self.broken(world, state, false, answers);
            }
            Reply::Hello { .. } | Reply::Verified { .. } | Reply::Subscribed | Reply::Pong => {}
        }
    }

    /// The restart guard: no vote until the node has been up for the longest TTL in use. Uptime
    /// is in whole seconds, hence the extra second.
    fn quarantine(
        &self,
        world: &World,
        known: &mut Option<(u64, Moment)>,
        memory: u64,
        up: Duration,
    ) -> Option<(Moment, Moment)> {
        let now = self.process.now(world);
        let origin = Moment::from_origin(Duration::ZERO);
        let began = Moment::from_origin(now.saturating_duration_since(origin).saturating_sub(up));
        // Another handshake does not change the age of a memory.
        let since = match *known {
            Some((same, since)) if same == memory => since,
            _ => began,
        };
        *known = Some((memory, since));
        if world.bug == Some(Bug::NoRestartGuard) {
            return None;
        }
        let until = since + world.plan.constants.restart_guard? + Duration::from_secs(1);
        (now < until).then_some((since, until))
    }
}

impl Job {
    fn give_up(self) -> (Call, Result<Vote, NodeError>) {
        let error = match self.in_doubt {
            true => disconnected("no connection"),
            false => unreachable(),
        };
        (self.call, Err(error))
    }
}
