//! Where a train is.

use std::time::Instant;

use crate::wire::Telemetry;
use polyrail_model::{Direction, RouteId};

/// Where a train is at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placement {
    /// When.
    pub at: Instant,
    /// The track.
    pub route: RouteId,
    /// Which way the train goes; while it stands, which way it came.
    pub direction: Direction,
    /// Metres from where the track was begun.
    pub metres: f64,
    /// Metres a second, at least 0.
    pub speed: f64,
    /// How wrong `metres` may be: one deviation, in metres.
    pub error: f64,
}

impl Placement {
    /// What a telemetry says that was received now: where the train was when it held. `None` when
    /// that is longer ago than the clock knows.
    pub fn from_telemetry(now: Instant, telemetry: &Telemetry) -> Option<Self> {
        let Telemetry { route, direction, position, speed, error, age, .. } = telemetry;
        Some(Self {
            at: now.checked_sub(*age)?,
            route: *route,
            direction: *direction,
            metres: position.metres(),
            speed: speed.metres_per_second(),
            error: error.metres().max(0.0),
        })
    }
}
