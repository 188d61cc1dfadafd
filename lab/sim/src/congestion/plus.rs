//! What BBR+ changes in bbr, *reconstructed*: Wang et al., MobiCom 2019, section 7.1, whose text
//! has lost its formulas.
//!
//! Round-trip times of trains follow a gamma distribution shifted by their minimum, whose mean is
//! the minimum plus the root of the shape times the deviation. So the window counts a round-trip
//! time of the minimum over 10 s plus lambda deviations. Mean and variance decay with time, not
//! with the number of samples. The bandwidth filter and PROBE_RTT keep the minimum.

use std::time::{Duration, Instant};

/// The deviation of round-trip times, and how much of it counts.
#[derive(Debug)]
pub(super) struct Plus {
    lambda: f64,
    mean_s: f64,
    /// In seconds squared.
    variance: f64,
    measured: Option<Instant>,
}

impl Plus {
    /// The gains of its PROBE_BW. The paper's are lost; it calls them more radical than bbr's.
    pub(super) const CYCLE: [f64; 8] = [1.25, 0.75, 1.25, 0.75, 1.25, 0.75, 1.25, 0.75];

    pub(super) fn new(lambda: f64) -> Self {
        Self { lambda, mean_s: 0.0, variance: 0.0, measured: None }
    }

    pub(super) fn measure(&mut self, now: Instant, rtt: Duration) {
        let rtt_s = rtt.as_secs_f64();
        let Some(before) = self.measured.replace(now) else {
            self.mean_s = rtt_s;
            return;
        };
        let elapsed = now.saturating_duration_since(before);
        let kept = (-elapsed.as_secs_f64() / MEMORY.as_secs_f64()).exp();
        self.mean_s = kept * self.mean_s + (1.0 - kept) * rtt_s;
        self.variance = kept * self.variance + (1.0 - kept) * (rtt_s - self.mean_s).powi(2);
    }

    /// The round-trip time in the window, from the least one.
    pub(super) fn round_trip(&self, least: Duration) -> Duration {
        least + Duration::from_secs_f64(self.lambda * self.variance.sqrt())
    }
}

/// How fast old round-trip times fade.
const MEMORY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn deviation_of_the_last_second_is_added_lambda_times() {
        // Round-trip times in turns, their interval, and the deviation after 5 s.
        for (rtts, every, sigma_ms) in [
            ([100, 100], 10, 0.0),
            ([100, 200], 10, 50.0),
            ([100, 200], 1, 50.0),
            ([80, 380], 10, 150.0),
        ] {
            let (start, mut plus) = (Instant::now(), Plus::new(1.0));
            for step in 0..5_000 / every {
                plus.measure(start + ms(step * every), ms(rtts[step as usize % 2]));
            }
            for lambda in [0.0, 0.5, 2.0] {
                plus.lambda = lambda;
                let added = (plus.round_trip(ms(80)) - ms(80)).as_secs_f64() * 1e3;
                let expected = lambda * sigma_ms;
                assert!((added - expected).abs() <= 0.02 * expected, "{rtts:?} {every}: {added}");
            }
        }
    }

    #[test]
    fn step_fades_with_time_and_not_with_the_number_of_samples() {
        let deviation = |every: u64| {
            let (start, mut plus) = (Instant::now(), Plus::new(1.0));
            plus.measure(start, ms(100));
            (1..=4_000 / every).for_each(|step| plus.measure(start + ms(step * every), ms(300)));
            plus.variance.sqrt()
        };
        let (often, rarely) = (deviation(5), deviation(20));
        assert!((often / rarely - 1.0).abs() < 0.03, "{often} {rarely}");
        // The variance after t: 0.2^2 (e^-t - e^-2t), because the mean follows the step.
        let expected = 0.2 * ((-4.0_f64).exp() - (-8.0_f64).exp()).sqrt();
        assert!((often / expected - 1.0).abs() < 0.02, "{often} {expected}");
    }
}
