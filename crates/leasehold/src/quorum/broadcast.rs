//! Sends a request to all nodes, counts the answers in a [`Round`], and wakes the caller when the
//! votes have decided.
//!
//! Nodes answer by calling back. So a round needs no task of its own, wakes its caller once for any
//! number of nodes, and still counts late answers when the caller no longer waits.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::node_set::NodeSet;
use super::nodes::Nodes;
use super::round::{Decision, Round};
use crate::base::error::NodeOutcome;
use crate::node::{Call, Claim, NodeError, Tally, Verb, Vote};
use crate::observe::sight::RequestWatch;
use crate::planted;

/// One request that was sent to all nodes.
pub(crate) struct Broadcast {
    state: Mutex<State>,
    watch: RequestWatch,
    /// Also receives every answer, before and after the decision.
    also: Option<Arc<dyn Tally>>,
}

struct State {
    round: Round,
    waker: Option<Waker>,
}

/// A request to all nodes.
pub(crate) struct Question<'a> {
    pub(crate) verb: Verb,
    pub(crate) claim: &'a Arc<Claim>,
    pub(crate) timeout: Duration,
    /// The nodes to which the request is not sent, because they cannot have the claim.
    pub(crate) skip: NodeSet,
    /// The nodes that have answered all earlier requests of the claim; see
    /// [`Call::nothing_in_flight`].
    pub(crate) nothing_in_flight: NodeSet,
    /// Also receives every answer.
    pub(crate) also: Option<Arc<dyn Tally>>,
}

impl<'a> Question<'a> {
    /// Creates a request to all nodes.
    pub(crate) fn new(verb: Verb, claim: &'a Arc<Claim>, timeout: Duration) -> Self {
        Self {
            verb,
            claim,
            timeout,
            skip: NodeSet::default(),
            nothing_in_flight: NodeSet::default(),
            also: None,
        }
    }
}

impl State {
    fn wait<T>(&mut self, cx: &mut Context<'_>) -> Poll<T> {
        if !self.waker.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
            self.waker = Some(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// Sends a request to all nodes, in parallel. The answers go to `tally`.
pub(crate) fn submit(nodes: &Nodes, question: &Question<'_>, tally: &Arc<dyn Tally>) {
    for (index, node) in nodes.iter().enumerate() {
        if !question.skip.contains(index) {
            let (claim, tally) = (Arc::clone(question.claim), Arc::clone(tally));
            let call = Call::new(question.verb, claim, question.timeout, tally, index);
            nodes.sight.requested(index);
            node.submit(call.with_nothing_in_flight(question.nothing_in_flight.contains(index)));
        }
    }
}

impl Broadcast {
    /// Sends the request to all nodes, in parallel.
    pub(crate) fn send(nodes: &Nodes, question: Question<'_>) -> Arc<Self> {
        let mut round = Round::new(question.verb, nodes.len());
        for node in question.skip.iter() {
            round.count(node, Ok(Vote::Released { held: false }));
        }
        let broadcast = Arc::new(Self {
            state: Mutex::new(State { round, waker: None }),
            watch: nodes.sight.watch_request(),
            also: question.also.clone(),
        });
        submit(
            nodes,
            &question,
            &(Arc::clone(&broadcast) as Arc<dyn Tally>),
        );
        broadcast
    }

    /// Waits for the decision. Nodes answer within their timeout, so this ends.
    ///
    /// Cancel safety: if the future is dropped, answers are still counted.
    pub(crate) async fn decided(&self) -> Decision {
        poll_fn(|cx| self.poll_decided(cx)).await
    }

    pub(crate) fn poll_decided(&self, cx: &mut Context<'_>) -> Poll<Decision> {
        let mut state = self.lock();
        match state.round.decision() {
            Some(decision) => Poll::Ready(decision),
            None => state.wait(cx),
        }
    }

    /// Waits for the answers of all nodes.
    ///
    /// Cancel safety: as for [`decided`](Self::decided).
    pub(crate) async fn complete(&self) {
        poll_fn(|cx| {
            let mut state = self.lock();
            match state.round.is_complete() {
                true => Poll::Ready(()),
                false => state.wait(cx),
            }
        })
        .await;
    }

    /// Returns the nodes that certainly do not have the claim: they refused it, or the request was
    /// never sent to them.
    pub(crate) fn untouched(&self) -> NodeSet {
        let late = planted::on(planted::Bug::LateGrantKept);
        self.nodes_where(|outcome| {
            outcome.rules_out_effect() || late && *outcome == NodeOutcome::Pending
        })
    }

    /// Returns the nodes that granted the request.
    pub(crate) fn granted(&self) -> NodeSet {
        self.nodes_where(|outcome| matches!(outcome, NodeOutcome::Voted(Vote::Granted)))
    }

    fn nodes_where(&self, matches: impl Fn(&NodeOutcome) -> bool) -> NodeSet {
        let state = self.lock();
        let outcomes = state.round.outcomes().iter().enumerate();
        let nodes = outcomes.filter(|(_, outcome)| matches(outcome));
        nodes.map(|(node, _)| node).collect()
    }

    /// Returns a copy of the round.
    pub(crate) fn round(&self) -> Round {
        self.with_round(Round::clone)
    }

    /// Reads the round.
    pub(crate) fn with_round<T>(&self, look: impl FnOnce(&Round) -> T) -> T {
        look(&self.lock().round)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Only `Round::count` runs under this lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tally for Broadcast {
    fn count(self: Arc<Self>, node: usize, answer: Result<Vote, NodeError>) {
        let verb = || self.with_round(Round::verb);
        self.watch.answered(verb, node, answer.as_ref().err());
        if let Some(also) = &self.also {
            Arc::clone(also).count(node, answer.clone());
        }
        let waker = {
            let mut state = self.lock();
            let decided = state.round.count(node, answer).is_some();
            match decided || state.round.is_complete() {
                true => state.waker.take(),
                false => None,
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
