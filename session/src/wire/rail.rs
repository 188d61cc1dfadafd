//! TELEMETRY and HANDOVER: what is known of a train, and of its handovers, in bytes.
//!
//! Numbers that are drawn at random or given by others (trips, tracks, cells) stand in eight bytes;
//! the rest is as long as it must be. Of what is out of its range the encoder tells what is known,
//! so that no reading of a modem can cost a tunnel; the decoder refuses it.

use std::time::Duration;

use polyrail_model::{
    CarrierTelemetry, CellId, Direction, Handover, HandoverOutcome, LedgerDigest, LedgerMessage,
    Position, RouteId, Rsrp, Speed, Telemetry, TripId, TripKnown,
};

use super::cursor::{Cursor, put_number, put_text};
use super::encode::kind;
use super::{
    CARRIER_NAME_MAX, Frame, HEADER, NUMBER_MAX, RAIL_FRAME_MAX, TELEMETRY_CARRIERS_MAX, WireError,
};

/// Appends a telemetry behind its serial; carriers beyond the bound are left out.
pub(super) fn put_telemetry(out: &mut Vec<u8>, telemetry: &Telemetry) {
    let Telemetry { trip, route, direction, position, speed, error, age, carriers } = telemetry;
    put_number(out, FORM);
    put_duration(out, *age);
    out.extend_from_slice(&trip.0.to_be_bytes());
    out.extend_from_slice(&route.0.to_be_bytes());
    out.push(bit(*direction == Direction::Down, DOWN));
    out.extend_from_slice(&position.decimetres.to_be_bytes());
    out.extend_from_slice(&speed.centimetres_per_second.to_be_bytes());
    put_number(out, u64::try_from(error.decimetres).unwrap_or_default());
    let carriers = &carriers[..carriers.len().min(TELEMETRY_CARRIERS_MAX)];
    put_number(out, carriers.len() as u64);
    for CarrierTelemetry { carrier, cell, rsrp } in carriers {
        put_text(out, carrier, CARRIER_NAME_MAX);
        let rsrp = rsrp.filter(is_in_range);
        out.push(bit(cell.is_some(), CELL) | bit(rsrp.is_some(), RSRP));
        put_cell(out, *cell);
        put_rsrp(out, rsrp);
    }
}

/// The rest of a TELEMETRY. One of another form is for later versions: it is skipped.
pub(super) fn telemetry<'a>(cursor: &mut Cursor<'a>) -> Result<Frame<'a>, WireError> {
    bounded(cursor)?;
    let serial = cursor.number()?;
    if cursor.number()? != FORM {
        cursor.rest();
        return Ok(Frame::Unknown { kind: kind::TELEMETRY });
    }
    let age = Duration::from_micros(cursor.number()?);
    let (trip, route) = (TripId(fixed(cursor)?), RouteId(fixed(cursor)?));
    let direction = direction(cursor.byte()?);
    let position = position(cursor)?;
    let speed = Speed { centimetres_per_second: u16::from_be_bytes(cursor.array()?) };
    let error = i32::try_from(cursor.number()?);
    let error = Position { decimetres: error.map_err(|_| WireError::Field("position error"))? };
    let count = count(cursor, TELEMETRY_CARRIERS_MAX)?;
    let carriers = (0..count).map(|_| carrier(cursor)).collect::<Result<_, _>>()?;
    let telemetry = Telemetry { trip, route, direction, position, speed, error, age, carriers };
    Ok(Frame::Telemetry { serial, telemetry })
}

fn carrier(cursor: &mut Cursor<'_>) -> Result<CarrierTelemetry, WireError> {
    let carrier = cursor.text(CARRIER_NAME_MAX)?.to_owned();
    let bits = cursor.byte()?;
    let cell = (bits & CELL != 0).then(|| cell(cursor)).transpose()?;
    let rsrp = (bits & RSRP != 0).then(|| rsrp(cursor)).transpose()?;
    Ok(CarrierTelemetry { carrier, cell, rsrp })
}

/// Appends a message behind its serial; what is beyond the bounds of one message is left out.
pub(super) fn put_message(out: &mut Vec<u8>, message: &LedgerMessage) {
    match message {
        LedgerMessage::Known(trips) => {
            let trips = &trips[..trips.len().min(LedgerMessage::KNOWN_MAX)];
            put_number(out, KNOWN);
            put_number(out, trips.len() as u64);
            for TripKnown { trip, next } in trips {
                out.extend_from_slice(&trip.0.to_be_bytes());
                put_number(out, u64::from(*next));
            }
        }
        LedgerMessage::Records(records) => {
            let records = &records[..records.len().min(LedgerMessage::RECORDS_MAX)];
            put_number(out, RECORDS);
            put_number(out, records.len() as u64);
            records.iter().for_each(|record| put_record(out, record));
        }
        LedgerMessage::Digest(digest) => {
            put_number(out, DIGEST);
            put_number(out, u64::from(digest.trips));
            out.extend_from_slice(&digest.hash.to_be_bytes());
            out.push(bit(digest.answer, ANSWER));
        }
    }
}

/// The rest of a HANDOVER. One that says something new is for later versions: it is skipped.
pub(super) fn handover<'a>(cursor: &mut Cursor<'a>) -> Result<Frame<'a>, WireError> {
    bounded(cursor)?;
    let serial = cursor.number()?;
    let message = match cursor.number()? {
        KNOWN => {
            let count = count(cursor, LedgerMessage::KNOWN_MAX)?;
            let trips = (0..count).map(|_| {
                Ok(TripKnown { trip: TripId(fixed(cursor)?), next: small(cursor.number()?)? })
            });
            LedgerMessage::Known(trips.collect::<Result<_, WireError>>()?)
        }
        RECORDS => {
            let count = count(cursor, LedgerMessage::RECORDS_MAX)?;
            let records = (0..count).map(|_| record(cursor));
            LedgerMessage::Records(records.collect::<Result<_, _>>()?)
        }
        DIGEST => LedgerMessage::Digest(LedgerDigest {
            trips: small(cursor.number()?)?,
            hash: fixed(cursor)?,
            answer: cursor.byte()? & ANSWER != 0,
        }),
        _ => {
            cursor.rest();
            return Ok(Frame::Unknown { kind: kind::HANDOVER });
        }
    };
    Ok(Frame::Handover { serial, message })
}

fn put_record(out: &mut Vec<u8>, record: &Handover) {
    let Handover { trip, route, position, speed, from, to, outcome, .. } = record;
    let rsrp = record.rsrp.filter(is_in_range);
    out.extend_from_slice(&trip.0.to_be_bytes());
    put_number(out, u64::from(record.sequence));
    put_number(out, record.at_ms);
    put_text(out, &record.carrier, CARRIER_NAME_MAX);
    out.extend_from_slice(&route.0.to_be_bytes());
    let outcome = match outcome {
        HandoverOutcome::Success => 0,
        HandoverOutcome::TypeI => 1,
        HandoverOutcome::TypeII => 2,
        HandoverOutcome::TypeIII => 3,
    };
    let down = bit(record.direction == Direction::Down, DOWN);
    let present = bit(to.is_some(), CELL) | bit(rsrp.is_some(), RSRP);
    out.push(down | present | outcome << OUTCOME);
    out.extend_from_slice(&position.decimetres.to_be_bytes());
    out.extend_from_slice(&speed.centimetres_per_second.to_be_bytes());
    put_cell(out, Some(*from));
    put_cell(out, *to);
    put_rsrp(out, rsrp);
    put_duration(out, record.dark);
}

fn record(cursor: &mut Cursor<'_>) -> Result<Handover, WireError> {
    let trip = TripId(fixed(cursor)?);
    let (sequence, at_ms) = (small(cursor.number()?)?, cursor.number()?);
    let carrier = cursor.text(CARRIER_NAME_MAX)?.to_owned();
    let route = RouteId(fixed(cursor)?);
    let bits = cursor.byte()?;
    let outcome = match bits >> OUTCOME & 3 {
        0 => HandoverOutcome::Success,
        1 => HandoverOutcome::TypeI,
        2 => HandoverOutcome::TypeII,
        _ => HandoverOutcome::TypeIII,
    };
    Ok(Handover {
        trip,
        sequence,
        at_ms,
        carrier,
        route,
        direction: direction(bits),
        position: position(cursor)?,
        speed: Speed { centimetres_per_second: u16::from_be_bytes(cursor.array()?) },
        from: cell(cursor)?,
        to: (bits & CELL != 0).then(|| cell(cursor)).transpose()?,
        rsrp: (bits & RSRP != 0).then(|| rsrp(cursor)).transpose()?,
        outcome,
        dark: Duration::from_micros(cursor.number()?),
    })
}

/// Refuses a payload that is longer than any that is made.
fn bounded(cursor: &Cursor<'_>) -> Result<(), WireError> {
    let fits = cursor.0.len() <= RAIL_FRAME_MAX - HEADER;
    if fits { Ok(()) } else { Err(WireError::Field("longer than a packet")) }
}

fn count(cursor: &mut Cursor<'_>, most: usize) -> Result<usize, WireError> {
    let count = usize::try_from(cursor.number()?).ok().filter(|&count| count <= most);
    count.ok_or(WireError::Field("too many entries"))
}

fn fixed(cursor: &mut Cursor<'_>) -> Result<u64, WireError> {
    Ok(u64::from_be_bytes(cursor.array()?))
}

fn small(number: u64) -> Result<u32, WireError> {
    u32::try_from(number).map_err(|_| WireError::Field("a number beyond 2^32"))
}

fn direction(bits: u8) -> Direction {
    if bits & DOWN == 0 { Direction::Up } else { Direction::Down }
}

fn position(cursor: &mut Cursor<'_>) -> Result<Position, WireError> {
    Ok(Position { decimetres: i32::from_be_bytes(cursor.array()?) })
}

fn cell(cursor: &mut Cursor<'_>) -> Result<CellId, WireError> {
    Ok(CellId(fixed(cursor)?))
}

fn put_cell(out: &mut Vec<u8>, cell: Option<CellId>) {
    out.extend(cell.into_iter().flat_map(|cell| cell.0.to_be_bytes()));
}

fn rsrp(cursor: &mut Cursor<'_>) -> Result<Rsrp, WireError> {
    let rsrp = Rsrp { deci_dbm: i16::from_be_bytes(cursor.array()?) };
    if is_in_range(&rsrp) { Ok(rsrp) } else { Err(WireError::Field("RSRP")) }
}

fn put_rsrp(out: &mut Vec<u8>, rsrp: Option<Rsrp>) {
    out.extend(rsrp.into_iter().flat_map(|rsrp| rsrp.deci_dbm.to_be_bytes()));
}

/// What receivers report (see [`Rsrp::from_dbm`]).
fn is_in_range(rsrp: &Rsrp) -> bool {
    (-2_000..=0).contains(&rsrp.deci_dbm)
}

/// Microseconds.
fn put_duration(out: &mut Vec<u8>, duration: Duration) {
    put_number(out, u64::try_from(duration.as_micros()).unwrap_or(NUMBER_MAX));
}

fn bit(set: bool, bit: u8) -> u8 {
    if set { bit } else { 0 }
}

/// The form of TELEMETRY that this version knows.
const FORM: u64 = 1;
/// What a HANDOVER may be.
const KNOWN: u64 = 1;
const RECORDS: u64 = 2;
const DIGEST: u64 = 3;
/// Flag bits.
const DOWN: u8 = 0x01;
const CELL: u8 = 0x01 << 1;
const RSRP: u8 = 0x01 << 2;
const ANSWER: u8 = 0x01;
/// Where the two bits of an outcome begin.
const OUTCOME: u32 = 3;

#[cfg(test)]
pub(super) mod tests;
