//! A process's connection to one node: the transport of the library's own link, which decides what
//! is sent, and what becomes of a call when the connection breaks.
//!
//! It delivers requests in order, completes replies in order, and breaks.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::Moment;
use leasehold::node::link::{
    self, Aftermath, Handshake, Job, LineLook, Memory, Native, Quarantine, Sent, Transport, Unit,
};
use leasehold::node::{Call, Claim, Node, NodeError, Notifier, Watch};
use tokio::sync::oneshot;

use crate::bug::Bug;
use crate::clock::{self, sleep};
use crate::message::{Ask, Reply, Request};
use crate::network::ConnectionId;
use crate::process::Process;
use crate::store::Epoch;
use crate::subscriber::Subscriber;
use crate::sync::locked;
use crate::world::World;

/// How long a connection is used before the node is asked for its identity again, as in the
/// library.
const VERIFY_AFTER: Duration = Duration::from_secs(1);

/// A node as a process sees it.
pub struct Link {
    world: Arc<World>,
    end: Arc<End>,
    label: String,
    link: link::Link,
}

/// A process's end of its connection to one node.
pub struct End {
    /// The process.
    pub process: Arc<Process>,
    /// The node.
    pub server: usize,
    /// The waiters of the process, and their subscription.
    pub subscriber: Subscriber,
    stream: Mutex<Option<Stream>>,
}

/// An open connection, and what it has still to deliver.
struct Stream {
    id: ConnectionId,
    /// The number of the last request, and of the last reply.
    sent: u64,
    received: u64,
    writes: VecDeque<Write>,
}

/// Requests that were sent together, and the replies that have arrived so far.
struct Write {
    missing: usize,
    replies: Vec<Reply>,
    done: oneshot::Sender<Vec<Reply>>,
}

impl Link {
    /// Creates a link from a process to a node, and starts to connect.
    pub fn new(world: &Arc<World>, process: &Arc<Process>, server: usize) -> Self {
        let end = Arc::new(End {
            process: Arc::clone(process),
            server,
            subscriber: Subscriber::new(world.new_channel()),
            stream: Mutex::default(),
        });
        let label = format!("n{server}");
        let wire = Wire {
            world: Arc::clone(world),
            end: Arc::clone(&end),
            label: label.clone(),
            memory: Mutex::default(),
        };
        let time = Arc::new(clock::Watch {
            world: Arc::clone(world),
            process: Arc::clone(process),
        });
        let verify_after = match world.bug {
            Some(Bug::NeverVerified) => Duration::MAX,
            _ => VERIFY_AFTER,
        };
        let link = link::Link::simulated(wire, time, verify_after, world.dice.seed());
        link.connect();
        Self {
            world: Arc::clone(world),
            end,
            label,
            link,
        }
    }
}

impl Node for Link {
    fn label(&self) -> &str {
        &self.label
    }

    fn submit(&self, call: Call) {
        if self.end.process.is_dead() {
            // Destructors of the process still run, but it sends nothing any more.
            return;
        }
        self.world
            .asked(&self.end.process, call.verb(), call.claim());
        self.link.submit(call);
    }

    fn floor(&self) -> u64 {
        self.link.floor()
    }

    fn watch(&self, claim: &Claim, notifier: &Notifier) -> Option<Watch> {
        Some(self.end.watch(&self.world, claim, notifier))
    }

    fn has_semaphores(&self) -> bool {
        true
    }
}

impl End {
    /// The node has closed the connection, or does not know it.
    pub fn hung_up(self: &Arc<Self>, world: &Arc<World>, id: ConnectionId) {
        // The link finds out when it waits for a reply, or with its next request.
        locked(&self.stream).take_if(|stream| stream.id == id);
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
        let stream = &mut *locked(&self.stream);
        let Some(stream) = stream.as_mut().filter(|stream| stream.id == id) else {
            return;
        };
        let wrong = world.bug == Some(Bug::WrongReply);
        // After a reply that was lost, the stream delivers nothing.
        if number != stream.received + 1 && !wrong {
            return;
        }
        stream.received = number;
        if wrong {
            // Planted bug: a late reply answers the next request.
            stream.writes.retain(|write| !write.done.is_closed());
        }
        let Some(write) = stream.writes.front_mut() else {
            return;
        };
        write.replies.push(reply);
        write.missing -= 1;
        if write.missing == 0
            && let Some(write) = stream.writes.pop_front()
        {
            // The receiver may have given up.
            let _ = write.done.send(write.replies);
        }
    }
}

/// Carries requests to one node, and replies back.
struct Wire {
    world: Arc<World>,
    end: Arc<End>,
    label: String,
    memory: Mutex<Option<Memory<u64>>>,
}

/// A connection. Dropping it closes it.
struct Connection {
    world: Arc<World>,
    end: Arc<End>,
    id: ConnectionId,
    /// The node's memory and epoch, as of the last handshake.
    known: Option<(u64, Epoch)>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.world.network.close(self.id);
        let stream = locked(&self.end.stream).take_if(|stream| stream.id == self.id);
        drop(stream);
    }
}

impl Connection {
    fn open(wire: &Wire) -> Self {
        let (world, end) = (Arc::clone(&wire.world), Arc::clone(&wire.end));
        let id = world.network.open(&end);
        *locked(&end.stream) = Some(Stream {
            id,
            sent: 0,
            received: 0,
            writes: VecDeque::new(),
        });
        Self {
            world,
            end,
            id,
            known: None,
        }
    }

    /// Sends requests. The future ends with their replies, or when the connection breaks.
    fn send(&self, requests: Vec<Request>) -> Sent<Vec<Reply>> {
        let (done, replies) = oneshot::channel();
        let stream = &mut *locked(&self.end.stream);
        // Otherwise `done` is dropped: the connection is broken.
        if let Some(stream) = stream.as_mut().filter(|stream| stream.id == self.id) {
            stream.writes.push_back(Write {
                missing: requests.len(),
                replies: Vec::new(),
                done,
            });
            for request in requests {
                stream.sent += 1;
                let network = &self.world.network;
                network.send(&self.world, self.id, stream.sent, request);
            }
        }
        Box::pin(async {
            replies.await.map_err(|_| {
                let why = "the connection was closed".to_owned();
                NodeError::disconnected(why)
            })
        })
    }

    fn requests(&self, unit: &Unit, cap: u64) -> Vec<Request> {
        let Some((_, epoch)) = self.known else {
            return Vec::new();
        };
        let (world, channel) = (&self.world, self.end.subscriber.channel());
        let ask = |job: &Job| {
            let owner = job.call.claim().owner();
            let owner = world.waiters().alias(owner, world.plan.seed);
            let replaced = world.replaced_by(job.call.claim());
            let seat = world.seat_of(job.call.claim());
            let ask = Ask::new(job, &owner, cap, epoch, channel);
            let ask = match replaced {
                Some(replaced) => ask.replacing(&replaced),
                None => ask,
            };
            match seat {
                Some(seat) => ask.in_seat(seat),
                None => ask,
            }
        };
        let look = |job: &Job| Request::Look(job.call.claim().name().clone());
        match unit {
            Unit::One(job) => vec![Request::Script(vec![ask(job)])],
            Unit::Plain(job) => vec![look(job), Request::Set(Box::new(ask(job)))],
            Unit::Native(job, _) => vec![Request::Delete(Box::new(ask(job))), look(job)],
            many => {
                let asks = many.jobs().iter().map(|job| Ask {
                    shares: true,
                    ..ask(job)
                });
                vec![Request::Script(asks.collect())]
            }
        }
    }
}

impl Wire {
    /// Reads the reply to a handshake that began at `verified`.
    fn greeted(
        &self,
        connection: &mut Connection,
        verified: Moment,
        replies: Vec<Reply>,
    ) -> Result<Handshake, NodeError> {
        let (world, now) = (&self.world, self.end.process.now(&self.world));
        let Some(Reply::Hello {
            epoch,
            memory,
            up,
            now_us,
            ..
        }) = replies.into_iter().next()
        else {
            return Err(NodeError::ReadOnly);
        };
        connection.known = Some((memory, epoch));
        let known = &mut *locked(&self.memory);
        let since = Memory::note(known, memory, up, now, |now, before| now == before);
        let constants = &world.plan.constants;
        let guard = constants.restart_guard;
        let guard = guard.filter(|_| world.bug != Some(Bug::NoRestartGuard));
        Ok(Handshake {
            verified,
            floor: match world.bug {
                Some(Bug::NoFloor) => 0,
                _ => epoch.floor(constants),
            },
            now_us,
            clock_offset_us: 0,
            skew_us: constants.skew.as_micros() as u64,
            native: world.plan.native.then_some(Native::DelIfEq),
            quarantine: Quarantine::new(since, guard, Duration::ZERO, now),
        })
    }
}

impl Transport for Wire {
    type Connection = Connection;
    type Replies = Vec<Reply>;

    fn label(&self) -> &str {
        &self.label
    }

    async fn connect(&self) -> Result<(Connection, Handshake), NodeError> {
        let (world, process) = (&self.world, &self.end.process);
        let verified = process.now(world);
        let mut connection = Connection::open(self);
        let why = "no handshake".to_owned();
        let unreachable = NodeError::unreachable(why);
        let replies = tokio::select! {
            biased;
            replies = connection.send(vec![Request::Hello]) => replies.map_err(|_| unreachable)?,
            () = sleep(world, process, world.plan.connect_timeout()) => return Err(unreachable),
        };
        let handshake = self.greeted(&mut connection, verified, replies)?;
        Ok((connection, handshake))
    }

    async fn renew(&self, connection: &mut Connection) -> Result<Handshake, NodeError> {
        let verified = self.end.process.now(&self.world);
        let replies = connection.send(vec![Request::Hello]).await?;
        self.greeted(connection, verified, replies)
    }

    fn send(
        &self,
        connection: &mut Connection,
        units: &[Unit],
        cap: u64,
        probe: Option<Moment>,
    ) -> Sent<Vec<Reply>> {
        self.world.journal().sent.count(units);
        let requests = units.iter().flat_map(|unit| connection.requests(unit, cap));
        let requests = requests.chain(probe.map(|_| Request::Probe)).collect();
        connection.send(requests)
    }

    fn check(
        &self,
        connection: &Connection,
        units: &[Unit],
        replies: &mut Vec<Reply>,
        probe: Option<Moment>,
    ) -> Result<(), NodeError> {
        if let Some(asked) = probe {
            match replies.pop() {
                Some(Reply::Identity { memory, epoch })
                    if connection.known == epoch.map(|epoch| (memory, epoch)) => {}
                Some(Reply::ReadOnly) => return Err(NodeError::ReadOnly),
                _ => {
                    let why = "the node lost its memory".to_owned();
                    return Err(NodeError::disconnected(why));
                }
            }
            if let Some(memory) = &mut *locked(&self.memory) {
                memory.seen(asked);
            }
        }
        let sent: usize = units.iter().map(Unit::requests).sum();
        match replies.len() == sent {
            true => Ok(()),
            false => {
                let why = "another number of replies".to_owned();
                Err(NodeError::protocol(why))
            }
        }
    }

    fn read(&self, _: &Connection, units: Vec<Unit>, replies: Vec<Reply>, after: &mut Aftermath) {
        let mut replies = replies.into_iter();
        for unit in units {
            let said = match (&unit, replies.next()) {
                (Unit::Plain(_), line) => vec![match replies.next() {
                    Some(Reply::Bool(true)) => link::Reply::Set(look(line)),
                    _ => link::Reply::Alone,
                }],
                (Unit::Native(..), deleted) => vec![match (deleted, look(replies.next())) {
                    (Some(Reply::Bool(held)), line) => link::Reply::Deleted { held, line },
                    _ => link::Reply::NativeRefused,
                }],
                (_, Some(Reply::Script(said))) => said,
                // Only with the planted bug of wrong replies.
                _ => Vec::new(),
            };
            for (job, said) in unit.into_jobs().into_iter().zip(said) {
                after.take(job, said);
            }
        }
    }
}

fn look(line: Option<Reply>) -> LineLook {
    match line {
        Some(Reply::Bool(false)) => LineLook::Empty,
        Some(Reply::Bool(true)) => LineLook::Waiters,
        _ => LineLook::Refused,
    }
}
