//! The extreme of the recent samples of a quantity.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The greatest or the least of the samples within a period.
///
/// It holds at most [`SAMPLES_MAX`] samples; when it is full, the newest replaces the one before.
#[derive(Clone, Debug)]
pub(crate) struct Extreme<T> {
    /// Whether the first sample stays in front of the second.
    leads: fn(&T, &T) -> bool,
    /// Each leads all later ones.
    samples: VecDeque<(Instant, T)>,
}

impl<T: Copy + PartialOrd> Extreme<T> {
    /// The greatest of the samples.
    pub(crate) fn greatest() -> Self {
        Self { leads: |a, b| a > b, samples: VecDeque::new() }
    }

    /// The least of the samples.
    pub(crate) fn least() -> Self {
        Self { leads: |a, b| a < b, samples: VecDeque::new() }
    }

    /// Adds a sample.
    pub(crate) fn add(&mut self, now: Instant, sample: T) {
        while self.samples.back().is_some_and(|last| !(self.leads)(&last.1, &sample)) {
            self.samples.pop_back();
        }
        if self.samples.len() >= SAMPLES_MAX {
            self.samples.pop_back();
        }
        self.samples.push_back((now, sample));
    }

    /// Discards samples older than the period, but keeps the newest.
    pub(crate) fn expire(&mut self, now: Instant, period: Duration) {
        while self.samples.len() > 1
            && self.samples.front().is_some_and(|(at, _)| now.duration_since(*at) > period)
        {
            self.samples.pop_front();
        }
    }

    /// The extreme and its time.
    pub(crate) fn get(&self) -> Option<(Instant, T)> {
        self.samples.front().copied()
    }

    /// Discards all samples.
    pub(crate) fn clear(&mut self) {
        self.samples.clear();
    }
}

/// Enough for one a millisecond in the longest period of a falling quantity to be exact in
/// practice: a monotonic series of this length does not occur.
const SAMPLES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn is_the_extreme_of_the_period(
            samples in prop::collection::vec((0_u64..50, 0_u32..20), 1..100),
            period in 1_u64..300,
        ) {
            #[allow(clippy::disallowed_methods)] // the base of this test's clock
            let base = Instant::now();
            let period = Duration::from_millis(period);
            let (mut most, mut least) = (Extreme::greatest(), Extreme::least());
            let (mut now, mut seen) = (base, Vec::new());
            for (gap, sample) in samples {
                now += Duration::from_millis(gap);
                seen.push((now, sample));
                for (extreme, wanted) in [
                    (&mut most, recent(&seen, now, period).max()),
                    (&mut least, recent(&seen, now, period).min()),
                ] {
                    extreme.add(now, sample);
                    extreme.expire(now, period);
                    prop_assert_eq!(extreme.get().map(|it| it.1), wanted);
                }
            }
        }
    }

    fn recent(
        seen: &[(Instant, u32)],
        now: Instant,
        period: Duration,
    ) -> impl Iterator<Item = u32> + '_ {
        seen.iter().filter(move |(at, _)| now.duration_since(*at) <= period).map(|(_, it)| *it)
    }

    #[test]
    fn number_of_samples_is_bounded() {
        #[allow(clippy::disallowed_methods)] // the base of this test's clock
        let base = Instant::now();
        let mut extreme = Extreme::greatest();
        for sample in 0..10_000_u32 {
            extreme.add(base, 10_000 - sample);
        }
        assert_eq!((extreme.samples.len(), extreme.get()), (SAMPLES_MAX, Some((base, 10_000))));
    }
}
