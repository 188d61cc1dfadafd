//! The tables of an evaluation, for people and for programs.

use std::collections::BTreeMap;
use std::fmt;

use polyrail_model::Handover;
use serde::Serialize;

use super::counts::{Bin, Probabilities, Told, share};
use crate::forecast::cell::CellForecast;

/// What an evaluation found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// How many trips were left out.
    pub trips: u64,
    /// What the forecasts made of their handovers.
    pub told: Told,
    /// Failures in cells that had enough earlier ones to be foreseen: the ceiling of coverage.
    pub supported: u64,
    /// A forecast in every cell that history knows.
    pub always: Told,
    /// After so many trips.
    pub learning: BTreeMap<usize, Told>,
    /// By the failure rate that was expected of the cell.
    pub calibration: [Bin; RATES.len()],
    /// By the probability of a forecast when the handover began: the cell's rate, and with its
    /// lateness and signal.
    pub probabilities: [Probabilities; 2],
}

impl Report {
    pub(super) fn calibrate(&mut self, permille: u16, fails: bool) {
        let expected = f64::from(permille) / 1_000.0;
        let bin = RATES.iter().position(|most| expected < *most).unwrap_or(RATES.len() - 1);
        let Bin { handovers, expected: sum, failed } = &mut self.calibration[bin];
        *handovers += 1;
        *sum += expected;
        *failed += u64::from(fails);
    }

    /// Counts the forecast that was in force when a handover began.
    pub(super) fn alarm(&mut self, forecast: Option<&CellForecast>, handover: &Handover) {
        let Some(forecast) = forecast else { return };
        let seen = forecast.permille_at(handover.position, handover.rsrp);
        for (counts, permille) in self.probabilities.iter_mut().zip([forecast.permille(), seen]) {
            counts.add(permille, handover.outcome.is_failure());
        }
    }

    /// Of alarms for enough forecasts that 0.6 of the failures had one, the share that were
    /// true: by the cell's rate alone, and with lateness and signal.
    pub fn alarms_true(&self) -> [Option<f64>; 2] {
        let failures = ALARMED * self.told.failures.all() as f64;
        self.probabilities.each_ref().map(|one| one.alarms_true(failures))
    }

    /// The share of failures in cells that had enough earlier ones: more cannot be foreseen.
    pub fn ceiling(&self) -> Option<f64> {
        share(self.supported, self.told.failures.all())
    }

    /// Adds what was found elsewhere.
    pub fn merge(&mut self, other: &Self) {
        self.trips += other.trips;
        self.supported += other.supported;
        self.told.merge(&other.told);
        self.always.merge(&other.always);
        for (count, told) in &other.learning {
            self.learning.entry(*count).or_default().merge(told);
        }
        let bins = self.calibration.iter_mut().zip(&other.calibration);
        for (own, more) in bins {
            own.handovers += more.handovers;
            own.expected += more.expected;
            own.failed += more.failed;
        }
        let probabilities = self.probabilities.iter_mut().zip(&other.probabilities);
        probabilities.for_each(|(own, more)| own.merge(more));
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} trips, each left out once", self.trips)?;
        let shares = "foreseen | correct | late | early | correct of all | successes correct";
        writeln!(f, "\n| | failures | {shares} |")?;
        writeln!(f, "|---|---:|---:|---:|---:|---:|---:|---:|")?;
        row(f, "forecast", &self.told)?;
        row(f, "always on", &self.always)?;
        for (count, told) in &self.learning {
            row(f, &format!("after {count}"), told)?;
        }
        writeln!(f, "\nat most {} of failures could be foreseen", shown(self.ceiling()))?;
        let inside = self.told.successes.correct_share_in_forecast_cells();
        writeln!(f, "of successes in cells with a forecast {} correct", shown(inside))?;
        let [by_rate, seen] = self.alarms_true().map(shown);
        writeln!(
            f,
            "of alarms for {ALARMED} of the failures {seen} true, by rates alone {by_rate}"
        )?;
        writeln!(f, "\n| expected to fail | handovers | expected | failed |")?;
        writeln!(f, "|---|---:|---:|---:|")?;
        for (bin, most) in self.calibration.iter().zip(RATES) {
            let expected = (bin.handovers > 0).then(|| bin.expected / bin.handovers as f64);
            let failed = share(bin.failed, bin.handovers);
            let (expected, failed) = (shown(expected), shown(failed));
            let name = if most.is_finite() { format!("below {most}") } else { "more".into() };
            writeln!(f, "| {name} | {} | {expected} | {failed} |", bin.handovers)?;
        }
        Ok(())
    }
}

fn row(f: &mut fmt::Formatter<'_>, name: &str, told: &Told) -> fmt::Result {
    let failures = &told.failures;
    let [foreseen, correct, late, early, of_all, right] = [
        failures.coverage(),
        failures.correct_share(),
        failures.late_share(),
        failures.early_share(),
        failures.correct_of_all(),
        told.successes.correct_share(),
    ]
    .map(shown);
    let all = failures.all();
    writeln!(
        f,
        "| {name} | {all} | {foreseen} | {correct} | {late} | {early} | {of_all} | {right} |"
    )
}

/// A dash for what was not counted.
fn shown(share: Option<f64>) -> String {
    share.map_or("-".into(), |share| format!("{share:.3}"))
}

/// The share of failures that are to have an alarm.
const ALARMED: f64 = 0.6;
/// The bins of expected rates end here.
const RATES: [f64; 7] = [0.02, 0.05, 0.1, 0.2, 0.3, 0.5, f64::INFINITY];
