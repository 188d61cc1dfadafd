//! Frames to bytes, and bytes to frames: a stream cut anywhere, or one whole frame.

use polyrail_model::FlowId;
use polyrail_model::codec::{Cursor, FieldError};

use super::field::Field;
use super::frame::{DATAGRAM_MAX, Frame, HEADER, MESSAGE_MAX, Notice, PAYLOAD_MAX, VERSION};

/// Bytes that are not a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The header names another version.
    #[error("the peer speaks version {0} of the protocol, this is version {VERSION}")]
    Version(u8),
    /// The header names a payload that is too long.
    #[error("oversized frame: {0} bytes, the limit is {PAYLOAD_MAX}")]
    Oversized(usize),
    /// The payload continues after the last field.
    #[error("a frame is longer than its fields")]
    Excess,
    /// A field is incomplete or invalid.
    #[error(transparent)]
    Field(#[from] FieldError),
}

/// Encoding and decoding of all frames: by type, with their fields in order.
macro_rules! frames {
    (
        one field: $($whole_kind:literal $whole:ident),*;
        $($kind:literal $name:ident { $($field:ident),* })*
    ) => {
        /// Appends a frame's payload, and returns its type.
        fn put(frame: &Frame<'_>, out: &mut Vec<u8>) -> u8 {
            match frame {
                $(Frame::$name { $($field),* } => {
                    $($field.put(out);)*
                    $kind
                })*
                $(Frame::$whole(content) => {
                    content.put(out);
                    $whole_kind
                })*
                Frame::Window { flow, limit, drained } => {
                    [flow.0, *limit, *drained].iter().for_each(|number| number.put(out));
                    WINDOW
                }
                Frame::PathStatus(Notice { path, serial, said }) => {
                    path.put(out);
                    serial.put(out);
                    Some(*said).put(out);
                    PATH_STATUS
                }
                Frame::Unknown { kind } => *kind,
            }
        }

        /// Reads the payload of a frame of this type.
        fn take<'a>(kind: u8, cursor: &mut Cursor<'a>) -> Result<Frame<'a>, FieldError> {
            Ok(match kind {
                $($kind => Frame::$name { $($field: Field::take(cursor)?),* },)*
                $($whole_kind => Frame::$whole(Field::take(cursor)?),)*
                WINDOW => Frame::Window {
                    // Zero is the session.
                    flow: FlowId(cursor.number()?),
                    limit: cursor.number()?,
                    drained: cursor.number()?,
                },
                PATH_STATUS => {
                    let (path, serial) = (Field::take(cursor)?, cursor.number()?);
                    match Field::take(cursor)? {
                        Some(said) => Frame::PathStatus(Notice { path, serial, said }),
                        None => Frame::Unknown { kind },
                    }
                }
                _ => {
                    cursor.rest();
                    Frame::Unknown { kind }
                }
            })
        }
    };
}

frames! {
    one field: 0x07 Ack, 0x09 Reset;
    0x01 Hello { instance, greeting, terms }
    0x02 Join { session, proof, greeting }
    0x03 Welcome { session, counter, founder, offer, terms }
    0x04 Reject { code, reason }
    0x05 Open { open, data }
    0x06 Data { flow, sequence, sent_us, marks, data }
    0x0a Ping { token, sent_us }
    0x0b Pong { token, sent_us, received_us }
    0x0f GoAway { reason }
    0x10 Datagram { datagram, data }
    0x11 Message { channel, latest, serial, waited_us, payload }
}

const WINDOW: u8 = 0x08;
const PATH_STATUS: u8 = 0x0e;

/// Appends one frame. Its payload must not be longer than [`PAYLOAD_MAX`].
pub fn encode(frame: &Frame<'_>, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[VERSION, 0, 0, 0]);
    out[start + 1] = put(frame, out);
    let length = out.len() - start - HEADER;
    debug_assert!(length <= PAYLOAD_MAX, "a payload of {length} bytes");
    let length = u16::try_from(length).unwrap_or(u16::MAX);
    out[start + 2..start + HEADER].copy_from_slice(&length.to_be_bytes());
}

/// Cuts one path's stream of bytes into frames. Holds at most one incomplete frame.
#[derive(Debug, Default)]
pub struct Decoder {
    pub(super) partial: Vec<u8>,
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
        while let Some((frame, length)) = first(bytes)? {
            each(frame);
            bytes = &bytes[length..];
        }
        self.partial.extend_from_slice(bytes);
        if self.partial.is_empty() && self.partial.capacity() > IDLE_CAPACITY {
            self.partial = Vec::new();
        }
        Ok(())
    }
}

/// The frame that begins here, and its length; `None` if it is not whole.
pub(crate) fn first(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, WireError> {
    match frame_length(bytes)? {
        Some(length) if length <= bytes.len() => {
            Ok(Some((decode(bytes[1], &bytes[HEADER..length])?, length)))
        }
        _ => Ok(None),
    }
}

/// The length of the frame that begins here, header included; `None` if the header is incomplete.
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

fn decode(kind: u8, payload: &[u8]) -> Result<Frame<'_>, WireError> {
    let mut cursor = Cursor(payload);
    let frame = take(kind, &mut cursor)?;
    match frame {
        _ if !cursor.0.is_empty() => Err(WireError::Excess),
        Frame::Message { payload, .. } if payload.len() > MESSAGE_MAX => {
            Err(FieldError::Invalid("message too long").into())
        }
        Frame::Datagram { data, .. } if data.len() > DATAGRAM_MAX => {
            Err(FieldError::Invalid("datagram too long").into())
        }
        frame => Ok(frame),
    }
}

/// The largest allocation of an idle decoder, in bytes.
const IDLE_CAPACITY: usize = 256;
