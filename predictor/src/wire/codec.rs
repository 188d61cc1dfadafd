//! Payloads of LinkDB's messages: encoding and decoding.
//!
//! Random numbers and numbers of other systems (trips, routes, cells) take eight bytes, the others
//! are variable-length integers.

use std::time::Duration;

use polyrail_model::codec::{Cursor, FieldError, NUMBER_MAX, put_number, put_text};
use polyrail_model::{
    CellId, Direction, Handover, HandoverOutcome, Position, RouteId, Rsrp, Speed, TripId,
};

use super::{
    CARRIER_NAME_MAX, CarrierTelemetry, SyncDigest, SyncMessage, TELEMETRY_CARRIERS_MAX, Telemetry,
    TripKnown,
};

/// Appends a telemetry; omits carriers beyond the maximum.
pub(super) fn put_telemetry(out: &mut Vec<u8>, telemetry: &Telemetry) {
    let Telemetry { trip, route, direction, position, speed, error, age, carriers } = telemetry;
    put_number(out, FORM);
    put_duration(out, *age);
    out.extend_from_slice(&trip.0.to_be_bytes());
    out.extend_from_slice(&route.0.to_be_bytes());
    out.push(*direction as u8);
    out.extend_from_slice(&position.decimetres.to_be_bytes());
    out.extend_from_slice(&speed.centimetres_per_second.to_be_bytes());
    put_number(out, u64::try_from(error.decimetres).unwrap_or_default());
    let carriers = &carriers[..carriers.len().min(TELEMETRY_CARRIERS_MAX)];
    put_number(out, carriers.len() as u64);
    for CarrierTelemetry { carrier, cell, rsrp } in carriers {
        put_text(out, carrier, CARRIER_NAME_MAX);
        out.push(bit(cell.is_some(), CELL) | bit(rsrp.is_some(), RSRP));
        put_cell(out, *cell);
        put_rsrp(out, *rsrp);
    }
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
    let position = position(cursor)?;
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
    let cell = (bits & CELL != 0).then(|| cell(cursor)).transpose()?;
    let rsrp = (bits & RSRP != 0).then(|| rsrp(cursor)).transpose()?;
    Ok(CarrierTelemetry { carrier, cell, rsrp })
}

/// Appends a message, whose list is no longer than one message takes.
pub(super) fn put_sync(out: &mut Vec<u8>, message: &SyncMessage) {
    match message {
        SyncMessage::Known(trips) => {
            put_number(out, KNOWN);
            put_number(out, trips.len() as u64);
            for TripKnown { trip, next } in trips {
                out.extend_from_slice(&trip.0.to_be_bytes());
                put_number(out, u64::from(*next));
            }
        }
        SyncMessage::Records(records) => {
            put_number(out, RECORDS);
            put_number(out, records.len() as u64);
            records.iter().for_each(|record| put_record(out, record));
        }
        SyncMessage::Digest(digest) => {
            put_number(out, DIGEST);
            put_number(out, u64::from(digest.trips));
            out.extend_from_slice(&digest.hash.to_be_bytes());
            out.push(bit(digest.answer, ANSWER));
        }
    }
}

/// Decodes a message of the synchronisation; none for a kind of a later version.
pub(super) fn sync(cursor: &mut Cursor<'_>) -> Result<Option<SyncMessage>, FieldError> {
    let message = match cursor.number()? {
        KNOWN => {
            let count = count(cursor, SyncMessage::KNOWN_MAX)?;
            let trips = (0..count).map(|_| {
                Ok(TripKnown { trip: TripId(fixed(cursor)?), next: small(cursor.number()?)? })
            });
            SyncMessage::Known(trips.collect::<Result<_, FieldError>>()?)
        }
        RECORDS => {
            let count = count(cursor, SyncMessage::RECORDS_MAX)?;
            let records = (0..count).map(|_| record(cursor));
            SyncMessage::Records(records.collect::<Result<_, _>>()?)
        }
        DIGEST => SyncMessage::Digest(SyncDigest {
            trips: small(cursor.number()?)?,
            hash: fixed(cursor)?,
            answer: cursor.byte()? & ANSWER != 0,
        }),
        _ => {
            cursor.rest();
            return Ok(None);
        }
    };
    Ok(Some(message))
}

fn put_record(out: &mut Vec<u8>, record: &Handover) {
    let Handover { trip, route, direction, position, speed, from, to, rsrp, .. } = record;
    out.extend_from_slice(&trip.0.to_be_bytes());
    put_number(out, u64::from(record.sequence));
    put_number(out, record.at_ms);
    put_text(out, &record.carrier, CARRIER_NAME_MAX);
    out.extend_from_slice(&route.0.to_be_bytes());
    let present = bit(to.is_some(), CELL) | bit(rsrp.is_some(), RSRP);
    out.push(*direction as u8 | present | (record.outcome as u8) << OUTCOME);
    out.extend_from_slice(&position.decimetres.to_be_bytes());
    out.extend_from_slice(&speed.centimetres_per_second.to_be_bytes());
    put_cell(out, Some(*from));
    put_cell(out, *to);
    put_rsrp(out, *rsrp);
    put_duration(out, record.dark);
}

fn record(cursor: &mut Cursor<'_>) -> Result<Handover, FieldError> {
    let trip = TripId(fixed(cursor)?);
    let (sequence, at_ms) = (small(cursor.number()?)?, cursor.number()?);
    let carrier = cursor.text(CARRIER_NAME_MAX)?.to_owned();
    let route = RouteId(fixed(cursor)?);
    let bits = cursor.byte()?;
    Ok(Handover {
        trip,
        sequence,
        at_ms,
        carrier,
        route,
        direction: Direction::from_bit(bits),
        position: position(cursor)?,
        speed: Speed { centimetres_per_second: u16::from_be_bytes(cursor.array()?) },
        from: cell(cursor)?,
        to: (bits & CELL != 0).then(|| cell(cursor)).transpose()?,
        rsrp: (bits & RSRP != 0).then(|| rsrp(cursor)).transpose()?,
        outcome: HandoverOutcome::from_bits(bits >> OUTCOME),
        dark: Duration::from_micros(cursor.number()?),
    })
}

fn count(cursor: &mut Cursor<'_>, most: usize) -> Result<usize, FieldError> {
    let count = usize::try_from(cursor.number()?).ok().filter(|&count| count <= most);
    count.ok_or(FieldError::Invalid("too many entries"))
}

fn fixed(cursor: &mut Cursor<'_>) -> Result<u64, FieldError> {
    Ok(u64::from_be_bytes(cursor.array()?))
}

fn small(number: u64) -> Result<u32, FieldError> {
    u32::try_from(number).map_err(|_| FieldError::Invalid("a number beyond 2^32"))
}

fn position(cursor: &mut Cursor<'_>) -> Result<Position, FieldError> {
    Ok(Position { decimetres: i32::from_be_bytes(cursor.array()?) })
}

fn cell(cursor: &mut Cursor<'_>) -> Result<CellId, FieldError> {
    Ok(CellId(fixed(cursor)?))
}

fn put_cell(out: &mut Vec<u8>, cell: Option<CellId>) {
    out.extend(cell.into_iter().flat_map(|cell| cell.0.to_be_bytes()));
}

fn rsrp(cursor: &mut Cursor<'_>) -> Result<Rsrp, FieldError> {
    let rsrp = Rsrp::from_deci_dbm(i16::from_be_bytes(cursor.array()?));
    rsrp.ok_or(FieldError::Invalid("RSRP"))
}

fn put_rsrp(out: &mut Vec<u8>, rsrp: Option<Rsrp>) {
    out.extend(rsrp.into_iter().flat_map(|rsrp| rsrp.deci_dbm().to_be_bytes()));
}

/// Microseconds.
fn put_duration(out: &mut Vec<u8>, duration: Duration) {
    put_number(out, u64::try_from(duration.as_micros()).unwrap_or(NUMBER_MAX));
}

fn bit(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

/// The form of telemetry that this version knows.
const FORM: u64 = 1;
/// Kinds of synchronisation messages.
const KNOWN: u64 = 1;
const RECORDS: u64 = 2;
const DIGEST: u64 = 3;
/// Flag bits; the lowest bit of a record and of telemetry is the direction.
const CELL: u8 = 0x01 << 1;
const RSRP: u8 = 0x01 << 2;
const ANSWER: u8 = 0x01;
/// The first of the two bits of an outcome.
const OUTCOME: u32 = 3;
