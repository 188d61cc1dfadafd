//! The tables of a database, and its counters.

use redb::{Database, ReadableTable, Table, TableDefinition, WriteTransaction};

use super::FORMAT;
use super::error::StoreError;
use super::limits::Limits;
use super::ring::{Bytes, Ring};

/// Format and counters.
pub(super) const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// Serial of the trip and sequence to the handover.
pub(super) const EVENTS: TableDefinition<'_, (u64, u32), Bytes> = TableDefinition::new("events");
/// Trip to its state.
pub(super) const TRIPS: TableDefinition<'_, u64, Bytes> = TableDefinition::new("trips");
/// Whether the trip is held, its rank and its serial to the trip and its `next`.
pub(super) const ORDER: TableDefinition<'_, (u8, u64, u64), (u64, u32)> =
    TableDefinition::new("trip_order");
pub(super) const CELLS: TableDefinition<'_, Bytes, Bytes> = TableDefinition::new("cells");
const CELL_ORDER: TableDefinition<'_, u64, Bytes> = TableDefinition::new("cell_order");
pub(super) const TRACKS: TableDefinition<'_, Bytes, Bytes> = TableDefinition::new("tracks");
const TRACK_ORDER: TableDefinition<'_, u64, Bytes> = TableDefinition::new("track_order");
pub(super) const PLACES: TableDefinition<'_, Bytes, Bytes> = TableDefinition::new("places");
const PLACE_ORDER: TableDefinition<'_, u64, Bytes> = TableDefinition::new("place_order");

/// All tables, open for writing.
pub(super) struct Tables<'t> {
    pub(super) meta: Table<'t, &'static str, u64>,
    pub(super) events: Table<'t, (u64, u32), Bytes>,
    pub(super) trips: Table<'t, u64, Bytes>,
    pub(super) order: Table<'t, (u8, u64, u64), (u64, u32)>,
    pub(super) cells: Ring<'t>,
    pub(super) tracks: Ring<'t>,
    pub(super) places: Ring<'t>,
}

impl<'t> Tables<'t> {
    pub(super) fn open(writing: &'t WriteTransaction, limits: &Limits) -> Result<Self, StoreError> {
        let ring = |rows, order, max| -> Result<Ring<'t>, StoreError> {
            Ok(Ring { rows: writing.open_table(rows)?, order: writing.open_table(order)?, max })
        };
        Ok(Self {
            meta: writing.open_table(META)?,
            events: writing.open_table(EVENTS)?,
            trips: writing.open_table(TRIPS)?,
            order: writing.open_table(ORDER)?,
            cells: ring(CELLS, CELL_ORDER, limits.cells_max)?,
            tracks: ring(TRACKS, TRACK_ORDER, limits.tracks_max)?,
            places: ring(PLACES, PLACE_ORDER, limits.places_max)?,
        })
    }
}

/// Counts that a scan of the tables would give, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    /// The serial of the next trip.
    pub(super) serial: u64,
    /// The number of the next row written to a ring.
    pub(super) written: u64,
    /// Failed handovers.
    pub(super) failures: u64,
    /// Evicted trips whose number is kept.
    pub(super) evicted: u64,
    /// Cells with failures on at least two trips.
    pub(super) forecastable: u64,
    /// When the first handover arrived, in milliseconds since 1970; 0 before.
    pub(super) created_ms: u64,
}

impl Counters {
    pub(super) fn next_written(&mut self) -> u64 {
        self.written += 1;
        self.written - 1
    }

    pub(super) fn load(meta: &impl ReadableTable<&'static str, u64>) -> Result<Self, StoreError> {
        let mut counters = Self::default();
        for (name, value) in counters.named() {
            *value = meta.get(name)?.map_or(0, |value| value.value());
        }
        Ok(counters)
    }

    pub(super) fn save(
        mut self,
        meta: &mut Table<'_, &'static str, u64>,
    ) -> Result<(), StoreError> {
        for (name, value) in self.named() {
            meta.insert(name, *value)?;
        }
        Ok(())
    }

    fn named(&mut self) -> [(&'static str, &mut u64); 6] {
        [
            ("serial", &mut self.serial),
            ("written", &mut self.written),
            ("failures", &mut self.failures),
            ("fallen", &mut self.evicted),
            ("forecastable", &mut self.forecastable),
            ("created_ms", &mut self.created_ms),
        ]
    }
}

/// The rank of the newest trip, in milliseconds since 1970.
pub(super) fn newest_rank(
    order: &impl ReadableTable<(u8, u64, u64), (u64, u32)>,
) -> Result<u64, StoreError> {
    Ok(order.last()?.map_or(0, |(order, _)| order.value().1))
}

/// Creates all tables of an empty database.
pub(super) fn create(database: &Database) -> Result<(), StoreError> {
    let writing = database.begin_write()?;
    {
        let mut tables = Tables::open(&writing, &Limits::default())?;
        tables.meta.insert("format", FORMAT)?;
        Counters::default().save(&mut tables.meta)?;
    }
    writing.commit()?;
    Ok(())
}

/// The number of tables.
pub(super) const TABLES: usize = 10;
