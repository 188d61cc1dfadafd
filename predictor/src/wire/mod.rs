//! LinkDB's messages to the other side: values and payloads, as `docs/protocol.md` specifies them.
//!
//! The session carries a payload as an opaque message on one of two channels. Decoding never
//! panics and never allocates more than a small multiple of the payload's length.

mod codec;
mod message;
#[cfg(test)]
mod tests;

pub use crate::entry::CARRIER_NAME_MAX;
pub use message::{CarrierTelemetry, Mark, SyncMessage, Telemetry};

use polyrail_model::Channel;
use polyrail_model::codec::{Cursor, FieldError};

/// A decoded message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Position and cells of a train.
    Telemetry(Telemetry),
    /// Synchronisation of the databases.
    Sync(SyncMessage),
}

/// Encodes a telemetry for [`TELEMETRY`].
pub fn encode_telemetry(telemetry: &Telemetry) -> Vec<u8> {
    let mut payload = Vec::new();
    codec::put_telemetry(&mut payload, telemetry);
    payload
}

/// Encodes a message for [`SYNC`], whose list is within its maximum.
pub fn encode_sync(message: &SyncMessage) -> Vec<u8> {
    let mut payload = Vec::new();
    codec::put_sync(&mut payload, message);
    payload
}

/// Decodes a payload; none for a channel, form or kind of a later version.
///
/// # Errors
/// The payload is invalid.
pub fn decode(channel: Channel, payload: &[u8]) -> Result<Option<Message>, FieldError> {
    let mut cursor = Cursor(payload);
    let message = match channel {
        TELEMETRY => codec::telemetry(&mut cursor)?.map(Message::Telemetry),
        SYNC => codec::sync(&mut cursor)?.map(Message::Sync),
        _ => return Ok(None),
    };
    let is_complete = cursor.0.is_empty();
    if is_complete { Ok(message) } else { Err(FieldError::Invalid("bytes after the last field")) }
}

/// Where the train is: from a gateway, delivered as [`polyrail_model::Delivery::Latest`].
pub const TELEMETRY: Channel = Channel(1);
/// Synchronisation of the databases.
pub const SYNC: Channel = Channel(2);
/// Maximum number of carriers in one telemetry.
pub const TELEMETRY_CARRIERS_MAX: usize = 16;
