//! Types that all other modules use. Nothing here imports from another module of the crate, except
//! from `planted`.

pub(crate) mod backoff;
pub(crate) mod clock;
pub(crate) mod done;
pub(crate) mod error;
pub(crate) mod holder;
pub(crate) mod join;
pub(crate) mod mode;
pub(crate) mod name;
pub(crate) mod past_lease;
pub(crate) mod vote;
