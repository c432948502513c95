//! Records events with the `metrics` facade.

use std::sync::Arc;
use std::time::Duration;

use metrics::{
    SharedString, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};

use super::event::loss_as_str;
use super::{
    Acquire, End, Ended, Event, NodeChange, NodeEvent, Observer, Outcome, Renewal, Request,
};
use crate::node::{NodeError, Verb};

const ACQUIRE_WAIT: &str = "leasehold_acquire_wait_seconds";
const HOLD: &str = "leasehold_hold_seconds";
const LEASES_HELD: &str = "leasehold_leases_held";
const WAITERS: &str = "leasehold_waiters";
const CONTENDED: &str = "leasehold_contended_total";
const HAND_OVERS: &str = "leasehold_handovers_total";
const LOST: &str = "leasehold_lost_total";
const RENEWALS: &str = "leasehold_renewals_total";
const SLACK: &str = "leasehold_lease_slack_seconds";
const NODE_REQUEST: &str = "leasehold_node_request_seconds";
const NODE_UP: &str = "leasehold_node_up";
const NODE_QUARANTINE: &str = "leasehold_node_quarantine_seconds";
const NODE_CLOCK_OFFSET: &str = "leasehold_node_clock_offset_seconds";
const NODE_RECONNECTS: &str = "leasehold_node_reconnects_total";
const NODE_EPOCHS: &str = "leasehold_node_epochs_total";
const NODE_UNREPLICATED: &str = "leasehold_node_unreplicated";
const QUORUM_MARGIN: &str = "leasehold_quorum_margin";

/// An observer that records metrics with the recorder that the program has installed for the
/// `metrics` crate, for example that of `metrics-exporter-prometheus`. Names, labels and meaning are in
/// `docs/observability.md`.
///
/// The name of a lock is never a label; see [`Options::class`](crate::Options::class). Histograms are in
/// seconds: the exporter chooses the buckets.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// use leasehold::observe::MetricsObserver;
/// use leasehold::{Client, MemoryNode};
///
/// // After the recorder was installed.
/// let client = Client::builder()
///     .custom_node(MemoryNode::new("memory"))
///     .observer(MetricsObserver::new())
///     .build()?;
/// # drop(client); Ok(()) }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct MetricsObserver {
    requests: bool,
}

impl Default for MetricsObserver {
    fn default() -> Self {
        Self::new()
    }
}

impl MetricsObserver {
    /// Creates the observer, and describes all metrics to the recorder. Install the recorder before.
    #[must_use]
    pub fn new() -> Self {
        use Unit::{Count, Seconds};
        let seconds = |name, text: &'static str| describe_histogram!(name, Seconds, text);
        seconds(ACQUIRE_WAIT, "How long calls to acquire a lock took");
        seconds(HOLD, "How long leases were held");
        seconds(SLACK, "How much of a lease was left when a renewal ended");
        seconds(NODE_REQUEST, "How long a node took to answer a request");
        let gauge = |name, unit, text: &'static str| describe_gauge!(name, unit, text);
        gauge(LEASES_HELD, Count, "Leases that are held");
        gauge(WAITERS, Count, "Calls that wait for a lock");
        gauge(NODE_UP, Count, "1 if the node can be asked, 0 if not");
        let quarantine = "For how long the node does not vote, from when that began; 0 if it votes";
        gauge(NODE_QUARANTINE, Seconds, quarantine);
        let offset = "How far the node's clock is ahead of the client's";
        gauge(NODE_CLOCK_OFFSET, Seconds, offset);
        let unreplicated = "1 if too few replicas acknowledge locks, 0 if enough do again";
        gauge(NODE_UNREPLICATED, Count, unreplicated);
        let margin = "How many more nodes may fail; below 0: there is no majority";
        gauge(QUORUM_MARGIN, Count, margin);
        let count = |name, text: &'static str| describe_counter!(name, Count, text);
        count(CONTENDED, "Calls that found the lock taken");
        count(HAND_OVERS, "Leases that were handed over to a waiter");
        count(
            LOST,
            "Leases that were lost, without those that expired as intended",
        );
        count(RENEWALS, "Renewals of leases");
        count(
            NODE_RECONNECTS,
            "How often the client connected to the node again",
        );
        count(
            NODE_EPOCHS,
            "How often the node turned out to have lost its memory",
        );
        Self { requests: true }
    }

    /// Does not record `leasehold_node_request_seconds`. By default, it is recorded: every request to
    /// every node is timed and reported, which costs more than all other metrics together.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::observe::MetricsObserver;
    /// use leasehold::{Client, MemoryNode};
    ///
    /// let client = Client::builder()
    ///     .custom_node(MemoryNode::new("memory"))
    ///     .observer(MetricsObserver::new().without_requests())
    ///     .build()?;
    /// # drop(client); Ok(()) }
    /// ```
    #[must_use]
    pub fn without_requests(self) -> Self {
        Self { requests: false }
    }
}

impl Observer for MetricsObserver {
    fn event(&self, event: &Event) {
        match event {
            Event::Waiting(waiting) => {
                gauge!(WAITERS, "class" => label(&waiting.class)).increment(1.0);
            }
            Event::Acquire(call) => acquired(call),
            Event::Renewal(renewal) => renewed(renewal),
            Event::Ended(lease) => ended(lease),
            Event::Node(node) => node_changed(node),
            // From an observer that passes its events on.
            Event::Request(request) if self.requests => requested(request),
            Event::Request(_) => {}
        }
    }

    fn wants_requests(&self) -> bool {
        self.requests
    }
}

/// The value of a label. Copies nothing.
fn label(text: &Arc<str>) -> SharedString {
    SharedString::from(Arc::clone(text))
}

fn acquired(call: &Acquire) {
    let outcome = call.outcome.as_str();
    histogram!(ACQUIRE_WAIT, "class" => label(&call.class), "outcome" => outcome)
        .record(call.waited);
    if call.contended {
        counter!(CONTENDED, "class" => label(&call.class)).increment(1);
    }
    if call.did_wait {
        gauge!(WAITERS, "class" => label(&call.class)).decrement(1.0);
    }
    if call.outcome == Outcome::Granted {
        gauge!(LEASES_HELD, "class" => label(&call.class)).increment(1.0);
    }
    if let Some(by) = call.hand_over {
        counter!(HAND_OVERS, "class" => label(&call.class), "by" => by.as_str()).increment(1);
    }
}

fn renewed(renewal: &Renewal) {
    let outcome = match renewal.ok {
        true => "ok",
        false => "failed",
    };
    counter!(RENEWALS, "class" => label(&renewal.class), "outcome" => outcome).increment(1);
    // A lease that was handed over begins with little time, which is no reason for alarm.
    if !renewal.confirms_hand_over {
        histogram!(SLACK, "class" => label(&renewal.class)).record(renewal.slack);
    }
}

fn ended(lease: &Ended) {
    let class = || label(&lease.class);
    histogram!(HOLD, "class" => class(), "ended" => lease.end.as_str()).record(lease.held);
    gauge!(LEASES_HELD, "class" => class()).decrement(1.0);
    // A lease that expires as intended is no reason for alarm.
    if let Some(loss) = lease.loss
        && lease.end != End::Expired
    {
        counter!(LOST, "class" => class(), "why" => loss_as_str(loss)).increment(1);
    }
}

fn node_changed(event: &NodeEvent) {
    let node = || label(&event.node);
    match &event.change {
        NodeChange::Connected {
            again,
            clock_offset_us,
        } => {
            // Also the first time, so that the series exists before something happens.
            counter!(NODE_RECONNECTS, "node" => node()).increment(u64::from(*again));
            counter!(NODE_EPOCHS, "node" => node()).increment(0);
            // Exact up to 2⁵³ µs, which are 285 years.
            let offset = *clock_offset_us as f64 / 1e6;
            gauge!(NODE_CLOCK_OFFSET, "node" => node()).set(offset);
        }
        NodeChange::Up => gauge!(NODE_UP, "node" => node()).set(1.0),
        NodeChange::Down { .. } => gauge!(NODE_UP, "node" => node()).set(0.0),
        NodeChange::Epoch => counter!(NODE_EPOCHS, "node" => node()).increment(1),
        NodeChange::Quarantined { left } => quarantine(node(), *left),
        NodeChange::QuarantineOver => quarantine(node(), Duration::ZERO),
        NodeChange::TooFewReplicas { .. } => gauge!(NODE_UNREPLICATED, "node" => node()).set(1.0),
        NodeChange::EnoughReplicas => gauge!(NODE_UNREPLICATED, "node" => node()).set(0.0),
    }
    gauge!(QUORUM_MARGIN).set(event.quorum_margin as f64);
}

fn quarantine(node: SharedString, left: Duration) {
    gauge!(NODE_QUARANTINE, "node" => node).set(left.as_secs_f64());
}

fn requested(request: &Request) {
    let verb = match request.verb {
        Verb::Acquire => "acquire",
        Verb::Wait => "wait",
        Verb::Extend => "extend",
        Verb::Release { .. } => "release",
    };
    let outcome = match request.error {
        None => "ok",
        Some(NodeError::TimedOut { .. }) => "timeout",
        Some(_) => "error",
    };
    let node = label(&request.node);
    histogram!(NODE_REQUEST, "node" => node, "verb" => verb, "outcome" => outcome)
        .record(request.took);
}

#[cfg(test)]
mod tests;
