//! Inspecting locks without acquiring them, and breaking the lock of another holder.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::base::error::{Error, NodeOutcome, NodeReport};
use crate::base::holder::owned_token;
use crate::base::name::Name;
use crate::client::Client;
use crate::client::core::Core;
use crate::client::options::MIN_TTL;
use crate::node::{Claim, NodeError, Sighting, Verb, majority};
use crate::quorum::round::Decision;
use crate::quorum::{Broadcast, NodeSet, Question};

/// How long a node may take to list its locks. Listing a large server takes time.
const PATIENCE: Duration = Duration::from_secs(5);
/// When the answers so far decide the outcome, the other nodes get as much time again, and at least
/// this much. A silent node must not delay an answer that it cannot change.
const STRAGGLERS: Duration = Duration::from_millis(100);

/// What each node reports about one name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// The lock's name, without the client's prefix, as in [`Client::mutex`], [`Client::inspect`]
    /// and [`Client::break_lock`].
    pub name: Name,
    /// The key on the nodes: the client's prefix followed by the name.
    pub key: Name,
    /// The number of the permit, if this is a permit of the semaphore of this name.
    pub permit: Option<u32>,
    /// Each node with the holders of its lock, in the order of the client's nodes: none, one owner,
    /// or the readers.
    pub nodes: Vec<(String, Result<Vec<Sighting>, NodeError>)>,
}

impl Inspection {
    /// Returns whether the lock is held, as far as the nodes that answered can tell.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::{Client, LockState};
    ///
    /// let client = Client::in_memory();
    /// assert!(matches!(client.inspect("report").await?.state(), LockState::NotHeld));
    /// let lease = client.mutex("report").lock().await?;
    /// match client.inspect("report").await?.state() {
    ///     LockState::Held(lock) => assert_eq!(lock.holder.token, Some(lease.token())),
    ///     state => panic!("{state:?}"),
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn state(&self) -> LockState<'_> {
        let votes = |one: &Sighting| self.sightings().filter(|s| s.value == one.value).count();
        let (majority, missing) = (self.majority(), self.missing().count());
        let held = self.sightings().filter(|one| votes(one) >= majority);
        let most = self.sightings().map(votes).max().unwrap_or(0);
        match held.min_by_key(|one| one.remaining.unwrap_or(Duration::MAX)) {
            Some(lock) => LockState::Held(lock),
            None if most + missing < majority => LockState::NotHeld,
            None => LockState::Unknown,
        }
    }

    /// Returns the lock if one owner has it on a majority of all nodes, as reported by the node on
    /// which it expires first. `None` if no owner has a majority, and also if that is unknown: see
    /// [`state`](Self::state).
    #[must_use]
    pub fn lock(&self) -> Option<&Sighting> {
        match self.state() {
            LockState::Held(lock) => Some(lock),
            _ => None,
        }
    }

    /// Returns all holders that have the lock on a majority of all nodes: one owner, or the
    /// [readers](crate::RwLock::read), each as reported by the node on which it expires first. The
    /// one that expires first of all is [`lock`](Self::lock).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let catalog = client.rw_lock("catalog");
    /// let (_one, _two) = (catalog.read().await?, catalog.read().await?);
    /// let inspection = client.inspect("catalog").await?;
    /// assert_eq!(inspection.holders().len(), 2);
    /// assert!(inspection.holders().iter().all(|reader| reader.holder.shared));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn holders(&self) -> Vec<&Sighting> {
        let mut by_owner: BTreeMap<&[u8], Vec<&Sighting>> = BTreeMap::new();
        for seen in self.sightings() {
            by_owner.entry(&seen.value).or_default().push(seen);
        }
        let left = |seen: &&Sighting| seen.remaining.unwrap_or(Duration::MAX);
        let majority = self.majority();
        let held = by_owner.into_values().filter(|seen| seen.len() >= majority);
        let mut holders: Vec<_> = held
            .filter_map(|seen| seen.into_iter().min_by_key(left))
            .collect();
        holders.sort_by_key(left);
        holders
    }

    /// Returns all locks that the nodes have under this name.
    pub fn sightings(&self) -> impl Iterator<Item = &Sighting> {
        let answers = self.nodes.iter();
        answers.flat_map(|(_, seen)| seen.iter().flatten())
    }

    /// Returns the nodes that did not answer or failed, and why.
    pub fn missing(&self) -> impl Iterator<Item = (&str, &NodeError)> {
        let nodes = self.nodes.iter();
        nodes.filter_map(|(node, seen)| Some((&**node, seen.as_ref().err()?)))
    }

    /// Whether the answers decide if the lock is held: [`state`](Self::state) is not
    /// [`LockState::Unknown`].
    #[must_use]
    pub fn is_conclusive(&self) -> bool {
        !matches!(self.state(), LockState::Unknown)
    }

    /// Returns how many nodes are a majority.
    #[must_use]
    pub fn majority(&self) -> usize {
        majority(self.nodes.len())
    }

    fn has_a_majority_of_answers(&self) -> bool {
        self.nodes.len() - self.missing().count() >= self.majority()
    }
}

/// Whether a lock is held. See [`Inspection::state`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum LockState<'a> {
    /// One owner has the lock on a majority of all nodes. This is the lock as reported by the node
    /// on which it expires first.
    Held(&'a Sighting),
    /// No owner has the lock on a majority of all nodes, whatever the missing nodes have. The lock
    /// is free, or an owner with fewer nodes is about to release it or has lost it on the others.
    NotHeld,
    /// Too few nodes answered to decide, or too many failed: [`Inspection::missing`] says why. The
    /// error is [`NodeError::WrongType`] if the key contains a value that is not a lock.
    Unknown,
}

/// All locks of a client's nodes, from [`Client::inspect_all`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Listing {
    /// The locks, ordered by name.
    pub locks: Vec<Inspection>,
    /// The nodes that did not answer, and why. Because of them, the state of a lock may be
    /// [unknown](LockState::Unknown), but no lock that is held is missing from the list.
    pub missing: Vec<(String, NodeError)>,
}

type Survey = Result<Vec<Sighting>, NodeError>;

impl Client {
    /// Asks every node about one name. The result includes nodes that failed.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let _lease = client.mutex("report").lock().await?;
    /// let inspection = client.inspect("report").await?;
    /// let lock = inspection.lock().expect("it is held");
    /// println!("held by {}, owner {}", lock.holder, lock.owner_id());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] for an invalid name.
    ///
    /// Cancel safety: dropping the future has no effect.
    pub async fn inspect(&self, name: impl AsRef<[u8]>) -> Result<Inspection, Error> {
        let key = self.key_of(name.as_ref())?;
        self.core().check_runtime()?;
        let surveys = self.core().survey(Some(&key)).await;
        Ok(self.core().inspection(&key, &surveys))
    }

    /// Asks every node for all locks that leasehold has granted within the last day, ordered by
    /// name. With a [prefix](crate::Builder::prefix), only locks under the prefix are listed. A
    /// lock of another library under a name that leasehold never used looks like any other key and
    /// is not listed; [`inspect`](Self::inspect) shows it.
    ///
    /// On a Redis server this scans all keys.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let _lease = client.mutex("report").lock().await?;
    /// let listing = client.inspect_all().await?;
    /// assert_eq!(listing.locks.len(), 1);
    /// assert!(listing.missing.is_empty());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoMajority`] if too few nodes answered.
    ///
    /// Cancel safety: dropping the future has no effect.
    pub async fn inspect_all(&self) -> Result<Listing, Error> {
        let core = self.core();
        core.check_runtime()?;
        let surveys = core.survey(None).await;
        let nodes = core.nodes.iter().zip(&surveys);
        let missing: Vec<_> = nodes
            .filter_map(|(node, survey)| {
                Some((node.label().to_owned(), survey.as_ref().err()?.clone()))
            })
            .collect();
        if surveys.len() - missing.len() < majority(surveys.len()) {
            return Err(core.unanswered(None, &surveys));
        }
        let locks = core.inspections(&surveys);
        Ok(Listing { locks, missing })
    }

    /// Asks every node for the permits of the semaphore with this name that are held, ordered by number.
    ///
    /// On a Redis server this scans all keys.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let permit = client.semaphore("exports", 10).acquire().await?;
    /// let listing = client.inspect_permits("exports").await?;
    /// assert_eq!(listing.locks.len(), 1);
    /// assert_eq!(listing.locks[0].permit, permit.permit());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoMajority`] if too few nodes answered, [`Error::Invalid`] for an invalid name.
    ///
    /// Cancel safety: dropping the future has no effect.
    pub async fn inspect_permits(&self, name: impl AsRef<[u8]>) -> Result<Listing, Error> {
        let semaphore = self.key_of(name.as_ref())?.semaphore();
        let mut listing = self.inspect_all().await?;
        let of_semaphore = |lock: &Inspection| {
            let permit = lock.key.as_permit();
            permit.is_some_and(|(of, _)| of == semaphore)
        };
        listing.locks.retain(of_semaphore);
        listing.locks.sort_by_key(|lock| lock.permit);
        Ok(listing)
    }

    /// Breaks the lease of a permit, as [`break_lock`](Self::break_lock) does with a lock. The next in
    /// line gets the permit.
    ///
    /// # Errors
    /// Those of [`break_lock`](Self::break_lock).
    ///
    /// Cancel safety: like [`break_lock`](Self::break_lock).
    pub async fn break_permit(
        &self,
        name: impl AsRef<[u8]>,
        permit: u32,
        owner_id: &str,
    ) -> Result<bool, Error> {
        let semaphore = self.key_of(name.as_ref())?.semaphore();
        self.core()
            .break_key(semaphore.permit(permit), owner_id)
            .await
    }

    /// Breaks a lock: releases it on every node where the owner with this [id](Sighting::owner_id)
    /// holds it. Returns whether that owner held it on a majority of nodes, or may have held it:
    /// nodes that do not answer count as if the owner held it there. Waits until each node has answered
    /// or its timeout is over.
    ///
    /// The holder is not notified. If it is still running, it finds out at its next renewal, after
    /// a third of its TTL at most. Until then, only the token protects the resource: that of the
    /// next holder is larger. A reader that is still running joins the lock again at its next
    /// renewal, unless a writer has acquired the lock by then: its release raises no fence, because
    /// that would end the leases of the other readers.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let lease = client.mutex("report").lock().await?;
    /// let inspection = client.inspect("report").await?;
    /// let owner_id = inspection.lock().expect("it is held").owner_id();
    /// assert!(client.break_lock("report", &owner_id).await?);
    /// assert!(client.mutex("report").try_lock().await?.is_some());
    /// assert!(lease.extend().await.is_err());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoMajority`] if too few nodes answered, [`Error::Invalid`] for an invalid name.
    ///
    /// Cancel safety: if the future is dropped, the lock may have been released on any of the
    /// nodes.
    pub async fn break_lock(&self, name: impl AsRef<[u8]>, owner_id: &str) -> Result<bool, Error> {
        self.core()
            .break_key(self.key_of(name.as_ref())?, owner_id)
            .await
    }
}

impl Core {
    async fn break_key(&self, key: Name, owner_id: &str) -> Result<bool, Error> {
        self.check_runtime()?;
        let surveys = self.survey(Some(&key)).await;
        let inspection = self.inspection(&key, &surveys);
        if !inspection.has_a_majority_of_answers() {
            return Err(self.unanswered(Some(inspection.name), &surveys));
        }
        let named = |seen: &Sighting| seen.owner_id() == owner_id;
        let Some(seen) = inspection.sightings().find(|seen| named(seen)) else {
            return Ok(false);
        };
        let had_it = self.release_value(key.clone(), &seen.value).await?;
        if had_it {
            self.record_broken(&key, seen).await;
        }
        Ok(had_it)
    }

    /// Deletes every result that a node keeps under this key. Returns whether a majority had the same
    /// one until now.
    pub(crate) async fn clear_results(&self, key: &Name) -> Result<bool, Error> {
        self.check_runtime()?;
        self.janitor.send_queued(key);
        let surveys = self.survey(Some(key)).await;
        let inspection = self.inspection(key, &surveys);
        if !inspection.has_a_majority_of_answers() {
            return Err(self.unanswered(Some(inspection.name), &surveys));
        }
        let with_result = |seen: &&Sighting| seen.holder.result.is_some();
        let results = inspection.sightings().filter(with_result);
        let values: BTreeSet<&[u8]> = results.map(|seen| &*seen.value).collect();
        let mut cleared = false;
        for value in values {
            cleared |= self.release_value(key.clone(), value).await?;
        }
        Ok(cleared)
    }

    /// Asks whether a majority of all nodes has a lock, or a reader, with this value. Returns when the
    /// first of these nodes lets it expire.
    ///
    /// # Errors
    /// [`Error::NoMajority`] if the nodes that answered leave it open.
    pub(crate) async fn held_by(
        &self,
        key: &Name,
        value: &[u8],
    ) -> Result<Option<Option<Duration>>, Error> {
        let surveys = self.survey(Some(key)).await;
        let inspection = self.inspection(key, &surveys);
        let holders = inspection.holders();
        if let Some(held) = holders.iter().find(|seen| seen.value == value) {
            return Ok(Some(held.remaining));
        }
        let having = inspection.sightings().filter(|seen| seen.value == value);
        let may_have = having.count() + inspection.missing().count();
        match may_have < inspection.majority() {
            true => Ok(None),
            false => Err(self.unanswered(Some(inspection.name), &surveys)),
        }
    }

    /// Releases the lock with this value, wherever it is. Returns whether a majority had it.
    async fn release_value(&self, key: Name, value: &[u8]) -> Result<bool, Error> {
        let token = owned_token(value);
        let claim = Arc::new(Claim::new(key, value, token.unwrap_or(0), MIN_TTL));
        // The same release as that of the holder: it raises the fence, so that nodes refuse the
        // holder's next EXTEND. A value of another library has no token to raise the fence to, and
        // neither has a name that is kept: its holder raised the fence.
        let release = Verb::Release { keep: None };
        let mut question = Question::new(release, &claim, self.options.timeout_of_node());
        if token.is_none() {
            question.nothing_in_flight = NodeSet::all();
        }
        let broadcast = Broadcast::send(&self.nodes, question);
        // Every answer is awaited. If no majority confirmed the release, every answer counts; and if
        // one did, the caller may exit next, and a node that the request has not reached by then
        // would keep the lock until its TTL is over.
        let decision = broadcast.decided().await;
        broadcast.complete().await;
        let refuted = decision == Decision::Refuted;
        let refused = self.refused(&claim, &broadcast.round());
        let without_it = |report: &&NodeReport| {
            matches!(
                report.outcome,
                NodeOutcome::Voted(crate::node::Vote::Released { .. })
            )
        };
        let without_it = refused.nodes.iter().filter(without_it).count();
        match without_it >= refused.majority || refuted {
            true => Ok(!refuted),
            false => Err(Error::NoMajority(Box::new(refused))),
        }
    }

    async fn survey(&self, name: Option<&Name>) -> Vec<Survey> {
        let started = self.clock.now();
        let mut asked = JoinSet::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let survey = node.survey(name);
            asked.spawn(async move { (index, survey.await) });
        }
        let mut surveys = vec![Err(NodeError::Unanswered); asked.len()];
        let mut deadline = started + PATIENCE;
        let mut decided = false;
        loop {
            tokio::select! {
                biased;
                answer = asked.join_next() => match answer {
                    None => break,
                    Some(Ok((index, survey))) => surveys[index] = survey,
                    // The task panicked, so the node counts as unanswered.
                    Some(Err(_)) => {}
                },
                () = self.clock.sleep_until(deadline) => break,
            }
            if !decided && self.is_decided(name, &surveys) {
                decided = true;
                let now = self.clock.now();
                let took = now.saturating_duration_since(started);
                deadline = deadline.min(now + took.max(STRAGGLERS));
            }
        }
        surveys
    }

    /// Whether the missing nodes cannot change the outcome.
    fn is_decided(&self, name: Option<&Name>, surveys: &[Survey]) -> bool {
        match name {
            Some(name) => self.inspection(name, surveys).is_conclusive(),
            None => {
                let answered = surveys.iter().filter(|survey| survey.is_ok()).count();
                answered >= majority(surveys.len())
                    && self
                        .inspections(surveys)
                        .iter()
                        .all(Inspection::is_conclusive)
            }
        }
    }

    /// What the nodes report about one key.
    fn inspection(&self, key: &Name, surveys: &[Survey]) -> Inspection {
        let of_key = |seen: &Vec<Sighting>| -> Vec<Sighting> {
            let of_key = seen.iter().filter(|seen| seen.name == *key);
            of_key.cloned().collect()
        };
        let seen = surveys.iter().map(|survey| match survey {
            Err(error) => Err(error.clone()),
            Ok(seen) => Ok(of_key(seen)),
        });
        self.inspected(key, seen)
    }

    /// What the nodes report about each key of this client that at least one of them has.
    fn inspections(&self, surveys: &[Survey]) -> Vec<Inspection> {
        let mut keys: BTreeMap<&Name, Vec<Vec<Sighting>>> = BTreeMap::new();
        for (index, survey) in surveys.iter().enumerate() {
            let seen = survey.iter().flatten();
            for seen in seen.filter(|seen| self.own_name(&seen.name).is_some()) {
                let row = keys.entry(&seen.name);
                row.or_insert_with(|| vec![Vec::new(); surveys.len()])[index].push(seen.clone());
            }
        }
        let inspected = keys.into_iter().map(|(key, row)| {
            let seen = surveys.iter().zip(row).map(|(survey, seen)| match survey {
                Err(error) => Err(error.clone()),
                Ok(_) => Ok(seen),
            });
            self.inspected(key, seen)
        });
        inspected.collect()
    }

    fn inspected(&self, key: &Name, seen: impl Iterator<Item = Seen>) -> Inspection {
        let name = self.name_of(key);
        let labels = self.nodes.iter().map(|node| node.label().to_owned());
        let named = |seen: Sighting| Sighting {
            name: name.clone(),
            ..seen
        };
        let seen = seen.map(|seen| Ok(seen?.into_iter().map(named).collect()));
        Inspection {
            nodes: labels.zip(with_earliest_grant(seen.collect())).collect(),
            name: name.clone(),
            key: key.clone(),
            permit: key.as_permit().map(|(_, permit)| permit),
        }
    }

    /// `name` is the name of the lock, if the request was about one.
    fn unanswered(&self, name: Option<Name>, surveys: &[Survey]) -> Error {
        let outcomes = surveys.iter().map(|survey| match survey {
            Ok(_) => NodeOutcome::Connected,
            Err(error) => NodeOutcome::Failed(error.clone()),
        });
        Error::NoMajority(Box::new(self.refusal(name, outcomes)))
    }
}

type Seen = Result<Vec<Sighting>, NodeError>;

/// Sets each lock's time of grant to the earliest that a node recorded for the same owner. Nodes
/// that join a lease later, when it is renewed, recorded a later time or none.
fn with_earliest_grant(mut seen: Vec<Seen>) -> Vec<Seen> {
    let mut earliest: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    for lock in seen.iter().flatten().flatten() {
        if let Some(at_us) = lock.granted_us {
            let known = earliest.entry(lock.value.clone()).or_insert(at_us);
            *known = at_us.min(*known);
        }
    }
    for lock in seen.iter_mut().flatten().flatten() {
        lock.granted_us = earliest.get(&lock.value).copied();
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `a`, `b`: the owner that a node shows; `-`: free; `?`: the node did not answer.
    fn state(nodes: &str) -> &'static str {
        let name = Name::new("x").unwrap();
        let seen = nodes.chars().map(|owner| match owner {
            '?' => Err(NodeError::Unanswered),
            '-' => Ok(Vec::new()),
            owner => Ok(vec![Sighting::new(name.clone(), owner.to_string(), None)]),
        });
        let inspection = Inspection {
            name: name.clone(),
            key: name.clone(),
            permit: None,
            nodes: seen.map(|seen| ("node".to_owned(), seen)).collect(),
        };
        match inspection.state() {
            LockState::Held(lock) if lock.value == b"a" => "held by a",
            LockState::Held(_) => "held by another",
            LockState::NotHeld => "not held",
            LockState::Unknown => "unknown",
        }
    }

    #[test]
    fn a_missing_node_makes_the_state_unknown_where_its_answer_decides() {
        for (nodes, expected) in [
            ("a", "held by a"),
            ("-", "not held"),
            ("?", "unknown"),
            ("aa-", "held by a"),
            ("aa?", "held by a"),
            ("a--", "not held"),
            ("ab-", "not held"),
            ("--?", "not held"),
            ("a-?", "unknown"),
            ("ab?", "unknown"),
            ("a??", "unknown"),
            ("-??", "unknown"),
            ("aa-??", "unknown"),
            ("a--??", "unknown"),
            ("---??", "not held"),
            ("aab-?", "unknown"),
            ("ab--?", "not held"),
            ("aaa??", "held by a"),
        ] {
            assert_eq!(state(nodes), expected, "{nodes}");
        }
    }
}
