//! A database that may fail: unwritten handovers wait in memory.
//!
//! After an error the store is closed and opened again every ten seconds; then the waiting
//! handovers are written, and all cells count as changed. Messages of a peer do not wait, because
//! the peer sends them again.

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polyrail_model::{Handover, Position, RouteId, TripId};

use super::{LinkDbSettings, StoreState};
use crate::history::{CellHistory, CellKey};
use crate::position::TrainPosition;
use crate::store::{Appended, Limits, PlaceEstimate, PlaceSample, Store, StoreError, Swept};
use crate::sync::{Ledger, Rank};
use crate::wire::{SyncDigest, TripKnown};

pub(super) struct BufferedStore {
    path: Option<PathBuf>,
    settings: LinkDbSettings,
    store: Option<Store>,
    /// Handovers to be written, oldest first; at most [`WAITING_MAX`].
    waiting: VecDeque<Handover>,
    lost: u64,
    /// Cells whose history has changed.
    changed: BTreeSet<CellKey>,
    /// The database was opened: all cells have changed.
    all_changed: bool,
    /// Milliseconds since 1970.
    wall_ms: u64,
    now: Instant,
    /// Measurements to be written together; at most [`PLACES_WAITING_MAX`].
    places: Vec<PlaceSample>,
    places_at: Instant,
    error: Option<String>,
    /// An error of a read, which closes the store at the next timeout.
    read_error: Cell<Option<StoreError>>,
    retry_at: Instant,
    /// The damaged file that was set aside.
    damaged: Option<String>,
    sweep_at: Instant,
    /// The clock was implausible at the last sweep, and a warning was logged.
    clock_doubted: bool,
    /// Rejected records since the last line about them, and when the next one is permitted.
    refused: usize,
    refused_at: Instant,
}

impl BufferedStore {
    /// Opens the database, or notes the error.
    pub(super) fn open(now: Instant, path: Option<PathBuf>, settings: LinkDbSettings) -> Self {
        let mut buffered = Self {
            path,
            settings,
            store: None,
            waiting: VecDeque::new(),
            lost: 0,
            changed: BTreeSet::new(),
            all_changed: false,
            wall_ms: 0,
            now,
            places: Vec::new(),
            places_at: now + PLACES_EVERY,
            error: None,
            read_error: Cell::new(None),
            retry_at: now,
            damaged: None,
            sweep_at: now + SWEEP_FIRST,
            clock_doubted: false,
            refused: 0,
            refused_at: now,
        };
        buffered.try_open();
        buffered
    }

    pub(super) fn reload(&mut self, settings: LinkDbSettings) {
        if self.settings.retention != settings.retention {
            self.sweep_at = self.now;
        }
        self.settings = settings;
        if let Some(store) = &mut self.store {
            store.set_limits(limits(settings));
        }
    }

    /// Sets the time; call it before anything else.
    pub(super) fn set_time(&mut self, now: Instant, wall_ms: u64) {
        (self.now, self.wall_ms) = (now, wall_ms);
    }

    fn try_open(&mut self) {
        let limits = limits(self.settings);
        let opened = match &self.path {
            Some(path) => Store::open_or_replace(path, limits),
            None => Store::in_memory(limits).map(|store| (store, None)),
        };
        match opened {
            Ok((store, damaged)) => {
                if let Some(damaged) = damaged {
                    tracing::error!(%damaged, "renamed the damaged LinkDB, created an empty one");
                    self.damaged = Some(damaged.to_string());
                }
                if self.error.take().is_some() {
                    tracing::info!("LinkDB is open again");
                }
                self.store = Some(store);
                self.all_changed = true;
            }
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&mut self, error: &StoreError) {
        let path = self.path.as_deref().unwrap_or(Path::new("memory"));
        let text = format!("{}: {error}", path.display());
        if self.error.as_ref() != Some(&text) {
            tracing::error!(error = text, "LinkDB failed; forecasts continue from memory");
        }
        self.error = Some(text);
        self.store = None;
        self.retry_at = self.now + RETRY;
    }

    /// Writes a handover that was observed here, or keeps it until the database can be written.
    pub(super) fn record(&mut self, handover: &Handover) {
        if self.waiting.len() >= WAITING_MAX {
            self.waiting.pop_front();
            self.lost += 1;
        }
        self.waiting.push_back(handover.clone());
        self.catch_up();
    }

    /// Stores a track. If the database is closed, the next trip learns it again.
    pub(super) fn put_track(&mut self, route: RouteId, encoded: &[u8]) {
        self.with(|store| store.put_track(route, encoded));
    }

    fn catch_up(&mut self) {
        if self.store.is_some() && !self.waiting.is_empty() {
            let waiting: Vec<Handover> = std::mem::take(&mut self.waiting).into();
            let wall_ms = self.wall_ms;
            let append = |store: &mut Store| store.append_own(&waiting, wall_ms);
            if self.write(&waiting, append).is_none() {
                self.waiting = waiting.into();
            }
        }
    }

    /// Writes handovers; returns how many were new, or none if nothing was written.
    fn write(
        &mut self,
        handovers: &[Handover],
        append: impl FnOnce(&mut Store) -> Result<Appended, StoreError>,
    ) -> Option<usize> {
        let appended = self.with(append)?;
        self.count_refused(appended.refused);
        if appended.fresh > 0 {
            self.changed.extend(handovers.iter().map(CellKey::of));
        }
        Some(appended.fresh)
    }

    /// Logs rejected records at most once in [`REFUSED_EVERY`], because a peer can send many.
    fn count_refused(&mut self, handovers: usize) {
        self.refused += handovers;
        if self.refused > 0 && self.now >= self.refused_at {
            let handovers = std::mem::take(&mut self.refused);
            tracing::warn!(handovers, "rejected invalid handover records");
            self.refused_at = self.now + REFUSED_EVERY;
        }
    }

    fn write_places(&mut self) {
        if self.store.is_some() {
            let places = std::mem::take(&mut self.places);
            self.with(|store| store.record_places(&places));
        }
    }

    /// Retries what failed and evicts old handovers.
    pub(super) fn on_timeout(&mut self, now: Instant, wall_ms: u64) {
        self.set_time(now, wall_ms);
        if let Some(error) = self.read_error.take() {
            self.fail(&error);
        }
        if self.store.is_none() && now >= self.retry_at {
            self.try_open();
        }
        self.catch_up();
        if now >= self.places_at {
            self.places_at = now + PLACES_EVERY;
            self.write_places();
        }
        if now >= self.sweep_at {
            self.sweep_at = now + SWEEP_EVERY;
            self.sweep();
        }
    }

    /// Evicts trips by age, if the clock is plausible.
    fn sweep(&mut self) {
        let (wall_ms, retention) = (self.wall_ms, self.settings.retention);
        let Some(swept) = self.with(|store| store.sweep(wall_ms, retention)) else { return };
        let doubted = matches!(swept, Swept::ClockDoubted { .. });
        let warned = std::mem::replace(&mut self.clock_doubted, doubted);
        if let Swept::ClockDoubted { attested_ms } = swept
            && !warned
        {
            tracing::warn!(
                wall_ms,
                attested_ms,
                "the clock is far ahead of LinkDB's trips: no trip is evicted by age"
            );
        }
    }

    /// Writes the backlog before the end.
    pub(super) fn close(&mut self) {
        self.catch_up();
        self.write_places();
        if !self.waiting.is_empty() {
            tracing::error!(handovers = self.waiting.len(), "handovers could not be written");
        }
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Store) -> Result<T, StoreError>) -> Option<T> {
        match act(self.store.as_mut()?) {
            Ok(value) => Some(value),
            Err(error) => {
                self.fail(&error);
                None
            }
        }
    }

    fn read<T>(&self, act: impl FnOnce(&Store) -> Result<T, StoreError>) -> Result<T, Closed> {
        act(self.store.as_ref().ok_or(Closed)?).map_err(|error| {
            self.read_error.set(Some(error));
            Closed
        })
    }

    /// The cells that have changed since the last call.
    pub(super) fn take_changed(&mut self) -> Vec<(CellKey, CellHistory)> {
        if self.all_changed {
            return self.cells().unwrap_or_default();
        }
        let mut cells = Vec::new();
        for key in std::mem::take(&mut self.changed) {
            if let Some(Some(history)) = self.with(|store| store.cell(&key)) {
                cells.push((key, history));
            }
        }
        cells
    }

    /// Keeps a measurement until it is written with others.
    pub(super) fn record_place(&mut self, sample: PlaceSample) {
        if self.places.len() < PLACES_WAITING_MAX {
            self.places.push(sample);
        }
    }

    /// The expected rate and delay at a place.
    pub(super) fn place(
        &mut self,
        carrier: &str,
        train: &TrainPosition,
        metres: f64,
    ) -> Option<PlaceEstimate> {
        let position = Position::from_metres(metres);
        let (route, direction) = (train.route, train.direction);
        self.with(|store| store.place_estimate(carrier, route, direction, position))?
    }

    /// All cells, the last written ones last, because a full forecaster keeps those; none while the
    /// database is unreadable.
    pub(super) fn cells(&mut self) -> Option<Vec<(CellKey, CellHistory)>> {
        let cells = self.with(|store| store.cells_by_age())?;
        self.all_changed = false;
        self.changed.clear();
        Some(cells)
    }

    /// All encoded tracks, the one written longest ago first.
    pub(super) fn tracks(&mut self) -> Vec<(RouteId, Vec<u8>)> {
        self.with(|store| store.tracks()).unwrap_or_default()
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let retry = self.store.is_none().then_some(self.retry_at);
        let places = (!self.places.is_empty()).then_some(self.places_at);
        [retry, places, Some(self.sweep_at)].into_iter().flatten().min()
    }

    pub(super) fn state(&self) -> StoreState {
        StoreState {
            path: self.path.clone(),
            open: self.store.is_some(),
            error: self.error.clone(),
            damaged: self.damaged.clone(),
            waiting: self.waiting.len(),
            lost: self.lost,
            stats: self.read(Store::stats).ok(),
        }
    }
}

/// The database is closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closed;

impl Ledger for BufferedStore {
    type Error = Closed;

    fn digest(&self) -> Result<SyncDigest, Closed> {
        self.read(|store| Ok(store.digest()))
    }

    fn known_before(
        &self,
        before: Option<Rank>,
        max: usize,
    ) -> Result<Vec<(Rank, TripKnown)>, Closed> {
        self.read(|store| store.known_before(before, max))
    }

    fn next_of(&self, trip: TripId) -> Result<u32, Closed> {
        self.read(|store| Ok(store.known_of(trip)))
    }

    fn records(&self, trip: TripId, from: u32, max: usize) -> Result<Vec<Handover>, Closed> {
        self.read(|store| store.records(trip, from, max))
    }

    fn append(&mut self, handovers: &[Handover]) -> Result<usize, Closed> {
        let wall_ms = self.wall_ms;
        self.write(handovers, |store| store.append(handovers, wall_ms)).ok_or(Closed)
    }
}

fn limits(settings: LinkDbSettings) -> Limits {
    Limits { events_max: settings.events_max, ..Limits::default() }
}

/// Handovers in memory while the database cannot be written.
const WAITING_MAX: usize = 4_096;
/// The least time between two log lines about rejected records.
const REFUSED_EVERY: Duration = Duration::from_secs(10);
/// Interval of retries after a failure.
const RETRY: Duration = Duration::from_secs(10);
/// Interval at which measurements are written, and how many wait.
const PLACES_EVERY: Duration = Duration::from_secs(30);
const PLACES_WAITING_MAX: usize = 16_384;
/// Interval of evictions by age. The first one comes when the clock should be set.
const SWEEP_EVERY: Duration = Duration::from_secs(3_600);
const SWEEP_FIRST: Duration = Duration::from_secs(600);
