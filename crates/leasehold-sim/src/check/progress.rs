//! When all is well again, leases can be had.

/// The name of the promise.
pub const PROMISE: &str = "progress";
