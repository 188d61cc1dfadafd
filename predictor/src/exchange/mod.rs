//! Export and import: handovers as CSV, a whole database as NDJSON.
//!
//! - CSV (RFC 4180): one handover a row, the columns of `HandoverRow`.
//! - NDJSON: a first line `{"linkdb":{"version":1}}`, then one object a line with one key: `cell`,
//!   `track`, `place` or `handover`. Cells come before handovers: what is read of a cell is then
//!   known when its handovers come.
//!
//! An export tells where a train was only to the [`Coarsening`] that was asked for. An import takes
//! all or nothing: at the first thing that is not as it was exported it stops, names it, and the
//! database is as before. Nothing here opens a file.

mod csv;
mod lines;
mod ndjson;
mod rows;
#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};

use polyrail_model::{Handover, Position};

use crate::store::{Appended, Batch, Store, StoreError};

/// What a file of handovers looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Handovers alone, for tables and scripts.
    Csv,
    /// Everything, for another database.
    Ndjson,
}

/// How exactly an export tells positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coarsening {
    /// As they are; only so are tracks exported, because their bytes hold positions, too.
    Exact,
    /// To the nearest multiple of so many metres; 0 is [`Coarsening::Exact`]. Above 100 no places
    /// of the trace database are exported, because they tell trips by 100 m.
    Metres(u16),
}

impl Default for Coarsening {
    fn default() -> Self {
        Self::Metres(100)
    }
}

impl Coarsening {
    fn of(self, position: Position) -> Position {
        let Self::Metres(metres @ 1..) = self else { return position };
        let step = i64::from(metres) * 10;
        let steps = (i64::from(position.decimetres) + step / 2).div_euclid(step);
        let decimetres = (steps * step).clamp(i32::MIN.into(), i32::MAX.into());
        Position { decimetres: decimetres as i32 }
    }

    fn is_exact(self) -> bool {
        matches!(self, Self::Exact | Self::Metres(0))
    }

    fn tells_places(self) -> bool {
        matches!(self, Self::Exact | Self::Metres(0..=PLACE_METRES))
    }
}

/// How much was exported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Handovers.
    pub handovers: u64,
    /// Cells.
    pub cells: u64,
    /// Tracks.
    pub tracks: u64,
    /// Places of the trace database.
    pub places: u64,
}

/// What was imported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Handovers that are new.
    pub fresh: u64,
    /// Handovers that were there, or whose trip fell out already.
    pub known: u64,
    /// Cells.
    pub cells: u64,
    /// Tracks.
    pub tracks: u64,
    /// Places of the trace database.
    pub places: u64,
}

/// Why an export stopped.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The database cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The export cannot be written.
    #[error("the export cannot be written: {0}")]
    Write(#[from] io::Error),
}

/// Why an import stopped; nothing was imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The database cannot be written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The file cannot be read.
    #[error("the file cannot be read: {0}")]
    Read(#[from] io::Error),
    /// Something in the file is not as it was exported.
    #[error("line {line}, {place}: {reason}")]
    Bad {
        /// The line, from 1.
        line: u64,
        /// The column or the key in it.
        place: String,
        /// What is wrong.
        reason: String,
    },
}

/// Writes a database out.
///
/// # Errors
/// When it cannot be read, or `to` not written.
pub fn export(
    store: &Store,
    format: Format,
    coarsening: Coarsening,
    to: impl Write,
) -> Result<Exported, ExportError> {
    match format {
        Format::Csv => csv::export(store, coarsening, to),
        Format::Ndjson => ndjson::export(store, coarsening, to),
    }
}

/// Takes an export into a database, all of it or nothing. `now_ms`: milliseconds since 1970.
///
/// # Errors
/// Names the line, what in it, and why.
pub fn import(
    store: &mut Store,
    format: Format,
    from: impl Read,
    now_ms: u64,
) -> Result<Imported, ImportError> {
    match format {
        Format::Csv => csv::import(store, from, now_ms),
        Format::Ndjson => ndjson::import(store, from, now_ms),
    }
}

/// Handovers that were read and wait to be appended together.
struct Pending {
    records: Vec<Handover>,
    lines: Vec<u64>,
    now_ms: u64,
}

impl Pending {
    fn new(now_ms: u64) -> Self {
        Self { records: Vec::new(), lines: Vec::new(), now_ms }
    }

    /// Adds one that is to be appended later; answers whether there are enough.
    fn add(&mut self, line: u64, record: Handover) -> bool {
        self.records.push(record);
        self.lines.push(line);
        self.records.len() >= PENDING_MAX
    }

    /// Appends them. The inner error names the first that was refused.
    fn append(
        &mut self,
        batch: &mut Batch<'_>,
        imported: &mut Imported,
    ) -> Result<Result<(), ImportError>, crate::store::Fault> {
        let Appended { fresh, known, .. } = batch.append(&self.records, self.now_ms)?;
        if let Some(refused) = batch.first_refused() {
            let reason = "it is too far ahead of its trip's other handovers, or the trip is full";
            let line = self.lines.get(refused).copied().unwrap_or(0);
            return Ok(Err(bad(line, "sequence", reason)));
        }
        imported.fresh += fresh as u64;
        imported.known += known as u64;
        self.records.clear();
        self.lines.clear();
        Ok(Ok(()))
    }
}

fn bad(line: u64, place: impl Into<String>, reason: impl Into<String>) -> ImportError {
    ImportError::Bad { line, place: place.into(), reason: reason.into() }
}

/// How long a place of the trace database is ([`crate::store::PlaceKey`]).
const PLACE_METRES: u16 = 100;
/// Handovers in memory while a file is read.
const PENDING_MAX: usize = 4096;
