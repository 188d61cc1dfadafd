//! Forecasts: from the caller to the views of the paths, where they run towards their time.

use std::time::Instant;

use polyrail_model::LinkForecast;
use polyrail_scheduler::Forecast;

use super::Session;
use crate::limits::SESSION_PATHS_MAX;

impl Session {
    pub fn set_forecast(&mut self, now: Instant, carrier: &str, forecast: Option<LinkForecast>) {
        self.forecasts.retain(|_, known| known.expires_at > now);
        match forecast {
            Some(forecast) if self.forecasts.len() < SESSION_PATHS_MAX => {
                self.forecasts.insert(carrier.to_owned(), forecast);
            }
            Some(_) => {}
            None => {
                self.forecasts.remove(carrier);
            }
        }
        self.refresh_forecasts(now);
    }

    /// Brings the forecasts of all views up to date.
    pub(super) fn refresh_forecasts(&mut self, now: Instant) {
        for (path, view) in self.paths.iter().zip(&mut self.views) {
            let known = path.as_ref().and_then(|path| self.forecasts.get(&path.carrier));
            view.forecast = known.filter(|forecast| forecast.expires_at > now).map(|forecast| {
                let LinkForecast { fails_at, uncertainty, permille, .. } = *forecast;
                let fails_in = fails_at.saturating_duration_since(now);
                Forecast { fails_in, uncertainty, permille }
            });
        }
    }
}
