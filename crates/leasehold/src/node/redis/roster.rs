//! The servers behind a client's nodes: that none votes twice, and that all belong together.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::set::{Set, sorted};
use crate::base::clock::{Clock, Moment};
use crate::node::NodeError;
use crate::quorum::round::Round;

/// A node waits this long at most for the others to say which server they are, before it votes.
/// The same server under two names is then refused before it can vote twice.
const INTRODUCTIONS: Duration = Duration::from_millis(50);

/// Nodes whose servers have no set on record wait this long for each other. A silent server costs
/// the first client of a deployment this time, once.
const FIRST_CONTACT: Duration = Duration::from_millis(500);

/// What a client knows of the servers behind its nodes.
pub(crate) struct Roster {
    clock: Clock,
    /// When the first node began to connect.
    started: OnceLock<Moment>,
    /// The number of the client's nodes, those of other kinds included.
    nodes: usize,
    labels: Vec<String>,
    state: Mutex<State>,
    changed: Notify,
    /// Counts changes, so that a session knows whether its admission still holds.
    generation: AtomicU64,
}

struct State {
    members: Vec<Member>,
    /// Two nodes that were found to be one server.
    twins: Option<Twins>,
}

#[derive(Default)]
struct Member {
    presence: Presence,
    /// The set that this server had on record when it was last asked and had one.
    set: Option<Set>,
    /// Whether it had one when it was last asked. That counts although the server is away: a
    /// node that was refused is away too, and what it told must not be forgotten with it.
    recorded: bool,
}

#[derive(Default, PartialEq, Eq)]
enum Presence {
    /// The first try to connect is under way.
    #[default]
    Unknown,
    /// It cannot be asked.
    Away,
    Here {
        run_id: String,
    },
}

struct Twins {
    run_id: String,
    nodes: [usize; 2],
}

/// What a node may do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// It may vote.
    Vote,
    /// It may vote once this is on record.
    Record(Set),
}

/// A judgement on a node.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Admit(Admission),
    /// It depends on nodes that have not reported yet.
    Open,
    Refuse(NodeError),
}

/// A node's presence in the roster, until dropped.
pub(super) struct Place {
    roster: Arc<Roster>,
    node: usize,
}

impl Roster {
    /// A roster of the servers with these labels, among `nodes` nodes in all.
    pub(crate) fn new(labels: Vec<String>, nodes: usize, clock: Clock) -> Self {
        let members = labels.iter().map(|_| Member::default()).collect();
        Self {
            clock,
            started: OnceLock::new(),
            nodes,
            labels,
            state: Mutex::new(State {
                members,
                twins: None,
            }),
            changed: Notify::new(),
            generation: AtomicU64::new(0),
        }
    }

    /// A node begins to connect: when the first of them did.
    pub(super) fn begin(&self) -> Moment {
        *self.started.get_or_init(|| self.clock.now())
    }

    /// A node's presence. The node [enters](Self::enter) when its server has said who it is.
    pub(super) fn place(self: &Arc<Self>, node: usize) -> Place {
        Place {
            roster: Arc::clone(self),
            node,
        }
    }

    /// The server behind a node, and its record.
    pub(super) fn enter(&self, node: usize, run_id: &str, set: Option<Set>) {
        let mut state = self.state();
        if let Some(twins) = &state.twins
            && twins.nodes.contains(&node)
            && twins.run_id != run_id
        {
            state.twins = None;
        }
        let is_twin = |member: &Member| match &member.presence {
            Presence::Here { run_id: other } => other == run_id,
            _ => false,
        };
        let others = || (0..self.labels.len()).filter(|other| *other != node);
        // A managed server may hide its run id.
        if !run_id.is_empty()
            && let Some(other) = others().find(|other| is_twin(&state.members[*other]))
        {
            state.twins = Some(Twins {
                run_id: run_id.to_owned(),
                nodes: [other, node],
            });
        }
        let member = &mut state.members[node];
        member.presence = Presence::Here {
            run_id: run_id.to_owned(),
        };
        member.recorded = set.is_some();
        member.set = set.or(member.set.take());
        self.changed(state);
    }

    /// A node cannot be asked.
    pub(super) fn leave(&self, node: usize) {
        let mut state = self.state();
        state.members[node].presence = Presence::Away;
        self.changed(state);
    }

    /// Waits until it is clear what a node that has entered may do.
    ///
    /// Cancel safety: nothing happens.
    pub(super) async fn admit(&self, node: usize) -> Result<Admission, NodeError> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let (now, started) = (self.clock.now(), self.begin());
            let introduced = started + INTRODUCTIONS <= now;
            let given_up = started + FIRST_CONTACT <= now;
            match self.judge(node, introduced, given_up) {
                Verdict::Admit(admission) => return Ok(admission),
                Verdict::Refuse(why) => return Err(why),
                Verdict::Open => {}
            }
            let until = match (introduced, given_up) {
                (false, _) => started + INTRODUCTIONS,
                (true, false) => started + FIRST_CONTACT,
                // Another server is to be recorded first.
                (true, true) => Moment::FAR,
            };
            tokio::select! {
                biased;
                () = &mut changed => {}
                () = self.clock.sleep_until(until) => {}
            }
        }
    }

    /// Whether other clients may be recording the set at this moment, as this one does.
    pub(super) fn is_first_contact(&self) -> bool {
        self.clock.now() < self.begin() + FIRST_CONTACT
    }

    /// Whether a node that was admitted at an earlier generation is still free to vote.
    pub(super) fn is_admitted(&self, node: usize) -> bool {
        let vote = Verdict::Admit(Admission::Vote);
        self.judge(node, true, true) == vote
    }

    /// Grows with every change.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// What a node may do. `introduced`, `given_up`: there is no more waiting for nodes that have
    /// not reported, if a set is on record or if none is.
    fn judge(&self, node: usize, introduced: bool, given_up: bool) -> Verdict {
        let state = self.state();
        if let Some(Twins { nodes, .. }) = &state.twins {
            let [one, other] = nodes.map(|node| self.labels[node].clone());
            return Verdict::Refuse(NodeError::SameServer { one, other });
        }
        let unknown = |member: &Member| member.presence == Presence::Unknown;
        let all_reported = !state.members.iter().any(unknown);
        if !all_reported && !introduced {
            return Verdict::Open;
        }
        let on_record = (0..).zip(&state.members).filter_map(|(node, member)| {
            let set = member.set.as_ref().filter(|_| member.recorded)?;
            Some((node, set))
        });
        let Some((first, set)) = on_record.clone().next() else {
            return self.judge_unrecorded(&state, node, all_reported || given_up);
        };
        let ours = sorted(self.labels.clone());
        let differs = |other: &Set| other.nodes != self.nodes || !other.is_same(set);
        if let Some((other, theirs)) = on_record.clone().find(|(_, other)| differs(other)) {
            // The one that this client does not know, if it knows the other.
            return match theirs.labels == ours {
                false => self.refuse(other, theirs),
                true => self.refuse(first, set),
            };
        }
        let member = &state.members[node];
        // It has lost its memory. It is one of the set if this client has seen it there, or if
        // the client names the set's nodes exactly as they are on record.
        let was_member = || member.set.as_ref().is_some_and(|own| own.is_same(set));
        // A server that is being recorded may turn out to belong to another set.
        let pending =
            |member: &Member| !member.recorded && matches!(member.presence, Presence::Here { .. });
        match member.recorded {
            true if !given_up && state.members.iter().any(pending) => Verdict::Open,
            true => Verdict::Admit(Admission::Vote),
            false if was_member() || set.labels == ours => {
                Verdict::Admit(Admission::Record(set.clone()))
            }
            false => self.refuse(first, set),
        }
    }

    /// No server that can be asked has a set on record. The first client that sees a majority of its
    /// servers records it, beginning with the server whose run id is the smallest: of two such
    /// clients, the second finds the record of the first there.
    fn judge_unrecorded(&self, state: &State, node: usize, settled: bool) -> Verdict {
        let own = &state.members[node].set;
        let run_id = |member: &Member| match &member.presence {
            Presence::Here { run_id } => Some(run_id.clone()),
            _ => None,
        };
        let here = || {
            (0..)
                .zip(&state.members)
                .filter_map(|(i, m)| Some((run_id(m)?, i)))
        };
        let others = self.nodes - self.labels.len();
        // It lost its memory, but this client did not.
        if let Some(own) = own {
            return Verdict::Admit(Admission::Record(own.clone()));
        }
        match here().min() {
            _ if !settled => Verdict::Open,
            _ if here().count() + others < Round::majority(self.nodes) => {
                Verdict::Admit(Admission::Vote)
            }
            Some((_, first)) if first == node => {
                let set = Set::new(self.labels.clone(), self.nodes, 0);
                Verdict::Admit(Admission::Record(set))
            }
            _ => Verdict::Open,
        }
    }

    /// The server of `node` has this set on record, which is not this client's.
    fn refuse(&self, node: usize, set: &Set) -> Verdict {
        Verdict::Refuse(NodeError::OtherNodes {
            node: self.labels[node].clone(),
            theirs: set.labels.join(", "),
            ours: sorted(self.labels.clone()).join(", "),
        })
    }

    fn changed(&self, state: MutexGuard<'_, State>) {
        drop(state);
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.changed.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.roster.leave(self.node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOTE: Verdict = Verdict::Admit(Admission::Vote);

    fn roster(labels: &[&str]) -> Arc<Roster> {
        let labels: Vec<_> = labels.iter().map(|label| label.to_string()).collect();
        let nodes = labels.len();
        Arc::new(Roster::new(labels, nodes, Clock::default()))
    }

    fn set(labels: &[&str]) -> Set {
        let labels = labels.iter().map(|label| label.to_string());
        Set::new(labels.collect(), 3, 0)
    }

    fn record(set: &Set) -> Verdict {
        Verdict::Admit(Admission::Record(set.clone()))
    }

    fn refuses(verdict: Verdict, theirs: &str) -> bool {
        matches!(verdict, Verdict::Refuse(NodeError::OtherNodes { theirs: t, .. }) if t == theirs)
    }

    #[test]
    fn a_client_that_sees_its_servers_records_the_set_on_the_smallest_run_id_first() {
        let roster = roster(&["a", "b", "c"]);
        roster.enter(0, "r2", None);
        roster.enter(1, "r1", None);
        assert_eq!(roster.judge(0, false, false), Verdict::Open);
        assert_eq!(roster.judge(1, true, false), Verdict::Open, "c may come");
        roster.enter(2, "r3", None);
        assert_eq!(roster.judge(0, false, false), Verdict::Open);
        let Verdict::Admit(Admission::Record(set)) = roster.judge(1, false, false) else {
            panic!("the first has to be recorded");
        };
        assert_eq!((set.nodes, set.votes_from), (3, 0));
        roster.enter(1, "r1", Some(set.clone()));
        assert_eq!(roster.judge(0, false, false), record(&set));
        // It votes when the others have been recorded too: they may belong to another set.
        assert_eq!(roster.judge(1, false, false), Verdict::Open);
        roster.enter(0, "r2", Some(set.clone()));
        roster.enter(2, "r3", Some(set));
        assert_eq!(roster.judge(1, false, false), VOTE);
    }

    /// Without this, a client on which one server is silent would never record its set.
    #[test]
    fn a_majority_suffices_to_record_a_set() {
        let roster = roster(&["a", "b", "c"]);
        roster.enter(0, "r2", None);
        roster.leave(1);
        roster.enter(2, "r3", None);
        assert!(matches!(
            roster.judge(0, false, false),
            Verdict::Admit(Admission::Record(_))
        ));
        roster.leave(2);
        assert_eq!(
            roster.judge(0, false, false),
            VOTE,
            "a minority decides nothing"
        );
    }

    #[test]
    fn servers_of_another_set_are_refused() {
        let others = set(&["1", "2", "3"]);
        let roster = roster(&["3", "x", "y"]);
        roster.enter(1, "x", None);
        roster.enter(2, "y", None);
        roster.enter(0, "s3", Some(others.clone()));
        // Those that have no record cannot belong to the set of the one that has.
        assert!(refuses(roster.judge(1, true, true), "1, 2, 3"));
        assert!(refuses(roster.judge(2, true, true), "1, 2, 3"));
        // Two sets: no server of either is used.
        roster.enter(1, "x", Some(set(&["x", "y", "z"])));
        for node in 0..3 {
            assert!(matches!(roster.judge(node, true, true), Verdict::Refuse(_)));
        }
        // A node that was refused is away. What its server told still counts.
        roster.leave(0);
        assert!(matches!(roster.judge(1, true, true), Verdict::Refuse(_)));
        assert!(!roster.is_admitted(1));
        // Until the server tells something else.
        roster.enter(0, "s3", Some(set(&["x", "y", "z"])));
        assert!(roster.is_admitted(1));
    }

    #[test]
    fn a_set_of_another_size_is_refused() {
        let roster = roster(&["a"]);
        roster.enter(0, "r", Some(set(&["a", "b", "c"])));
        assert!(refuses(roster.judge(0, true, true), "a, b, c"));
    }

    #[test]
    fn other_names_of_the_same_servers_are_as_good() {
        let roster = roster(&["localhost:1", "localhost:2", "localhost:3"]);
        let known = set(&["host:1", "host:2", "host:3"]);
        for node in 0..3 {
            roster.enter(node, &node.to_string(), Some(known.clone()));
        }
        assert!((0..3).all(|node| roster.is_admitted(node)));
        // Also after one lost its memory: this client knows that it belongs to the set.
        roster.enter(2, "restarted", None);
        assert_eq!(roster.judge(2, true, true), record(&known));
    }

    #[test]
    fn a_server_that_lost_its_memory_joins_by_its_address() {
        let known = set(&["a", "b", "c"]);
        let same = roster(&["c", "a", "b"]);
        let aliased = roster(&["c", "a", "d"]);
        for roster in [&same, &aliased] {
            roster.enter(0, "0", Some(known.clone()));
            roster.enter(1, "1", Some(known.clone()));
            roster.enter(2, "2", None);
        }
        assert_eq!(same.judge(2, true, true), record(&known));
        assert!(refuses(aliased.judge(2, true, true), "a, b, c"));
        assert_eq!(aliased.judge(0, true, true), VOTE);
    }

    #[test]
    fn no_node_votes_while_two_are_the_same_server() {
        let roster = roster(&["a", "b", "alias-of-a"]);
        let known = set(&["a", "b", "c"]);
        for (node, run_id) in ["r1", "r2", "r1"].into_iter().enumerate() {
            roster.enter(node, run_id, Some(known.clone()));
        }
        for node in 0..3 {
            let refused = roster.judge(node, true, true);
            let Verdict::Refuse(NodeError::SameServer { one, other }) = refused else {
                panic!("{refused:?}");
            };
            assert_eq!((&*one, &*other), ("a", "alias-of-a"));
        }
        // Cutting the connections does not make it forget; another server behind the name does.
        roster.leave(0);
        assert!(!roster.is_admitted(1));
        roster.enter(2, "r3", Some(known));
        assert!(roster.is_admitted(1) && roster.is_admitted(2));
    }
}
