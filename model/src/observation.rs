//! Observations on board: positions, serving cells, and the progress of paths.

use std::time::{Duration, Instant};

use crate::{CellId, HandoverOutcome, RouteId, Rsrp};

/// One observation with its time by the monotonic clock.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// A reading of a satellite receiver.
    Fix(Fix),
    /// A position along a track from an odometer or a replay.
    Odometer(Odometer),
    /// A modem's serving cell.
    Serving(Serving),
    /// A modem reports how a handover ended.
    Reported(Reported),
    /// A carrier's path stalls or recovers.
    Silence(Silence),
    /// A carrier's path made progress.
    Heard(Heard),
}

/// A reading of a satellite receiver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fix {
    /// The time of the reading.
    pub at: Instant,
    /// The receiver's own time in milliseconds since 1970, if known.
    pub time_ms: Option<u64>,
    /// Degrees north.
    pub latitude: f64,
    /// Degrees east.
    pub longitude: f64,
    /// Metres per second, if known.
    pub speed: Option<f64>,
    /// Degrees clockwise from north, if known.
    pub heading: Option<f64>,
    /// The standard error in metres, if known.
    pub error: Option<f64>,
}

/// A position along a known track.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Odometer {
    /// The time of the reading.
    pub at: Instant,
    /// The track.
    pub route: RouteId,
    /// Metres from its beginning.
    pub metres: f64,
    /// Metres per second; negative towards the beginning.
    pub velocity: f64,
    /// The standard error in metres.
    pub error: f64,
}

/// A modem's serving cell, reported when it changes and at intervals.
#[derive(Clone, Debug, PartialEq)]
pub struct Serving {
    /// When.
    pub at: Instant,
    /// The carrier.
    pub carrier: String,
    /// The cell; `None` between two cells.
    pub cell: Option<CellId>,
    /// The signal strength.
    pub rsrp: Option<Rsrp>,
}

/// A modem's report on its last handover.
#[derive(Clone, Debug, PartialEq)]
pub struct Reported {
    /// The end of the handover.
    pub at: Instant,
    /// The carrier.
    pub carrier: String,
    /// How it ended.
    pub outcome: HandoverOutcome,
    /// The interruption, if known.
    pub dark: Option<Duration>,
}

/// Acknowledged progress of a carrier's path.
#[derive(Clone, Debug, PartialEq)]
pub struct Silence {
    /// When the change was noticed.
    pub at: Instant,
    /// The carrier.
    pub carrier: String,
    /// Since when data waits without an acknowledgement; `None` after the next acknowledgement.
    pub since: Option<Instant>,
    /// After the next acknowledgement: whether the data in flight at the start of the silence
    /// arrived; `None` if unknown.
    pub kept: Option<bool>,
}

/// Data was acknowledged or received on a carrier's path; reported at most every 250 ms.
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
