//! Distributed locks that are *leases*: a lease expires unless the client renews it, and the client
//! renews it while the work runs. Each lease has a fencing token that is larger than the tokens of
//! all earlier leases of the name. Locks live on one Redis or Valkey server, on a majority of N
//! independent servers (Redlock), in a file for the processes of one machine, or in the memory of
//! this process.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
//! use leasehold::Client;
//!
//! let client = Client::in_memory(); // or Client::builder().node("redis://localhost")
//! let lease = client.mutex("orders/42").lock().await?;
//! println!("token {}", lease.token());
//! lease.release().await;
//! # Ok(()) }
//! ```
//!
//! # What is guaranteed
//! *Without the token*, there is at most one holder at a time, as long as clocks run at about the
//! right speed, no node's clock jumps, no node loses its memory without the restart guard
//! ([`Builder::restart_guard`]), and the holder stops when [`Lease::lost`] resolves or
//! [`Lease::is_valid`] is false.
//!
//! *With the token*, no update is lost, whatever the clocks of clients, pauses and the network do:
//! pass [`Lease::token`] to the resource with every access, reads included, and let the resource
//! refuse a token smaller than the largest that it has seen. This assumes that the clock of a node
//! that lost its memory has not gone back since.
//!
//! The exact wording, the assumptions and the limits are in `docs/guarantees.md` of the repository.
//!
//! # Features
//! | | default | |
//! |---|---|---|
//! | `redis` | yes | nodes on Redis and Valkey |
//! | `local` | | the embedded store `local:`, for the processes of one machine (Unix); uses SQLite |
//! | `bundled-sqlite` | yes | with `local`: SQLite is compiled into the program, which needs a C compiler. Without it, the system's SQLite is linked |
//! | `tls` | | `rediss://`, with rustls |
//! | `blocking` | | [`blocking`](crate#blocking), for programs without async |
//! | `cancellation` | | `Lease::cancellation_token` |
//! | `doctor` | | [`doctor`](crate#doctor): examining a deployment |
//! | `metrics` | | `MetricsObserver` in [`observe`]: records events with the `metrics` crate |
//! | `unstable-node` | | the rules by which the nodes of this crate vote ([`node`]); any release may change this part of the API |

#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod base;
mod client;
#[cfg(feature = "doctor")]
pub mod doctor;
mod election;
pub mod fence;
mod latch;
mod lease;
mod mutex;
mod mutexes;
pub mod node;
pub mod observe;
mod once;
#[cfg(feature = "planted-bugs")]
#[doc(hidden)]
pub mod planted;
#[cfg(not(feature = "planted-bugs"))]
mod planted;
mod quorum;
mod rw_lock;
mod semaphore;

pub use base::clock::{Moment, TimeSource};
pub use base::done::Done;
pub use base::error::{Error, Invalid, Loss, NodeOutcome, NodeReport, Refusal, TlsPart};
pub use base::holder::{Holder, StoredResult};
pub use base::mode::Mode;
pub use base::name::Name;
pub use base::past_lease::{LeaseEnd, PastLease};
pub use client::Client;
#[cfg(feature = "blocking")]
pub use client::blocking;
pub use client::builder::Builder;
pub use client::history::History;
pub use client::inspect::{Inspection, Listing, LockState};
pub use client::options::{Options, Wait};
pub use election::{Election, Leader, Observer};
pub use latch::Latch;
pub use lease::detached::Detached;
pub use lease::guard::{Lease, Released};
pub use lease::leases::Leases;
pub use mutex::Mutex;
pub use mutexes::Mutexes;
pub use node::memory::MemoryNode;
pub use node::sighting::Sighting;
pub use once::{Once, OnceError, OnceStart, OnceTurn};
pub use rw_lock::RwLock;
pub use semaphore::Semaphore;

/// Compiles and runs the examples of the pages as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../../../docs/election.md")]
#[doc = include_str!("../../../docs/fencing.md")]
#[cfg_attr(feature = "blocking", doc = include_str!("../../../docs/migrating.md"))]
#[doc = include_str!("../../../docs/once.md")]
#[doc = include_str!("../../../docs/reentrancy.md")]
#[doc = include_str!("../../../docs/rw-lock.md")]
#[doc = include_str!("../../../docs/several-names.md")]
#[doc = include_str!("../../../docs/semaphore.md")]
#[doc = include_str!("../../../docs/latch.md")]
struct Pages;
