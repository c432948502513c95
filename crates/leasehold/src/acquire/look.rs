//! A look at a name: who has it, without acquiring it.
//!
//! A look is an ACQUIRE with token 1, over the connections that the client has anyway. No node grants
//! it: a missing fence reads as `now − F`, so every fence is above 1. HELD names the holder, and STALE
//! means that the name is free. Nothing has to be released after it, whatever becomes of the request.

use std::sync::Arc;
use std::time::Duration;

use crate::base::error::{Error, NodeOutcome, NodeReport, Refusal};
use crate::base::holder::{Holder, StoredResult};
use crate::base::mode::Mode;
use crate::base::name::Name;
use crate::client::core::Core;
use crate::client::options::Options;
use crate::node::{Claim, Verb, Vote};
use crate::planted;
use crate::quorum::{Broadcast, Question};

/// The token of a look.
const NEVER_GRANTED: u64 = 1;

/// A holder that a majority of all nodes names.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) holder: Holder,
    /// The time until it expires on the first of these nodes; `None` if it has no TTL there.
    pub(crate) remaining: Option<Duration>,
}

/// Asks all nodes for the holder of a name. `None` if no holder has it on a majority of the nodes.
///
/// # Errors
/// [`Error::NoMajority`] if the nodes that answered leave it open.
///
/// Cancel safety: leaves nothing behind.
pub(crate) async fn look(
    core: &Core,
    name: &Name,
    options: &Options,
) -> Result<Option<Found>, Error> {
    core.check_runtime()?;
    let refusal = ask(core, name, options).await;
    match refusal.named() {
        Named::By(found) => Ok(Some(found)),
        Named::Nobody => Ok(None),
        Named::Open => Err(core.explain(Error::NoMajority(Box::new(refusal)))),
    }
}

/// What each node answers. If the first answers leave it open who has the name, all answers.
pub(crate) async fn ask(core: &Core, name: &Name, options: &Options) -> Refusal {
    // What this client has released must not be seen.
    core.janitor.send_queued(name);
    let mode = Mode::Exclusive;
    let owner = core.secrets.new_owner(mode, NEVER_GRANTED, "");
    let claim = Claim::in_mode(mode, name.clone(), owner, NEVER_GRANTED, options.ttl);
    let claim = Arc::new(claim.on_one_node(core.nodes.len() == 1));
    let question = Question::new(Verb::Acquire, &claim, options.timeout_of_node());
    let broadcast = Broadcast::send(&core.nodes, question);
    broadcast.decided().await;
    let refusal = core.refused(&claim, &broadcast.round());
    if !matches!(refusal.named(), Named::Open) {
        return refusal;
    }
    broadcast.complete().await;
    core.refused(&claim, &broadcast.round())
}

/// Who has a name.
#[derive(Debug)]
pub(crate) enum Named {
    /// A majority of all nodes names this holder.
    By(Found),
    /// No holder can have a majority, whatever the missing nodes say.
    Nobody,
    /// The missing nodes decide.
    Open,
}

impl Refusal {
    /// Whom a majority of all nodes names. Nodes name the same holder if all that they say about it
    /// is the same, so also whether it holds the lock or has left a result.
    pub(crate) fn named(&self) -> Named {
        let votes = |one: &Holder| self.holders().filter(|(holder, _)| *holder == one).count();
        let most = self.holders().max_by_key(|(holder, _)| votes(holder));
        let named = most.map_or(0, |(holder, _)| votes(holder));
        let voted = self.nodes.iter().filter(|report| has_voted(report));
        let missing = self.nodes.len() - voted.count();
        match most {
            Some((holder, _)) if named >= self.majority => {
                let same = self.holders().filter(|(other, _)| *other == holder);
                Named::By(Found {
                    holder: holder.clone(),
                    remaining: same.filter_map(|(_, remaining)| remaining).min(),
                })
            }
            _ if named + missing < self.majority => Named::Nobody,
            _ => Named::Open,
        }
    }

    /// The holder that left a result which a majority of all nodes keeps.
    ///
    /// Rule: a result counts when a majority names the same token with it. Each of these nodes
    /// refuses all claims until the period is over, so no second run begins within it. A result that
    /// a minority keeps may be followed by another run at any time.
    pub(crate) fn result(&self) -> Option<(Holder, StoredResult)> {
        if planted::on(planted::Bug::ResultOfAMinority) {
            let (holder, _) = self.holders().find(|(holder, _)| holder.result.is_some())?;
            return Some((holder.clone(), holder.result.clone()?));
        }
        match self.named() {
            Named::By(Found { holder, .. }) => holder.result.clone().map(|found| (holder, found)),
            _ => None,
        }
    }

    /// Whether some node keeps a result, and nodes that did not answer decide whether it counts.
    pub(crate) fn may_have_result(&self) -> bool {
        let some = self.holders().any(|(holder, _)| holder.result.is_some());
        some && matches!(self.named(), Named::Open)
    }

    /// The holders that nodes name, and how long each has the lock.
    fn holders(&self) -> impl Iterator<Item = (&Holder, Option<Duration>)> {
        self.nodes
            .iter()
            .filter_map(|report| match &report.outcome {
                NodeOutcome::Voted(vote) if vote.names_first_in_line() => None,
                NodeOutcome::Voted(Vote::Held {
                    holder, remaining, ..
                }) => Some((&**holder, *remaining)),
                _ => None,
            })
    }
}

/// Whether a node said who has the name. One that does not vote yet may have lost locks.
fn has_voted(report: &NodeReport) -> bool {
    matches!(
        report.outcome,
        NodeOutcome::Voted(Vote::Held { .. } | Vote::Stale { .. })
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::holder::kept_result;
    use crate::node::NodeError;
    use crate::{Client, MemoryNode};
    use std::time::UNIX_EPOCH;

    /// `a`, `b`: held by this claim; `A`, `B`: kept with the result of this claim; `-`: free; `1`: the
    /// first in line may acquire it; `?`: no answer.
    fn refusal(nodes: &str) -> Refusal {
        let report = |node: char| NodeReport {
            node: "node".to_owned(),
            outcome: match node {
                '?' => NodeOutcome::Failed(NodeError::Unanswered),
                '.' => NodeOutcome::Pending,
                '-' => NodeOutcome::Voted(Vote::Stale { fence: 5, now: 9 }),
                '1' => held(&owner(6)),
                'a' | 'b' => held(&owner(u64::from(node == 'b') + 4)),
                kept => {
                    let token = u64::from(kept == 'B') + 4;
                    held(&kept_result(&owner(token), token, UNIX_EPOCH, b"done"))
                }
            },
        };
        Refusal {
            collecting: false,
            name: None,
            attempts: None,
            permits: None,
            majority: nodes.len() / 2 + 1,
            nodes: nodes.chars().map(report).collect(),
        }
    }

    fn owner(token: u64) -> Vec<u8> {
        format!("{token:040}:{token}:1@host:").into_bytes()
    }

    fn held(value: &[u8]) -> NodeOutcome {
        NodeOutcome::Voted(Vote::Held {
            holder: Box::new(Holder::parse(value)),
            remaining: Some(Duration::from_secs(1)),
            fence: 5,
            now: 9,
            place: None,
        })
    }

    #[test]
    fn a_majority_of_all_nodes_names_the_holder() {
        for (nodes, expected) in [
            ("a", "token 4"),
            ("-", "nobody"),
            ("?", "open"),
            ("aa-", "token 4"),
            ("aa?", "token 4"),
            ("a--", "nobody"),
            ("ab-", "nobody"),
            ("a-?", "open"),
            ("a-.", "open"),
            ("--?", "nobody"),
            // The same token, but one has released the lock already.
            ("aA-", "nobody"),
            ("aA?", "open"),
            ("AA?", "token 4"),
            // Nobody holds it yet.
            ("1", "nobody"),
            ("11-", "nobody"),
            ("aa1", "token 4"),
            ("bb??b", "token 5"),
        ] {
            let named = match refusal(nodes).named() {
                Named::By(found) => format!("token {}", found.holder.token.unwrap_or(0)),
                Named::Nobody => "nobody".to_owned(),
                Named::Open => "open".to_owned(),
            };
            assert_eq!(named, expected, "{nodes}");
        }
    }

    #[test]
    fn a_result_counts_on_a_majority() {
        for (nodes, counts, may) in [
            ("A", true, false),
            ("a", false, false),
            ("AA-", true, false),
            ("AAa", true, false),
            ("A--", false, false),
            ("AB-", false, false),
            ("A-?", false, true),
            ("Aa.", false, true),
            ("aa.", false, false),
            ("AAB??", false, true),
        ] {
            let refusal = refusal(nodes);
            assert_eq!(refusal.result().is_some(), counts, "{nodes}");
            assert_eq!(refusal.may_have_result(), may, "{nodes}");
        }
    }

    #[tokio::test]
    async fn a_look_names_the_holder_and_leaves_nothing_behind() {
        let node = MemoryNode::new("memory");
        let builder = Client::builder().custom_node(node.clone());
        let client = builder.build().unwrap();
        let (core, name) = (client.core(), Name::new("a").unwrap());
        let seen = async || look(core, &name, &core.options).await.unwrap();
        assert!(seen().await.is_none());
        assert_eq!(node.get(&name), None, "a look took the lock");
        let mutex = client.mutex("a").with_options(|o| o.label("x"));
        let lease = mutex.lock().await.unwrap();
        let found = seen().await.unwrap();
        assert_eq!(found.holder.token, Some(lease.token()));
        assert!(found.remaining.unwrap() > Duration::from_secs(5));
        // The client's own release comes before its look.
        drop(lease);
        assert!(seen().await.is_none());
        assert!(mutex.try_lock().await.unwrap().is_some());
    }
}
