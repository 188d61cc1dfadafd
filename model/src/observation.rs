//! What is observed on board: positions, serving cells, silence of paths and what is heard on them.

use std::time::{Duration, Instant};

use crate::{CellId, HandoverOutcome, RouteId, Rsrp};

/// One thing that was observed, and when, by the monotonic clock.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// A reading of a satellite receiver.
    Fix(Fix),
    /// A position along a track that somebody else has worked out: an odometer, a replay.
    Odometer(Odometer),
    /// A modem's serving cell.
    Serving(Serving),
    /// A modem says how a handover ended.
    Reported(Reported),
    /// Nothing is acknowledged on a carrier's path, or something is again.
    Silence(Silence),
    /// Something came over a carrier's path.
    Heard(Heard),
}

/// A reading of a satellite receiver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fix {
    /// When it held.
    pub at: Instant,
    /// Its own time, in milliseconds since 1970, where it has one.
    pub time_ms: Option<u64>,
    /// Degrees north.
    pub latitude: f64,
    /// Degrees east.
    pub longitude: f64,
    /// Metres a second, where it is told.
    pub speed: Option<f64>,
    /// Degrees clockwise from north, where they are told.
    pub heading: Option<f64>,
    /// How wrong it may be in metres, one deviation, where that is told.
    pub error: Option<f64>,
}

/// A position along a known track.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Odometer {
    /// When it held.
    pub at: Instant,
    /// The track.
    pub route: RouteId,
    /// Metres from its beginning.
    pub metres: f64,
    /// Metres a second; less than zero towards the beginning.
    pub velocity: f64,
    /// How wrong it may be in metres, one deviation.
    pub error: f64,
}

/// A modem's serving cell, told when it changes and every now and then.
#[derive(Clone, Debug, PartialEq)]
pub struct Serving {
    /// When.
    pub at: Instant,
    /// The carrier.
    pub carrier: String,
    /// The cell; none while one was lost and the next not found.
    pub cell: Option<CellId>,
    /// How strong it is.
    pub rsrp: Option<Rsrp>,
}

/// A modem says how its last handover ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Reported {
    /// When it was over.
    pub at: Instant,
    /// The carrier.
    pub carrier: String,
    /// How it ended.
    pub outcome: HandoverOutcome,
    /// For how long nothing passed, where that is told.
    pub dark: Option<Duration>,
}

/// Acknowledged progress of a carrier's path.
#[derive(Clone, Debug, PartialEq)]
pub struct Silence {
    /// When this was noticed.
    pub at: Instant,
    /// The carrier.
    pub carrier: String,
    /// Since when data waits and nothing is acknowledged; none when something was acknowledged
    /// again.
    pub since: Option<Instant>,
    /// When something was acknowledged again: whether what was out when the silence began arrived
    /// after all; none where that is not known.
    pub kept: Option<bool>,
}

/// Something was acknowledged or received on a carrier's path; told at most every 250 ms while it
/// goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// When.
    pub at: Instant,
    /// The carrier.
    pub carrier: String,
}

/// The largest absolute odometer position, in metres; readings beyond it are ignored.
pub const METRES_MAX: f64 = 1e7;

/// The largest absolute velocity of a train, in metres per second; readings beyond it are ignored.
pub const VELOCITY_MAX: f64 = 170.0;
