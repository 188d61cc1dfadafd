//! What samples say, computed alike for both halves.

use polyrail_emulator::link::Rate;
use polyrail_emulator::results::median;
use polyrail_emulator::trials::{FLOW_BEGINS, SAMPLE_EVERY, Sample, Trial};

/// The figures of a run. What a trial does not have is NaN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    /// Goodput.
    pub(super) mbps: f64,
    /// The median of what the queue's bytes take at the link's rate.
    pub(super) queue_ms: f64,
    /// From the link's return to the first byte.
    pub(super) first_s: f64,
    /// From the link's return until the rate is 80 % of the one before.
    pub(super) again_s: f64,
    /// Packets sent again.
    pub(super) resent: f64,
}

impl Figures {
    pub(super) fn of(trial: &Trial, samples: &[Sample]) -> Self {
        let seconds = (trial.length - FLOW_BEGINS).as_secs_f64();
        let last = samples.last().copied().unwrap_or_default();
        let queues: Vec<f64> = samples
            .iter()
            .filter_map(|sample| {
                let at = std::time::Duration::from_secs_f64(sample.at_s);
                match trial.links[1].rate.at(at).value {
                    Rate::Limited(rate) if rate.as_bps() > 0 => {
                        Some(sample.queue as f64 * 8e3 / rate.as_bps() as f64)
                    }
                    _ => None,
                }
            })
            .collect();
        let (first_s, again_s) = recovery(trial, samples);
        Self {
            mbps: last.delivered as f64 * 8e-6 / seconds,
            queue_ms: median(&queues),
            first_s,
            again_s,
            resent: last.resent as f64,
        }
    }

    /// The median of each figure.
    pub(super) fn median(runs: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| {
            let values: Vec<f64> = runs.iter().map(figure).filter(|v| !v.is_nan()).collect();
            if values.is_empty() { f64::NAN } else { median(&values) }
        };
        Self {
            mbps: of(|f| f.mbps),
            queue_ms: of(|f| f.queue_ms),
            first_s: of(|f| f.first_s),
            again_s: of(|f| f.again_s),
            resent: of(|f| f.resent),
        }
    }
}

/// How late samples were taken, in milliseconds: a machine that is busy shows here.
pub(super) fn lateness(samples: &[Sample]) -> Vec<f64> {
    let due = |number: usize| (FLOW_BEGINS + SAMPLE_EVERY * number as u32).as_secs_f64();
    let late = |(number, sample): (usize, &Sample)| ((sample.at_s - due(number)) * 1e3).max(0.0);
    samples.iter().enumerate().map(late).collect()
}

fn recovery(trial: &Trial, samples: &[Sample]) -> (f64, f64) {
    let Some(dark) = trial.dark else { return (f64::NAN, f64::NAN) };
    let begin = dark.start.as_secs_f64();
    let end = begin + dark.length.as_secs_f64();
    let before = rate(samples, begin - BEFORE_S, begin);
    let at_end = samples.iter().rfind(|s| s.at_s <= end).map_or(0, |s| s.delivered);
    let after = samples.iter().filter(|s| s.at_s > end);
    let first = after.clone().find(|s| s.delivered > at_end);
    let again = after
        .filter(|s| s.at_s >= end + WINDOW_S)
        .find(|s| rate(samples, s.at_s - WINDOW_S, s.at_s) >= 0.8 * before);
    let since = |sample: Option<&Sample>| sample.map_or(f64::INFINITY, |s| s.at_s - end);
    (since(first), since(again))
}

/// Bytes a second between two times.
fn rate(samples: &[Sample], from_s: f64, to_s: f64) -> f64 {
    let at = |time: f64| samples.iter().rfind(|s| s.at_s <= time + 1e-6);
    match (at(from_s), at(to_s)) {
        (Some(a), Some(b)) if b.at_s > a.at_s => {
            (b.delivered - a.delivered) as f64 / (b.at_s - a.at_s)
        }
        _ => 0.0,
    }
}

/// Over so long the rate before the blackout is taken, and the one after it, in seconds.
const BEFORE_S: f64 = 3.0;
const WINDOW_S: f64 = 0.5;

#[cfg(test)]
mod tests {
    use super::*;
    use polyrail_emulator::trials::trials;

    #[test]
    fn lateness_is_counted_from_when_a_sample_was_due() {
        let at = |at_s| Sample { at_s, ..Sample::default() };
        let late = lateness(&[at(0.5), at(0.553), at(0.6)]);
        assert!(late.iter().zip([0.0, 3.0, 0.0]).all(|(is, due)| (is - due).abs() < 1e-6));
    }

    #[test]
    fn recovery_is_counted_from_the_links_return() {
        let trial = trials().unwrap().into_iter().find(|t| t.name == "dark_1s_drop").unwrap();
        let mut delivered = 0;
        let samples: Vec<Sample> = (10..360)
            .map(|step| {
                let at_s = f64::from(step) * 0.05;
                delivered += if step <= 160 || step > 194 { 100 } else { 0 };
                Sample { at_s, delivered, ..Sample::default() }
            })
            .collect();
        let figures = Figures::of(&trial, &samples);
        assert!((figures.first_s - 0.75).abs() < 0.01, "{figures:?}");
        // Eight of the ten samples of half a second.
        assert!((figures.again_s - 1.1).abs() < 0.06, "{figures:?}");
    }
}
