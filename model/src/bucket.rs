//! A token bucket: how often something may happen.

use std::time::Instant;

/// A token bucket.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// Tokens a second.
    rate: f64,
    /// The most tokens.
    burst: f64,
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// A full bucket.
    pub fn new(now: Instant, rate: f64, burst: f64) -> Self {
        Self { rate, burst, tokens: burst, at: now }
    }

    /// The tokens that it has.
    pub fn level(&self, now: Instant) -> f64 {
        let earned = now.saturating_duration_since(self.at).as_secs_f64() * self.rate;
        (self.tokens + earned).min(self.burst)
    }

    /// Whether it has the most tokens.
    pub fn is_full(&self, now: Instant) -> bool {
        self.level(now) >= self.burst
    }

    /// Takes tokens; false if there are too few.
    pub fn take(&mut self, now: Instant, cost: usize) -> bool {
        let (level, cost) = (self.level(now), cost as f64);
        let has = level >= cost;
        (self.tokens, self.at) = (if has { level - cost } else { level }, now);
        has
    }
}
