//! Forecasts for a train, from the cells that the node knows.
//!
//! A cell is fitted when its forecast is requested, and again only after its history or the pool
//! has changed. The pool is estimated again when the number of handovers has grown by a sixteenth.
//!
//! A forecast is for one writer, the node `own`: of each cell it counts its own passages in full,
//! and those of others as `fit` says. Trains without passages in a cell share its fit, so that a
//! cloud fits most cells once for all gateways. At most [`FITS_MAX`] fits are kept; of more, the
//! quarter used longest ago is dropped and fitted again when needed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use polyrail_model::{CellId, LinkForecast, Position, Rsrp};

use super::cell::CellForecast;
use super::fit::Fit;
use super::pools::Pools;
use super::settings::Rule;
use crate::entry::WriterNumber;
use crate::history::CellKey;
use crate::position::TrainPosition;
use crate::views::Cells;

/// Makes forecasts.
#[derive(Debug, Default)]
pub struct Forecaster {
    rule: Rule,
    fits: BTreeMap<FitKey, CachedFit>,
    /// Counts the uses of fits.
    uses: u64,
    pools: Pools,
    /// Counts the pools; a cell fitted to an earlier one is fitted again.
    generation: u64,
    /// The number of changes at which the pool is estimated again.
    stale_at: u64,
}

/// A cell, and the node for which it was fitted; nobody if that node has no passages in it.
type FitKey = (WriterNumber, CellKey);

#[derive(Debug)]
struct CachedFit {
    /// The number of its last use.
    used: u64,
    /// The cell's version.
    version: u64,
    generation: u64,
    fit: Fit,
}

impl Forecaster {
    /// A forecaster without fits.
    pub fn new(rule: Rule) -> Self {
        Self { rule, ..Self::default() }
    }

    /// The forecast of a cell at the place where it is left most often, if it is known.
    pub fn cell(
        &mut self,
        cells: &Cells,
        own: WriterNumber,
        key: &CellKey,
    ) -> Option<&CellForecast> {
        self.fitted(cells, own, key)?.all.iter().max_by_key(|one| one.passages)
    }

    fn fitted(&mut self, cells: &Cells, own: WriterNumber, key: &CellKey) -> Option<&Fit> {
        self.refresh(cells);
        let cell = cells.get(key)?;
        let has_own = cell.history.passages().any(|one| one.writer == own);
        let own = if has_own { own } else { WriterNumber::NOBODY };
        let fit_key = (own, key.clone());
        let (version, generation) = (cell.version, self.generation);
        let known = self.fits.get(&fit_key);
        if known.is_none_or(|one| (one.version, one.generation) != (version, generation)) {
            if known.is_none() && self.fits.len() >= FITS_MAX {
                self.drop_oldest();
            }
            self.pools.prepare(cells, own);
            let fit = Fit::new(key, &cell.history, own, &self.pools, self.rule);
            self.fits.insert(fit_key.clone(), CachedFit { used: 0, version, generation, fit });
        }
        self.uses += 1;
        let fit = self.fits.get_mut(&fit_key)?;
        fit.used = self.uses;
        Some(&fit.fit)
    }

    /// The forecast for a carrier of the node `own` whose modem reports this cell and signal.
    /// `None` if the cell has no support, if the train stands, reverses or is still far away, or if
    /// its position is too old or too uncertain.
    pub fn forecast(
        &mut self,
        cells: &Cells,
        own: WriterNumber,
        now: Instant,
        situation: &TrainPosition,
        carrier: &str,
        (cell, signal): (CellId, Option<Rsrp>),
    ) -> Option<LinkForecast> {
        let TrainPosition { at, route, direction, metres, speed, error } = *situation;
        let expires_at = at + EXPIRY;
        let known = metres.is_finite() && error.is_finite();
        // A speed that is no number is not greater either.
        if !(known && speed >= STANDING) || expires_at <= now {
            return None;
        }
        let key = CellKey { carrier: carrier.to_owned(), route, direction, cell };
        let here = metres + direction.sign() * speed * seconds_between(at, now);
        let here = Position::from_metres(here);
        let (cell, place) = self.fitted(cells, own, &key)?.place(here, speed)?;
        if ERRORS * error / speed > UNCERTAINTY_MAX {
            return None;
        }
        let ahead = |place: Position| direction.sign() * (place.metres() - metres) / speed;
        if ahead(place) > HORIZON {
            return None;
        }
        let [fails_at, ends_at] = [place, cell.end(place)].map(|place| after(at, ahead(place)));
        let wrong = (ERRORS * error).max(GPS_ERROR) / speed;
        let uncertainty = Duration::from_secs_f64(wrong.clamp(0.0, UNCERTAINTY_MAX));
        let permille = cell.permille_at(here, signal);
        Some(LinkForecast { fails_at, ends_at, uncertainty, permille, expires_at })
    }

    /// Estimates the pool again if it is stale. Takes about ten milliseconds for a thousand cells:
    /// a caller that must not wait calls it where there is time.
    pub fn refresh(&mut self, cells: &Cells) {
        if cells.changes() < self.stale_at {
            return;
        }
        self.pools.renew(cells);
        self.generation += 1;
        let handovers: usize = cells.iter().map(|(_, history)| history.passages().len()).sum();
        self.stale_at = cells.changes() + (handovers as u64 / 16).max(STALE_MIN);
    }

    /// Trains the classifiers of one node whose records have grown, which takes some tenths of a
    /// second. Returns whether there was one.
    pub fn train(&mut self, cells: &Cells) -> bool {
        let trained = self.pools.train(cells);
        self.generation += u64::from(trained);
        trained
    }

    /// Drops the quarter of the fits that was used longest ago.
    fn drop_oldest(&mut self) {
        let mut uses: Vec<u64> = self.fits.values().map(|one| one.used).collect();
        let last = *uses.select_nth_unstable(FITS_MAX / 4).1;
        self.fits.retain(|_, one| one.used > last);
    }
}

/// So many seconds after a time, or before it. Too long ago is as good as now.
fn after(at: Instant, seconds: f64) -> Instant {
    let apart = Duration::try_from_secs_f64(seconds.abs()).unwrap_or_default();
    let moved = if seconds < 0.0 { at.checked_sub(apart) } else { at.checked_add(apart) };
    moved.unwrap_or(at)
}

/// Less than zero when the second is earlier.
fn seconds_between(first: Instant, second: Instant) -> f64 {
    let after = second.saturating_duration_since(first).as_secs_f64();
    after - first.saturating_duration_since(second).as_secs_f64()
}

/// The most fits: four tracks of 1,300 km, both ways, for four carriers.
pub const FITS_MAX: usize = 32_768;
/// A forecast is good for three seconds after its position (`docs/linkdb.md`, section 8).
const EXPIRY: Duration = Duration::from_secs(3);
/// Who is farther away, in seconds, is not told.
const HORIZON: f64 = 30.0;
/// The largest error of GPS, in metres (POLYCORN 4.3: E_GPS). The spread of the place is no part of
/// it: the place was chosen with that in mind.
const GPS_ERROR: f64 = 20.0;
/// An error that is known to be larger counts so many times.
const ERRORS: f64 = 2.0;
/// A slow train's error is long in time. A path is not given up for longer than this before; who
/// knows its position less well foresees nothing.
const UNCERTAINTY_MAX: f64 = 2.5;
/// A train slower than this, in metres a second, stands: no handover is ahead.
const STANDING: f64 = 1.0;
/// So many new handovers at least make the pool stale.
const STALE_MIN: u64 = 32;

#[cfg(test)]
mod tests;
