//! Distributed locks that are *leases*: taken for a time, renewed while the work runs,
//! given back early when it ends, and fenced with a token that only grows. They live on
//! one Redis (or Valkey) server, on a majority of N independent ones (Redlock), in a file
//! for the processes of one machine, or in the memory of this process.
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
//! # What you get, and what you must do
//! *Without using the token*, there is at most one holder as long as clocks run at about
//! the right speed, no server clock jumps, and the holder stops at its deadline
//! ([`Lease::lost`] tells it to).
//!
//! *With the token*, no update is ever lost, whatever clocks and pauses do: give
//! [`Lease::token`] to the resource with every access, reads included, and let the
//! resource refuse a token smaller than the largest it has seen.
//!
//! # Features
//! | | default | |
//! |---|---|---|
//! | `redis` | yes | nodes on Redis and Valkey |
//! | `local` | | the embedded store, `local:`, for the processes of one machine |
//! | `tls` | | `rediss://`, with rustls |
//! | `blocking` | | [`blocking`](crate#blocking), for programs without async |
//! | `cancellation` | | `Lease::cancellation_token` |

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod base;
mod client;
mod lease;
mod mutex;
pub mod node;
#[cfg(feature = "planted-bugs")]
#[doc(hidden)]
pub mod planted;
#[cfg(not(feature = "planted-bugs"))]
mod planted;
mod quorum;

pub use base::clock::{Moment, TimeSource};
pub use base::error::{Error, Invalid, NodeReport, Refusal, Story, TlsPart};
pub use base::holder::Holder;
pub use base::name::Name;
pub use client::Client;
#[cfg(feature = "blocking")]
pub use client::blocking;
pub use client::builder::Builder;
pub use client::inspect::{Inspection, Listing, LockState};
pub use client::options::{Options, Wait};
pub use lease::detached::Detached;
pub use lease::guard::{Lease, Released};
pub use lease::state::Loss;
pub use mutex::Mutex;
pub use node::Sighting;
pub use node::memory::MemoryNode;

/// The examples of the README are compiled and run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
