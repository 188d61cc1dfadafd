//! The encoding of handovers and cells' histories in the database.
//!
//! Each value begins with the version of its encoding. Numbers are LEB128 varints in their shortest
//! form, signed ones in zigzag order; random ids take eight bytes. Decoding is strict: it rejects
//! trailing bytes, unknown versions, overlong numbers and invalid values. Times are whole
//! milliseconds.

use std::time::Duration;

use polyrail_model::codec::{Cursor, FieldError};
use polyrail_model::{
    CellId, Direction, Handover, HandoverOutcome, Position, RouteId, Rsrp, Speed, TripId,
};

use crate::entry::{EntryKey, WriterNumber};
use crate::history::{CellHistory, PASSAGES_MAX, Passage};
use crate::wire::CARRIER_NAME_MAX;

/// Checks the carrier's name, the time and the outage of a handover from a peer or a file.
///
/// # Errors
/// Names the first invalid field.
pub(crate) fn check(handover: &Handover) -> Result<(), FieldError> {
    check_carrier(&handover.carrier)?;
    if handover.at_ms > AT_MS_MAX {
        return Err(FieldError::Invalid("time"));
    }
    if handover.dark > DARK_MAX {
        return Err(FieldError::Invalid("outage"));
    }
    Ok(())
}

/// Encodes a valid handover; its outage is truncated to milliseconds.
pub(crate) fn encode_handover(handover: &Handover) -> Vec<u8> {
    let mut out = Writer::new(VERSION);
    out.fixed(handover.trip.0);
    out.varint(handover.sequence.into());
    out.varint(handover.at_ms);
    out.text(&handover.carrier);
    out.fixed(handover.route.0);
    out.byte(
        handover.direction as u8
            | u8::from(handover.to.is_some()) << 1
            | u8::from(handover.rsrp.is_some()) << 2
            | (handover.outcome as u8) << 3,
    );
    out.signed(handover.position.decimetres.into());
    out.varint(handover.speed.centimetres_per_second.into());
    out.varint(handover.from.0);
    if let Some(to) = handover.to {
        out.varint(to.0);
    }
    out.rsrp(handover.rsrp);
    out.varint(u64::try_from(handover.dark.as_millis()).unwrap_or(u64::MAX));
    out.finish()
}

/// Decodes a handover.
///
/// # Errors
/// The bytes are not a valid handover in its shortest encoding.
pub(crate) fn decode_handover(bytes: &[u8]) -> Result<Handover, FieldError> {
    let mut from = Reader::new(bytes, VERSION)?;
    let trip = TripId(from.fixed()?);
    let sequence = from.number("sequence")?;
    let at_ms = from.varint()?;
    let carrier = from.text()?;
    let route = RouteId(from.fixed()?);
    let flags = from.flags(0b1_1111)?;
    let position = Position { decimetres: from.signed("position")? };
    let speed = Speed { centimetres_per_second: from.number("speed")? };
    let left = CellId(from.varint()?);
    let to = if flags & 0b10 != 0 { Some(CellId(from.varint()?)) } else { None };
    let rsrp = from.rsrp(flags & 0b100 != 0)?;
    let dark = Duration::from_millis(from.varint()?);
    from.finish()?;
    let handover = Handover {
        trip,
        sequence,
        at_ms,
        carrier,
        route,
        direction: Direction::from_bit(flags),
        position,
        speed,
        from: left,
        to,
        rsrp,
        outcome: HandoverOutcome::from_bits(flags >> 3),
        dark,
    };
    check(&handover)?;
    Ok(handover)
}

/// Encodes a cell's history.
pub(crate) fn encode_history(history: &CellHistory) -> Vec<u8> {
    let mut out = Writer::new(VERSION);
    out.varint(history.passages().len() as u64);
    for passage in history.passages() {
        out.fixed(passage.trip.0);
        out.varint(passage.sequence.into());
        out.signed(passage.position.decimetres.into());
        out.byte(u8::from(passage.rsrp.is_some()) | (passage.outcome as u8) << 1);
        out.rsrp(passage.rsrp);
    }
    out.finish()
}

/// Decodes a cell's history.
///
/// # Errors
/// The bytes are not a history in its shortest encoding, it has more than [`PASSAGES_MAX`]
/// passages, or it repeats one.
pub(crate) fn decode_history(bytes: &[u8]) -> Result<CellHistory, FieldError> {
    let mut from = Reader::new(bytes, VERSION)?;
    let count: usize = from.number("number of passages")?;
    if count > PASSAGES_MAX {
        return Err(FieldError::Invalid("number of passages"));
    }
    let mut passages = Vec::with_capacity(count);
    for _ in 0..count {
        let trip = TripId(from.fixed()?);
        let sequence = from.number("sequence")?;
        let position = Position { decimetres: from.signed("position")? };
        let flags = from.flags(0b111)?;
        let rsrp = from.rsrp(flags & 1 != 0)?;
        let outcome = HandoverOutcome::from_bits(flags >> 1);
        let (writer, entry, projected) = (WriterNumber::OWN, EntryKey::default(), false);
        let passage = Passage { trip, sequence, position, rsrp, outcome, writer, entry, projected };
        passages.push(passage);
    }
    from.finish()?;
    let history: CellHistory = passages.into_iter().collect();
    let is_complete = history.passages().len() == count;
    if is_complete { Ok(history) } else { Err(FieldError::Invalid("repeated passage")) }
}

/// Checks a carrier's name: 1 to 32 bytes, no control characters.
pub(crate) fn check_carrier(name: &str) -> Result<(), FieldError> {
    let is_bounded = (1..=CARRIER_NAME_MAX).contains(&name.len());
    let is_valid = is_bounded && !name.contains(char::is_control);
    if is_valid { Ok(()) } else { Err(FieldError::Invalid("carrier")) }
}

/// Encodes a value with a version.
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

    fn signed(&mut self, number: i64) {
        self.varint(((number << 1) ^ (number >> 63)) as u64);
    }

    fn text(&mut self, text: &str) {
        self.varint(text.len() as u64);
        self.0.extend(text.as_bytes());
    }

    fn rsrp(&mut self, rsrp: Option<Rsrp>) {
        if let Some(rsrp) = rsrp {
            self.signed(rsrp.deci_dbm().into());
        }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Decodes a value with a version.
pub(crate) struct Reader<'a>(Cursor<'a>);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], version: u8) -> Result<Self, FieldError> {
        let mut reader = Self(Cursor(bytes));
        let is_known = reader.byte()? == version;
        if is_known { Ok(reader) } else { Err(FieldError::Invalid("version")) }
    }

    pub(crate) fn byte(&mut self) -> Result<u8, FieldError> {
        self.0.byte()
    }

    /// A byte without other bits than `mask`.
    pub(crate) fn flags(&mut self, mask: u8) -> Result<u8, FieldError> {
        let flags = self.byte()?;
        if flags & !mask == 0 { Ok(flags) } else { Err(FieldError::Invalid("flags")) }
    }

    pub(crate) fn fixed(&mut self) -> Result<u64, FieldError> {
        Ok(u64::from_be_bytes(self.0.array()?))
    }

    pub(crate) fn varint(&mut self) -> Result<u64, FieldError> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let overlong = shift > 0 && byte == 0;
            if overlong || (shift == 63 && byte > 1) {
                break;
            }
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(FieldError::Invalid("number"))
    }

    pub(crate) fn number<T: TryFrom<u64>>(&mut self, name: &'static str) -> Result<T, FieldError> {
        T::try_from(self.varint()?).map_err(|_| FieldError::Invalid(name))
    }

    fn signed<T: TryFrom<i64>>(&mut self, name: &'static str) -> Result<T, FieldError> {
        let zigzag = self.varint()?;
        let number = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        T::try_from(number).map_err(|_| FieldError::Invalid(name))
    }

    fn rsrp(&mut self, is_present: bool) -> Result<Option<Rsrp>, FieldError> {
        if !is_present {
            return Ok(None);
        }
        let rsrp = Rsrp::from_deci_dbm(self.signed("RSRP")?);
        rsrp.map(Some).ok_or(FieldError::Invalid("RSRP"))
    }

    fn text(&mut self) -> Result<String, FieldError> {
        let length = self.number("length")?;
        let text = str::from_utf8(self.0.take(length)?);
        Ok(text.map_err(|_| FieldError::Invalid("text"))?.to_owned())
    }

    pub(crate) fn finish(self) -> Result<(), FieldError> {
        let is_complete = self.0.0.is_empty();
        if is_complete { Ok(()) } else { Err(FieldError::Invalid("trailing bytes")) }
    }
}

const VERSION: u8 = 1;
/// The end of the year 9999.
pub(crate) const AT_MS_MAX: u64 = 253_402_300_799_999;
/// The longest outage: a train that stands in a tunnel for a day has ended its trip.
const DARK_MAX: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
pub(crate) mod tests;
