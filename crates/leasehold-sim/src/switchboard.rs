//! Who listens to a node, and what it tells them: what PUBLISH and SUBSCRIBE do on a Redis
//! server. It belongs to a run of the server, not to its memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use leasehold::Name;
use leasehold::node::News;

use crate::network::ConnectionId;

/// Names the channel of a process on a node.
pub type Channel = u64;

/// What one who waits is told, on its way.
#[derive(Clone)]
pub struct Telling {
    /// Over which connection.
    pub to: ConnectionId,
    /// About which name.
    pub name: Name,
    /// Whom: the one with this owner value.
    pub owner: Arc<[u8]>,
    /// What.
    pub news: News,
}

/// The subscriptions that are open at the node's end.
#[derive(Default)]
pub struct Switchboard {
    listening: BTreeSet<(Channel, ConnectionId)>,
    tellings: Vec<Telling>,
}

impl Switchboard {
    /// What comes over the channel goes to this connection too.
    pub fn subscribe(&mut self, channel: Channel, connection: ConnectionId) {
        self.listening.insert((channel, connection));
    }

    /// The connection is closed at this end.
    pub fn close(&mut self, connection: ConnectionId) {
        self.listening.retain(|(_, other)| *other != connection);
    }

    /// Tells all who listen. `false` if nobody does, as far as is known at this end.
    pub fn publish(&mut self, channel: Channel, name: &Name, owner: &[u8], news: News) -> bool {
        let (before, owner) = (self.tellings.len(), Arc::<[u8]>::from(owner));
        let connections = self.listening.range((channel, 0)..=(channel, u64::MAX));
        self.tellings.extend(connections.map(|&(_, to)| Telling {
            to,
            name: name.clone(),
            owner: Arc::clone(&owner),
            news,
        }));
        self.tellings.len() > before
    }

    /// What is to be sent.
    pub fn take(&mut self) -> Vec<Telling> {
        std::mem::take(&mut self.tellings)
    }
}
