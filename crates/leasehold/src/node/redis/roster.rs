//! Which server each node of a client is connected to, so that none votes twice.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The servers that a client's nodes are connected to, by run id.
#[derive(Default)]
pub(crate) struct Roster {
    servers: Mutex<HashMap<String, String>>,
}

/// A node's place in the roster, until dropped.
pub(super) struct Place {
    roster: Arc<Roster>,
    run_id: String,
}

impl Roster {
    /// Enters a node, or returns the label of the node that is the same server.
    pub(super) fn enter(self: &Arc<Self>, run_id: &str, label: &str) -> Result<Place, String> {
        let mut servers = self.servers();
        if let Some(other) = servers.get(run_id) {
            return Err(other.clone());
        }
        servers.insert(run_id.to_owned(), label.to_owned());
        Ok(Place {
            roster: Arc::clone(self),
            run_id: run_id.to_owned(),
        })
    }

    fn servers(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.roster.servers().remove(&self.run_id);
    }
}
