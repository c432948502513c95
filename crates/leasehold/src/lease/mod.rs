//! A lease from the moment it is granted until it is released or lost.
//!
//! [`guard`] is what the caller has, [`state`] what the guard and the background tasks share. The
//! [`keeper`] renews leases, the [`janitor`] releases claims. [`detached`] leases have no guard.

pub(crate) mod detached;
pub(crate) mod guard;
pub(crate) mod janitor;
pub(crate) mod keeper;
pub(crate) mod state;
