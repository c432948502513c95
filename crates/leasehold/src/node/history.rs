//! The history of a name, as nodes store it: entries, of which the oldest are dropped.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::NodeError;
use crate::base::name::Name;

/// How many entries a node keeps for each name. There are one or two for each lease.
pub const HISTORY_ENTRIES: usize = 200;
/// How long a node keeps the history of a name after its last entry.
pub const HISTORY_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// The future that [`Node::write_history`](super::Node::write_history) returns.
pub type HistoryWritten = Pin<Box<dyn Future<Output = Result<(), NodeError>> + Send>>;
/// The future that [`Node::read_history`](super::Node::read_history) returns.
pub type HistoryRead = Pin<Box<dyn Future<Output = Result<Vec<HistoryEntry>, NodeError>> + Send>>;

/// An entry in the history of a name: that a lease is held, or how it ended. Its text is public and
/// contains no owner value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    name: Name,
    text: Vec<u8>,
    begins_history: bool,
}

impl HistoryEntry {
    /// Creates an entry that a node has stored.
    #[must_use]
    pub fn new(name: Name, text: impl Into<Vec<u8>>) -> Self {
        Self {
            name,
            text: text.into(),
            begins_history: true,
        }
    }

    /// An entry to drop if the name has no history yet.
    pub(crate) fn only_added(mut self) -> Self {
        self.begins_history = false;
        self
    }

    /// The key of the lock, or of the semaphore.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The text to store.
    #[must_use]
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Whether to store the entry if the name has no history yet.
    #[must_use]
    pub fn begins_history(&self) -> bool {
        self.begins_history
    }
}
