//! The length of a tunnel's queues.
//!
//! Data handed to a path cannot be rescheduled, so the queues are short: about 2 ms at the link's
//! rate in our buffer and 5 ms in the kernel's, within bounds that keep slow links responsive and
//! fast links busy.

use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, LinkSample};

/// The link's rate, if known, and the queue lengths that follow from it.
#[derive(Debug)]
pub(super) struct Feed {
    rate: Option<(Bitrate, Instant)>,
    lowat: u32,
}

impl Feed {
    pub(super) fn new() -> Self {
        Self { rate: None, lowat: AMOUNT_MIN as u32 }
    }

    /// Bytes of ciphertext that the tunnel may queue.
    pub(super) fn quantum(&self) -> usize {
        self.amount(QUANTUM_TIME)
    }

    /// Takes a sample; returns the new `TCP_NOTSENT_LOWAT` if it has changed by a quarter.
    ///
    /// The rate is the maximum of the last second; an application-limited sample may raise it, but
    /// never lower it.
    pub(super) fn on_sample(&mut self, sample: &LinkSample) -> Option<u32> {
        let measured = sample.delivery_rate?;
        let take = match self.rate {
            None => true,
            Some((rate, _)) if measured >= rate => true,
            Some((_, since)) => {
                !sample.application_limited
                    && sample.at.saturating_duration_since(since) > RATE_WINDOW
            }
        };
        if take {
            self.rate = Some((measured, sample.at));
        }
        let lowat = self.amount(LOWAT_TIME) as u32;
        (lowat.abs_diff(self.lowat) > self.lowat / 4).then(|| {
            self.lowat = lowat;
            lowat
        })
    }

    fn amount(&self, time: Duration) -> usize {
        let bytes = self.rate.map_or(0, |(rate, _)| rate.bytes_in(time).as_usize());
        bytes.clamp(AMOUNT_MIN, AMOUNT_MAX)
    }
}

const QUANTUM_TIME: Duration = Duration::from_millis(2);
const LOWAT_TIME: Duration = Duration::from_millis(5);
const RATE_WINDOW: Duration = Duration::from_secs(1);
const AMOUNT_MIN: usize = 16 * 1024;
pub(super) const AMOUNT_MAX: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_model::Bytes;

    fn sample(at: Instant, mbps: f64, application_limited: bool) -> LinkSample {
        LinkSample {
            at,
            srtt: Duration::from_millis(50),
            rtt_min: Duration::from_millis(40),
            rtt_var: Duration::from_millis(5),
            window: Bytes(100_000),
            in_flight: Bytes::ZERO,
            unsent: Bytes::ZERO,
            delivery_rate: Some(Bitrate::from_mbps(mbps)),
            application_limited,
            sent_packets: 0,
            lost_packets: 0,
            timeouts: 0,
            acked: Bytes::ZERO,
        }
    }

    #[test]
    fn amounts_follow_the_rate_within_bounds() {
        let now = Instant::now();
        // Mbit/s, quantum, low-water mark
        let table = [(5.0, 16_384, 16_384), (200.0, 50_000, 125_000), (8e3, 262_144, 262_144)];
        for (mbps, quantum, lowat) in table {
            let mut feed = Feed::new();
            assert_eq!(feed.quantum(), AMOUNT_MIN);
            let change = feed.on_sample(&sample(now, mbps, false));
            assert_eq!((feed.quantum(), feed.lowat), (quantum, lowat), "{mbps} Mbit/s");
            assert_eq!(change, (lowat != AMOUNT_MIN as u32).then_some(lowat));
        }
    }

    #[test]
    fn rate_falls_only_after_a_second_and_never_with_application_limited_samples() {
        let now = Instant::now();
        let mut feed = Feed::new();
        feed.on_sample(&sample(now, 400.0, false));
        feed.on_sample(&sample(now + Duration::from_millis(900), 100.0, false));
        assert_eq!(feed.quantum(), 100_000);
        feed.on_sample(&sample(now + Duration::from_secs(3), 100.0, true));
        assert_eq!(feed.quantum(), 100_000);
        feed.on_sample(&sample(now + Duration::from_secs(3), 100.0, false));
        assert_eq!(feed.quantum(), 25_000);
        feed.on_sample(&sample(now + Duration::from_secs(3), 200.0, true));
        assert_eq!(feed.quantum(), 50_000);
    }
}
