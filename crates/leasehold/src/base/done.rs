//! The result of work that was done once.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use crate::base::holder::{Holder, StoredResult};

/// The result of work that was done once.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Done {
    /// The result.
    pub bytes: Arc<[u8]>,
    /// The fencing token of the lease under which the work was done.
    pub token: u64,
    /// When the work ended, by the clock of the client that did it.
    pub at: SystemTime,
    /// Whether this call ran the work.
    pub ran_here: bool,
}

impl Done {
    pub(crate) fn stored(holder: &Holder, result: &StoredResult) -> Self {
        Self {
            bytes: Arc::clone(&result.bytes),
            token: holder.token.unwrap_or(0),
            at: result.at,
            ran_here: false,
        }
    }
}

impl fmt::Debug for Done {
    /// Shows how long the result is, and not the result.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Done")
            .field("len", &self.bytes.len())
            .field("token", &self.token)
            .field("at", &self.at)
            .field("ran_here", &self.ran_here)
            .finish()
    }
}
