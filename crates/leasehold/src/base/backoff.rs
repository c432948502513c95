//! The pauses between attempts, as an iterator of durations.

use std::time::Duration;

use crate::client::options::Options;

/// The first pause. It is short, because many locks are held only for a moment.
const FIRST: Duration = Duration::from_millis(2);

/// Pauses that double from 2 ms up to the longest. Each is shortened at random, so that waiters do
/// not send their requests at the same time. The iterator never ends.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    longest: Duration,
    jitter_percent: u8,
    random: fastrand::Rng,
}

impl Backoff {
    pub(crate) fn new(options: &Options, seed: u64) -> Self {
        Self {
            next: FIRST.min(options.retry_delay),
            longest: options.retry_delay,
            jitter_percent: options.jitter_percent,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// The time between two attempts of a call with a limited number of attempts: the retry delay,
    /// lengthened at random.
    pub(crate) fn spacing(&mut self) -> Duration {
        let more = self.random.f64() * f64::from(self.jitter_percent) / 100.0;
        self.longest.mul_f64(1.0 + more)
    }
}

impl Iterator for Backoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.next;
        self.next = pause.saturating_mul(2).min(self.longest);
        let off = self.random.f64() * f64::from(self.jitter_percent) / 100.0;
        Some(pause.mul_f64(1.0 - off))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(options: &Options, seed: u64) -> Vec<Duration> {
        Backoff::new(options, seed).take(20).collect()
    }

    #[test]
    fn grows_to_the_longest_and_stays() {
        let options = Options::default().jitter_percent(0);
        let pauses = pauses(&options, 1);
        let ms: Vec<_> = pauses.iter().map(Duration::as_millis).collect();
        assert_eq!(ms[..8], [2, 4, 8, 16, 32, 64, 100, 100]);
    }

    #[test]
    fn jitter_shortens_and_is_repeatable_by_seed() {
        let options = Options::default().jitter_percent(100);
        assert_eq!(pauses(&options, 7), pauses(&options, 7));
        assert_ne!(pauses(&options, 7), pauses(&options, 8));
        let longest = options.retry_delay;
        assert!(pauses(&options, 7).iter().all(|pause| *pause <= longest));
    }

    #[test]
    fn a_delay_of_zero_is_a_pause_of_zero() {
        let options = Options::default().retry_delay(Duration::ZERO);
        assert!(pauses(&options, 1).iter().all(Duration::is_zero));
    }
}
