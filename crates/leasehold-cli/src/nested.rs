//! A `leasehold` inside a command that another `leasehold run` started.

use std::ffi::OsString;

use leasehold::node::Vote;
use leasehold::{Holder, Refusal, Story};

/// The owner ids of all leases that a command runs under, separated by commas, the outermost
/// first. An owner id names one lease among those of all locks on all nodes. A token does not:
/// two names may have equal tokens. Owner ids are not secret.
const HELD: &str = "LEASEHOLD_HELD";
/// The owner of a lease that a script acquired.
const OWNER: &str = "LEASEHOLD_OWNER";

/// The leases that this process runs under, by their owner ids.
#[derive(Clone)]
pub(crate) struct Enclosing(Vec<String>);

impl Enclosing {
    /// Those of all enclosing `leasehold run`s.
    pub(crate) fn runs() -> Self {
        let text = std::env::var(HELD).unwrap_or_default();
        let ids = text.split(',').filter(|id| !id.is_empty());
        Self(ids.map(str::to_owned).collect())
    }

    /// Those, and one that the script acquired which this process is part of.
    pub(crate) fn runs_and_script() -> Self {
        let Self(mut ids) = Self::runs();
        let owner = std::env::var(OWNER).unwrap_or_default();
        ids.extend(Holder::parse(owner.as_bytes()).owner_id);
        Self(ids)
    }

    /// The token of the enclosing lease that holds the lock, if a majority of the nodes names
    /// the same one as the holder.
    pub(crate) fn holder(&self, refusal: &Refusal) -> Option<u64> {
        self.0.iter().find_map(|id| {
            let named = refusal
                .nodes
                .iter()
                .filter_map(|report| match &report.story {
                    Story::Voted(Vote::Held { holder, .. }) => Some(holder),
                    _ => None,
                });
            let named: Vec<_> = named
                .filter(|holder| holder.owner_id.as_ref() == Some(id))
                .collect();
            match named.len() >= refusal.majority {
                true => named.first()?.token,
                false => None,
            }
        })
    }

    /// The variable for a command that also runs under the lease with this owner id.
    pub(crate) fn with(&self, owner_id: String) -> (&'static str, Option<OsString>) {
        let Self(mut ids) = self.clone();
        ids.push(owner_id);
        (HELD, Some(ids.join(",").into()))
    }
}
