//! What became of forecasts, as items of a metric.

use polyrail_model::ForecastCounts;

use super::text::{Value, wholes};

/// The handovers with a forecast, or with a failure that had none, by outcome.
pub(super) fn outcomes(counts: &ForecastCounts) -> Vec<(&'static str, Value)> {
    wholes([
        ("correct", counts.correct),
        ("early", counts.early),
        ("late", counts.late),
        ("missed", counts.missed),
        ("false_alarm", counts.false_alarms),
    ])
}
