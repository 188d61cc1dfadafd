//! Export and import: handovers as CSV, a whole database as NDJSON.
//!
//! - CSV (RFC 4180): one handover per row, with the columns `COLUMNS`.
//! - NDJSON: a first line `{"linkdb":{"version":2}}`, then one entry per line, with its writer,
//!   incarnation and sequence number. Exports of version 1 are imported, too.
//!
//! The [`Coarsening`] decides how exact an export's positions are. An import is complete or has no
//! effect: at the first invalid line it stops and states the line and the reason. Nothing here
//! opens a file.

mod csv;
mod ndjson;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io::{self, Read, Write};

use polyrail_model::codec::FieldError;
use polyrail_model::{Position, TripId};

use crate::entry::{Entry, WriterNumber};
use crate::record;
use crate::store::{Appended, Batch, Store, StoreError};

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Handovers only, for tables and scripts.
    Csv,
    /// Everything, for another database.
    Ndjson,
}

/// Rounds the positions of an export to this many metres; 0 keeps them exact.
///
/// Only an exact export includes tracks and the spots of handovers, because they are exact. Above
/// 100 m an export omits rates, because they locate trips to 100 m.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coarsening(pub u16);

impl Default for Coarsening {
    fn default() -> Self {
        Self(100)
    }
}

impl Coarsening {
    fn of(self, position: Position) -> Position {
        let Self(metres @ 1..) = self else { return position };
        let step = i64::from(metres) * 10;
        let steps = (i64::from(position.decimetres) + step / 2).div_euclid(step);
        let decimetres = (steps * step).clamp(i32::MIN.into(), i32::MAX.into());
        Position { decimetres: decimetres as i32 }
    }
}

/// The rows of an export or import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Handovers; of an import, new ones.
    pub handovers: u64,
    /// Known entries of an import, and those below a floor.
    pub known: u64,
    /// Pieces of tracks.
    pub tracks: u64,
    /// Entries with rates.
    pub rates: u64,
    /// Lines of an export of version 1 that have no place in a log: cells and places.
    pub skipped: u64,
}

/// Why an export stopped, or an import, which then had no effect.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The database cannot be read or written.
    #[error("the database cannot be used")]
    Store(#[from] StoreError),
    /// The export cannot be read or written.
    #[error("the export cannot be read or written")]
    File(#[from] io::Error),
    /// A line of the file, counted from 1, is invalid.
    #[error("line {0}, {1}")]
    Line(u64, String),
}

impl ExchangeError {
    fn invalid(line: u64, error: FieldError) -> Self {
        Self::Line(line, error.to_string())
    }

    fn too_long(line: u64) -> Self {
        Self::Line(line, format!("it has more than {LINE_BYTES_MAX} bytes"))
    }
}

/// Writes a database to a file.
///
/// # Errors
/// The database cannot be read, or `to` not written.
pub fn export(
    store: &Store,
    format: Format,
    coarsening: Coarsening,
    to: impl Write,
) -> Result<Rows, ExchangeError> {
    match format {
        Format::Csv => csv::export(store, coarsening, to),
        Format::Ndjson => ndjson::export(store, coarsening, to),
    }
}

/// Imports a file into a database, completely or not at all. `now_ms`: milliseconds since 1970.
///
/// # Errors
/// States the line and the reason.
pub fn import(
    store: &mut Store,
    format: Format,
    from: impl Read,
    now_ms: u64,
) -> Result<Rows, ExchangeError> {
    match format {
        Format::Csv => csv::import(store, from, now_ms),
        Format::Ndjson => ndjson::import(store, from, now_ms),
    }
}

impl Rows {
    fn count(&mut self, entry: &Entry) {
        let count = match entry {
            Entry::Handover(..) => &mut self.handovers,
            Entry::Track(_) => &mut self.tracks,
            Entry::Rates(_) => &mut self.rates,
        };
        *count += 1;
    }
}

/// Appends to the own log what the operator vouches for: handovers without a writer.
struct Vouched {
    /// The handovers of the node's logs.
    known: BTreeSet<(TripId, u32)>,
}

impl Vouched {
    fn new(store: &Store) -> Result<Self, ExchangeError> {
        let mut known = BTreeSet::new();
        store.visit(|writer, _, entry| {
            if let (WriterNumber::OWN, Entry::Handover(one, _)) = (writer, entry) {
                known.insert((one.trip, one.sequence));
            }
            Ok::<_, StoreError>(())
        })?;
        Ok(Self { known })
    }

    fn append(
        &mut self,
        batch: &mut Batch<'_>,
        rows: &mut Rows,
        line: u64,
        entry: Entry,
        now_ms: u64,
    ) -> Result<(), ExchangeError> {
        record::check_entry(&entry).map_err(|error| ExchangeError::invalid(line, error))?;
        if let Entry::Handover(one, _) = &entry
            && !self.known.insert((one.trip, one.sequence))
        {
            rows.known += 1;
            return Ok(());
        }
        batch.append_own(std::slice::from_ref(&entry), now_ms)?;
        batch.appended = Appended::default();
        rows.count(&entry);
        Ok(())
    }
}

/// The longest line, so that a wrong file does not fill the memory; the largest track fits.
const LINE_BYTES_MAX: u64 = 4 << 20;
