//! How handovers, and what cells remember, are kept as bytes.
//!
//! Each value begins with the version of its encoding. Numbers are LEB128 varints in their shortest
//! form, signed ones in zigzag order; ids drawn at random take eight bytes. Decoding is strict:
//! what [`encode_handover`] would not write is an error, be it a trailing byte, an unknown version,
//! a number longer than it must be or a value that cannot be. Times are whole milliseconds.
//!
//! Nothing here knows where the bytes are kept.

use std::collections::BTreeSet;
use std::time::Duration;

use polyrail_model::{
    CellId, Direction, Handover, HandoverOutcome, Position, RouteId, Rsrp, Speed, TripId,
};

use crate::history::{CellHistory, PASSAGES_MAX, Passage};

/// Bytes that are no record, or a record that cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The bytes end too early.
    #[error("the record is cut short")]
    Truncated,
    /// More bytes follow.
    #[error("bytes follow the record")]
    Trailing,
    /// A later version of the program wrote it.
    #[error("the record has version {0}, which this program does not know")]
    Version(u8),
    /// A value that cannot be.
    #[error("the record's {0} cannot be")]
    Impossible(&'static str),
}

/// Whether a handover may be kept: bounded name, time, silence and power. Where it comes from a
/// peer or a file it is not to be trusted before.
///
/// # Errors
/// Names the first field that cannot be.
pub fn check(handover: &Handover) -> Result<(), RecordError> {
    check_carrier(&handover.carrier)?;
    if handover.at_ms > AT_MS_MAX {
        return Err(RecordError::Impossible("time"));
    }
    if handover.dark > DARK_MAX {
        return Err(RecordError::Impossible("silence"));
    }
    check_rsrp(handover.rsrp)
}

/// A handover as bytes; of its silence, the whole milliseconds.
///
/// # Errors
/// As [`check`].
pub fn encode_handover(handover: &Handover) -> Result<Vec<u8>, RecordError> {
    check(handover)?;
    let mut out = Writer::new(VERSION);
    out.fixed(handover.trip.0);
    out.varint(handover.sequence.into());
    out.varint(handover.at_ms);
    out.text(&handover.carrier);
    out.fixed(handover.route.0);
    out.byte(
        direction_bit(handover.direction)
            | u8::from(handover.to.is_some()) << 1
            | u8::from(handover.rsrp.is_some()) << 2
            | outcome_bits(handover.outcome) << 3,
    );
    out.signed(handover.position.decimetres.into());
    out.varint(handover.speed.centimetres_per_second.into());
    out.varint(handover.from.0);
    if let Some(to) = handover.to {
        out.varint(to.0);
    }
    if let Some(rsrp) = handover.rsrp {
        out.signed(rsrp.deci_dbm.into());
    }
    out.varint(u64::try_from(handover.dark.as_millis()).unwrap_or(u64::MAX));
    Ok(out.finish())
}

/// The handover that [`encode_handover`] wrote.
///
/// # Errors
/// For anything else.
pub fn decode_handover(bytes: &[u8]) -> Result<Handover, RecordError> {
    let mut from = Reader::new(bytes, VERSION)?;
    let trip = TripId(from.fixed()?);
    let sequence = from.number("sequence")?;
    let at_ms = from.varint()?;
    let carrier = from.text()?;
    let route = RouteId(from.fixed()?);
    let flags = from.byte()?;
    if flags & !0b1_1111 != 0 {
        return Err(RecordError::Impossible("flags"));
    }
    let position = Position { decimetres: from.signed_number("position")? };
    let speed = Speed { centimetres_per_second: from.number("speed")? };
    let left = CellId(from.varint()?);
    let to = if flags & 0b10 != 0 { Some(CellId(from.varint()?)) } else { None };
    let rsrp = if flags & 0b100 != 0 { Some(from.rsrp()?) } else { None };
    let dark = Duration::from_millis(from.varint()?);
    from.finish()?;
    let handover = Handover {
        trip,
        sequence,
        at_ms,
        carrier,
        route,
        direction: direction_of(flags & 1),
        position,
        speed,
        from: left,
        to,
        rsrp,
        outcome: outcome_of(flags >> 3),
        dark,
    };
    check(&handover)?;
    Ok(handover)
}

/// What a cell remembers, as bytes.
///
/// # Errors
/// When a power in it cannot be.
pub fn encode_history(history: &CellHistory) -> Result<Vec<u8>, RecordError> {
    let mut out = Writer::new(VERSION);
    out.varint(history.passages().len() as u64);
    for passage in history.passages() {
        check_rsrp(passage.rsrp)?;
        out.fixed(passage.trip.0);
        out.varint(passage.sequence.into());
        out.signed(passage.position.decimetres.into());
        out.byte(u8::from(passage.rsrp.is_some()) | outcome_bits(passage.outcome) << 1);
        if let Some(rsrp) = passage.rsrp {
            out.signed(rsrp.deci_dbm.into());
        }
    }
    Ok(out.finish())
}

/// What [`encode_history`] wrote.
///
/// # Errors
/// For anything else; also for more than [`PASSAGES_MAX`] passages, or one twice.
pub fn decode_history(bytes: &[u8]) -> Result<CellHistory, RecordError> {
    let mut from = Reader::new(bytes, VERSION)?;
    let count: usize = from.number("number of passages")?;
    if count > PASSAGES_MAX {
        return Err(RecordError::Impossible("number of passages"));
    }
    let mut passages = Vec::with_capacity(count);
    let mut seen = BTreeSet::new();
    for _ in 0..count {
        let trip = TripId(from.fixed()?);
        let sequence = from.number("sequence")?;
        let position = Position { decimetres: from.signed_number("position")? };
        let flags = from.byte()?;
        if flags & !0b111 != 0 {
            return Err(RecordError::Impossible("flags"));
        }
        let rsrp = if flags & 1 != 0 { Some(from.rsrp()?) } else { None };
        if !seen.insert((trip, sequence)) {
            return Err(RecordError::Impossible("repeated passage"));
        }
        passages.push(Passage { trip, sequence, position, rsrp, outcome: outcome_of(flags >> 1) });
    }
    from.finish()?;
    Ok(passages.into_iter().collect())
}

/// Whether a carrier may be named so: one to 32 bytes, no control characters.
pub(crate) fn check_carrier(name: &str) -> Result<(), RecordError> {
    let bounded = (1..=CARRIER_BYTES_MAX).contains(&name.len());
    if !bounded || name.chars().any(char::is_control) {
        return Err(RecordError::Impossible("carrier"));
    }
    Ok(())
}

fn check_rsrp(rsrp: Option<Rsrp>) -> Result<(), RecordError> {
    match rsrp {
        Some(Rsrp { deci_dbm }) if !(-2000..=0).contains(&deci_dbm) => {
            Err(RecordError::Impossible("received power"))
        }
        _ => Ok(()),
    }
}

pub(crate) fn direction_bit(direction: Direction) -> u8 {
    match direction {
        Direction::Up => 0,
        Direction::Down => 1,
    }
}

pub(crate) fn direction_of(bit: u8) -> Direction {
    if bit == 0 { Direction::Up } else { Direction::Down }
}

fn outcome_bits(outcome: HandoverOutcome) -> u8 {
    match outcome {
        HandoverOutcome::Success => 0,
        HandoverOutcome::TypeI => 1,
        HandoverOutcome::TypeII => 2,
        HandoverOutcome::TypeIII => 3,
    }
}

fn outcome_of(bits: u8) -> HandoverOutcome {
    match bits & 0b11 {
        0 => HandoverOutcome::Success,
        1 => HandoverOutcome::TypeI,
        2 => HandoverOutcome::TypeII,
        _ => HandoverOutcome::TypeIII,
    }
}

/// Builds a versioned value.
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new(version: u8) -> Self {
        Self(vec![version])
    }

    pub(crate) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(crate) fn fixed(&mut self, number: u64) {
        self.0.extend(number.to_be_bytes());
    }

    pub(crate) fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    pub(crate) fn signed(&mut self, number: i64) {
        self.varint(((number << 1) ^ (number >> 63)) as u64);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.varint(text.len() as u64);
        self.0.extend(text.as_bytes());
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Takes a versioned value apart.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], version: u8) -> Result<Self, RecordError> {
        let mut reader = Self(bytes);
        match reader.byte()? {
            found if found == version => Ok(reader),
            other => Err(RecordError::Version(other)),
        }
    }

    pub(crate) fn byte(&mut self) -> Result<u8, RecordError> {
        let (byte, rest) = self.0.split_first().ok_or(RecordError::Truncated)?;
        self.0 = rest;
        Ok(*byte)
    }

    pub(crate) fn fixed(&mut self) -> Result<u64, RecordError> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(RecordError::Truncated)?;
        self.0 = rest;
        Ok(u64::from_be_bytes(*bytes))
    }

    pub(crate) fn varint(&mut self) -> Result<u64, RecordError> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let overlong = shift > 0 && byte == 0;
            if overlong || (shift == 63 && byte > 1) {
                return Err(RecordError::Impossible("number"));
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(RecordError::Impossible("number"))
    }

    pub(crate) fn number<T: TryFrom<u64>>(&mut self, what: &'static str) -> Result<T, RecordError> {
        T::try_from(self.varint()?).map_err(|_| RecordError::Impossible(what))
    }

    pub(crate) fn signed_number<T: TryFrom<i64>>(
        &mut self,
        what: &'static str,
    ) -> Result<T, RecordError> {
        let zigzag = self.varint()?;
        let number = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        T::try_from(number).map_err(|_| RecordError::Impossible(what))
    }

    fn rsrp(&mut self) -> Result<Rsrp, RecordError> {
        let rsrp = Rsrp { deci_dbm: self.signed_number("received power")? };
        check_rsrp(Some(rsrp))?;
        Ok(rsrp)
    }

    pub(crate) fn text(&mut self) -> Result<String, RecordError> {
        let length: usize = self.number("length")?;
        let (text, rest) = self.0.split_at_checked(length).ok_or(RecordError::Truncated)?;
        self.0 = rest;
        let text = str::from_utf8(text).map_err(|_| RecordError::Impossible("text"))?;
        Ok(text.to_owned())
    }

    pub(crate) fn finish(self) -> Result<(), RecordError> {
        if self.0.is_empty() { Ok(()) } else { Err(RecordError::Trailing) }
    }
}

const VERSION: u8 = 1;
/// A carrier's name, as everywhere.
pub(crate) const CARRIER_BYTES_MAX: usize = 32;
/// The end of the year 9999.
pub const AT_MS_MAX: u64 = 253_402_300_799_999;
/// No silence is longer; a train that stands in a tunnel for a day has ended its trip.
pub const DARK_MAX: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
pub(crate) mod tests;
