//! Forecasts of an oracle that knows the trip, with a given accuracy.

use std::time::Duration;

use polyrail_emulator::rail::{HandoverResult, Trip};
use polyrail_model::LinkForecast;

use crate::dice::Dice;
use crate::world::World;

/// The accuracy of forecasts. POLYCORN 3.3, Fig. 5: the train reaches the forecast position of a
/// failure at most 2.5 s before the handover (correct), after it (late), or earlier (early).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Oracle {
    /// The share of failures with a correct forecast.
    pub correct: f64,
    /// The share with a late forecast, by up to 2.5 s. All others are early, by 2.5 to 10 s.
    pub late: f64,
    /// The share of successes with a false alarm.
    pub false_alarms: f64,
    /// The greatest lead of a correct forecast, in seconds.
    pub before: f64,
    /// The failure probability of its forecasts, in 1/1000.
    pub permille: u16,
}

impl Oracle {
    /// A perfect oracle.
    pub const PERFECT: Self =
        Self { correct: 1.0, late: 0.0, false_alarms: 0.0, before: 0.0, permille: 1_000 };

    /// As good as POLYCORN's forecasts (3.3, Fig. 6): of failures 80.6 % correct, 1.3 % late,
    /// 18.1 % early; of successes 78.2 % without a forecast.
    /// With one handover of sixteen that fails, 0.23 of its forecasts are true.
    pub const NOISY: Self =
        Self { correct: 0.806, late: 0.013, false_alarms: 0.218, before: 2.5, permille: 234 };

    /// The time from the handover to the forecast position in seconds, negative before the
    /// handover. `None`: no forecast.
    fn error(self, fails: bool, dice: &mut Dice) -> Option<f64> {
        if !fails {
            let alarm = dice.chance(self.false_alarms);
            let before = self.before * dice.unit();
            return alarm.then_some(-before);
        }
        let (kind, place) = (dice.unit(), dice.unit());
        Some(match kind {
            _ if kind < self.correct => -self.before * place,
            _ if kind < self.correct + self.late => LATE * (1.0 - place),
            _ => -EARLY[0] - (EARLY[1] - EARLY[0]) * (1.0 - place),
        })
    }

    /// Schedules all forecasts in the world of a trip that has just begun: once a second,
    /// while the handover or its predicted position is ahead, and until it is over.
    pub fn tell(self, trip: &Trip, speed: f64, world: &mut World) {
        let mut dice = Dice::new(trip.seed ^ 0x0f0e);
        let begin = world.now() - world.elapsed();
        for (number, carrier) in trip.carriers.iter().enumerate() {
            for handover in &carrier.handovers {
                let fails = handover.outcome != HandoverResult::Success;
                let Some(error) = self.error(fails, &mut dice) else { continue };
                let at = (handover.at.as_secs_f64() + error).max(0.0);
                let at = Duration::from_secs_f64(at);
                let over = handover.at + handover.dark;
                let first = at.min(handover.at).saturating_sub(AHEAD);
                let mut tick = first.max(world.elapsed());
                while tick < over {
                    let forecast = LinkForecast {
                        fails_at: begin + at,
                        ends_at: begin + at + Duration::from_secs_f64(self.before),
                        uncertainty: Duration::from_secs_f64(GPS_METRES / speed.max(1.0)),
                        permille: self.permille,
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

/// The greatest delay of a late forecast, in seconds.
const LATE: f64 = 2.5;
/// The least and the greatest lead of an early forecast, in seconds.
const EARLY: [f64; 2] = [2.5, 10.0];
/// The error of GPS in POLYCORN.
const GPS_METRES: f64 = 20.0;
/// The lead time of a forecast.
const AHEAD: Duration = Duration::from_secs(8);
/// The lifetime of a forecast, as in LinkDB: a few of the train's reports may be lost.
const EXPIRY: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;

    /// Of so many handovers: correct, late, early, and missed.
    fn counts(oracle: Oracle, fails: bool) -> [u32; 4] {
        let mut dice = Dice::new(7);
        let mut counts = [0; 4];
        for _ in 0..100_000 {
            let kind = match oracle.error(fails, &mut dice) {
                Some(error) if (-2.5..=0.0).contains(&error) => 0,
                Some(error) if (0.0..=2.5).contains(&error) => 1,
                Some(error) if (-10.0..=-2.5).contains(&error) => 2,
                Some(error) => panic!("{error}"),
                None => 3,
            };
            counts[kind] += 1;
        }
        counts
    }

    #[test]
    fn noisy_oracle_is_as_accurate_as_the_published_forecasts() {
        for (fails, published) in
            [(true, [80_600, 1_300, 18_100, 0]), (false, [21_800, 0, 0, 78_200])]
        {
            let counted = counts(Oracle::NOISY, fails);
            for (counted, published) in counted.into_iter().zip(published) {
                // Four deviations of 100,000 draws are at most 632.
                assert!(u32::abs_diff(counted, published) < 650, "{counted} {published}");
            }
        }
        assert_eq!(counts(Oracle::PERFECT, true), [100_000, 0, 0, 0]);
        assert_eq!(counts(Oracle::PERFECT, false), [0, 0, 0, 100_000]);
        assert_eq!(Oracle::PERFECT.error(true, &mut Dice::new(1)).map(f64::abs), Some(0.0));
    }
}
