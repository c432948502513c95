//! What observers receive, what is counted, and what an observer cannot break.

mod events;
mod harm;
mod nodes;
mod spans;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::observe::{Acquire, Ended, Event, NodeChange, Observer, Renewal};
use leasehold::{Builder, Client, MemoryNode};

/// Keeps all events.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Event>>>);

impl Observer for Recorder {
    fn event(&self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }

    fn wants_requests(&self) -> bool {
        true
    }
}

impl Recorder {
    fn pick<T>(&self, pick: impl Fn(Event) -> Option<T>) -> Vec<T> {
        let events = self.0.lock().unwrap().clone();
        events.into_iter().filter_map(pick).collect()
    }

    fn acquires(&self) -> Vec<Acquire> {
        self.pick(|event| match event {
            Event::Acquire(call) => Some(call),
            _ => None,
        })
    }

    fn ended(&self) -> Vec<Ended> {
        self.pick(|event| match event {
            Event::Ended(lease) => Some(lease),
            _ => None,
        })
    }

    fn renewals(&self) -> Vec<Renewal> {
        self.pick(|event| match event {
            Event::Renewal(renewal) => Some(renewal),
            _ => None,
        })
    }

    /// What happened to a node, and the margin after it.
    fn changes(&self) -> Vec<(NodeChange, i64)> {
        self.pick(|event| match event {
            Event::Node(event) => Some((event.change, event.quorum_margin)),
            _ => None,
        })
    }

    fn waiting(&self) -> usize {
        let is_waiting = |event: Event| matches!(event, Event::Waiting(_)).then_some(());
        self.pick(is_waiting).len()
    }
}

fn in_memory() -> Builder {
    let node = MemoryNode::new("memory");
    // A node that was created this moment cannot grant a token: the first request would be repeated.
    std::thread::sleep(Duration::from_millis(5));
    Client::builder().custom_node(node)
}

/// A client in memory, and what its observer has received.
fn recorded() -> (Recorder, Client) {
    let recorder = Recorder::default();
    let client = in_memory().observer(recorder.clone()).build();
    (recorder, client.expect("a client"))
}
