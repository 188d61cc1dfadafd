//! The backoff of one mode after refusals.

use std::time::{Duration, Instant};

/// Exponential waits with jitter after refusals.
///
/// The n-th wait is uniform in the upper half of `[0, MIN x 2^n]`, and never exceeds [`MAX`]:
/// gateways that lost the same cloud do not reconnect in step, and the first attempt is prompt.
/// Reset it when the session has the path, not when the handshake is finished: a cloud rejects our
/// certificate only after that.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    attempt: u32,
    random: u64,
    /// When the mode may be retried.
    pub(crate) until: Option<Instant>,
}

/// The first wait.
const MIN: Duration = Duration::from_millis(100);
/// The longest wait.
const MAX: Duration = Duration::from_secs(2);

impl Backoff {
    /// Equal seeds give equal waits.
    pub(crate) fn new(seed: u64) -> Self {
        Self { attempt: 0, random: seed, until: None }
    }

    /// A connection was refused.
    pub(crate) fn refused(&mut self, now: Instant) {
        let half = MIN.saturating_mul(1 << self.attempt).min(MAX) / 2;
        self.attempt = (self.attempt + 1).min(30);
        self.until = Some(now + half + half.mul_f64(self.draw_share()));
    }

    /// Waits for a time uniform in `[0, most]`.
    pub(crate) fn spread(&mut self, now: Instant, most: Duration) {
        self.until = Some(now + most.mul_f64(self.draw_share()));
    }

    /// Starts over after a success or a change.
    pub(crate) fn reset(&mut self) {
        *self = Self::new(self.random);
    }

    /// The next number in `[0, 1)`.
    fn draw_share(&mut self) -> f64 {
        (self.draw() >> 11) as f64 / (1u64 << 53) as f64
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

    fn waits(seed: u64) -> Vec<Duration> {
        let (mut backoff, now) = (Backoff::new(seed), Instant::now());
        let wait = |_| {
            backoff.refused(now);
            backoff.until.unwrap() - now
        };
        let waits = (0..100).map(wait).collect();
        backoff.reset();
        assert_eq!((backoff.attempt, backoff.until), (0, None));
        waits
    }

    #[test]
    fn waits_double_up_to_the_maximum() {
        for seed in 0..200 {
            for (n, wait) in waits(seed).into_iter().enumerate() {
                let ceiling = Duration::from_millis(100 << n.min(20)).min(MAX);
                assert!(wait >= ceiling / 2 && wait <= ceiling, "seed {seed}, wait {n}: {wait:?}");
            }
        }
    }

    #[test]
    fn waits_differ_by_seed_and_repeat_with_it() {
        assert_eq!(waits(7), waits(7));
        assert_ne!(waits(7), waits(8));
    }
}
