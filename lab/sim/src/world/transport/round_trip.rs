//! The round-trip time as the kernel estimates it (`tcp_rtt_estimator`), and its timeout.

use std::time::Duration;

/// An estimate.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    smoothed: Option<Duration>,
    least: Option<Duration>,
    /// Four times the mean deviation, its maximum in this round, and the value used for timeouts.
    deviation: Duration,
    deviation_most: Duration,
    variation: Duration,
    /// The round ends when more bytes than this are acknowledged.
    round_end: u64,
}

impl RoundTrip {
    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    pub(super) fn least(&self) -> Option<Duration> {
        self.least
    }

    /// The least, or zero.
    pub(super) fn shortest(&self) -> Duration {
        self.least.unwrap_or_default()
    }

    pub(super) fn deviation(&self) -> Duration {
        self.deviation / 4
    }

    /// The first timeout of a series.
    pub(super) fn timeout(&self) -> Duration {
        self.smoothed.map_or(TIMEOUT_FIRST, |smoothed| smoothed + self.variation)
    }

    /// Takes a sample when `acked` bytes are acknowledged of `sent`.
    pub(super) fn measure(&mut self, rtt: Duration, acked: u64, sent: u64) {
        self.least = Some(self.least.map_or(rtt, |least| least.min(rtt)));
        let Some(smoothed) = self.smoothed else {
            self.smoothed = Some(rtt);
            self.deviation = rtt * 2;
            self.variation = self.deviation.max(VARIATION_MIN);
            self.deviation_most = self.variation;
            self.round_end = sent;
            return;
        };
        let error = rtt.abs_diff(smoothed);
        self.smoothed = Some((smoothed * 7 + rtt) / 8);
        let part = self.deviation / 4;
        if error < part {
            self.deviation -= part - error;
        } else if rtt < smoothed {
            // A fall counts less than a rise.
            self.deviation += (error - part) / 8;
        } else {
            self.deviation += error - part;
        }
        self.deviation_most = self.deviation_most.max(self.deviation);
        self.variation = self.variation.max(self.deviation_most);
        if acked > self.round_end {
            self.variation -= (self.variation - self.deviation_most) / 4;
            self.round_end = sent;
            self.deviation_most = VARIATION_MIN;
        }
    }
}

/// RFC 6298 2.
pub(super) const TIMEOUT_FIRST: Duration = Duration::from_secs(1);
/// `TCP_RTO_MIN`: the kernel adds at least this to the round-trip time.
const VARIATION_MIN: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn timeout_exceeds_the_round_trip_by_at_least_a_fifth_of_a_second() {
        let mut rtt = RoundTrip::default();
        assert_eq!(rtt.timeout(), TIMEOUT_FIRST);
        for step in 0..100 {
            rtt.measure(ms(40), step, step + 10);
        }
        assert_eq!((rtt.smoothed(), rtt.timeout()), (Some(ms(40)), ms(240)));
    }

    #[test]
    fn rise_affects_the_timeout_for_some_rounds() {
        let mut rtt = RoundTrip::default();
        rtt.measure(ms(40), 0, 10);
        for step in 1..40 {
            rtt.measure(ms(40 + 20 * step), step, step + 10);
        }
        assert!(rtt.timeout() > rtt.smoothed().unwrap() + ms(300), "{rtt:?}");
        for step in 40..400 {
            rtt.measure(ms(800), step, step + 10);
        }
        assert!(rtt.timeout() < ms(1_010), "{rtt:?}");
    }
}
