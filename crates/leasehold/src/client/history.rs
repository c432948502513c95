//! The history of a name: which leases it had, and how they ended.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use tokio::task::JoinSet;

use crate::base::error::{Error, NodeOutcome};
use crate::base::name::Name;
use crate::base::past_lease::{LeaseEnd, PastLease};
use crate::client::Client;
use crate::client::core::Core;
use crate::client::inspect::{Inspection, LockState};
use crate::lease::recorder::broken;
use crate::node::{HistoryEntry, NodeError, Sighting};

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// When a node has answered, the others get this much time. Each node has the entries of all leases,
/// except those that could not be written to it.
const STRAGGLERS: Duration = Duration::from_millis(200);
/// A holder releases its lock before it records the end. If an end is missing, the nodes are asked once
/// more after this time.
const LATE_ENDS: Duration = Duration::from_millis(250);

/// The past leases of a name, from [`Client::history`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct History {
    /// The lock's name, without the client's prefix.
    pub name: Name,
    /// The leases, the latest first.
    pub leases: Vec<PastLease>,
    /// The nodes that did not answer, and why. Entries that are only there are missing.
    pub missing: Vec<(String, NodeError)>,
}

impl Client {
    /// Asks every node for the history of a lock: the leases of all clients that record them
    /// ([`Builder::history`](crate::Builder::history)), ordered by token, the latest first. Leases of other
    /// clients are not in it. With an [`RwLock`](crate::RwLock), these are the leases of writers and
    /// readers.
    ///
    /// A client that acquired a lease and crashed records no end. Its lease is [`LeaseEnd::Expired`] if
    /// it was held for more than a second, and otherwise missing. The history is for people who find out
    /// what happened. It may miss entries that could not be written, so no program should depend on it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, LeaseEnd, MemoryNode};
    /// use std::time::Duration;
    ///
    /// let client = Client::builder().custom_node(MemoryNode::new("memory")).history().build()?;
    /// let lease = client.mutex("report").lock().await?;
    /// let token = lease.token();
    /// lease.release().await;
    /// client.shutdown(Duration::from_secs(5)).await; // waits until the entry is written
    ///
    /// let history = client.history("report").await?;
    /// let past = &history.leases[0];
    /// assert_eq!(past.holder.token, Some(token));
    /// assert_eq!(past.end, LeaseEnd::Released);
    /// println!("{} from {:?} to {:?}", past.holder, past.acquired_at, past.ended_at);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid name, [`Error::NoMajority`] if no node answered.
    ///
    /// Cancel safety: dropping the future has no effect.
    pub async fn history(&self, name: impl AsRef<[u8]>) -> Result<History, Error> {
        let key = self.key_of(name.as_ref())?;
        let look = async || Ok(vec![self.inspect(name.as_ref()).await?]);
        self.history_of(&key, look).await
    }

    /// Asks every node for the history of a semaphore, as [`history`](Self::history) does for a lock.
    /// [`PastLease::permit`] is the number of the permit.
    ///
    /// On a Redis server this scans all keys if a permit is held.
    ///
    /// # Errors
    /// Those of [`history`](Self::history), and those of [`inspect_permits`](Self::inspect_permits).
    ///
    /// Cancel safety: dropping the future has no effect.
    pub async fn permit_history(&self, name: impl AsRef<[u8]>) -> Result<History, Error> {
        let key = self.key_of(name.as_ref())?.semaphore();
        let look = async || Ok(self.inspect_permits(name.as_ref()).await?.locks);
        self.history_of(&key, look).await
    }

    /// Reads the history, and decides what became of leases without an end. `look` returns what is held.
    async fn history_of(
        &self,
        key: &Name,
        look: impl AsyncFn() -> Result<Vec<Inspection>, Error>,
    ) -> Result<History, Error> {
        self.core().check_runtime()?;
        let mut history = self.core().read_history(key).await?;
        if !history.leases.iter().any(is_open) {
            return Ok(history);
        }
        // Entries are read before the lock is inspected: a lease that is open in them and not held
        // afterwards has ended.
        let mut held = look().await?;
        let mut open = history.leases.iter().filter(|lease| is_open(lease));
        if open.any(|lease| end_of(lease, &held) != LeaseEnd::StillHeld) {
            self.core().clock.sleep(LATE_ENDS).await;
            history = self.core().read_history(key).await?;
            held = look().await?;
        }
        settle(&mut history, &held);
        Ok(history)
    }

    /// Returns why this client could not write the latest entries of the [history](Self::history), with
    /// the node. Empty if it could, and if it records none. The client repeats what may succeed later,
    /// for about a minute.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// for (node, error) in client.history_errors() {
    ///     eprintln!("{node}: no history: {error}");
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn history_errors(&self) -> Vec<(String, NodeError)> {
        let core = self.core();
        let failures = core
            .recorder
            .iter()
            .flat_map(|recorder| recorder.failures());
        let nodes = core.nodes.iter().zip(failures);
        let failed = nodes.filter_map(|(node, error)| Some((node.label().to_owned(), error?)));
        failed.collect()
    }
}

/// Whether no end of the lease was recorded.
fn is_open(lease: &PastLease) -> bool {
    lease.end == LeaseEnd::StillHeld
}

/// Decides what became of leases without an end.
fn settle(history: &mut History, locks: &[Inspection]) {
    // The leases that began later come first.
    for index in 0..history.leases.len() {
        let (later, rest) = history.leases.split_at_mut(index);
        let lease = &mut rest[0];
        if is_open(lease) {
            lease.end = end_of(lease, locks);
            if lease.end == LeaseEnd::Expired {
                lease.ended_at = Some(next_began(lease, later).unwrap_or_else(SystemTime::now));
            }
        }
    }
}

/// When the next holder acquired the lock, or the permit. Readers hold it together.
fn next_began(lease: &PastLease, later: &[PastLease]) -> Option<SystemTime> {
    let both_share = |next: &PastLease| next.holder.shared && lease.holder.shared;
    let mut next = later.iter().rev();
    let next = next.find(|next| next.permit == lease.permit && !both_share(next))?;
    next.acquired_at
}

/// What has become of a lease that has no end in the history.
fn end_of(lease: &PastLease, locks: &[Inspection]) -> LeaseEnd {
    let of_permit = |lock: &&Inspection| lock.permit == lease.permit;
    let Some(lock) = locks.iter().find(of_permit) else {
        return LeaseEnd::Expired;
    };
    let is_it = |seen: &Sighting| Some(seen.owner_id()) == lease.holder.owner_id;
    match lock.state() {
        _ if lock.holders().iter().any(|seen| is_it(seen)) => LeaseEnd::StillHeld,
        LockState::Unknown => LeaseEnd::Unknown,
        _ => LeaseEnd::Expired,
    }
}

impl Core {
    /// Merges the entries of all nodes.
    async fn read_history(&self, key: &Name) -> Result<History, Error> {
        let answers = self.ask_for_history(key).await;
        if answers.iter().all(Result::is_err) {
            let outcomes = answers.into_iter().filter_map(Result::err);
            let outcomes = outcomes.map(NodeOutcome::Failed);
            let refusal = self.refusal(Some(self.name_of(key)), outcomes);
            return Err(Error::NoMajority(Box::new(refusal)));
        }
        let mut leases: BTreeMap<_, PastLease> = BTreeMap::new();
        let mut missing = Vec::new();
        for (node, answer) in self.nodes.iter().zip(answers) {
            let entries = match answer {
                Ok(entries) => entries,
                Err(error) => {
                    missing.push((node.label().to_owned(), error));
                    continue;
                }
            };
            for entry in entries
                .iter()
                .filter_map(|entry| PastLease::parse(entry.text()))
            {
                let (token, owner_id) = entry.id();
                let id = (token, owner_id.map(str::to_owned));
                match leases.get_mut(&id) {
                    Some(lease) => lease.merge(entry),
                    None => drop(leases.insert(id, entry)),
                }
            }
        }
        let mut leases: Vec<_> = leases.into_values().collect();
        for lease in &mut leases {
            lease.acquired_at = lease.acquired_at.or_else(|| lease.holder.since());
        }
        leases.sort_by_key(|lease| std::cmp::Reverse(lease.order()));
        Ok(History {
            name: self.name_of(key),
            leases,
            missing,
        })
    }

    async fn ask_for_history(&self, key: &Name) -> Vec<Result<Vec<HistoryEntry>, NodeError>> {
        let mut asked = JoinSet::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let read = node.read_history(key);
            asked.spawn(async move { (index, read.await) });
        }
        let mut answers = vec![Err(NodeError::Unanswered); asked.len()];
        let mut deadline = self.clock.now() + PATIENCE;
        loop {
            tokio::select! {
                biased;
                answer = asked.join_next() => match answer {
                    None => break,
                    Some(Ok((index, answer))) => answers[index] = answer,
                    // The task panicked, so the node counts as unanswered.
                    Some(Err(_)) => {}
                },
                () = self.clock.sleep_until(deadline) => break,
            }
            if answers.iter().any(Result::is_ok) {
                deadline = deadline.min(self.clock.now() + STRAGGLERS);
            }
        }
        answers
    }

    /// Records that this client has broken a lock: if it records a history, or if the name has one. Waits
    /// for the nodes, because a tool exits next.
    pub(super) async fn record_broken(&self, key: &Name, seen: &Sighting) {
        let Some(entry) = broken(key, seen) else {
            return;
        };
        let entry = match self.recorder {
            Some(_) => entry,
            None => entry.only_added(),
        };
        let mut writing = JoinSet::new();
        for node in self.nodes.iter() {
            let written = node.write_history(vec![entry.clone()]);
            let label = node.label().to_owned();
            writing.spawn(async move { (label, written.await) });
        }
        while let Some(Ok((node, written))) = writing.join_next().await {
            if let Err(error) = written {
                tracing::debug!(node, %error, "the history was not written");
            }
        }
    }
}
