//! A whole database as NDJSON: one entry per line.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};

use polyrail_model::codec::FieldError;
use polyrail_model::{Handover, RouteId};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::{Coarsening, ExchangeError, LINE_BYTES_MAX, Rows, Vouched};
use crate::creator::{creator_hash, with_creator};
use crate::entry::{Entry, LogId, SEQUENCE_END, Spot};
use crate::record;
use crate::store::Store;
use crate::track::Track;

/// A line of the file.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Line {
    /// The first line.
    Linkdb(Head),
    Entry(EntryRow),
    /// Lines of version 1.
    Cell(IgnoredAny),
    Place(IgnoredAny),
    Track(TrackRow),
    Handover(Handover),
}

/// The lines that are written.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Written {
    Linkdb(Head),
    Entry(EntryRow),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    version: u64,
    /// To how many metres positions are rounded; 0: they are exact.
    #[serde(default, skip_serializing_if = "is_zero")]
    coarsen: u16,
}

/// An entry of a log: a handover, or the encoding of another entry in hexadecimal digits.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryRow {
    writer: String,
    /// In hexadecimal digits.
    incarnation: String,
    sequence: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    handover: Option<Handover>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spot: Option<Spot>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<String>,
}

/// A track of version 1, encoded, in hexadecimal digits.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TrackRow {
    route: RouteId,
    bytes: String,
}

pub(super) fn export(
    store: &Store,
    coarsening: Coarsening,
    to: impl Write,
) -> Result<Rows, ExchangeError> {
    let mut to = BufWriter::new(to);
    let mut exported = Rows::default();
    write(&mut to, &Written::Linkdb(Head { version: VERSION, coarsen: coarsening.0 }))?;
    store.visit(|_, key, entry| {
        let Some(log) = store.log(key.log) else { return Ok(()) };
        let Some(entry) = coarse(entry, coarsening) else { return Ok(()) };
        exported.count(&entry);
        write(&mut to, &Written::Entry(EntryRow::of(&log.id, key.sequence, entry)))
    })?;
    to.flush()?;
    Ok(exported)
}

/// An entry with coarse positions; none if it is exact by nature.
fn coarse(entry: Entry, coarsening: Coarsening) -> Option<Entry> {
    match entry {
        entry if coarsening.0 == 0 => Some(entry),
        Entry::Handover(mut handover, _) => {
            handover.position = coarsening.of(handover.position);
            Some(Entry::Handover(handover, None))
        }
        Entry::Track(_) => None,
        Entry::Rates(_) if coarsening.0 > 100 => None,
        Entry::Rates(mut rates) => {
            for sample in &mut rates.samples {
                (sample.position, sample.spot) = (coarsening.of(sample.position), None);
            }
            Some(Entry::Rates(rates))
        }
    }
}

fn write(to: &mut impl Write, line: &Written) -> Result<(), ExchangeError> {
    serde_json::to_writer(&mut *to, line).map_err(io::Error::from)?;
    Ok(to.write_all(b"\n")?)
}

pub(super) fn import(
    store: &mut Store,
    from: impl Read,
    now_ms: u64,
) -> Result<Rows, ExchangeError> {
    let mut from = BufReader::new(from);
    check_head(next(&mut from, 1)?)?;
    let mut rows = Rows::default();
    let mut vouched = Vouched::new(store)?;
    // Other nodes know a track by the hash of its creator, which version 1 did not have.
    let creator = creator_hash(store.own_name());
    let mut tracks = BTreeSet::new();
    store.write(|batch| {
        for number in 2.. {
            let Some(line) = next(&mut from, number)? else { break };
            let invalid = |error| ExchangeError::invalid(number, error);
            match line {
                Line::Linkdb(_) => {
                    return Err(ExchangeError::Line(number, "repeated \"linkdb\"".to_owned()));
                }
                Line::Entry(row) => {
                    let (log, sequence, mut entry) = row.entry().map_err(invalid)?;
                    if log.writer.is_empty() {
                        // Of a file that no daemon has named yet.
                        entry.name_creator(creator);
                        vouched.append(batch, &mut rows, number, entry, now_ms)?;
                        continue;
                    }
                    batch.append(&log, 0, (0, sequence + 1), &[(sequence, entry)], now_ms)?;
                    let appended = std::mem::take(&mut batch.appended);
                    if appended.refused > 0 {
                        let reason = "the database has too many logs".to_owned();
                        return Err(ExchangeError::Line(number, reason));
                    }
                    rows.known += appended.known as u64;
                    appended.fresh.iter().for_each(|(_, entry)| rows.count(entry));
                }
                Line::Handover(mut handover) => {
                    if tracks.contains(&handover.route) {
                        handover.route = with_creator(handover.route, creator);
                    }
                    let entry = Entry::Handover(handover, None);
                    vouched.append(batch, &mut rows, number, entry, now_ms)?;
                }
                Line::Track(row) => {
                    let bytes = from_hex(&row.bytes).map_err(invalid)?;
                    tracks.insert(row.route);
                    let route = with_creator(row.route, creator);
                    for piece in Track::decode(&bytes).map_err(invalid)?.pieces(route) {
                        let entry = Entry::Track(piece);
                        vouched.append(batch, &mut rows, number, entry, now_ms)?;
                    }
                }
                Line::Cell(_) | Line::Place(_) => rows.skipped += 1,
            }
        }
        Ok(rows)
    })
}

fn check_head(line: Option<Line>) -> Result<(), ExchangeError> {
    let reason = match line {
        Some(Line::Linkdb(Head { version: 1 | VERSION, coarsen: 0 })) => return Ok(()),
        // Its holes would count as known, and be filled by no upload.
        Some(Line::Linkdb(Head { version: VERSION, .. })) => {
            "the export is incomplete, because its positions are rounded: import one that was made \
             with --coarsen 0"
                .to_owned()
        }
        Some(Line::Linkdb(Head { version, .. })) => {
            format!("the version is {version}, this program reads 1 and {VERSION}")
        }
        _ => "an export begins with {\"linkdb\":{\"version\":2}}".to_owned(),
    };
    Err(ExchangeError::Line(1, reason))
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

impl EntryRow {
    fn of(log: &LogId, sequence: u64, entry: Entry) -> Self {
        let (writer, incarnation) = (log.writer.clone(), format!("{:x}", log.incarnation));
        let (mut handover, mut spot, mut bytes) = (None, None, None);
        match entry {
            Entry::Handover(one, at) => (handover, spot) = (Some(one), at),
            other => bytes = Some(to_hex(&record::encode(&other))),
        }
        Self { writer, incarnation, sequence, handover, spot, bytes }
    }

    fn entry(self) -> Result<(LogId, u64, Entry), FieldError> {
        let Self { writer, incarnation, sequence, handover, spot, bytes } = self;
        let incarnation = u64::from_str_radix(&incarnation, 16);
        let incarnation = incarnation.map_err(|_| FieldError::Invalid("incarnation"))?;
        if sequence >= SEQUENCE_END {
            return Err(FieldError::Invalid("sequence"));
        }
        let entry = match (handover, bytes) {
            (Some(handover), None) => Entry::Handover(handover, spot),
            (None, Some(bytes)) => record::decode(&from_hex(&bytes)?)?,
            _ => return Err(FieldError::Invalid("neither a handover nor bytes")),
        };
        record::check_entry(&entry)?;
        Ok((LogId { writer, incarnation }, sequence, entry))
    }
}

fn is_zero(metres: &u16) -> bool {
    *metres == 0
}

fn to_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a text cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn from_hex(text: &str) -> Result<Vec<u8>, FieldError> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|digit| digit as u8);
    let byte = |pair: &[u8; 2]| Some(digit(pair[0])? << 4 | digit(pair[1])?);
    let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
    bytes.filter(|_| rest.is_empty()).ok_or(FieldError::Invalid("bytes"))
}

const VERSION: u64 = 2;
