//! The messages as values.

use std::time::Duration;

use polyrail_model::{CellId, Direction, Handover, Position, RouteId, Rsrp, Speed, TripId};

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

/// A message of the synchronisation between two databases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncMessage {
    /// How far the sender knows these trips.
    Known(Vec<TripKnown>),
    /// Handovers, of one trip or of several.
    Records(Vec<Handover>),
    /// A summary of all trips that the sender knows.
    Digest(SyncDigest),
}

impl SyncMessage {
    /// Maximum number of trips in one message.
    pub const KNOWN_MAX: usize = 64;

    /// Maximum number of handovers in one message.
    pub const RECORDS_MAX: usize = 12;
}

/// How far one side knows a trip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TripKnown {
    /// The trip.
    pub trip: TripId,
    /// The side has all handovers below this sequence number. [`TripKnown::LEFT_OUT`]: it cannot
    /// send the trip or does not want it.
    pub next: u32,
}

impl TripKnown {
    /// The trip is excluded from the comparison of the two sides.
    pub const LEFT_OUT: u32 = u32::MAX;
}

/// A summary of all compared trips: equal digests mean equal databases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncDigest {
    /// Number of trips.
    pub trips: u32,
    /// Sum of a hash of each trip and how far it is known, modulo 2^64.
    pub hash: u64,
    /// This digest answers one of the peer and needs no answer.
    pub answer: bool,
}
