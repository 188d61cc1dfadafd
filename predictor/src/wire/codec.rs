//! Payloads of LinkDB's messages: encoding and decoding.
//!
//! Random numbers and numbers of other systems (trips, routes, cells) take eight bytes, the others
//! are variable-length integers.

use std::time::Duration;

use polyrail_model::codec::{Cursor, FieldError, NUMBER_MAX, put_number, put_text};
use polyrail_model::{CellId, Direction, Position, RouteId, Rsrp, Speed, TripId};

use super::{
    CARRIER_NAME_MAX, CarrierTelemetry, Mark, SyncMessage, TELEMETRY_CARRIERS_MAX, Telemetry,
};
use crate::entry::{ENTRY_BYTES_MAX, Entry, LogId, SEQUENCE_END, WRITER_NAME_MAX};
use crate::record;

/// Encodes a telemetry for [`super::TELEMETRY`]; omits carriers beyond the maximum.
pub fn encode_telemetry(telemetry: &Telemetry) -> Vec<u8> {
    let Telemetry { trip, route, direction, position, speed, error, age, carriers } = telemetry;
    let mut out = Vec::new();
    put_number(&mut out, FORM);
    put_number(&mut out, u64::try_from(age.as_micros()).unwrap_or(NUMBER_MAX));
    out.extend_from_slice(&trip.0.to_be_bytes());
    out.extend_from_slice(&route.0.to_be_bytes());
    out.push(*direction as u8);
    out.extend_from_slice(&position.decimetres.to_be_bytes());
    out.extend_from_slice(&speed.centimetres_per_second.to_be_bytes());
    put_number(&mut out, u64::try_from(error.decimetres).unwrap_or_default());
    let carriers = &carriers[..carriers.len().min(TELEMETRY_CARRIERS_MAX)];
    put_number(&mut out, carriers.len() as u64);
    for CarrierTelemetry { carrier, cell, rsrp } in carriers {
        put_text(&mut out, carrier, CARRIER_NAME_MAX);
        out.push((u8::from(cell.is_some()) * CELL) | (u8::from(rsrp.is_some()) * RSRP));
        out.extend(cell.iter().flat_map(|cell| cell.0.to_be_bytes()));
        out.extend(rsrp.iter().flat_map(|rsrp| rsrp.deci_dbm().to_be_bytes()));
    }
    out
}

/// Decodes a telemetry; none for a form of a later version.
pub(super) fn telemetry(cursor: &mut Cursor<'_>) -> Result<Option<Telemetry>, FieldError> {
    if cursor.number()? != FORM {
        cursor.rest();
        return Ok(None);
    }
    let age = Duration::from_micros(cursor.number()?);
    let (trip, route) = (TripId(fixed(cursor)?), RouteId(fixed(cursor)?));
    let direction = Direction::from_bit(cursor.byte()?);
    let position = Position { decimetres: i32::from_be_bytes(cursor.array()?) };
    let speed = Speed { centimetres_per_second: u16::from_be_bytes(cursor.array()?) };
    let error = i32::try_from(cursor.number()?);
    let error = error.map_err(|_| FieldError::Invalid("position error"))?;
    let error = Position { decimetres: error };
    let count = count(cursor, TELEMETRY_CARRIERS_MAX)?;
    let carriers = (0..count).map(|_| carrier(cursor)).collect::<Result<_, _>>()?;
    let telemetry = Telemetry { trip, route, direction, position, speed, error, age, carriers };
    Ok(Some(telemetry))
}

fn carrier(cursor: &mut Cursor<'_>) -> Result<CarrierTelemetry, FieldError> {
    let carrier = cursor.text(CARRIER_NAME_MAX)?.to_owned();
    let bits = cursor.byte()?;
    let cell = (bits & CELL != 0).then(|| fixed(cursor)).transpose()?.map(CellId);
    let rsrp = (bits & RSRP != 0).then(|| cursor.array()).transpose()?.map(i16::from_be_bytes);
    let rsrp = rsrp.map(|deci| Rsrp::from_deci_dbm(deci).ok_or(FieldError::Invalid("RSRP")));
    Ok(CarrierTelemetry { carrier, cell, rsrp: rsrp.transpose()? })
}

/// Encodes a message for [`super::SYNC`], whose list is within its maximum.
pub fn encode_sync(message: &SyncMessage) -> Vec<u8> {
    let mut out = Vec::new();
    match message {
        SyncMessage::Marks { end, heard, marks } => {
            put_number(&mut out, MARKS);
            out.push((u8::from(*end) * END) | (u8::from(*heard) * HEARD));
            put_number(&mut out, marks.len() as u64);
            for Mark { log, floor, next } in marks {
                put_log(&mut out, log);
                put_number(&mut out, *floor);
                put_number(&mut out, *next);
            }
        }
        SyncMessage::Entries { log, floor, first, end, entries } => {
            put_number(&mut out, ENTRIES);
            put_log(&mut out, log);
            for number in [*floor, *first, *end, entries.len() as u64] {
                put_number(&mut out, number);
            }
            let mut from = *first;
            for (sequence, entry) in entries {
                let bytes = record::encode(entry);
                put_number(&mut out, sequence - from);
                put_number(&mut out, bytes.len() as u64);
                out.extend_from_slice(&bytes);
                from = sequence + 1;
            }
        }
        SyncMessage::Older => put_number(&mut out, OLDEST),
    }
    out
}

/// Decodes a message of the replication; none for a kind of a later version.
pub(super) fn sync(cursor: &mut Cursor<'_>) -> Result<Option<SyncMessage>, FieldError> {
    let message = match cursor.number()? {
        OLDEST..MARKS => {
            cursor.rest();
            SyncMessage::Older
        }
        MARKS => {
            let flags = cursor.byte()?;
            if flags & !(END | HEARD) != 0 {
                return Err(FieldError::Invalid("flags"));
            }
            let count = count(cursor, SyncMessage::MARKS_MAX)?;
            let marks = (0..count).map(|_| {
                let (log, floor) = (log(cursor)?, sequence(cursor)?);
                let next = sequence(cursor)?;
                let mark = Mark { log, floor, next };
                if floor <= next { Ok(mark) } else { Err(FieldError::Invalid("floor")) }
            });
            let marks = marks.collect::<Result<_, FieldError>>()?;
            SyncMessage::Marks { end: flags & END != 0, heard: flags & HEARD != 0, marks }
        }
        ENTRIES => {
            let (log, floor) = (log(cursor)?, sequence(cursor)?);
            let (first, end) = (sequence(cursor)?, sequence(cursor)?);
            if floor > end || first > end {
                return Err(FieldError::Invalid("sequence"));
            }
            let count = count(cursor, SyncMessage::ENTRIES_MAX)?;
            let mut from = first;
            let entries = (0..count).map(|_| {
                let (sequence, entry) = entry(cursor, from, end)?;
                from = sequence + 1;
                Ok((sequence, entry))
            });
            let entries = entries.collect::<Result<_, FieldError>>()?;
            SyncMessage::Entries { log, floor, first, end, entries }
        }
        _ => {
            cursor.rest();
            return Ok(None);
        }
    };
    Ok(Some(message))
}

fn entry(cursor: &mut Cursor<'_>, from: u64, end: u64) -> Result<(u64, Entry), FieldError> {
    let sequence = from.saturating_add(cursor.number()?);
    if sequence >= end {
        return Err(FieldError::Invalid("sequence"));
    }
    let length = usize::try_from(cursor.number()?).ok().filter(|one| *one <= ENTRY_BYTES_MAX);
    let bytes = cursor.take(length.ok_or(FieldError::Invalid("length of an entry"))?)?;
    Ok((sequence, record::decode(bytes)?))
}

fn put_log(out: &mut Vec<u8>, log: &LogId) {
    put_text(out, &log.writer, WRITER_NAME_MAX);
    out.extend_from_slice(&log.incarnation.to_be_bytes());
}

fn log(cursor: &mut Cursor<'_>) -> Result<LogId, FieldError> {
    let writer = cursor.text(WRITER_NAME_MAX)?;
    let is_valid = !writer.is_empty() && !writer.contains(char::is_control);
    let writer = is_valid.then(|| writer.to_owned()).ok_or(FieldError::Invalid("writer"))?;
    Ok(LogId { writer, incarnation: fixed(cursor)? })
}

fn sequence(cursor: &mut Cursor<'_>) -> Result<u64, FieldError> {
    let number = Some(cursor.number()?).filter(|number| *number <= SEQUENCE_END);
    number.ok_or(FieldError::Invalid("sequence"))
}

fn count(cursor: &mut Cursor<'_>, most: usize) -> Result<usize, FieldError> {
    let count = usize::try_from(cursor.number()?).ok().filter(|&count| count <= most);
    count.ok_or(FieldError::Invalid("too many entries"))
}

fn fixed(cursor: &mut Cursor<'_>) -> Result<u64, FieldError> {
    Ok(u64::from_be_bytes(cursor.array()?))
}

/// The form of telemetry that this version knows.
const FORM: u64 = 1;
/// Kinds of messages of the replication; those from the first one on are of earlier versions.
const OLDEST: u64 = 1;
const MARKS: u64 = 4;
const ENTRIES: u64 = 5;
/// Flag bits of a carrier in telemetry.
const CELL: u8 = 0x01 << 1;
const RSRP: u8 = 0x01 << 2;
/// Flag bits of marks.
const END: u8 = 0x01;
const HEARD: u8 = 0x02;
