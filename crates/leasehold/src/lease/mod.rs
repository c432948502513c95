//! A lease from the moment it is granted until it is released or lost.
//!
//! A [`grant`] is a claim that a majority granted. [`guard`] is what the caller has of it, [`state`]
//! what the guard and the background tasks share. The
//! [`keeper`] renews leases, the [`janitor`] releases claims. [`detached`] leases have no guard, and
//! [`leases`] is the guard of several. [`downgrade`] makes an exclusive lease shared. The [`recorder`]
//! writes the history of names, if the client records one.

pub(crate) mod detached;
mod downgrade;
pub(crate) mod grant;
pub(crate) mod guard;
pub(crate) mod holding;
pub(crate) mod janitor;
pub(crate) mod keeper;
pub(crate) mod leases;
pub(crate) mod recorder;
pub(crate) mod state;
