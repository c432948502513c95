//! One round of votes, as a pure state machine: votes in, decisions out. It does no
//! I/O and reads no clock, so production, simulation and model checking share it.

use std::time::Duration;

use crate::clock::Moment;
use crate::error::Story;
use crate::node::{NodeError, Verb, Vote};
use crate::planted;

/// The votes on one request to all nodes.
#[derive(Debug)]
pub struct Round {
    verb: Verb,
    stories: Vec<Story>,
    agreed: usize,
    pending: usize,
    decision: Option<Decision>,
}

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// A majority of all nodes agreed.
    Carried,
    /// A majority can no longer agree.
    Failed,
}

/// What to do about a failed ACQUIRE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Ask again at once, with a token of at least this.
    Retoken {
        /// The least token that can win.
        at_least: u64,
    },
    /// The token was too far ahead: ask again with one from the nodes' own clocks.
    Reclock {
        /// A clock that a majority does not find too far ahead.
        now: u64,
        /// The least token that can win.
        at_least: u64,
    },
    /// Another holds it; it may be free after this long (`None`: nobody told).
    Contended {
        /// When the lock of the majority that is in the way runs out.
        remaining: Option<Duration>,
    },
    /// Too many nodes do not vote at all.
    Outage {
        /// Nor will they, until somebody changes something.
        permanent: bool,
    },
}

impl Round {
    /// A round of `nodes` nodes, none of which has voted.
    #[must_use]
    pub fn new(verb: Verb, nodes: usize) -> Self {
        Self {
            verb,
            stories: vec![Story::Pending; nodes],
            agreed: 0,
            pending: nodes,
            decision: None,
        }
    }

    /// A majority is always a majority **of all N**, also when some cannot be asked:
    /// two majorities of a subset need not meet.
    #[must_use]
    pub fn majority(nodes: usize) -> usize {
        nodes / 2 + 1
    }

    /// Counts one vote. Returns the decision if this vote made it.
    ///
    /// Distinct nodes are counted, once each: a second answer of the same node
    /// changes nothing. After the decision, later answers are only noted.
    pub fn count(&mut self, node: usize, answer: Result<Vote, NodeError>) -> Option<Decision> {
        let story = self.stories.get_mut(node)?;
        if *story != Story::Pending {
            return None;
        }
        let agrees = match &answer {
            Ok(Vote::Granted) => !matches!(self.verb, Verb::Release { .. }),
            Ok(Vote::YourTurn) => self.verb == Verb::Wait,
            Ok(Vote::Released { held }) => *held && matches!(self.verb, Verb::Release { .. }),
            _ => false,
        };
        *story = match answer {
            Ok(vote) => Story::Voted(vote),
            Err(error) => Story::Failed(error),
        };
        self.pending -= 1;
        self.agreed += usize::from(agrees);
        if self.decision.is_some() {
            return None;
        }
        let majority = Self::majority(self.stories.len());
        self.decision = if self.agreed >= majority {
            Some(Decision::Carried)
        } else if self.agreed + self.pending < majority {
            Some(Decision::Failed)
        } else {
            None
        };
        self.decision
    }

    /// The decision, once there is one.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        self.decision
    }

    /// Whether all nodes have answered.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.pending == 0
    }

    /// What each node said.
    #[must_use]
    pub fn stories(&self) -> &[Story] {
        &self.stories
    }

    /// Whether a majority can no longer say that the lease goes on: they told of a
    /// newer token, another owner, or a memory lost. (A lost reply says nothing.)
    #[must_use]
    pub fn is_refuted(&self) -> bool {
        let refuted = self
            .stories
            .iter()
            .filter(|story| {
                matches!(
                    story,
                    Story::Voted(
                        Vote::Held { .. } | Vote::Lost { .. } | Vote::Released { held: false }
                    )
                )
            })
            .count();
        self.stories.len() - refuted < Self::majority(self.stories.len())
    }

    /// What the nodes' clocks show, in µs since 1970: the middle one of those that told.
    #[must_use]
    pub fn clock(&self) -> Option<u64> {
        let told = self.stories.iter().filter_map(|story| match story {
            Story::Voted(
                Vote::Held { now, .. } | Vote::Stale { now, .. } | Vote::Ahead { now, .. },
            ) => Some(*now),
            _ => None,
        });
        let mut clocks: Vec<u64> = told.collect();
        let median = clocks.len().div_ceil(2);
        (median > 0).then(|| kth_smallest(&mut clocks, median))
    }

    /// What to do about this failed ACQUIRE or WAIT, whose token was `token` and which took
    /// `elapsed`.
    #[must_use]
    pub fn advice(&self, token: u64, elapsed: Duration) -> Advice {
        // Rule: go above a fence by what it may move while the next request travels. One that
        // is missing reads as `now − F` and goes on with the node's clock, so "one more" would
        // be too low again, for ever; but it stays below that clock.
        let lead = match planted::on(planted::Bug::ChasesFence) {
            false => u64::try_from(elapsed.as_micros() * 4 + 1_000).unwrap_or(u64::MAX),
            true => 0,
        };
        let overtaken = |fence: u64, now: u64| fence.max(fence.saturating_add(lead).min(now));
        let (mut fences, mut clocks, mut held) = (vec![], vec![], vec![]);
        let (mut granted, mut ahead, mut permanent) = (0, 0, 0);
        for story in &self.stories {
            match story {
                Story::Voted(Vote::Granted | Vote::YourTurn) => {
                    fences.push(token);
                    granted += 1;
                }
                Story::Voted(Vote::Stale { fence, now }) => {
                    fences.push(overtaken(*fence, *now));
                    clocks.push(*now);
                }
                Story::Voted(Vote::Ahead { fence, now }) => {
                    fences.push(*fence);
                    clocks.push(*now);
                    ahead += 1;
                }
                Story::Voted(Vote::Held { remaining, .. }) => held.push(*remaining),
                Story::Failed(error) if error.is_permanent() => permanent += 1,
                _ => {}
            }
        }
        let (nodes, majority) = (self.stories.len(), Self::majority(self.stories.len()));
        // Nodes that had not answered when the round failed may yet vote.
        let able = fences.len() + held.len() + self.pending;
        if able < majority || nodes - permanent < majority {
            let permanent = nodes - permanent < majority;
            return Advice::Outage { permanent };
        }
        if nodes - held.len() < majority || fences.is_empty() {
            return Advice::Contended {
                remaining: time_until_majority(held, nodes, majority),
            };
        }
        // Rule: above the Q-th smallest fence, not the largest: one fast node would
        // push the token past the others' cap.
        let fence = kth_smallest(&mut fences, majority);
        if nodes - ahead < majority {
            let median = clocks.len().div_ceil(2);
            return Advice::Reclock {
                now: kth_smallest(&mut clocks, median),
                at_least: fence.saturating_add(1),
            };
        }
        if granted == fences.len() {
            // Every node that voted granted, the rest are held or silent: a split
            // vote. Another attempt at once would only split it again.
            return Advice::Contended {
                remaining: time_until_majority(held, nodes, majority),
            };
        }
        Advice::Retoken {
            at_least: token.max(fence).saturating_add(1),
        }
    }
}

/// The `k`-th smallest (counted from 1), or the largest if there are fewer.
fn kth_smallest(values: &mut [u64], k: usize) -> u64 {
    values.sort_unstable();
    let index = k.min(values.len()).saturating_sub(1);
    values.get(index).copied().unwrap_or(0)
}

/// When so many of the locks in the way have run out that a majority is free.
fn time_until_majority(
    mut held: Vec<Option<Duration>>,
    nodes: usize,
    majority: usize,
) -> Option<Duration> {
    // A lock without a TTL never runs out.
    held.sort_unstable_by_key(|remaining| remaining.unwrap_or(Duration::MAX));
    let free = nodes - held.len();
    let missing = majority.saturating_sub(free).max(1);
    held.get(missing - 1).copied().flatten()
}

/// Rule: `validity = ttl − elapsed − drift`, counted from **before the first byte is
/// sent**, never from the reply. `None` if nothing of it is left.
#[must_use]
pub fn deadline(sent_at: Moment, ttl: Duration, drift: Duration, now: Moment) -> Option<Moment> {
    let sent_at = match planted::on(planted::Bug::ValidityFromReply) {
        false => sent_at,
        true => now,
    };
    let deadline = sent_at + ttl.saturating_sub(drift);
    (now < deadline).then_some(deadline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holder::Holder;

    const DEAD: Result<Vote, NodeError> = Err(NodeError::Unanswered);

    fn held(ms: u64) -> Result<Vote, NodeError> {
        Ok(Vote::Held {
            holder: Holder::default(),
            remaining: Some(Duration::from_millis(ms)),
            fence: 5,
            now: 1000,
            place: None,
        })
    }

    fn stale(fence: u64) -> Result<Vote, NodeError> {
        Ok(Vote::Stale { fence, now: fence })
    }

    fn ahead(fence: u64, now: u64) -> Result<Vote, NodeError> {
        Ok(Vote::Ahead { fence, now })
    }

    fn round(votes: Vec<Result<Vote, NodeError>>, nodes: usize) -> Round {
        let mut round = Round::new(Verb::Acquire, nodes);
        for (node, vote) in votes.into_iter().enumerate() {
            round.count(node, vote);
        }
        round
    }

    #[test]
    fn a_majority_is_of_all_nodes() {
        assert_eq!(
            [1, 2, 3, 4, 5, 6, 7].map(Round::majority),
            [1, 2, 2, 3, 3, 4, 4]
        );
        // Two grants of the three nodes that answer are not a majority of five.
        let mut round = round(vec![Ok(Vote::Granted), Ok(Vote::Granted), DEAD, DEAD], 5);
        assert_eq!(round.decision(), None);
        assert_eq!(round.count(4, DEAD), Some(Decision::Failed));
    }

    #[test]
    fn the_decision_falls_at_the_majority_and_stands() {
        let mut round = Round::new(Verb::Acquire, 5);
        assert_eq!(round.count(0, Ok(Vote::Granted)), None);
        assert_eq!(round.count(4, Ok(Vote::Granted)), None);
        assert_eq!(round.count(2, Ok(Vote::Granted)), Some(Decision::Carried));
        assert_eq!(round.count(1, held(1)), None);
        assert_eq!(round.decision(), Some(Decision::Carried));
    }

    #[test]
    fn a_node_votes_once() {
        let mut round = Round::new(Verb::Acquire, 3);
        for _ in 0..3 {
            assert_eq!(round.count(0, Ok(Vote::Granted)), None);
        }
        assert_eq!(round.count(7, Ok(Vote::Granted)), None, "no such node");
        assert_eq!(round.decision(), None);
    }

    #[test]
    fn a_grant_is_no_release_and_a_release_no_grant() {
        let mut acquire = Round::new(Verb::Acquire, 1);
        let released = Ok(Vote::Released { held: true });
        assert_eq!(acquire.count(0, released), Some(Decision::Failed));
        let mut release = Round::new(Verb::Release { keep: None }, 1);
        assert_eq!(release.count(0, Ok(Vote::Granted)), Some(Decision::Failed));
    }

    #[test]
    fn stale_goes_above_the_majoritys_fence_not_above_the_largest() {
        let round = round(vec![stale(20), stale(900), stale(30)], 3);
        assert_eq!(
            round.advice(10, Duration::ZERO),
            Advice::Retoken { at_least: 31 }
        );
        // Ties lose.
        let round = self::round(vec![stale(10)], 1);
        assert_eq!(
            round.advice(10, Duration::ZERO),
            Advice::Retoken { at_least: 11 }
        );
    }

    #[test]
    fn stale_overtakes_a_fence_that_goes_on_with_the_clock() {
        let missing = |now| {
            Ok(Vote::Stale {
                fence: now - 5_000_000,
                now,
            })
        };
        let round = round(vec![missing(9_000_000), missing(9_000_100), DEAD], 3);
        let advice = round.advice(10, Duration::from_millis(3));
        // Four times what the request took, and a millisecond.
        let at_least = 4_000_100 + 13_000 + 1;
        assert_eq!(advice, Advice::Retoken { at_least });
        // But not beyond the node's clock.
        let at_least = 9_000_100 + 1;
        let advice = round.advice(10, Duration::from_secs(60));
        assert_eq!(advice, Advice::Retoken { at_least });
    }

    #[test]
    fn ahead_of_a_majority_takes_the_nodes_clocks() {
        let round = round(vec![ahead(5, 100), ahead(7, 90), ahead(6, 300)], 3);
        let advice = Advice::Reclock {
            now: 100,
            at_least: 7,
        };
        assert_eq!(round.advice(1_000_000, Duration::ZERO), advice);
        // One slow clock does not make the others follow it.
        let round = self::round(vec![ahead(5, 1), stale(70), Ok(Vote::Granted)], 3);
        assert!(matches!(
            round.advice(60, Duration::ZERO),
            Advice::Retoken { .. }
        ));
    }

    #[test]
    fn contention_tells_when_a_majority_will_be_free() {
        let round = round(vec![held(300), held(100), held(200)], 3);
        let remaining = Some(Duration::from_millis(200));
        assert_eq!(
            round.advice(10, Duration::ZERO),
            Advice::Contended { remaining }
        );
    }

    #[test]
    fn a_split_vote_is_contention() {
        let votes = vec![
            Ok(Vote::Granted),
            Ok(Vote::Granted),
            held(50),
            held(60),
            DEAD,
        ];
        let remaining = Some(Duration::from_millis(50));
        assert_eq!(
            round(votes, 5).advice(10, Duration::ZERO),
            Advice::Contended { remaining }
        );
    }

    #[test]
    fn an_outage_is_not_contention() {
        let round = round(vec![DEAD, DEAD, held(50)], 3);
        assert_eq!(
            round.advice(10, Duration::ZERO),
            Advice::Outage { permanent: false }
        );
        let wrong = || Err(NodeError::WrongType);
        let round = self::round(vec![wrong(), wrong(), Ok(Vote::Granted)], 3);
        assert_eq!(
            round.advice(10, Duration::ZERO),
            Advice::Outage { permanent: true }
        );
    }

    #[test]
    fn only_a_majority_refutes_a_lease() {
        let lost = || Ok(Vote::Lost { fence: 9 });
        assert!(!round(vec![lost(), DEAD, DEAD], 3).is_refuted());
        assert!(round(vec![lost(), held(1)], 3).is_refuted());
    }

    #[test]
    fn validity_counts_from_before_the_send() {
        let sent = Moment::from_nanos(0) + Duration::from_secs(100);
        let (ttl, drift) = (Duration::from_secs(10), Duration::from_millis(102));
        let expected = sent + Duration::from_millis(9_898);
        // However late the replies come, the deadline is the same, until it is none.
        for elapsed in [0, 5_000, 9_897] {
            let now = sent + Duration::from_millis(elapsed);
            assert_eq!(deadline(sent, ttl, drift, now), Some(expected));
        }
        assert_eq!(deadline(sent, ttl, drift, expected), None);
        // An unsigned underflow would make a validity of 2^64 − 1.
        assert_eq!(deadline(sent, drift, ttl, sent), None);
    }
}
