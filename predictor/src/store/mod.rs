//! The database: handovers, cells' histories, tracks and the rate map in one file, on redb.
//!
//! - [`Store::append`] takes handovers, each once (by trip and sequence), in one durable
//!   transaction.
//! - Everything is bounded ([`Limits`]). When the handovers are full, the oldest trips are evicted
//!   whole; the cells' histories stay. The number of an evicted trip stays, so that a peer that
//!   still has it does not bring it again.
//! - Records come from peers: invalid ones are rejected, and no time is believed that is before
//!   2025 or in the future (see `trips`).
//! - An error says what an operator can do ([`StoreError`]). After an I/O error, open the store
//!   again.
//!
//! The store belongs to one thread and waits for the disk: the data plane never calls it. It reads
//! no clock. One process at a time can open a file.

mod batch;
mod clock;
mod error;
mod file;
mod keys;
mod limits;
mod places;
mod ring;
mod tables;
#[cfg(test)]
mod tests;
mod transaction;
mod trips;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::wire::{SyncDigest, TripKnown};
use polyrail_model::{Direction, Handover, Position, RouteId, TripId};
use redb::{Database, ReadTransaction, ReadableTable, ReadableTableMetadata};
use serde::{Deserialize, Serialize};

pub(crate) use batch::Batch;
pub use batch::SEQUENCE_AHEAD_MAX;
pub(crate) use error::Fault;
pub use error::StoreError;
pub use keys::PlaceKey;
pub use limits::Limits;
pub(crate) use places::{Mean, Place, SAMPLES_MAX, Visit};
pub use places::{PLACE_TRIPS_MAX, PlaceQuantiles, PlaceSample, Spread};
use tables::{
    CELL_ORDER, CELLS, Counters, EVENTS, FORMAT, META, ORDER, PLACES, TRACK_ORDER, TRACKS, TRIPS,
};
use trips::Trip;
pub use trips::TripSummary;

use crate::forecast::SUPPORT;
use crate::history::{CellHistory, CellKey};
use crate::record;
use crate::sync::{KnownTrips, Rank};

/// An open database.
#[derive(Debug)]
pub struct Store {
    database: Database,
    path: PathBuf,
    limits: Limits,
    /// How far the trips are known, as committed.
    known: KnownTrips,
    /// The clock was behind the trips at the last append, and a warning was logged.
    clock_lost: bool,
}

/// What became of records that were appended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// Those that are new.
    pub fresh: usize,
    /// Those that were there, or whose trip fell out already.
    pub known: usize,
    /// Those that cannot be, or are too far ahead of what is known of their trip.
    pub refused: usize,
}

/// What has come of looking for trips that are too old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swept {
    /// So many trips were too old, and were forgotten.
    Forgotten(u64),
    /// The clock is so far ahead of the trips that it is not believed: nothing was forgotten.
    ClockDoubted {
        /// The time of the newest trip that it was held against, in milliseconds since 1970.
        attested_ms: u64,
    },
}

/// How much is in a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreStats {
    /// Handovers.
    pub events: u64,
    /// Those of them that failed.
    pub failures: u64,
    /// Trips with handovers.
    pub trips: u64,
    /// Trips that fell out and of which the number is kept.
    pub trips_fallen: u64,
    /// Cells that are remembered.
    pub cells: u64,
    /// Those that failed on at least two trips, for which there may be a forecast.
    pub forecastable_cells: u64,
    /// Tracks.
    pub tracks: u64,
    /// Places of the trace database.
    pub places: u64,
    /// Bytes of the file; 0 in memory.
    pub file_bytes: u64,
    /// When the first handover of all came in, in milliseconds since 1970.
    pub created_at_ms: Option<u64>,
    /// The last handover of the oldest trip, as far as its time is to be believed.
    pub oldest_at_ms: Option<u64>,
    /// The last handover of the newest trip.
    pub newest_at_ms: Option<u64>,
}

impl Store {
    /// Opens a database, or creates it. Verifies the whole file.
    ///
    /// # Errors
    /// The file cannot be used; it stays as it is.
    pub fn open(path: impl AsRef<Path>, limits: Limits) -> Result<Self, StoreError> {
        let path = path.as_ref();
        Self::new(file::open(path)?, path.to_owned(), limits)
    }

    /// A database in memory.
    ///
    /// # Errors
    /// None that are known.
    pub fn in_memory(limits: Limits) -> Result<Self, StoreError> {
        Self::new(file::in_memory()?, PathBuf::from(file::IN_MEMORY), limits)
    }

    /// Opens a database. A damaged file is renamed to `<name>.damaged`, in the place of an earlier
    /// one, and replaced by an empty database; the second value says so.
    ///
    /// # Errors
    /// Any other error of [`Store::open`].
    pub fn open_or_replace(
        path: impl AsRef<Path>,
        limits: Limits,
    ) -> Result<(Self, Option<String>), StoreError> {
        let path = path.as_ref();
        match Self::open(path, limits) {
            Ok(store) => Ok((store, None)),
            Err(reason @ StoreError::Damaged { .. }) => {
                let to = file::set_aside(path)?;
                let text = format!("{reason}; it was renamed to {}", to.display());
                Ok((Self::open(path, limits)?, Some(text)))
            }
            Err(error) => Err(error),
        }
    }

    fn new(database: Database, path: PathBuf, limits: Limits) -> Result<Self, StoreError> {
        let known = KnownTrips::default();
        let mut store = Self { database, path, limits, known, clock_lost: false };
        store.known = store.read_known()?;
        Ok(store)
    }

    /// Changes the limits; they hold from the next write.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Takes handovers in, in one durable transaction; those that are known change nothing, those
    /// that cannot be are counted and left out. `now_ms`: milliseconds since 1970. Where all are
    /// known below the gaps of their trips, as copies on several paths are, no disk is waited for.
    ///
    /// # Errors
    /// When nothing was taken.
    pub fn append(&mut self, records: &[Handover], now_ms: u64) -> Result<Appended, StoreError> {
        if let Some(appended) = self.if_known(records) {
            return Ok(appended);
        }
        self.write(|batch| Ok(Ok(batch.append(records, now_ms)?)))
    }

    /// Takes in what was seen here, as [`Store::append`] does with what others say. A trip that is
    /// seen now is no older than the newest: where the clock (`now_ms`) is more than a day behind
    /// that one it is not believed, which is said once.
    ///
    /// # Errors
    /// When nothing was taken.
    pub fn append_own(
        &mut self,
        records: &[Handover],
        now_ms: u64,
    ) -> Result<Appended, StoreError> {
        if let Some(appended) = self.if_known(records) {
            return Ok(appended);
        }
        let appended = self.write(|batch| Ok(Ok(batch.append_own(records, now_ms)?)));
        let (appended, lost) = appended?;
        if lost && !self.clock_lost {
            tracing::warn!(
                now_ms,
                "the clock is behind the LinkDB's newest trip: what is recorded counts as newer"
            );
        }
        self.clock_lost = lost;
        Ok(appended)
    }

    /// What becomes of handovers that are all known.
    fn if_known(&self, records: &[Handover]) -> Option<Appended> {
        let is_known = |record: &Handover| {
            record.sequence < self.known.next_of(record.trip) && record::check(record).is_ok()
        };
        records
            .iter()
            .all(is_known)
            .then(|| Appended { known: records.len(), ..Appended::default() })
    }

    /// How far trips with handovers are known that are older than this place in the order, or all,
    /// the newest first, at most `max`.
    ///
    /// # Errors
    /// When the database cannot be read; so for all that read.
    pub fn known_before(
        &self,
        before: Option<Rank>,
        max: usize,
    ) -> Result<Vec<(Rank, TripKnown)>, StoreError> {
        let end = before.map_or((2, 0, 0), |rank| (1, rank.at_ms, rank.number));
        self.read(|reading| {
            let order = reading.open_table(ORDER)?;
            let rows = order.range((1, 0, 0)..end)?.rev().take(max);
            rows.map(|row| {
                let (order, row) = row?;
                let ((_, at_ms, number), (trip, next)) = (order.value(), row.value());
                Ok((Rank { at_ms, number }, TripKnown { trip: TripId(trip), next }))
            })
            .collect()
        })
    }

    /// How far one trip is known; 0 for one that is not there. Of a trip that fell out, or was
    /// forgotten, nothing more is wanted: then it is [`u32::MAX`]. No disk is waited for.
    pub fn known_of(&self, trip: TripId) -> u32 {
        self.known.next_of(trip)
    }

    /// The digest over all trips with handovers. No disk is waited for, and no trip looked at.
    pub fn digest(&self) -> SyncDigest {
        self.known.digest()
    }

    /// The trips that have handovers here, the oldest first.
    pub fn trips(&self) -> Result<Vec<TripSummary>, StoreError> {
        self.read(|reading| {
            let (order, trips) = (reading.open_table(ORDER)?, reading.open_table(TRIPS)?);
            let mut found = Vec::new();
            for row in order.range((1, 0, 0)..)? {
                let id = TripId(row?.1.value().0);
                if let Some(bytes) = trips.get(id.0)? {
                    found.push(Trip::decode(id, bytes.value())?.summary);
                }
            }
            Ok(found)
        })
    }

    /// Handovers of a trip from a sequence number on, at most `max`.
    pub fn records(
        &self,
        trip: TripId,
        from: u32,
        max: usize,
    ) -> Result<Vec<Handover>, StoreError> {
        self.read(|reading| {
            let Some(Trip { serial, .. }) = trip_of(reading, trip)? else { return Ok(Vec::new()) };
            let events = reading.open_table(EVENTS)?;
            let range = events.range((serial, from)..=(serial, u32::MAX))?;
            range.take(max).map(|row| Ok(record::decode_handover(row?.1.value())?)).collect()
        })
    }

    /// Shows every handover to `visitor`, trip by trip, the oldest trip first; stops at its first
    /// error.
    pub fn visit<E: From<StoreError>>(
        &self,
        mut visitor: impl FnMut(Handover) -> Result<(), E>,
    ) -> Result<(), E> {
        self.read(|reading| {
            let (order, trips) = (reading.open_table(ORDER)?, reading.open_table(TRIPS)?);
            let events = reading.open_table(EVENTS)?;
            for row in order.range((1, 0, 0)..)? {
                let id = TripId(row?.1.value().0);
                let Some(bytes) = trips.get(id.0)? else { continue };
                let Trip { serial, .. } = Trip::decode(id, bytes.value())?;
                for row in events.range((serial, 0)..=(serial, u32::MAX))? {
                    let handover = record::decode_handover(row?.1.value())?;
                    if let Err(error) = visitor(handover) {
                        return Ok(Err(error));
                    }
                }
            }
            Ok(Ok(()))
        })?
    }

    /// All cells, sorted.
    pub fn cells(&self) -> Result<Vec<(CellKey, CellHistory)>, StoreError> {
        self.read(|reading| {
            let cells = reading.open_table(CELLS)?;
            let mut found = Vec::new();
            for row in cells.iter()? {
                let (key, value) = row?;
                let history = record::decode_history(ring::split(value.value())?.1)?;
                found.push((keys::decode_cell(key.value())?, history));
            }
            Ok(found)
        })
    }

    /// All cells, the one that was written longest ago first.
    pub fn cells_by_age(&self) -> Result<Vec<(CellKey, CellHistory)>, StoreError> {
        self.read(|reading| {
            let (order, cells) = (reading.open_table(CELL_ORDER)?, reading.open_table(CELLS)?);
            let mut found = Vec::new();
            for row in order.iter()? {
                let key = row?.1;
                if let Some(history) = ring::get(&cells, key.value())? {
                    found
                        .push((keys::decode_cell(key.value())?, record::decode_history(&history)?));
                }
            }
            Ok(found)
        })
    }

    /// What a cell remembers.
    pub fn cell(&self, key: &CellKey) -> Result<Option<CellHistory>, StoreError> {
        self.read(|reading| {
            let cells = reading.open_table(CELLS)?;
            match ring::get(&cells, &keys::encode_cell(key))? {
                Some(bytes) => Ok(Some(record::decode_history(&bytes)?)),
                None => Ok(None),
            }
        })
    }

    /// Keeps a track as somebody else has encoded it, in the place of what was there.
    ///
    /// # Errors
    /// Also when it is larger than the limits allow.
    pub fn put_track(&mut self, route: RouteId, track: &[u8]) -> Result<(), StoreError> {
        self.write(|batch| Ok(Ok(batch.put_track(route, track)?)))
    }

    /// Counts a track as used just now; one that is not there, or is the last used, changes
    /// nothing.
    ///
    /// # Errors
    /// When it was not counted.
    pub fn touch_track(&mut self, route: RouteId) -> Result<(), StoreError> {
        let key = route.0.to_be_bytes();
        let counts = self.read(|reading| {
            let order = reading.open_table(TRACK_ORDER)?;
            let is_last = order.last()?.is_some_and(|(_, last)| last.value() == &key[..]);
            Ok(!is_last && reading.open_table(TRACKS)?.get(&key[..])?.is_some())
        })?;
        if !counts {
            return Ok(());
        }
        self.write(|batch| Ok(Ok(batch.touch_track(route)?)))
    }

    /// All tracks, the one that was written or used longest ago first.
    pub fn tracks(&self) -> Result<Vec<(RouteId, Vec<u8>)>, StoreError> {
        self.read(|reading| {
            let (order, tracks) = (reading.open_table(TRACK_ORDER)?, reading.open_table(TRACKS)?);
            let mut found = Vec::new();
            for row in order.iter()? {
                let key = row?.1;
                let damaged = |_| Fault::Damaged("a track has no number".to_owned());
                let route = u64::from_be_bytes(key.value().try_into().map_err(damaged)?);
                if let Some(track) = ring::get(&tracks, key.value())? {
                    found.push((RouteId(route), track));
                }
            }
            Ok(found)
        })
    }

    /// Records what was measured at places, in one durable transaction; it waits for the disk, so
    /// gather the samples of some seconds.
    ///
    /// # Errors
    /// Also when a carrier's name cannot be; then nothing is recorded.
    pub fn record_places(&mut self, samples: &[PlaceSample]) -> Result<(), StoreError> {
        if samples.is_empty() {
            return Ok(());
        }
        self.write(|batch| {
            samples.iter().try_for_each(|sample| batch.record_place(sample))?;
            Ok(Ok(()))
        })
    }

    /// What to expect of a carrier at a position; none where it has not been.
    pub fn place_quantiles(
        &self,
        carrier: &str,
        route: RouteId,
        direction: Direction,
        position: Position,
    ) -> Result<Option<PlaceQuantiles>, StoreError> {
        let key = PlaceKey::of(carrier, route, direction, position).encode();
        self.read(|reading| match ring::get(&reading.open_table(PLACES)?, &key)? {
            Some(bytes) => Ok(Some(Place::decode(&bytes)?.quantiles())),
            None => Ok(None),
        })
    }

    /// Shows every place to `visitor`, sorted; stops at its first error.
    pub(crate) fn visit_places<E: From<StoreError>>(
        &self,
        mut visitor: impl FnMut(PlaceKey, Place) -> Result<(), E>,
    ) -> Result<(), E> {
        self.read(|reading| {
            for row in reading.open_table(PLACES)?.iter()? {
                let (key, value) = row?;
                let place = Place::decode(ring::split(value.value())?.1)?;
                if let Err(error) = visitor(PlaceKey::decode(key.value())?, place) {
                    return Ok(Err(error));
                }
            }
            Ok(Ok(()))
        })?
    }

    /// Forgets the handovers of all trips whose last one is older than `retention`, if the clock
    /// is to be believed beside the trips that are there (see `clock`); those that a clock of the
    /// future has recorded then count as of their own time, or of now. `wall_ms`: milliseconds
    /// since 1970.
    ///
    /// # Errors
    /// When nothing was forgotten.
    pub fn sweep(&mut self, wall_ms: u64, retention: Duration) -> Result<Swept, StoreError> {
        let times = self.read(|reading| {
            let mut times = Vec::new();
            for row in reading.open_table(TRIPS)?.iter()? {
                let (id, bytes) = row?;
                let trip = Trip::decode(TripId(id.value()), bytes.value())?;
                times.extend(trip.held.then(|| trip.at_ms()));
            }
            Ok(times)
        })?;
        let attested = clock::attested(times);
        if let Some(attested_ms) = attested.filter(|at| clock::is_doubtful(wall_ms, *at)) {
            return Ok(Swept::ClockDoubted { attested_ms });
        }
        let retention_ms = u64::try_from(retention.as_millis()).unwrap_or(u64::MAX);
        self.write(|batch| {
            if attested.is_some_and(|at| !clock::is_behind(wall_ms, at)) {
                batch.rank_anew(wall_ms)?;
            }
            let forgotten = batch.forget_before(wall_ms.saturating_sub(retention_ms))?;
            Ok(Ok(Swept::Forgotten(forgotten)))
        })
    }

    /// Forgets the handovers of all trips whose last one is older; answers how many trips. What
    /// cells and places remember stays: it says where carriers fail, not when the train was there.
    /// The bytes are gone from the file after [`Store::compact`].
    pub fn forget_before(&mut self, at_ms: u64) -> Result<u64, StoreError> {
        self.write(|batch| Ok(Ok(batch.forget_before(at_ms)?)))
    }

    /// Lets the oldest trips fall out until the limits hold, as each write does.
    ///
    /// # Errors
    /// When nothing was changed.
    pub fn enforce_limits(&mut self) -> Result<(), StoreError> {
        self.write(|batch| Ok(Ok(batch.fall_out()?)))
    }

    /// Makes the file as small as its contents allow; true when it became smaller. Takes seconds
    /// with a full database.
    pub fn compact(&mut self) -> Result<bool, StoreError> {
        self.database.compact().map_err(|error| Fault::from(error).at(&self.path))
    }

    /// How much is here; takes no longer when it is much.
    pub fn stats(&self) -> Result<StoreStats, StoreError> {
        let file_bytes = std::fs::metadata(&self.path).map_or(0, |found| found.len());
        self.read(|reading| {
            let counters = Counters::load(&reading.open_table(META)?)?;
            let order = reading.open_table(ORDER)?;
            let oldest = order.range((1, 0, 0)..)?.next().transpose()?;
            let newest = order.range((1, 0, 0)..)?.next_back().transpose()?;
            Ok(StoreStats {
                events: reading.open_table(EVENTS)?.len()?,
                failures: counters.failures,
                trips: order.len()?.saturating_sub(counters.fallen),
                trips_fallen: counters.fallen,
                cells: reading.open_table(CELLS)?.len()?,
                forecastable_cells: counters.forecastable,
                tracks: reading.open_table(TRACKS)?.len()?,
                places: reading.open_table(PLACES)?.len()?,
                file_bytes,
                created_at_ms: Some(counters.created_ms).filter(|created| *created > 0),
                oldest_at_ms: oldest.map(|(order, _)| order.value().1),
                newest_at_ms: newest.map(|(order, _)| order.value().1),
            })
        })
    }
}

fn trip_of(reading: &ReadTransaction, trip: TripId) -> Result<Option<Trip>, Fault> {
    match reading.open_table(TRIPS)?.get(trip.0)? {
        Some(bytes) => Ok(Some(Trip::decode(trip, bytes.value())?)),
        None => Ok(None),
    }
}

/// Whether a cell has failed on the two trips without which nothing is forecast.
fn is_forecastable(history: &CellHistory) -> bool {
    history.trips_that_failed(|_| true) >= SUPPORT
}
