//! The network: connections that are slow, stall, break, and are cut off.
//!
//! A connection carries messages in order. A lost message takes everything behind it along, as on
//! a real stream, or all of it arrives late, long after the sender's timeout. A request may take
//! effect after its sender has closed the connection, or twice, but never after a later request of
//! the same connection: that is the contract of `leasehold::node::link::Transport`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::agenda::Nanos;
use crate::dice::Dice;
use crate::fault::Fault;
use crate::link::End;
use crate::message::{Reply, Request};
use crate::nemesis;
use crate::plan::Plan;
use crate::process::{Process, Source};
use crate::subscriptions::Notification;
use crate::sync::locked;
use crate::world::World;

/// A message that is later than this is lost, so that none is under way at the end of a run.
pub const MOST_TTLS_LATE: Nanos = 6;

/// Identifies a connection.
pub type ConnectionId = u64;

/// The direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From a process to a node.
    There,
    /// From a node to a process.
    Back,
}

/// All connections, and all partitions.
pub struct Network {
    state: Mutex<State>,
    nodes: usize,
    /// The typical latency of each process's messages.
    latencies: Vec<Nanos>,
}

struct State {
    connections: BTreeMap<ConnectionId, Connection>,
    opened: ConnectionId,
    /// Until when messages between a process and a node are held back, in each direction.
    cut_until: Vec<[Nanos; 2]>,
    /// Until when messages between a process and a node are slow, and by how much, in each
    /// direction.
    slow: Vec<[(Nanos, Nanos); 2]>,
    /// The latest message that took effect, by process and node.
    latest: Vec<u64>,
    sent: u64,
}

struct Connection {
    end: Arc<End>,
    /// The run of the server that has accepted it.
    run: Option<u64>,
    /// Whether the process still reads from it.
    open: bool,
    /// Whether it is for a subscription.
    subscribes: bool,
    /// Its latest message that took effect.
    latest: u64,
    streams: [Stream; 2],
}

#[derive(Clone, Copy, Default)]
struct Stream {
    last_arrival: Nanos,
    /// No further message arrives in time.
    stalled: bool,
}

/// A request on its way.
struct Message {
    connection: ConnectionId,
    /// The number of the request on its connection.
    number: u64,
    /// The number of the message between this process and this node, over all connections.
    order: u64,
    request: Request,
}

impl Network {
    /// A network without faults.
    pub fn new(plan: &Plan, dice: &Dice) -> Self {
        let (processes, nodes) = (plan.processes, plan.nodes);
        let is_far = |slot: usize| match plan.rivals {
            true => slot == 0,
            false => !dice.chance(0.5),
        };
        let latencies = (0..processes).map(|slot| match is_far(slot) {
            true => plan.latency * plan.distance,
            false => plan.latency,
        });
        Self {
            latencies: latencies.collect(),
            state: Mutex::new(State {
                connections: BTreeMap::new(),
                opened: 0,
                cut_until: vec![[0; 2]; processes * nodes],
                slow: vec![[(0, 0); 2]; processes * nodes],
                latest: vec![0; processes * nodes],
                sent: 0,
            }),
            nodes,
        }
    }

    fn pair(&self, end: &End) -> usize {
        end.process.slot * self.nodes + end.server
    }

    /// Opens a connection. Its replies go to `end`.
    pub fn open(&self, end: &Arc<End>) -> ConnectionId {
        let state = &mut *locked(&self.state);
        state.opened += 1;
        let connection = Connection {
            end: Arc::clone(end),
            run: None,
            open: true,
            subscribes: false,
            latest: 0,
            streams: Default::default(),
        };
        state.connections.insert(state.opened, connection);
        state.opened
    }

    /// The process no longer reads. What it sent may still arrive.
    pub fn close(&self, connection: ConnectionId) {
        if let Some(connection) = locked(&self.state).connections.get_mut(&connection) {
            connection.open = false;
        }
    }

    /// A process is dead. Usually its machine closes its connections, and the nodes stop
    /// notifying it. Sometimes the machine is gone, too.
    pub fn orphan(&self, world: &Arc<World>, process: &Arc<Process>) {
        let open: Vec<_> = {
            let state = locked(&self.state);
            let theirs = state
                .connections
                .iter()
                .filter(|(_, c)| c.open && c.subscribes && Arc::ptr_eq(&c.end.process, process));
            theirs.map(|(id, _)| *id).collect()
        };
        if world.dice.chance(0.6) {
            for connection in open {
                self.send(world, connection, 0, Request::Bye);
            }
        }
    }

    /// Sends a request.
    pub fn send(&self, world: &Arc<World>, to: ConnectionId, number: u64, request: Request) {
        let order = {
            let state = &mut *locked(&self.state);
            if let (Request::Subscribe(_), Some(connection)) =
                (&request, state.connections.get_mut(&to))
            {
                connection.subscribes = true;
            }
            state.sent += 1;
            state.sent
        };
        let message = Message {
            connection: to,
            number,
            order,
            request,
        };
        if let Some(at) = self.arrival(world, to, Way::There) {
            world
                .agenda
                .enter(at, move |world| world.network.arrive(world, message));
        }
    }

    /// When a message that is sent now arrives, or `None` if it never does.
    fn arrival(&self, world: &Arc<World>, id: ConnectionId, way: Way) -> Option<Nanos> {
        let (plan, dice, now) = (&world.plan, &world.dice, world.agenda.now());
        let calm = world.is_calm();
        let state = &mut *locked(&self.state);
        let connection = state.connections.get_mut(&id)?;
        let pair = connection.end.process.slot * self.nodes + connection.end.server;
        let ttl = plan.ttl.as_nanos() as Nanos;
        let latency = self.latencies[connection.end.process.slot];
        let mut at = now + dice.between(latency / 2, latency * 2);
        let (slow_until, slow_by) = state.slow[pair][way as usize];
        if now < slow_until {
            at += slow_by;
        }
        let stream = &mut connection.streams[way as usize];
        let cut_until = state.cut_until[pair][way as usize];
        if cut_until > now && !stream.stalled {
            // Retransmitted until the partition ends, or given up.
            at += cut_until - now;
            stream.stalled = dice.chance(0.5);
        }
        if !calm && dice.chance(plan.loss) {
            world.strike(Fault::Lost);
            stream.stalled = true;
        }
        if stream.stalled {
            // Some of it arrives after all, much later, but before the faults end.
            if calm || !dice.chance(0.3) {
                return None;
            }
            world.strike(Fault::Delayed);
            at += dice.between(0, 3 * ttl);
        } else if !calm && dice.chance(plan.delay) {
            world.strike(Fault::Delayed);
            let most = dice.pick(&[ttl / 20, ttl / 8, ttl]);
            at += dice.between(0, most);
        }
        at = at.max(stream.last_arrival + 1);
        if at > now + MOST_TTLS_LATE * ttl {
            stream.stalled = true;
            return None;
        }
        stream.last_arrival = at;
        Some(at)
    }

    /// Handles a request that has arrived.
    fn arrive(&self, world: &Arc<World>, message: Message) {
        let id = message.connection;
        if self.is_overtaken(&message) {
            return;
        }
        let Some((server, run, open)) = self.accept(world, &message) else {
            return self.refuse(world, id);
        };
        let (now, constants) = (world.agenda.now(), world.plan.constants);
        if matches!(message.request, Request::Bye) {
            return world.servers[server].close(id);
        }
        let (from, bug) = ((run, id), world.bug);
        let answer = || world.servers[server].answer(from, &message.request, now, constants, bug);
        let Some((reply, notifications)) = answer() else {
            return self.refuse(world, id);
        };
        world.trace_vote(server, &message.request, &reply, !open);
        if let Some((promise, what)) = world.servers[server].take_broken() {
            world.violate(promise, format!("node {server} {what}"));
        }
        if let Reply::Hello { new: true, .. } = reply {
            // It grants only tokens that are far ahead of its clock, and so of the other nodes'
            // clocks.
            world.mark_unwell_for(world.plan.longest_catching_up());
            // If it was promoted, its restart guard counts from here.
            world.mark_unwell_for(world.plan.by_slow_clocks(world.plan.longest_guard()));
        }
        self.send_notifications(world, server, notifications);
        if !world.is_calm() && world.dice.chance(world.plan.repeat) {
            world.strike(Fault::Repeated);
            // The second reply is ignored, like every reply without a request.
            if let Some((_, notifications)) = answer() {
                self.send_notifications(world, server, notifications);
            }
        }
        if !open && !world.is_calm() && world.dice.chance(world.plan.repeat) {
            // The sender was told of a failure, so the message may arrive again, even later.
            world.strike(Fault::Repeated);
            let later = now
                + world
                    .dice
                    .between(0, 2 * world.plan.ttl.as_nanos() as Nanos);
            return world
                .agenda
                .enter(later, move |world| world.network.arrive(world, message));
        }
        if let Some(at) = self.arrival(world, id, Way::Back) {
            let number = message.number;
            world.agenda.enter(at, move |world| {
                world.network.deliver(world, id, move |world, end| {
                    end.replied(world, id, number, reply);
                });
            });
        }
    }

    /// Whether a later message of the same connection has taken effect, so that this one, which
    /// arrives for the second time, must not.
    fn is_overtaken(&self, message: &Message) -> bool {
        let state = locked(&self.state);
        let connection = state.connections.get(&message.connection);
        connection.is_some_and(|connection| message.order < connection.latest)
    }

    /// Looks up the server of a message, the run in which its connection was accepted, and
    /// whether the process still reads from it.
    fn accept(&self, world: &World, message: &Message) -> Option<(usize, u64, bool)> {
        let state = &mut *locked(&self.state);
        let connection = state.connections.get_mut(&message.connection)?;
        let server = connection.end.server;
        let first = matches!(message.request, Request::Hello | Request::Subscribe(_));
        if first && connection.run.is_none() {
            connection.run = world.servers[server].run();
        }
        let run = connection.run?;
        let open = connection.open && !connection.end.process.is_dead();
        let pair = self.pair(&connection.end);
        connection.latest = message.order;
        if message.order < state.latest[pair] {
            world.strike(Fault::Reordered);
        }
        state.latest[pair] = state.latest[pair].max(message.order);
        Some((server, run, open))
    }

    /// Reports to the process that its connection is unknown. Sends nothing if the node is simply
    /// gone.
    fn refuse(&self, world: &Arc<World>, id: ConnectionId) {
        if !world.is_calm() && world.dice.chance(0.3) {
            return;
        }
        self.hang_up(world, id);
    }

    /// Sends notifications to the subscribers.
    fn send_notifications(
        &self,
        world: &Arc<World>,
        server: usize,
        notifications: Vec<Notification>,
    ) {
        for notification in notifications {
            let id = notification.to;
            let arrival = self.arrival(world, id, Way::Back);
            let to = locked(&self.state)
                .connections
                .get(&id)
                .map(|c| Arc::clone(&c.end.process));
            if let Some(process) = to {
                world.trace_notification(server, &process, &notification);
                nemesis::on_notification(world, &process, notification.news, arrival);
            }
            if let Some(at) = arrival {
                world.agenda.enter(at, move |world| {
                    world.network.deliver(world, id, move |_, end| {
                        end.notified(&notification);
                    });
                });
            }
        }
    }

    /// Closes a connection from the node's side.
    pub fn hang_up(&self, world: &Arc<World>, id: ConnectionId) {
        let server = locked(&self.state)
            .connections
            .get(&id)
            .map(|c| c.end.server);
        if let Some(server) = server {
            world.servers[server].close(id);
        }
        if let Some(at) = self.arrival(world, id, Way::Back) {
            world.agenda.enter(at, move |world| {
                world
                    .network
                    .deliver(world, id, move |world, end| end.hung_up(world, id));
            });
        }
    }

    fn deliver(
        &self,
        world: &Arc<World>,
        id: ConnectionId,
        what: impl FnOnce(&Arc<World>, &Arc<End>) + Send + 'static,
    ) {
        let end = {
            let state = locked(&self.state);
            let connection = state.connections.get(&id).filter(|c| c.open);
            connection.map(|connection| Arc::clone(&connection.end))
        };
        if let Some(end) = end {
            let process = Arc::clone(&end.process);
            process.post(world, Source::Outside, move |world| what(world, &end));
        }
    }

    /// The connections to a node that processes still read from.
    pub fn connections_to(&self, server: usize) -> Vec<ConnectionId> {
        let state = locked(&self.state);
        let open = state.connections.iter().filter(|(_, c)| c.open);
        open.filter(|(_, c)| c.end.server == server)
            .map(|(id, _)| *id)
            .collect()
    }

    /// Holds back messages between a process and a node, in one direction or both.
    pub fn cut(&self, process: usize, server: usize, ways: &[Way], until: Nanos) {
        let pair = process * self.nodes + server;
        let cut_until = &mut locked(&self.state).cut_until[pair];
        for way in ways {
            let way = &mut cut_until[*way as usize];
            *way = (*way).max(until);
        }
    }

    /// Slows down the messages between a process and a node in one direction.
    pub fn slow_down(&self, process: usize, server: usize, way: Way, until: Nanos, by: Nanos) {
        let pair = process * self.nodes + server;
        locked(&self.state).slow[pair][way as usize] = (until, by);
    }

    /// Ends all partitions and delays.
    pub fn mend(&self) {
        let state = &mut *locked(&self.state);
        state.cut_until.fill([0; 2]);
        state.slow.fill([(0, 0); 2]);
    }

    /// Drops all connections at the end of a run.
    pub fn clear(&self) {
        let connections = std::mem::take(&mut locked(&self.state).connections);
        drop(connections);
    }
}
