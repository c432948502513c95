//! Examines a deployment: its servers, their settings, and what they have on record.
//!
//! [`Builder::doctor`](crate::Builder::doctor) returns a [`Report`], which is a list of
//! [findings](Finding). [`Builder::node_states`](crate::Builder::node_states) returns the
//! [state](NodeState) of each node at a glance, and [`Builder::measure`](crate::Builder::measure)
//! measures how fast the deployment is.
//!
//! What a provider hides is [`Status::Unknown`], which is neither a success nor a problem. No
//! finding prevents a lock: a client does not look at any of this.
//!
//! The nodes read these facts (`node/redis/examine.rs`, `node/local/examine.rs`). The judgement is
//! here, in pure functions.

#![cfg_attr(
    not(all(feature = "redis", feature = "local", unix)),
    allow(dead_code, unused_imports)
)]

mod check;
pub(crate) mod facts;
mod info;
mod judge;
mod judge_all;
mod judge_store;
pub(crate) mod measure;
pub(crate) mod members;
mod shell;

use std::time::Duration;

use crate::node::NodeError;

pub use check::Check;
pub(crate) use info::Info;
pub(crate) use judge::{lacks_replicas, name_and_version, too_slow};
pub(crate) use judge_all::findings;
pub use measure::{Measurement, Pace, Spread};
#[doc(hidden)]
pub use shell::quoted;

/// What a check found, in the order of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Status {
    /// All is well.
    Ok,
    /// The server does not say, for example because a provider hides the field or the user lacks a
    /// permission.
    Unknown,
    /// It works, and may fail under conditions that can be expected.
    Warn,
    /// Locks do not work, or do not exclude.
    Fail,
}

/// What one check found about one node, or about all of them together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The check.
    pub check: Check,
    /// The label of the node. `None` if the finding is about the deployment.
    pub node: Option<String>,
    /// How serious it is.
    pub status: Status,
    /// What was seen.
    pub seen: String,
    /// What to do about it. Empty if there is nothing to do. Commands for a shell are in backticks, and
    /// words in capital letters stand for values to fill in, such as `CA_FILE` for the file with the
    /// certificate of [`Builder::tls_root_certificate`](crate::Builder::tls_root_certificate).
    pub remedy: String,
}

/// What [`Builder::doctor`](crate::Builder::doctor) found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The labels of the nodes.
    pub nodes: Vec<String>,
    /// What each check found, in the order of [`Check::ALL`]. A check that does not apply to a node
    /// is left out, and so are the other checks of a node that does not answer.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Returns the highest status of all findings.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::doctor::Status;
    /// use leasehold::{Client, MemoryNode};
    ///
    /// let report = Client::builder().custom_node(MemoryNode::new("memory")).doctor().await?;
    /// assert_eq!(report.status(), Status::Ok);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn status(&self) -> Status {
        let statuses = self.findings.iter().map(|finding| finding.status);
        statuses.max().unwrap_or(Status::Ok)
    }

    /// Whether a majority of the nodes answers and accepts this client's user.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # use leasehold::{Client, MemoryNode};
    /// let report = Client::builder().custom_node(MemoryNode::new("memory")).doctor().await?;
    /// assert!(report.is_reachable());
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        let answers = |node: &&String| {
            let of_node = |finding: &&Finding| finding.node.as_ref() == Some(*node);
            let findings: Vec<_> = self.findings.iter().filter(of_node).collect();
            // A node that could not be examined has one finding, which says why.
            let refuses = |finding: &&&Finding| {
                let entry = matches!(finding.check, Check::Reach | Check::Auth);
                finding.status == Status::Fail && (entry || findings.len() == 1)
            };
            findings.iter().filter(refuses).count() == 0
        };
        let answering = self.nodes.iter().filter(answers).count();
        answering >= crate::node::majority(self.nodes.len())
    }
}

/// The state of one node, from [`Builder::node_states`](crate::Builder::node_states).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeState {
    /// The label of the node.
    pub node: String,
    /// What the node reports, or why it does not answer.
    pub answer: Result<NodeFacts, NodeError>,
}

/// What a node reports about itself. `None` is what it does not report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeFacts {
    /// `master` or `replica`; `store` for the embedded store.
    pub role: Option<String>,
    /// The program and its version, such as `redis 7.0.15`.
    pub version: Option<String>,
    /// How long the node has been up.
    pub up: Option<Duration>,
    /// How long ago the epoch began: since when the node has certainly lost nothing. `None` if no
    /// client has used the node since it started.
    pub epoch_age: Option<Duration>,
    /// When the node votes. Zero if it does now, and `None` if it never does, because it is a
    /// replica.
    pub votes_in: Option<Duration>,
    /// How far the node's clock is ahead of the clock of this machine, in microseconds.
    pub clock_offset_us: Option<i64>,
    /// The round trip of one small request: the shortest of five.
    pub latency: Option<Duration>,
}

#[cfg(test)]
mod tests;
