//! The pauses between retries.

use std::time::Duration;

/// How long the pauses of a [`Backoff`] are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pauses {
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
    /// How much longer each pause is than the one before, in percent.
    pub(crate) growth_percent: u32,
    /// By how much a pause is shortened at random, at most, in percent.
    pub(crate) jitter_percent: u8,
}

impl Pauses {
    /// Pauses that double, and are shortened by up to half.
    pub(crate) const fn doubling(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            growth_percent: 100,
            jitter_percent: 50,
        }
    }
}

/// Pauses that grow up to the longest. Each is shortened at random, so that clients that failed at
/// the same time do not retry at the same time.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    pauses: Pauses,
    next: Duration,
    random: fastrand::Rng,
}

impl Backoff {
    /// Creates a back-off. The same seed gives the same pauses.
    pub(crate) fn new(pauses: Pauses, seed: u64) -> Self {
        Self {
            next: pauses.first.min(pauses.longest),
            pauses,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Returns the next pause.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.next;
        let growth = pause.saturating_mul(self.pauses.growth_percent) / 100;
        self.next = pause.saturating_add(growth).min(self.pauses.longest);
        pause.mul_f64(1.0 - self.jitter())
    }

    /// Returns the time between two attempts of a call with a limited number of attempts: the
    /// longest pause, lengthened at random.
    pub(crate) fn spacing(&mut self) -> Duration {
        self.pauses.longest.mul_f64(1.0 + self.jitter())
    }

    /// Begins again with the first pause.
    #[cfg_attr(not(any(feature = "redis", feature = "local")), allow(dead_code))]
    pub(crate) fn reset(&mut self) {
        self.next = self.pauses.first.min(self.pauses.longest);
    }

    /// A random fraction, up to the jitter.
    fn jitter(&mut self) -> f64 {
        self.random.f64() * f64::from(self.pauses.jitter_percent) / 100.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn without_jitter(first: Duration, longest: Duration, growth_percent: u32) -> Backoff {
        let pauses = Pauses {
            first,
            longest,
            growth_percent,
            jitter_percent: 0,
        };
        Backoff::new(pauses, 1)
    }

    fn take<const N: usize>(backoff: &mut Backoff) -> [Duration; N] {
        std::array::from_fn(|_| backoff.pause())
    }

    #[test]
    fn pauses_grow_to_the_longest_and_begin_again_after_a_reset() {
        let mut backoff = without_jitter(2 * MS, 9 * MS, 100);
        assert_eq!(take(&mut backoff), [2, 4, 8, 9, 9].map(|ms| ms * MS));
        backoff.reset();
        assert_eq!(take(&mut backoff), [2, 4].map(|ms| ms * MS));
    }

    #[test]
    fn the_growth_is_a_percentage() {
        let mut backoff = without_jitter(16 * MS, 1000 * MS, 25);
        assert_eq!(take(&mut backoff), [16, 20, 25].map(|ms| ms * MS));
    }

    #[test]
    fn jitter_shortens_pauses_by_up_to_its_percentage() {
        let mut backoff = Backoff::new(Pauses::doubling(8 * MS, 8 * MS), 7);
        let pauses: [_; 100] = take(&mut backoff);
        assert!(pauses.iter().all(|pause| (4 * MS..=8 * MS).contains(pause)));
        assert!(pauses.iter().any(|pause| *pause < 5 * MS));
        assert!(pauses.iter().any(|pause| *pause > 7 * MS));
    }

    #[test]
    fn a_seed_makes_pauses_repeatable() {
        let pauses = |seed| {
            let mut backoff = Backoff::new(Pauses::doubling(MS, 100 * MS), seed);
            take::<20>(&mut backoff)
        };
        assert_eq!(pauses(7), pauses(7));
        assert_ne!(pauses(7), pauses(8));
    }

    #[test]
    fn the_spacing_is_the_longest_pause_or_up_to_the_jitter_more() {
        let mut backoff = Backoff::new(Pauses::doubling(MS, 10 * MS), 7);
        for _ in 0..100 {
            assert!((10 * MS..=15 * MS).contains(&backoff.spacing()));
        }
    }

    #[test]
    fn a_longest_pause_of_zero_gives_pauses_of_zero() {
        let mut backoff = without_jitter(2 * MS, Duration::ZERO, 100);
        assert_eq!(take(&mut backoff), [Duration::ZERO; 3]);
    }
}
