//! The servers behind a client's nodes. Ensures that no server votes twice and that all of them
//! belong to one set.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::set::{Set, sorted};
use crate::base::clock::{Clock, Moment};
use crate::node::{NodeError, majority};

/// Before a node votes, it waits at most this long until the servers of the other nodes are known.
/// So the same server under two names is refused before it can vote twice.
const INTRODUCTIONS: Duration = Duration::from_millis(50);

/// Nodes whose servers have no set on record wait at most this long for each other. If a server is
/// silent, the first client of a deployment waits this long, once.
const FIRST_CONTACT: Duration = Duration::from_millis(500);

/// What a client knows about the servers behind its nodes.
pub(crate) struct Roster {
    clock: Clock,
    /// When the first node began to connect.
    started: OnceLock<Moment>,
    /// The number of the client's nodes, including those of other kinds.
    nodes: usize,
    labels: Vec<String>,
    state: Mutex<State>,
    changed: Notify,
    /// Counts changes, so that a session knows whether its admission still holds.
    generation: AtomicU64,
}

struct State {
    members: Vec<Member>,
    /// Two nodes that are the same server.
    twins: Option<Twins>,
}

#[derive(Default)]
struct Member {
    presence: Presence,
    /// The last set that this server was known to have on record.
    set: Option<Set>,
    /// Whether it had a set on record at the last handshake. This also counts while the server is
    /// away: a node that was refused is away, too, and its record must still count.
    recorded: bool,
}

#[derive(Default, PartialEq, Eq)]
enum Presence {
    /// The first attempt to connect has not finished.
    #[default]
    Unknown,
    /// It is not connected.
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
    /// It may vote once this set is on record.
    Record(Set),
}

/// The decision about a node.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Admit(Admission),
    /// It depends on nodes that have not reported yet.
    Open,
    Refuse(NodeError),
}

/// Which of the nodes that have not reported yet a decision waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// All of them. Until [`INTRODUCTIONS`] is over.
    Introductions,
    /// All of them if no set is on record, none otherwise. Until [`FIRST_CONTACT`] is over.
    FirstContact,
    /// None.
    Over,
}

/// The presence of a node in the roster. The node leaves when this is dropped.
pub(super) struct Place {
    roster: Arc<Roster>,
    node: usize,
}

impl Roster {
    /// Creates a roster of the servers with these labels. `nodes` counts all nodes of the client.
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

    /// Called when a node begins to connect. Returns when the first node began.
    pub(super) fn begin(&self) -> Moment {
        *self.started.get_or_init(|| self.clock.now())
    }

    /// Creates the presence of a node, which [enters](Self::enter) when its server is known.
    pub(super) fn place(self: &Arc<Self>, node: usize) -> Place {
        Place {
            roster: Arc::clone(self),
            node,
        }
    }

    /// Records the server behind a node, and the set that it has on record.
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

    /// Records that a node is not connected.
    pub(super) fn leave(&self, node: usize) {
        let mut state = self.state();
        state.members[node].presence = Presence::Away;
        self.changed(state);
    }

    /// Waits until it is decided what a node that has entered may do.
    ///
    /// Cancel safety: dropping the future has no effect.
    pub(super) async fn admit(&self, node: usize) -> Result<Admission, NodeError> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let (now, started) = (self.clock.now(), self.begin());
            let (phase, until) = match now {
                now if now < started + INTRODUCTIONS => {
                    (Phase::Introductions, started + INTRODUCTIONS)
                }
                now if now < started + FIRST_CONTACT => {
                    (Phase::FirstContact, started + FIRST_CONTACT)
                }
                // The set is recorded on another server first.
                _ => (Phase::Over, Moment::FAR),
            };
            match self.judge(node, phase) {
                Verdict::Admit(admission) => return Ok(admission),
                Verdict::Refuse(why) => return Err(why),
                Verdict::Open => {}
            }
            tokio::select! {
                biased;
                () = &mut changed => {}
                () = self.clock.sleep_until(until) => {}
            }
        }
    }

    /// Whether other clients may be recording the set at the same time as this one.
    pub(super) fn is_first_contact(&self) -> bool {
        self.clock.now() < self.begin() + FIRST_CONTACT
    }

    /// Whether a node that was admitted at an earlier generation may still vote.
    pub(super) fn is_admitted(&self, node: usize) -> bool {
        let vote = Verdict::Admit(Admission::Vote);
        self.judge(node, Phase::Over) == vote
    }

    /// Returns a number that grows with every change.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Decides what a node may do.
    fn judge(&self, node: usize, phase: Phase) -> Verdict {
        let state = self.state();
        if let Some(Twins { nodes, .. }) = &state.twins {
            let [one, other] = nodes.map(|node| self.labels[node].clone());
            return Verdict::Refuse(NodeError::SameServer { one, other });
        }
        let unknown = |member: &Member| member.presence == Presence::Unknown;
        // When all have reported, there is nothing left to wait for.
        let phase_of_reports = match state.members.iter().any(unknown) {
            true => phase,
            false => Phase::Over,
        };
        if phase_of_reports == Phase::Introductions {
            return Verdict::Open;
        }
        let on_record = (0..).zip(&state.members).filter_map(|(node, member)| {
            let set = member.set.as_ref().filter(|_| member.recorded)?;
            Some((node, set))
        });
        let Some((first, set)) = on_record.clone().next() else {
            return self.judge_unrecorded(&state, node, phase_of_reports);
        };
        let ours = sorted(self.labels.clone());
        let differs = |other: &Set| other.nodes != self.nodes || !other.is_same(set);
        if let Some((other, theirs)) = on_record.clone().find(|(_, other)| differs(other)) {
            // Names the set that differs from this client's nodes: the record of this server, if that
            // is one.
            let own = on_record.clone().find(|(recorded, _)| *recorded == node);
            return match own.filter(|(_, own)| own.labels != ours) {
                Some((node, own)) => self.refuse(node, own),
                None if theirs.labels == ours => self.refuse(first, set),
                None => self.refuse(other, theirs),
            };
        }
        let member = &state.members[node];
        // For a server that has lost its memory. It belongs to the set if this client has seen it
        // there, or if the client names the nodes of the set exactly as they are on record.
        let belongs = |member: &Member| {
            let was_member = member.set.as_ref().is_some_and(|own| own.is_same(set));
            was_member || set.labels == ours
        };
        // A server that is being recorded may turn out to belong to another set. (One that does not
        // belong to this set is refused, and nothing becomes known by waiting for it.)
        let pending = |member: &Member| {
            let is_here = matches!(member.presence, Presence::Here { .. });
            !member.recorded && is_here && belongs(member)
        };
        match member.recorded {
            true if phase != Phase::Over && state.members.iter().any(pending) => Verdict::Open,
            true => Verdict::Admit(Admission::Vote),
            false if belongs(member) => Verdict::Admit(Admission::Record(set.clone())),
            false => self.refuse(first, set),
        }
    }

    /// Decides when no connected server has a set on record. The first client that is connected to a
    /// majority of its servers records the set, beginning with the server that has the smallest run
    /// id. If two clients do so, the second finds the record of the first there.
    fn judge_unrecorded(&self, state: &State, node: usize, phase: Phase) -> Verdict {
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
        // The server lost its memory, but this client knows its set.
        if let Some(own) = own {
            return Verdict::Admit(Admission::Record(own.clone()));
        }
        match here().min() {
            _ if phase != Phase::Over => Verdict::Open,
            _ if here().count() + others < majority(self.nodes) => Verdict::Admit(Admission::Vote),
            Some((_, first)) if first == node => {
                let set = Set::new(self.labels.clone(), self.nodes, 0);
                Verdict::Admit(Admission::Record(set))
            }
            _ => Verdict::Open,
        }
    }

    /// Refuses the client, because the server of `node` has another set on record.
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
        assert_eq!(roster.judge(0, Phase::Introductions), Verdict::Open);
        assert_eq!(
            roster.judge(1, Phase::FirstContact),
            Verdict::Open,
            "c may come"
        );
        roster.enter(2, "r3", None);
        assert_eq!(roster.judge(0, Phase::Introductions), Verdict::Open);
        let Verdict::Admit(Admission::Record(set)) = roster.judge(1, Phase::Introductions) else {
            panic!("the first has to be recorded");
        };
        assert_eq!((set.nodes, set.votes_from), (3, 0));
        roster.enter(1, "r1", Some(set.clone()));
        assert_eq!(roster.judge(0, Phase::Introductions), record(&set));
        // It votes once the others are recorded, too, because they may belong to another set.
        assert_eq!(roster.judge(1, Phase::Introductions), Verdict::Open);
        roster.enter(0, "r2", Some(set.clone()));
        roster.enter(2, "r3", Some(set));
        assert_eq!(roster.judge(1, Phase::Introductions), VOTE);
    }

    /// Without this, a client with one silent server would never record its set.
    #[test]
    fn a_majority_suffices_to_record_a_set() {
        let roster = roster(&["a", "b", "c"]);
        roster.enter(0, "r2", None);
        roster.leave(1);
        roster.enter(2, "r3", None);
        assert!(matches!(
            roster.judge(0, Phase::Introductions),
            Verdict::Admit(Admission::Record(_))
        ));
        roster.leave(2);
        assert_eq!(
            roster.judge(0, Phase::Introductions),
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
        // Servers without a record cannot belong to the set of the server that has one.
        assert!(refuses(roster.judge(1, Phase::Over), "1, 2, 3"));
        assert!(refuses(roster.judge(2, Phase::Over), "1, 2, 3"));
        // There are two sets, so no server of either is used.
        roster.enter(1, "x", Some(set(&["x", "y", "z"])));
        for node in 0..3 {
            assert!(matches!(
                roster.judge(node, Phase::Over),
                Verdict::Refuse(_)
            ));
        }
        // Each error shows the record of its own server, or says whose it is.
        assert!(refuses(roster.judge(0, Phase::Over), "1, 2, 3"));
        assert!(refuses(roster.judge(1, Phase::Over), "x, y, z"));
        let Verdict::Refuse(error) = roster.judge(2, Phase::Over) else {
            panic!("it is refused");
        };
        assert!(error.to_string().contains("on record at x is [x, y, z]"));
        // A node that was refused is away. The record of its server still counts.
        roster.leave(0);
        assert!(matches!(roster.judge(1, Phase::Over), Verdict::Refuse(_)));
        assert!(!roster.is_admitted(1));
        // It counts until the server reports another.
        roster.enter(0, "s3", Some(set(&["x", "y", "z"])));
        assert!(roster.is_admitted(1));
    }

    #[test]
    fn a_set_of_another_size_is_refused() {
        let roster = roster(&["a"]);
        roster.enter(0, "r", Some(set(&["a", "b", "c"])));
        assert!(refuses(roster.judge(0, Phase::Over), "a, b, c"));
    }

    #[test]
    fn the_same_servers_may_have_other_names() {
        let roster = roster(&["localhost:1", "localhost:2", "localhost:3"]);
        let known = set(&["host:1", "host:2", "host:3"]);
        for node in 0..3 {
            roster.enter(node, &node.to_string(), Some(known.clone()));
        }
        assert!((0..3).all(|node| roster.is_admitted(node)));
        // This also holds after one lost its memory: this client knows that it belongs to the set.
        roster.enter(2, "restarted", None);
        assert_eq!(roster.judge(2, Phase::Over), record(&known));
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
        assert_eq!(same.judge(2, Phase::Over), record(&known));
        assert!(refuses(aliased.judge(2, Phase::Over), "a, b, c"));
        // It may turn out to belong to another set only if this client records the set there.
        assert_eq!(same.judge(0, Phase::FirstContact), Verdict::Open);
        assert_eq!(aliased.judge(0, Phase::FirstContact), VOTE);
    }

    #[test]
    fn no_node_votes_while_two_are_the_same_server() {
        let roster = roster(&["a", "b", "alias-of-a"]);
        let known = set(&["a", "b", "c"]);
        for (node, run_id) in ["r1", "r2", "r1"].into_iter().enumerate() {
            roster.enter(node, run_id, Some(known.clone()));
        }
        for node in 0..3 {
            let refused = roster.judge(node, Phase::Over);
            let Verdict::Refuse(NodeError::SameServer { one, other }) = refused else {
                panic!("{refused:?}");
            };
            assert_eq!((&*one, &*other), ("a", "alias-of-a"));
        }
        // This is known until another server answers under the name, also while disconnected.
        roster.leave(0);
        assert!(!roster.is_admitted(1));
        roster.enter(2, "r3", Some(known));
        assert!(roster.is_admitted(1) && roster.is_admitted(2));
    }
}
