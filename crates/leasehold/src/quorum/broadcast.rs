//! The driver of a [`Round`]: asks all nodes at once and wakes the asker when the
//! votes have decided.
//!
//! Nodes answer by calling back, so a round needs no task of its own, wakes its
//! asker once however many nodes there are, and goes on to note late answers when
//! the asker is long gone.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::node_set::NodeSet;
use super::round::{Decision, Round};
use crate::base::error::Story;
use crate::node::{Call, Claim, Node, NodeError, Tally, Verb, Vote};
use crate::planted;

/// One request on its way to all nodes.
pub(crate) struct Broadcast {
    state: Mutex<State>,
    /// Counts every answer too, before and after the decision.
    also: Option<Arc<dyn Tally>>,
}

struct State {
    round: Round,
    waker: Option<Waker>,
}

/// What to ask of the nodes.
pub(crate) struct Question<'a> {
    pub(crate) verb: Verb,
    pub(crate) claim: &'a Arc<Claim>,
    pub(crate) timeout: Duration,
    /// The nodes not to ask, because the claim cannot be there.
    pub(crate) skip: NodeSet,
    /// The nodes where nothing of the claim is on its way; see [`Call::is_settled`].
    pub(crate) settled: NodeSet,
    /// Counts every answer too.
    pub(crate) also: Option<Arc<dyn Tally>>,
}

impl<'a> Question<'a> {
    /// To all nodes.
    pub(crate) fn new(verb: Verb, claim: &'a Arc<Claim>, timeout: Duration) -> Self {
        Self {
            verb,
            claim,
            timeout,
            skip: NodeSet::default(),
            settled: NodeSet::default(),
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
pub(crate) fn submit(nodes: &[Arc<dyn Node>], question: &Question<'_>, tally: &Arc<dyn Tally>) {
    for (index, node) in nodes.iter().enumerate() {
        if !question.skip.contains(index) {
            let (claim, tally) = (Arc::clone(question.claim), Arc::clone(tally));
            let call = Call::new(question.verb, claim, question.timeout, tally, index);
            node.submit(call.settled(question.settled.contains(index)));
        }
    }
}

impl Broadcast {
    /// Asks all nodes, in parallel.
    pub(crate) fn send(nodes: &[Arc<dyn Node>], question: Question<'_>) -> Arc<Self> {
        let mut round = Round::new(question.verb, nodes.len());
        for node in question.skip.iter() {
            round.count(node, Ok(Vote::Released { held: false }));
        }
        let broadcast = Arc::new(Self {
            state: Mutex::new(State { round, waker: None }),
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
    /// Cancel safety: the round goes on without its asker.
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

    /// Waits for the answers of all nodes, as above.
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

    /// The nodes where the claim certainly is not: they refused it, or the request
    /// was never sent to them.
    pub(crate) fn untouched(&self) -> NodeSet {
        let late = planted::on(planted::Bug::LateGrantKept);
        self.nodes_where(|story| story.rules_out_effect() || late && *story == Story::Pending)
    }

    /// The nodes that said yes.
    pub(crate) fn granted(&self) -> NodeSet {
        self.nodes_where(|story| matches!(story, Story::Voted(Vote::Granted)))
    }

    fn nodes_where(&self, so: impl Fn(&Story) -> bool) -> NodeSet {
        let state = self.lock();
        let stories = state.round.stories().iter().enumerate();
        let nodes = stories.filter(|(_, story)| so(story));
        nodes.map(|(node, _)| node).collect()
    }

    /// The round as it stands.
    pub(crate) fn round(&self) -> Round {
        self.with_round(Round::clone)
    }

    /// Looks at the round as it stands.
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
