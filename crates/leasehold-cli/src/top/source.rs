//! Reads locks and nodes in the background, and breaks locks. What it finds goes to the screen.
//!
//! Reading writes nothing to a server: the client never sends a claim, and so it never makes a
//! handshake, which would record an epoch. (Opening an embedded store may do that.) A lock is broken by
//! a client of its own.

use std::time::{Duration, Instant, SystemTime};

use leasehold::{Client, Listing};
use tokio::sync::{mpsc, watch};

use super::app::{Locks, Target, Update};
use super::row::Row;
use crate::acquire::shut_down;
use crate::break_lock::break_owner;
use crate::exit::Failure;
use crate::messages;
use crate::nodes::Deployment;
use crate::report::short;
use crate::subject::Subject;

/// How long a refresh may take. The library has shorter limits for each node; this one is for what it
/// does not foresee.
const WITHIN: Duration = Duration::from_secs(15);

/// When to refresh.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    pub(super) interval: Duration,
    pub(super) is_paused: bool,
    /// How often the user has asked for a refresh.
    pub(super) asked: u64,
}

/// Where locks and nodes are read.
pub(super) struct Source<'a> {
    pub(super) deployment: &'a Deployment<'a>,
    pub(super) prefix: &'a str,
    /// Reads the locks.
    pub(super) client: Client,
    pub(super) pace: watch::Receiver<Pace>,
}

impl Source<'_> {
    /// Runs until it is dropped. A node that does not answer delays the states of the nodes, and not
    /// the list of locks.
    pub(super) async fn run(
        &self,
        mut breaks: mpsc::UnboundedReceiver<Target>,
        send: impl Fn(Update),
    ) {
        let breaking = async {
            while let Some(target) = breaks.recv().await {
                let broken = self.break_lock(&target).await;
                send(Update::Broken(broken.map_err(|failure| failure.text)));
            }
        };
        let locks = self.repeat(async || Update::Locks(self.locks().await), &send);
        let nodes = self.repeat(async || Update::Nodes(self.nodes().await), &send);
        tokio::join!(locks, nodes, breaking);
    }

    /// Reads again and again. The pause is at least as long as the reading took, so that no server
    /// spends more than half of its time on it.
    async fn repeat(&self, read: impl AsyncFn() -> Update, send: impl Fn(Update)) {
        let mut pace = self.pace.clone();
        let mut served = pace.borrow().asked;
        let mut is_wanted = true;
        loop {
            let started = Instant::now();
            let update = read().await;
            // The user may have paused the screen in the meantime.
            if is_wanted || !pace.borrow().is_paused {
                send(update);
            }
            let (ended, took) = (Instant::now(), started.elapsed());
            loop {
                let now = *pace.borrow_and_update();
                is_wanted = now.asked != served;
                served = now.asked;
                if is_wanted {
                    break;
                }
                let left = now.interval.max(took).saturating_sub(ended.elapsed());
                if !now.is_paused && left.is_zero() {
                    break;
                }
                tokio::select! {
                    () = tokio::time::sleep(left), if !now.is_paused => {}
                    // The screen has ended.
                    changed = pace.changed() => if changed.is_err() { return },
                }
            }
        }
    }

    async fn locks(&self) -> Result<Locks, String> {
        let started = Instant::now();
        let listing = within(self.client.inspect_all()).await?;
        let Listing { locks, missing, .. } = listing.map_err(|error| messages::error(&error))?;
        let missing = missing.into_iter();
        let missing = missing.map(|(node, error)| (node, messages::node_error(&error)));
        let now = SystemTime::now();
        let rows = locks.into_iter().filter_map(|lock| {
            let subject = Subject::of(&lock, self.prefix);
            Row::new(subject, lock, now)
        });
        Ok(Locks {
            missing: missing.collect(),
            rows: rows.collect(),
            at: Instant::now(),
            took: started.elapsed(),
        })
    }

    async fn nodes(&self) -> Result<Vec<leasehold::doctor::NodeState>, String> {
        let builder = self.deployment.inspecting();
        let builder = builder.map_err(|failure| failure.text)?;
        let states = within(builder.node_states()).await?;
        states.map_err(|error| messages::error(&error))
    }

    async fn break_lock(&self, target: &Target) -> Result<Vec<String>, Failure> {
        let client = self.deployment.inspecting()?.build()?;
        let name = target.name.as_bytes();
        let broken = break_owner(&client, name, target.permit, &target.owner).await;
        shut_down(&client).await;
        broken
    }
}

async fn within<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let late = |_| format!("no answer within {}", short(WITHIN));
    tokio::time::timeout(WITHIN, work).await.map_err(late)
}
