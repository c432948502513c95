//! A `leasehold` that runs inside the command of another `leasehold run`, or in a script that has
//! acquired a lease.

use std::ffi::OsString;

use leasehold::node::Vote;
use leasehold::{Holder, Inspection, NodeOutcome, Refusal};

/// The owner ids of all leases that a command runs under, separated by commas, outermost first.
/// An owner id is unique among the leases of all locks on all nodes. A token is not: two locks
/// may have equal tokens. Owner ids are not secret.
const HELD: &str = "LEASEHOLD_HELD";
/// The owner of a lease that a script acquired.
const OWNER: &str = "LEASEHOLD_OWNER";

/// A lease that this process runs under.
#[derive(Clone, PartialEq)]
pub(crate) struct EnclosingLease {
    pub(crate) name: String,
    pub(crate) token: u64,
    /// Others share the lock with it.
    pub(crate) shared: bool,
    /// A script acquired it. Otherwise a `leasehold run` did.
    pub(crate) by_script: bool,
}

impl EnclosingLease {
    /// Says who holds the lock.
    pub(crate) fn held(&self) -> String {
        let Self { name, token, .. } = self;
        match (self.by_script, self.shared) {
            (true, _) => {
                format!("this script holds `{name}` (LEASEHOLD_OWNER, token {token})")
            }
            (false, true) => {
                format!("an enclosing `leasehold run --shared` holds `{name}` (token {token})")
            }
            (false, false) => {
                format!("an enclosing `leasehold run` holds `{name}` (token {token})")
            }
        }
    }

    /// The options that run a command under this lease.
    pub(crate) fn inherit(&self) -> &'static str {
        match self.shared {
            true => "`leasehold run --shared --inherit`",
            false => "`leasehold run --inherit`",
        }
    }
}

/// The owner ids of the leases that this process runs under.
#[derive(Clone, Default)]
pub(crate) struct Enclosing {
    /// The leases of `leasehold run`.
    runs: Vec<String>,
    /// The lease that a script acquired.
    script: Option<String>,
}

impl Enclosing {
    /// The leases of all enclosing `leasehold run` processes, and the lease that the enclosing script
    /// acquired.
    pub(crate) fn leases() -> Self {
        let text = std::env::var(HELD).unwrap_or_default();
        let ids = text.split(',').filter(|id| !id.is_empty());
        let owner = std::env::var(OWNER).unwrap_or_default();
        Self {
            runs: ids.map(str::to_owned).collect(),
            script: Holder::parse(owner.as_bytes()).owner_id,
        }
    }

    /// No leases.
    pub(crate) fn none() -> Self {
        Self::default()
    }

    fn contains(&self, id: &String) -> bool {
        self.script.as_ref() == Some(id) || self.runs.contains(id)
    }

    fn lease(&self, name: String, holder: &Holder) -> Option<EnclosingLease> {
        Some(EnclosingLease {
            name,
            token: holder.token?,
            shared: holder.shared,
            by_script: holder.owner_id == self.script,
        })
    }

    /// The enclosing lease that holds the lock, if a majority of the nodes reports that lease as the
    /// holder.
    pub(crate) fn holder(&self, refusal: &Refusal) -> Option<EnclosingLease> {
        let name = refusal.name.as_ref().map(ToString::to_string);
        let named = refusal
            .nodes
            .iter()
            .filter_map(|report| match &report.outcome {
                NodeOutcome::Voted(Vote::Held { holder, .. }) => Some(&**holder),
                _ => None,
            });
        let named: Vec<_> = named
            .filter(|holder| holder.owner_id.iter().any(|id| self.contains(id)))
            .collect();
        let times = |one: &&&Holder| {
            let same = named.iter().filter(|other| other.owner_id == one.owner_id);
            same.count()
        };
        let holder = named.iter().find(|one| times(one) >= refusal.majority)?;
        self.lease(name.unwrap_or_default(), holder)
    }

    /// How many of the inspected permits the enclosing leases hold.
    pub(crate) fn permits_among(&self, permits: &[Inspection]) -> usize {
        let held = permits.iter().filter(|permit| self.among(permit).is_some());
        held.count()
    }

    /// Whether this process runs under no lease.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.script.is_none()
    }

    /// The enclosing lease that is among the holders of an inspected lock. Unlike a refusal, an
    /// inspection names all readers.
    pub(crate) fn among(&self, inspection: &Inspection) -> Option<EnclosingLease> {
        let mut holders = inspection.holders().into_iter().map(|seen| &seen.holder);
        let holder = holders.find(|holder| holder.owner_id.iter().any(|id| self.contains(id)))?;
        self.lease(inspection.name.to_string(), holder)
    }

    /// The variable for a command that runs under these leases and those with these owner ids.
    pub(crate) fn with(
        &self,
        owner_ids: impl Iterator<Item = String>,
    ) -> (&'static str, Option<OsString>) {
        let script = self.script.iter().filter(|id| !self.runs.contains(id));
        let ids = self.runs.iter().chain(script).cloned().chain(owner_ids);
        (HELD, Some(ids.collect::<Vec<_>>().join(",").into()))
    }
}
