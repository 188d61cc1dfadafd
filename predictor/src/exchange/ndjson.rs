//! A whole database as NDJSON: one object a line.

use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};

use serde::{Deserialize, Serialize};

use super::lines::Bounded;
use super::rows::{CellRow, HandoverRow, PlaceRow, TrackRow};
use super::{Coarsening, ExportError, Exported, ImportError, Imported, Pending, bad};
use crate::record::RecordError;
use crate::store::{Batch, Fault, Store, StoreError};

/// What a line may be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    /// The first line.
    Linkdb(Head),
    Cell(CellRow),
    Track(TrackRow),
    Place(PlaceRow),
    Handover(HandoverRow),
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    version: u64,
}

pub(super) fn export(
    store: &Store,
    coarsening: Coarsening,
    to: impl Write,
) -> Result<Exported, ExportError> {
    let mut to = BufWriter::new(to);
    let mut exported = Exported::default();
    write(&mut to, &Line::Linkdb(Head { version: VERSION }))?;
    if coarsening.is_exact() {
        for (route, track) in store.tracks()? {
            exported.tracks += 1;
            write(&mut to, &Line::Track(TrackRow::of(route, &track)))?;
        }
    }
    for (key, history) in store.cells()? {
        exported.cells += 1;
        write(&mut to, &Line::Cell(CellRow::of(key, &history, coarsening)))?;
    }
    if coarsening.tells_places() {
        store.visit_places(|key, place| {
            exported.places += 1;
            write(&mut to, &Line::Place(PlaceRow::of(key, &place)))
        })?;
    }
    store.visit(|handover| {
        exported.handovers += 1;
        write(&mut to, &Line::Handover(HandoverRow::of(handover, coarsening)))
    })?;
    to.flush()?;
    Ok(exported)
}

fn write(to: &mut impl Write, line: &Line) -> Result<(), ExportError> {
    serde_json::to_writer(&mut *to, line).map_err(io::Error::from)?;
    Ok(to.write_all(b"\n")?)
}

pub(super) fn import(
    store: &mut Store,
    from: impl Read,
    now_ms: u64,
) -> Result<Imported, ImportError> {
    let mut from = BufReader::new(Bounded::new(from));
    match next(&mut from, 1)? {
        Some(Line::Linkdb(Head { version: VERSION })) => {}
        Some(Line::Linkdb(Head { version })) => {
            let reason = format!("it is {version}, this program reads {VERSION}");
            return Err(bad(1, "key \"version\"", reason));
        }
        _ => return Err(bad(1, "line", "an export begins with {\"linkdb\":{\"version\":1}}")),
    }
    let mut taking = Taking { imported: Imported::default(), pending: Pending::new(now_ms) };
    store.write(|batch| {
        for number in 2.. {
            let taken = match next(&mut from, number) {
                Ok(Some(line)) => taking.take(batch, number, line)?,
                Ok(None) => break,
                Err(error) => Err(error),
            };
            if let Err(error) = taken {
                return Ok(Err(error));
            }
        }
        taking.pending.append(batch, &mut taking.imported)
    })?;
    Ok(taking.imported)
}

/// An import on its way.
struct Taking {
    imported: Imported,
    pending: Pending,
}

impl Taking {
    /// Takes a line in. The outer error is the database's.
    fn take(
        &mut self,
        batch: &mut Batch<'_>,
        number: u64,
        line: Line,
    ) -> Result<Result<(), ImportError>, Fault> {
        let impossible = |error: RecordError| bad(number, "line", error.to_string());
        match line {
            Line::Linkdb(_) => return Ok(Err(bad(number, "key \"linkdb\"", "it is there twice"))),
            Line::Handover(row) => match row.handover() {
                Ok(handover) => {
                    if self.pending.add(number, handover) {
                        return self.pending.append(batch, &mut self.imported);
                    }
                }
                Err(error) => return Ok(Err(impossible(error))),
            },
            Line::Cell(row) => match row.cell() {
                Ok((key, history)) => {
                    batch.merge_cell(&key, &history)?;
                    self.imported.cells += 1;
                }
                Err(error) => return Ok(Err(impossible(error))),
            },
            Line::Track(row) => match row.track() {
                Ok((route, track)) => match batch.put_track(route, &track) {
                    Err(Fault::Store(error @ StoreError::TrackTooLarge { .. })) => {
                        return Ok(Err(bad(number, "key \"bytes\"", error.to_string())));
                    }
                    put => {
                        put?;
                        self.imported.tracks += 1;
                    }
                },
                Err(error) => return Ok(Err(impossible(error))),
            },
            Line::Place(row) => match row.place() {
                Ok((key, place)) => {
                    batch.merge_place(&key, &place)?;
                    self.imported.places += 1;
                }
                Err(error) => return Ok(Err(impossible(error))),
            },
        }
        Ok(Ok(()))
    }
}

fn next(from: &mut impl BufRead, number: u64) -> Result<Option<Line>, ImportError> {
    let mut text = Vec::new();
    if from.read_until(b'\n', &mut text)? == 0 {
        return Ok(None);
    }
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    let parsed = serde_json::from_slice(text);
    parsed.map(Some).map_err(|error| {
        // serde_json counts lines, too; there is but one.
        let reason = error.to_string();
        let reason = reason.split(" at line ").next().unwrap_or_default().to_owned();
        bad(number, format!("column {}", error.column()), reason)
    })
}

const VERSION: u64 = 1;
