//! A clock for tests on a paused runtime.

use std::time::Duration;

use leasehold::{Moment, TimeSource};
use tokio::time::Instant;

/// The time of the tokio runtime, which a test can pause and advance.
///
/// The monotonic time starts at 1000 s, and the wall clock on a fixed day in 2027.
#[derive(Clone, Copy, Debug)]
pub struct RuntimeClock(Instant);

impl RuntimeClock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl TimeSource for RuntimeClock {
    fn now(&self) -> Moment {
        Moment::from_origin(Duration::from_secs(1_000) + self.0.elapsed())
    }

    fn unix_us(&self) -> u64 {
        1_800_000_000_000_000 + self.0.elapsed().as_micros() as u64
    }
}
