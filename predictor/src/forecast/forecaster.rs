//! Forecasts for a train: cells by carrier, fitted when they are asked for.
//!
//! A cell is fitted at most once between two changes of its history or of what all cells have in
//! common; that is learned anew when the handovers have grown by a sixteenth. At most
//! [`CELLS_MAX`] cells are held; of more, those that were not touched for longest are forgotten
//! (the database still has them).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use polyrail_model::{CellId, Handover, LinkForecast, Position, TripId};

use super::cell::CellForecast;
use super::pool::Pool;
use super::settings::ForecastSettings;
use super::svm;
use crate::history::{self, CellHistory, CellKey, Passage};
use crate::position::TrainPosition;

/// Knows cells and makes forecasts of them.
#[derive(Debug, Default)]
pub struct Forecaster {
    settings: ForecastSettings,
    cells: BTreeMap<CellKey, Cell>,
    /// The cells by when they were last touched.
    touched: BTreeMap<u64, CellKey>,
    touches: u64,
    pool: Pool,
    /// Counts what the pool has learned; cells fitted to another are fitted anew.
    generation: u64,
    /// How many more handovers make the pool stale.
    until_stale: usize,
}

#[derive(Debug, Default)]
struct Cell {
    history: CellHistory,
    touched: u64,
    /// Fitted to this generation of the pool.
    fitted: Option<(u64, Vec<CellForecast>)>,
    /// The guard's verdict on this history.
    separable: Option<bool>,
}

impl Forecaster {
    /// One that knows no cell.
    pub fn new(settings: ForecastSettings) -> Self {
        Self { settings, ..Self::default() }
    }

    /// Takes over what a cell remembers. Beside it stays what was known of the cell before, as
    /// older than all of it: a database that had to be begun anew knows less.
    pub fn learn(&mut self, key: CellKey, history: CellHistory) {
        let cell = self.touch(&key);
        let id = |one: &Passage| (one.trip, one.sequence);
        let known: BTreeSet<(TripId, u32)> = cell.history.passages().map(id).collect();
        let told: BTreeSet<(TripId, u32)> = history.passages().map(id).collect();
        // A history that is full grows no longer, but it still changes.
        let more = told.difference(&known).count();
        let trips: BTreeSet<TripId> = history.passages().map(|one| one.trip).collect();
        let before = cell.history.passages().filter(|one| !told.contains(&id(one)));
        // Trips stand where the database has them: it knows their times.
        let (shared, older): (Vec<_>, Vec<_>) = before.partition(|one| trips.contains(&one.trip));
        let all = older.into_iter().chain(history.passages()).chain(shared);
        let history = all.copied().collect();
        *cell = Cell { history, touched: cell.touched, fitted: None, separable: None };
        self.count(more);
    }

    /// Adds one handover as the newest; one that is known, or of a train that stood, changes
    /// nothing. Where it was not the newest, [`Forecaster::learn`] puts its trip in its place.
    pub fn add(&mut self, handover: &Handover) {
        if !history::is_learned(handover) {
            return;
        }
        let cell = self.touch(&CellKey::of(handover));
        if cell.history.add(handover) {
            (cell.fitted, cell.separable) = (None, None);
            self.count(1);
        }
    }

    /// How many cells are known.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// What a cell's history says of the place where it is left most often, where there is one.
    pub fn cell(&mut self, key: &CellKey) -> Option<&CellForecast> {
        self.fitted(key)?.iter().max_by_key(|one| one.passages())
    }

    /// What a cell's history says of the place that counts for a train so far along, where there is
    /// one.
    pub fn cell_in_force(&mut self, key: &CellKey, position: Position) -> Option<&CellForecast> {
        CellForecast::in_force(self.fitted(key)?, position)
    }

    fn fitted(&mut self, key: &CellKey) -> Option<&[CellForecast]> {
        self.refresh();
        let (generation, settings) = (self.generation, self.settings);
        let known = self.cells.get(key)?.touched;
        if self.touches - known > RECENT {
            self.touch(key);
        }
        let cell = self.cells.get_mut(key)?;
        if cell.fitted.as_ref().is_none_or(|(fitted, _)| *fitted != generation) {
            let history = &cell.history;
            let separable = !settings.guard
                || *cell.separable.get_or_insert_with(|| svm::is_separable(history));
            let new = CellForecast::fit(key, history, &self.pool, separable, &settings);
            cell.fitted = Some((generation, new));
        }
        cell.fitted.as_ref().map(|(_, fitted)| fitted.as_slice())
    }

    /// What is foreseen of a carrier whose modem is in this cell. `None`: nothing, because the cell
    /// has no support, the train stands, rolls back or is still far away, or its position is too
    /// old or too uncertain to be believed.
    pub fn forecast(
        &mut self,
        now: Instant,
        situation: &TrainPosition,
        carrier: &str,
        cell: CellId,
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
        let cell = self.cell_in_force(&key, here)?;
        let place = cell.place(speed)?;
        if ERRORS * error / speed > UNCERTAINTY_MAX {
            return None;
        }
        let ahead = direction.sign() * (place.metres() - metres) / speed;
        if ahead > HORIZON {
            return None;
        }
        let fails_at = if ahead >= 0.0 {
            at + Duration::from_secs_f64(ahead)
        } else {
            // Long ago is as good as now.
            Duration::try_from_secs_f64(-ahead)
                .ok()
                .and_then(|ago| at.checked_sub(ago))
                .unwrap_or(at)
        };
        let wrong = (ERRORS * error).max(GPS_ERROR) / speed;
        let uncertainty = Duration::from_secs_f64(wrong.clamp(0.0, UNCERTAINTY_MAX));
        Some(LinkForecast { fails_at, uncertainty, permille: cell.permille(), expires_at })
    }

    /// Learns from all cells what they have in common, if what is known is stale. Takes about ten
    /// milliseconds for a thousand cells; who must not wait calls it where there is time.
    pub fn refresh(&mut self) {
        if self.until_stale > 0 {
            return;
        }
        self.pool = Pool::new(self.cells.iter().map(|(key, cell)| (key, &cell.history)));
        self.generation += 1;
        let handovers: usize = self.cells.values().map(|cell| cell.history.passages().len()).sum();
        self.until_stale = (handovers / 16).max(STALE_MIN);
    }

    fn count(&mut self, handovers: usize) {
        self.until_stale = self.until_stale.saturating_sub(handovers);
    }

    /// The cell, which is made if it is not there; another may be forgotten for it.
    fn touch(&mut self, key: &CellKey) -> &mut Cell {
        self.touches += 1;
        if !self.cells.contains_key(key)
            && self.cells.len() >= CELLS_MAX
            && let Some((_, oldest)) = self.touched.pop_first()
        {
            self.cells.remove(&oldest);
        }
        let cell = self.cells.entry(key.clone()).or_default();
        self.touched.remove(&cell.touched);
        cell.touched = self.touches;
        self.touched.insert(self.touches, key.clone());
        cell
    }
}

/// Less than zero when the second is earlier.
fn seconds_between(first: Instant, second: Instant) -> f64 {
    let after = second.saturating_duration_since(first).as_secs_f64();
    after - first.saturating_duration_since(second).as_secs_f64()
}

/// How many cells are held: four tracks of 1,300 km, both ways, for four carriers.
pub const CELLS_MAX: usize = 32_768;
/// Cells among the last so many touched keep their place in the order.
const RECENT: u64 = 256;
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
const STALE_MIN: usize = 32;

#[cfg(test)]
mod tests;
