//! True time, and the queue of events that drives the simulation.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex};

use crate::sync::locked;
use crate::world::World;

/// True time of the simulation, in nanoseconds since its start. No simulated clock shows it.
pub type Nanos = u64;

/// One second of true time.
pub const SECOND: Nanos = 1_000_000_000;
/// One millisecond of true time.
pub const MILLI: Nanos = 1_000_000;

/// The action of an event.
pub type Event = Box<dyn FnOnce(&Arc<World>) + Send>;

/// Events by their time. Events of the same moment happen in the order in which they were
/// entered, so that a seed always gives the same run.
#[derive(Default)]
pub struct Agenda {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    now: Nanos,
    entered: u64,
    happened: u64,
    due: BinaryHeap<Reverse<Entry>>,
}

struct Entry {
    at: Nanos,
    order: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl Agenda {
    /// The true time.
    pub fn now(&self) -> Nanos {
        locked(&self.state).now
    }

    /// The number of events that have happened.
    pub fn happened(&self) -> u64 {
        locked(&self.state).happened
    }

    /// Enters an event. An event in the past happens now.
    pub fn enter(&self, at: Nanos, event: impl FnOnce(&Arc<World>) + Send + 'static) {
        let mut state = locked(&self.state);
        let (at, order) = (at.max(state.now), state.entered);
        state.entered += 1;
        let event = Box::new(event);
        state.due.push(Reverse(Entry { at, order, event }));
    }

    /// Advances to the next event, if there is one before `until`, or else to `until`.
    pub fn next(&self, until: Nanos) -> Option<Event> {
        let mut state = locked(&self.state);
        let is_due = |Reverse(entry): &Reverse<Entry>| entry.at <= until;
        if !state.due.peek().is_some_and(is_due) {
            state.now = state.now.max(until);
            return None;
        }
        let Reverse(entry) = state.due.pop()?;
        state.now = entry.at;
        state.happened += 1;
        Some(entry.event)
    }

    /// Drops all events at the end of a run.
    pub fn clear(&self) {
        let due = std::mem::take(&mut locked(&self.state).due);
        // Outside of the lock: destructors of the events may read the clock.
        drop(due);
    }
}
