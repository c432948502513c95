//! A node on a Redis or Valkey server. Only this module uses the `redis` crate.

mod bells;
mod connection;
#[cfg(feature = "doctor")]
pub(crate) mod examine;
mod history;
mod identity;
mod init;
mod replication;
mod reply;
mod request;
mod resp;
mod roster;
mod scripts;
mod sentinel;
mod session;
mod set;
mod stream;
mod survey;
mod target;
mod template;
#[cfg(test)]
mod tests;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use super::link::Link;
use super::{
    Call, Claim, HistoryEntry, HistoryRead, HistoryWritten, Node, NodeError, Notifier, Survey,
    Watch,
};
use crate::base::name::Name;
use crate::node::NodeSettings;
use crate::observe::NodeWatch;
use bells::Bells;
pub use init::{Change, Initialized};
pub(crate) use init::{Existing, init, votes_in};
use replication::Replication;
pub(crate) use roster::Roster;
pub(crate) use target::Target;

/// A node on a Redis or Valkey server.
pub(crate) struct RedisNode {
    link: Link,
    target: Target,
    timeout: Duration,
    bells: Arc<Bells>,
    history: history::HistoryConnection,
    /// `None`: votes count at once.
    replication: Option<Replication>,
}

impl RedisNode {
    /// Starts a task that lives as long as this node. It connects when it is first needed.
    ///
    /// `place` is the index of the node in the roster. `watch` learns of its state.
    pub(crate) fn start(
        target: Target,
        settings: &NodeSettings,
        roster: Arc<Roster>,
        place: usize,
        watch: NodeWatch,
    ) -> Self {
        let bells = Arc::new(match settings.replicas {
            None => Bells::new(),
            Some(_) => Bells::new().without_grants(),
        });
        let memory = session::SharedMemory::default();
        let replication = settings.replicas.map(|replicas| {
            let (target, memory) = (target.clone(), Arc::clone(&memory));
            Replication::start(target, settings, replicas, memory, watch.clone())
        });
        let connector = session::Connector::new(
            target.clone(),
            settings,
            (place, roster),
            Arc::clone(&bells),
            memory,
        );
        let (clock, seed) = (settings.clock.clone(), settings.seed ^ place as u64);
        Self {
            link: Link::start(connector, clock, settings.verify_after, seed, watch),
            target,
            timeout: settings.connect_timeout,
            bells,
            history: history::HistoryConnection::default(),
            replication,
        }
    }
}

impl Node for RedisNode {
    fn label(&self) -> &str {
        &self.target.label
    }

    fn submit(&self, call: Call) {
        self.link.submit(match &self.replication {
            None => call,
            Some(replication) => replication.hold_back(call),
        });
    }

    fn connect(&self) {
        self.link.connect();
    }

    fn status(&self) -> Option<Result<(), NodeError>> {
        self.link.status()
    }

    fn floor(&self) -> u64 {
        self.link.floor()
    }

    fn watch(&self, claim: &Claim, notifier: &Notifier) -> Option<Watch> {
        Some(self.bells.watch(claim, notifier))
    }

    fn has_semaphores(&self) -> bool {
        true
    }

    fn survey(&self, name: Option<&Name>) -> Survey {
        let (target, name) = (self.target.clone(), name.cloned());
        Box::pin(survey::survey(target, self.timeout, name))
    }

    fn write_history(&self, entries: Vec<HistoryEntry>) -> HistoryWritten {
        let (target, connection) = (self.target.clone(), Arc::clone(&self.history));
        Box::pin(history::write(target, self.timeout, connection, entries))
    }

    fn read_history(&self, name: &Name) -> HistoryRead {
        Box::pin(history::read(
            self.target.clone(),
            self.timeout,
            name.clone(),
        ))
    }
}
