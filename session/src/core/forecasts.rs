//! Forecasts and outlooks by carrier, as the scheduler sees them at a given time.

use std::collections::BTreeMap;
use std::time::Instant;

use polyrail_model::{LinkForecast, LinkOutlook};
use polyrail_scheduler::{Forecast, LookAhead, LookAheadStep};

use crate::limits::SESSION_PATHS_MAX;

/// At most [`SESSION_PATHS_MAX`] carriers each; more are ignored.
#[derive(Debug, Default)]
pub(crate) struct Forecasts {
    failures: BTreeMap<String, LinkForecast>,
    outlooks: BTreeMap<String, LinkOutlook>,
}

impl Forecasts {
    /// Sets or withdraws the forecast of a carrier.
    pub fn set_forecast(&mut self, now: Instant, carrier: &str, forecast: Option<LinkForecast>) {
        self.failures.retain(|name, known| known.expires_at > now && name != carrier);
        if let Some(forecast) = forecast
            && self.failures.len() < SESSION_PATHS_MAX
        {
            self.failures.insert(carrier.to_owned(), forecast);
        }
    }

    /// Sets the outlook of a carrier; an empty one withdraws it.
    pub fn set_outlook(&mut self, now: Instant, carrier: &str, outlook: LinkOutlook) {
        let holds = |known: &LinkOutlook| ends_at(known).is_some_and(|end| end > now);
        self.outlooks.retain(|name, known| holds(known) && name != carrier);
        if !outlook.steps.is_empty() && self.outlooks.len() < SESSION_PATHS_MAX {
            self.outlooks.insert(carrier.to_owned(), outlook);
        }
    }

    /// The forecast of a carrier.
    pub fn forecast(&self, now: Instant, carrier: &str) -> Option<Forecast> {
        let known = self.failures.get(carrier).filter(|known| known.expires_at > now)?;
        let &LinkForecast { fails_at, ends_at, uncertainty, permille, .. } = known;
        let [fails_in, ends_in] = [fails_at, ends_at].map(|at| at.saturating_duration_since(now));
        Some(Forecast { fails_in, ends_in, uncertainty, permille })
    }

    /// The present and future steps of a carrier's outlook.
    pub fn look_ahead(&self, now: Instant, carrier: &str) -> LookAhead {
        let Some(outlook) = self.outlooks.get(carrier) else { return LookAhead::default() };
        let starts = outlook.steps.iter().skip(1).map(|next| Some(next.from));
        let ends = starts.chain([ends_at(outlook)]);
        let ahead = outlook.steps.iter().zip(ends.flatten()).filter(|(_, end)| *end > now);
        LookAhead::new(ahead.map(|(step, end)| LookAheadStep {
            begins_in: step.from.saturating_duration_since(now),
            ends_in: end.saturating_duration_since(now),
            rate: step.rate,
            delay: step.delay,
        }))
    }
}

/// When the last step ends.
fn ends_at(outlook: &LinkOutlook) -> Option<Instant> {
    outlook.steps.last().map(|step| step.from + LinkOutlook::LAST_STEP)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use polyrail_model::{Bitrate, OutlookStep};

    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods, reason = "the base of a table's clock")]
    fn steps_come_nearer_and_end() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let step = |seconds| OutlookStep {
            from: at(seconds),
            rate: Bitrate::from_mbps(seconds as f64),
            delay: Duration::from_millis(10),
        };
        let mut forecasts = Forecasts::default();
        forecasts.set_outlook(begin, "a", LinkOutlook { steps: (1..=6).map(step).collect() });
        let seen = |now| {
            let ahead = forecasts.look_ahead(at(now), "a");
            let one = |step: &LookAheadStep| {
                (step.begins_in.as_secs(), step.ends_in.as_secs(), step.rate.as_mbps() as u64)
            };
            ahead.steps().map(one).collect::<Vec<_>>()
        };
        assert_eq!(seen(0), [(1, 2, 1), (2, 3, 2), (3, 4, 3), (4, 5, 4)]);
        assert_eq!(seen(4), [(0, 1, 4), (1, 2, 5), (2, 5, 6)], "the last holds for 3 s");
        assert_eq!(seen(8), [(0, 1, 6)]);
        assert_eq!(seen(9), []);
    }
}
