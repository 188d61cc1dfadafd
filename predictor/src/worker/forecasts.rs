//! The forecasts of a session's carriers; the data plane receives those that changed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_model::{CellId, LinkForecast, LinkOutlook, Rsrp, SessionKey};

use super::{CarrierState, Output};
use crate::position::TrainPosition;
use crate::wire::CarrierTelemetry;

/// The carriers of one session.
#[derive(Debug, Default)]
pub(super) struct CarrierForecasts {
    carriers: BTreeMap<String, CarrierForecast>,
}

#[derive(Debug)]
struct CarrierForecast {
    cell: Option<CellId>,
    signal: Option<Rsrp>,
    /// When the modem last reported its cell.
    at: Instant,
    /// The forecast reported last.
    reported: Option<LinkForecast>,
    /// The outlook reported last was not empty.
    has_outlook: bool,
}

/// The serving cell of a modem and its signal.
pub(super) type Seen = (CellId, Option<Rsrp>);

/// How a report of a serving cell changes the known cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellChange {
    /// Not at all, or there are too many carriers.
    None,
    /// Another cell, a lost cell, or the first report of a carrier.
    Other,
    /// A cell after one was lost.
    Found,
}

impl CarrierForecasts {
    /// Takes the serving cell of a carrier and its signal.
    pub(super) fn serving(
        &mut self,
        at: Instant,
        carrier: &str,
        cell: Option<CellId>,
        signal: Option<Rsrp>,
    ) -> CellChange {
        if let Some(known) = self.carriers.get_mut(carrier) {
            (known.at, known.signal) = (at, signal);
            return match std::mem::replace(&mut known.cell, cell) {
                before if before == cell => CellChange::None,
                None => CellChange::Found,
                Some(_) => CellChange::Other,
            };
        }
        if self.carriers.len() >= CARRIERS_MAX {
            return CellChange::None;
        }
        let new = CarrierForecast { cell, signal, at, reported: None, has_outlook: false };
        self.carriers.insert(carrier.to_owned(), new);
        CellChange::Other
    }

    /// Takes a gateway's report of all its modems.
    pub(super) fn report(&mut self, at: Instant, modems: &[CarrierTelemetry]) {
        for (carrier, known) in &mut self.carriers {
            if !modems.iter().any(|modem| modem.carrier == *carrier) {
                known.cell = None;
            }
        }
        for modem in modems {
            self.serving(at, &modem.carrier, modem.cell, modem.rsrp);
        }
    }

    /// Forecasts for all carriers and reports significant changes. Without a cell or a recent
    /// report of the modem, its last forecast stays until it expires.
    pub(super) fn update(
        &mut self,
        now: Instant,
        session: SessionKey,
        mut forecast: impl FnMut(&TrainPosition, &str, Seen) -> Option<LinkForecast>,
        train: Option<&TrainPosition>,
        mut report: impl FnMut(Output),
    ) {
        for (carrier, known) in &mut self.carriers {
            let fresh = now.saturating_duration_since(known.at) <= SERVING_FRESH;
            let forecast = match (known.cell.filter(|_| fresh), train) {
                (Some(cell), Some(train)) => forecast(train, carrier, (cell, known.signal)),
                (None, _) => known.reported.filter(|reported| reported.expires_at > now),
                (_, None) => None,
            };
            if !is_same(known.reported.as_ref(), forecast.as_ref()) {
                known.reported = forecast;
                let carrier = carrier.clone();
                report(Output::Forecast { session, carrier, forecast });
            }
        }
    }

    /// Reports the outlook of each carrier; an empty one once.
    pub(super) fn update_outlooks(
        &mut self,
        session: SessionKey,
        mut outlook_of: impl FnMut(&str) -> LinkOutlook,
        mut report: impl FnMut(Output),
    ) {
        for (carrier, known) in &mut self.carriers {
            let outlook = outlook_of(carrier);
            let has_steps = !outlook.steps.is_empty();
            if std::mem::replace(&mut known.has_outlook, has_steps) || has_steps {
                report(Output::Outlook { session, carrier: carrier.clone(), outlook });
            }
        }
    }

    /// The data plane may have lost reports: the next update repeats all of them.
    pub(super) fn repeat(&mut self) {
        self.carriers
            .values_mut()
            .for_each(|known| (known.reported, known.has_outlook) = (None, false));
    }

    /// Withdraws every report.
    pub(super) fn withdraw(&mut self, session: SessionKey, mut report: impl FnMut(Output)) {
        for (carrier, known) in &mut self.carriers {
            if known.reported.take().is_some() {
                let carrier = carrier.clone();
                report(Output::Forecast { session, carrier, forecast: None });
            }
        }
        self.update_outlooks(session, |_| LinkOutlook::default(), report);
    }

    pub(super) fn state(&self, now: Instant) -> Vec<CarrierState> {
        let one = |(carrier, known): (&String, &CarrierForecast)| {
            let reported = known.reported.filter(|reported| reported.expires_at > now);
            CarrierState {
                carrier: carrier.clone(),
                cell: known.cell.map(|cell| cell.0),
                fails_in_s: reported.map(|reported| {
                    let ahead = reported.fails_at.saturating_duration_since(now).as_secs_f64();
                    ahead - now.saturating_duration_since(reported.fails_at).as_secs_f64()
                }),
                permille: reported.map(|reported| reported.permille),
            }
        };
        self.carriers.iter().map(one).collect()
    }
}

/// Whether a forecast predicts the same failure as the reported one, which does not expire soon.
fn is_same(reported: Option<&LinkForecast>, new: Option<&LinkForecast>) -> bool {
    let Some((reported, new)) = reported.zip(new) else {
        return reported.is_none() && new.is_none();
    };
    let apart =
        |a: Instant, b: Instant| a.saturating_duration_since(b).max(b.saturating_duration_since(a));
    reported.permille.abs_diff(new.permille) < SAME_PERMILLE
        && apart(reported.fails_at, new.fails_at) < SAME
        && apart(reported.ends_at, new.ends_at) < SAME
        && reported.uncertainty.abs_diff(new.uncertainty) < SAME
        && apart(reported.expires_at, new.expires_at) < RENEW
}

/// Maximum number of carriers of a session.
const CARRIERS_MAX: usize = 64;
/// The interval of forecasts without observations and telemetry: their probability follows the
/// place of the train.
pub(super) const FORECAST_EVERY: Duration = Duration::from_millis(250);
/// A cell that was reported longer ago makes no forecast. The detector waits longer, because it
/// checks its conclusions against the path.
const SERVING_FRESH: Duration = Duration::from_secs(30);
/// Times that differ by less are the same.
const SAME: Duration = Duration::from_millis(10);
/// The same of probabilities, in 1/1,000.
const SAME_PERMILLE: u16 = 10;
/// A forecast is reported again when its expiry moves by this.
const RENEW: Duration = Duration::from_millis(500);
