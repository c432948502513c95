//! Clocks for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leasehold::node::Node;
use leasehold::{Client, MemoryNode, Moment, TimeSource};
use tokio::time::Instant;

/// The wall-clock time of the system, in microseconds since 1970.
///
/// # Panics
/// If the clock is set to a time before 1970.
#[must_use]
pub fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.expect("after 1970").as_micros() as u64
}

/// The time of the tokio runtime, which a test can pause and advance.
///
/// The monotonic time starts at 1000 s, and the wall clock on a fixed day in 2027.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeClock {
    start: Instant,
    behind: Duration,
}

impl RuntimeClock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
            behind: Duration::ZERO,
        }
    }

    /// The same clock, with a wall clock that is behind by this time.
    #[must_use]
    pub fn behind(self, by: Duration) -> Self {
        Self { behind: by, ..self }
    }

    /// Nodes in memory on this clock, called `n0`, `n1` and so on.
    #[must_use]
    pub fn nodes(self, count: usize) -> Vec<MemoryNode> {
        let node = |n| MemoryNode::with_time_source(format!("n{n}"), Arc::new(self));
        (0..count).map(node).collect()
    }

    /// A client of these nodes on this clock, without a restart guard.
    ///
    /// # Panics
    /// If there are no nodes, or too many.
    #[must_use]
    pub fn client<N: Node>(self, nodes: impl IntoIterator<Item = N>) -> Client {
        let builder = Client::builder().time_source(self).without_restart_guard();
        let nodes = nodes.into_iter();
        let builder = nodes.fold(builder, |builder, node| builder.custom_node(node));
        builder.build().expect("a client")
    }
}

impl TimeSource for RuntimeClock {
    fn now(&self) -> Moment {
        Moment::from_origin(Duration::from_secs(1_000) + self.start.elapsed())
    }

    fn unix_us(&self) -> u64 {
        let at = Duration::from_secs(1_800_000_000) + self.start.elapsed() - self.behind;
        at.as_micros() as u64
    }
}

/// The clocks of the system, with a wall clock that a test can set wrong. Clones are the same
/// clock.
#[derive(Clone, Debug, Default)]
pub struct ShiftedClock(Arc<AtomicI64>);

impl ShiftedClock {
    /// A clock that is ahead by this many seconds, or behind if they are negative.
    #[must_use]
    pub fn ahead_by(seconds: i64) -> Self {
        let clock = Self::default();
        clock.set_ahead_by(seconds);
        clock
    }

    /// Sets how many seconds the clock is ahead, or behind if they are negative.
    pub fn set_ahead_by(&self, seconds: i64) {
        self.0.store(seconds, Ordering::Relaxed);
    }
}

impl TimeSource for ShiftedClock {
    fn now(&self) -> Moment {
        Moment::now()
    }

    fn unix_us(&self) -> u64 {
        let seconds = self.0.load(Ordering::Relaxed);
        unix_us().saturating_add_signed(seconds * 1_000_000)
    }
}
