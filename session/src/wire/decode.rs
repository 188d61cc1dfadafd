//! Bytes to frames: a stream cut anywhere, or one whole frame.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use polyrail_model::codec::{Cursor, FieldError};
use polyrail_model::{
    Bitrate, Channel, Destination, Families, FlowId, HostName, InstanceId, PathId, SessionId,
    UserId,
};

use super::encode::{flag, kind};
use super::{
    ACK_RANGES_MAX, Ack, CARRIER_NAME_MAX, DataMarks, Echo, Frame, Greeting, HEADER, MESSAGE_MAX,
    NUMBER_MAX, Notice, Open, PAYLOAD_MAX, REASON_MAX, RejectCode, Reset, ResetReason, Said, Terms,
    VERSION,
};

/// Bytes that are not a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The header names another version.
    #[error("the peer speaks version {0} of the protocol, this is version {VERSION}")]
    Version(u8),
    /// The header names a payload that is too long.
    #[error("an oversized frame: {0} bytes, the most is {PAYLOAD_MAX}")]
    Oversized(usize),
    /// The payload ends inside a field.
    #[error("a frame is shorter than its fields")]
    Truncated,
    /// The payload goes on behind the last field.
    #[error("a frame is longer than its fields")]
    Excess,
    /// A field holds what it must not.
    #[error("a field is invalid: {0}")]
    Field(&'static str),
}

/// Cuts one path's stream of bytes into frames. Holds at most one incomplete frame.
#[derive(Debug, Default)]
pub struct Decoder {
    partial: Vec<u8>,
}

impl From<FieldError> for WireError {
    fn from(error: FieldError) -> Self {
        match error {
            FieldError::Truncated => Self::Truncated,
            FieldError::Invalid(field) => Self::Field(field),
        }
    }
}

impl Decoder {
    /// Feeds bytes and hands each complete frame to `each`; stops at the first error, after which
    /// the stream is lost.
    ///
    /// # Errors
    /// The bytes are not frames of this version.
    pub fn feed(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(Frame<'_>),
    ) -> Result<(), WireError> {
        while !self.partial.is_empty() && !bytes.is_empty() {
            let missing = match frame_length(&self.partial)? {
                Some(length) => length - self.partial.len(),
                None => HEADER - self.partial.len(),
            };
            let (head, rest) = bytes.split_at(missing.min(bytes.len()));
            self.partial.extend_from_slice(head);
            bytes = rest;
            if frame_length(&self.partial)? == Some(self.partial.len()) {
                let frame = std::mem::take(&mut self.partial);
                each(decode(frame[1], &frame[HEADER..])?);
                self.partial = frame;
                self.partial.clear();
            }
        }
        while let Some(length) = frame_length(bytes)? {
            if bytes.len() < length {
                break;
            }
            each(decode(bytes[1], &bytes[HEADER..length])?);
            bytes = &bytes[length..];
        }
        self.partial.extend_from_slice(bytes);
        if self.partial.is_empty() && self.partial.capacity() > IDLE_CAPACITY {
            self.partial = Vec::new();
        }
        Ok(())
    }
}

/// What an idle decoder may keep allocated.
const IDLE_CAPACITY: usize = 256;

/// The length of the frame that begins here, header included, once the header is there.
fn frame_length(bytes: &[u8]) -> Result<Option<usize>, WireError> {
    match bytes.first() {
        Some(&version) if version != VERSION => return Err(WireError::Version(version)),
        _ => {}
    }
    let Some(header) = bytes.get(..HEADER) else { return Ok(None) };
    let payload = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if payload > PAYLOAD_MAX {
        return Err(WireError::Oversized(payload));
    }
    Ok(Some(HEADER + payload))
}

/// Decodes one payload of a frame of this type.
fn decode(kind: u8, payload: &[u8]) -> Result<Frame<'_>, WireError> {
    let mut cursor = Cursor(payload);
    let frame = match kind {
        kind::HELLO => Frame::Hello {
            instance: InstanceId(cursor.array()?),
            greeting: greeting(&mut cursor)?,
            terms: terms(&mut cursor)?,
        },
        kind::JOIN => Frame::Join {
            session: SessionId(cursor.array()?),
            proof: cursor.array()?,
            greeting: greeting(&mut cursor)?,
        },
        kind::WELCOME => welcome(&mut cursor)?,
        kind::REJECT => Frame::Reject {
            code: cursor.number()?.try_into().unwrap_or(RejectCode::Protocol),
            reason: cursor.text(REASON_MAX)?.to_owned(),
        },
        kind::OPEN => Frame::Open { open: open(&mut cursor)?, data: cursor.rest() },
        kind::DATA => Frame::Data {
            flow: flow(&mut cursor)?,
            sequence: cursor.number()?,
            sent_us: cursor.number()?,
            marks: marks(&mut cursor)?,
            data: cursor.rest(),
        },
        kind::ACK => Frame::Ack(ack(&mut cursor)?),
        kind::WINDOW => Frame::Window {
            flow: FlowId(cursor.number()?),
            limit: cursor.number()?,
            drained: cursor.number()?,
        },
        kind::RESET => Frame::Reset(reset(&mut cursor)?),
        kind::PING => Frame::Ping { token: cursor.number()?, sent_us: cursor.number()? },
        kind::PONG => Frame::Pong {
            token: cursor.number()?,
            sent_us: cursor.number()?,
            received_us: cursor.number()?,
        },
        kind::MESSAGE => message(&mut cursor)?,
        kind::PATH_STATUS => path_status(&mut cursor)?,
        kind::GOAWAY => Frame::GoAway { reason: cursor.text(REASON_MAX)?.to_owned() },
        kind => {
            cursor.rest();
            Frame::Unknown { kind }
        }
    };
    if cursor.0.is_empty() { Ok(frame) } else { Err(WireError::Excess) }
}

fn greeting(cursor: &mut Cursor<'_>) -> Result<Greeting, WireError> {
    Ok(Greeting {
        counter: cursor.number()?,
        backup: cursor.byte()? & flag::BACKUP != 0,
        carrier: cursor.text(CARRIER_NAME_MAX)?.to_owned(),
    })
}

fn terms(cursor: &mut Cursor<'_>) -> Result<Terms, WireError> {
    Ok(Terms { window: cursor.number()?, credit: cursor.number()? })
}

fn welcome<'a>(cursor: &mut Cursor<'a>) -> Result<Frame<'a>, WireError> {
    Ok(Frame::Welcome {
        session: SessionId(cursor.array()?),
        counter: cursor.number()?,
        founder: cursor.number()?,
        families: {
            let bits = cursor.byte()?;
            Families { v4: bits & flag::V4 != 0, v6: bits & flag::V6 != 0 }
        },
        terms: terms(cursor)?,
    })
}

fn open(cursor: &mut Cursor<'_>) -> Result<Open, WireError> {
    Ok(Open {
        flow: flow(cursor)?,
        user: UserId(cursor.number()?),
        window: cursor.number()?,
        sent_us: cursor.number()?,
        marks: marks(cursor)?,
        destination: destination(cursor)?,
    })
}

fn destination(cursor: &mut Cursor<'_>) -> Result<Destination, WireError> {
    let port = |cursor: &mut Cursor<'_>| cursor.array().map(u16::from_be_bytes);
    match cursor.byte()? {
        flag::DESTINATION_V4 => {
            let ip = Ipv4Addr::from(cursor.array::<4>()?);
            Ok(Destination::Address(SocketAddr::new(ip.into(), port(cursor)?)))
        }
        flag::DESTINATION_V6 => {
            let ip = Ipv6Addr::from(cursor.array::<16>()?);
            Ok(Destination::Address(SocketAddr::new(ip.into(), port(cursor)?)))
        }
        flag::DESTINATION_NAME => {
            let name = HostName::new(cursor.text(HOST_NAME_MAX)?);
            let name = name.map_err(|_| WireError::Field("host name"))?;
            Ok(Destination::Name(name, port(cursor)?))
        }
        _ => Err(WireError::Field("destination kind")),
    }
}

const HOST_NAME_MAX: usize = 253;

fn ack(cursor: &mut Cursor<'_>) -> Result<Ack, WireError> {
    let flow = flow(cursor)?;
    let bits = cursor.byte()?;
    let (cumulative, limit, drained) = (cursor.number()?, cursor.number()?, cursor.number()?);
    let echo = (bits & flag::ECHO != 0).then(|| {
        Ok::<_, WireError>(Echo {
            path: PathId(cursor.number()?),
            sent_us: cursor.number()?,
            received_us: cursor.number()?,
        })
    });
    let echo = echo.transpose()?;
    let count = cursor.number()?;
    let count = usize::try_from(count).ok().filter(|&n| n <= ACK_RANGES_MAX);
    let mut edge = cumulative;
    let mut range = || {
        let start = edge.checked_add(cursor.number()?).filter(|&n| n <= NUMBER_MAX);
        let start = start.ok_or(WireError::Field("acknowledged range"))?;
        let length = cursor.number()?;
        let end = start.checked_add(length).filter(|&n| n <= NUMBER_MAX && length > 0);
        edge = end.ok_or(WireError::Field("acknowledged range"))?;
        Ok(start..edge)
    };
    let count = count.ok_or(WireError::Field("too many acknowledged ranges"))?;
    let ranges = (0..count).map(|_| range()).collect::<Result<_, WireError>>()?;
    let (done, dialed) = (bits & flag::DONE != 0, bits & flag::DIALED != 0);
    Ok(Ack { flow, done, dialed, cumulative, limit, drained, echo, ranges })
}

fn reset(cursor: &mut Cursor<'_>) -> Result<Reset, WireError> {
    Ok(Reset {
        flow: flow(cursor)?,
        answer: cursor.byte()? & flag::ANSWER != 0,
        reason: cursor.number()?.try_into().unwrap_or(ResetReason::Internal),
        last: cursor.number()?,
        after: cursor.number()?,
    })
}

/// What is said may be of a kind that later versions know: that is skipped.
fn path_status<'a>(cursor: &mut Cursor<'a>) -> Result<Frame<'a>, WireError> {
    let (path, serial) = (PathId(cursor.number()?), cursor.number()?);
    let said = match cursor.number()? {
        flag::STALLED => Said::Stalled,
        flag::POLICED => Said::Policed { rate: Bitrate::from_bps(cursor.number()?) },
        flag::USED_AS => Said::Backup { backup: cursor.byte()? & flag::BACKUP != 0 },
        _ => {
            cursor.rest();
            return Ok(Frame::Unknown { kind: kind::PATH_STATUS });
        }
    };
    Ok(Frame::PathStatus(Notice { path, serial, said }))
}

fn message<'a>(cursor: &mut Cursor<'a>) -> Result<Frame<'a>, WireError> {
    let channel = Channel(cursor.byte()?);
    let latest = cursor.byte()? & flag::LATEST != 0;
    let (serial, waited_us) = (cursor.number()?, cursor.number()?);
    let payload = cursor.rest();
    if payload.len() > MESSAGE_MAX {
        return Err(WireError::Field("message too long"));
    }
    Ok(Frame::Message { channel, latest, serial, waited_us, payload })
}

fn flow(cursor: &mut Cursor<'_>) -> Result<FlowId, WireError> {
    match cursor.number()? {
        0 => Err(WireError::Field("flow zero")),
        id => Ok(FlowId(id)),
    }
}

fn marks(cursor: &mut Cursor<'_>) -> Result<DataMarks, WireError> {
    let bits = cursor.byte()?;
    Ok(DataMarks { fin: bits & flag::FIN != 0, tail: bits & flag::TAIL != 0 })
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
