//! The set of nodes that a server votes in, as each server has it on record.
//!
//! Two clients exclude each other only if their majorities share a server. That holds if both name
//! the same servers, and not otherwise: a majority of {1, 2, 3} and one of {3, 4, 5} need not meet.
//! So every server records, for each prefix, the id of the set that it belongs to, and how many
//! nodes that set has. A client whose servers report another set, or different sets, is refused.
//!
//! The id is random. Addresses do not identify a server: clients reach the same one under different
//! names. They are on record for error messages, and to recognise a server that lost its memory:
//! it may join again without help if the client names exactly the addresses on record.

use crate::base::name::shown;

/// The key of the record, before the prefix.
pub(super) const SET_KEY: &str = "leasehold:set";

/// What a server has on record about its set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Set {
    pub(super) id: String,
    /// The number of nodes.
    pub(super) nodes: usize,
    /// The server does not vote before this time, in µs since 1970 by its clock. Set when a set
    /// replaces another, whose leases may still be valid.
    pub(super) votes_from: u64,
    /// The addresses under which the client that made the record knows the nodes, sorted.
    pub(super) labels: Vec<String>,
}

impl Set {
    /// Creates a new set.
    pub(super) fn new(labels: Vec<String>, nodes: usize, votes_from: u64) -> Self {
        Self {
            id: format!("{:016x}", fastrand::u64(..)),
            nodes,
            votes_from,
            labels: sorted(labels),
        }
    }

    /// Whether both are records of the same set: their ids are equal; or their addresses are equal,
    /// because two clients that could not reach all servers recorded the set at the same time.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.nodes == other.nodes && (self.id == other.id || self.labels == other.labels)
    }

    /// Returns the record as text. The first line is for programs; each of the others names a node.
    pub(super) fn to_text(&self) -> String {
        let Self {
            id,
            nodes,
            votes_from,
            labels,
        } = self;
        format!("{id} {nodes} {votes_from}\n{}", labels.join("\n"))
    }

    /// Parses a record. `None` if it is malformed.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let mut lines = std::str::from_utf8(text).ok()?.lines();
        let mut words = lines.next()?.split(' ');
        let set = Self {
            id: words.next().filter(|id| !id.is_empty())?.to_owned(),
            nodes: words.next()?.parse().ok()?,
            votes_from: words.next()?.parse().ok()?,
            labels: lines.map(|label| shown(label.as_bytes())).collect(),
        };
        words.next().is_none().then_some(set)
    }
}

/// Sorts labels as in records.
pub(super) fn sorted(mut labels: Vec<String>) -> Vec<String> {
    labels.sort_unstable();
    labels
}

/// A key that clients with different prefixes do not share.
pub(super) fn scoped(key: &str, prefix: &[u8]) -> Vec<u8> {
    match prefix {
        [] => key.as_bytes().to_vec(),
        prefix => [key.as_bytes(), b":", prefix].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let labels = vec!["b:1".to_owned(), "/run/a socket".to_owned()];
        let set = Set::new(labels, 2, 1_800_000_000_000_000);
        assert_eq!(Set::parse(set.to_text().as_bytes()), Some(set.clone()));
        assert_eq!(set.labels, ["/run/a socket", "b:1"]);
    }

    #[test]
    fn a_set_is_known_by_its_id_or_by_all_of_its_addresses() {
        let set = |labels: &[&str]| {
            let labels = labels.iter().map(|label| label.to_string());
            Set::new(labels.collect(), 2, 0)
        };
        let one = set(&["a", "b"]);
        let aliased = Set {
            id: one.id.clone(),
            ..set(&["a", "c"])
        };
        assert!(one.is_same(&aliased) && one.is_same(&set(&["b", "a"])));
        assert!(!one.is_same(&set(&["a", "c"])));
        assert!(!one.is_same(&Set {
            nodes: 3,
            ..one.clone()
        }));
    }

    #[test]
    fn what_is_not_a_record_is_not_read() {
        for text in ["", "\n", "abc", "abc 3", "abc x 0", "abc 3 0 1", " 3 0"] {
            assert_eq!(Set::parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(Set::parse(b"\xff 3 0"), None);
    }
}
