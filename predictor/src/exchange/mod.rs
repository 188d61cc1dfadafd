//! Export and import: handovers as CSV, a whole database as NDJSON.
//!
//! - CSV (RFC 4180): one handover per row, with the columns `COLUMNS`.
//! - NDJSON: a first line `{"linkdb":{"version":1}}`, then one object per line with one key:
//!   `cell`, `track`, `place` or `handover`. Cells come before handovers, so the handovers of a
//!   cell count as newer than its history.
//!
//! The [`Coarsening`] decides how exact an export's positions are. An import is complete or has no
//! effect: at the first invalid line it stops and states the line and the reason. Nothing here
//! opens a file.

mod csv;
mod ndjson;
#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};

use polyrail_model::codec::FieldError;
use polyrail_model::{Handover, Position};

use crate::record;
use crate::store::{Batch, Store, StoreError};

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
/// Only an exact export includes tracks, because their bytes contain exact positions. Above 100 m
/// an export omits places, because they locate trips to 100 m.
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
    /// Known handovers of an import, and handovers of evicted trips.
    pub known: u64,
    /// Cells.
    pub cells: u64,
    /// Tracks.
    pub tracks: u64,
    /// Places of the rate map.
    pub places: u64,
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
    fn append(
        &mut self,
        batch: &mut Batch<'_>,
        line: u64,
        handover: Handover,
        now_ms: u64,
    ) -> Result<(), ExchangeError> {
        record::check(&handover).map_err(|error| ExchangeError::invalid(line, error))?;
        let appended = batch.append(&[handover], now_ms, 0)?;
        if appended.refused > 0 {
            let reason =
                "sequence: too far ahead of the trip's other handovers, or the trip is full";
            return Err(ExchangeError::Line(line, reason.to_owned()));
        }
        self.handovers += appended.fresh as u64;
        self.known += appended.known as u64;
        Ok(())
    }
}

/// The longest line, so that a wrong file does not fill the memory; the largest track fits.
const LINE_BYTES_MAX: u64 = 4 << 20;
