//! Handovers as a gateway gets to know them: some time after they began, at the place where the
//! train takes itself to be then. How they ended it learns as it was: modems tell.

use std::time::Duration;

use super::dice::Dice;
use super::trip::{Fix, Handover, Trip};

/// A handover as it is seen on board.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sighting {
    /// Whose handover it is: the carrier's place in the order of the route.
    pub carrier: usize,
    /// As it truly was.
    pub handover: Handover,
    /// When it was seen.
    pub at: Duration,
    /// Where the train took itself to be then, in metres along the track.
    pub metres: f64,
}

impl Trip {
    /// The handovers of all carriers in the order in which they began, each seen up to `latest`
    /// after that. How late is drawn from the trip's seed.
    pub fn sightings(&self, latest: Duration) -> Vec<Sighting> {
        let mut all: Vec<(usize, Handover)> = Vec::new();
        for (place, carrier) in self.carriers.iter().enumerate() {
            all.extend(carrier.handovers.iter().map(|handover| (place, *handover)));
        }
        all.sort_by_key(|(_, handover)| handover.at);
        let mut dice = Dice::new(self.seed ^ LATE, 0);
        let seen = |(carrier, handover): (usize, Handover)| {
            let at = handover.at + latest.mul_f64(dice.share());
            Sighting { carrier, handover, at, metres: self.metres_seen(at) }
        };
        all.into_iter().map(seen).collect()
    }

    /// Where the train takes itself to be: the mean of its last readings, each carried on by its
    /// speed.
    pub fn metres_seen(&self, at: Duration) -> f64 {
        let read = self.fixes.partition_point(|fix| fix.at <= at);
        let last = &self.fixes[read.saturating_sub(READINGS)..read];
        let carried = |fix: &Fix| fix.metres + fix.speed * (at - fix.at).as_secs_f64();
        last.iter().map(carried).sum::<f64>() / last.len().max(1) as f64
    }
}

/// A position rests on so many readings.
const READINGS: usize = 4;
/// Apart from all else that is drawn from the seed.
const LATE: u64 = 0x11db;
