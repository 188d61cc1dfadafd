//! The rate limit of a path: a token bucket of bytes.
//!
//! All units but greetings are charged, with an allowance for the headers of records and packets.
//! What the transport sends by itself (acknowledgements, retransmissions) is not known here.

use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Bytes};
use polyrail_scheduler::SEGMENT;

#[derive(Debug)]
pub(crate) struct RateLimit {
    rate: Bitrate,
    /// Bytes that may be sent; negative after a unit that was longer.
    tokens: i64,
    /// The time up to which tokens were earned.
    at: Instant,
}

impl RateLimit {
    /// A limit that has sent nothing yet. A rate below [`RATE_MIN`] counts as that.
    pub fn new(now: Instant, rate: Bitrate) -> Self {
        let mut limit = Self { rate: rate.max(RATE_MIN), tokens: 0, at: now };
        limit.tokens = limit.burst();
        limit
    }

    /// Earns tokens for the time that has passed.
    pub fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).min(PASSED_MAX);
        let earned = self.rate.bytes_in(passed);
        self.tokens = self.tokens.saturating_add(signed(earned)).min(self.burst());
        // The part of a byte is earned the next time.
        let rest = passed.saturating_sub(self.rate.time_for(earned).unwrap_or(passed));
        self.at = now.checked_sub(rest).unwrap_or(now);
    }

    /// The bytes that may be sent now.
    pub fn left(&self) -> u64 {
        u64::try_from(self.tokens).unwrap_or(0)
    }

    /// A unit of this length was sent.
    pub fn charge(&mut self, bytes: usize) {
        let cost = bytes as u64 + bytes as u64 / HEADER_SHARE + UNIT_HEADER;
        let debt_max = -self.burst() - signed(Bytes(DEBT_MAX));
        self.tokens = self.tokens.saturating_sub(signed(Bytes(cost))).max(debt_max);
    }

    /// When the next segments may be sent, if not now.
    pub fn next_at(&self) -> Option<Instant> {
        if self.tokens > 0 {
            return None;
        }
        let batch = self.rate.bytes_in(BATCH).0.max(SEGMENT);
        let lacking = Bytes(batch.saturating_add(self.tokens.unsigned_abs()));
        Some(self.at + self.rate.time_for(lacking).unwrap_or(PASSED_MAX).min(PASSED_MAX))
    }

    fn burst(&self) -> i64 {
        signed(self.rate.bytes_in(BURST)).max(signed(Bytes(2 * SEGMENT)))
    }
}

fn signed(bytes: Bytes) -> i64 {
    i64::try_from(bytes.0).unwrap_or(i64::MAX)
}

/// The least limit that is kept; a peer may state any.
const RATE_MIN: Bitrate = Bitrate::from_bps(16_000);
/// The burst after a pause: long enough that a late wake-up costs no rate.
const BURST: Duration = Duration::from_millis(50);
/// How long an empty bucket waits, at least for a segment: fewer wake-ups.
const BATCH: Duration = Duration::from_millis(4);
/// The longest time for which tokens are earned at once.
const PASSED_MAX: Duration = Duration::from_secs(60);
/// One part in this many for the headers of packets: 56 of 1,400 bytes.
const HEADER_SHARE: u64 = 25;
/// Bytes for the header of a record or packet, for each unit.
const UNIT_HEADER: u64 = 40;
/// The most bytes beyond the limit that are paid back: control frames and real-time datagrams do
/// not wait.
const DEBT_MAX: u64 = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Instant {
        #[allow(clippy::disallowed_methods)] // a base for the clock of this test
        Instant::now()
    }

    #[test]
    fn ten_seconds_of_units_keep_the_rate() {
        let (start, mut sent) = (base(), 0_u64);
        let mut limit = RateLimit::new(start, Bitrate::from_mbps(2.0));
        let mut now = start;
        while now < start + Duration::from_secs(10) {
            limit.refill(now);
            while limit.left() > 0 {
                limit.charge(1_425);
                sent += 1_425 + 57 + 40;
            }
            let next = limit.next_at().expect("nothing is left");
            assert!(next > now, "time goes on");
            now = next;
        }
        let wanted = 2_500_000 + 12_500;
        assert!((wanted - 2_000..wanted + 2_000).contains(&sent), "{sent} of {wanted} bytes");
    }

    #[test]
    fn pause_earns_a_burst_and_debt_is_bounded() {
        let start = base();
        let mut limit = RateLimit::new(start, Bitrate::from_mbps(8.0));
        assert_eq!(limit.left(), 50_000);
        limit.refill(start + Duration::from_secs(3_600));
        assert_eq!(limit.left(), 50_000);
        (0..1_000).for_each(|_| limit.charge(16_384));
        let until = limit.next_at().expect("it is in debt");
        let wait = until - (start + Duration::from_secs(3_600));
        assert!(wait < Duration::from_millis(120), "{wait:?}");
    }

    #[test]
    fn impossible_limit_of_a_peer_still_permits_a_little() {
        let start = base();
        for bits in [0, 1, u64::MAX] {
            let mut limit = RateLimit::new(start, Bitrate::from_bps(bits));
            assert!(limit.left() > 0);
            limit.charge(16_384);
            limit.refill(start + Duration::from_secs(30));
            assert!(limit.left() > 0, "{bits} bit/s");
        }
    }
}
