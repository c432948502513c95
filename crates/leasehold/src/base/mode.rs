//! How a lock is held.

use std::fmt;

/// How a claim holds its lock: which claims can hold the same lock at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// No other claim: a mutex, or a writer.
    #[default]
    Exclusive,
    /// Other shared claims: readers.
    Shared,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        })
    }
}
