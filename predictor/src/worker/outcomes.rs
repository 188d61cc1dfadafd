//! What became of forecasts: each concluded handover meets the forecast that was in force when it
//! began.
//!
//! The classes are those of the evaluation (`forecast::evaluate`): a failure is *correct* if it
//! began at most 2.5 s after the train had passed the predicted place, *early* if later after it,
//! and *late* if before it. A failure without a forecast is *missed*. A handover that succeeds
//! after the train has passed the place is a *false alarm*.
//!
//! A handover is concluded seconds after it began, and by then its cell has no forecast any more.
//! So alarms of left cells are kept for [`KEPT`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_model::{CellId, ForecastCounts, LinkForecast};

/// The alarms of all carriers.
#[derive(Debug, Default)]
pub(super) struct ForecastOutcomes {
    pub(super) counts: ForecastCounts,
    carriers: BTreeMap<String, Vec<Alarm>>,
}

/// A predicted failure in a cell.
#[derive(Debug)]
struct Alarm {
    cell: CellId,
    since: Instant,
    fails_at: Instant,
    /// When it was last in force.
    seen: Instant,
}

impl ForecastOutcomes {
    /// The forecast of a carrier in its serving cell at `now`.
    pub(super) fn forecast(
        &mut self,
        now: Instant,
        carrier: &str,
        cell: CellId,
        forecast: Option<&LinkForecast>,
    ) {
        let Some(forecast) = forecast.filter(|forecast| forecast.expires_at > now) else { return };
        let fails_at = forecast.fails_at;
        let alarms = self.carriers.entry(carrier.to_owned()).or_default();
        alarms.retain(|alarm| now.saturating_duration_since(alarm.seen) < KEPT);
        if let Some(alarm) = alarms.iter_mut().find(|alarm| alarm.cell == cell) {
            (alarm.fails_at, alarm.seen) = (fails_at, now);
            return;
        }
        if alarms.len() >= ALARMS_MAX {
            alarms.remove(0);
        }
        alarms.push(Alarm { cell, since: now, fails_at, seen: now });
        self.counts.alarms += 1;
    }

    /// A handover from a cell, which began at `at`, is concluded.
    pub(super) fn handover(&mut self, at: Instant, carrier: &str, from: CellId, failed: bool) {
        let alarms = self.carriers.get_mut(carrier);
        let alarm = alarms.and_then(|alarms| {
            // It may have ended shortly before: a forecast needs the modem's report of the cell.
            let in_force = |alarm: &Alarm| alarm.since <= at && at <= alarm.seen + SLACK;
            let place = alarms.iter().position(|one| one.cell == from && in_force(one))?;
            Some(alarms.remove(place))
        });
        // Since when the train had passed the predicted place.
        let passed = alarm.as_ref().and_then(|alarm| at.checked_duration_since(alarm.fails_at));
        let counts = &mut self.counts;
        match (failed, alarm, passed) {
            (true, None, _) => counts.missed += 1,
            (true, Some(_), None) => counts.late += 1,
            (true, Some(_), Some(since)) if since <= CORRECT => counts.correct += 1,
            (true, Some(_), Some(_)) => counts.early += 1,
            (false, _, Some(_)) => counts.false_alarms += 1,
            (false, _, None) => {}
        }
    }
}

/// A failure that begins within this time after the predicted place counts as predicted
/// (POLYCORN 3, Fig. 5: t2).
const CORRECT: Duration = Duration::from_millis(2_500);
/// How long after its last forecast an alarm may still be in force: forecasts are made several
/// times a second.
const SLACK: Duration = Duration::from_secs(1);
/// How long an alarm is kept: a handover is concluded within 20 s, and a silence before it counts.
const KEPT: Duration = Duration::from_secs(60);
/// Alarms of a carrier: cells in which it was within [`KEPT`].
const ALARMS_MAX: usize = 16;

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the base of a simulated clock")]
mod tests {
    use super::*;

    fn forecast(base: Instant, fails: u64, expires: u64) -> LinkForecast {
        let at = |ms| base + Duration::from_millis(ms);
        let (fails_at, ends_at, uncertainty) = (at(fails), at(fails), Duration::ZERO);
        LinkForecast { fails_at, ends_at, uncertainty, permille: 500, expires_at: at(expires) }
    }

    /// The counts after a forecast for a failure at 5 s and a handover at this time.
    fn after(handover_ms: u64, failed: bool) -> ForecastCounts {
        let (base, mut outcomes) = (Instant::now(), ForecastOutcomes::default());
        let (at, cell) = (|ms: u64| base + Duration::from_millis(ms), CellId(7));
        for ms in (1_000..=handover_ms).step_by(250) {
            outcomes.forecast(at(ms), "a", cell, Some(&forecast(base, 5_000, 20_000)));
        }
        outcomes.handover(at(handover_ms), "a", cell, failed);
        outcomes.counts
    }

    #[test]
    fn handover_meets_the_forecast_of_its_cell() {
        let one = ForecastCounts { alarms: 1, ..ForecastCounts::default() };
        for (handover_ms, failed, expected) in [
            (4_000, true, ForecastCounts { late: 1, ..one }),
            (5_000, true, ForecastCounts { correct: 1, ..one }),
            (7_500, true, ForecastCounts { correct: 1, ..one }),
            (7_750, true, ForecastCounts { early: 1, ..one }),
            (4_000, false, one),
            (5_250, false, ForecastCounts { false_alarms: 1, ..one }),
        ] {
            assert_eq!(after(handover_ms, failed), expected, "{handover_ms} {failed}");
        }
        let missed = ForecastCounts { missed: 1, ..ForecastCounts::default() };
        assert_eq!(after(0, true), missed);
        assert_eq!(after(0, false), ForecastCounts::default());
    }

    #[test]
    fn alarm_counts_once_and_for_its_own_carrier_and_cell_alone() {
        let (base, mut outcomes) = (Instant::now(), ForecastOutcomes::default());
        let at = |ms: u64| base + Duration::from_millis(ms);
        let foreseen = forecast(base, 1_000, 60_000);
        outcomes.forecast(at(0), "a", CellId(7), Some(&foreseen));
        outcomes.forecast(at(0), "a", CellId(7), None);
        outcomes.handover(at(1_000), "a", CellId(8), true);
        outcomes.handover(at(1_000), "b", CellId(7), true);
        outcomes.handover(at(3_000), "a", CellId(7), true);
        assert_eq!(outcomes.counts, ForecastCounts { alarms: 1, missed: 3, ..outcomes.counts });
        outcomes.handover(at(1_000), "a", CellId(7), true);
        outcomes.handover(at(1_000), "a", CellId(7), true);
        let expected = ForecastCounts { alarms: 1, correct: 1, missed: 4, ..Default::default() };
        assert_eq!(outcomes.counts, expected, "an alarm has one outcome");
        for cell in 0..100 {
            outcomes.forecast(at(5_000), "a", CellId(cell), Some(&foreseen));
        }
        assert_eq!(outcomes.carriers["a"].len(), ALARMS_MAX);
        outcomes.forecast(at(59_999), "a", CellId(200), Some(&foreseen));
        assert_eq!(outcomes.counts.alarms, 102);
        let expired = forecast(base, 1_000, 2_000);
        outcomes.forecast(at(3_000), "c", CellId(1), Some(&expired));
        assert_eq!(outcomes.counts.alarms, 102, "an expired forecast is no alarm");
    }
}
