//! Looking at locks without taking them: who holds what, on which nodes; and taking one
//! away from its holder.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::client::Client;
use crate::core::Core;
use crate::error::{Error, NodeReport, Story};
use crate::holder::owned_token;
use crate::name::Name;
use crate::node::{Claim, NodeError, Sighting, Verb};
use crate::options::MIN_TTL;
use crate::quorum::round::{Decision, Round};
use crate::quorum::{Canvass, NodeSet, Question};

/// How long a node may take to say what it has. Listing a large server takes time.
const PATIENCE: Duration = Duration::from_secs(5);

/// What each node says about one name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Inspection {
    /// The lock's name, as it stands on the nodes.
    pub name: Name,
    /// Each node with the lock that it has, if any, in the order of the client's nodes.
    pub nodes: Vec<(String, Result<Option<Sighting>, NodeError>)>,
}

impl Inspection {
    /// The lock, if one owner has it on a majority of all nodes: as the node with the least
    /// time left sees it. (An owner with fewer is about to give up, or has lost the rest.)
    #[must_use]
    pub fn lock(&self) -> Option<&Sighting> {
        let seen = || self.sightings();
        seen()
            .filter(|one| {
                seen().filter(|other| one.value == other.value).count() >= self.majority()
            })
            .min_by_key(|sighting| sighting.remaining.unwrap_or(Duration::MAX))
    }

    /// All locks that nodes have under this name.
    pub fn sightings(&self) -> impl Iterator<Item = &Sighting> {
        let answers = self.nodes.iter();
        answers.filter_map(|(_, seen)| seen.as_ref().ok()?.as_ref())
    }

    /// Whether so many nodes answered that the picture is complete.
    #[must_use]
    pub fn is_conclusive(&self) -> bool {
        self.nodes.iter().filter(|(_, seen)| seen.is_ok()).count() >= self.majority()
    }

    /// How many nodes make a majority.
    #[must_use]
    pub fn majority(&self) -> usize {
        Round::majority(self.nodes.len())
    }
}

type Surveys = Vec<Result<Vec<Sighting>, NodeError>>;

impl Client {
    /// Asks every node about one name. Nodes that fail are part of the answer.
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
    /// [`Error::Invalid`] for a name that cannot be.
    ///
    /// Cancel safety: changes nothing.
    pub async fn inspect(&self, name: impl AsRef<[u8]>) -> Result<Inspection, Error> {
        let name = self.full_name(name.as_ref())?;
        let surveys = self.core().survey(Some(&name)).await;
        Ok(self.core().inspection(&name, &surveys))
    }

    /// Asks every node for all its locks: those that leasehold has granted within the last
    /// day. (A lock of another library under a name that leasehold never used looks like any
    /// other key; [`inspect`](Self::inspect) shows it.) In the order of the names.
    ///
    /// On a Redis server this walks through all keys.
    ///
    /// # Errors
    /// [`Error::NoMajority`] if not enough nodes answered.
    ///
    /// Cancel safety: changes nothing.
    pub async fn inspect_all(&self) -> Result<Vec<Inspection>, Error> {
        let core = self.core();
        let surveys = core.survey(None).await;
        let answered = surveys.iter().filter(|survey| survey.is_ok()).count();
        if answered < Round::majority(surveys.len()) {
            let name = Name::new("(any)")?;
            return Err(core.unanswered(name, &surveys));
        }
        let seen = surveys.iter().flatten().flatten();
        let names: BTreeMap<_, ()> = seen.map(|sighting| (sighting.name.clone(), ())).collect();
        let names = names.into_keys();
        Ok(names.map(|name| core.inspection(&name, &surveys)).collect())
    }

    /// Takes a lock away from the owner with this [id](Sighting::owner_id), on every node
    /// where it is the owner. Whether it was on a majority of nodes, or may have been: nodes
    /// that do not answer count as if they had it.
    ///
    /// The holder is not asked. If it still runs, it hears of it at its next renewal, a third
    /// of its TTL later at most, and only its token, which is smaller than that of the next
    /// holder, protects what it works on until then.
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
    /// [`Error::NoMajority`] if not enough nodes answered, [`Error::Invalid`] for a name that
    /// cannot be.
    ///
    /// Cancel safety: if dropped, it may have been taken away on any of the nodes.
    pub async fn break_lock(&self, name: impl AsRef<[u8]>, owner_id: &str) -> Result<bool, Error> {
        let (name, core) = (self.full_name(name.as_ref())?, self.core());
        let surveys = core.survey(Some(&name)).await;
        let inspection = core.inspection(&name, &surveys);
        if !inspection.is_conclusive() {
            return Err(core.unanswered(name, &surveys));
        }
        let named = |seen: &Sighting| seen.owner_id() == owner_id;
        let Some(value) = inspection.sightings().find(|seen| named(seen)) else {
            return Ok(false);
        };
        let claim = Arc::new(Claim::new(
            name,
            value.value.clone(),
            owned_token(&value.value).unwrap_or(0),
            MIN_TTL,
        ));
        let is_ours = owned_token(&value.value).is_some();
        // A release like the holder's own: it raises the fence, so that the holder's next
        // EXTEND is refused. The value of another library has no token to raise it by.
        let release = Verb::Release { keep: None };
        let mut question = Question::new(release, &claim, core.options.timeout_of_node());
        if !is_ours {
            question.settled = NodeSet::all();
        }
        let canvass = Canvass::send(&core.nodes, question);
        // Where it was not to be had from a majority, every answer counts.
        if canvass.decided().await == Decision::Failed {
            canvass.complete().await;
        }
        let (refused, refuted) = (
            core.refused(&claim, &canvass),
            canvass.with_round(Round::is_refuted),
        );
        let without_it = |report: &&NodeReport| {
            matches!(
                report.story,
                Story::Voted(crate::node::Vote::Released { .. })
            )
        };
        let without_it = refused.nodes.iter().filter(without_it).count();
        match without_it >= inspection.majority() || refuted {
            true => Ok(!refuted),
            false => Err(Error::NoMajority(Box::new(refused))),
        }
    }
}

impl Core {
    async fn survey(&self, name: Option<&Name>) -> Surveys {
        let asked: Vec<_> = self
            .nodes
            .iter()
            .map(|node| tokio::spawn(node.survey(name)))
            .collect();
        let deadline = self.clock.now() + PATIENCE;
        let mut surveys = Vec::with_capacity(asked.len());
        for mut survey in asked {
            surveys.push(tokio::select! {
                biased;
                answer = &mut survey => answer.unwrap_or(Err(NodeError::Unanswered)),
                () = self.clock.sleep_until(deadline) => {
                    survey.abort();
                    Err(NodeError::TimedOut { after: PATIENCE })
                }
            });
        }
        surveys
    }

    fn inspection(&self, name: &Name, surveys: &Surveys) -> Inspection {
        let of_name = |survey: &Result<Vec<Sighting>, NodeError>| match survey {
            Err(error) => Err(error.clone()),
            Ok(seen) => Ok(seen.iter().find(|sighting| sighting.name == *name).cloned()),
        };
        let nodes = self.nodes.iter().zip(surveys);
        Inspection {
            name: name.clone(),
            nodes: nodes
                .map(|(node, survey)| (node.label().to_owned(), of_name(survey)))
                .collect(),
        }
    }

    fn unanswered(&self, name: Name, surveys: &Surveys) -> Error {
        let stories = surveys.iter().map(|survey| match survey {
            Ok(_) => Story::Connected,
            Err(error) => Story::Failed(error.clone()),
        });
        Error::NoMajority(Box::new(self.refusal(name, stories)))
    }
}
