//! A seeded source of chance. Equal seeds give equal draws.

use std::time::Duration;

use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// A small reproducible generator.
#[derive(Clone, Debug)]
pub struct Dice(Pcg64Mcg);

impl Dice {
    /// Dice of this seed.
    pub fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    /// One of many dice of a seed, by a label.
    pub fn labelled(seed: u64, label: u64) -> Self {
        Self::new(seed ^ label.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in 0..1, a multiple of 2^-53.
    pub fn unit(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// A whole number in `from..to`; `from` if the range is empty.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + if to > from { self.number() % (to - from) } else { 0 }
    }

    /// A number in `from..to`.
    pub fn uniform(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.unit()
    }

    /// A whole number in `from..to`, uniform in the logarithm.
    pub fn scale(&mut self, from: u64, to: u64) -> u64 {
        let (low, high) = ((from.max(1) as f64).ln(), (to.max(2) as f64).ln());
        ((low + (high - low) * self.unit()).exp() as u64).clamp(from, to)
    }

    /// A random time until the next of events that do not depend on one another.
    pub fn pause(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-(1.0 - self.unit()).ln())
    }

    /// A number of the standard normal distribution (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// A lognormal number, by its median and the standard deviation of its logarithm.
    pub fn lognormal(&mut self, median: f64, sigma: f64) -> f64 {
        median * (sigma * self.normal()).exp()
    }

    /// A time in `from..to` milliseconds.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(self.between(from * 1_000, to * 1_000))
    }

    /// One of these items.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.between(0, items.len() as u64) as usize]
    }

    /// An index, by weight; 0 if all weights are zero.
    pub fn weighted(&mut self, weights: &[u64]) -> usize {
        let mut draw = self.between(0, weights.iter().sum());
        for (index, &weight) in weights.iter().enumerate() {
            if draw < weight {
                return index;
            }
            draw -= weight;
        }
        0
    }

    /// 32 random bytes.
    pub fn key(&mut self) -> [u8; 32] {
        let mut key = [0; 32];
        self.0.fill_bytes(&mut key);
        key
    }
}
