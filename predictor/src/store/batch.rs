//! The changes of one transaction.

use std::collections::BTreeMap;

use polyrail_model::{Handover, RouteId, TripId};
use redb::{ReadableTable, ReadableTableMetadata, WriteTransaction};

use super::error::StoreError;
use super::keys::{self, PlaceKey};
use super::limits::Limits;
use super::places::{Place, PlaceSample};
use super::tables::{Counters, Tables, newest_rank};
use super::trips::Trip;
use super::{Appended, clock, is_forecastable};
use crate::history::{self, CellHistory, CellKey, Passage};
use crate::record;

/// A transaction that is being written.
pub(crate) struct Batch<'t> {
    tables: Tables<'t>,
    counters: Counters,
    limits: Limits,
    /// Changed cells that are not yet written; at most [`CELLS_OPEN_MAX`].
    cells: BTreeMap<CellKey, CellHistory>,
    /// The new `next` of trips; `None` if the trip's number was forgotten.
    changes: BTreeMap<TripId, Option<u32>>,
    /// New handovers since the last eviction; at most [`FRESH_MAX`] and one append's.
    fresh: usize,
}

impl<'t> Batch<'t> {
    pub(super) fn begin(writing: &'t WriteTransaction, limits: Limits) -> Result<Self, StoreError> {
        let tables = Tables::open(writing, &limits)?;
        let counters = Counters::load(&tables.meta)?;
        let (cells, changes) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { tables, counters, limits, cells, changes, fresh: 0 })
    }

    /// Evicts, and writes open cells; returns the changes of trips, which apply after the commit.
    pub(super) fn finish(mut self) -> Result<BTreeMap<TripId, Option<u32>>, StoreError> {
        self.evict()?;
        self.write_cells()?;
        self.counters.save(&mut self.tables.meta)?;
        Ok(self.changes)
    }

    /// Appends handovers; known ones change nothing, invalid ones are counted. Their trips rank at
    /// `least_ms` or later.
    pub(crate) fn append(
        &mut self,
        records: &[Handover],
        now_ms: u64,
        least_ms: u64,
    ) -> Result<Appended, StoreError> {
        let newest_ms = newest_rank(&self.tables.order)?;
        let mut appended = Appended::default();
        let mut open: Option<Trip> = None;
        for record in records {
            if record::check(record).is_err() {
                appended.refused += 1;
                continue;
            }
            if open.is_none_or(|trip| trip.id != record.trip) {
                self.close_trip(open.take())?;
            }
            let trip = match &mut open {
                Some(trip) => trip,
                None => open.insert(self.open_trip(record.trip)?),
            };
            let rank = clock::plausible(record.at_ms, now_ms, newest_ms);
            self.add(trip, record, trip.rank.max(rank).max(least_ms), &mut appended)?;
        }
        self.close_trip(open)?;
        if appended.fresh > 0 && self.counters.created_ms == 0 {
            self.counters.created_ms = now_ms;
        }
        self.fresh += appended.fresh;
        if self.fresh >= FRESH_MAX {
            self.evict()?;
            self.fresh = 0;
        }
        Ok(appended)
    }

    /// Adds a handover. `rank`: the trip's rank if it is new.
    fn add(
        &mut self,
        trip: &mut Trip,
        record: &Handover,
        rank: u64,
        appended: &mut Appended,
    ) -> Result<(), StoreError> {
        let (sequence, next) = (record.sequence, trip.next);
        let trip_max = u64::from(self.limits.trip_events_max).min(self.limits.events_max);
        let is_ahead = sequence.saturating_sub(next) >= SEQUENCE_AHEAD_MAX;
        if trip.held && (u64::from(sequence) >= trip_max || is_ahead) {
            appended.refused += 1;
            return Ok(());
        }
        let key = (trip.serial, sequence);
        if !trip.held || sequence < next || self.tables.events.get(key)?.is_some() {
            appended.known += 1;
            return Ok(());
        }
        appended.fresh += 1;
        self.tables.events.insert(key, &record::encode_handover(record)[..])?;
        let failed = record.outcome.is_failure();
        self.counters.failures += u64::from(failed);
        trip.add(record.at_ms, failed);
        if sequence == next {
            trip.next += 1;
            // Records that arrived before their turn; without gaps there are none.
            while trip.next < trip.count
                && self.tables.events.get((trip.serial, trip.next))?.is_some()
            {
                trip.next += 1;
            }
        }
        if history::is_learned(record) {
            self.learn(record, rank)?;
        }
        trip.rank = rank;
        Ok(())
    }

    /// Adds a handover to its cell. Its trip is placed before newer ones, so that old trips of a
    /// file or a peer do not displace them. An unknown trip is older than all others.
    fn learn(&mut self, record: &Handover, rank: u64) -> Result<(), StoreError> {
        let key = CellKey::of(record);
        self.open_cell(&key)?;
        let Self { tables, cells, .. } = self;
        let history = cells.get_mut(&key).ok_or_else(cell_is_missing)?;
        history.add_in_order(record, |trip| -> Result<bool, StoreError> {
            let Some(bytes) = tables.trips.get(trip.0)? else { return Ok(false) };
            Ok(Trip::decode(trip, bytes.value())?.rank > rank)
        })?;
        Ok(())
    }

    fn open_trip(&mut self, id: TripId) -> Result<Trip, StoreError> {
        if let Some(bytes) = self.tables.trips.get(id.0)? {
            return Ok(Trip::decode(id, bytes.value())?);
        }
        let trip = Trip::new(id, self.counters.serial);
        self.counters.serial += 1;
        Ok(trip)
    }

    /// Writes a trip, unless it has no handovers.
    fn close_trip(&mut self, trip: Option<Trip>) -> Result<(), StoreError> {
        let Some(trip) = trip.filter(|trip| trip.count > 0) else { return Ok(()) };
        let before = match self.tables.trips.insert(trip.id.0, &trip.encode()[..])? {
            Some(bytes) => Some(Trip::decode(trip.id, bytes.value())?.order()),
            None => None,
        };
        if let Some(before) = before.filter(|before| *before != trip.order()) {
            self.tables.order.remove(before)?;
        }
        self.tables.order.insert(trip.order(), (trip.id.0, trip.next))?;
        self.changes.insert(trip.id, Some(trip.next));
        Ok(())
    }

    /// Evicts trips until the limits hold; the newest always stays.
    fn evict(&mut self) -> Result<(), StoreError> {
        loop {
            let held = self.tables.trips.len()?.saturating_sub(self.counters.evicted);
            let full =
                held > self.limits.trips_max || self.tables.events.len()? > self.limits.events_max;
            if held <= 1 || !full || !self.evict_oldest(u64::MAX)? {
                break;
            }
        }
        while self.counters.evicted > self.limits.trips_max {
            let Some((_, row)) = self.tables.order.pop_first()? else { break };
            let trip = row.value().0;
            self.tables.trips.remove(trip)?;
            self.changes.insert(TripId(trip), None);
            self.counters.evicted -= 1;
        }
        Ok(())
    }

    /// Evicts the oldest trip if its rank is below `before`; returns whether there was one. Its
    /// number stays, so that a peer does not send the trip again.
    fn evict_oldest(&mut self, before: u64) -> Result<bool, StoreError> {
        let oldest = match self.tables.order.range((1, 0, 0)..(1, before, 0))?.next() {
            Some(row) => TripId(row?.1.value().0),
            None => return Ok(false),
        };
        let mut trip = match self.tables.trips.get(oldest.0)? {
            Some(bytes) => Trip::decode(oldest, bytes.value())?,
            None => return Err(StoreError::damaged("a trip is missing")),
        };
        let all = (trip.serial, 0)..=(trip.serial, u32::MAX);
        self.tables.events.retain_in(all, |_, _| false)?;
        self.counters.failures = self.counters.failures.saturating_sub(trip.failures.into());
        self.counters.evicted += 1;
        (trip.held, trip.next) = (false, u32::MAX);
        self.close_trip(Some(trip))?;
        Ok(true)
    }

    /// Evicts all trips with a lower rank; returns their number.
    pub(super) fn evict_before(&mut self, at_ms: u64) -> Result<u64, StoreError> {
        let mut evicted = 0;
        while self.evict_oldest(at_ms)? {
            evicted += 1;
        }
        Ok(evicted)
    }

    /// Corrects the rank of trips from more than a day after a plausible clock.
    pub(super) fn rerank(&mut self, now_ms: u64) -> Result<(), StoreError> {
        let from = (1, now_ms.saturating_add(clock::DAY_MS).saturating_add(1), 0);
        let ahead = self.tables.order.range(from..(2, 0, 0))?;
        let ahead: Result<Vec<u64>, StoreError> = ahead.map(|row| Ok(row?.1.value().0)).collect();
        for id in ahead? {
            let mut trip = self.open_trip(TripId(id))?;
            if trip.rerank(now_ms) {
                self.close_trip(Some(trip))?;
            }
        }
        Ok(())
    }

    /// Adds unknown passages of a cell, as older than the known ones. The carrier's name is valid.
    pub(crate) fn merge_cell(
        &mut self,
        key: &CellKey,
        other: &[Passage],
    ) -> Result<(), StoreError> {
        let own = self.open_cell(key)?;
        let known = |one: &&Passage| own.passages().any(|own| own.trip == one.trip);
        let (shared, older): (Vec<_>, Vec<_>) = other.iter().partition(known);
        *own = older.into_iter().chain(own.passages()).chain(shared).copied().collect();
        Ok(())
    }

    fn open_cell(&mut self, key: &CellKey) -> Result<&mut CellHistory, StoreError> {
        if self.cells.len() >= CELLS_OPEN_MAX && !self.cells.contains_key(key) {
            self.write_cells()?;
        }
        if !self.cells.contains_key(key) {
            let history = match self.tables.cells.get(&keys::encode_cell(key))? {
                Some(bytes) => record::decode_history(&bytes)?,
                None => CellHistory::default(),
            };
            self.cells.insert(key.clone(), history);
        }
        self.cells.get_mut(key).ok_or_else(cell_is_missing)
    }

    fn write_cells(&mut self) -> Result<(), StoreError> {
        for (key, history) in std::mem::take(&mut self.cells) {
            let value = record::encode_history(&history);
            let written = self.counters.next_written();
            let mut forecastable = self.counters.forecastable;
            forecastable += u64::from(is_forecastable(&history));
            for gone in self.tables.cells.put(&keys::encode_cell(&key), written, &value)? {
                let counted = is_forecastable(&record::decode_history(&gone)?);
                forecastable = forecastable.saturating_sub(counted.into());
            }
            self.counters.forecastable = forecastable;
        }
        Ok(())
    }

    pub(crate) fn put_track(&mut self, route: RouteId, track: &[u8]) -> Result<(), StoreError> {
        let written = self.counters.next_written();
        self.tables.tracks.put(&route.0.to_be_bytes(), written, track)?;
        Ok(())
    }

    pub(super) fn record_place(&mut self, sample: &PlaceSample) -> Result<(), StoreError> {
        let PlaceSample { route, direction, position, .. } = *sample;
        let key = PlaceKey::of(&sample.carrier, route, direction, position);
        self.change_place(&key, |place| place.add(sample))
    }

    /// Adds unknown trips of a place. The carrier's name is valid.
    pub(crate) fn merge_place(&mut self, key: &PlaceKey, other: &Place) -> Result<(), StoreError> {
        self.change_place(key, |place| place.merge(other))
    }

    fn change_place(
        &mut self,
        key: &PlaceKey,
        change: impl FnOnce(&mut Place),
    ) -> Result<(), StoreError> {
        let key = key.encode();
        let mut place = match self.tables.places.get(&key)? {
            Some(bytes) => Place::decode(&bytes)?,
            None => Place::default(),
        };
        change(&mut place);
        let written = self.counters.next_written();
        self.tables.places.put(&key, written, &place.encode())?;
        Ok(())
    }
}

fn cell_is_missing() -> StoreError {
    StoreError::damaged("a cell is missing")
}

/// The largest distance of a record from the known part of its trip; the peer sends further ones
/// again when the gap is filled. Otherwise one wrong number would leave a gap that peers request
/// for ever.
pub const SEQUENCE_AHEAD_MAX: u32 = 4096;
/// New handovers after which a transaction evicts. An old trip of a file is thus learned completely
/// before a full database evicts it.
const FRESH_MAX: usize = 4096;
/// Changed cells in memory.
const CELLS_OPEN_MAX: usize = 2048;
