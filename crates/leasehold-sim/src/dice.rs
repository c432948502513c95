//! The random numbers of a run.

use std::sync::Mutex;

use fastrand::Rng;

use crate::agenda::Nanos;
use crate::sync::locked;

/// Random numbers from the seed. Draws happen in the order of events, which the seed determines.
pub struct Dice(Mutex<Rng>);

impl Dice {
    /// Dice for this seed. Each `stream` of a seed is independent of the others.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(Mutex::new(Rng::with_seed(
            seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .wrapping_add(stream.wrapping_mul(0xD1B5_4A32_D192_ED03)),
        )))
    }

    /// `true` with this probability.
    pub fn chance(&self, probability: f64) -> bool {
        probability > 0.0 && locked(&self.0).f64() < probability
    }

    /// A number in `0..limit`.
    pub fn below(&self, limit: usize) -> usize {
        locked(&self.0).usize(0..limit.max(1))
    }

    /// A number in `from..=to`.
    pub fn between(&self, from: Nanos, to: Nanos) -> Nanos {
        locked(&self.0).u64(from..=to.max(from))
    }

    /// A number in `from..=to`, which may be negative.
    pub fn signed(&self, from: i64, to: i64) -> i64 {
        locked(&self.0).i64(from..=to)
    }

    /// A fraction in `0..1`.
    pub fn fraction(&self) -> f64 {
        locked(&self.0).f64()
    }

    /// A random time until the next of events that happen every `mean` on average.
    pub fn until_next(&self, mean: Nanos) -> Nanos {
        let uniform = 1.0 - locked(&self.0).f64();
        // At most ten times the mean, so that no run waits for ever.
        (mean as f64 * -uniform.ln().max(-10.0)) as Nanos
    }

    /// One of the items.
    pub fn pick<T: Copy>(&self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// A seed for another generator.
    pub fn seed(&self) -> u64 {
        locked(&self.0).u64(..)
    }
}
