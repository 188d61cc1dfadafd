//! What was foreseen of the carriers of a session, and what of that the data plane must be told.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_model::{CellId, LinkForecast, LinkOutlook};
use polyrail_predictor::forecast::{Forecaster, Situation};
use polyrail_predictor::wire::CarrierTelemetry;

use super::{CarrierOutlook, Output, SessionNumber};

/// The carriers of one session.
#[derive(Debug, Default)]
pub(super) struct Outlook {
    carriers: BTreeMap<String, Seen>,
}

#[derive(Debug)]
struct Seen {
    cell: Option<CellId>,
    /// When the modem last said so.
    at: Instant,
    told: Option<LinkForecast>,
    /// The track ahead was told, and it was not empty.
    ahead: bool,
}

/// What a report of a serving cell says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// What was known, or nothing that is looked at.
    Same,
    /// Another cell, that it was lost, or the first one of a carrier.
    Other,
    /// It had been lost, and one was found.
    Found,
}

impl Outlook {
    /// The serving cell of a carrier.
    pub(super) fn serves(&mut self, at: Instant, carrier: &str, cell: Option<CellId>) -> Report {
        if let Some(seen) = self.carriers.get_mut(carrier) {
            seen.at = at;
            return match std::mem::replace(&mut seen.cell, cell) {
                before if before == cell => Report::Same,
                None => Report::Found,
                Some(_) => Report::Other,
            };
        }
        if self.carriers.len() >= CARRIERS_MAX {
            return Report::Same;
        }
        let seen = Seen { cell, at, told: None, ahead: false };
        self.carriers.insert(carrier.to_owned(), seen);
        Report::Other
    }

    /// All that a gateway knows of its modems; of those that it does not name it knows nothing.
    pub(super) fn hears(&mut self, at: Instant, modems: &[CarrierTelemetry]) {
        for (carrier, seen) in &mut self.carriers {
            if !modems.iter().any(|modem| modem.carrier == *carrier) {
                seen.cell = None;
            }
        }
        for modem in modems {
            self.serves(at, &modem.carrier, modem.cell);
        }
    }

    /// Forecasts anew; what has changed enough is told. While a modem has no cell, or says nothing
    /// for long, what was foreseen of the last one stays until it expires.
    pub(super) fn look(
        &mut self,
        now: Instant,
        session: SessionNumber,
        forecaster: &mut Forecaster,
        situation: Option<&Situation>,
        mut tell: impl FnMut(Output),
    ) {
        for (carrier, seen) in &mut self.carriers {
            let fresh = now.saturating_duration_since(seen.at) <= SERVING_FRESH;
            let forecast = match (seen.cell.filter(|_| fresh), situation) {
                (Some(cell), Some(situation)) => forecaster.forecast(now, situation, carrier, cell),
                (None, _) => seen.told.filter(|told| told.expires_at > now),
                (_, None) => None,
            };
            if !is_same(seen.told.as_ref(), forecast.as_ref()) {
                seen.told = forecast;
                let carrier = carrier.clone();
                tell(Output::Forecast { session, carrier, forecast });
            }
        }
    }

    /// Looks at the track ahead of each carrier; that nothing is known is told once.
    pub(super) fn look_ahead(
        &mut self,
        session: SessionNumber,
        mut ahead: impl FnMut(&str) -> LinkOutlook,
        mut tell: impl FnMut(Output),
    ) {
        for (carrier, seen) in &mut self.carriers {
            let outlook = ahead(carrier);
            let known = !outlook.steps.is_empty();
            if std::mem::replace(&mut seen.ahead, known) || known {
                tell(Output::Outlook { session, carrier: carrier.clone(), outlook });
            }
        }
    }

    /// The data plane knows nothing any more: all is told anew.
    pub(super) fn forget_told(&mut self) {
        self.carriers.values_mut().for_each(|seen| (seen.told, seen.ahead) = (None, false));
    }

    /// Takes back all that was told.
    pub(super) fn clear(&mut self, session: SessionNumber, mut tell: impl FnMut(Output)) {
        for (carrier, seen) in &mut self.carriers {
            if seen.told.take().is_some() {
                let carrier = carrier.clone();
                tell(Output::Forecast { session, carrier, forecast: None });
            }
        }
        self.look_ahead(session, |_| LinkOutlook::default(), tell);
    }

    pub(super) fn state(&self, now: Instant) -> Vec<CarrierOutlook> {
        let one = |(carrier, seen): (&String, &Seen)| {
            let told = seen.told.filter(|told| told.expires_at > now);
            CarrierOutlook {
                carrier: carrier.clone(),
                cell: seen.cell.map(|cell| cell.0),
                fails_in_s: told.map(|told| {
                    let ahead = told.fails_at.saturating_duration_since(now).as_secs_f64();
                    ahead - now.saturating_duration_since(told.fails_at).as_secs_f64()
                }),
                permille: told.map(|told| told.permille),
            }
        };
        self.carriers.iter().map(one).collect()
    }
}

/// Whether the data plane need not be told: the same failure, about as far away, and not about to
/// expire.
fn is_same(told: Option<&LinkForecast>, new: Option<&LinkForecast>) -> bool {
    let (told, new) = match (told, new) {
        (None, None) => return true,
        (Some(told), Some(new)) => (told, new),
        _ => return false,
    };
    let apart =
        |a: Instant, b: Instant| a.saturating_duration_since(b).max(b.saturating_duration_since(a));
    told.permille == new.permille
        && apart(told.fails_at, new.fails_at) < ALIKE
        && told.uncertainty.abs_diff(new.uncertainty) < ALIKE
        && apart(told.expires_at, new.expires_at) < RENEW
}

/// Carriers of a session that are looked at.
const CARRIERS_MAX: usize = 64;
/// A modem that has said nothing for longer may be in any cell. The detector waits longer for one
/// that tells changes alone: what it concludes is checked against the path, a forecast is not.
const SERVING_FRESH: Duration = Duration::from_secs(30);
/// Times that differ by less are the same.
const ALIKE: Duration = Duration::from_millis(10);
/// A forecast is told again when it would hold longer by this.
const RENEW: Duration = Duration::from_millis(500);
