//! Handovers as CSV.

use std::io::{self, Read, Take, Write};

use csv::{ErrorKind, Reader, ReaderBuilder, StringRecord, WriterBuilder};
use polyrail_model::Handover;

use super::{Coarsening, ExchangeError, LINE_BYTES_MAX, Rows, Vouched};
use crate::entry::Entry;
use crate::store::Store;

/// The fields of a serialised [`Handover`].
const COLUMNS: [&str; 13] = [
    "trip",
    "sequence",
    "at_ms",
    "carrier",
    "route",
    "direction",
    "position_m",
    "speed_m_s",
    "from",
    "to",
    "rsrp_dbm",
    "outcome",
    "dark_ms",
];

pub(super) fn export(
    store: &Store,
    coarsening: Coarsening,
    to: impl Write,
) -> Result<Rows, ExchangeError> {
    // An empty export has the header, too.
    let mut writer = WriterBuilder::new().has_headers(false).from_writer(to);
    writer.write_record(COLUMNS.iter().chain([&"writer"])).map_err(io::Error::from)?;
    let mut exported = Rows::default();
    store.visit(|_, key, entry| {
        let Entry::Handover(mut handover, _) = entry else { return Ok(()) };
        exported.handovers += 1;
        handover.position = coarsening.of(handover.position);
        let name = store.log(key.log).map_or("", |log| log.id.writer.as_str());
        Ok::<_, ExchangeError>(writer.serialize((handover, name)).map_err(io::Error::from)?)
    })?;
    writer.flush()?;
    Ok(exported)
}

pub(super) fn import(
    store: &mut Store,
    from: impl Read,
    now_ms: u64,
) -> Result<Rows, ExchangeError> {
    let from = from.take(LINE_BYTES_MAX);
    let mut reader = ReaderBuilder::new().has_headers(false).from_reader(from);
    let mut header = StringRecord::new();
    read(&mut reader, &mut header)?;
    let missing = COLUMNS.into_iter().find(|name| !header.iter().any(|found| found == *name));
    if let Some(name) = missing {
        return Err(ExchangeError::Line(1, format!("column {name:?} is missing")));
    }
    // Other columns, as the writer's name, are ignored: the operator vouches for the handovers.
    let places = COLUMNS.map(|name| header.iter().position(|found| found == name));
    let columns = StringRecord::from(&COLUMNS[..]);
    let mut imported = Rows::default();
    let mut vouched = Vouched::new(store)?;
    store.write(|batch| {
        let mut row = StringRecord::new();
        while read(&mut reader, &mut row)? {
            let line = row.position().map_or(0, csv::Position::line);
            let row = chosen(&row, &places);
            let handover = row.deserialize(Some(&columns)).map_err(|error| {
                let column = invalid_column(&row, &columns);
                read_error(error, column.map_or("row".to_owned(), |at| format!("column {at:?}")))
            })?;
            let entry = Entry::Handover(handover, None);
            vouched.append(batch, &mut imported, line, entry, now_ms)?;
        }
        Ok(imported)
    })
}

/// The fields of a row in the order of [`COLUMNS`].
fn chosen(row: &StringRecord, places: &[Option<usize>]) -> StringRecord {
    let field = |place: &Option<usize>| place.and_then(|place| row.get(place)).unwrap_or_default();
    let mut chosen: StringRecord = places.iter().map(field).collect();
    chosen.set_position(row.position().cloned());
    chosen
}

/// Reads a row of bounded length; false at the end.
fn read(
    reader: &mut Reader<Take<impl Read>>,
    row: &mut StringRecord,
) -> Result<bool, ExchangeError> {
    let line = reader.position().line();
    let read = reader.read_record(row);
    if reader.get_ref().limit() == 0 {
        return Err(ExchangeError::too_long(line));
    }
    reader.get_mut().set_limit(LINE_BYTES_MAX);
    read.map_err(|error| read_error(error, "row".to_owned()))
}

/// The first column whose value is invalid in an otherwise valid row.
fn invalid_column(row: &StringRecord, columns: &StringRecord) -> Option<&'static str> {
    COLUMNS.into_iter().enumerate().find_map(|(at, name)| {
        let mut cells = ["0", "0", "0", "A", "0", "up", "0", "0", "0", "", "", "success", "0"];
        cells[at] = row.get(at)?;
        let tried = StringRecord::from(&cells[..]).deserialize::<Handover>(Some(columns)).is_err();
        tried.then_some(name)
    })
}

fn read_error(error: csv::Error, place: String) -> ExchangeError {
    let line = error.position().map_or(1, csv::Position::line);
    match error.into_kind() {
        ErrorKind::Io(error) => ExchangeError::File(error),
        ErrorKind::Deserialize { err, .. } => {
            ExchangeError::Line(line, format!("{place}: {}", err.kind()))
        }
        ErrorKind::UnequalLengths { expected_len, len, .. } => {
            ExchangeError::Line(line, format!("{place}: {len} fields instead of {expected_len}"))
        }
        ErrorKind::Utf8 { err, .. } => ExchangeError::Line(line, format!("{place}: {err}")),
        other => ExchangeError::Line(line, format!("{place}: {other:?}")),
    }
}
