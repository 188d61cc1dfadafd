//! The encoding of entries in the database and in messages.
//!
//! Each value begins with its kind, which changes with the encoding. Numbers are LEB128 varints in
//! their shortest form, signed ones in zigzag order; random ids take eight bytes. Decoding is
//! strict: it rejects trailing bytes, unknown kinds, overlong numbers and invalid values. Times are
//! whole milliseconds.

use std::time::Duration;

use polyrail_model::codec::{Cursor, FieldError, NUMBER_MAX};
use polyrail_model::{
    Bitrate, CellId, Direction, Handover, HandoverOutcome, Position, RouteId, Rsrp, Speed, TripId,
};

use crate::entry::{
    CARRIER_NAME_MAX, ENTRY_BYTES_MAX, Entry, Link, RateSample, Rates, Spot, TrackPiece, TrackPoint,
};

/// Encodes a valid entry. Durations are truncated: outages to milliseconds, delays to microseconds.
pub(crate) fn encode(entry: &Entry) -> Vec<u8> {
    match entry {
        Entry::Handover(handover, spot) => encode_handover(handover, spot.as_ref()),
        Entry::Track(piece) => encode_piece(piece),
        Entry::Rates(rates) => encode_rates(rates),
    }
}

/// Decodes an entry.
///
/// # Errors
/// The bytes are not a valid entry in its shortest encoding, or too many.
pub(crate) fn decode(bytes: &[u8]) -> Result<Entry, FieldError> {
    if bytes.len() > ENTRY_BYTES_MAX {
        return Err(FieldError::Invalid("length of an entry"));
    }
    let entry = match bytes.first() {
        Some(&HANDOVER) => decode_handover(bytes)?,
        Some(&TRACK) => Entry::Track(decode_piece(bytes)?),
        Some(&RATES) => Entry::Rates(decode_rates(bytes)?),
        Some(_) => return Err(FieldError::Invalid("kind of an entry")),
        None => return Err(FieldError::Truncated),
    };
    check_entry(&entry)?;
    Ok(entry)
}

/// Whether these are the bytes of a piece of a track.
pub(crate) fn is_piece(bytes: &[u8]) -> bool {
    bytes.first() == Some(&TRACK)
}

/// Checks an entry of this node, of a peer or of a file.
///
/// # Errors
/// Names the first invalid field.
pub(crate) fn check_entry(entry: &Entry) -> Result<(), FieldError> {
    let invalid = |field| Err(FieldError::Invalid(field));
    match entry {
        Entry::Handover(handover, _) if handover.at_ms > AT_MS_MAX => invalid("time"),
        Entry::Handover(handover, _) if handover.dark > DARK_MAX => invalid("outage"),
        Entry::Handover(handover, spot) => {
            check_carrier(&handover.carrier)?;
            spot.iter().try_for_each(check_spot)
        }
        Entry::Track(piece) if piece.is_valid() => Ok(()),
        Entry::Track(_) => invalid("piece of a track"),
        Entry::Rates(rates) if !(1..=Rates::SAMPLES_MAX).contains(&rates.samples.len()) => {
            invalid("number of samples")
        }
        Entry::Rates(rates) => {
            check_carrier(&rates.carrier)?;
            rates.samples.iter().flat_map(|sample| &sample.spot).try_for_each(check_spot)
        }
    }
}

fn encode_handover(handover: &Handover, spot: Option<&Spot>) -> Vec<u8> {
    let mut out = Writer::new(HANDOVER);
    out.fixed(handover.trip.0);
    out.varint(handover.sequence.into());
    out.varint(handover.at_ms);
    out.text(&handover.carrier);
    out.fixed(handover.route.0);
    out.0.push(
        handover.direction as u8
            | u8::from(handover.to.is_some()) << 1
            | u8::from(handover.rsrp.is_some()) << 2
            | (handover.outcome as u8) << 3
            | u8::from(spot.is_some()) << 5,
    );
    out.signed(handover.position.decimetres.into());
    out.varint(handover.speed.centimetres_per_second.into());
    out.varint(handover.from.0);
    if let Some(to) = handover.to {
        out.varint(to.0);
    }
    if let Some(rsrp) = handover.rsrp {
        out.signed(rsrp.deci_dbm().into());
    }
    out.varint(u64::try_from(handover.dark.as_millis()).unwrap_or(u64::MAX));
    out.spot(spot);
    out.0
}

fn decode_handover(bytes: &[u8]) -> Result<Entry, FieldError> {
    let mut from = Reader::new(bytes, HANDOVER)?;
    let trip = TripId(from.fixed()?);
    let sequence = from.number("sequence")?;
    let at_ms = from.varint()?;
    let carrier = from.text()?;
    let route = RouteId(from.fixed()?);
    let flags = from.flags(0b11_1111)?;
    let position = Position { decimetres: from.signed("position")? };
    let speed = Speed { centimetres_per_second: from.number("speed")? };
    let left = CellId(from.varint()?);
    let to = if flags & 0b10 != 0 { Some(CellId(from.varint()?)) } else { None };
    let rsrp = (flags & 0b100 != 0).then(|| from.signed("RSRP")).transpose()?;
    let rsrp = rsrp.map(|deci| Rsrp::from_deci_dbm(deci).ok_or(FieldError::Invalid("RSRP")));
    let dark = Duration::from_millis(from.varint()?);
    let spot = from.spot(flags & 0b10_0000 != 0)?;
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
        rsrp: rsrp.transpose()?,
        outcome: HandoverOutcome::from_bits(flags >> 3),
        dark,
    };
    Ok(Entry::Handover(handover, spot))
}

/// Points after the first are differences to the one before.
fn encode_piece(piece: &TrackPiece) -> Vec<u8> {
    let mut out = Writer::new(TRACK);
    out.fixed(piece.route.0);
    out.signed(piece.piece.into());
    out.varint(piece.points.len() as u64);
    let mut before = [0; 3];
    for point in &piece.points {
        let now = [point.latitude, point.longitude, point.position.decimetres];
        for (now, before) in now.into_iter().zip(before) {
            out.signed(i64::from(now) - i64::from(before));
        }
        before = now;
        out.0.push(point.weight);
    }
    out.0
}

fn decode_piece(bytes: &[u8]) -> Result<TrackPiece, FieldError> {
    let mut from = Reader::new(bytes, TRACK)?;
    let route = RouteId(from.fixed()?);
    let piece = from.signed("piece")?;
    // A wrong number ends with the bytes.
    let count: usize = from.number("number of points")?;
    let mut points = Vec::new();
    let mut before = [0i32; 3];
    for _ in 0..count {
        for field in &mut before {
            let number = i64::from(*field).checked_add(from.signed::<i64>("difference")?);
            let number = number.and_then(|number| i32::try_from(number).ok());
            *field = number.ok_or(FieldError::Invalid("difference"))?;
        }
        let [latitude, longitude, decimetres] = before;
        let weight = from.byte()?;
        points.push(TrackPoint { latitude, longitude, position: Position { decimetres }, weight });
    }
    from.finish()?;
    Ok(TrackPiece { route, piece, points })
}

fn encode_rates(rates: &Rates) -> Vec<u8> {
    let mut out = Writer::new(RATES);
    out.fixed(rates.trip.0);
    out.text(&rates.carrier);
    out.fixed(rates.route.0);
    out.0.push(rates.direction as u8 | (rates.link as u8) << 1);
    out.varint(rates.samples.len() as u64);
    for RateSample { position, spot, rate, delay } in &rates.samples {
        out.0.push(
            u8::from(rate.is_some())
                | u8::from(delay.is_some()) << 1
                | u8::from(spot.is_some()) << 2,
        );
        out.signed(position.decimetres.into());
        if let Some(rate) = rate {
            out.varint(rate.as_bps().min(NUMBER_MAX));
        }
        if let Some(delay) = delay {
            out.varint(u64::try_from(delay.as_micros()).unwrap_or(NUMBER_MAX).min(NUMBER_MAX));
        }
        out.spot(spot.as_ref());
    }
    out.0
}

fn decode_rates(bytes: &[u8]) -> Result<Rates, FieldError> {
    let mut from = Reader::new(bytes, RATES)?;
    let trip = TripId(from.fixed()?);
    let carrier = from.text()?;
    let route = RouteId(from.fixed()?);
    let flags = from.flags(0b11)?;
    let link = if flags & 0b10 == 0 { Link::Up } else { Link::Down };
    let count: usize = from.number("number of samples")?;
    let mut samples = Vec::new();
    for _ in 0..count {
        let has = from.flags(0b111)?;
        let position = Position { decimetres: from.signed("position")? };
        let rate = (has & 1 != 0).then(|| from.limited()).transpose()?.map(Bitrate::from_bps);
        let delay = (has & 2 != 0).then(|| from.limited()).transpose()?;
        let delay = delay.map(Duration::from_micros);
        samples.push(RateSample { position, spot: from.spot(has & 4 != 0)?, rate, delay });
    }
    from.finish()?;
    let direction = Direction::from_bit(flags);
    Ok(Rates { trip, carrier, route, direction, link, samples })
}

fn check_spot(spot: &Spot) -> Result<(), FieldError> {
    let is_valid = spot.latitude.unsigned_abs() <= 900_000_000
        && spot.longitude.unsigned_abs() <= 1_800_000_000;
    if is_valid { Ok(()) } else { Err(FieldError::Invalid("spot")) }
}

/// Checks a carrier's name: 1 to 32 bytes, no control characters.
fn check_carrier(name: &str) -> Result<(), FieldError> {
    let is_bounded = (1..=CARRIER_NAME_MAX).contains(&name.len());
    let is_valid = is_bounded && !name.contains(char::is_control);
    if is_valid { Ok(()) } else { Err(FieldError::Invalid("carrier")) }
}

/// Encodes a value with its kind or version.
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn new(version: u8) -> Self {
        Self(vec![version])
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

    pub(crate) fn text(&mut self, text: &str) {
        self.varint(text.len() as u64);
        self.0.extend(text.as_bytes());
    }

    fn spot(&mut self, spot: Option<&Spot>) {
        if let Some(Spot { latitude, longitude, heading }) = spot {
            self.0.extend(latitude.to_be_bytes());
            self.0.extend(longitude.to_be_bytes());
            self.0.push(*heading);
        }
    }
}

/// Decodes a value with its kind or version.
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

    /// A number up to [`NUMBER_MAX`].
    fn limited(&mut self) -> Result<u64, FieldError> {
        let number = Some(self.varint()?).filter(|number| *number <= NUMBER_MAX);
        number.ok_or(FieldError::Invalid("number"))
    }

    fn spot(&mut self, is_present: bool) -> Result<Option<Spot>, FieldError> {
        if !is_present {
            return Ok(None);
        }
        let [latitude, longitude] = [self.0.array()?, self.0.array()?].map(i32::from_be_bytes);
        Ok(Some(Spot { latitude, longitude, heading: self.byte()? }))
    }

    pub(crate) fn text(&mut self) -> Result<String, FieldError> {
        let length = self.number("length")?;
        let text = str::from_utf8(self.0.take(length)?);
        Ok(text.map_err(|_| FieldError::Invalid("text"))?.to_owned())
    }

    pub(crate) fn finish(self) -> Result<(), FieldError> {
        let is_complete = self.0.0.is_empty();
        if is_complete { Ok(()) } else { Err(FieldError::Invalid("trailing bytes")) }
    }
}

/// Kinds of entries.
const HANDOVER: u8 = 1;
const TRACK: u8 = 2;
const RATES: u8 = 3;
/// The end of the year 9999.
pub(crate) const AT_MS_MAX: u64 = 253_402_300_799_999;
/// The longest outage: a train that stands in a tunnel for a day has ended its trip.
const DARK_MAX: Duration = Duration::from_secs(24 * 3600);

#[cfg(test)]
pub(crate) mod tests;
