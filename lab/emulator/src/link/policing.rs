//! The policer of UDP: a token bucket before the queue, like that of carriers that favour TCP.

use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Bytes};

use super::UNITS_PER_BYTE;

/// The depth of the bucket as time: how long an idle source may exceed the rate.
pub const BURST_TIME: Duration = Duration::from_millis(100);

/// The least depth of the bucket, two large packets; a packet larger than the bucket never passes.
pub const BURST_BYTES_MIN: Bytes = Bytes(3000);

/// The policing of UDP, the first stage of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policing {
    /// No policing.
    #[default]
    Free,
    /// All of it is dropped.
    Blocked,
    /// Packets beyond this rate are dropped, never queued. A burst may have as
    /// many bytes as the rate sends in [`BURST_TIME`], at least [`BURST_BYTES_MIN`].
    Limited(Bitrate),
}

/// The bucket. Tokens are units of the server's work, so that no rounding is ever lost.
#[derive(Debug)]
pub(super) struct Policer {
    rule: Policing,
    tokens: u128,
    filled: Instant,
}

impl Policing {
    /// The depth of the bucket.
    pub fn burst(self) -> Bytes {
        match self {
            Self::Limited(rate) => rate.bytes_in(BURST_TIME).max(BURST_BYTES_MIN),
            Self::Free | Self::Blocked => Bytes::ZERO,
        }
    }

    fn burst_units(self) -> u128 {
        u128::from(self.burst().0) * UNITS_PER_BYTE
    }
}

impl Policer {
    /// A full bucket.
    pub(super) fn new(rule: Policing, now: Instant) -> Self {
        Self { rule, tokens: rule.burst_units(), filled: now }
    }

    /// Whether a packet may pass; it has then used its tokens.
    pub(super) fn admits(&mut self, now: Instant, bytes: u64) -> bool {
        let rate = match self.rule {
            Policing::Free => return true,
            Policing::Blocked => return false,
            Policing::Limited(rate) => rate,
        };
        let earned = now.duration_since(self.filled).as_nanos() * u128::from(rate.as_bps());
        self.tokens = (self.tokens + earned).min(self.rule.burst_units());
        self.filled = now;
        let need = u128::from(bytes) * UNITS_PER_BYTE;
        let enough = self.tokens >= need;
        if enough {
            self.tokens -= need;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let start = Instant::now();
        let mut policer = Policer::new(Policing::Limited(Bitrate::from_bps(1_000_000)), start);
        // 100 ms of 1 Mbit/s are 12500 bytes.
        let burst = (0..20).filter(|_| policer.admits(start, 1000)).count();
        assert_eq!(burst, 12);
        let mut later = 0;
        for ms in 1..=1000 {
            let now = start + Duration::from_millis(ms);
            later += u64::from(policer.admits(now, 1000)) + u64::from(policer.admits(now, 1000));
        }
        assert_eq!(later, 125, "a second of 1 Mbit/s and the rest of the bucket");
    }

    #[test]
    fn free_and_blocked_count_nothing() {
        let start = Instant::now();
        assert!(Policer::new(Policing::Free, start).admits(start, u64::MAX));
        assert!(!Policer::new(Policing::Blocked, start).admits(start, 1));
        let standing = Policing::Limited(Bitrate::from_bps(0));
        let mut policer = Policer::new(standing, start);
        let passed = (0..9).filter(|_| policer.admits(start, 1000)).count();
        assert_eq!(passed as u64 * 1000, standing.burst().0, "the burst alone");
    }

    proptest! {
        #[test]
        fn no_window_has_more_than_the_burst_and_the_rate(
            bps in 1_u64..50_000_000,
            sends in vec((0_u64..20_000, 1_u64..1500), 1..200),
        ) {
            let start = Instant::now();
            let rule = Policing::Limited(Bitrate::from_bps(bps));
            let mut policer = Policer::new(rule, start);
            let (mut at_us, mut passed) = (0, Vec::new());
            for (pause_us, bytes) in sends {
                at_us += pause_us;
                if policer.admits(start + Duration::from_micros(at_us), bytes) {
                    passed.push((at_us, bytes));
                }
            }
            for from in 0..passed.len() {
                let mut sum = 0;
                for (at_us, bytes) in &passed[from..] {
                    sum += bytes;
                    let time = Duration::from_micros(at_us - passed[from].0);
                    let able = rule.burst() + rule_rate(rule).bytes_in(time) + Bytes(1);
                    prop_assert!(sum <= able.0, "{} bytes where {} fit", sum, able);
                }
            }
        }

        #[test]
        fn a_source_below_the_rate_loses_nothing(
            bps in 20_000_u64..50_000_000,
            sizes in vec(1_u64..1500, 1..200),
        ) {
            let start = Instant::now();
            let rule = Policing::Limited(Bitrate::from_bps(bps));
            let (mut policer, mut now) = (Policer::new(rule, start), start);
            for bytes in sizes {
                prop_assert!(policer.admits(now, bytes));
                let ns = (u128::from(bytes) * UNITS_PER_BYTE).div_ceil(u128::from(bps));
                now += Duration::from_nanos(u64::try_from(ns).unwrap());
            }
        }
    }

    fn rule_rate(rule: Policing) -> Bitrate {
        match rule {
            Policing::Limited(rate) => rate,
            Policing::Free | Policing::Blocked => Bitrate::default(),
        }
    }
}
