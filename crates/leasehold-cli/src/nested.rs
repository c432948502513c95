//! A `leasehold` that runs inside the command of another `leasehold run`.

use std::ffi::OsString;

use leasehold::node::Vote;
use leasehold::{Holder, Inspection, NodeOutcome, Refusal};

/// The owner ids of all leases that a command runs under, separated by commas, outermost first.
/// An owner id is unique among the leases of all locks on all nodes. A token is not: two locks
/// may have equal tokens. Owner ids are not secret.
const HELD: &str = "LEASEHOLD_HELD";
/// The owner of a lease that a script acquired.
const OWNER: &str = "LEASEHOLD_OWNER";

/// A lease of an enclosing `leasehold run`.
#[derive(Clone, PartialEq)]
pub(crate) struct EnclosingLease {
    pub(crate) name: String,
    pub(crate) token: u64,
}

/// The owner ids of the leases that this process runs under.
#[derive(Clone)]
pub(crate) struct Enclosing(Vec<String>);

impl Enclosing {
    /// The leases of all enclosing `leasehold run` processes.
    pub(crate) fn runs() -> Self {
        let text = std::env::var(HELD).unwrap_or_default();
        let ids = text.split(',').filter(|id| !id.is_empty());
        Self(ids.map(str::to_owned).collect())
    }

    /// No leases.
    pub(crate) fn none() -> Self {
        Self(Vec::new())
    }

    /// As [`runs`](Self::runs), plus the lease that the enclosing script acquired.
    pub(crate) fn runs_and_script() -> Self {
        let Self(mut ids) = Self::runs();
        let owner = std::env::var(OWNER).unwrap_or_default();
        ids.extend(Holder::parse(owner.as_bytes()).owner_id);
        Self(ids)
    }

    /// The enclosing lease that holds the lock, if a majority of the nodes reports that lease as the
    /// holder.
    pub(crate) fn holder(&self, refusal: &Refusal) -> Option<EnclosingLease> {
        let name = refusal.name.as_ref().map(ToString::to_string);
        let token = self.0.iter().find_map(|id| {
            let named = refusal
                .nodes
                .iter()
                .filter_map(|report| match &report.outcome {
                    NodeOutcome::Voted(Vote::Held { holder, .. }) => Some(holder),
                    _ => None,
                });
            let named: Vec<_> = named
                .filter(|holder| holder.owner_id.as_ref() == Some(id))
                .collect();
            match named.len() >= refusal.majority {
                true => named.first()?.token,
                false => None,
            }
        })?;
        Some(EnclosingLease {
            name: name.unwrap_or_default(),
            token,
        })
    }

    /// How many of the inspected permits the enclosing leases hold.
    pub(crate) fn permits_among(&self, permits: &[Inspection]) -> usize {
        let held = permits.iter().filter(|permit| self.among(permit).is_some());
        held.count()
    }

    /// Whether this process runs under no lease.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The enclosing lease that is among the holders of an inspected lock. Unlike a refusal, an
    /// inspection names all readers.
    pub(crate) fn among<'i>(&self, inspection: &'i Inspection) -> Option<&'i Holder> {
        let mut holders = inspection.holders().into_iter().map(|seen| &seen.holder);
        holders.find(|holder| holder.owner_id.iter().any(|id| self.0.contains(id)))
    }

    /// The variable for a command that runs under these leases and those with these owner ids.
    pub(crate) fn with(
        &self,
        owner_ids: impl Iterator<Item = String>,
    ) -> (&'static str, Option<OsString>) {
        let Self(mut ids) = self.clone();
        ids.extend(owner_ids);
        (HELD, Some(ids.join(",").into()))
    }
}
