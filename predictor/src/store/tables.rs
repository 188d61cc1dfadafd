//! The tables of a database.

use redb::{Table, TableDefinition, WriteTransaction};

use super::error::StoreError;

/// Values of the tables.
pub(super) type Bytes = &'static [u8];

/// `format`, `own` (the number of the own log), `created_ms` and `written` (a count of writes).
pub(super) const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// The number of a log to its state.
pub(super) const LOGS: TableDefinition<'_, u32, Bytes> = TableDefinition::new("logs");
/// Log and sequence number to the plausible time (8 bytes, milliseconds) and the entry.
pub(super) const ENTRIES: TableDefinition<'_, (u32, u64), Bytes> = TableDefinition::new("entries");

/// All tables, open for writing.
pub(super) struct Tables<'t> {
    pub(super) meta: Table<'t, &'static str, u64>,
    pub(super) logs: Table<'t, u32, Bytes>,
    pub(super) entries: Table<'t, (u32, u64), Bytes>,
}

impl<'t> Tables<'t> {
    pub(super) fn open(writing: &'t WriteTransaction) -> Result<Self, StoreError> {
        Ok(Self {
            meta: writing.open_table(META)?,
            logs: writing.open_table(LOGS)?,
            entries: writing.open_table(ENTRIES)?,
        })
    }
}

/// The time of a row, and its encoded entry.
pub(super) fn split(row: &[u8]) -> Result<(u64, &[u8]), StoreError> {
    match row.split_first_chunk() {
        Some((time, entry)) => Ok((u64::from_be_bytes(*time), entry)),
        None => Err(StoreError::damaged("a row is cut short")),
    }
}

/// The number of tables.
pub(super) const TABLES: usize = 3;
