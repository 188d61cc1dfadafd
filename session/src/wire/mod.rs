//! The wire: frames and their encoding, as `docs/protocol.md` specifies them.
//!
//! Decoding never panics and never allocates more than the frame is long. What a frame means is
//! the session's business; here is only its form.

mod decode;
mod encode;
mod frame;

pub use decode::{Decoder, WireError};
pub use encode::encode;
pub use frame::{
    Ack, DataMarks, Echo, Frame, Greeting, Notice, Open, RejectCode, Reset, ResetReason, Said,
    Terms, UnknownCode,
};

/// The version that stands in every header.
pub const VERSION: u8 = 1;

/// Version, type and payload length.
pub const HEADER: usize = 4;

/// The longest payload of a frame: header and payload fit into a TLS record of 16,384 bytes.
pub const PAYLOAD_MAX: usize = 16_384 - HEADER;

/// The most ranges that one ACK may state.
pub const ACK_RANGES_MAX: usize = 32;

/// The longest reason text of a REJECT or GOAWAY, in bytes.
pub const REASON_MAX: usize = 256;

/// The longest carrier name, in bytes.
pub const CARRIER_NAME_MAX: usize = 32;

/// The longest MESSAGE, header included, in bytes: it fits a packet.
pub const MESSAGE_FRAME_MAX: usize = 1_200;

/// The longest payload of a message, in bytes: [`MESSAGE_FRAME_MAX`] less the frame's own fields.
pub const MESSAGE_MAX: usize = MESSAGE_FRAME_MAX - HEADER - 18;

pub use polyrail_model::codec::NUMBER_MAX;
