//! The database behind a store that may fail: what cannot be written waits in memory.
//!
//! After an error the store is closed and, every ten seconds, tried again; when it is open, what
//! waits is written, the oldest first, and all that it knows of cells counts as changed. What a
//! peer says does not wait: the peer says it again.

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use polyrail_model::{Handover, Position, RouteId, TripId};
use polyrail_predictor::detect::CARRIER_NAME_MAX;
use polyrail_predictor::history::{CellHistory, CellKey};
use polyrail_predictor::position::Placement;
use polyrail_predictor::store::{Appended, Limits, PlaceQuantiles, PlaceSample};
use polyrail_predictor::store::{Store, StoreError, Swept};
use polyrail_predictor::sync::{Ledger, Rank};
use polyrail_predictor::wire::{SyncDigest, TripKnown};

use super::{StoreState, Tuning};

/// A database, or the reason why there is none at the moment.
pub(super) struct Keeper {
    path: Option<PathBuf>,
    limits: Limits,
    retention: Duration,
    store: Option<Store>,
    /// Handovers that are not written yet, the oldest first; at most [`WAITING_MAX`].
    waiting: VecDeque<Handover>,
    lost: u64,
    /// Tracks that are not written yet, the oldest first; at most [`TRACKS_WAITING_MAX`].
    tracks: VecDeque<(RouteId, Vec<u8>)>,
    /// Cells whose history has changed since it was asked.
    changed: BTreeSet<CellKey>,
    /// A database was opened and its cells were not asked for yet.
    all_changed: bool,
    /// The time of day, in milliseconds since 1970, as it was told last.
    wall_ms: u64,
    now: Instant,
    /// Places that wait to be written together; at most [`PLACES_WAITING_MAX`].
    places: Vec<PlaceSample>,
    places_at: Instant,
    error: Option<String>,
    /// What went wrong where the database was only read.
    unread: Cell<Option<StoreError>>,
    retry_at: Instant,
    /// What was moved aside.
    damaged: Option<String>,
    sweep_at: Instant,
    /// The clock was not believed when it was last asked what is too old, and that was said.
    clock_doubted: bool,
}

impl Keeper {
    /// Opens the database, or notes why it cannot be opened.
    pub(super) fn open(now: Instant, path: Option<PathBuf>, tuning: Tuning) -> Self {
        let mut keeper = Self {
            path,
            limits: limits(tuning),
            retention: tuning.retention,
            store: None,
            waiting: VecDeque::new(),
            lost: 0,
            tracks: VecDeque::new(),
            changed: BTreeSet::new(),
            all_changed: false,
            wall_ms: 0,
            now,
            places: Vec::new(),
            places_at: now + PLACES_EVERY,
            error: None,
            unread: Cell::new(None),
            retry_at: now,
            damaged: None,
            sweep_at: now + SWEEP_FIRST,
            clock_doubted: false,
        };
        keeper.try_open(now);
        keeper
    }

    /// Other bounds from now on.
    pub(super) fn retune(&mut self, now: Instant, tuning: Tuning) {
        if self.retention != tuning.retention {
            self.retention = tuning.retention;
            self.sweep_at = now;
        }
        if self.limits != limits(tuning) {
            self.limits = limits(tuning);
            // A file is opened anew with them; what is only in memory would be gone.
            if self.path.is_some() {
                self.store = None;
                self.try_open(now);
            }
        }
    }

    /// The time, before anything else is done.
    pub(super) fn at(&mut self, now: Instant, wall_ms: u64) {
        (self.now, self.wall_ms) = (now, wall_ms);
    }

    fn try_open(&mut self, now: Instant) {
        let opened = match &self.path {
            Some(path) => Store::open_or_begin_anew(path, self.limits),
            None => Store::in_memory(self.limits).map(|store| (store, None)),
        };
        match opened {
            Ok((store, moved)) => {
                if let Some(moved) = moved {
                    let (to, reason) = (moved.to.display(), &moved.reason);
                    let text = format!("{reason}; it was renamed to {to}");
                    tracing::error!("{text}; an empty LinkDB is begun");
                    self.damaged = Some(text);
                }
                if self.error.take().is_some() {
                    tracing::info!("the LinkDB is open again");
                }
                self.store = Some(store);
                self.all_changed = true;
            }
            Err(error) => self.fail(now, &error),
        }
    }

    fn fail(&mut self, now: Instant, error: &StoreError) {
        let text = error.to_string();
        if self.error.as_ref() != Some(&text) {
            tracing::error!(error = text, "the LinkDB fails; forecasts go on from memory");
        }
        self.error = Some(text);
        self.store = None;
        self.retry_at = now + RETRY;
    }

    /// Writes a handover that was seen here; while that cannot be it waits.
    pub(super) fn record(&mut self, now: Instant, handover: &Handover) {
        if self.waiting.len() >= WAITING_MAX {
            self.waiting.pop_front();
            self.lost += 1;
        }
        self.waiting.push_back(handover.clone());
        self.catch_up(now);
    }

    /// Keeps a track; while that cannot be it waits.
    pub(super) fn put_track(&mut self, now: Instant, route: RouteId, encoded: Vec<u8>) {
        self.tracks.retain(|(waiting, _)| *waiting != route);
        if self.tracks.len() < TRACKS_WAITING_MAX {
            self.tracks.push_back((route, encoded));
        }
        self.catch_up(now);
    }

    /// A trip goes along a track. While the database cannot be written that is not noted; the next
    /// trip is.
    pub(super) fn touch_track(&mut self, now: Instant, route: RouteId) {
        self.with(now, |store| store.touch_track(route));
    }

    /// Writes what waits, if there is a database.
    fn catch_up(&mut self, now: Instant) {
        if self.store.is_some() && !self.waiting.is_empty() {
            let waiting: Vec<Handover> = std::mem::take(&mut self.waiting).into();
            let wall_ms = self.wall_ms;
            let append = |store: &mut Store| store.append_own(&waiting, wall_ms);
            if self.write(now, &waiting, append).is_none() {
                self.waiting = waiting.into();
            }
        }
        while self.store.is_some()
            && let Some((route, encoded)) = self.tracks.pop_front()
        {
            self.with(now, |store| store.put_track(route, &encoded));
            if self.store.is_none() {
                self.tracks.push_front((route, encoded));
            }
        }
    }

    /// Writes handovers; how many were new, or none when nothing was written.
    fn write(
        &mut self,
        now: Instant,
        handovers: &[Handover],
        append: impl FnOnce(&mut Store) -> Result<Appended, StoreError>,
    ) -> Option<usize> {
        let appended = self.with(now, append)?;
        if appended.refused > 0 {
            let refused = appended.refused;
            tracing::warn!(refused, "handovers that cannot be were not recorded");
        }
        if appended.fresh > 0 {
            self.changed.extend(handovers.iter().map(CellKey::of));
        }
        Some(appended.fresh)
    }

    fn write_places(&mut self, now: Instant) {
        if self.store.is_some() {
            let places = std::mem::take(&mut self.places);
            self.with(now, |store| store.record_places(&places));
            if self.store.is_none() {
                self.places = places;
            }
        }
    }

    /// Tries again what failed, and forgets what is too old.
    pub(super) fn on_timeout(&mut self, now: Instant, wall_ms: u64) {
        self.at(now, wall_ms);
        if let Some(error) = self.unread.take() {
            self.fail(now, &error);
        }
        if self.store.is_none() && now >= self.retry_at {
            self.try_open(now);
        }
        self.catch_up(now);
        if now >= self.places_at {
            self.places_at = now + PLACES_EVERY;
            self.write_places(now);
        }
        if now >= self.sweep_at {
            self.sweep_at = now + SWEEP_EVERY;
            self.sweep(now);
        }
    }

    /// Forgets trips that are too old by the clock, if that is to be believed.
    fn sweep(&mut self, now: Instant) {
        let (wall_ms, retention) = (self.wall_ms, self.retention);
        let Some(swept) = self.with(now, |store| store.sweep(wall_ms, retention)) else { return };
        let doubted = matches!(swept, Swept::ClockDoubted { .. });
        let said = std::mem::replace(&mut self.clock_doubted, doubted);
        if let Swept::ClockDoubted { attested_ms } = swept
            && !said
        {
            tracing::warn!(
                wall_ms,
                attested_ms,
                "the clock is far ahead of the LinkDB's trips: none falls out by age"
            );
        }
    }

    /// Writes what waits, at the end.
    pub(super) fn close(&mut self, now: Instant) {
        if self.store.is_none() && !(self.waiting.is_empty() && self.tracks.is_empty()) {
            self.try_open(now);
        }
        self.catch_up(now);
        self.write_places(now);
        if !self.waiting.is_empty() {
            tracing::error!(handovers = self.waiting.len(), "what was not written is lost");
        }
    }

    /// Does something with the database, if there is one.
    fn with<T>(
        &mut self,
        now: Instant,
        act: impl FnOnce(&mut Store) -> Result<T, StoreError>,
    ) -> Option<T> {
        match act(self.store.as_mut()?) {
            Ok(value) => Some(value),
            // The database is well: it was the value that cannot be.
            Err(error @ (StoreError::TrackTooLarge { .. } | StoreError::Refused(_))) => {
                tracing::warn!(%error, "something is left out of the LinkDB");
                None
            }
            Err(error) => {
                self.fail(now, &error);
                None
            }
        }
    }

    /// Reads where nothing may be changed; an error closes the database soon after.
    fn read<T>(&self, act: impl FnOnce(&Store) -> Result<T, StoreError>) -> Result<T, Closed> {
        act(self.store.as_ref().ok_or(Closed)?).map_err(|error| {
            // Those that follow the first only say that it is closed.
            let first = self.unread.take();
            self.unread.set(first.or(Some(error)));
            Closed
        })
    }

    /// The cells that have changed since the last call, as they are now.
    pub(super) fn take_changed(&mut self, now: Instant) -> Vec<(CellKey, CellHistory)> {
        if self.all_changed {
            return self.cells(now).unwrap_or_default();
        }
        let mut cells = Vec::new();
        for key in std::mem::take(&mut self.changed) {
            if let Some(Some(history)) = self.with(now, |store| store.cell(&key)) {
                cells.push((key, history));
            }
        }
        cells
    }

    /// Remembers what a carrier carried at a place.
    pub(super) fn record_place(&mut self, sample: PlaceSample) {
        // Names come from peers, and one that cannot be would spoil all that is written with it.
        let named = (1..=CARRIER_NAME_MAX).contains(&sample.carrier.len());
        let named = named && !sample.carrier.contains(char::is_control);
        if named && self.places.len() < PLACES_WAITING_MAX {
            self.places.push(sample);
        }
    }

    /// What earlier trips say of a place.
    pub(super) fn place(
        &mut self,
        now: Instant,
        carrier: &str,
        placement: &Placement,
        metres: f64,
    ) -> Option<PlaceQuantiles> {
        let (route, direction) = (placement.route, placement.direction);
        let position = Position::from_metres(metres);
        self.with(now, |store| store.place_quantiles(carrier, route, direction, position))?
    }

    /// All that is remembered of cells, those that were written last behind all others: of more
    /// than a forecaster holds it keeps these. None while the database cannot be read.
    pub(super) fn cells(&mut self, now: Instant) -> Option<Vec<(CellKey, CellHistory)>> {
        let cells = self.with(now, |store| store.cells_by_age())?;
        self.all_changed = false;
        self.changed.clear();
        Some(cells)
    }

    /// All tracks as they are encoded, the least recently used first; none while the database
    /// cannot be read.
    pub(super) fn tracks(&mut self, now: Instant) -> Option<Vec<(RouteId, Vec<u8>)>> {
        self.with(now, |store| store.tracks())
    }

    /// When [`Keeper::on_timeout`] is next of use.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let retry = self.store.is_none().then_some(self.retry_at);
        let places = (!self.places.is_empty()).then_some(self.places_at);
        [retry, places, Some(self.sweep_at)].into_iter().flatten().min()
    }

    pub(super) fn state(&self) -> StoreState {
        let stats = self.read(Store::stats).ok();
        StoreState {
            path: self.path.clone(),
            open: self.store.is_some(),
            error: self.error.clone(),
            damaged: self.damaged.clone(),
            waiting: self.waiting.len(),
            lost: self.lost,
            stats,
        }
    }
}

/// The database cannot be used now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Closed;

impl Ledger for Keeper {
    type Error = Closed;

    fn digest(&self) -> Result<SyncDigest, Closed> {
        self.read(Store::digest)
    }

    fn known_before(
        &self,
        before: Option<Rank>,
        max: usize,
    ) -> Result<Vec<(Rank, TripKnown)>, Closed> {
        self.read(|store| store.known_before(before, max))
    }

    fn next_of(&self, trip: TripId) -> Result<u32, Closed> {
        self.read(|store| store.known_of(trip))
    }

    fn records(&self, trip: TripId, from: u32, max: usize) -> Result<Vec<Handover>, Closed> {
        self.read(|store| store.records(trip, from, max))
    }

    fn append(&mut self, handovers: &[Handover]) -> Result<usize, Closed> {
        // The peer says it again: nothing of it has to wait in memory.
        let wall_ms = self.wall_ms;
        self.write(self.now, handovers, |store| store.append(handovers, wall_ms)).ok_or(Closed)
    }
}

fn limits(tuning: Tuning) -> Limits {
    Limits { events_max: tuning.events_max, ..Limits::default() }
}

/// Handovers that wait in memory while the database cannot be written.
const WAITING_MAX: usize = 4096;
/// Tracks that do; of more the first ones are kept, and all are learned again.
const TRACKS_WAITING_MAX: usize = 8;
/// How long after a failure the database is tried again.
const RETRY: Duration = Duration::from_secs(10);
/// How often what was measured at places is written, and how much of it waits.
const PLACES_EVERY: Duration = Duration::from_secs(30);
const PLACES_WAITING_MAX: usize = 16_384;
/// How often old handovers are looked for, and when first: by then the clock should be right.
const SWEEP_EVERY: Duration = Duration::from_secs(3_600);
const SWEEP_FIRST: Duration = Duration::from_secs(600);
