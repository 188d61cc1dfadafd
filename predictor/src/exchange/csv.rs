//! Handovers as CSV, with the `csv` crate's quoting (RFC 4180).

use std::io::{Read, Write};

use csv::{ErrorKind, Reader, ReaderBuilder, StringRecord, WriterBuilder};

use super::lines::Bounded;
use super::rows::HandoverRow;
use super::{Coarsening, ExportError, Exported, ImportError, Imported, Pending, bad};
use crate::store::Store;

pub(super) fn export(
    store: &Store,
    coarsening: Coarsening,
    to: impl Write,
) -> Result<Exported, ExportError> {
    // The header is written by us, for it stands there in an empty export, too.
    let mut writer = WriterBuilder::new().has_headers(false).from_writer(to);
    writer.write_record(HandoverRow::COLUMNS).map_err(write_error)?;
    let mut exported = Exported::default();
    store.visit(|handover| {
        exported.handovers += 1;
        let row = HandoverRow::of(handover, coarsening);
        writer.write_record(row.cells()).map_err(write_error)
    })?;
    writer.flush()?;
    Ok(exported)
}

pub(super) fn import(
    store: &mut Store,
    from: impl Read,
    now_ms: u64,
) -> Result<Imported, ImportError> {
    let mut reader = ReaderBuilder::new().from_reader(Bounded::new(from));
    let header = header(&mut reader)?;
    let mut imported = Imported::default();
    let mut pending = Pending::new(now_ms);
    store.write(|batch| {
        let mut row = StringRecord::new();
        loop {
            let line = match next(&mut reader, &mut row, &header) {
                Ok(Some((line, handover))) => {
                    if !pending.add(line, handover) {
                        continue;
                    }
                    true
                }
                Ok(None) => false,
                Err(error) => return Ok(Err(error)),
            };
            if let Err(error) = pending.append(batch, &mut imported)? {
                return Ok(Err(error));
            }
            if !line {
                return Ok(Ok(()));
            }
        }
    })?;
    Ok(imported)
}

/// The first line: all columns, each once, in any order.
fn header<R: Read>(reader: &mut Reader<R>) -> Result<StringRecord, ImportError> {
    let header = reader.headers().map_err(read_error)?.clone();
    for name in &header {
        if !HandoverRow::COLUMNS.contains(&name) {
            return Err(bad(1, format!("column {name:?}"), "it is not known"));
        }
    }
    for wanted in HandoverRow::COLUMNS {
        match header.iter().filter(|name| *name == wanted).count() {
            1 => {}
            0 => return Err(bad(1, format!("column {wanted:?}"), "it is missing")),
            _ => return Err(bad(1, format!("column {wanted:?}"), "it is there twice")),
        }
    }
    Ok(header)
}

fn next<R: Read>(
    reader: &mut Reader<R>,
    row: &mut StringRecord,
    header: &StringRecord,
) -> Result<Option<(u64, polyrail_model::Handover)>, ImportError> {
    if !reader.read_record(row).map_err(read_error)? {
        return Ok(None);
    }
    let line = row.position().map_or(0, csv::Position::line);
    let cell = |column| {
        let at = header.iter().position(|name| name == column);
        at.and_then(|at| row.get(at)).unwrap_or_default()
    };
    let parsed = HandoverRow::from_cells(cell)
        .map_err(|(column, reason)| bad(line, format!("column {column:?}"), reason))?;
    let handover = parsed.handover().map_err(|error| bad(line, "row", error.to_string()))?;
    Ok(Some((line, handover)))
}

fn write_error(error: csv::Error) -> ExportError {
    ExportError::Write(error.into())
}

fn read_error(error: csv::Error) -> ImportError {
    let line_of = |position: &Option<csv::Position>| position.as_ref().map_or(1, |at| at.line());
    match error.into_kind() {
        ErrorKind::Io(error) => ImportError::Read(error),
        ErrorKind::Utf8 { pos, err } => {
            bad(line_of(&pos), format!("column {}", err.field() + 1), "it is not UTF-8")
        }
        ErrorKind::UnequalLengths { pos, expected_len, len } => {
            bad(line_of(&pos), "row", format!("it has {len} fields in place of {expected_len}"))
        }
        other => bad(1, "row", format!("{other:?}")),
    }
}
