//! Whether a cell's failures can be told from its successes: a linear SVM a cell, on the place and
//! the signal where the handover began (POLYCORN 3).
//!
//! This is looked at offline; forecasts use the SVM of `classifier`. All figures are by
//! cross-validation, so that a few points which any line could part do not count as separable. A
//! history holds at most 128 handovers, which bounds the time.

use polyrail_model::HandoverOutcome;
use smartcore::linalg::basic::matrix::DenseMatrix;
use smartcore::svm::Kernels;
use smartcore::svm::svc::{SVC, SVCParameters};

use crate::history::{CellHistory, Passage};

/// What the SVM looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Features {
    /// The place.
    Position,
    /// The signal of the cell that is left.
    Rsrp,
    /// Both.
    Both,
}

/// How well handovers of one cell are told apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Separability {
    /// How many handovers were judged.
    pub handovers: usize,
    /// The share judged rightly.
    pub accuracy: f64,
    /// The share that is right when all are taken for what most are.
    pub majority: f64,
    /// The mean of the shares of failures and of successes judged rightly, by an SVM that was shown
    /// as many of both; guessing gives 0.5.
    pub balanced: f64,
}

/// Judges a cell by cross-validation. `None`: fewer than [`ENOUGH`] failures or successes, or the
/// features do not vary.
pub fn separability(history: &CellHistory, features: Features) -> Option<Separability> {
    let samples = Samples::new(history, features)?;
    let [successes, failures] = samples.counts();
    let [right_successes, right_failures] = samples.cross_validated(false)?;
    let all = successes + failures;
    let [balanced_successes, balanced_failures] = samples.cross_validated(true)?;
    let share = |part: usize, whole: usize| part as f64 / whole as f64;
    let each =
        share(balanced_successes, successes) / 2.0 + share(balanced_failures, failures) / 2.0;
    Some(Separability {
        handovers: all,
        accuracy: share(right_successes + right_failures, all),
        majority: share(successes.max(failures), all),
        balanced: each,
    })
}

/// Standardised features, and which of them belong to failures.
struct Samples {
    rows: Vec<(Vec<f64>, bool)>,
}

impl Samples {
    fn new(history: &CellHistory, features: Features) -> Option<Self> {
        let of = |passage: &Passage| -> Option<(Vec<f64>, bool)> {
            let place = || passage.position.metres();
            let row = match features {
                Features::Position => vec![place()],
                Features::Rsrp => vec![passage.rsrp?.dbm()],
                Features::Both => vec![place(), passage.rsrp?.dbm()],
            };
            Some((row, passage.outcome != HandoverOutcome::Success))
        };
        let mut samples = Self { rows: history.passages().filter_map(of).collect() };
        let enough = samples.counts().iter().all(|count| *count >= ENOUGH);
        (enough && samples.standardise()).then_some(samples)
    }

    /// Successes and failures.
    fn counts(&self) -> [usize; 2] {
        let failures = self.rows.iter().filter(|(_, fails)| *fails).count();
        [self.rows.len() - failures, failures]
    }

    /// Gives each feature a mean of 0 and a deviation of 1; false when none varies.
    fn standardise(&mut self) -> bool {
        let (count, width) = (self.rows.len() as f64, self.rows[0].0.len());
        let mut varies = false;
        for feature in 0..width {
            let mean = self.rows.iter().map(|(row, _)| row[feature]).sum::<f64>() / count;
            let squares = self.rows.iter().map(|(row, _)| (row[feature] - mean).powi(2));
            let deviation = (squares.sum::<f64>() / count).sqrt();
            varies |= deviation > 0.0;
            for (row, _) in &mut self.rows {
                let off = row[feature] - mean;
                // What is far off would drag the solver along.
                let scaled = if deviation > 0.0 { off / deviation } else { 0.0 };
                row[feature] = scaled.clamp(-FEATURE_MAX, FEATURE_MAX);
            }
        }
        varies
    }

    /// How many successes and failures are judged rightly by SVMs that did not see them.
    /// `balanced`: they see the rarer kind as often as the other, by repetition.
    fn cross_validated(&self, balanced: bool) -> Option<[usize; 2]> {
        let mut right = [0, 0];
        for fold in 0..FOLDS {
            let mut seen = [0; 2];
            let (mut train, mut test) = ([const { Vec::new() }; 2], Vec::new());
            for (row, fails) in &self.rows {
                let kind = usize::from(*fails);
                // Every fourth of each kind is tested.
                let tested = seen[kind] % FOLDS == fold;
                seen[kind] += 1;
                if tested { test.push((row, kind)) } else { train[kind].push(row) }
            }
            let predicted = predict(&train, &test, balanced)?;
            for ((_, kind), predicted) in test.iter().zip(predicted) {
                right[*kind] += usize::from(*kind == predicted);
            }
        }
        Some(right)
    }
}

/// The kinds of `test` as an SVM over `train` sees them.
fn predict(
    train: &[Vec<&Vec<f64>>; 2],
    test: &[(&Vec<f64>, usize)],
    balanced: bool,
) -> Option<Vec<usize>> {
    let most = train[0].len().max(train[1].len());
    let (mut rows, mut kinds) = (Vec::new(), Vec::new());
    for (kind, own) in train.iter().enumerate() {
        let count = if balanced { most } else { own.len() };
        for row in own.iter().cycle().take(count) {
            rows.push((*row).clone());
            kinds.push(kind as i32);
        }
    }
    let tested = test.iter().map(|(row, _)| (*row).clone()).collect();
    let rows = DenseMatrix::from_2d_vec(&rows).ok()?;
    let tested = DenseMatrix::from_2d_vec(&tested).ok()?;
    let parameters = SVCParameters::default().with_kernel(Kernels::linear()).with_seed(Some(SEED));
    let machine = SVC::fit(&rows, &kinds, &parameters).ok()?;
    let predicted = machine.predict(&tested).ok()?;
    Some(predicted.into_iter().map(|kind: f64| usize::from(kind > 0.5)).collect())
}

/// So many of each kind are enough: one in every fold.
pub const ENOUGH: usize = FOLDS;
const FOLDS: usize = 4;
/// In deviations.
const FEATURE_MAX: f64 = 5.0;
const SEED: u64 = 1;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use polyrail_model::{CellId, Direction, Handover, Position, RouteId, Rsrp, Speed, TripId};

    use super::*;

    /// Handovers of one cell: metres, dBm, and whether it failed.
    fn history(passages: impl Iterator<Item = (f64, Option<f64>, bool)>) -> CellHistory {
        let mut history = CellHistory::default();
        for (trip, (metres, dbm, fails)) in (0..).zip(passages) {
            history.add(&Handover {
                trip: TripId(trip),
                sequence: 0,
                at_ms: 0,
                carrier: "a".into(),
                route: RouteId(1),
                direction: Direction::Up,
                position: Position::from_metres(metres),
                speed: Speed::from_metres_per_second(80.0),
                from: CellId(1),
                to: None,
                rsrp: dbm.and_then(Rsrp::from_dbm),
                outcome: if fails { HandoverOutcome::TypeII } else { HandoverOutcome::Success },
                dark: Duration::ZERO,
            });
        }
        history
    }

    /// Spread evenly over 0 to 1, in no order.
    fn scattered(i: u32) -> f64 {
        f64::from(i * 37 % 100) / 100.0
    }

    #[test]
    fn late_failures_are_separable_by_place_and_weak_ones_by_signal() {
        let late = history((0..100).map(|i| {
            let fails = i % 4 == 0;
            (1_000.0 + 100.0 * scattered(i) + if fails { 90.0 } else { 0.0 }, Some(-95.0), fails)
        }));
        let by_place = separability(&late, Features::Position).unwrap();
        assert_eq!((by_place.handovers, by_place.majority), (100, 0.75));
        assert!(by_place.accuracy > 0.85 && by_place.balanced > 0.85, "{by_place:?}");
        assert_eq!(separability(&late, Features::Rsrp), None, "all are equally strong");
        assert!(separability(&late, Features::Both).unwrap().balanced > 0.85);
        let weak = history((0..100).map(|i| {
            let fails = i % 5 == 0;
            (1_000.0, Some(-90.0 - 10.0 * scattered(i) - if fails { 9.0 } else { 0.0 }), fails)
        }));
        assert!(separability(&weak, Features::Rsrp).unwrap().accuracy > 0.85);
        assert_eq!(separability(&weak, Features::Position), None);
    }

    #[test]
    fn what_cannot_be_told_apart_is_guessed() {
        // Failures on both sides of the successes: no line parts them.
        let around = history((0..96).map(|i| match i % 4 {
            0 => (if i % 8 == 0 { 900.0 } else { 1_100.0 } + scattered(i), Some(-95.0), true),
            _ => (1_000.0 + 20.0 * scattered(i), Some(-95.0), false),
        }));
        let judged = separability(&around, Features::Both).unwrap();
        assert!(judged.accuracy <= judged.majority + 0.05, "{judged:?}");
        // The same places and signals for both.
        let same = history((0..96).map(|i| (f64::from(i / 8), Some(-95.0), i % 2 == 0)));
        let judged = separability(&same, Features::Both).unwrap();
        assert!(judged.balanced <= 0.5, "{judged:?}");
    }

    #[test]
    fn too_little_is_no_verdict_and_no_panic() {
        let one = |i: u32| (f64::from(i), Some(-95.0), false);
        for (count, failures) in [(0, 0), (1, 0), (1, 1), (3, 1), (128, 0), (128, 128), (128, 3)] {
            let few = history((0..count).map(one).map(|(m, s, _)| (m, s, m < f64::from(failures))));
            for features in [Features::Position, Features::Rsrp, Features::Both] {
                assert_eq!(separability(&few, features), None, "{count} {failures}");
            }
        }
        let identical = history((0..128).map(|i| (5.0, Some(-95.0), i % 2 == 0)));
        assert_eq!(separability(&identical, Features::Both), None);
        let unknown = history((0..40).map(|i| (scattered(i), None, i % 2 == 0)));
        assert_eq!(separability(&unknown, Features::Both), None);
        assert!(separability(&unknown, Features::Position).is_some());
        let far = history((0..128).map(|i| (if i == 0 { 2e8 } else { 1.0 }, None, i % 9 == 0)));
        assert!(separability(&far, Features::Position).is_some());
    }
}
