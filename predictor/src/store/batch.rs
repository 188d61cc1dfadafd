//! One transaction: what is written together is there together, or not at all.

use std::collections::BTreeMap;

use polyrail_model::{Handover, RouteId, TripId};
use redb::{ReadableTable, ReadableTableMetadata, WriteTransaction};

use super::error::{Fault, StoreError};
use super::keys::{self, PlaceKey};
use super::limits::Limits;
use super::places::{Place, PlaceSample};
use super::tables::{Counters, Tables};
use super::trips::{self, Trip};
use super::{Appended, is_forecastable};
use crate::history::{self, CellHistory, CellKey, Passage};
use crate::record;

/// A transaction that is being written.
pub(crate) struct Batch<'t> {
    tables: Tables<'t>,
    counters: Counters,
    limits: Limits,
    /// Cells that were changed and are not yet written; at most [`CELLS_OPEN_MAX`].
    cells: BTreeMap<CellKey, CellHistory>,
    /// Which record of the last call was the first to be refused.
    first_refused: Option<usize>,
    /// How far trips are known from now on; none: not even by number.
    changes: BTreeMap<TripId, Option<u32>>,
}

/// What became of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Fresh,
    Known,
    Refused,
}

impl<'t> Batch<'t> {
    pub(super) fn begin(writing: &'t WriteTransaction, limits: Limits) -> Result<Self, Fault> {
        let tables = Tables::open(writing, &limits)?;
        let counters = Counters::load(&tables.meta)?;
        let (cells, changes) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { tables, counters, limits, cells, first_refused: None, changes })
    }

    /// Writes what is still open and tells what holds of trips once the caller has committed it.
    pub(super) fn finish(mut self) -> Result<BTreeMap<TripId, Option<u32>>, Fault> {
        self.write_cells()?;
        self.counters.save(&mut self.tables.meta)?;
        Ok(self.changes)
    }

    /// Takes handovers in; those that are known change nothing.
    pub(crate) fn append(&mut self, records: &[Handover], now_ms: u64) -> Result<Appended, Fault> {
        let newest_ms = self.newest_rank()?;
        self.append_from(0, records, now_ms, newest_ms)
    }

    /// The same with handovers that were seen here just now: none of their trips is older than the
    /// newest, whatever the clock says. Answers also whether the clock is lost.
    pub(super) fn append_own(
        &mut self,
        records: &[Handover],
        now_ms: u64,
    ) -> Result<(Appended, bool), Fault> {
        let newest_ms = self.newest_rank()?;
        let appended = self.append_from(newest_ms, records, now_ms, newest_ms)?;
        Ok((appended, trips::is_lost(now_ms, newest_ms)))
    }

    /// `least_ms`: how new their trips are at least.
    fn append_from(
        &mut self,
        least_ms: u64,
        records: &[Handover],
        now_ms: u64,
        newest_ms: u64,
    ) -> Result<Appended, Fault> {
        let mut appended = Appended::default();
        let mut open: Option<Trip> = None;
        self.first_refused = None;
        for (at, record) in records.iter().enumerate() {
            if record::check(record).is_err() {
                appended.refused += 1;
                self.first_refused.get_or_insert(at);
                continue;
            }
            if open.is_none_or(|trip| trip.summary.trip != record.trip) {
                self.close_trip(open.take())?;
            }
            let trip = match &mut open {
                Some(trip) => trip,
                None => open.insert(self.open_trip(record.trip)?),
            };
            let believed = trips::believed(record.at_ms, now_ms, newest_ms);
            let rank = trip.rank.max(believed).max(least_ms);
            match self.take(trip, record, rank)? {
                Taken::Fresh => {
                    appended.fresh += 1;
                    trip.rank = rank;
                }
                Taken::Known => appended.known += 1,
                Taken::Refused => {
                    appended.refused += 1;
                    self.first_refused.get_or_insert(at);
                }
            }
        }
        self.close_trip(open)?;
        if appended.fresh > 0 && self.counters.created_ms == 0 {
            self.counters.created_ms = now_ms;
        }
        self.fall_out()?;
        Ok(appended)
    }

    /// Which record of the last [`Batch::append`] was the first to be refused.
    pub(crate) fn first_refused(&self) -> Option<usize> {
        self.first_refused
    }

    /// Takes a handover in. `rank`: the trip's with this handover.
    fn take(&mut self, trip: &mut Trip, record: &Handover, rank: u64) -> Result<Taken, Fault> {
        if !trip.held {
            return Ok(Taken::Known);
        }
        let (sequence, next) = (record.sequence, trip.summary.next);
        let trip_max = u64::from(self.limits.trip_events_max).min(self.limits.events_max);
        if u64::from(sequence) >= trip_max || sequence.saturating_sub(next) >= SEQUENCE_AHEAD_MAX {
            return Ok(Taken::Refused);
        }
        let key = (trip.serial, sequence);
        if sequence < next || self.tables.events.get(key)?.is_some() {
            return Ok(Taken::Known);
        }
        self.tables.events.insert(key, &record::encode_handover(record)?[..])?;
        let failed = record.outcome.is_failure();
        self.counters.failures += u64::from(failed);
        let summary = &mut trip.summary;
        summary.count += 1;
        summary.failures += u32::from(failed);
        summary.begun_at_ms = summary.begun_at_ms.min(record.at_ms);
        summary.last_at_ms = summary.last_at_ms.max(record.at_ms);
        if sequence == next {
            summary.next += 1;
            // What came before its turn; without gaps there is none.
            while summary.next < summary.count
                && self.tables.events.get((trip.serial, summary.next))?.is_some()
            {
                summary.next += 1;
            }
        }
        if history::is_learned(record) {
            self.learn(record, rank)?;
        }
        Ok(Taken::Fresh)
    }

    /// Lets a cell learn from a handover. Its trip goes before those that are newer, so that old
    /// trips, as from a file or a peer, push out none of them; a trip that is not known any more
    /// is older than all.
    fn learn(&mut self, record: &Handover, rank: u64) -> Result<(), Fault> {
        let key = CellKey::of(record);
        self.open_cell(&key)?;
        let Self { tables, cells, .. } = self;
        let history = cells.get_mut(&key).ok_or_else(cell_is_missing)?;
        history.add_in_order(record, |trip| -> Result<bool, Fault> {
            let Some(bytes) = tables.trips.get(trip.0)? else { return Ok(false) };
            Ok(Trip::decode(trip, bytes.value())?.rank > rank)
        })?;
        Ok(())
    }

    fn open_trip(&mut self, id: TripId) -> Result<Trip, Fault> {
        if let Some(bytes) = self.tables.trips.get(id.0)? {
            return Ok(Trip::decode(id, bytes.value())?);
        }
        let trip = Trip::new(id, self.counters.serial);
        self.counters.serial += 1;
        Ok(trip)
    }

    /// Writes a trip; one of which nothing was taken is not worth a row.
    fn close_trip(&mut self, trip: Option<Trip>) -> Result<(), Fault> {
        let Some(trip) = trip.filter(|trip| trip.summary.count > 0) else { return Ok(()) };
        self.write_trip(&trip)
    }

    fn write_trip(&mut self, trip: &Trip) -> Result<(), Fault> {
        let id = trip.summary.trip;
        let before = match self.tables.trips.insert(id.0, &trip.encode()[..])? {
            Some(bytes) => Some(Trip::decode(id, bytes.value())?.order()),
            None => None,
        };
        if let Some(before) = before.filter(|before| *before != trip.order()) {
            self.tables.order.remove(before)?;
        }
        self.tables.order.insert(trip.order(), (id.0, trip.summary.next))?;
        self.changes.insert(id, Some(trip.summary.next));
        Ok(())
    }

    fn newest_rank(&self) -> Result<u64, Fault> {
        let newest = self.tables.order.last()?;
        Ok(newest.map_or(0, |(order, _)| order.value().1))
    }

    /// Lets trips fall out until the limits hold; the newest stays in any case.
    pub(super) fn fall_out(&mut self) -> Result<(), Fault> {
        loop {
            let held = self.tables.trips.len()?.saturating_sub(self.counters.fallen);
            let full =
                held > self.limits.trips_max || self.tables.events.len()? > self.limits.events_max;
            if held <= 1 || !full || self.drop_oldest(u64::MAX)?.is_none() {
                break;
            }
        }
        while self.counters.fallen > self.limits.trips_max {
            let Some((_, row)) = self.tables.order.pop_first()? else { break };
            let trip = row.value().0;
            self.tables.trips.remove(trip)?;
            self.changes.insert(TripId(trip), None);
            self.counters.fallen -= 1;
        }
        Ok(())
    }

    /// Lets the oldest trip fall out if its rank is below `before`: its handovers go, its number
    /// stays, so that a peer does not bring it again.
    fn drop_oldest(&mut self, before: u64) -> Result<Option<TripId>, Fault> {
        let oldest = match self.tables.order.range((1, 0, 0)..(1, before, 0))?.next() {
            Some(row) => row?.1.value().0,
            None => return Ok(None),
        };
        let bytes = self.tables.trips.get(oldest)?.map(|bytes| bytes.value().to_vec());
        let bytes = bytes.ok_or_else(|| Fault::Damaged("a trip is missing".to_owned()))?;
        let mut trip = Trip::decode(TripId(oldest), &bytes)?;
        let all = (trip.serial, 0)..=(trip.serial, u32::MAX);
        self.tables.events.retain_in(all, |_, _| false)?;
        self.counters.failures =
            self.counters.failures.saturating_sub(trip.summary.failures.into());
        self.counters.fallen += 1;
        trip.held = false;
        trip.summary.next = u32::MAX;
        self.write_trip(&trip)?;
        Ok(Some(TripId(oldest)))
    }

    /// Ranks those trips anew that are more than a day after a clock that is believed.
    pub(super) fn rank_anew(&mut self, now_ms: u64) -> Result<(), Fault> {
        let from = (1, now_ms.saturating_add(trips::AHEAD_MS).saturating_add(1), 0);
        let ahead = self.tables.order.range(from..(2, 0, 0))?;
        let ahead: Result<Vec<u64>, Fault> = ahead.map(|row| Ok(row?.1.value().0)).collect();
        for id in ahead? {
            let mut trip = self.open_trip(TripId(id))?;
            if trip.rank_anew(now_ms) {
                self.close_trip(Some(trip))?;
            }
        }
        Ok(())
    }

    pub(super) fn forget_before(&mut self, at_ms: u64) -> Result<u64, Fault> {
        let mut forgotten = 0;
        while self.drop_oldest(at_ms)?.is_some() {
            forgotten += 1;
        }
        self.fall_out()?;
        Ok(forgotten)
    }

    /// Takes over passages of a cell that are not known, as older than those that are.
    pub(crate) fn merge_cell(&mut self, key: &CellKey, other: &CellHistory) -> Result<(), Fault> {
        record::check_carrier(&key.carrier).map_err(StoreError::Refused)?;
        record::encode_history(other).map_err(StoreError::Refused)?;
        let own = self.open_cell(key)?;
        let known = |one: &&Passage| own.passages().any(|own| own.trip == one.trip);
        let (shared, older): (Vec<_>, Vec<_>) = other.passages().partition(known);
        *own = older.into_iter().chain(own.passages()).chain(shared).copied().collect();
        Ok(())
    }

    fn open_cell(&mut self, key: &CellKey) -> Result<&mut CellHistory, Fault> {
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

    fn write_cells(&mut self) -> Result<(), Fault> {
        for (key, history) in std::mem::take(&mut self.cells) {
            let value = record::encode_history(&history)?;
            let written = next(&mut self.counters.written);
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

    pub(crate) fn put_track(&mut self, route: RouteId, track: &[u8]) -> Result<(), Fault> {
        let (bytes, max) = (track.len(), self.limits.track_bytes_max);
        if bytes > max {
            return Err(StoreError::TrackTooLarge { bytes, max }.into());
        }
        let written = next(&mut self.counters.written);
        self.tables.tracks.put(&route.0.to_be_bytes(), written, track)?;
        Ok(())
    }

    pub(super) fn touch_track(&mut self, route: RouteId) -> Result<(), Fault> {
        let written = next(&mut self.counters.written);
        self.tables.tracks.touch(&route.0.to_be_bytes(), written)
    }

    pub(super) fn record_place(&mut self, sample: &PlaceSample) -> Result<(), Fault> {
        record::check_carrier(&sample.carrier).map_err(StoreError::Refused)?;
        let PlaceSample { route, direction, position, .. } = *sample;
        let key = PlaceKey::of(&sample.carrier, route, direction, position);
        self.change_place(&key, |place| place.add(sample))
    }

    /// Takes over trips of a place that are not known.
    pub(crate) fn merge_place(&mut self, key: &PlaceKey, other: &Place) -> Result<(), Fault> {
        record::check_carrier(&key.carrier).map_err(StoreError::Refused)?;
        self.change_place(key, |place| place.merge(other))
    }

    fn change_place(
        &mut self,
        key: &PlaceKey,
        change: impl FnOnce(&mut Place),
    ) -> Result<(), Fault> {
        let key = key.encode();
        let mut place = match self.tables.places.get(&key)? {
            Some(bytes) => Place::decode(&bytes)?,
            None => Place::default(),
        };
        change(&mut place);
        let written = next(&mut self.counters.written);
        self.tables.places.put(&key, written, &place.encode())?;
        Ok(())
    }
}

fn cell_is_missing() -> Fault {
    Fault::Damaged("a cell is missing".to_owned())
}

fn next(counter: &mut u64) -> u64 {
    let now = *counter;
    *counter += 1;
    now
}

/// A record may be this far ahead of what is known of its trip; what is further comes again when
/// the gap is filled. Else one wrong number would leave a gap that is asked for for ever.
pub const SEQUENCE_AHEAD_MAX: u32 = 4096;
/// Cells that are held in memory while a batch is written.
const CELLS_OPEN_MAX: usize = 2048;
