//! One line of the table of locks.

use std::cmp::{Ordering, Reverse};
use std::time::{Duration, SystemTime};

use leasehold::{Inspection, Name, Sighting};
use wildmatch::WildMatch;

use crate::show::{self, readers};
use crate::subject::{Kind, Subject};

/// A lock as the nodes reported it, with what the table is sorted by.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) subject: Subject,
    pub(super) inspection: Inspection,
    /// The id of the owner that the line is about.
    pub(super) owner: String,
    /// The host of the holder, or `another program`.
    pub(super) host: String,
    /// The rest of the holder: ` pid 4711 (nightly)`, or ` pid 4711 and 2 more` of several readers.
    pub(super) process: String,
    /// How long ago the lock was granted, or the result was stored.
    pub(super) age: Option<Duration>,
    /// The time until the lock expires; `None` if it has no TTL.
    pub(super) left: Option<Duration>,
    pub(super) waiters: Option<usize>,
    pub(super) token: Option<u64>,
    /// Whether a holder renews it. A name that is kept and a stored result have none.
    pub(super) can_be_renewed: bool,
}

impl Row {
    /// `None` if no node has the lock any more.
    pub(super) fn new(subject: Subject, inspection: Inspection, now: SystemTime) -> Option<Self> {
        let lock = inspection
            .lock()
            .or_else(|| inspection.sightings().next())?;
        let others = readers(&inspection).len().saturating_sub(1);
        let (host, process) = who(lock, others);
        let begin = match &lock.holder.result {
            Some(result) => Some(result.at),
            None => lock.since(),
        };
        Some(Self {
            owner: lock.owner_id(),
            host,
            process,
            age: begin.map(|begin| now.duration_since(begin).unwrap_or_default()),
            left: show::free_in(&inspection, lock),
            waiters: lock.waiters,
            token: lock.holder.token,
            can_be_renewed: !lock.holder.kept && lock.holder.result.is_none(),
            subject,
            inspection,
        })
    }

    /// The key of the lock, which no other line has.
    pub(super) fn key(&self) -> &Name {
        &self.inspection.key
    }

    /// The name, and what is unusual about it in parentheses: ` (permit 3)`, ` (2 readers)`.
    pub(super) fn name(&self) -> (String, String) {
        let state = show::state(&self.inspection);
        let remark = match (&self.subject.kind, state) {
            (Kind::Lock, "held") => String::new(),
            (Kind::Lock, "shared") => match readers(&self.inspection).len() {
                1 => " (1 reader)".to_owned(),
                count => format!(" ({count} readers)"),
            },
            (Kind::Permit(number), "held") => format!(" (permit {number})"),
            _ => format!(
                " ({})",
                show::kind_and_state(&self.subject, &self.inspection)
            ),
        };
        (self.subject.name.to_string(), remark)
    }

    /// The name with what is unusual about it.
    pub(super) fn title(&self) -> String {
        let (name, remark) = self.name();
        name + &remark
    }

    /// What the nodes report if nobody has renewed the lock for this time.
    pub(super) fn after(&self, age: Duration) -> Inspection {
        let mut inspection = self.inspection.clone();
        let nodes = inspection.nodes.iter_mut();
        for seen in nodes.filter_map(|(_, seen)| seen.as_mut().ok()).flatten() {
            seen.remaining = seen.remaining.map(|left| left.saturating_sub(age));
        }
        inspection
    }

    /// How many nodes report this owner, of how many.
    pub(super) fn votes(&self) -> String {
        let marks = self.marks();
        let votes = marks.chars().filter(|mark| *mark == '+').count();
        format!("{votes}/{}", self.inspection.nodes.len())
    }

    /// A mark for each node: `+` has this owner, `-` does not have the lock, `x` has another owner,
    /// and `?` did not answer.
    pub(super) fn marks(&self) -> String {
        let nodes = self.inspection.nodes.iter();
        let mark = |seen: &Vec<Sighting>| match &seen[..] {
            [] => '-',
            seen if seen.iter().any(|one| one.owner_id() == self.owner) => '+',
            _ => 'x',
        };
        nodes
            .map(|(_, seen)| seen.as_ref().map_or('?', mark))
            .collect()
    }
}

/// The host that holds a lock, and the process on it.
fn who(lock: &Sighting, others: usize) -> (String, String) {
    let (Some(host), Some(pid)) = (&lock.holder.host, lock.holder.pid) else {
        return ("another program".to_owned(), String::new());
    };
    let remark = match (others, &lock.holder.label) {
        (0, None) => String::new(),
        (0, Some(label)) => format!(" ({label})"),
        (others, _) => format!(" and {others} more"),
    };
    (host.clone(), format!(" pid {pid}{remark}"))
}

/// What the table is sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The lock that is held longest comes first.
    Age,
    Name,
    /// The lock with the most waiters comes first.
    Waiters,
    /// The lock that expires next comes first.
    Left,
}

impl Order {
    pub(super) fn next(self) -> Self {
        match self {
            Self::Age => Self::Name,
            Self::Name => Self::Waiters,
            Self::Waiters => Self::Left,
            Self::Left => Self::Age,
        }
    }

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::Name => "name",
            Self::Waiters => "waiters",
            Self::Left => "time left",
        }
    }

    /// Locks that are equal in this order are sorted by name.
    pub(super) fn compare(self, one: &Row, other: &Row) -> Ordering {
        let by = match self {
            // Unknown ages come last.
            Self::Age => Reverse(one.age).cmp(&Reverse(other.age)),
            Self::Name => Ordering::Equal,
            Self::Waiters => Reverse(one.waiters).cmp(&Reverse(other.waiters)),
            Self::Left => {
                let left = |row: &Row| row.left.unwrap_or(Duration::MAX);
                left(one).cmp(&left(other))
            }
        };
        by.then_with(|| one.subject.cmp(&other.subject))
    }
}

/// How many characters of a filter count. A name has at most 1024 bytes.
const MAX_FILTER: usize = 1024;

/// Which locks are shown.
#[derive(Clone, Debug, Default)]
pub(super) struct Filter {
    text: String,
    /// The text as a pattern of `ls`, if it contains `*` or `?`.
    pattern: Option<WildMatch>,
}

impl Filter {
    pub(super) fn new(text: impl Into<String>) -> Self {
        let mut text = text.into();
        // A large text that was pasted would make each key and each frame slow.
        if let Some((end, _)) = text.char_indices().nth(MAX_FILTER) {
            text.truncate(end);
        }
        let is_pattern = text.contains(['*', '?']);
        Self {
            pattern: is_pattern.then(|| WildMatch::new(&text)),
            text,
        }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether the name matches the pattern. A text that is no pattern must be a part of the name or of
    /// the holder.
    pub(super) fn matches(&self, row: &Row) -> bool {
        let name = show::plain(&row.subject.name);
        match &self.pattern {
            Some(pattern) => pattern.matches(&name),
            None if self.text.is_empty() => true,
            None => {
                let holder = format!("{}{}", row.host, row.process);
                name.contains(&self.text) || holder.contains(&self.text)
            }
        }
    }
}
