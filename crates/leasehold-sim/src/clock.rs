//! Inaccurate clocks of processes and of nodes.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use leasehold::{Moment, TimeSource};

use crate::agenda::{Nanos, SECOND};
use crate::process::Process;
use crate::sync::locked;
use crate::world::World;

/// The correct wall clock time at the start: some day in 2027, in µs.
pub const START_US: u64 = 1_800_000_000_000_000;

const MILLION: i128 = 1_000_000;

/// The clocks of a process: a monotonic clock that counts suspend and runs at its own speed, and
/// a wall clock that may be years off.
pub struct ProcessClock {
    /// How much faster than true time it runs, in millionths.
    ppm: i64,
    wall_us: AtomicI64,
}

impl ProcessClock {
    /// A clock that is `ppm` millionths too fast, and a wall clock that is off by `wall_us`.
    pub fn new(ppm: i64, wall_us: i64) -> Self {
        let wall_us = AtomicI64::new(wall_us);
        Self { ppm, wall_us }
    }

    /// The length of `true_span` by this clock.
    fn span(&self, true_span: Nanos) -> Nanos {
        let span = i128::from(true_span);
        (span + span * i128::from(self.ppm) / MILLION) as Nanos
    }

    /// The true length of `span` by this clock, rounded up.
    pub fn true_span(&self, span: Duration) -> Nanos {
        let span = i128::try_from(span.as_nanos()).unwrap_or(i128::MAX / MILLION);
        let truly = span * MILLION / (MILLION + i128::from(self.ppm)) + 1;
        Nanos::try_from(truly).unwrap_or(Nanos::MAX)
    }

    /// What the monotonic clock shows at a true time.
    pub fn at(&self, now: Nanos) -> Moment {
        Moment::from_origin(Duration::from_nanos(1_000 * SECOND + self.span(now)))
    }

    fn unix_us(&self, now: Nanos) -> u64 {
        let right = START_US + self.span(now) / 1_000;
        right.saturating_add_signed(self.wall_us.load(Ordering::Relaxed))
    }

    /// Sets the wall clock, which is off by `wall_us` from now on.
    pub fn set_wall(&self, wall_us: i64) {
        self.wall_us.store(wall_us, Ordering::Relaxed);
    }
}

/// A process's time source, as the library sees it.
pub struct Watch {
    /// The run.
    pub world: Arc<World>,
    /// The process.
    pub process: Arc<Process>,
}

impl TimeSource for Watch {
    fn now(&self) -> Moment {
        self.process.clock.at(self.world.agenda.now())
    }

    fn unix_us(&self) -> u64 {
        self.process.clock.unix_us(self.world.agenda.now())
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(sleep(&self.world, &self.process, duration))
    }
}

/// Sleeps on a timer of a process: it runs at the process's speed, and fires only while
/// the process runs.
pub fn sleep(world: &Arc<World>, process: &Arc<Process>, duration: Duration) -> Sleep {
    let timer = Arc::new(Timer::default());
    let fired = Arc::clone(&timer);
    process.after(world, duration, move |_| fired.fire());
    Sleep(timer)
}

#[derive(Default)]
struct Timer {
    fired: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Timer {
    fn fire(&self) {
        self.fired.store(true, Ordering::Relaxed);
        if let Some(waker) = locked(&self.waker).take() {
            waker.wake();
        }
    }
}

/// Ends when its timer has fired.
pub struct Sleep(Arc<Timer>);

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.0.fired.load(Ordering::Relaxed) {
            return Poll::Ready(());
        }
        *locked(&self.0.waker) = Some(cx.waker().clone());
        Poll::Pending
    }
}

/// The wall clock of a node. It stays near the true time, like that of a server with a time
/// service, but always runs a little too fast or too slow. A fault may step it.
pub struct NodeClock {
    /// How many millionths it runs too fast and too slow, alternately.
    ppm: u64,
    /// How far it deviates to either side, in µs.
    stray_us: u64,
    /// The position in its swing at the start.
    phase_us: u64,
    offset_us: i64,
}

impl NodeClock {
    /// A clock that is off by `offset_us`, and deviates by up to a second at this speed.
    pub fn new(ppm: u64, phase_us: u64, offset_us: i64) -> Self {
        Self {
            ppm,
            stray_us: 1_000_000,
            phase_us,
            offset_us,
        }
    }

    /// What it shows, in µs since 1970.
    pub fn at(&self, now: Nanos) -> u64 {
        let right = START_US + now / 1_000;
        right.saturating_add_signed(self.offset_us + self.deviation(now / 1_000))
    }

    /// The deviation, a triangle wave with a slope of `ppm`.
    fn deviation(&self, now_us: u64) -> i64 {
        if self.ppm == 0 {
            return 0;
        }
        let swing = u128::from(2 * self.stray_us);
        let way = u128::from(now_us) * u128::from(self.ppm) / 1_000_000;
        let at = ((way + u128::from(self.phase_us)) % (2 * swing)) as i64;
        let swing = swing as i64;
        (at - swing).abs() - swing / 2
    }

    /// Steps it.
    pub fn step(&mut self, by_us: i64) {
        self.offset_us += by_us;
    }

    /// How far it has been stepped, without the deviation.
    pub fn offset_us(&self) -> i64 {
        self.offset_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timer_never_fires_early_by_its_own_clock() {
        for ppm in [-500_000, -4_700, 0, 1, 4_700, 1_000_000] {
            let clock = ProcessClock::new(ppm, 0);
            for span in [1, 999, 10_000_000, 86_400_000_000_000] {
                let truly = clock.true_span(Duration::from_nanos(span));
                assert!(clock.span(truly) >= span, "{ppm} {span}");
            }
        }
    }

    #[test]
    fn a_nodes_clock_deviates_at_its_rate_and_within_its_bound() {
        let clock = NodeClock::new(4_700, 0, 0);
        let mut last = clock.at(0);
        for second in 1..10_000 {
            let now = clock.at(second * SECOND);
            let went = now - last;
            assert!((995_299..=1_004_701).contains(&went), "{went}");
            assert!((now - START_US).abs_diff(second * 1_000_000) <= 1_000_001);
            last = now;
        }
    }
}
