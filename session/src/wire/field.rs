//! The fields of frames: each type with its encoding and its decoding.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

use polyrail_model::codec::{Cursor, FieldError, NUMBER_MAX, put_number, put_text};
use polyrail_model::{
    BindingId, Bitrate, Channel, Destination, Families, FlowId, HostName, InstanceId, PathId,
    PathRank, SessionId, UserId, Weight,
};

use super::frame::{
    ACK_RANGES_MAX, Ack, CARRIER_NAME_MAX, DataMarks, Datagram, Echo, Greeting, Offer, Open,
    REASON_MAX, RejectCode, Reset, ResetReason, Said, Target, Terms,
};

/// A type that is a field of frames.
pub(super) trait Field<'a>: Sized {
    /// Appends it.
    fn put(&self, out: &mut Vec<u8>);

    /// Reads it.
    fn take(cursor: &mut Cursor<'a>) -> Result<Self, FieldError>;
}

/// Types with their encoding and their decoding, each an expression.
macro_rules! fields {
    ($($type:ty: |$it:ident, $out:ident| $put:expr, |$cursor:ident| $take:expr;)*) => {$(
        impl Field<'_> for $type {
            fn put(&self, $out: &mut Vec<u8>) {
                let $it = self;
                $put
            }

            fn take($cursor: &mut Cursor<'_>) -> Result<Self, FieldError> {
                $take
            }
        }
    )*};
}

fields! {
    u8: |byte, out| out.push(*byte), |cursor| cursor.byte();
    // The lowest bit of a byte; the others are reserved.
    bool: |set, out| out.push(u8::from(*set)), |cursor| Ok(has(cursor.byte()?, 0));
    u64: |number, out| put_number(out, *number), |cursor| cursor.number();
    [u8; 16]: |bytes, out| out.extend_from_slice(bytes), |cursor| cursor.array();
    [u8; 32]: |bytes, out| out.extend_from_slice(bytes), |cursor| cursor.array();
    // A reason for people.
    String: |text, out| put_text(out, text, REASON_MAX),
        |cursor| cursor.text(REASON_MAX).map(str::to_owned);
    FlowId: |id, out| put_number(out, id.0),
        |cursor| match cursor.number()? {
            0 => Err(FieldError::Invalid("flow zero")),
            id => Ok(Self(id)),
        };
    BindingId: |id, out| put_number(out, id.0),
        |cursor| match cursor.number()? {
            0 => Err(FieldError::Invalid("binding zero")),
            id => Ok(Self(id)),
        };
    // Its low bits: more do not fit.
    UserId: |id, out| put_number(out, id.0 & NUMBER_MAX), |cursor| cursor.number().map(Self);
    // Codes that this version does not know have a default.
    RejectCode: |code, out| put_number(out, code.code()),
        |cursor| Ok(Self::from_code(cursor.number()?).unwrap_or(Self::Protocol));
    ResetReason: |reason, out| put_number(out, reason.code()),
        |cursor| Ok(Self::from_code(cursor.number()?).unwrap_or(Self::Internal));
    Offer: |offer, out| {
        let Families { v4, v6 } = offer.families;
        let families = bit(v4, 0) | bit(v6, 1);
        let more = bit(offer.datagrams, 2) | bit(offer.reports, 3) | bit(offer.speedtests, 4);
        out.push(families | more | bit(offer.streams, 5));
    }, |cursor| cursor.byte().map(|bits| {
        let families = Families { v4: has(bits, 0), v6: has(bits, 1) };
        let (datagrams, reports) = (has(bits, 2), has(bits, 3));
        let (speedtests, streams) = (has(bits, 4), has(bits, 5));
        Self { families, datagrams, reports, speedtests, streams }
    });
    DataMarks: |marks, out| {
        out.push(bit(marks.fin, 0) | bit(marks.tail, 1) | weight_bits(marks.weight, 2));
    }, |cursor| cursor.byte().map(|bits| {
        Self { fin: has(bits, 0), tail: has(bits, 1), weight: weight_of(bits, 2) }
    });
}

/// The rest of the payload.
impl<'a> Field<'a> for &'a [u8] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn take(cursor: &mut Cursor<'a>) -> Result<Self, FieldError> {
        Ok(cursor.rest())
    }
}

/// Structures whose fields follow each other.
macro_rules! structs {
    ($($name:ident { $($field:tt),* })*) => {$(
        impl Field<'_> for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }

            fn take(cursor: &mut Cursor<'_>) -> Result<Self, FieldError> {
                Ok(Self { $($field: Field::take(cursor)?),* })
            }
        }
    )*};
}

structs! {
    Channel { 0 }
    InstanceId { 0 }
    PathId { 0 }
    SessionId { 0 }
    Terms { window, credit }
    Open { flow, user, window, sent_us, marks, target }
    Echo { path, sent_us, received_us }
    Reset { flow, answer, reason, last, after }
}

impl Field<'_> for Greeting {
    fn put(&self, out: &mut Vec<u8>) {
        self.counter.put(out);
        out.push(use_bits(self.rank, self.metered));
        put_text(out, &self.carrier, CARRIER_NAME_MAX);
    }

    fn take(cursor: &mut Cursor<'_>) -> Result<Self, FieldError> {
        let (counter, flags) = (Field::take(cursor)?, cursor.byte()?);
        let carrier = cursor.text(CARRIER_NAME_MAX)?.to_owned();
        Ok(Self { counter, rank: rank_of(flags), metered: has(flags, 1), carrier })
    }
}

impl Field<'_> for Datagram {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(bit(self.user.is_some(), 0) | weight_bits(self.weight, 1));
        self.binding.put(out);
        [self.sequence, self.sent_us].iter().for_each(|number| number.put(out));
        self.user.iter().for_each(|user| user.put(out));
        self.remote.put(out);
    }

    fn take(cursor: &mut Cursor<'_>) -> Result<Self, FieldError> {
        let marks = cursor.byte()?;
        Ok(Self {
            binding: Field::take(cursor)?,
            sequence: cursor.number()?,
            sent_us: cursor.number()?,
            user: has(marks, 0).then(|| Field::take(cursor)).transpose()?,
            weight: weight_of(marks, 1),
            remote: Field::take(cursor)?,
        })
    }
}

impl Field<'_> for Destination {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Address(SocketAddr::V4(address)) => {
                out.push(DESTINATION_V4);
                out.extend_from_slice(&address.ip().octets());
            }
            Self::Address(SocketAddr::V6(address)) => {
                out.push(DESTINATION_V6);
                out.extend_from_slice(&address.ip().octets());
            }
            Self::Name(name, _) => {
                out.push(DESTINATION_NAME);
                put_text(out, name.as_str(), HOST_NAME_MAX);
            }
        }
        out.extend_from_slice(&self.port().to_be_bytes());
    }

    fn take(cursor: &mut Cursor<'_>) -> Result<Self, FieldError> {
        let port = |cursor: &mut Cursor<'_>| cursor.array().map(u16::from_be_bytes);
        match cursor.byte()? {
            DESTINATION_V4 => {
                let ip = Ipv4Addr::from(cursor.array::<4>()?);
                Ok(Self::Address(SocketAddr::new(ip.into(), port(cursor)?)))
            }
            DESTINATION_V6 => {
                let ip = Ipv6Addr::from(cursor.array::<16>()?);
                Ok(Self::Address(SocketAddr::new(ip.into(), port(cursor)?)))
            }
            DESTINATION_NAME => {
                let name = HostName::new(cursor.text(HOST_NAME_MAX)?);
                let name = name.map_err(|_| FieldError::Invalid("host name"))?;
                Ok(Self::Name(name, port(cursor)?))
            }
            _ => Err(FieldError::Invalid("destination kind")),
        }
    }
}

impl Field<'_> for Target {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Server(destination) => destination.put(out),
            Self::Binding(binding) => {
                out.push(TARGET_BINDING);
                binding.put(out);
            }
        }
    }

    fn take(cursor: &mut Cursor<'_>) -> Result<Self, FieldError> {
        if cursor.0.first() == Some(&TARGET_BINDING) {
            cursor.byte()?;
            return Ok(Self::Binding(Field::take(cursor)?));
        }
        Field::take(cursor).map(Self::Server)
    }
}

impl Field<'_> for Ack {
    fn put(&self, out: &mut Vec<u8>) {
        self.flow.put(out);
        out.push(bit(self.done, 0) | bit(self.dialed, 1) | bit(self.echo.is_some(), 2));
        [self.cumulative, self.limit, self.drained].iter().for_each(|number| number.put(out));
        self.echo.iter().for_each(|echo| echo.put(out));
        let ranges = &self.ranges[..self.ranges.len().min(ACK_RANGES_MAX)];
        put_number(out, ranges.len() as u64);
        let mut edge = self.cumulative;
        for range in ranges {
            put_number(out, range.start - edge);
            put_number(out, range.end - range.start);
            edge = range.end;
        }
    }

    fn take(cursor: &mut Cursor<'_>) -> Result<Self, FieldError> {
        let (flow, bits) = (Field::take(cursor)?, cursor.byte()?);
        let (cumulative, limit, drained) = (cursor.number()?, cursor.number()?, cursor.number()?);
        let echo = has(bits, 2).then(|| Echo::take(cursor)).transpose()?;
        let count = usize::try_from(cursor.number()?).ok().filter(|&n| n <= ACK_RANGES_MAX);
        let count = count.ok_or(FieldError::Invalid("too many acknowledged ranges"))?;
        let mut edge = cumulative;
        let range = |_| {
            let range = range_above(edge, cursor.number()?, cursor.number()?);
            let range = range.ok_or(FieldError::Invalid("acknowledged range"))?;
            edge = range.end;
            Ok(range)
        };
        let ranges = (0..count).map(range).collect::<Result<_, FieldError>>()?;
        let (done, dialed) = (has(bits, 0), has(bits, 1));
        Ok(Self { flow, done, dialed, cumulative, limit, drained, echo, ranges })
    }
}

/// The range that begins `gap` above `edge`; `None` if it is empty or too high.
fn range_above(edge: u64, gap: u64, length: u64) -> Option<Range<u64>> {
    let start = edge.checked_add(gap)?;
    let end = start.checked_add(length)?;
    (start < end && end <= NUMBER_MAX).then_some(start..end)
}

/// `None` is a statement that only later versions know.
impl Field<'_> for Option<Said> {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Some(Said::Stalled) => put_number(out, STALLED),
            Some(Said::Policed { rate }) => {
                put_number(out, POLICED);
                put_number(out, rate.as_bps());
            }
            Some(Said::Use { rank, metered }) => {
                put_number(out, USED_AS);
                out.push(use_bits(*rank, *metered));
            }
            Some(Said::Limit { rate }) => {
                put_number(out, LIMIT);
                put_number(out, rate.map_or(0, Bitrate::as_bps).min(NUMBER_MAX));
            }
            None => {}
        }
    }

    fn take(cursor: &mut Cursor<'_>) -> Result<Self, FieldError> {
        Ok(match cursor.number()? {
            STALLED => Some(Said::Stalled),
            POLICED => Some(Said::Policed { rate: Bitrate::from_bps(cursor.number()?) }),
            USED_AS => {
                let flags = cursor.byte()?;
                Some(Said::Use { rank: rank_of(flags), metered: has(flags, 1) })
            }
            LIMIT => {
                let rate = Bitrate::from_bps(cursor.number()?);
                Some(Said::Limit { rate: (rate > Bitrate::default()).then_some(rate) })
            }
            _ => {
                cursor.rest();
                None
            }
        })
    }
}

/// The flags of a path's use. A peer that does not know `secondary` uses it as a primary.
fn use_bits(rank: PathRank, metered: bool) -> u8 {
    let (backup, secondary) = (rank == PathRank::Backup, rank == PathRank::Secondary);
    bit(backup, 0) | bit(metered, 1) | bit(secondary, 2)
}

fn rank_of(flags: u8) -> PathRank {
    match (has(flags, 0), has(flags, 2)) {
        (true, _) => PathRank::Backup,
        (false, true) => PathRank::Secondary,
        (false, false) => PathRank::Primary,
    }
}

/// A weight less 1, in four bits.
fn weight_bits(weight: Weight, place: u8) -> u8 {
    (weight.get() - 1) << place
}

fn weight_of(bits: u8, place: u8) -> Weight {
    Weight::new((bits >> place & 0xf) + 1)
}

fn bit(set: bool, place: u8) -> u8 {
    u8::from(set) << place
}

fn has(bits: u8, place: u8) -> bool {
    bits >> place & 1 != 0
}

const DESTINATION_NAME: u8 = 1;
const DESTINATION_V4: u8 = 4;
const DESTINATION_V6: u8 = 6;
/// Beside the kinds of destinations.
const TARGET_BINDING: u8 = 2;
const STALLED: u64 = 1;
const POLICED: u64 = 2;
const USED_AS: u64 = 3;
const LIMIT: u64 = 4;
/// RFC 1035 section 2.3.4, without the root.
const HOST_NAME_MAX: usize = 253;
