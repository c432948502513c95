//! A process's subscription to a node. All waiters of the process share one subscription, which
//! is opened for the first waiter and closed some time after the last one has left.
//!
//! The library's own Redis node receives notifications on the connection that carries its
//! requests. The simulator covers the harder case: notifications and answers arrive in any order,
//! and either connection can break alone. In both cases, all waiters send WAIT again whenever the
//! subscription is opened or breaks, and so learn of the notifications that they may have missed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::Name;
use leasehold::node::link::{FIRST_RETRY, LONGEST_RETRY};
use leasehold::node::{Claim, News, Notifier, Watch};

use crate::link::End;
use crate::message::{Reply, Request};
use crate::network::ConnectionId;
use crate::subscriptions::{Channel, Notification};
use crate::sync::locked;
use crate::world::World;

/// How often a silent node is pinged.
const PING: Duration = Duration::from_secs(5);
/// How long the subscription is kept without waiters.
const IDLE: Duration = Duration::from_secs(10);

/// A waiter: the name it waits for, and its owner value.
type Waiter = (Name, Arc<[u8]>);

/// The waiters of a process on one node, and their subscription.
pub struct Subscriber {
    channel: Channel,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The waiters by name and owner value. A ticket does not identify a waiter: another attempt
    /// may have the same one.
    waiting: BTreeMap<Waiter, Notifier>,
    /// Whether there is a subscription, or an attempt to open one.
    listening: bool,
    connection: Option<ConnectionId>,
    subscribed: bool,
    failures: u32,
    pings: u64,
    pongs: u64,
}

/// Ends a watch when dropped.
struct Unwatch {
    end: Arc<End>,
    key: Waiter,
}

impl Drop for Unwatch {
    fn drop(&mut self) {
        locked(&self.end.subscriber.state).waiting.remove(&self.key);
    }
}

impl Subscriber {
    /// Creates a subscriber without waiters.
    pub fn new(channel: Channel) -> Self {
        let state = Mutex::default();
        Self { channel, state }
    }

    /// The channel that reaches the waiters, or `None` without a subscription.
    pub fn channel(&self) -> Option<Channel> {
        locked(&self.state).subscribed.then_some(self.channel)
    }
}

impl End {
    /// Registers the notifier of a waiting claim.
    pub fn watch(
        self: &Arc<Self>,
        world: &Arc<World>,
        claim: &Claim,
        notifier: &Notifier,
    ) -> Watch {
        let owner = world.waiters().alias(claim.owner(), world.plan.seed);
        let key = (claim.name().clone(), owner);
        let state = &mut *locked(&self.subscriber.state);
        state.waiting.insert(key.clone(), notifier.clone());
        if !std::mem::replace(&mut state.listening, true) {
            self.subscribe(world, state);
        }
        let end = Arc::clone(self);
        Watch::new(Unwatch { end, key })
    }

    fn subscribe(self: &Arc<Self>, world: &Arc<World>, state: &mut State) {
        let id = world.network.open(self);
        state.connection = Some(id);
        let channel = self.subscriber.channel;
        world
            .network
            .send(world, id, 0, Request::Subscribe(channel));
        let end = Arc::clone(self);
        self.process
            .after(world, world.plan.connect_timeout(), move |world| {
                let state = &mut *locked(&end.subscriber.state);
                if state.connection == Some(id) && !state.subscribed {
                    end.failed(world, state);
                }
            });
    }

    /// Handles the failure to open a subscription.
    fn failed(self: &Arc<Self>, world: &Arc<World>, state: &mut State) {
        if let Some(id) = state.connection.take() {
            world.network.close(id);
            world.network.send(world, id, 0, Request::Bye);
        }
        state.listening = !state.waiting.is_empty();
        if !state.listening {
            return;
        }
        state.failures += 1;
        let pause = (FIRST_RETRY * (1 << state.failures.min(10))).min(LONGEST_RETRY);
        let end = Arc::clone(self);
        self.process.after(world, pause, move |world| {
            end.subscribe(world, &mut locked(&end.subscriber.state));
        });
    }

    /// Ends the subscription over this connection, if there is one: the node has closed it, or
    /// does not answer. Notifications sent from now on are lost.
    pub fn unsubscribed(self: &Arc<Self>, world: &Arc<World>, id: ConnectionId) {
        let notifiers = {
            let state = &mut *locked(&self.subscriber.state);
            if state.connection != Some(id) {
                return;
            }
            if !std::mem::take(&mut state.subscribed) {
                return self.failed(world, state);
            }
            world.network.close(id);
            world.network.send(world, id, 0, Request::Bye);
            self.subscribe(world, state);
            state.all()
        };
        ask_again(notifiers);
    }

    /// Handles a reply that arrived over a subscription.
    pub fn subscription_replied(
        self: &Arc<Self>,
        world: &Arc<World>,
        id: ConnectionId,
        reply: &Reply,
    ) {
        let notifiers = {
            let state = &mut *locked(&self.subscriber.state);
            if state.connection != Some(id) {
                return;
            }
            match reply {
                Reply::Subscribed if !state.subscribed => {
                    state.subscribed = true;
                    state.failures = 0;
                    self.ping_later(world, id);
                    self.end_when_idle(world, id);
                    state.all()
                }
                Reply::Pong => {
                    state.pongs = state.pings;
                    vec![]
                }
                _ => vec![],
            }
        };
        ask_again(notifiers);
    }

    fn ping_later(self: &Arc<Self>, world: &Arc<World>, id: ConnectionId) {
        let end = Arc::clone(self);
        self.process.after(world, PING, move |world| {
            let ping = {
                let state = &mut *locked(&end.subscriber.state);
                if state.connection != Some(id) {
                    return;
                }
                state.pings += 1;
                state.pings
            };
            world.network.send(world, id, ping, Request::Ping);
            let pinging = Arc::clone(&end);
            end.process
                .after(world, world.plan.connect_timeout(), move |world| {
                    let answered = locked(&pinging.subscriber.state).pongs >= ping;
                    match answered {
                        true => pinging.ping_later(world, id),
                        false => pinging.unsubscribed(world, id),
                    }
                });
        });
    }

    fn end_when_idle(self: &Arc<Self>, world: &Arc<World>, id: ConnectionId) {
        let end = Arc::clone(self);
        self.process.after(world, IDLE, move |world| {
            let state = &mut *locked(&end.subscriber.state);
            if state.connection != Some(id) {
                return;
            }
            if !state.waiting.is_empty() {
                return end.end_when_idle(world, id);
            }
            (state.connection, state.subscribed, state.listening) = (None, false, false);
            world.network.close(id);
            world.network.send(world, id, 0, Request::Bye);
        });
    }

    /// Passes a notification on to its waiter.
    pub fn notified(&self, notification: &Notification) {
        let notifier = {
            let state = locked(&self.subscriber.state);
            let key = (notification.name.clone(), Arc::clone(&notification.owner));
            let listens = state.connection == Some(notification.to);
            state.waiting.get(&key).filter(|_| listens).cloned()
        };
        if let Some(notifier) = notifier {
            notifier.notify(notification.news);
        }
    }
}

impl State {
    fn all(&self) -> Vec<Notifier> {
        self.waiting.values().cloned().collect()
    }
}

/// Makes the waiters send WAIT again, to be notified from now on and to learn what they missed.
fn ask_again(notifiers: Vec<Notifier>) {
    for notifier in notifiers {
        notifier.notify(News::AskAgain);
    }
}
