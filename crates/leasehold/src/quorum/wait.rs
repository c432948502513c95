//! What the nodes have reported about a claim that waits in line.
//!
//! A node reports in two ways: in its answer to a WAIT, and in a notification when the claim's turn
//! comes. Both go into one [`WaitState`], which does no I/O and reads no clock. [`WaitSignals`]
//! shares it between the nodes and the waiter, and wakes the waiter.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::broadcast::{Question, submit};
use super::node_set::NodeSet;
use super::nodes::Nodes;
use super::round::Round;
use crate::base::clock::Moment;
use crate::node::{Listener, News, NodeError, Notifier, Tally, Verb, Vote, majority};
use crate::observe::sight::RequestWatch;

/// What all nodes have reported.
#[derive(Debug)]
pub(crate) struct WaitState {
    nodes: Vec<NodeState>,
    /// The answers to the latest WAIT.
    round: Round,
    /// How many WAITs were sent to all nodes.
    asked: u32,
    /// A notification has named one more node since [`take_notified`](Self::take_notified).
    notified: bool,
    /// A node has withdrawn its report, or a notification may have been lost: send WAIT again.
    ask_again: bool,
}

/// What one node has reported.
#[derive(Clone, Copy, Debug)]
struct NodeState {
    said: Said,
    /// A moment at which the node had not granted the lock: when the last WAIT that it refused was
    /// sent, or the first WAIT.
    not_granted_at: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    NotYet,
    /// The lock is free here, and the claim is the first in line.
    Turn,
    /// This permit is free here, and the claim is the first in line.
    Free(u32),
    /// The node has granted the lock.
    Granted,
}

impl WaitState {
    fn new(nodes: usize) -> Self {
        let unknown = NodeState {
            said: Said::NotYet,
            not_granted_at: Moment::FAR,
        };
        Self {
            nodes: vec![unknown; nodes],
            round: Round::new(Verb::Wait, nodes),
            asked: 0,
            notified: false,
            ask_again: false,
        }
    }

    /// Prepares for a WAIT to all nodes. Turns that were reported before no longer count.
    fn begin(&mut self, sent_at: Moment) {
        for node in &mut self.nodes {
            if self.asked == 0 {
                // Before the first request is sent, no node can have granted anything.
                node.not_granted_at = sent_at;
            }
            node.withdraw();
        }
        self.asked += 1;
        self.round = Round::new(Verb::Wait, self.nodes.len());
        (self.notified, self.ask_again) = (false, false);
    }

    /// Counts the answer of a node to WAIT number `asked`, sent at `sent_at`. Returns whether to
    /// wake the waiter.
    fn answered(
        &mut self,
        asked: u32,
        sent_at: Moment,
        node: usize,
        answer: Result<Vote, NodeError>,
    ) -> bool {
        let Some(state) = self.nodes.get_mut(node) else {
            return false;
        };
        // Rule: a lease that is handed over counts from when the node is known not to have granted
        // it. It was granted after this request arrived, so after the request was sent.
        if let Ok(Vote::Held { .. } | Vote::YourTurn) = answer {
            state.not_granted_at = state.not_granted_at.max(sent_at);
            // Rule: a grant that the node reported before may have expired there since, and does not
            // count with that moment. (If this answer is older than the grant, it costs a request.)
            if state.said == Said::Granted {
                state.said = Said::NotYet;
            }
        }
        let is_news = match answer {
            Ok(Vote::YourTurn) => state.raise(Said::Turn),
            Ok(Vote::Free { permit }) => state.raise(Said::Free(permit)),
            Ok(Vote::Granted) => state.raise(Said::Granted),
            _ => false,
        };
        // A late answer to an earlier request is not an answer to the latest.
        let decides = asked == self.asked && self.round.count(node, answer).is_some();
        is_news || decides
    }

    /// Applies a notification. Returns whether to wake the waiter. A notification of what is known
    /// already does not wake it; otherwise it would send WAIT after each, without end.
    fn notified(&mut self, node: usize, news: News) -> bool {
        let Some(state) = self.nodes.get_mut(node) else {
            return false;
        };
        let said = match news {
            News::YourTurn => Said::Turn,
            News::Free(permit) => Said::Free(permit),
            News::Granted => Said::Granted,
            News::AskAgain => {
                state.withdraw();
                self.ask_again = true;
                return true;
            }
        };
        let is_news = state.raise(said);
        self.notified |= is_news;
        is_news
    }

    /// Whether a majority of all nodes has reported the claim's turn or has granted the lock; of a
    /// semaphore, whether a majority has named the same free permit.
    pub(crate) fn is_turn(&self) -> bool {
        let turn = |node: &&NodeState| matches!(node.said, Said::Turn | Said::Granted);
        let turns = self.nodes.iter().filter(turn).count();
        turns >= majority(self.nodes.len()) || self.free_permit().is_some()
    }

    /// Returns the permit that a majority of all nodes has named as free.
    pub(crate) fn free_permit(&self) -> Option<u32> {
        let named = |permit: u32| {
            let nodes = self.nodes.iter();
            nodes.filter(|node| node.said == Said::Free(permit)).count()
        };
        let permits = self.nodes.iter().filter_map(|node| match node.said {
            Said::Free(permit) => Some(permit),
            _ => None,
        });
        let enough = majority(self.nodes.len());
        permits.into_iter().find(|permit| named(*permit) >= enough)
    }

    /// Returns the nodes that have granted the lock.
    pub(crate) fn granted(&self) -> NodeSet {
        let nodes = self.nodes.iter().enumerate();
        let granted = nodes.filter(|(_, node)| node.said == Said::Granted);
        granted.map(|(index, _)| index).collect()
    }

    /// Returns a moment at which a majority of nodes, which have granted the lock since, had not
    /// granted it. The lease counts from then. `None` if fewer than a majority have granted it.
    pub(crate) fn not_granted_at(&self) -> Option<Moment> {
        let granted = self.nodes.iter().filter(|node| node.said == Said::Granted);
        let mut since: Vec<Moment> = granted.map(|node| node.not_granted_at).collect();
        // A majority is enough: the nodes with the latest such moments.
        since.sort_unstable_by(|a, b| b.cmp(a));
        since.get(majority(self.nodes.len()) - 1).copied()
    }

    /// Returns the answers to the latest WAIT, once they have decided that the claim has to wait.
    pub(crate) fn refusal(&self) -> Option<Round> {
        self.round.decision().map(|_| self.round.clone())
    }

    /// Returns the answers to the latest WAIT so far.
    pub(crate) fn round(&self) -> Round {
        self.round.clone()
    }

    /// Whether a notification has come from one more node since the last call.
    pub(crate) fn take_notified(&mut self) -> bool {
        std::mem::take(&mut self.notified)
    }

    /// Whether the waiter should send WAIT again, because the answers may be outdated.
    pub(crate) fn must_ask_again(&self) -> bool {
        self.ask_again
    }
}

impl NodeState {
    /// What the node said may be outdated, unless it was a grant.
    fn withdraw(&mut self) {
        if self.said != Said::Granted {
            self.said = Said::NotYet;
        }
    }

    /// Applies a report, unless the node has reported the same or more before.
    fn raise(&mut self, said: Said) -> bool {
        let is_news = match said {
            Said::NotYet => false,
            Said::Turn => self.said == Said::NotYet,
            Said::Free(_) => self.said != said,
            Said::Granted => self.said != Said::Granted,
        };
        if is_news {
            self.said = said;
        }
        is_news
    }
}

/// A [`WaitState`] that the nodes write and the waiter reads.
pub(crate) struct WaitSignals {
    state: Mutex<WaitState>,
    changed: Notify,
}

/// One WAIT that was sent to all nodes.
struct Asked {
    signals: Arc<WaitSignals>,
    number: u32,
    sent_at: Moment,
    watch: RequestWatch,
}

impl WaitSignals {
    /// Creates the signals of a claim on this many nodes.
    pub(crate) fn new(nodes: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(WaitState::new(nodes)),
            changed: Notify::new(),
        })
    }

    /// Returns the notifier for this node.
    pub(crate) fn notifier(self: &Arc<Self>, node: usize) -> Notifier {
        Notifier::new(Arc::clone(self) as Arc<dyn Listener>, node)
    }

    /// Sends a WAIT to all nodes, in parallel. `sent_at` is a moment before that.
    pub(crate) fn ask(self: &Arc<Self>, nodes: &Nodes, question: &Question<'_>, sent_at: Moment) {
        let number = {
            let mut state = self.state();
            state.begin(sent_at);
            state.asked
        };
        let asked = Arc::new(Asked {
            signals: Arc::clone(self),
            number,
            sent_at,
            watch: nodes.sight.watch_request(),
        });
        submit(nodes, question, &(asked as Arc<dyn Tally>));
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, WaitState> {
        // Only `WaitState` runs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves when the state has changed, or has changed since this resolved last.
    ///
    /// Cancel safety: a change is not missed.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Listener for WaitSignals {
    fn notified(&self, node: usize, news: News) {
        let is_news = self.state().notified(node, news);
        if is_news {
            self.changed.notify_one();
        }
    }
}

impl Tally for Asked {
    fn count(self: Arc<Self>, node: usize, answer: Result<Vote, NodeError>) {
        self.watch
            .answered(|| Verb::Wait, node, answer.as_ref().err());
        let is_news = self
            .signals
            .state()
            .answered(self.number, self.sent_at, node, answer);
        if is_news {
            self.signals.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_origin(Duration::from_millis(ms))
    }

    fn held() -> Result<Vote, NodeError> {
        Ok(Vote::Held {
            holder: Box::default(),
            remaining: None,
            fence: 5,
            now: 1000,
            place: Some(0),
        })
    }

    const TURN: Result<Vote, NodeError> = Ok(Vote::YourTurn);
    const GRANTED: Result<Vote, NodeError> = Ok(Vote::Granted);

    /// A state of three nodes, asked at 1 ms.
    fn asked() -> WaitState {
        let mut state = WaitState::new(3);
        state.begin(at(1));
        state
    }

    #[test]
    fn answers_and_notifications_make_a_majority_together() {
        type Say = fn(&mut WaitState, usize) -> bool;
        let says: [(Say, bool); 4] = [
            (|s, node| s.answered(1, at(1), node, TURN), false),
            (|s, node| s.answered(1, at(1), node, GRANTED), true),
            (|s, node| s.notified(node, News::YourTurn), false),
            (|s, node| s.notified(node, News::Granted), true),
        ];
        for (first, first_grants) in says {
            for (second, second_grants) in says {
                let mut state = asked();
                assert!(first(&mut state, 0) && !state.is_turn());
                assert!(!first(&mut state, 0), "the same again is no news");
                assert!(second(&mut state, 2) && state.is_turn());
                let granted = usize::from(first_grants) + usize::from(second_grants);
                assert_eq!(state.granted().len(), granted);
                assert_eq!(state.not_granted_at().is_some(), granted == 2);
            }
        }
    }

    #[test]
    fn turns_are_asked_for_again_and_grants_stay() {
        let mut state = asked();
        state.notified(0, News::YourTurn);
        state.notified(1, News::Granted);
        assert!(state.is_turn() && state.take_notified() && !state.take_notified());
        state.begin(at(2));
        assert!(!state.is_turn());
        assert_eq!(state.granted().iter().collect::<Vec<_>>(), [1]);
        // A node does not withdraw a grant.
        state.notified(1, News::AskAgain);
        assert!(state.must_ask_again() && state.granted().contains(1));
        state.notified(1, News::YourTurn);
        assert!(state.granted().contains(1));
        state.begin(at(3));
        assert!(!state.must_ask_again());
    }

    /// Rule: a lease counts from when its nodes are known not to have granted it.
    #[test]
    fn a_lease_counts_from_the_last_request_that_was_refused() {
        let mut state = asked();
        state.answered(1, at(1), 0, held());
        state.begin(at(10));
        state.answered(2, at(10), 0, held());
        state.answered(2, at(10), 1, TURN);
        state.begin(at(20));
        // This answer is late, and older than what is known.
        state.answered(1, at(1), 1, held());
        state.notified(0, News::Granted);
        assert_eq!(state.not_granted_at(), None, "one of three");
        state.notified(2, News::Granted);
        assert_eq!(state.not_granted_at(), Some(at(1)), "node 2 never answered");
        state.notified(1, News::Granted);
        assert_eq!(state.not_granted_at(), Some(at(10)));
        // An answer that grants does not say when the lock was granted.
        state.answered(3, at(20), 1, GRANTED);
        assert_eq!(state.not_granted_at(), Some(at(10)));
    }

    /// The share of a reader can expire on a node before the reader has a majority. The next WAIT is
    /// refused there, and so the grant does not count any more, least of all from that WAIT on.
    #[test]
    fn a_grant_that_expired_does_not_count() {
        for refusal in [held(), TURN] {
            let mut state = asked();
            state.notified(0, News::Granted);
            state.begin(at(3000));
            state.answered(2, at(3000), 0, refusal);
            assert_eq!(state.granted().len(), 0);
            state.notified(1, News::Granted);
            assert_eq!(state.not_granted_at(), None, "one of three");
        }
    }

    #[test]
    fn a_late_answer_decides_nothing() {
        let mut state = asked();
        assert!(!state.answered(1, at(1), 0, held()));
        state.begin(at(2));
        assert!(!state.answered(1, at(1), 1, held()) && state.refusal().is_none());
        assert!(!state.answered(2, at(2), 0, held()) && state.refusal().is_none());
        assert!(state.answered(2, at(2), 1, held()) && state.refusal().is_some());
        assert!(!state.answered(2, at(2), 9, held()), "no such node");
        assert!(!state.notified(9, News::Granted), "no such node");
    }
}
