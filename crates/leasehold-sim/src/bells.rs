//! A process's ear on a node: one subscription for all who wait in it, made when the first of
//! them comes and kept while there is one, and a while longer.
//!
//! The library's own Redis node hears over the connection that it asks on. This is the harder
//! case: news and answers come in any order, and either connection may break alone. In both,
//! whenever it is made, and whenever it breaks, all who wait ask again, and so learn what they
//! may not have been told.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::Name;
use leasehold::node::{Claim, News, Notifier, Watch};

use crate::link::{End, FIRST_RETRY, LONGEST_RETRY};
use crate::network::ConnectionId;
use crate::server::{Reply, Request};
use crate::switchboard::{Channel, Telling};
use crate::sync::locked;
use crate::world::World;

/// How often a silent node is asked whether it is there.
const PING: Duration = Duration::from_secs(5);
/// How long the subscription is kept when nobody waits any more.
const IDLE: Duration = Duration::from_secs(10);

/// Who waits: for what, and with which owner value.
type Waiter = (Name, Arc<[u8]>);

/// The bells of all who wait for something on one node.
pub struct Bells {
    channel: Channel,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Those who wait, by name and owner value: a ticket may be that of another attempt, too.
    waiting: BTreeMap<Waiter, Notifier>,
    /// Somebody listens, or tries to.
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
        locked(&self.end.bells.state).waiting.remove(&self.key);
    }
}

impl Bells {
    /// Nobody waits yet.
    pub fn new(channel: Channel) -> Self {
        let state = Mutex::default();
        Self { channel, state }
    }

    /// The channel over which those who wait can be told; `None` while there is none.
    pub fn channel(&self) -> Option<Channel> {
        locked(&self.state).subscribed.then_some(self.channel)
    }
}

impl End {
    /// Rings for a claim that waits.
    pub fn watch(
        self: &Arc<Self>,
        world: &Arc<World>,
        claim: &Claim,
        notifier: &Notifier,
    ) -> Watch {
        let owner = world.waiters().alias(claim.owner(), world.plan.seed);
        let key = (claim.name().clone(), owner);
        let state = &mut *locked(&self.bells.state);
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
        let channel = self.bells.channel;
        world
            .network
            .send(world, id, 0, Request::Subscribe(channel));
        let end = Arc::clone(self);
        self.process
            .after(world, world.plan.connect_timeout(), move |world| {
                let state = &mut *locked(&end.bells.state);
                if state.connection == Some(id) && !state.subscribed {
                    end.failed(world, state);
                }
            });
    }

    /// No subscription could be made.
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
            end.subscribe(world, &mut locked(&end.bells.state));
        });
    }

    /// The subscription over this connection is over, if there is one: the node has closed it,
    /// or does not answer. What is told from now on is not heard.
    pub fn unsubscribed(self: &Arc<Self>, world: &Arc<World>, id: ConnectionId) {
        let bells = {
            let state = &mut *locked(&self.bells.state);
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
        ask_again(bells);
    }

    /// A reply has arrived over a subscription.
    pub fn subscription_replied(
        self: &Arc<Self>,
        world: &Arc<World>,
        id: ConnectionId,
        reply: &Reply,
    ) {
        let bells = {
            let state = &mut *locked(&self.bells.state);
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
        ask_again(bells);
    }

    fn ping_later(self: &Arc<Self>, world: &Arc<World>, id: ConnectionId) {
        let end = Arc::clone(self);
        self.process.after(world, PING, move |world| {
            let ping = {
                let state = &mut *locked(&end.bells.state);
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
                    let answered = locked(&pinging.bells.state).pongs >= ping;
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
            let state = &mut *locked(&end.bells.state);
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

    /// Rings for what the node tells.
    pub fn heard(&self, telling: &Telling) {
        let notifier = {
            let state = locked(&self.bells.state);
            let key = (telling.name.clone(), Arc::clone(&telling.owner));
            let listens = state.connection == Some(telling.to);
            state.waiting.get(&key).filter(|_| listens).cloned()
        };
        if let Some(notifier) = notifier {
            notifier.notify(telling.news);
        }
    }
}

impl State {
    fn all(&self) -> Vec<Notifier> {
        self.waiting.values().cloned().collect()
    }
}

/// Who waits asks again: to be told from now on, and to learn what it was not told.
fn ask_again(bells: Vec<Notifier>) {
    for notifier in bells {
        notifier.notify(News::AskAgain);
    }
}
