//! The options of leases, per client and per call, and their limits.

use std::sync::Arc;
use std::time::Duration;

use crate::base::backoff::{Backoff, Pauses};
use crate::base::clock::Moment;
use crate::base::error::{Invalid, Refusal};
use crate::base::holder::MAX_LABEL;
use crate::planted;

pub(crate) const MIN_TTL: Duration = Duration::from_millis(10);
pub(crate) const MAX_TTL: Duration = Duration::from_secs(24 * 3600);
/// The first pause between attempts. It is short, because many locks are held only for a moment.
const FIRST_RETRY: Duration = Duration::from_millis(2);
/// The longest duration of any option. Sums of a few of these cannot overflow.
pub(crate) const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 3600);

/// How long a call waits for a lock that another client holds.
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
#[non_exhaustive]
pub enum Wait {
    /// Do not wait: the call returns [`Error::Held`](crate::Error::Held) at once.
    No,
    /// Wait for at most this time, then return [`Error::TimedOut`](crate::Error::TimedOut).
    For(Duration),
    /// Wait without a limit.
    #[default]
    Forever,
}

/// Options of a lease. A client has defaults ([`Builder::options`](crate::Builder::options)), and
/// each call can use other options ([`Mutex::with_options`](crate::Mutex::with_options)).
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
    pub(crate) goal: Goal,
    pub(crate) class: Option<Arc<str>>,
}

/// What ends a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// The lock.
    Lock,
    /// The lead of an election. A candidate may stand by for days.
    Lead,
    /// The lock, or a result that a majority of nodes keeps: then the call ends with
    /// [`Error::Held`](crate::Error::Held), which contains it.
    LockOrResult,
}

/// The callback for refusals.
#[derive(Clone)]
pub(crate) struct OnRefusal(pub(crate) Arc<dyn Fn(&Refusal) + Send + Sync>);

impl std::fmt::Debug for OnRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnRefusal")
    }
}

/// How much of the TTL is subtracted for clocks that run at different speeds.
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
            goal: Goal::Lock,
            class: None,
        }
    }
}

impl Options {
    /// Sets how long a node keeps the lock without a renewal. After the holder crashes, other
    /// clients wait for this time. 10 ms to 24 h, and no longer than the restart guard if that is
    /// on. Rounded down to whole milliseconds. Default: 10 s.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        // Servers count in milliseconds. The client must not rely on a fraction that they cut off.
        self.ttl = ttl - Duration::from_nanos(u64::from(ttl.subsec_nanos() % 1_000_000));
        self
    }

    /// Sets how long a call waits while another client holds the lock. Default: [`Wait::Forever`].
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Sets how many attempts a call makes before it returns [`Error::Held`](crate::Error::Held),
    /// or in an outage [`Error::NoMajority`](crate::Error::NoMajority). Attempts are
    /// [`retry_delay`](Self::retry_delay) apart, plus jitter: with 6 attempts and 200 ms, a call
    /// fails after one second at the earliest. Default: unlimited (`None`).
    ///
    /// Between its attempts the call waits in line like any other, and acquires the lock as soon as
    /// its turn comes. The number of attempts replaces [`outage_patience`](Self::outage_patience).
    /// [`wait`](Self::wait) still applies, and the limit that is reached first ends the call.
    /// [`Mutex::lock_timeout`](crate::Mutex::lock_timeout) and
    /// [`Mutex::try_lock_for`](crate::Mutex::try_lock_for) ignore this option.
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

    /// Makes a waiting call poll instead of waiting in line. It acquires the lock if one of its
    /// attempts finds the lock free and the line empty. Default: off. Without this option, waiters
    /// stand in line, are notified when their turn comes, and are served in the order of their
    /// arrival. It has no effect on a [`Semaphore`](crate::Semaphore).
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

    /// Sets the time between two [`attempts`](Self::attempts), if their number is limited.
    /// Otherwise, sets the longest pause between two attempts of a waiting call that no node
    /// notifies: a call that is [barging](Self::barging), that waits for the end of an outage, or
    /// that is first in line for the lock of another library. The first pauses are shorter, and a
    /// call tries again as soon as the lock has expired. Zero means no pause. Default: 100 ms.
    #[must_use]
    pub fn retry_delay(mut self, retry_delay: Duration) -> Self {
        self.retry_delay = retry_delay;
        self
    }

    /// Sets by how much a pause is shortened at random, so that waiters do not send requests at the
    /// same time. The time between [`attempts`](Self::attempts) is lengthened instead. 0 to 100.
    /// Default: 50.
    #[must_use]
    pub fn jitter_percent(mut self, percent: u8) -> Self {
        self.jitter_percent = percent;
        self
    }

    /// Sets how long a *waiting* call tolerates an outage before it returns
    /// [`Error::NoMajority`](crate::Error::NoMajority). A call that does not wait returns the error
    /// at once. Default: 1 s.
    #[must_use]
    pub fn outage_patience(mut self, patience: Duration) -> Self {
        self.outage_patience = patience;
        self
    }

    /// Sets how much of the TTL is subtracted for clocks that run at different speeds. Must be less
    /// than the TTL. Default (`None`): 1 % of the TTL + 2 ms.
    #[must_use]
    pub fn drift(mut self, drift: impl Into<Option<Duration>>) -> Self {
        self.drift = drift.into().map_or(Drift::Default, Drift::Exactly);
        self
    }

    /// Turns fencing off: the lease has no token, which saves the servers about half of the work.
    /// It is the plain lock of other libraries, for efficiency and not for correctness: at most one
    /// holder, under the assumptions about clocks and memory in `docs/guarantees.md`. Default:
    /// fencing is on.
    ///
    /// [`Lease::token`](crate::Lease::token) is 0 then, and must not be passed to a resource that
    /// checks tokens. If the call has to wait, the lease has a token nevertheless, because the line
    /// is ordered by tokens.
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

    /// Turns fencing on again after [`without_fencing`](Self::without_fencing).
    #[must_use]
    pub fn with_fencing(mut self) -> Self {
        self.fencing = true;
        self
    }

    /// Turns automatic renewal off: the lease ends after one TTL unless
    /// [`Lease::extend`](crate::Lease::extend) is called. Default: renewal is on.
    #[must_use]
    pub fn without_renewal(mut self) -> Self {
        self.renewal = false;
        self
    }

    /// Turns renewal on again after [`without_renewal`](Self::without_renewal).
    #[must_use]
    pub fn with_renewal(mut self) -> Self {
        self.renewal = true;
        self
    }

    /// Sets the longest time that a lease can last, even if its renewals succeed: a limit for
    /// holders that hang. It is counted like [`min_hold`](Self::min_hold). Default: unlimited
    /// (`None`).
    #[must_use]
    pub fn max_hold(mut self, max_hold: impl Into<Option<Duration>>) -> Self {
        self.max_hold = max_hold.into();
        self
    }

    /// Keeps the name taken for this time even if the lease is released earlier, so that a job runs
    /// at most once per period. At most 24 h. Default: zero (`None`).
    ///
    /// The client counts the time from when it sent the request that acquired the lock, not from
    /// when nodes granted it. For a lock that was handed over to a waiter, or passed on by another
    /// task of this client, it counts from when the caller got it. If the holder crashes, the name
    /// is free after its TTL.
    #[must_use]
    pub fn min_hold(mut self, min_hold: impl Into<Option<Duration>>) -> Self {
        self.min_hold = min_hold.into().unwrap_or_default();
        self
    }

    /// Sets how long one node may take for one request. Default (`None`): 5 % of the TTL, at least
    /// 20 ms (but never more than the TTL) and at most 250 ms.
    ///
    /// An acquire returns when a majority has granted it, so this timeout does not matter if a
    /// minority is slow or silent. It limits how long it takes to find out that there is *no
    /// majority*. It should be short compared with the TTL, because the time spent waiting is
    /// subtracted from the lease. It should not be so short that a pause of the server or of this
    /// process (scheduling, an fsync) makes a healthy node look silent, because the client then
    /// closes the connection.
    #[must_use]
    pub fn node_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.node_timeout = timeout.into();
        self
    }

    /// Sets a text that describes the holder to people. At most 256 bytes, without control
    /// characters. Everyone who can read the server can see it. Default: empty.
    #[must_use]
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = label.into();
        self
    }

    /// Makes the lock outlive the process that acquires it, until its TTL is over: for leases that
    /// another process continues ([`Lease::detach`](crate::Lease::detach)). This matters for nodes
    /// that free the locks of dead processes at once (the embedded store). Default: off.
    #[must_use]
    pub fn detached(mut self) -> Self {
        self.detached = true;
        self
    }

    /// Turns [`detached`](Self::detached) off.
    #[must_use]
    pub fn attached(mut self) -> Self {
        self.detached = false;
        self
    }

    /// Sets a callback for each failed attempt of a waiting call. It gets the answers of the nodes,
    /// for example to show who holds the lock. It must return quickly. Default: none.
    #[must_use]
    pub fn on_refusal(mut self, callback: impl Fn(&Refusal) + Send + Sync + 'static) -> Self {
        self.on_refusal = Some(OnRefusal(Arc::new(callback)));
        self
    }

    /// Removes the callback of [`on_refusal`](Self::on_refusal).
    #[must_use]
    pub fn without_on_refusal(mut self) -> Self {
        self.on_refusal = None;
        self
    }

    /// Sets the class of the lock's name, for the labels of metrics: `orders`, for example. Names
    /// themselves are never labels, because there may be millions of them.
    ///
    /// Default (`None`): the pattern of the name. What follows the last `/` or `:` becomes `*`, and so
    /// does each number, UUID and hash before that or in a name without these: `orders/42` is of the
    /// class `orders/*`, and `job-17` of the class `job-*`. A client uses at most 100 classes of at
    /// most 100 bytes. Others, and names that are not text, are of the class `other`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), leasehold::Error> {
    /// use leasehold::observe::Event;
    /// use leasehold::{Client, MemoryNode};
    ///
    /// let client = Client::builder()
    ///     .custom_node(MemoryNode::new("memory"))
    ///     .observer(|event: &Event| {
    ///         if let Event::Acquire(call) = event {
    ///             assert_eq!(&*call.class, "customers");
    ///         }
    ///     })
    ///     .build()?;
    /// let mutex = client.mutex("jane@example.com").with_options(|o| o.class("customers"));
    /// mutex.lock().await?.release().await;
    /// assert_eq!(client.stats().observer_panics, 0);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn class<'a>(mut self, class: impl Into<Option<&'a str>>) -> Self {
        self.class = class.into().map(Into::into);
        self
    }

    pub(crate) fn drift_of_ttl(&self) -> Duration {
        self.drift_of(self.ttl)
    }

    /// `drift = ttl × 1 % + 2 ms`, unless the caller set another.
    pub(crate) fn drift_of(&self, ttl: Duration) -> Duration {
        match self.drift {
            _ if planted::on(planted::Bug::NoDrift) => Duration::ZERO,
            Drift::Default => ttl / 100 + Duration::from_millis(2),
            Drift::Exactly(drift) => drift,
        }
    }

    /// The pauses between attempts.
    pub(crate) fn backoff(&self, seed: u64) -> Backoff {
        let pauses = Pauses {
            jitter_percent: self.jitter_percent,
            ..Pauses::doubling(FIRST_RETRY, self.retry_delay)
        };
        Backoff::new(pauses, seed)
    }

    pub(crate) fn stands_in_line(&self) -> bool {
        self.wait != Wait::No && self.attempts != Some(1) && !self.barging
    }

    /// Whether a call that finds the lock taken may wait for it.
    pub(crate) fn may_wait(&self) -> bool {
        let never = matches!(self.wait, Wait::No | Wait::For(Duration::ZERO));
        !never && self.attempts != Some(1)
    }

    /// The options of a part of a call that has waited since `started`.
    pub(crate) fn waiting_since(mut self, started: Moment, now: Moment) -> Self {
        if let Wait::For(wait) = &mut self.wait {
            *wait = wait.saturating_sub(now.saturating_duration_since(started));
        }
        self
    }

    /// Until when a call that began at `started` may wait.
    pub(crate) fn until(&self, started: Moment) -> Moment {
        match self.wait {
            Wait::No => started,
            Wait::For(wait) => started + wait,
            Wait::Forever => Moment::FAR,
        }
    }

    /// Whether a call waits for other tasks of its process before it waits in line. A call with a
    /// limited number of attempts does not, because it would make no attempts meanwhile.
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

    /// Checks all options before anything is sent. `PEXPIRE key 0` deletes a lock, and so does a
    /// negative TTL, so no unchecked duration may reach a server.
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
    fn pauses_between_attempts_grow_to_the_retry_delay() {
        let mut backoff = Options::default().jitter_percent(0).backoff(1);
        let pauses: [_; 8] = std::array::from_fn(|_| backoff.pause());
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 100, 100].map(ms));
        let mut backoff = Options::default().retry_delay(ms(0)).backoff(1);
        assert_eq!([backoff.pause(), backoff.pause()], [ms(0); 2]);
        let mut backoff = Options::default().jitter_percent(100).backoff(7);
        let pauses: [_; 100] = std::array::from_fn(|_| backoff.pause());
        assert!(pauses.iter().all(|pause| *pause <= ms(100)));
        assert!(pauses[8..].iter().any(|pause| *pause < ms(50)));
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
            .class("x")
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
            .class(None)
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
