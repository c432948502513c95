//! A process's end of its connection to one node: what the client knows as a `Node`.
//!
//! It behaves as the library's own Redis node does. It shakes hands before it asks, asks in
//! order, cuts the connection when an answer is overdue, asks again what a node that hung up
//! had not answered, unless the claim is being given back, and answers at once while the node
//! is known to be away.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::Moment;
use leasehold::node::{Call, Claim, Node, NodeError, Notifier, Verb, Vote, Watch};

use crate::bells::Bells;
use crate::bug::Bug;
use crate::network::ConnectionId;
use crate::process::Process;
use crate::server::{Reply, Request};
use crate::store::{Ask, Epoch};
use crate::sync::locked;
use crate::world::World;

/// How long to wait before another is made.
pub const FIRST_RETRY: Duration = Duration::from_millis(20);
/// How long at most.
pub const LONGEST_RETRY: Duration = Duration::from_secs(1);
/// How long a session is used without asking the node who it is; as the library does.
pub const VERIFY_AFTER: Duration = Duration::from_secs(1);
/// How often one call may be asked again.
const MAX_REDOS: u8 = 3;

/// A node as a process sees it.
pub struct Link {
    world: Arc<World>,
    end: Arc<End>,
    label: String,
}

/// A process's end of its connection to one node.
pub struct End {
    /// Whose end.
    pub process: Arc<Process>,
    /// Which node is at the other.
    pub server: usize,
    /// Those who wait in the process, and how they hear of it.
    pub bells: Bells,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connection: Option<ConnectionId>,
    session: Option<Session>,
    /// Asked, and not answered yet.
    asked: VecDeque<Job>,
    /// Not asked yet, for want of a connection.
    waiting: VecDeque<Job>,
    /// The node is known to be away: calls fail at once.
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

/// What a handshake has told.
struct Session {
    epoch: Epoch,
    /// Which memory the node had.
    memory: u64,
    /// When the node was last asked who it is.
    verified: Moment,
    /// The node restarted then, and does not vote before that.
    quarantine: Option<(Moment, Moment)>,
    /// It is shaking hands again, because the node forgot its epoch.
    renewing: bool,
}

struct Job {
    call: Call,
    /// Its owner value, as the nodes know it.
    owner: Arc<[u8]>,
    number: u64,
    deadline: Moment,
    redos: u8,
    /// It has been asked before, and may have taken effect.
    in_doubt: bool,
}

/// What to tell whom, once the state is unlocked: a node may be asked again on the spot.
type Answers = Vec<(Call, Result<Vote, NodeError>)>;

impl Link {
    /// A link of a process to a node; starts to connect.
    pub fn new(world: &Arc<World>, process: &Arc<Process>, server: usize) -> Self {
        let end = Arc::new(End {
            process: Arc::clone(process),
            server,
            bells: Bells::new(world.new_channel()),
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
    /// Whether the claim is being given back meanwhile: then asking again could overtake that.
    fn is_given_up(&self) -> bool {
        !matches!(self.call.verb(), Verb::Release { .. }) && self.call.claim().is_given_back()
    }

    fn request(&self, epoch: Epoch, verifies: bool, bells: &Bells) -> Request {
        let claim = self.call.claim();
        let (name, owner) = (claim.name().clone(), &*self.owner);
        Request::Ask(Box::new(Ask {
            verb: self.call.verb(),
            claim: Claim::new(name, owner, claim.token(), claim.ttl())
                .on_one_node(claim.is_on_one_node()),
            settled: self.call.is_settled(),
            epoch,
            verifies,
            bell: bells.channel(),
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

fn tell(answers: Answers) {
    for (call, answer) in answers {
        call.answer(answer);
    }
}

impl End {
    fn submit(self: &Arc<Self>, world: &Arc<World>, call: Call) {
        if self.process.is_dead() {
            // Its destructors run yet, but nothing leaves it any more.
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
        tell(answers);
    }

    /// Connects and says hello.
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
                tell(answers);
            });
    }

    /// Asks what waits, in order.
    fn ask_waiting(self: &Arc<Self>, world: &Arc<World>, state: &mut State, told: &mut Answers) {
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
                    true => disconnected("given back meanwhile"),
                    false => unreachable(),
                };
                told.push((job.call, Err(error)));
                continue;
            }
            let releases = matches!(job.call.verb(), Verb::Release { .. });
            let guarded = quarantine.is_some_and(|(_, until)| now < until);
            let claim = job.call.claim();
            let forgotten = guarded || claim.is_fenced() && claim.token() <= state.floor;
            if job.in_doubt && forgotten && !releases {
                told.push((job.call, Err(disconnected("the node lost its memory"))));
                continue;
            }
            if let Some((since, until)) = quarantine.filter(|(_, until)| now < *until && !releases)
            {
                let up = now.saturating_duration_since(since);
                let remaining = until.saturating_duration_since(now);
                told.push((job.call, Ok(Vote::Quarantined { up, remaining })));
                continue;
            }
            let verifies = now >= verified + VERIFY_AFTER && world.bug != Some(Bug::NeverVerified);
            if let Some(session) = state.session.as_mut().filter(|_| verifies) {
                session.verified = now;
            }
            let request = job.request(epoch, verifies, &self.bells);
            world.network.send(world, id, job.number, request);
            state.asked.push_back(job);
        }
        self.set_timer(world, state);
    }

    /// One timer for all requests, set for the earliest.
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
            tell(answers);
        });
    }

    fn look_for_overdue(
        self: &Arc<Self>,
        world: &Arc<World>,
        state: &mut State,
        told: &mut Answers,
    ) {
        let now = self.process.now(world);
        if world.bug == Some(Bug::WrongReply) {
            // The call fails, and its connection is used on.
            while state.asked.front().is_some_and(|job| job.deadline <= now) {
                let Some(job) = state.asked.pop_front() else {
                    break;
                };
                let after = job.call.timeout();
                told.push((job.call, Err(NodeError::TimedOut { after })));
            }
        }
        let renewing = state.session.as_ref().is_some_and(|s| s.renewing);
        let stuck = renewing && state.waiting.iter().any(|job| job.deadline <= now);
        if stuck || state.asked.iter().any(|job| job.deadline <= now) {
            return self.broken(world, state, false, told);
        }
        for job in std::mem::take(&mut state.waiting) {
            match job.deadline <= now {
                true => told.push(job.give_up()),
                false => state.waiting.push_back(job),
            }
        }
        self.set_timer(world, state);
    }

    /// The connection is over: cut, because an answer is overdue; or the node hung up.
    fn broken(
        self: &Arc<Self>,
        world: &Arc<World>,
        state: &mut State,
        hung_up: bool,
        told: &mut Answers,
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
                    _ => disconnected("the connection is over"),
                };
                told.push((job.call, Err(error)));
            }
        }
        again.append(&mut state.waiting);
        state.waiting = again;
        state.failures += 1;
        if hung_up && state.failures == 1 {
            // It may be back in a moment.
            return self.connect(world, state);
        }
        state.away = true;
        told.extend(state.waiting.drain(..).map(Job::give_up));
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
        tell(answers);
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
            // What was sent over an earlier connection is answered by nobody any more.
            if state.connection == Some(id) {
                self.take(world, state, number, reply, &mut answers);
            }
        }
        tell(answers);
    }

    fn take(
        self: &Arc<Self>,
        world: &Arc<World>,
        state: &mut State,
        number: u64,
        reply: Reply,
        told: &mut Answers,
    ) {
        if number == 0 && matches!(reply, Reply::ReadOnly) {
            return self.broken(world, state, false, told);
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
                // From before the node was asked.
                verified: state.greeted.unwrap_or_else(|| self.process.now(world)),
                quarantine,
                renewing: false,
            });
            state.away = false;
            return self.ask_waiting(world, state, told);
        }
        let reply = match reply {
            Reply::Verified {
                reply,
                memory,
                epoch,
            } => {
                let known = state.session.as_ref();
                if known.is_none_or(|s| s.memory != memory || Some(s.epoch) != epoch) {
                    // What came with it counts for nothing, and is asked again.
                    return self.broken(world, state, true, told);
                }
                *reply
            }
            reply => reply,
        };
        let position = match world.bug {
            // Whatever comes back answers whatever is oldest.
            Some(Bug::WrongReply) => (!state.asked.is_empty()).then_some(0),
            _ => state.asked.iter().position(|job| job.number == number),
        };
        let Some(mut job) = position.and_then(|at| state.asked.remove(at)) else {
            return;
        };
        state.failures = 0;
        match reply {
            Reply::Vote(vote) => told.push((job.call, Ok(vote))),
            Reply::Forgot | Reply::NoScript => {
                if job.redos >= MAX_REDOS {
                    return told.push((job.call, Err(disconnected("asked in vain"))));
                }
                job.redos += 1;
                // In the order in which they were submitted.
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
                self.ask_waiting(world, state, told);
            }
            Reply::ReadOnly => {
                let error = match job.in_doubt {
                    true => disconnected("the node is a replica"),
                    false => NodeError::ReadOnly,
                };
                told.push((job.call, Err(error)));
                self.broken(world, state, false, told);
            }
            Reply::Hello { .. } | Reply::Verified { .. } | Reply::Subscribed | Reply::Pong => {}
        }
    }

    /// The restart guard: no vote until the node has been up for the longest TTL in use.
    /// Uptime is in whole seconds, hence the second on top.
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
        // Another handshake makes a memory neither older nor younger.
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
