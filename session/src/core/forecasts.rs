//! Forecasts and outlooks: from the caller to the views of the paths, where they run towards their
//! time.

use std::time::Instant;

use polyrail_model::{LinkForecast, LinkOutlook};
use polyrail_scheduler::{Forecast, Track, TrackStep};

use super::Session;
use crate::limits::SESSION_PATHS_MAX;

impl Session {
    pub fn set_forecast(&mut self, now: Instant, carrier: &str, forecast: Option<LinkForecast>) {
        self.forecasts.retain(|_, known| known.expires_at > now);
        match forecast {
            Some(forecast)
                if self.forecasts.len() < SESSION_PATHS_MAX
                    || self.forecasts.contains_key(carrier) =>
            {
                self.forecasts.insert(carrier.to_owned(), forecast);
            }
            Some(_) => {}
            None => {
                self.forecasts.remove(carrier);
            }
        }
        self.refresh_forecasts(now);
    }

    pub fn set_outlook(&mut self, now: Instant, carrier: &str, outlook: LinkOutlook) {
        self.outlooks.retain(|_, known| ends_at(known).is_some_and(|end| end > now));
        let fits = self.outlooks.len() < SESSION_PATHS_MAX || self.outlooks.contains_key(carrier);
        if outlook.steps.is_empty() {
            self.outlooks.remove(carrier);
        } else if fits {
            self.outlooks.insert(carrier.to_owned(), outlook);
        }
        self.refresh_forecasts(now);
    }

    /// Brings the forecasts and outlooks of all views up to date.
    pub(super) fn refresh_forecasts(&mut self, now: Instant) {
        for (path, view) in self.paths.iter_mut().zip(&mut self.views) {
            let Some(path) = path else { continue };
            let known = self.forecasts.get(&path.carrier);
            view.forecast = known.filter(|forecast| forecast.expires_at > now).map(|forecast| {
                let LinkForecast { fails_at, uncertainty, permille, .. } = *forecast;
                let fails_in = fails_at.saturating_duration_since(now);
                Forecast { fails_in, uncertainty, permille }
            });
            if view.is_about_to_fail() {
                path.watch(now);
            }
            let outlook = self.outlooks.get(&path.carrier);
            view.track = outlook.map(|outlook| track(outlook, now)).unwrap_or_default();
        }
    }
}

/// The steps that are not over yet.
fn track(outlook: &LinkOutlook, now: Instant) -> Track {
    let ends = outlook.steps.iter().skip(1).map(|next| Some(next.from)).chain([ends_at(outlook)]);
    let ahead = outlook.steps.iter().zip(ends.flatten()).filter(|(_, end)| *end > now);
    Track::new(ahead.map(|(step, end)| TrackStep {
        begins_in: step.from.saturating_duration_since(now),
        ends_in: end.saturating_duration_since(now),
        rate: step.rate,
        delay: step.delay,
    }))
}

/// When the last step is over.
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
    fn steps_come_nearer_and_go() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let step = |seconds| OutlookStep {
            from: at(seconds),
            rate: Bitrate::from_mbps(seconds as f64),
            delay: Duration::from_millis(10),
        };
        let outlook = LinkOutlook { steps: (1..=6).map(step).collect() };
        let seen = |now| {
            let track = track(&outlook, at(now));
            let one = |step: &TrackStep| {
                (step.begins_in.as_secs(), step.ends_in.as_secs(), step.rate.as_mbps() as u64)
            };
            track.steps().map(one).collect::<Vec<_>>()
        };
        assert_eq!(seen(0), [(1, 2, 1), (2, 3, 2), (3, 4, 3), (4, 5, 4)]);
        assert_eq!(seen(4), [(0, 1, 4), (1, 2, 5), (2, 5, 6)], "the last holds for 3 s");
        assert_eq!(seen(8), [(0, 1, 6)]);
        assert_eq!(seen(9), []);
    }
}
