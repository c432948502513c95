//! The only module that reads clocks or sleeps.
//!
//! Leases are timed by a clock that counts the time during which the machine is suspended
//! (`CLOCK_BOOTTIME` on Linux): after a suspend that was longer than the lease, the holder must not
//! take the lease for valid. [`std::time::Instant`] stops during suspend on Linux, so the deadline
//! of a lease is a [`Moment`].

use std::fmt;
use std::future::Future;
use std::ops::Add;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest single sleep. Timers of the runtime stop during suspend, so a long sleep would end
/// late by the length of the suspend. Sleeping in slices limits the delay.
const SLEEP_SLICE: Duration = Duration::from_millis(500);

/// A point in time on the local clock that counts suspend. It has a meaning only on this machine,
/// until the next boot.
///
/// ```
/// use leasehold::Moment;
/// use std::time::Duration;
///
/// let start = Moment::now();
/// let later = start + Duration::from_secs(5);
/// assert!(later > start);
/// assert_eq!(later.saturating_duration_since(start), Duration::from_secs(5));
/// assert_eq!(start.saturating_duration_since(later), Duration::ZERO);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment {
    nanos: u64,
}

impl Moment {
    /// The current time of the system's boot-time clock.
    #[must_use]
    pub fn now() -> Self {
        system::boot_time()
    }

    /// Returns the moment `since_origin` after the origin of the clock, which is usually the boot.
    /// For implementations of [`TimeSource`].
    #[must_use]
    pub fn from_origin(since_origin: Duration) -> Self {
        Self {
            nanos: u64::try_from(since_origin.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// Returns the time from `earlier` to this moment, or zero if `earlier` is not before it.
    #[must_use]
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos.saturating_sub(earlier.nanos))
    }

    pub(crate) const FAR: Self = Self { nanos: u64::MAX };

    pub(crate) fn saturating_sub(self, by: Duration) -> Self {
        Self {
            nanos: self.nanos.saturating_sub(nanos(by)),
        }
    }

    pub(crate) fn as_nanos(self) -> u64 {
        self.nanos
    }

    pub(crate) fn from_nanos(nanos: u64) -> Self {
        Self { nanos }
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    /// Saturates, so that a long duration cannot wrap a deadline around into the past.
    fn add(self, by: Duration) -> Self {
        Self {
            nanos: self.nanos.saturating_add(nanos(by)),
        }
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "boot+{:?}", Duration::from_nanos(self.nanos))
    }
}

fn nanos(of: Duration) -> u64 {
    u64::try_from(of.as_nanos()).unwrap_or(u64::MAX)
}

/// A source of time. Implement it to run leasehold on simulated time.
///
/// ```
/// use leasehold::{Moment, TimeSource};
/// use std::time::Duration;
///
/// /// The paused clock of a `tokio` test.
/// struct Paused(tokio::time::Instant);
///
/// impl TimeSource for Paused {
///     fn now(&self) -> Moment {
///         Moment::from_origin(self.0.elapsed())
///     }
///     fn unix_us(&self) -> u64 {
///         1_700_000_000_000_000 + self.0.elapsed().as_micros() as u64
///     }
/// }
/// ```
pub trait TimeSource: Send + Sync + 'static {
    /// Returns the current time of a clock that never goes back and counts suspend.
    fn now(&self) -> Moment;
    /// Returns the wall-clock time, in microseconds since 1970. It may jump: clients propose tokens
    /// from it, and no guarantee depends on it.
    fn unix_us(&self) -> u64;

    /// Sleeps for `duration`. By default this is a timer of the `tokio` runtime. A simulation can
    /// use the timers of its simulated processes here, which run at their own speed and stop with
    /// their process. A timer that fires late does no harm: callers read the clock again.
    ///
    /// Cancel safety: dropping the future must have no effect.
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// A cheap handle for a [`TimeSource`]. The default is the system's clocks.
#[derive(Clone, Default)]
pub(crate) struct Clock {
    source: Option<Arc<dyn TimeSource>>,
}

impl Clock {
    pub(crate) fn from_source(source: Arc<dyn TimeSource>) -> Self {
        Self {
            source: Some(source),
        }
    }

    pub(crate) fn now(&self) -> Moment {
        match &self.source {
            None => system::boot_time(),
            Some(source) => source.now(),
        }
    }

    pub(crate) fn unix_us(&self) -> u64 {
        match &self.source {
            None => system_unix_us(),
            Some(source) => source.unix_us(),
        }
    }

    /// Sleeps until `moment` by this clock.
    ///
    /// Cancel safety: dropping the future has no effect.
    pub(crate) async fn sleep_until(&self, moment: Moment) {
        loop {
            let left = moment.saturating_duration_since(self.now());
            if left.is_zero() {
                return;
            }
            let slice = left.min(SLEEP_SLICE);
            match &self.source {
                None => tokio::time::sleep(slice).await,
                Some(source) => source.sleep(slice).await,
            }
        }
    }

    /// Sleeps until `moment` with a single timer, which stops while the machine is suspended. For
    /// callers that read the clock themselves whenever they are polled. Outside of a `tokio`
    /// runtime there are no timers, and this never returns.
    ///
    /// Cancel safety: dropping the future has no effect.
    pub(crate) async fn timer_at(&self, moment: Moment) {
        let left = moment.saturating_duration_since(self.now());
        match &self.source {
            Some(source) => source.sleep(left).await,
            None if tokio::runtime::Handle::try_current().is_ok() => {
                tokio::time::sleep(left).await;
            }
            None => std::future::pending().await,
        }
    }

    pub(crate) async fn sleep(&self, duration: Duration) {
        self.sleep_until(self.now() + duration).await;
    }
}

fn system_unix_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
        })
}

mod system {
    use super::Moment;
    use std::time::Duration;

    #[cfg(unix)]
    pub(super) fn boot_time() -> Moment {
        use rustix::time::{ClockId, clock_gettime};
        // On systems other than Linux, `Monotonic` is the closest clock.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        const CLOCK: ClockId = ClockId::Boottime;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        const CLOCK: ClockId = ClockId::Monotonic;

        let time = clock_gettime(CLOCK);
        #[allow(clippy::unnecessary_cast)] // the width of the fields differs by platform
        Moment::from_origin(Duration::new(
            u64::try_from(time.tv_sec as i64).unwrap_or(0),
            u32::try_from(time.tv_nsec as i64).unwrap_or(0),
        ))
    }

    #[cfg(not(unix))]
    pub(super) fn boot_time() -> Moment {
        use std::sync::OnceLock;
        use std::time::Instant;
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        Moment::from_origin(ORIGIN.get_or_init(Instant::now).elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        let late = Moment::FAR + Duration::from_secs(1);
        assert_eq!(late, Moment::FAR);
        assert_eq!(
            Moment::from_nanos(5).saturating_sub(Duration::MAX),
            Moment::from_nanos(0)
        );
        assert_eq!(Moment::from_nanos(5) + Duration::MAX, Moment::FAR);
    }

    #[test]
    fn the_boot_clock_does_not_go_back() {
        let first = Moment::now();
        assert!(Moment::now() >= first);
    }
}
