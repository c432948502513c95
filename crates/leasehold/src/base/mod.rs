//! Types that all other modules use. Nothing here knows about nodes.

pub(crate) mod backoff;
pub(crate) mod clock;
pub(crate) mod error;
pub(crate) mod holder;
pub(crate) mod name;
