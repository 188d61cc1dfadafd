//! Handovers counted by what was foreseen of them.

use polyrail_model::Handover;
use serde::Serialize;

use super::speed;
use super::way::{FittedCells, Foreseen, Way};
use crate::forecast::cell::CellForecast;

/// Failures by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Classes {
    /// The place was reached at most 2.5 s before.
    pub correct: u64,
    /// After it.
    pub late: u64,
    /// Longer before.
    pub early: u64,
    /// Nothing was foreseen.
    pub none: u64,
}

/// Successes by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Alarms {
    /// No place was passed by then.
    pub correct: u64,
    /// One was.
    pub alarms: u64,
    /// Those, of both kinds, in cells with a forecast.
    pub in_forecast_cells: u64,
}

/// Failures and successes by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Told {
    /// Failures.
    pub failures: Classes,
    /// Successes.
    pub successes: Alarms,
}

/// Handovers of one kind, with what was expected and what came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bin {
    /// How many.
    pub handovers: u64,
    /// How many were expected to fail.
    pub expected: f64,
    /// How many did.
    pub failed: u64,
}

/// Handovers with a forecast when they began, by its probability then.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Probabilities {
    /// By hundredths: how many handovers, and how many of them failed.
    pub bins: Vec<[u64; 2]>,
}

impl Told {
    /// Counts a handover by what its cell foresees on the way to it, and returns that.
    pub(super) fn count(&mut self, way: &Way, cells: &FittedCells) -> Foreseen {
        let foreseen = way.foreseen(way.cell(cells), CellForecast::place);
        self.judge(way.handover, &foreseen);
        foreseen
    }

    /// Counts a handover of which this was foreseen.
    pub(super) fn judge(&mut self, handover: &Handover, foreseen: &Foreseen) {
        if !handover.outcome.is_failure() {
            let Alarms { correct, alarms, in_forecast_cells } = &mut self.successes;
            *in_forecast_cells += u64::from(foreseen.any);
            *(if foreseen.passed { alarms } else { correct }) += 1;
            return;
        }
        let Some(place) = foreseen.last else {
            self.failures.none += 1;
            return;
        };
        let metres = handover.position.metres() - place.metres();
        let seconds = handover.direction.sign() * metres / speed(handover);
        let kind = match seconds {
            late if late < 0.0 => &mut self.failures.late,
            early if early > EARLY => &mut self.failures.early,
            _ => &mut self.failures.correct,
        };
        *kind += 1;
    }

    /// How many handovers came in cells with a forecast.
    pub fn forecasts(&self) -> u64 {
        self.failures.foreseen() + self.successes.in_forecast_cells
    }

    /// Adds what another counted.
    pub fn merge(&mut self, other: &Self) {
        let (own, more) = (&mut self.failures, other.failures);
        own.correct += more.correct;
        own.late += more.late;
        own.early += more.early;
        own.none += more.none;
        let (own, more) = (&mut self.successes, other.successes);
        own.correct += more.correct;
        own.alarms += more.alarms;
        own.in_forecast_cells += more.in_forecast_cells;
    }
}

impl Default for Probabilities {
    fn default() -> Self {
        Self { bins: vec![[0; 2]; HUNDREDTHS] }
    }
}

impl Probabilities {
    pub(super) fn add(&mut self, permille: u16, fails: bool) {
        let bin = &mut self.bins[usize::from(permille / 10).min(HUNDREDTHS - 1)];
        *bin = [bin[0] + 1, bin[1] + u64::from(fails)];
    }

    /// Adds what another counted.
    pub fn merge(&mut self, other: &Self) {
        for (own, more) in self.bins.iter_mut().zip(&other.bins) {
            *own = [own[0] + more[0], own[1] + more[1]];
        }
    }

    /// Alarms for all forecasts above a probability, the greatest with which there is one for so
    /// many failures; otherwise for all. Returns the share of alarms that were true.
    pub fn alarms_true(&self, failures: f64) -> Option<f64> {
        let (mut all, mut failed) = (0, 0);
        for bin in self.bins.iter().rev() {
            (all, failed) = (all + bin[0], failed + bin[1]);
            if failed as f64 >= failures {
                break;
            }
        }
        share(failed, all)
    }
}

impl Classes {
    /// Those of which something was foreseen.
    pub fn foreseen(&self) -> u64 {
        self.correct + self.late + self.early
    }

    /// All.
    pub fn all(&self) -> u64 {
        self.foreseen() + self.none
    }

    /// The share of correct ones of those foreseen.
    pub fn correct_share(&self) -> Option<f64> {
        share(self.correct, self.foreseen())
    }

    /// The share of late ones of those foreseen.
    pub fn late_share(&self) -> Option<f64> {
        share(self.late, self.foreseen())
    }

    /// The share of early ones of those foreseen.
    pub fn early_share(&self) -> Option<f64> {
        share(self.early, self.foreseen())
    }

    /// The share of correct ones of all, foreseen or not.
    pub fn correct_of_all(&self) -> Option<f64> {
        share(self.correct, self.all())
    }

    /// The share of those foreseen of all.
    pub fn coverage(&self) -> Option<f64> {
        share(self.foreseen(), self.all())
    }
}

impl Alarms {
    /// The share of correct ones of all.
    pub fn correct_share(&self) -> Option<f64> {
        share(self.correct, self.correct + self.alarms)
    }

    /// The share of correct ones of those in cells with a forecast.
    pub fn correct_share_in_forecast_cells(&self) -> Option<f64> {
        share(self.in_forecast_cells - self.alarms, self.in_forecast_cells)
    }
}

/// `None` when there is nothing to take a share of.
pub(super) fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Of a probability, the last for all above.
const HUNDREDTHS: usize = 100;
/// POLYCORN 3: t2.
const EARLY: f64 = 2.5;
