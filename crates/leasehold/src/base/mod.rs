//! What everything else is made of. Nothing here knows a node.

pub(crate) mod backoff;
pub(crate) mod clock;
pub(crate) mod error;
pub(crate) mod holder;
pub(crate) mod name;
