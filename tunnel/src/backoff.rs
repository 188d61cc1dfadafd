//! Waiting times before the next connect after a failure.

use std::time::Duration;

/// Exponential waits with jitter between attempts to bring a carrier's tunnel up.
///
/// The n-th wait is uniform in the upper half of `[0, min x 2^n]`, and never exceeds the maximum:
/// gateways that lost the same cloud do not reconnect in step, and the first attempt is prompt. The
/// caller keeps the clock. Reset it when the session has the path, not at
/// [`TunnelEvent::Up`](crate::TunnelEvent::Up): a cloud rejects our certificate only after that.
#[derive(Clone, Debug)]
pub struct Backoff {
    max: Duration,
    attempt: u32,
    random: u64,
}

impl Backoff {
    /// The default first wait.
    pub const MIN: Duration = Duration::from_millis(100);
    /// The default longest wait.
    pub const MAX: Duration = Duration::from_secs(5);

    /// Waits between [`MIN`](Self::MIN) and `max`; equal seeds give equal waits.
    pub fn with_max(max: Duration, seed: u64) -> Self {
        Self { max: max.max(Self::MIN), attempt: 0, random: seed }
    }

    /// How long to wait after another failure.
    pub fn next_wait(&mut self) -> Duration {
        let doublings = self.attempt.min(30);
        self.attempt = self.attempt.saturating_add(1);
        let ceiling = Self::MIN.saturating_mul(1 << doublings).min(self.max);
        let half = ceiling / 2;
        let share = (self.draw() >> 11) as f64 / (1u64 << 53) as f64;
        half + half.mul_f64(share)
    }

    /// Starts over after a success.
    pub fn reset(&mut self) {
        self.attempt = 0;
    }

    /// The next number of a SplitMix64 sequence (Steele, Lea, Flood 2014).
    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_maximum() {
        for seed in 0..200 {
            let mut backoff = Backoff::with_max(Duration::from_secs(5), seed);
            for n in 0..100 {
                let ceiling = Duration::from_millis(100 << n.min(20)).min(Backoff::MAX);
                let wait = backoff.next_wait();
                assert!(wait >= ceiling / 2 && wait <= ceiling, "seed {seed}, wait {n}: {wait:?}");
            }
            backoff.reset();
            assert!(backoff.next_wait() <= Backoff::MIN);
        }
    }

    #[test]
    fn waits_differ_by_seed_and_repeat_with_it() {
        let waits = |seed| {
            let mut backoff = Backoff::with_max(Backoff::MAX, seed);
            (0..10).map(|_| backoff.next_wait()).collect::<Vec<_>>()
        };
        assert_eq!(waits(7), waits(7));
        assert_ne!(waits(7), waits(8));
    }
}
