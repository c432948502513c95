//! Tools for testing leasehold, and nodes written for it: a conformance suite that every kind of
//! node must pass, and helpers that start real Redis servers.
//!
//! The whole test file of a node:
//!
//! ```
//! leasehold_testkit::conformance!(leasehold_testkit::Memory::new());
//! ```

mod clock;
pub mod conformance;
mod deployment;
mod server;
mod stopped;
mod temp;

pub use clock::RuntimeClock;
pub use deployment::{BoxFuture, Deployment, Local, Memory, Redis};
pub use server::{FrozenClock, RedisServer};
pub use stopped::until_stopped;
pub use temp::TempDir;
