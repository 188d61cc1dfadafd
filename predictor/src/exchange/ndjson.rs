//! A whole database as NDJSON: one object per line.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};

use polyrail_model::codec::FieldError;
use polyrail_model::{CellId, Direction, Handover, RouteId, TripId};
use serde::{Deserialize, Serialize};

use super::{Coarsening, ExchangeError, LINE_BYTES_MAX, Rows};
use crate::history::{CellHistory, CellKey, PASSAGES_MAX, Passage};
use crate::record::check_carrier;
use crate::store::{Mean, PLACE_TRIPS_MAX, Place, PlaceKey, Store, Visit};
use crate::track::Track;

/// A line of the file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    /// The first line.
    Linkdb(Head),
    Cell(CellRow),
    Track(TrackRow),
    Place(PlaceRow),
    Handover(Handover),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    version: u64,
}

/// The history of a cell.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CellRow {
    carrier: String,
    route: RouteId,
    direction: Direction,
    cell: CellId,
    passages: Vec<Passage>,
}

/// A track, encoded, in hexadecimal digits.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TrackRow {
    route: RouteId,
    bytes: String,
}

/// A place of the rate map.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlaceRow {
    carrier: String,
    route: RouteId,
    direction: Direction,
    hectometre: i32,
    trips: Vec<VisitRow>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct VisitRow {
    trip: TripId,
    rate_bps: u64,
    rate_samples: u64,
    delay_us: u64,
    delay_samples: u64,
}

pub(super) fn export(
    store: &Store,
    coarsening: Coarsening,
    to: impl Write,
) -> Result<Rows, ExchangeError> {
    let mut to = BufWriter::new(to);
    let mut exported = Rows::default();
    write(&mut to, &Line::Linkdb(Head { version: VERSION }))?;
    if coarsening.0 == 0 {
        for (route, track) in store.tracks()? {
            exported.tracks += 1;
            write(&mut to, &Line::Track(TrackRow::of(route, &track)))?;
        }
    }
    let mut cells = store.cells_by_age()?;
    cells.sort_by(|one, other| one.0.cmp(&other.0));
    for (key, history) in cells {
        exported.cells += 1;
        write(&mut to, &Line::Cell(CellRow::of(key, &history, coarsening)))?;
    }
    if coarsening.0 <= 100 {
        store.visit_places(|key, place| {
            exported.places += 1;
            write(&mut to, &Line::Place(PlaceRow::of(key, &place)))
        })?;
    }
    store.visit(|mut handover| {
        exported.handovers += 1;
        handover.position = coarsening.of(handover.position);
        write(&mut to, &Line::Handover(handover))
    })?;
    to.flush()?;
    Ok(exported)
}

fn write(to: &mut impl Write, line: &Line) -> Result<(), ExchangeError> {
    serde_json::to_writer(&mut *to, line).map_err(io::Error::from)?;
    Ok(to.write_all(b"\n")?)
}

pub(super) fn import(
    store: &mut Store,
    from: impl Read,
    now_ms: u64,
) -> Result<Rows, ExchangeError> {
    let mut from = BufReader::new(from);
    match next(&mut from, 1)? {
        Some(Line::Linkdb(Head { version: VERSION })) => {}
        Some(Line::Linkdb(Head { version })) => {
            let reason = format!("the version is {version}, this program reads {VERSION}");
            return Err(ExchangeError::Line(1, reason));
        }
        _ => {
            let reason = "an export begins with {\"linkdb\":{\"version\":1}}";
            return Err(ExchangeError::Line(1, reason.to_owned()));
        }
    }
    let mut imported = Rows::default();
    store.write(|batch| {
        for number in 2.. {
            let Some(line) = next(&mut from, number)? else { break };
            let invalid = |error| ExchangeError::invalid(number, error);
            match line {
                Line::Linkdb(_) => {
                    return Err(ExchangeError::Line(number, "repeated \"linkdb\"".to_owned()));
                }
                Line::Handover(handover) => {
                    imported.append(batch, number, handover, now_ms)?;
                }
                Line::Cell(row) => {
                    let (key, passages) = row.cell().map_err(invalid)?;
                    batch.merge_cell(&key, &passages)?;
                    imported.cells += 1;
                }
                Line::Track(row) => {
                    batch.put_track(row.route, &row.track().map_err(invalid)?)?;
                    imported.tracks += 1;
                }
                Line::Place(row) => {
                    let (key, place) = row.place().map_err(invalid)?;
                    batch.merge_place(&key, &place)?;
                    imported.places += 1;
                }
            }
        }
        Ok(imported)
    })
}

fn next(from: &mut impl BufRead, number: u64) -> Result<Option<Line>, ExchangeError> {
    let mut text = Vec::new();
    if from.take(LINE_BYTES_MAX).read_until(b'\n', &mut text)? == 0 {
        return Ok(None);
    }
    if text.len() as u64 == LINE_BYTES_MAX {
        return Err(ExchangeError::too_long(number));
    }
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    serde_json::from_slice(text).map(Some).map_err(|error| {
        // serde_json counts lines, too, but here is only one.
        let reason = error.to_string();
        let reason = reason.split(" at line ").next().unwrap_or_default();
        ExchangeError::Line(number, format!("column {}: {reason}", error.column()))
    })
}

impl CellRow {
    fn of(key: CellKey, history: &CellHistory, coarsening: Coarsening) -> Self {
        let coarse = |one: &Passage| Passage { position: coarsening.of(one.position), ..*one };
        let passages = history.passages().map(coarse).collect();
        let CellKey { carrier, route, direction, cell } = key;
        Self { carrier, route, direction, cell, passages }
    }

    fn cell(self) -> Result<(CellKey, Vec<Passage>), FieldError> {
        let Self { carrier, route, direction, cell, passages } = self;
        check_carrier(&carrier)?;
        let unique: BTreeSet<_> = passages.iter().map(|one| (one.trip, one.sequence)).collect();
        if passages.len() > PASSAGES_MAX || unique.len() < passages.len() {
            return Err(FieldError::Invalid("passages"));
        }
        Ok((CellKey { carrier, route, direction, cell }, passages))
    }
}

impl TrackRow {
    fn of(route: RouteId, track: &[u8]) -> Self {
        let mut bytes = String::with_capacity(track.len() * 2);
        for byte in track {
            // Writing to a text cannot fail.
            let _ = write!(bytes, "{byte:02x}");
        }
        Self { route, bytes }
    }

    fn track(&self) -> Result<Vec<u8>, FieldError> {
        let (pairs, rest) = self.bytes.as_bytes().as_chunks::<2>();
        let digit = |digit: u8| char::from(digit).to_digit(16).map(|digit| digit as u8);
        let byte = |pair: &[u8; 2]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
        let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
        let bytes = bytes.filter(|_| rest.is_empty()).ok_or(FieldError::Invalid("bytes"))?;
        Track::decode(&bytes)?;
        Ok(bytes)
    }
}

impl PlaceRow {
    fn of(key: PlaceKey, place: &Place) -> Self {
        let row = |visit: &Visit| {
            let ((rate_samples, rate_bps), (delay_samples, delay_us)) =
                (visit.rate.parts(), visit.delay.parts());
            VisitRow { trip: visit.trip, rate_bps, rate_samples, delay_us, delay_samples }
        };
        let trips = place.0.iter().map(row).collect();
        let PlaceKey { carrier, route, direction, hectometre } = key;
        Self { carrier, route, direction, hectometre, trips }
    }

    fn place(self) -> Result<(PlaceKey, Place), FieldError> {
        let Self { carrier, route, direction, hectometre, trips } = self;
        check_carrier(&carrier)?;
        let unique: BTreeSet<_> = trips.iter().map(|visit| visit.trip).collect();
        if trips.len() > PLACE_TRIPS_MAX || unique.len() < trips.len() {
            return Err(FieldError::Invalid("trips"));
        }
        let visits: Result<_, _> = trips.iter().map(VisitRow::visit).collect();
        Ok((PlaceKey { carrier, route, direction, hectometre }, Place(visits?)))
    }
}

impl VisitRow {
    fn visit(&self) -> Result<Visit, FieldError> {
        let rate = Mean::new(self.rate_samples, self.rate_bps)?;
        let delay = Mean::new(self.delay_samples, self.delay_us)?;
        Ok(Visit { trip: self.trip, rate, delay })
    }
}

const VERSION: u64 = 1;
