//! What a caller can choose per client and per call, and the limits of it.

use std::sync::Arc;
use std::time::Duration;

use crate::base::error::{Invalid, Refusal};
use crate::planted;

pub(crate) const MIN_TTL: Duration = Duration::from_millis(10);
pub(crate) const MAX_TTL: Duration = Duration::from_secs(24 * 3600);
pub(crate) const MAX_LABEL: usize = 256;
/// No option takes a longer duration; sums of a few of these cannot overflow.
const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 3600);

/// How long a call may wait for a lock that another holds.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
/// # let client = leasehold::Client::in_memory();
/// use leasehold::{Error, Wait};
/// use std::time::Duration;
///
/// let _held = client.mutex("x").lock().await?;
/// let wait = Wait::For(Duration::from_millis(10));
/// let refused = client.mutex("x").with_options(|o| o.wait(wait)).lock().await;
/// assert!(matches!(refused, Err(Error::TimedOut { .. })));
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Wait {
    /// Not at all: [`Error::Held`](crate::Error::Held) at once.
    No,
    /// At most so long, then [`Error::TimedOut`](crate::Error::TimedOut).
    For(Duration),
    /// As long as it takes.
    #[default]
    Forever,
}

/// What a caller can choose for a lease. Every client has defaults
/// ([`Builder::options`](crate::Builder::options)); every call can differ
/// ([`Mutex::with_options`](crate::Mutex::with_options)).
///
/// ```
/// use leasehold::{Options, Wait};
/// use std::time::Duration;
///
/// let options = Options::default()
///     .ttl(Duration::from_secs(30))
///     .wait(Wait::For(Duration::from_secs(5)))
///     .label("nightly-report");
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) ttl: Duration,
    pub(crate) wait: Wait,
    pub(crate) attempts: Option<u32>,
    pub(crate) barging: bool,
    pub(crate) fencing: bool,
    pub(crate) retry_delay: Duration,
    pub(crate) jitter_percent: u8,
    pub(crate) outage_patience: Duration,
    pub(crate) drift: Drift,
    pub(crate) renewal: bool,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) min_hold: Duration,
    pub(crate) node_timeout: Option<Duration>,
    pub(crate) label: Arc<str>,
    pub(crate) detached: bool,
    pub(crate) on_refusal: Option<OnRefusal>,
}

/// Somebody to tell about refusals.
#[derive(Clone)]
pub(crate) struct OnRefusal(pub(crate) Arc<dyn Fn(&Refusal) + Send + Sync>);

impl std::fmt::Debug for OnRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnRefusal")
    }
}

/// How much of a TTL is given up for clocks that run at different speeds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Drift {
    Default,
    Exactly(Duration),
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(10),
            wait: Wait::Forever,
            attempts: None,
            barging: false,
            fencing: true,
            retry_delay: Duration::from_millis(100),
            jitter_percent: 50,
            outage_patience: Duration::from_secs(1),
            drift: Drift::Default,
            renewal: true,
            max_hold: None,
            min_hold: Duration::ZERO,
            node_timeout: None,
            label: "".into(),
            detached: false,
            on_refusal: None,
        }
    }
}

impl Options {
    /// Default 10 s. How long a node keeps the lock without a renewal: what a
    /// crashed holder costs the others. 10 ms to 24 h, and with the restart guard
    /// on no longer than the guard. Counted in whole milliseconds.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        // Servers count in milliseconds. What they would cut off must not be relied on.
        self.ttl = ttl - Duration::from_nanos(u64::from(ttl.subsec_nanos() % 1_000_000));
        self
    }

    /// Default [`Wait::Forever`]. How long to wait while another holds the lock.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Default unlimited (`None`). How many attempts a call makes before it gives up with
    /// [`Error::Held`](crate::Error::Held), or in an outage with
    /// [`Error::NoMajority`](crate::Error::NoMajority). They are
    /// [`retry_delay`](Self::retry_delay) apart, plus jitter: with 6 attempts and 200 ms, a call
    /// gives up after one second at the earliest.
    ///
    /// Between its attempts the call stands in line like any other, and gets the lock as soon as
    /// its turn comes. It replaces [`outage_patience`](Self::outage_patience).
    /// [`wait`](Self::wait) counts as well, whichever ends first.
    /// [`Mutex::lock_timeout`](crate::Mutex::lock_timeout) and
    /// [`Mutex::try_lock_for`](crate::Mutex::try_lock_for) ignore it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// use leasehold::Error;
    /// use std::time::{Duration, Instant};
    ///
    /// let _held = client.mutex("x").lock().await?;
    /// let (delay, start) = (Duration::from_millis(20), Instant::now());
    /// let mutex = client.mutex("x").with_options(|o| o.attempts(3).retry_delay(delay));
    /// let error = mutex.lock().await.unwrap_err();
    /// assert!(matches!(error, Error::Held(_)) && start.elapsed() >= 2 * delay);
    /// assert!(error.to_string().starts_with("gave up after 3 attempts: `x` is held by"));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn attempts(mut self, attempts: impl Into<Option<u32>>) -> Self {
        self.attempts = attempts.into();
        self
    }

    /// Default off: who waits stands in line, is told when its turn has come, and is served in
    /// the order of coming. With it on, a waiting call asks again and again, and gets the lock
    /// if it happens to be free and nobody stands in line.
    #[must_use]
    pub fn barging(mut self) -> Self {
        self.barging = true;
        self
    }

    /// Turns [`barging`](Self::barging) off.
    #[must_use]
    pub fn without_barging(mut self) -> Self {
        self.barging = false;
        self
    }

    /// Default 100 ms. With [`attempts`](Self::attempts), the time between two of them. Otherwise
    /// the longest pause between two attempts of a waiting call that is not
    /// told when to ask: one that is [barging](Self::barging), that rides out an outage, or
    /// that is the first behind the lock of another library. The first pauses are shorter, and
    /// a lock that is about to expire is asked for again as soon as it has. Zero is allowed and
    /// means "at once".
    #[must_use]
    pub fn retry_delay(mut self, retry_delay: Duration) -> Self {
        self.retry_delay = retry_delay;
        self
    }

    /// Default 50 %. By how much a pause is randomly shortened, so that waiters
    /// do not ask in step. The time between [`attempts`](Self::attempts) is lengthened instead.
    /// 0 to 100.
    #[must_use]
    pub fn jitter_percent(mut self, percent: u8) -> Self {
        self.jitter_percent = percent;
        self
    }

    /// Default 1 s. How long a *waiting* call rides out an outage before it says
    /// [`Error::NoMajority`](crate::Error::NoMajority). A call that does not wait
    /// says so at once.
    #[must_use]
    pub fn outage_patience(mut self, patience: Duration) -> Self {
        self.outage_patience = patience;
        self
    }

    /// Default (`None`) 1 % of the TTL + 2 ms. How much of the TTL is given up for clocks
    /// that run at different speeds. Less than the TTL.
    #[must_use]
    pub fn drift(mut self, drift: impl Into<Option<Duration>>) -> Self {
        self.drift = drift.into().map_or(Drift::Default, Drift::Exactly);
        self
    }

    /// Default on. Turns fencing off: no token is asked for, which spares the servers about half
    /// of the work. It is the plain lock that other libraries take, for efficiency and not for
    /// correctness: at most one holder, as long as clocks run at about the right speed.
    ///
    /// [`Lease::token`](crate::Lease::token) is 0 then, and must not be shown to a resource that
    /// checks tokens. A lock that has to be waited for gets a token all the same: it stands in
    /// line with it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// # let client = leasehold::Client::in_memory();
    /// let mutex = client.mutex("cache/refill").with_options(|o| o.without_fencing());
    /// let lease = mutex.lock().await?;
    /// assert_eq!(lease.token(), 0);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn without_fencing(mut self) -> Self {
        self.fencing = false;
        self
    }

    /// Undoes [`without_fencing`](Self::without_fencing).
    #[must_use]
    pub fn with_fencing(mut self) -> Self {
        self.fencing = true;
        self
    }

    /// Default on. Turns automatic renewal off: the lease ends one TTL after it
    /// was taken unless [`Lease::extend`](crate::Lease::extend) is called.
    #[must_use]
    pub fn without_renewal(mut self) -> Self {
        self.renewal = false;
        self
    }

    /// Undoes [`without_renewal`](Self::without_renewal).
    #[must_use]
    pub fn with_renewal(mut self) -> Self {
        self.renewal = true;
        self
    }

    /// Default unlimited (`None`). The lease is lost after so long, however healthy its
    /// renewal: a cap for holders that hang.
    #[must_use]
    pub fn max_hold(mut self, max_hold: impl Into<Option<Duration>>) -> Self {
        self.max_hold = max_hold.into();
        self
    }

    /// Default zero (`None`). The name stays taken so long from the moment it was granted,
    /// even if the lease is released earlier: at most one run per period. A holder
    /// that crashes frees the name after its TTL all the same. At most 24 h.
    #[must_use]
    pub fn min_hold(mut self, min_hold: impl Into<Option<Duration>>) -> Self {
        self.min_hold = min_hold.into().unwrap_or_default();
        self
    }

    /// Default (`None`) 5 % of the TTL, at least 20 ms (but never more than the TTL) and at
    /// most 250 ms. How long one node may take for one request.
    ///
    /// An acquire returns at the majority, so a slow or silent minority costs
    /// nothing whatever this is; it bounds how long *no majority* takes to find
    /// out. It must stay small beside the TTL, because what is spent waiting is
    /// gone from the lease; and it must not be so short that a hiccup of the
    /// server or of this process (a scheduler's pause, an fsync) makes a healthy
    /// node look silent, because its connection is then dropped.
    #[must_use]
    pub fn node_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.node_timeout = timeout.into();
        self
    }

    /// Default empty. A text that tells people who holds the lock. At most 256
    /// bytes, without control characters. Anyone who can read the server sees it.
    #[must_use]
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = label.into();
        self
    }

    /// Default off. The lock outlives the process that takes it, until its TTL is over:
    /// for leases that are handed on ([`Lease::detach`](crate::Lease::detach)). Makes a
    /// difference to nodes that free the locks of dead processes at once (the embedded
    /// store).
    #[must_use]
    pub fn detached(mut self) -> Self {
        self.detached = true;
        self
    }

    /// Undoes [`detached`](Self::detached).
    #[must_use]
    pub fn attached(mut self) -> Self {
        self.detached = false;
        self
    }

    /// Default nobody. Is told what the nodes said to each attempt that a waiting call
    /// makes in vain, so that it can say who holds the lock. Must return at once.
    #[must_use]
    pub fn on_refusal(mut self, tell: impl Fn(&Refusal) + Send + Sync + 'static) -> Self {
        self.on_refusal = Some(OnRefusal(Arc::new(tell)));
        self
    }

    /// Undoes [`on_refusal`](Self::on_refusal).
    #[must_use]
    pub fn without_on_refusal(mut self) -> Self {
        self.on_refusal = None;
        self
    }

    pub(crate) fn drift_of_ttl(&self) -> Duration {
        self.drift_of(self.ttl)
    }

    /// `drift = ttl × 1 % + 2 ms`, unless the caller chose another.
    pub(crate) fn drift_of(&self, ttl: Duration) -> Duration {
        match self.drift {
            _ if planted::on(planted::Bug::NoDrift) => Duration::ZERO,
            Drift::Default => ttl / 100 + Duration::from_millis(2),
            Drift::Exactly(drift) => drift,
        }
    }

    pub(crate) fn stands_in_line(&self) -> bool {
        self.wait != Wait::No && self.attempts != Some(1) && !self.barging
    }

    /// Whether a call waits for other tasks of its process before it stands in line. One that
    /// counts its attempts would make none meanwhile.
    pub(crate) fn queues_in_process(&self) -> bool {
        self.stands_in_line() && self.attempts.is_none()
    }

    pub(crate) fn timeout_of_node(&self) -> Duration {
        self.node_timeout.unwrap_or_else(|| {
            (self.ttl / 20)
                .clamp(Duration::from_millis(20), Duration::from_millis(250))
                .min(self.ttl)
        })
    }

    /// Checks everything before anything is sent. `PEXPIRE key 0` deletes a lock
    /// and a negative TTL does too: no duration reaches a server unchecked.
    pub(crate) fn validate(&self, guard: Option<Duration>) -> Result<(), Invalid> {
        between("ttl", self.ttl, MIN_TTL, MAX_TTL)?;
        if let Some(guard) = guard.filter(|&guard| self.ttl > guard) {
            let ttl = self.ttl;
            return Err(Invalid::TtlBeyondGuard { ttl, guard });
        }
        if let Wait::For(wait) = self.wait {
            between("wait", wait, Duration::ZERO, MAX_DURATION)?;
        }
        if self.attempts == Some(0) {
            return Err(Invalid::Number {
                option: "attempts",
                value: 0,
                min: 1,
                max: u64::from(u32::MAX),
            });
        }
        between("retry_delay", self.retry_delay, Duration::ZERO, MAX_TTL)?;
        if self.jitter_percent > 100 {
            return Err(Invalid::Number {
                option: "jitter_percent",
                value: u64::from(self.jitter_percent),
                min: 0,
                max: 100,
            });
        }
        between(
            "outage_patience",
            self.outage_patience,
            Duration::ZERO,
            MAX_DURATION,
        )?;
        if let Drift::Exactly(drift) = self.drift {
            // At least one millisecond of validity must be left.
            let most = self.ttl - Duration::from_millis(1);
            between("drift", drift, Duration::ZERO, most)?;
        }
        if let Some(max_hold) = self.max_hold {
            between("max_hold", max_hold, MIN_TTL, MAX_DURATION)?;
        }
        between("min_hold", self.min_hold, Duration::ZERO, MAX_TTL)?;
        if let Some(timeout) = self.node_timeout {
            between("node_timeout", timeout, Duration::from_millis(1), self.ttl)?;
        }
        if self.label.len() > MAX_LABEL || self.label.chars().any(char::is_control) {
            return Err(Invalid::Label);
        }
        Ok(())
    }
}

pub(crate) fn between(
    option: &'static str,
    value: Duration,
    min: Duration,
    max: Duration,
) -> Result<(), Invalid> {
    if value < min || value > max {
        return Err(Invalid::Duration {
            option,
            value,
            min,
            max,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn the_defaults_are_valid_with_the_default_guard() {
        let guard = Some(Duration::from_secs(60));
        assert_eq!(Options::default().validate(guard), Ok(()));
    }

    #[test]
    fn limits_are_checked() {
        let bad = [
            Options::default().ttl(Duration::ZERO),
            Options::default().ttl(ms(9)),
            Options::default().ttl(MAX_TTL + ms(1)),
            Options::default().ttl(Duration::MAX),
            Options::default().wait(Wait::For(Duration::MAX)),
            Options::default().attempts(0),
            Options::default().retry_delay(Duration::MAX),
            Options::default().jitter_percent(101),
            Options::default().drift(Duration::from_secs(10)),
            Options::default().max_hold(Duration::ZERO),
            Options::default().max_hold(Duration::MAX),
            Options::default().min_hold(Duration::MAX),
            Options::default().node_timeout(Duration::ZERO),
            Options::default().node_timeout(Duration::from_secs(11)),
            Options::default().label("a\nb"),
            Options::default().label("x".repeat(257)),
        ];
        for options in bad {
            assert!(options.validate(None).is_err(), "{options:?}");
        }
        let edge = [
            Options::default().ttl(MIN_TTL),
            Options::default().ttl(MAX_TTL),
            Options::default().retry_delay(Duration::ZERO),
            Options::default().label("x".repeat(256)),
        ];
        for options in edge {
            assert_eq!(options.validate(None), Ok(()), "{options:?}");
        }
    }

    #[test]
    fn every_option_that_is_set_can_be_unset() {
        let default = format!("{:?}", Options::default());
        let set = Options::default()
            .attempts(3)
            .barging()
            .drift(ms(5))
            .without_fencing()
            .without_renewal()
            .max_hold(ms(50))
            .min_hold(ms(50))
            .node_timeout(ms(50))
            .label("x")
            .detached()
            .on_refusal(|_| {});
        assert_ne!(format!("{set:?}"), default);
        let unset = set
            .attempts(None)
            .without_barging()
            .drift(None)
            .with_fencing()
            .with_renewal()
            .max_hold(None)
            .min_hold(None)
            .node_timeout(None)
            .label("")
            .attached()
            .without_on_refusal();
        assert_eq!(format!("{unset:?}"), default);
    }

    #[test]
    fn a_ttl_beyond_the_guard_is_refused_and_says_what_to_set() {
        let error = Options::default()
            .ttl(Duration::from_secs(61))
            .validate(Some(Duration::from_secs(60)))
            .unwrap_err();
        assert!(error.to_string().contains("`restart_guard` to 61s"));
    }

    #[test]
    fn the_node_timeout_follows_the_ttl_within_bounds() {
        let timeout = |ttl| Options::default().ttl(ttl).timeout_of_node();
        assert_eq!(timeout(ms(10)), ms(10));
        assert_eq!(timeout(ms(100)), ms(20));
        assert_eq!(timeout(Duration::from_secs(1)), ms(50));
        assert_eq!(timeout(Duration::from_secs(10)), ms(250));
    }

    #[test]
    fn drift_is_one_percent_and_two_milliseconds() {
        assert_eq!(Options::default().drift_of_ttl(), ms(102));
        assert_eq!(Options::default().drift(ms(5)).drift_of_ttl(), ms(5));
    }
}
