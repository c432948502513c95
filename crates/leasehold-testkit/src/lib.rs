//! Tools for testing leasehold, and nodes written for it: a conformance suite that every kind of
//! node must pass, real Redis servers, nodes and clocks that a test controls, and set-up that tests
//! share.
//!
//! The whole test file of a node:
//!
//! ```
//! leasehold_testkit::conformance!(leasehold_testkit::Memory::new());
//! ```

mod clock;
pub mod conformance;
mod deployment;
mod node;
mod postgres;
pub mod process;
pub mod sentinel;
mod server;
pub mod setup;
mod temp;

pub use clock::{RuntimeClock, ShiftedClock, unix_us};
pub use deployment::{BoxFuture, Deployment, Local, Memory, Redis};
pub use node::TestNode;
pub use postgres::PostgresServer;
pub use sentinel::{SentinelService, replicated};
pub use server::{FrozenClock, RedisServer, free_port};
pub use temp::TempDir;
