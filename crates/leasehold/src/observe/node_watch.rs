//! What a client sees of one node.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use super::counters::Counter;
use super::event::{Event, NodeChange, NodeEvent};
use super::sight::Sight;
use super::stats::{NodeState, NodeStats};
use crate::base::clock::Moment;
use crate::base::vote::NodeError;
use crate::node::Node;

/// The states of a node with a connection.
const UNKNOWN: u8 = 1;
const UP: u8 = 2;
const DOWN: u8 = 3;

/// Every handshake computes the end of a quarantine from the server's clock. Within this time, it is the
/// same end.
const SAME_END: Duration = Duration::from_secs(1);

/// What a handshake has changed.
struct Changed {
    /// The node has another memory.
    epoch: bool,
    /// For how long the node does not vote, if that has changed; zero if it votes again.
    quarantine: Option<Duration>,
}

/// What is known of a node.
#[derive(Default)]
pub(super) struct Seen {
    /// 0 for a node without a connection: it says itself whether it works.
    state: AtomicU8,
    pub(super) requests: Counter,
    pub(super) errors: Counter,
    connections: Counter,
    epochs: Counter,
    /// The floor of the node's epoch; 0 before the first handshake.
    floor: AtomicU64,
    /// Until when the node does not vote.
    quarantined_until: AtomicU64,
    clock_offset_us: AtomicI64,
}

impl Seen {
    fn quarantine_left(&self, now: Moment) -> Duration {
        let until = Moment::from_nanos(self.quarantined_until.load(Ordering::Relaxed));
        until.saturating_duration_since(now)
    }

    /// Notes what a handshake has found out.
    fn note(&self, found: &Found, now: Moment) -> Changed {
        // The floor follows from when the epoch began.
        let floor = self.floor.swap(found.floor, Ordering::Relaxed);
        let epoch = floor != 0 && floor != found.floor;
        if epoch {
            self.epochs.add();
        }
        let until = found.quarantined_until.filter(|until| *until > now);
        let nanos = until.map_or(0, Moment::as_nanos);
        let before = self.quarantined_until.swap(nanos, Ordering::Relaxed);
        let is_later = Moment::from_nanos(nanos) > Moment::from_nanos(before) + SAME_END;
        let quarantine = match until {
            // It ended while there was no connection, or no request.
            None => (before != 0).then_some(Duration::ZERO),
            Some(until) => is_later.then(|| until.saturating_duration_since(now)),
        };
        Changed { epoch, quarantine }
    }

    pub(super) fn stats(&self, node: &dyn Node, now: Moment) -> NodeStats {
        let state = self.state.load(Ordering::Relaxed);
        let connections = self.connections.get();
        NodeStats {
            node: node.label().to_owned(),
            state: match (state, node.status()) {
                (UNKNOWN, _) | (0, None) => NodeState::Unknown,
                (UP, _) | (0, Some(Ok(()))) => NodeState::Up,
                (_, status) => NodeState::Down {
                    why: status.and_then(Result::err),
                },
            },
            requests: self.requests.get(),
            errors: self.errors.get(),
            reconnects: connections.saturating_sub(1),
            epochs: self.epochs.get(),
            quarantine_left: self.quarantine_left(now),
            clock_offset_us: (connections > 0)
                .then(|| self.clock_offset_us.load(Ordering::Relaxed)),
        }
    }
}

/// Reports what happens to the connection of one node. Without a client, it does nothing.
#[derive(Clone, Default)]
#[cfg_attr(
    not(any(feature = "redis", feature = "planted-bugs")),
    allow(dead_code)
)]
pub(crate) struct NodeWatch(Option<(Arc<Sight>, usize)>);

/// What a handshake found out.
#[cfg_attr(
    not(any(feature = "redis", feature = "planted-bugs")),
    allow(dead_code)
)]
pub(crate) struct Found {
    pub(crate) floor: u64,
    /// By how many microseconds the node's clock is ahead of the client's.
    pub(crate) clock_offset_us: i64,
    pub(crate) quarantined_until: Option<Moment>,
}

#[cfg_attr(not(feature = "redis"), allow(dead_code))]
impl NodeWatch {
    /// Watches the connection of the node with this index.
    pub(crate) fn new(sight: &Arc<Sight>, index: usize) -> Self {
        let state = UNKNOWN;
        sight.nodes[index].state.store(state, Ordering::Relaxed);
        Self(Some((Arc::clone(sight), index)))
    }

    /// The client has a new connection, and has completed its handshake.
    pub(crate) fn connected(&self, label: &str, found: &Found) {
        let Some((sight, index)) = &self.0 else {
            return;
        };
        let seen = &sight.nodes[*index];
        let again = seen.connections.get() > 0;
        seen.connections.add();
        let clock_offset_us = found.clock_offset_us;
        seen.clock_offset_us
            .store(clock_offset_us, Ordering::Relaxed);
        let was = seen.state.swap(UP, Ordering::Relaxed);
        // Before anything is reported, because each event has the margin.
        let changed = seen.note(found, sight.clock.now());
        self.report(label, || NodeChange::Connected {
            again,
            clock_offset_us,
        });
        if was != UP {
            tracing::info!(node = label, "node is up");
            self.report(label, || NodeChange::Up);
        }
        self.report_changed(label, changed);
    }

    /// Another handshake was completed, over the same connection.
    pub(crate) fn renewed(&self, label: &str, found: &Found) {
        if let Some((sight, index)) = &self.0 {
            let changed = sight.nodes[*index].note(found, sight.clock.now());
            self.report_changed(label, changed);
        }
    }

    /// The quarantine is over.
    pub(crate) fn votes_again(&self, label: &str) {
        if let Some((sight, index)) = &self.0 {
            let until = &sight.nodes[*index].quarantined_until;
            if until.swap(0, Ordering::Relaxed) != 0 {
                self.report_votes_again(label);
            }
        }
    }

    /// Reports what a handshake has changed.
    fn report_changed(&self, label: &str, Changed { epoch, quarantine }: Changed) {
        if epoch {
            tracing::warn!(
                node = label,
                "node has lost its memory, or another server answers"
            );
            self.report(label, || NodeChange::Epoch);
        }
        match quarantine {
            None => {}
            Some(Duration::ZERO) => self.report_votes_again(label),
            Some(left) => {
                tracing::warn!(
                    node = label,
                    ?left,
                    "node does not vote: it may have lost locks"
                );
                self.report(label, || NodeChange::Quarantined { left });
            }
        }
    }

    fn report_votes_again(&self, label: &str) {
        tracing::info!(node = label, "node votes again");
        self.report(label, || NodeChange::QuarantineOver);
    }

    /// Too few replicas acknowledge locks, or enough do again.
    pub(crate) fn replicas(&self, label: &str, acked: Result<u32, &NodeError>, wanted: u32) {
        match acked {
            Ok(acked) if acked >= wanted => {
                tracing::info!(
                    node = label,
                    wanted,
                    "enough replicas acknowledge locks again"
                );
                return self.report(label, || NodeChange::EnoughReplicas);
            }
            Ok(acked) => {
                tracing::warn!(
                    node = label,
                    acked,
                    wanted,
                    "too few replicas acknowledge locks"
                );
            }
            Err(why) => {
                tracing::warn!(node = label, %why, "it is not known whether replicas have the locks");
            }
        }
        let acked = acked.ok();
        self.report(label, || NodeChange::TooFewReplicas { acked, wanted });
    }

    /// The node cannot be asked until it is connected again.
    pub(crate) fn down(&self, label: &str, why: &NodeError) {
        let Some((sight, index)) = &self.0 else {
            return;
        };
        if sight.nodes[*index].state.swap(DOWN, Ordering::Relaxed) != DOWN {
            tracing::warn!(node = label, %why, "node is down");
            self.report(label, || NodeChange::Down { why: why.clone() });
        }
    }

    fn report(&self, label: &str, change: impl FnOnce() -> NodeChange) {
        if let Some((sight, _)) = &self.0
            && let Some(quorum_margin) = sight.quorum_margin()
        {
            sight.queue(|| {
                Event::Node(NodeEvent {
                    node: label.into(),
                    change: change(),
                    quorum_margin,
                })
            });
        }
    }
}

#[cfg(test)]
mod tests;
