//! The database: handovers, cells' histories, tracks and the rate map in one file, on redb.
//!
//! - [`Store::append`] adds handovers, each once (by trip and sequence), in one durable
//!   transaction.
//! - Everything is bounded ([`Limits`]). When the handovers are full, the oldest trips are evicted;
//!   the cells' histories stay. The number of an evicted trip stays, so that a peer that still has
//!   it does not send it again.
//! - Records come from peers: invalid ones are rejected, and implausible times are replaced (see
//!   `clock`).
//! - An error states its remedy ([`StoreError`]). After an I/O error, open the store again.
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
pub(crate) mod tests;
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
pub use error::StoreError;
pub use keys::PlaceKey;
pub use limits::Limits;
pub(crate) use places::{Mean, PLACE_TRIPS_MAX, Place, Visit};
pub use places::{PlaceEstimate, PlaceSample};
use tables::{CELLS, Counters, EVENTS, META, ORDER, PLACES, TRACKS, TRIPS, newest_rank};
use trips::Trip;

use crate::forecast::SUPPORT;
use crate::history::{CellHistory, CellKey};
use crate::record;
use crate::sync::{KnownTrips, Rank};

/// The format that this program writes.
const FORMAT: u64 = 1;

/// An open database.
#[derive(Debug)]
pub struct Store {
    database: Database,
    /// Its file; none in memory.
    path: Option<PathBuf>,
    limits: Limits,
    /// The known part of each trip, as committed.
    known: KnownTrips,
    /// The clock was behind the trips at the last append, and a warning was logged.
    clock_behind: bool,
}

/// The result of an append.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// New records.
    pub fresh: usize,
    /// Known records, and records of evicted trips.
    pub known: usize,
    /// Invalid records, and records too far ahead of the known part of their trip.
    pub refused: usize,
}

/// The result of an eviction by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swept {
    /// This many trips were evicted.
    Evicted(u64),
    /// The clock is implausibly far ahead of the trips; nothing was evicted.
    ClockDoubted {
        /// The time of the newest plausible trip, in milliseconds since 1970.
        attested_ms: u64,
    },
}

/// The contents of a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreStats {
    /// Handovers.
    pub events: u64,
    /// Failed ones among them.
    pub failures: u64,
    /// Trips with handovers.
    pub trips: u64,
    /// Evicted trips whose number is kept.
    pub trips_fallen: u64,
    /// Cells.
    pub cells: u64,
    /// Cells that failed on at least two trips, and so may have a forecast.
    pub forecastable_cells: u64,
    /// Tracks.
    pub tracks: u64,
    /// Places of the rate map.
    pub places: u64,
    /// Bytes of the file; 0 in memory.
    pub file_bytes: u64,
    /// When the first handover arrived, in milliseconds since 1970.
    pub created_at_ms: Option<u64>,
    /// The last handover of the oldest trip, if its time is plausible.
    pub oldest_at_ms: Option<u64>,
    /// The last handover of the newest trip.
    pub newest_at_ms: Option<u64>,
}

impl Store {
    /// Opens a database, or creates it. Verifies the whole file.
    ///
    /// # Errors
    /// The file is unusable; it is unchanged.
    pub fn open(path: impl AsRef<Path>, limits: Limits) -> Result<Self, StoreError> {
        let path = path.as_ref();
        Self::new(file::open(path)?, Some(path.to_owned()), limits)
    }

    /// A database in memory.
    ///
    /// # Errors
    /// None are known.
    pub fn in_memory(limits: Limits) -> Result<Self, StoreError> {
        Self::new(file::in_memory()?, None, limits)
    }

    /// Opens a database. Renames a damaged file to `<name>.damaged`, replacing an earlier one, and
    /// creates an empty database; then the second value is the reason.
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
            Err(reason @ StoreError::Damaged(_)) => {
                let to = file::set_aside(path)?;
                let text = format!("{reason}; it was renamed to {}", to.display());
                Ok((Self::open(path, limits)?, Some(text)))
            }
            Err(error) => Err(error),
        }
    }

    fn new(database: Database, path: Option<PathBuf>, limits: Limits) -> Result<Self, StoreError> {
        let known = KnownTrips::default();
        let mut store = Self { database, path, limits, known, clock_behind: false };
        store.known = store.read(|reading| {
            let mut known = KnownTrips::default();
            for row in reading.open_table(ORDER)?.iter()? {
                let (trip, next) = row?.1.value();
                known.set(TripId(trip), Some(next));
            }
            Ok(known)
        })?;
        // A table of another type is damage, too.
        store.stats()?;
        Ok(store)
    }

    /// Changes the limits, from the next write on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Appends a peer's handovers in one durable transaction. Known ones change nothing; invalid
    /// ones are counted and skipped. `now_ms`: milliseconds since 1970.
    ///
    /// # Errors
    /// Nothing was written.
    pub fn append(&mut self, records: &[Handover], now_ms: u64) -> Result<Appended, StoreError> {
        self.write(|batch| batch.append(records, now_ms, 0))
    }

    /// Appends handovers observed here as [`Store::append`] does; their trips are no older than
    /// the newest. Warns once if the clock (`now_ms`) is more than a day behind that trip.
    ///
    /// # Errors
    /// Nothing was written.
    pub fn append_own(
        &mut self,
        records: &[Handover],
        now_ms: u64,
    ) -> Result<Appended, StoreError> {
        let newest_ms = self.read(|reading| newest_rank(&reading.open_table(ORDER)?))?;
        let behind = clock::is_behind(now_ms, newest_ms);
        if behind && !self.clock_behind {
            tracing::warn!(
                now_ms,
                "the clock is behind LinkDB's newest trip: new handovers count as newer"
            );
        }
        self.clock_behind = behind;
        self.write(|batch| batch.append(records, now_ms, newest_ms))
    }

    /// The known part of each held trip that is older than `before`, or of all, newest first, at
    /// most `max` trips.
    ///
    /// # Errors
    /// The database cannot be read; the same applies to all readers.
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

    /// The known part of a trip: 0 if it is unknown, [`u32::MAX`] if it was evicted. Does not wait
    /// for the disk.
    pub fn known_of(&self, trip: TripId) -> u32 {
        self.known.next_of(trip)
    }

    /// The digest over all held trips. Does not wait for the disk.
    pub fn digest(&self) -> SyncDigest {
        self.known.digest()
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

    /// Calls `visitor` with every handover, trip by trip, the oldest trip first; stops at its first
    /// error.
    pub fn visit<E: From<StoreError>>(
        &self,
        mut visitor: impl FnMut(Handover) -> Result<(), E>,
    ) -> Result<(), E> {
        for (_, TripKnown { trip, .. }) in self.known_before(None, usize::MAX)?.into_iter().rev() {
            self.records(trip, 0, usize::MAX)?.into_iter().try_for_each(&mut visitor)?;
        }
        Ok(())
    }

    /// All cells, the one written longest ago first.
    pub fn cells_by_age(&self) -> Result<Vec<(CellKey, CellHistory)>, StoreError> {
        self.read(|reading| {
            let rows = ring::by_age(&reading.open_table(CELLS)?)?.into_iter();
            let decode = |(key, value): ring::Row| {
                Ok((keys::decode_cell(&key)?, record::decode_history(&value)?))
            };
            rows.map(decode).collect()
        })
    }

    /// The history of a cell.
    pub fn cell(&self, key: &CellKey) -> Result<Option<CellHistory>, StoreError> {
        self.read(|reading| {
            let bytes = ring::get(&reading.open_table(CELLS)?, &keys::encode_cell(key))?;
            Ok(bytes.map(|bytes| record::decode_history(&bytes)).transpose()?)
        })
    }

    /// Stores an encoded track, replacing an earlier one.
    ///
    /// # Errors
    /// Nothing was written.
    pub fn put_track(&mut self, route: RouteId, track: &[u8]) -> Result<(), StoreError> {
        self.write(|batch| batch.put_track(route, track))
    }

    /// All encoded tracks, the one written longest ago first.
    pub fn tracks(&self) -> Result<Vec<(RouteId, Vec<u8>)>, StoreError> {
        self.read(|reading| {
            let rows = ring::by_age(&reading.open_table(TRACKS)?)?.into_iter();
            let decode = |(key, track): ring::Row| {
                let route = key.try_into().map_err(|_| StoreError::damaged("invalid track key"))?;
                Ok((RouteId(u64::from_be_bytes(route)), track))
            };
            rows.map(decode).collect()
        })
    }

    /// Records measurements at places in one durable transaction, which waits for the disk: collect
    /// the samples of some seconds. Skips carriers with an invalid name.
    ///
    /// # Errors
    /// Nothing was written.
    pub fn record_places(&mut self, samples: &[PlaceSample]) -> Result<(), StoreError> {
        let mut valid =
            samples.iter().filter(|one| record::check_carrier(&one.carrier).is_ok()).peekable();
        if valid.peek().is_none() {
            return Ok(());
        }
        self.write(|batch| valid.try_for_each(|sample| batch.record_place(sample)))
    }

    /// The expected rate and delay of a carrier at a position; none for an unknown place.
    pub fn place_estimate(
        &self,
        carrier: &str,
        route: RouteId,
        direction: Direction,
        position: Position,
    ) -> Result<Option<PlaceEstimate>, StoreError> {
        let key = PlaceKey::of(carrier, route, direction, position).encode();
        self.read(|reading| {
            let bytes = ring::get(&reading.open_table(PLACES)?, &key)?;
            Ok(bytes.map(|bytes| Place::decode(&bytes)).transpose()?.map(|place| place.estimate()))
        })
    }

    /// Calls `visitor` with every place, sorted; stops at its first error.
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

    /// Evicts all trips whose last handover is older than `retention`, if the clock is plausible
    /// (see `clock`). Trips recorded under a clock of the future then count as of their own time,
    /// or of now. `wall_ms`: milliseconds since 1970.
    ///
    /// # Errors
    /// Nothing was evicted.
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
        if let Some(attested_ms) = attested.filter(|at| clock::is_ahead(wall_ms, *at)) {
            return Ok(Swept::ClockDoubted { attested_ms });
        }
        let retention_ms = u64::try_from(retention.as_millis()).unwrap_or(u64::MAX);
        self.write(|batch| {
            if attested.is_some_and(|at| !clock::is_behind(wall_ms, at)) {
                batch.rerank(wall_ms)?;
            }
            Ok(Swept::Evicted(batch.evict_before(wall_ms.saturating_sub(retention_ms))?))
        })
    }

    /// Evicts the oldest trips until the limits hold, as each write does.
    ///
    /// # Errors
    /// Nothing was changed.
    pub fn enforce_limits(&mut self) -> Result<(), StoreError> {
        self.write(|_| Ok(()))
    }

    /// Shrinks the file to its contents; true if it became smaller. Takes seconds for a full
    /// database.
    pub fn compact(&mut self) -> Result<bool, StoreError> {
        Ok(self.database.compact()?)
    }

    /// Counts the contents, in constant time.
    pub fn stats(&self) -> Result<StoreStats, StoreError> {
        let file = self.path.as_ref().and_then(|path| std::fs::metadata(path).ok());
        self.read(|reading| {
            let counters = Counters::load(&reading.open_table(META)?)?;
            let order = reading.open_table(ORDER)?;
            let oldest = order.range((1, 0, 0)..)?.next().transpose()?;
            let newest = order.range((1, 0, 0)..)?.next_back().transpose()?;
            Ok(StoreStats {
                events: reading.open_table(EVENTS)?.len()?,
                failures: counters.failures,
                trips: order.len()?.saturating_sub(counters.evicted),
                trips_fallen: counters.evicted,
                cells: reading.open_table(CELLS)?.len()?,
                forecastable_cells: counters.forecastable,
                tracks: reading.open_table(TRACKS)?.len()?,
                places: reading.open_table(PLACES)?.len()?,
                file_bytes: file.map_or(0, |found| found.len()),
                created_at_ms: Some(counters.created_ms).filter(|created| *created > 0),
                oldest_at_ms: oldest.map(|(order, _)| order.value().1),
                newest_at_ms: newest.map(|(order, _)| order.value().1),
            })
        })
    }
}

fn trip_of(reading: &ReadTransaction, trip: TripId) -> Result<Option<Trip>, StoreError> {
    match reading.open_table(TRIPS)?.get(trip.0)? {
        Some(bytes) => Ok(Some(Trip::decode(trip, bytes.value())?)),
        None => Ok(None),
    }
}

/// Whether a cell has failed on enough trips for a forecast.
fn is_forecastable(history: &CellHistory) -> bool {
    history.trips_that_failed(|_| true) >= SUPPORT
}
