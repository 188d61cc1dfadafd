//! How often the cells of a carrier fail: what is known of a cell before it is seen.
//!
//! Most cells never or hardly ever fail and some fail often (POLYCORN 2.3), so two failures of
//! twenty passages mean less than a tenth. The distribution of rates over the cells is estimated
//! on a grid from the counts of all cells (nonparametric maximum likelihood by expectation and
//! maximisation), with a few cells assumed beside them so that one cell decides nothing.

use std::collections::BTreeMap;

/// The distribution of failure rates over a carrier's cells.
#[derive(Clone, Debug, PartialEq)]
pub struct FailureRates {
    weights: [f64; GRID.len()],
}

impl FailureRates {
    /// From each cell's passages and failures.
    pub fn new(cells: impl Iterator<Item = (u32, u32)>) -> Self {
        let mut kinds: BTreeMap<(u32, u32), f64> = BTreeMap::new();
        for (passages, failures) in cells {
            *kinds.entry((passages, failures.min(passages))).or_default() += 1.0;
        }
        let cells: f64 = kinds.values().sum();
        let assumed: f64 = ASSUMED.iter().sum();
        let mut rates = Self { weights: ASSUMED.map(|weight| weight / assumed) };
        for _ in 0..ROUNDS {
            let mut next = ASSUMED;
            for ((passages, failures), count) in &kinds {
                for (sum, share) in next.iter_mut().zip(rates.posterior(*passages, *failures)) {
                    *sum += count * share;
                }
            }
            rates.weights = next.map(|weight| weight / (cells + assumed));
        }
        rates
    }

    /// The distribution whose share up to each rate is the median of those of several.
    pub fn median(all: &[&Self]) -> Self {
        let mut before = 0.0;
        let mut weights = [0.0; GRID.len()];
        for (at, weight) in weights.iter_mut().enumerate() {
            let up_to = middle(all.iter().map(|one| one.weights[..=at].iter().sum()));
            *weight = up_to - before;
            before = up_to;
        }
        Self { weights }
    }

    /// The share of a cell's handovers that fails, as expected after so many passages and failures.
    pub fn expected(&self, passages: u32, failures: u32) -> f64 {
        let posterior = self.posterior(passages, failures.min(passages));
        posterior.iter().zip(GRID).map(|(share, rate)| share * rate).sum()
    }

    fn posterior(&self, passages: u32, failures: u32) -> [f64; GRID.len()] {
        let likely = |rate: f64| {
            failures as f64 * rate.ln() + (passages - failures) as f64 * (1.0 - rate).ln()
        };
        // The greatest is 1, so that the sum is never zero.
        let most = GRID.into_iter().map(likely).fold(f64::NEG_INFINITY, f64::max);
        let mut shares = [0.0; GRID.len()];
        for ((share, rate), weight) in shares.iter_mut().zip(GRID).zip(self.weights) {
            *share = weight * (likely(rate) - most).exp();
        }
        let sum: f64 = shares.iter().sum();
        shares.map(|share| share / sum)
    }
}

/// The median; of an even number, the mean of the two in the middle. 0 without any.
pub(super) fn middle(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let at = |place: usize| sorted.get(place).copied().unwrap_or_default();
    (at(sorted.len() / 2) + at(sorted.len().saturating_sub(1) / 2)) / 2.0
}

/// Rates that a cell may have.
const GRID: [f64; 16] =
    [0.001, 0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.65, 0.8, 0.95];
/// Cells that are assumed beside those that were seen, by rate: four in all.
const ASSUMED: [f64; GRID.len()] =
    [1.2, 0.6, 0.4, 0.3, 0.3, 0.2, 0.2, 0.15, 0.15, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05];
const ROUNDS: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_shrinks_towards_those_of_all_cells() {
        let none = FailureRates::new(std::iter::empty());
        let before = none.expected(0, 0);
        assert!((0.03..0.15).contains(&before), "{before}");
        // Two kinds of cells: 300 hardly fail, 60 fail at 0.3.
        let cells = (0..300).map(|i| (20, u32::from(i % 3 == 0))).chain((0..60).map(|_| (20, 6)));
        let rates = FailureRates::new(cells);
        let (two, six) = (rates.expected(20, 2), rates.expected(20, 6));
        assert!(two < 0.1, "two of twenty are mostly chance: {two}");
        assert!((0.25..0.35).contains(&six), "{six}");
        assert!(rates.expected(20, 0) < 0.03);
    }

    #[test]
    fn extremes_are_no_trouble() {
        let rates = FailureRates::new([(128, 128), (128, 0), (0, 0), (1, 5)].into_iter());
        for (passages, failures) in [(128, 128), (128, 0), (0, 0), (0, 9), (1_000_000, 3)] {
            let rate = rates.expected(passages, failures);
            assert!((0.0..=1.0).contains(&rate), "{passages} {failures}: {rate}");
        }
        assert!(rates.expected(128, 128) > 0.9);
    }
}
