//! A seeded, deterministic simulator of leasehold.
//!
//! The library's own quorum, waiter, lease, keeper, janitor and mutex code, and its link to a Redis
//! server, run on simulated nodes, a simulated network and simulated clocks, on one thread, from a
//! seed. None of it is reimplemented for the simulation. Faults occur at rates that the seed
//! determines, checkers
//! compare what happens with what is promised, and the same seed always gives the same run.
//!
//! ```
//! let report = leasehold_sim::run(1, None, false);
//! assert_eq!(report.violation, None);
//! assert!(report.leases > 0);
//! ```

#![forbid(unsafe_code)]

mod agenda;
pub mod batch;
mod bug;
mod caller;
mod cancel;
mod check;
mod clock;
mod dice;
mod fault;
mod journal;
mod ledger;
mod link;
mod message;
mod nemesis;
mod network;
mod once;
mod permits;
mod plan;
mod process;
mod record;
mod resource;
mod semaphore;
mod server;
mod several;
mod stage;
mod store;
mod subscriber;
mod subscriptions;
mod sync;
mod waiters;
mod world;

pub use bug::Bug;
pub use check::{PROMISES, Violation};
pub use fault::{Fault, FaultCounts};
pub use message::SentCounts;
pub use plan::{Mode, Plan};
pub use stage::{Report, run};
