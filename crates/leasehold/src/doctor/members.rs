//! Whether the servers accept this client's set of nodes. A client decides the same in its roster
//! (`node/redis/roster.rs`), before any of its nodes votes.

use super::facts::SetRecord;
use crate::node::NodeError;

/// A server whose records were read.
pub(crate) struct Member<'a> {
    pub(crate) label: &'a str,
    /// `None` if the server hides it.
    pub(crate) run_id: Option<&'a str>,
    pub(crate) set: Option<&'a SetRecord>,
}

/// Why each of these servers does not vote for this client, whose nodes are `labels`.
pub(crate) fn refusals(members: &[Member<'_>], labels: &[String]) -> Vec<Option<NodeError>> {
    if let Some(error) = twins(members).or_else(|| other_set(members, labels)) {
        // A client that finds one of these uses no node.
        return vec![Some(error); members.len()];
    }
    let known = members
        .iter()
        .find_map(|member| Some((member, member.set?)));
    let refusal = |member: &Member<'_>| {
        let (recorded, known) = known?;
        // A server without a record may join only if its address is on record.
        let joins = member.set.is_some() || known.labels == sorted(labels);
        (!joins).then(|| other_nodes(recorded.label, known, labels))
    };
    members.iter().map(refusal).collect()
}

/// Two nodes that are the same server.
fn twins(members: &[Member<'_>]) -> Option<NodeError> {
    members.iter().enumerate().find_map(|(index, member)| {
        let is_twin =
            |other: &&Member<'_>| member.run_id.is_some() && other.run_id == member.run_id;
        let other = members[..index].iter().find(is_twin)?;
        Some(NodeError::SameServer {
            one: other.label.to_owned(),
            other: member.label.to_owned(),
        })
    })
}

/// A server that has another set on record than this client's, or than another server.
fn other_set(members: &[Member<'_>], labels: &[String]) -> Option<NodeError> {
    let recorded = || {
        members
            .iter()
            .filter_map(|member| Some((member.label, member.set?)))
    };
    let (_, known) = recorded().next()?;
    let differs = |set: &SetRecord| {
        set.nodes != labels.len() || set.id != known.id && set.labels != known.labels
    };
    let (label, set) = recorded().find(|(_, set)| differs(set))?;
    Some(other_nodes(label, set, labels))
}

fn other_nodes(label: &str, set: &SetRecord, labels: &[String]) -> NodeError {
    NodeError::OtherNodes {
        node: label.to_owned(),
        theirs: set.labels.join(", "),
        ours: sorted(labels).join(", "),
    }
}

fn sorted(labels: &[String]) -> Vec<String> {
    let mut labels = labels.to_vec();
    labels.sort_unstable();
    labels
}
