//! How much likelier the failure of a handover is by its lateness and its signal: a linear SVM for
//! each carrier, on the node's own history.
//!
//! Late handovers out of a weak cell fail more often (POLYCORN 3, Table 1). The SVM says on which
//! side of a line a handover lies that begins now, and how far; a logistic function turns that into
//! odds on top of the cell's failure rate (Platt, 1999). Both are measured on trips that they did
//! not see. Where they do not tell more of these than the rate alone, there is no classifier.

use std::collections::{BTreeMap, BTreeSet};

use polyrail_model::TripId;
use smartcore::linalg::basic::matrix::DenseMatrix;
use smartcore::svm::Kernels;
use smartcore::svm::svc::{SVC, SVCParameters};

/// A handover in a cell with a forecast, as that forecast saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    pub trip: TripId,
    /// The failure rate of its cell.
    pub rate: f64,
    /// Deviations beyond the mean of the cell's handovers.
    pub lateness: f64,
    /// dB above the mean of the cell's handovers.
    pub signal: Option<f64>,
    pub fails: bool,
}

/// Changes the odds of a failure by the lateness and the signal of the handover.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Classifier(Line);

/// A linear function of lateness and signal.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Line {
    constant: f64,
    by_lateness: f64,
    by_signal: f64,
}

impl Line {
    fn at(&self, lateness: f64, signal: Option<f64>) -> f64 {
        let lateness = lateness.clamp(-LATENESS_MAX, LATENESS_MAX);
        let signal = signal.unwrap_or_default().clamp(-SIGNAL_MAX, SIGNAL_MAX);
        self.constant + self.by_lateness * lateness + self.by_signal * signal
    }

    fn of(&self, sample: &Sample) -> f64 {
        self.at(sample.lateness, sample.signal)
    }

    /// The line that an SVM draws between failures and successes.
    fn fit(samples: &[&Sample]) -> Option<Self> {
        let kinds = [false, true].map(|fails| {
            let own: Vec<_> = samples.iter().filter(|one| one.fails == fails).collect();
            // Spread over all of them, as many of both.
            let step = own.len().div_ceil(SAMPLES_MAX).max(1);
            own.into_iter().step_by(step).collect::<Vec<_>>()
        });
        let least = kinds.iter().map(Vec::len).min().filter(|least| *least > 0)?;
        let (mut rows, mut classes) = (Vec::new(), Vec::new());
        for (class, own) in (0_i32..).zip(&kinds) {
            let step = own.len() / least;
            for one in own.iter().step_by(step).take(least) {
                let line = |by_lateness, by_signal| Self { by_lateness, by_signal, constant: 0.0 };
                rows.push(vec![line(1.0, 0.0).of(one), line(0.0, 1.0 / SIGNAL_UNIT).of(one)]);
                classes.push(class);
            }
        }
        let rows = DenseMatrix::from_2d_vec(&rows).ok()?;
        let parameters = SVCParameters::default().with_kernel(Kernels::linear());
        let parameters = parameters.with_seed(Some(SEED));
        let machine = SVC::fit(&rows, &classes, &parameters).ok()?;
        let corners = vec![vec![0.0, 0.0], vec![1.0, 0.0], vec![0.0, 1.0]];
        let corners = DenseMatrix::from_2d_vec(&corners).ok()?;
        let values = machine.decision_function(&corners).ok()?;
        let &[constant, lateness, signal] = values.as_slice() else { return None };
        let by_signal = (signal - constant) / SIGNAL_UNIT;
        Some(Self { constant, by_lateness: lateness - constant, by_signal })
    }
}

impl Classifier {
    /// Learns from handovers. `None`: there are too few, or it would tell less than the rates.
    pub(super) fn train(samples: &[Sample]) -> Option<Self> {
        let failures = samples.iter().filter(|one| one.fails).count();
        if failures < ENOUGH || samples.len() - failures < ENOUGH {
            return None;
        }
        let trips: BTreeSet<TripId> = samples.iter().map(|one| one.trip).collect();
        let folds: BTreeMap<TripId, usize> = trips.into_iter().zip((0..FOLDS).cycle()).collect();
        let mut gains = Vec::new();
        for fold in 0..FOLDS {
            let (test, train): (Vec<&Sample>, Vec<&Sample>) =
                samples.iter().partition(|one| folds.get(&one.trip) == Some(&fold));
            let fitted = Self::fit(&train)?;
            gains.extend(test.into_iter().map(|one| {
                let seen = fitted.probability(one.rate, one.lateness, one.signal);
                surprise(one.rate, one.fails) - surprise(seen, one.fails)
            }));
        }
        if !exceeds_zero(&gains) {
            return None;
        }
        Self::fit(&samples.iter().collect::<Vec<_>>())
    }

    /// The line, and what a distance from it adds to the odds.
    fn fit(samples: &[&Sample]) -> Option<Self> {
        let line = Line::fit(samples)?;
        let odds = Odds::fit(samples.iter().map(|one| (line.of(one), *one)));
        let all = Line {
            constant: odds.constant + odds.slope * line.constant,
            by_lateness: odds.slope * line.by_lateness,
            by_signal: odds.slope * line.by_signal,
        };
        let finite = [all.constant, all.by_lateness, all.by_signal].iter().all(|it| it.is_finite());
        finite.then_some(Self(all))
    }

    /// The probability that a handover fails which begins now, in a cell of this failure rate.
    pub fn probability(&self, rate: f64, lateness: f64, signal: Option<f64>) -> f64 {
        logistic(logit(rate) + self.0.at(lateness, signal))
    }
}

/// What a distance from the line adds to the odds.
#[derive(Clone, Copy, Debug, Default)]
struct Odds {
    constant: f64,
    slope: f64,
}

impl Odds {
    /// The likeliest ones (Newton's method on the logistic loss, with a small penalty on both).
    fn fit<'a>(judged: impl Iterator<Item = (f64, &'a Sample)> + Clone) -> Self {
        let mut odds = Self::default();
        for _ in 0..ROUNDS {
            let (mut gradient, mut curve) = ([0.0; 2], [PENALTY, 0.0, PENALTY]);
            gradient[0] -= PENALTY * odds.constant;
            gradient[1] -= PENALTY * odds.slope;
            for (at, one) in judged.clone() {
                let expected = odds.of(one.rate, at);
                let (off, weight) =
                    (f64::from(u8::from(one.fails)) - expected, expected * (1.0 - expected));
                gradient[0] += off;
                gradient[1] += off * at;
                curve[0] += weight;
                curve[1] += weight * at;
                curve[2] += weight * at * at;
            }
            let determinant = curve[0] * curve[2] - curve[1] * curve[1];
            odds.constant += (curve[2] * gradient[0] - curve[1] * gradient[1]) / determinant;
            odds.slope += (curve[0] * gradient[1] - curve[1] * gradient[0]) / determinant;
        }
        odds
    }

    fn of(&self, rate: f64, at: f64) -> f64 {
        logistic(logit(rate) + self.constant + self.slope * at)
    }
}

/// The logarithm of the odds of a probability.
fn logit(probability: f64) -> f64 {
    let probability = probability.clamp(RATE_MIN, 1.0 - RATE_MIN);
    (probability / (1.0 - probability)).ln()
}

fn logistic(odds: f64) -> f64 {
    1.0 / (1.0 + (-odds).exp())
}

/// The logarithmic loss of a forecast.
fn surprise(probability: f64, fails: bool) -> f64 {
    let right = if fails { probability } else { 1.0 - probability };
    -right.max(RATE_MIN).ln()
}

/// Whether the mean is above zero by more than chance: by two standard errors.
fn exceeds_zero(values: &[f64]) -> bool {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    mean > 2.0 * (squares / (count * (count - 1.0))).sqrt()
}

/// Fewer failures or successes teach nothing.
const ENOUGH: usize = 24;
/// Samples of each kind for an SVM, which takes milliseconds for so many.
const SAMPLES_MAX: usize = 128;
const FOLDS: usize = 4;
/// In deviations; a greater lateness counts as this.
const LATENESS_MAX: f64 = 4.0;
/// The same of the signal, in dB, and the unit in which it varies as much as lateness.
const SIGNAL_MAX: f64 = 20.0;
const SIGNAL_UNIT: f64 = 4.0;
const RATE_MIN: f64 = 0.001;
const ROUNDS: usize = 12;
const PENALTY: f64 = 0.5;
const SEED: u64 = 1;

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Numbers of a standard normal distribution (twelve uniform ones).
    pub(in crate::forecast) struct Dice(pub u64);

    impl Dice {
        fn unit(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) as f64 / (1_u64 << 31) as f64
        }

        pub fn normal(&mut self) -> f64 {
            (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
        }
    }

    /// Handovers in cells of which a quarter fail, by odds that grow with lateness and weakness.
    fn samples(seed: u64, count: u64, by_lateness: f64, by_signal: f64) -> Vec<Sample> {
        let mut dice = Dice(seed);
        let sample = |number: u64| {
            let (lateness, signal) = (dice.normal(), 4.0 * dice.normal());
            let odds = logit(0.25) + by_lateness * lateness + by_signal * signal;
            let fails = dice.unit() < logistic(odds);
            Sample { trip: TripId(number / 20), rate: 0.25, lateness, signal: Some(signal), fails }
        };
        (0..count).map(sample).collect()
    }

    #[test]
    fn odds_follow_what_tells_failures_from_successes() {
        for (by_lateness, by_signal) in [(2.0, 0.0), (0.0, -0.5), (1.5, -0.4)] {
            let samples = samples(7, 1_000, by_lateness, by_signal);
            let classifier = Classifier::train(&samples).expect("there is something to tell");
            for (lateness, signal) in [(-1.0, 0.0), (1.0, 0.0), (0.0, -5.0), (0.5, 5.0)] {
                let wanted = logit(0.25) + by_lateness * lateness + by_signal * signal;
                let found = classifier.probability(0.25, lateness, Some(signal));
                let off = (found - logistic(wanted)).abs();
                assert!(off < 0.12, "{by_lateness} {by_signal} at {lateness} {signal}: {off}");
            }
            let unknown = classifier.probability(0.25, 0.0, None);
            assert_eq!(unknown, classifier.probability(0.25, 0.0, Some(0.0)));
            let (rare, often) = (0.05, 0.5);
            let at = |rate| classifier.probability(rate, 0.0, None);
            assert!(at(rare) < unknown && unknown < at(often), "on top of the cell's rate");
        }
    }

    #[test]
    fn where_there_is_nothing_to_tell_there_is_no_classifier() {
        let trained = (0..60)
            .filter(|seed| Classifier::train(&samples(1_000 + seed, 600, 0.0, 0.0)).is_some());
        let trained = trained.count();
        assert!(trained <= 4, "{trained} of 60: two standard errors are chance in one of 44");
    }

    #[test]
    fn too_little_or_odd_history_makes_none_and_no_panic() {
        let told = samples(1, 1_000, 3.0, 0.0);
        let failures: Vec<Sample> = told.iter().filter(|one| one.fails).copied().collect();
        let successes: Vec<Sample> = told.iter().filter(|one| !one.fails).copied().collect();
        let few = [&failures[..ENOUGH - 1], &successes].concat();
        for samples in [vec![], failures.clone(), successes.clone(), few] {
            assert_eq!(Classifier::train(&samples), None);
        }
        // All of one trip, which no other judges.
        let one = told.iter().map(|one| Sample { trip: TripId(1), ..*one }).collect::<Vec<_>>();
        assert_eq!(Classifier::train(&one), None);
        let far = |one: &Sample| Sample { lateness: one.lateness * 1e12, rate: 1.0, ..*one };
        let far: Vec<Sample> = told.iter().map(far).collect();
        if let Some(classifier) = Classifier::train(&far) {
            let at = classifier.probability(1.0, f64::MAX, Some(f64::MIN));
            assert!((0.0..=1.0).contains(&at), "{at}");
        }
    }
}
