//! LinkDB's messages to the other side: values and payloads, as `docs/protocol.md` specifies them.
//!
//! The session carries a payload as an opaque message on one of two channels. Decoding never
//! panics and never allocates more than a small multiple of the payload's length.

mod codec;
#[cfg(test)]
mod tests;

pub use crate::entry::CARRIER_NAME_MAX;
pub use codec::{encode_sync, encode_telemetry};

use std::time::Duration;

use polyrail_model::codec::{Cursor, FieldError};
use polyrail_model::{CellId, Channel, Direction, Position, RouteId, Rsrp, Speed, TripId};

use crate::entry::{Entry, LogId};

/// Position of a train and cells of its modems, as a gateway reports them to its cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Telemetry {
    /// The trip.
    pub trip: TripId,
    /// The track.
    pub route: RouteId,
    /// The direction of travel.
    pub direction: Direction,
    /// Position `age` ago.
    pub position: Position,
    /// Speed.
    pub speed: Speed,
    /// Standard deviation of the position, in tenths of a metre.
    pub error: Position,
    /// Age of the position.
    pub age: Duration,
    /// The modems.
    pub carriers: Vec<CarrierTelemetry>,
}

/// State of one carrier's modem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarrierTelemetry {
    /// The carrier's name, at most 32 bytes.
    pub carrier: String,
    /// The serving cell; none between the loss of one and the next.
    pub cell: Option<CellId>,
    /// Its signal, if known.
    pub rsrp: Option<Rsrp>,
}

/// A message of the replication between two databases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncMessage {
    /// What the sender knows of logs.
    Marks {
        /// The last page of the sender's first list.
        end: bool,
        /// The sender has received the last page of the peer's list.
        heard: bool,
        /// At most [`SyncMessage::MARKS_MAX`].
        marks: Vec<Mark>,
    },
    /// Entries of a log.
    Entries {
        /// The log.
        log: LogId,
        /// Entries below this were purged.
        floor: u64,
        /// The receiver must know everything below this.
        first: u64,
        /// It knows everything below this afterwards.
        end: u64,
        /// Entries and their sequence numbers, ascending.
        entries: Vec<(u64, Entry)>,
    },
    /// A message of an earlier version.
    Older,
}

impl SyncMessage {
    /// Maximum number of marks in one message.
    pub const MARKS_MAX: usize = 12;

    /// Maximum number of entries in one message.
    pub const ENTRIES_MAX: usize = 64;

    /// Bytes for entries in one message, with their sequence numbers and lengths.
    pub const ENTRIES_BYTES: usize = 1_070;
}

/// What a node knows of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The log.
    pub log: LogId,
    /// Entries below this were purged.
    pub floor: u64,
    /// Everything below this is known.
    pub next: u64,
}

/// A decoded message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Position and cells of a train.
    Telemetry(Telemetry),
    /// Synchronisation of the databases.
    Sync(SyncMessage),
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
