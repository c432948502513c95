//! What is reported of a node, handshake by handshake.

use std::sync::Mutex;

use leasehold_testkit::setup::until;

use super::*;
use crate::base::clock::Clock;
use crate::node::Call;
use crate::observe::Observer;

/// A node with this status.
struct Stub(Option<Result<(), NodeError>>);

impl Node for Stub {
    fn label(&self) -> &str {
        "stub"
    }

    fn submit(&self, _: Call) {}

    fn status(&self) -> Option<Result<(), NodeError>> {
        self.0.clone()
    }
}

#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<NodeEvent>>>);

impl Observer for Recorder {
    fn event(&self, event: &Event) {
        if let Event::Node(event) = event {
            self.0.lock().unwrap().push(event.clone());
        }
    }
}

/// A client's view of a node with a connection, and of others without one.
struct Watched {
    sight: Arc<Sight>,
    nodes: Vec<Arc<dyn Node>>,
    watch: NodeWatch,
    recorder: Recorder,
}

impl Watched {
    fn beside(others: Vec<Stub>) -> Self {
        let others = others
            .into_iter()
            .map(|stub| Arc::new(stub) as Arc<dyn Node>);
        let mut nodes: Vec<Arc<dyn Node>> = vec![Arc::new(Stub(None))];
        nodes.extend(others);
        let recorder = Recorder::default();
        let observers: Vec<Arc<dyn Observer>> = vec![Arc::new(recorder.clone())];
        let sight = Arc::new(Sight::new(Clock::default(), nodes.len(), observers, None));
        let watch = NodeWatch::new(&sight, 0);
        sight.start(&nodes);
        Self {
            sight,
            nodes,
            watch,
            recorder,
        }
    }

    /// The next events: what changed, and the margin.
    async fn events(&self, count: usize) -> Vec<(&'static str, i64)> {
        until("the events are delivered", || {
            self.recorder.0.lock().unwrap().len() >= count
        })
        .await;
        for _ in 0..10 {
            // Further ones would be delivered now.
            tokio::task::yield_now().await;
        }
        let events = std::mem::take(&mut *self.recorder.0.lock().unwrap());
        let of = |event: &NodeEvent| (kind(&event.change), event.quorum_margin);
        events.iter().map(of).collect()
    }

    async fn changes(&self, count: usize) -> Vec<&'static str> {
        let events = self.events(count).await;
        events.into_iter().map(|(change, _)| change).collect()
    }
}

fn kind(change: &NodeChange) -> &'static str {
    match change {
        NodeChange::Connected { .. } => "connected",
        NodeChange::Up => "up",
        NodeChange::Down { .. } => "down",
        NodeChange::Epoch => "epoch",
        NodeChange::Quarantined { .. } => "quarantined",
        NodeChange::QuarantineOver => "votes",
        NodeChange::TooFewReplicas { .. } | NodeChange::EnoughReplicas => "replicas",
    }
}

/// What a handshake found: a quarantine of this many minutes from `start`.
fn found(start: Moment, minutes: u64) -> Found {
    let until = start + Duration::from_secs(60 * minutes);
    Found {
        floor: 1,
        clock_offset_us: 1,
        quarantined_until: (minutes > 0).then_some(until),
    }
}

/// No request was sent between the end of the quarantine and the end of the connection.
#[tokio::test]
async fn the_next_handshake_reports_that_a_quarantine_is_over() {
    let watched = Watched::beside(Vec::new());
    let (watch, start) = (&watched.watch, Moment::now());
    watch.connected("a", &found(start, 60));
    assert_eq!(watched.changes(3).await, ["connected", "up", "quarantined"]);
    watch.connected("a", &found(start, 0));
    assert_eq!(watched.changes(2).await, ["connected", "votes"]);
    // It is reported once, whoever notices it.
    watch.votes_again("a");
    watch.renewed("a", &found(start, 0));
    watch.connected("a", &found(start, 0));
    assert_eq!(watched.changes(1).await, ["connected"]);
}

#[tokio::test]
async fn a_quarantine_that_gets_longer_is_reported_again() {
    let watched = Watched::beside(Vec::new());
    let (watch, start) = (&watched.watch, Moment::now());
    watch.connected("a", &found(start, 60));
    assert_eq!(watched.changes(3).await, ["connected", "up", "quarantined"]);
    // The same end, as another handshake computes it.
    let same = start + Duration::from_millis(10);
    watch.connected("a", &found(same, 60));
    assert_eq!(watched.changes(1).await, ["connected"]);
    watch.renewed("a", &found(start, 120));
    assert_eq!(watched.changes(1).await, ["quarantined"]);
    let left = watched.sight.stats(&watched.nodes).nodes[0].quarantine_left;
    assert!(left > Duration::from_secs(60 * 60), "{left:?}");
    watch.votes_again("a");
    assert_eq!(watched.changes(1).await, ["votes"]);
}

/// The margin in events is that of [`Stats`](crate::observe::Stats), also beside nodes without a
/// connection, of which one fails.
#[tokio::test]
async fn the_margin_in_events_is_that_of_the_stats() {
    let down = || Stub(Some(Err(NodeError::Unanswered)));
    let watched = Watched::beside(vec![Stub(Some(Ok(()))), down(), down(), Stub(None)]);
    let (watch, start) = (&watched.watch, Moment::now());
    let margin = || watched.sight.stats(&watched.nodes).quorum_margin;
    assert_eq!(margin(), -2);
    watch.connected("a", &found(start, 0));
    assert_eq!(margin(), -1);
    let events = watched.events(2).await;
    assert_eq!(events, [("connected", -1), ("up", -1)]);
    watch.down("a", &NodeError::Unanswered);
    assert_eq!(margin(), -2);
    assert_eq!(watched.events(1).await, [("down", -2)]);
    // In quarantine from the first event on.
    watch.connected("a", &found(start, 60));
    assert_eq!(margin(), -2);
    let events = watched.events(3).await;
    assert_eq!(events, [("connected", -2), ("up", -2), ("quarantined", -2)]);
    watch.votes_again("a");
    assert_eq!(
        (watched.events(1).await, margin()),
        (vec![("votes", -1)], -1)
    );
}
