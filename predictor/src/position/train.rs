//! The position of a train along a track.

use std::time::Instant;

use crate::wire::Telemetry;
use polyrail_model::{Direction, RouteId};

/// The position of a train at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainPosition {
    /// The time.
    pub at: Instant,
    /// The track.
    pub route: RouteId,
    /// The direction of travel; while the train stands, the last one.
    pub direction: Direction,
    /// Metres from the beginning of the track.
    pub metres: f64,
    /// Metres per second along the direction; positioning reports at least 0.
    pub speed: f64,
    /// Standard deviation of `metres`.
    pub error: f64,
}

impl TrainPosition {
    /// The position of a telemetry received now; `None` if it is older than the clock.
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

    /// The position now at an unchanged speed.
    pub fn advanced(&self, now: Instant) -> Self {
        let time = now.saturating_duration_since(self.at).as_secs_f64();
        let metres = self.metres + self.direction.sign() * self.speed * time;
        Self { at: now, metres, ..*self }
    }
}
