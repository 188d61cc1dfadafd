//! How late handovers come in their cells, those that fail beside those that succeed.
//!
//! Late means beyond the mean place of the cell's handovers, counted in deviations of the cell.
//! Pooled over all cells this makes a cell of two or three failures usable: its own tell roughly
//! where, the pool tells how far around.

use super::middle::middle;

/// Lateness of failures and of successes, as at most 128 sorted samples of each.
#[derive(Clone, Debug, PartialEq)]
pub struct Lateness {
    /// Of failures, the earliest first; never empty.
    pub failures: Vec<f64>,
    /// Of successes, the earliest first; never empty.
    pub successes: Vec<f64>,
}

impl Lateness {
    /// From what was seen, in any order. Few failures are filled up with what is assumed without
    /// any: late ones fail (POLYCORN Table 1).
    pub fn new(mut failures: Vec<f64>, mut successes: Vec<f64>) -> Self {
        failures.retain(|value| value.is_finite());
        successes.retain(|value| value.is_finite());
        if failures.len() < ENOUGH {
            failures.extend(ASSUMED_FAILURES);
        }
        if successes.len() < ENOUGH {
            successes.extend(ASSUMED_SUCCESSES);
        }
        Self { failures: thinned(smoothed(failures)), successes: thinned(successes) }
    }

    /// The median of several, sample by sample.
    pub fn median(all: &[&Self]) -> Self {
        if let [only] = all {
            return (*only).clone();
        }
        let of = |side: fn(&Self) -> &Vec<f64>| {
            let sample = |place: usize| {
                let values = all.iter().filter_map(|one| {
                    let side = side(one);
                    side.get((2 * place + 1) * side.len() / (2 * SAMPLES)).copied()
                });
                middle(values)
            };
            (0..SAMPLES).map(sample).collect()
        };
        Self { failures: of(|one| &one.failures), successes: of(|one| &one.successes) }
    }

    /// The means of successes and of failures.
    pub fn means(&self) -> [f64; 2] {
        [mean(&self.successes), mean(&self.failures)]
    }
}

impl Default for Lateness {
    fn default() -> Self {
        Self::new(Vec::new(), Vec::new())
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Each with one below and one above it, all drawn to the mean so that the deviation stays: the
/// few earliest of some hundred failures, which decide how early a forecast must be, come out
/// less by chance.
fn smoothed(values: Vec<f64>) -> Vec<f64> {
    let mean = mean(&values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let step = SMOOTHED * (squares / values.len().max(1) as f64).sqrt();
    let keep = 1.0 / (1.0 + 2.0 / 3.0 * SMOOTHED * SMOOTHED).sqrt();
    let around = |value: f64| [-step, 0.0, step].map(|off| mean + keep * (value - mean + off));
    values.into_iter().flat_map(around).collect()
}

/// Sorted, and evenly thinned to [`SAMPLES`].
fn thinned(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    if values.len() <= SAMPLES {
        return values;
    }
    let step = values.len() as f64 / SAMPLES as f64;
    (0..SAMPLES).map(|place| values[((place as f64 + 0.5) * step) as usize]).collect()
}

/// How many samples are kept of each.
const SAMPLES: usize = 128;
/// From so many on nothing is assumed.
pub(super) const ENOUGH: usize = 24;
/// By this share of a deviation samples are spread.
const SMOOTHED: f64 = 0.4;
const ASSUMED_FAILURES: [f64; 8] = [-0.7, -0.2, 0.2, 0.5, 0.8, 1.1, 1.5, 2.0];
const ASSUMED_SUCCESSES: [f64; 8] = [-1.5, -0.9, -0.5, -0.2, 0.2, 0.5, 0.9, 1.5];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_thinned_and_few_are_filled_up() {
        let many: Vec<f64> = (0..100_000).rev().map(f64::from).collect();
        let lateness = Lateness::new(many, vec![f64::NAN, f64::INFINITY]);
        let kept = &lateness.failures;
        assert_eq!(kept.len(), SAMPLES);
        assert!(kept.is_sorted());
        let mean = lateness.means()[1];
        let squares: f64 = kept.iter().map(|one| (one - mean).powi(2)).sum();
        let deviation = (squares / SAMPLES as f64).sqrt();
        assert!((mean / 50_000.0 - 1.0).abs() < 0.01, "{mean}");
        assert!((deviation / 28_867.0 - 1.0).abs() < 0.02, "smoothing keeps it: {deviation}");
        assert_eq!(lateness.successes, ASSUMED_SUCCESSES);
        let few = Lateness::new(vec![3.0], vec![]);
        assert_eq!(few.failures.len(), 3 * (ASSUMED_FAILURES.len() + 1), "each thrice");
    }
}
