//! What a call wants.

use crate::base::mode::Mode;
use crate::base::name::Name;

/// A lock, and how to hold it.
#[derive(Clone, Debug)]
pub(crate) struct Want {
    pub(crate) name: Name,
    pub(crate) mode: Mode,
}

impl Want {
    pub(crate) fn exclusive(name: Name) -> Self {
        Self {
            name,
            mode: Mode::Exclusive,
        }
    }

    pub(crate) fn shared(name: Name) -> Self {
        Self {
            name,
            mode: Mode::Shared,
        }
    }
}
