//! Clocks that are wrong in their own way: those of processes, and those of nodes.

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

/// What wall clocks show at the start, if they are right: some day in 2027, in µs.
pub const START_US: u64 = 1_800_000_000_000_000;

const MILLION: i128 = 1_000_000;

/// The clocks of a process: one that counts suspend and runs at its own speed, and a wall
/// clock that may be years off.
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

    /// How long `true_span` is by this clock.
    fn span(&self, true_span: Nanos) -> Nanos {
        let span = i128::from(true_span);
        (span + span * i128::from(self.ppm) / MILLION) as Nanos
    }

    /// How long `span` by this clock truly is, rounded up.
    pub fn true_span(&self, span: Duration) -> Nanos {
        let span = i128::try_from(span.as_nanos()).unwrap_or(i128::MAX / MILLION);
        let truly = span * MILLION / (MILLION + i128::from(self.ppm)) + 1;
        Nanos::try_from(truly).unwrap_or(Nanos::MAX)
    }

    /// What the clock that counts suspend shows at a true time.
    pub fn at(&self, now: Nanos) -> Moment {
        Moment::from_origin(Duration::from_nanos(1_000 * SECOND + self.span(now)))
    }

    fn unix_us(&self, now: Nanos) -> u64 {
        let right = START_US + self.span(now) / 1_000;
        right.saturating_add_signed(self.wall_us.load(Ordering::Relaxed))
    }

    /// Sets the wall clock; what it is off by from now on.
    pub fn set_wall(&self, wall_us: i64) {
        self.wall_us.store(wall_us, Ordering::Relaxed);
    }
}

/// A process's view of time, as the library sees it.
pub struct Watch {
    /// The run.
    pub world: Arc<World>,
    /// Whose view.
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

/// The wall clock of a node: near the true time, as servers that ask a time server are,
/// but always running a little too fast or too slow; and stepped, if a fault says so.
pub struct NodeClock {
    /// Too fast or too slow by so many millionths, by turns.
    ppm: u64,
    /// How far it strays to either side, in µs.
    stray_us: u64,
    /// Where in its swing it starts.
    phase_us: u64,
    offset_us: i64,
}

impl NodeClock {
    /// A clock that is off by `offset_us`, and strays by up to a second at this speed.
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
        right.saturating_add_signed(self.offset_us + self.stray(now / 1_000))
    }

    /// A triangle wave: out at `ppm` to one side, and back to the other.
    fn stray(&self, now_us: u64) -> i64 {
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

    /// How far it is off, straying aside.
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
    fn a_nodes_clock_strays_at_its_speed_and_stays_near() {
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
