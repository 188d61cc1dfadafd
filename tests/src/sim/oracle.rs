//! Forecasts by one who knows the trip, with as much noise as is wanted.

use std::time::Duration;

use polyrail_emulator::rail::{Outcome, Trip};
use polyrail_model::LinkForecast;

use crate::dice::Dice;
use crate::world::World;

/// How good the forecasts are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Oracle {
    /// The share of failures that it foresees.
    pub hits: f64,
    /// The share of successes that it takes for failures.
    pub false_alarms: f64,
    /// One deviation of its error, in seconds.
    pub error: f64,
}

impl Oracle {
    /// It knows all.
    pub const PERFECT: Self = Self { hits: 1.0, false_alarms: 0.0, error: 0.0 };

    /// About as good as POLYCORN's forecasts (6.2: 80.6 % of failures and 78.2 % of successes
    /// correct), one second of error.
    pub const NOISY: Self = Self { hits: 0.8, false_alarms: 0.2, error: 1.0 };

    /// Tells the world of a trip that has just begun all that will be foreseen: once a second,
    /// while the handover is ahead and until it is over.
    pub fn tell(self, trip: &Trip, speed: f64, world: &mut World) {
        let mut dice = Dice::new(trip.seed ^ 0x0f0e);
        let begin = world.now() - world.elapsed();
        for (number, carrier) in trip.carriers.iter().enumerate() {
            for handover in &carrier.handovers {
                let fails = handover.outcome != Outcome::Success;
                let seen = dice.chance(if fails { self.hits } else { self.false_alarms });
                let shift = self.error * dice.normal();
                if !seen {
                    continue;
                }
                let at = (handover.at.as_secs_f64() + shift).max(0.0);
                let over = handover.at + handover.dark;
                let mut tick = handover.at.saturating_sub(AHEAD).max(world.elapsed());
                while tick < over {
                    let forecast = LinkForecast {
                        fails_at: begin + Duration::from_secs_f64(at),
                        uncertainty: Duration::from_secs_f64(GPS_METRES / speed.max(1.0)),
                        permille: 300,
                        expires_at: begin + tick + EXPIRY,
                    };
                    world.foresee(tick - world.elapsed(), number, Some(forecast));
                    tick += Duration::from_secs(1);
                }
                world.foresee(over.saturating_sub(world.elapsed()), number, None);
            }
        }
    }
}

/// POLYCORN's error of GPS.
const GPS_METRES: f64 = 20.0;
/// How long before a handover it is foreseen.
const AHEAD: Duration = Duration::from_secs(8);
/// DESIGN 5: a forecast is good for three seconds.
const EXPIRY: Duration = Duration::from_secs(3);
