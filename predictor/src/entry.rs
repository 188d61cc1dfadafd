//! What a writer appends to its log: handovers, pieces of tracks, and rates at places.
//!
//! A writer is a node that observes handovers, named by its certificate. A log is named by its
//! writer and a random incarnation of the writer's database file, so that a new disk begins a new
//! log. The key of an entry is its log and its sequence number there, counted from 0.

use std::time::Duration;

use polyrail_model::{Bitrate, Direction, Handover, Position, RouteId, TripId};
use serde::{Deserialize, Serialize};

use crate::creator::{creator_hash, creator_of, with_creator};

/// A log, by its number in this database file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogNumber(pub u32);

/// A writer, by its number in this database file; all its logs have the same one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriterNumber(pub u32);

impl WriterNumber {
    /// The node that owns the file.
    pub const OWN: Self = Self(0);
    /// No writer, as the own writer of a node that has no entries.
    pub const NOBODY: Self = Self(u32::MAX);
}

/// The key of an entry in this database file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryKey {
    /// Its log.
    pub log: LogNumber,
    /// Its number in the log.
    pub sequence: u64,
}

/// An entry of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A handover, and where on earth it began, if the writer knew the track there.
    Handover(Handover, Option<Spot>),
    /// A piece of a track; a later entry of the same writer replaces it.
    Track(TrackPiece),
    /// Rates and delays of a carrier along the track.
    Rates(Rates),
}

impl Entry {
    /// Names the creator of its track if it was imported before the log had a name. Returns whether
    /// it was.
    pub(crate) fn name_creator(&mut self, creator: u32) -> bool {
        let route = match self {
            Self::Handover(handover, _) => &mut handover.route,
            Self::Track(piece) => &mut piece.route,
            Self::Rates(rates) => &mut rates.route,
        };
        let is_unnamed = creator_of(*route) == creator_hash("");
        if is_unnamed {
            *route = with_creator(*route, creator);
        }
        is_unnamed
    }
}

/// A point on earth and the direction of travel there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spot {
    /// In ten-millionths of a degree, north.
    pub latitude: i32,
    /// In ten-millionths of a degree, east.
    pub longitude: i32,
    /// The course of the train in 256ths of a turn, clockwise from north.
    pub heading: u8,
}

/// The points of a track whose positions are in one stretch of [`TrackPiece::LENGTH`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrackPiece {
    /// The track.
    pub route: RouteId,
    /// The number of the stretch; negative before the beginning of the track.
    pub piece: i16,
    /// The points, by position.
    pub points: Vec<TrackPoint>,
}

impl TrackPiece {
    /// The length of a stretch in metres.
    pub const LENGTH: f64 = 5_000.0;
    /// The most points, so that a piece fits a message; a track has about one every 100 m.
    pub const POINTS_MAX: usize = 64;
}

/// A point of a track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackPoint {
    /// In ten-millionths of a degree, north.
    pub latitude: i32,
    /// In ten-millionths of a degree, east.
    pub longitude: i32,
    /// Along the track.
    pub position: Position,
    /// The number of averaged trips.
    pub weight: u8,
}

/// Rates and delays of one carrier on one trip.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rates {
    /// The trip.
    pub trip: TripId,
    /// The carrier.
    pub carrier: String,
    /// The track.
    pub route: RouteId,
    /// The direction of travel.
    pub direction: Direction,
    /// The direction of the data.
    pub link: Link,
    /// One a place, in the order of travel, at most [`Rates::SAMPLES_MAX`].
    pub samples: Vec<RateSample>,
}

impl Rates {
    /// The most samples of an entry, so that it fits a message.
    pub const SAMPLES_MAX: usize = 24;
}

/// The direction of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// From the train, as gateways measure it.
    Up,
    /// To the train, as clouds measure it.
    Down,
}

/// The means of one trip at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateSample {
    /// Along the track.
    pub position: Position,
    /// Where on earth that is, if the writer knew the track there.
    pub spot: Option<Spot>,
    /// The rate of delivery, if measured.
    pub rate: Option<Bitrate>,
    /// The delay, if measured.
    pub delay: Option<Duration>,
}

/// Longest carrier name, in bytes.
pub const CARRIER_NAME_MAX: usize = 32;
/// Longest name of a writer, in bytes, as of a certificate.
pub const WRITER_NAME_MAX: usize = 63;
/// Longest encoded entry, in bytes: with its log's name it fits a message of the session.
pub const ENTRY_BYTES_MAX: usize = 1_060;
/// Sequence numbers are below this.
pub const SEQUENCE_END: u64 = 1 << 48;

/// The name of a log in all databases.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId {
    /// The writer's name.
    pub writer: String,
    /// The random number of the writer's database file.
    pub incarnation: u64,
}
