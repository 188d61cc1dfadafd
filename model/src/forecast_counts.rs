//! Counts of forecasts by what became of them.

use serde::{Deserialize, Serialize};

/// Forecasts since the start, and what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ForecastCounts {
    /// Failures that were predicted.
    pub alarms: u64,
    /// Failures that began at most 2.5 s after the train had passed the predicted place.
    pub correct: u64,
    /// Failures that began later after it.
    pub early: u64,
    /// Failures that began before the train had reached the predicted place.
    pub late: u64,
    /// Failures without a forecast.
    pub missed: u64,
    /// Handovers that succeeded beyond the predicted place.
    pub false_alarms: u64,
}
