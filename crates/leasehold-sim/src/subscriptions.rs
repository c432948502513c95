//! The subscriptions to a node and the notifications it sends: what PUBLISH and SUBSCRIBE do on a
//! Redis server. They belong to one run of the server, not to its memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use leasehold::Name;
use leasehold::node::News;

use crate::network::ConnectionId;

/// Identifies the channel of a process on a node.
pub type Channel = u64;

/// A notification to a waiter.
#[derive(Clone)]
pub struct Notification {
    /// The connection that carries it.
    pub to: ConnectionId,
    /// The name it is about.
    pub name: Name,
    /// The owner value of the waiter.
    pub owner: Arc<[u8]>,
    /// The content.
    pub news: News,
}

/// The subscriptions that are open at the node's end.
#[derive(Default)]
pub struct Subscriptions {
    listening: BTreeSet<(Channel, ConnectionId)>,
    notifications: Vec<Notification>,
}

impl Subscriptions {
    /// Subscribes this connection to the channel.
    pub fn subscribe(&mut self, channel: Channel, connection: ConnectionId) {
        self.listening.insert((channel, connection));
    }

    /// Ends the subscriptions of a connection that is closed at this end.
    pub fn close(&mut self, connection: ConnectionId) {
        self.listening.retain(|(_, other)| *other != connection);
    }

    /// Notifies every subscriber of the channel. Returns `false` if there is none, as far as this
    /// end knows.
    pub fn publish(&mut self, channel: Channel, name: &Name, owner: &[u8], news: News) -> bool {
        let (before, owner) = (self.notifications.len(), Arc::<[u8]>::from(owner));
        let connections = self.listening.range((channel, 0)..=(channel, u64::MAX));
        self.notifications
            .extend(connections.map(|&(_, to)| Notification {
                to,
                name: name.clone(),
                owner: Arc::clone(&owner),
                news,
            }));
        self.notifications.len() > before
    }

    /// Takes the notifications that are to be sent.
    pub fn take(&mut self) -> Vec<Notification> {
        std::mem::take(&mut self.notifications)
    }
}
