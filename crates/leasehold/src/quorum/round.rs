//! One round of votes, as a pure state machine: votes in, decisions out. It does no
//! I/O and reads no clock, so production, simulation and model checking share it.

use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::NodeOutcome;
use crate::node::rules::micros;
use crate::node::{NodeError, Verb, Vote, majority};
use crate::planted;

/// The votes on one request to all nodes.
#[derive(Clone, Debug)]
pub struct Round {
    verb: Verb,
    outcomes: Vec<NodeOutcome>,
    agreed: usize,
    refuted: usize,
    pending: usize,
    decision: Option<Decision>,
}

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// A majority of all nodes agreed.
    Carried,
    /// EXTEND and RELEASE: so many nodes answered that the lease has ended that the others are not
    /// a majority.
    Refuted,
    /// Neither can happen any more. A node that failed counts for neither side.
    Failed,
}

/// What to do about a failed ACQUIRE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Send ACQUIRE again at once, with a token of at least this.
    Retoken {
        /// The least token that can win.
        at_least: u64,
    },
    /// The token was too far ahead: send ACQUIRE again with a token from the nodes' clocks.
    Reclock {
        /// A time that is not too far ahead for a majority.
        now: u64,
        /// The least token that can win.
        at_least: u64,
    },
    /// Another client holds the lock.
    Contended {
        /// The time until a majority of nodes is free, if the nodes reported it.
        remaining: Option<Duration>,
    },
    /// Too many nodes do not vote.
    Outage {
        /// They will not vote until the configuration has changed.
        permanent: bool,
    },
}

/// How far above the fence of a node that answered STALE the next token goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Haste {
    /// As little as can win: the client keeps its place in line, or requests a free lock.
    Least,
    /// Ahead of the node's clock and fence. The client has been overtaken by others this many
    /// times in a row (at least once): while its request travelled, the node granted larger
    /// tokens.
    Lead {
        /// How many times.
        times: u32,
        /// S: a token may be ahead of a node's clock by this much.
        skew: Duration,
    },
}

impl Haste {
    /// The highest token that a node with this fence and this clock will have granted when the
    /// next request arrives, which takes about as long as the last one.
    fn overtake(self, fence: u64, now: u64, elapsed: Duration) -> u64 {
        if planted::on(planted::Bug::ChasesFence) {
            return fence;
        }
        match self {
            // A fence that is missing reads as `now − F` and moves with the node's clock, so "one
            // more" would be too low again, every time. But it stays below that clock.
            Self::Lead { .. } if planted::on(planted::Bug::NoLead) => {
                Self::Least.overtake(fence, now, elapsed)
            }
            Self::Least => {
                let moves = micros(elapsed * 4 + Duration::from_millis(1));
                fence.max(fence.saturating_add(moves).min(now))
            }
            // Clients that are nearer have tokens close to the node's clock, or close to the fence
            // in the first seconds of a node, while its floor is ahead of its clock. In that phase
            // tokens advance at an eighth of the clock's speed (`Proposer::propose`), and so must
            // the lead, because the clocks have to catch up with it. The lead doubles each time
            // that it was too small. Half of the room below the cap is left for clocks that differ.
            Self::Lead { times, skew } => {
                let lead = elapsed + Duration::from_micros(500);
                let lead = micros(lead.saturating_mul(1 << (times - 1).min(16)));
                let lead = if fence > now { lead / 8 } else { lead };
                let (from, cap) = (fence.max(now), now.saturating_add(micros(skew)));
                from.saturating_add(lead.min(cap.saturating_sub(from) / 2))
            }
        }
    }
}

impl Round {
    /// What was requested.
    pub(crate) fn verb(&self) -> Verb {
        self.verb
    }

    /// Creates a round of `nodes` nodes, none of which has voted.
    #[must_use]
    pub fn new(verb: Verb, nodes: usize) -> Self {
        Self {
            verb,
            outcomes: vec![NodeOutcome::Pending; nodes],
            agreed: 0,
            refuted: 0,
            pending: nodes,
            decision: None,
        }
    }

    /// Counts one vote. Returns the decision if this vote made it.
    ///
    /// Each node counts once: a second answer of the same node changes nothing. Answers after the
    /// decision are recorded and do not change it.
    pub fn count(&mut self, node: usize, answer: Result<Vote, NodeError>) -> Option<Decision> {
        let outcome = self.outcomes.get_mut(node)?;
        if *outcome != NodeOutcome::Pending {
            return None;
        }
        let releases = matches!(self.verb, Verb::Release { .. });
        let agrees = match &answer {
            Ok(Vote::Granted) => !releases,
            Ok(Vote::YourTurn | Vote::Free { .. }) => self.verb == Verb::Wait,
            Ok(Vote::Released { held }) => *held && releases,
            _ => false,
        };
        let refutes = match &answer {
            Ok(Vote::Held { .. } | Vote::Lost { .. }) => self.verb == Verb::Extend || releases,
            Ok(Vote::Released { held }) => !*held && releases,
            _ => false,
        };
        *outcome = match answer {
            Ok(vote) => NodeOutcome::Voted(vote),
            Err(error) => NodeOutcome::Failed(error),
        };
        self.pending -= 1;
        self.agreed += usize::from(agrees);
        self.refuted += usize::from(refutes);
        if self.decision.is_some() {
            return None;
        }
        self.decision = self.decide();
        self.decision
    }

    /// Rule: a round stays open as long as an outstanding answer can decide it. If an EXTEND ended
    /// when a majority can no longer agree, a lost lease would stay undecided whenever one node
    /// fails before the others answer.
    fn decide(&self) -> Option<Decision> {
        let (nodes, majority) = (self.outcomes.len(), majority(self.outcomes.len()));
        let can_carry = self.agreed + self.pending >= majority;
        let decides_loss = !matches!(self.verb, Verb::Acquire | Verb::Wait);
        let can_refute = decides_loss
            && !planted::on(planted::Bug::DecidesTooEarly)
            && nodes - self.refuted - self.pending < majority;
        if self.agreed >= majority {
            Some(Decision::Carried)
        } else if decides_loss && nodes - self.refuted < majority {
            Some(Decision::Refuted)
        } else if can_carry || can_refute {
            None
        } else {
            Some(Decision::Failed)
        }
    }

    /// Returns the decision, once there is one.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        self.decision
    }

    /// Whether all nodes have answered.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.pending == 0
    }

    /// Returns what each node answered.
    #[must_use]
    pub fn outcomes(&self) -> &[NodeOutcome] {
        &self.outcomes
    }

    /// Returns the median of the nodes' clocks that were reported, in µs since 1970.
    #[must_use]
    pub fn clock(&self) -> Option<u64> {
        let reported = self.outcomes.iter().filter_map(|outcome| match outcome {
            NodeOutcome::Voted(
                Vote::Held { now, .. } | Vote::Stale { now, .. } | Vote::Ahead { now, .. },
            ) => Some(*now),
            _ => None,
        });
        let mut clocks: Vec<u64> = reported.collect();
        let median = clocks.len().div_ceil(2);
        (median > 0).then(|| kth_smallest(&mut clocks, median))
    }

    /// Returns what to do about this failed ACQUIRE or WAIT, which had the token `token`, took
    /// `elapsed`, and chooses its next token by `haste`.
    #[must_use]
    pub fn advice(&self, token: u64, elapsed: Duration, haste: Haste) -> Advice {
        let overtaken = |fence, now| haste.overtake(fence, now, elapsed);
        let (mut fences, mut clocks, mut held) = (vec![], vec![], vec![]);
        let (mut granted, mut ahead, mut permanent) = (0, 0, 0);
        for outcome in &self.outcomes {
            match outcome {
                NodeOutcome::Voted(Vote::Granted | Vote::YourTurn | Vote::Free { .. }) => {
                    fences.push(token);
                    granted += 1;
                }
                NodeOutcome::Voted(Vote::Stale { fence, now }) => {
                    fences.push(overtaken(*fence, *now));
                    clocks.push(*now);
                }
                NodeOutcome::Voted(Vote::Ahead { fence, now }) => {
                    fences.push(*fence);
                    clocks.push(*now);
                    ahead += 1;
                }
                NodeOutcome::Voted(Vote::Held { remaining, .. }) => held.push(*remaining),
                NodeOutcome::Failed(error) if error.is_permanent() => permanent += 1,
                NodeOutcome::Voted(Vote::OtherPermits { .. }) => permanent += 1,
                _ => {}
            }
        }
        let (nodes, majority) = (self.outcomes.len(), majority(self.outcomes.len()));
        // Nodes that had not answered when the round failed may still vote.
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
        // Rule: the token goes above the Q-th smallest fence, not above the largest. Otherwise a
        // node with a fast clock would push the token past the cap of the others.
        let fence = kth_smallest(&mut fences, majority);
        // Nodes that do not vote cannot replace those for which the token is too far ahead.
        if able - ahead < majority {
            let median = clocks.len().div_ceil(2);
            return Advice::Reclock {
                now: kth_smallest(&mut clocks, median),
                at_least: fence.saturating_add(1),
            };
        }
        if granted == fences.len() {
            // All nodes that are free granted the claim, and the others are held or silent: a
            // split vote. Another attempt at once would split it again.
            return Advice::Contended {
                remaining: time_until_majority(held, nodes, majority),
            };
        }
        Advice::Retoken {
            at_least: token.max(fence).saturating_add(1),
        }
    }
}

/// Returns the `k`-th smallest number (counted from 1), or the largest if there are fewer.
fn kth_smallest(values: &mut [u64], k: usize) -> u64 {
    values.sort_unstable();
    let index = k.min(values.len()).saturating_sub(1);
    values.get(index).copied().unwrap_or(0)
}

/// Returns the time until so many locks have expired that a majority is free.
fn time_until_majority(
    mut held: Vec<Option<Duration>>,
    nodes: usize,
    majority: usize,
) -> Option<Duration> {
    // A lock without a TTL never expires.
    held.sort_unstable_by_key(|remaining| remaining.unwrap_or(Duration::MAX));
    let free = nodes - held.len();
    let missing = majority.saturating_sub(free).max(1);
    held.get(missing - 1).copied().flatten()
}

/// Rule: `validity = ttl − elapsed − drift`, counted from **before the first byte is
/// sent**, never from the reply. `None` if no validity is left.
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

    const DEAD: Result<Vote, NodeError> = Err(NodeError::Unanswered);

    fn held(ms: u64) -> Result<Vote, NodeError> {
        Ok(Vote::Held {
            holder: Box::default(),
            remaining: Some(Duration::from_millis(ms)),
            fence: 5,
            now: 1000,
            place: None,
        })
    }

    fn stale(fence: u64) -> Result<Vote, NodeError> {
        Ok(Vote::Stale { fence, now: fence })
    }

    fn stale_at(fence: u64, now: u64) -> Result<Vote, NodeError> {
        Ok(Vote::Stale { fence, now })
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

    /// Without this, a client whose clock is far ahead would propose larger and larger tokens as
    /// long as one of three nodes does not vote.
    #[test]
    fn a_token_too_far_ahead_for_the_nodes_that_vote_goes_by_their_clocks() {
        let reclock = Advice::Reclock {
            now: 1000,
            at_least: 6,
        };
        // The third has not answered yet.
        let silent = round(vec![DEAD, ahead(5, 1000)], 3);
        assert_eq!(silent.decision(), Some(Decision::Failed));
        assert_eq!(
            silent.advice(9_000_000, Duration::ZERO, Haste::Least),
            reclock
        );
        let complete = round(vec![DEAD, ahead(5, 1000), ahead(4, 900)], 3);
        assert!(matches!(
            complete.advice(9_000_000, Duration::ZERO, Haste::Least),
            Advice::Reclock { .. }
        ));
        // Two others may still grant it.
        let one = round(vec![ahead(5, 1000), stale(9_000_001), stale(9_000_001)], 3);
        assert!(matches!(
            one.advice(9_000_000, Duration::ZERO, Haste::Least),
            Advice::Retoken { .. }
        ));
    }

    #[test]
    fn a_majority_is_of_all_nodes() {
        assert_eq!([1, 2, 3, 4, 5, 6, 7].map(majority), [1, 2, 2, 3, 3, 4, 4]);
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
            round.advice(10, Duration::ZERO, Haste::Least),
            Advice::Retoken { at_least: 31 }
        );
        // Ties lose.
        let round = self::round(vec![stale(10)], 1);
        assert_eq!(
            round.advice(10, Duration::ZERO, Haste::Least),
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
        let advice = round.advice(10, Duration::from_millis(3), Haste::Least);
        // Four times what the request took, and a millisecond.
        let at_least = 4_000_100 + 13_000 + 1;
        assert_eq!(advice, Advice::Retoken { at_least });
        // But not beyond the node's clock.
        let at_least = 9_000_100 + 1;
        let advice = round.advice(10, Duration::from_secs(60), Haste::Least);
        assert_eq!(advice, Advice::Retoken { at_least });
    }

    #[test]
    fn ahead_of_a_majority_takes_the_nodes_clocks() {
        let round = round(vec![ahead(5, 100), ahead(7, 90), ahead(6, 300)], 3);
        let advice = Advice::Reclock {
            now: 100,
            at_least: 7,
        };
        assert_eq!(
            round.advice(1_000_000, Duration::ZERO, Haste::Least),
            advice
        );
        // One slow clock does not make the others follow it.
        let round = self::round(vec![ahead(5, 1), stale(70), Ok(Vote::Granted)], 3);
        assert!(matches!(
            round.advice(60, Duration::ZERO, Haste::Least),
            Advice::Retoken { .. }
        ));
    }

    #[test]
    fn contention_reports_when_a_majority_will_be_free() {
        let round = round(vec![held(300), held(100), held(200)], 3);
        let remaining = Some(Duration::from_millis(200));
        assert_eq!(
            round.advice(10, Duration::ZERO, Haste::Least),
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
            round(votes, 5).advice(10, Duration::ZERO, Haste::Least),
            Advice::Contended { remaining }
        );
    }

    #[test]
    fn an_outage_is_not_contention() {
        let round = round(vec![DEAD, DEAD, held(50)], 3);
        assert_eq!(
            round.advice(10, Duration::ZERO, Haste::Least),
            Advice::Outage { permanent: false }
        );
        let wrong = || Err(NodeError::WrongType);
        let round = self::round(vec![wrong(), wrong(), Ok(Vote::Granted)], 3);
        assert_eq!(
            round.advice(10, Duration::ZERO, Haste::Least),
            Advice::Outage { permanent: true }
        );
    }

    #[test]
    fn a_client_that_is_overtaken_doubles_its_lead_over_the_clock() {
        let skew = Duration::from_secs(10);
        let lead = |times| Haste::Lead { times, skew };
        let votes = || vec![stale_at(9_000_000, 9_000_100)];
        let table = [
            (Haste::Least, 9_000_000 + 100 + 1),
            (lead(1), 9_000_100 + 80_500 + 1),
            (lead(2), 9_000_100 + 161_000 + 1),
            (lead(3), 9_000_100 + 322_000 + 1),
            // Below the cap, however often it happens.
            (lead(8), 9_000_100 + 5_000_000 + 1),
            (lead(u32::MAX), 9_000_100 + 5_000_000 + 1),
        ];
        for (haste, at_least) in table {
            let advice = round(votes(), 1).advice(10, Duration::from_millis(80), haste);
            assert_eq!(advice, Advice::Retoken { at_least }, "{haste:?}");
        }
        // In the first seconds of a node its floor is ahead of its clock (found by the
        // simulator): the lead is one over the fence.
        let ahead = round(vec![stale_at(12_000_000, 9_000_000)], 1);
        let at_least = 12_000_000 + 80_500 / 8 + 1;
        let advice = ahead.advice(10, Duration::from_millis(80), lead(1));
        assert_eq!(advice, Advice::Retoken { at_least });
        // And little is left below the cap.
        let ahead = round(vec![stale_at(18_990_000, 9_000_000)], 1);
        let at_least = 18_995_001;
        let advice = ahead.advice(10, Duration::from_millis(80), lead(4));
        assert_eq!(advice, Advice::Retoken { at_least });
        // Only a majority has to be won: one of the two nodes that were overtaken.
        let votes = vec![
            Ok(Vote::YourTurn),
            stale_at(7_000_000, 8_000_000),
            stale_at(9_000_000, 9_000_000),
        ];
        let advice = round(votes, 3).advice(10, Duration::ZERO, lead(1));
        let at_least = 8_000_501;
        assert_eq!(advice, Advice::Retoken { at_least });
    }

    /// Every order of answers, and the answer that must decide.
    #[test]
    fn a_lease_is_decided_by_the_answers_that_can() {
        use Decision::{Carried, Failed, Refuted};
        let extended = || Ok(Vote::Granted);
        let lost = || Ok(Vote::Lost { fence: 9 });
        let table = [
            (vec![lost(), held(1)], 3, Some(Refuted)),
            (vec![lost(), DEAD], 3, None),
            (vec![DEAD, lost()], 3, None),
            (vec![lost(), DEAD, lost()], 3, Some(Refuted)),
            (vec![lost(), DEAD, extended()], 3, Some(Failed)),
            (vec![extended(), lost()], 3, None),
            (vec![extended(), lost(), extended()], 3, Some(Carried)),
            (vec![extended(), lost(), lost()], 3, Some(Refuted)),
            (vec![extended(), DEAD], 3, None),
            // Nothing that the third can say decides.
            (vec![DEAD, DEAD], 3, Some(Failed)),
            (vec![lost()], 1, Some(Refuted)),
            (vec![DEAD], 1, Some(Failed)),
            // Two of four that are gone leave no majority of three.
            (vec![lost(), lost()], 4, Some(Refuted)),
            (vec![lost(), DEAD, DEAD], 4, None),
            (vec![lost(), DEAD, DEAD, DEAD], 4, Some(Failed)),
            (vec![lost(), lost(), DEAD, DEAD], 5, None),
            (vec![lost(), DEAD, DEAD], 5, None),
            (vec![lost(), DEAD, DEAD, DEAD], 5, Some(Failed)),
        ];
        for (votes, nodes, decision) in table {
            let mut extend = Round::new(Verb::Extend, nodes);
            for (node, vote) in votes.iter().cloned().enumerate() {
                assert_eq!(extend.decision(), None, "decided early: {votes:?}");
                extend.count(node, vote);
            }
            assert_eq!(extend.decision(), decision, "{votes:?} of {nodes}");
        }
        // For ACQUIRE no answer means "over": it ends when a majority cannot agree.
        assert_eq!(round(vec![held(1), DEAD], 3).decision(), Some(Failed));
        let mut release = Round::new(Verb::Release { keep: None }, 3);
        release.count(0, Ok(Vote::Released { held: false }));
        assert_eq!(release.count(1, DEAD), None);
        let gone = Ok(Vote::Released { held: false });
        assert_eq!(release.count(2, gone), Some(Refuted));
    }

    #[test]
    fn validity_counts_from_before_the_send() {
        let sent = Moment::from_nanos(0) + Duration::from_secs(100);
        let (ttl, drift) = (Duration::from_secs(10), Duration::from_millis(102));
        let expected = sent + Duration::from_millis(9_898);
        // The deadline does not depend on when the replies come, until no validity is left.
        for elapsed in [0, 5_000, 9_897] {
            let now = sent + Duration::from_millis(elapsed);
            assert_eq!(deadline(sent, ttl, drift, now), Some(expected));
        }
        assert_eq!(deadline(sent, ttl, drift, expected), None);
        // An unsigned underflow would make a validity of 2^64 − 1.
        assert_eq!(deadline(sent, drift, ttl, sent), None);
    }
}
