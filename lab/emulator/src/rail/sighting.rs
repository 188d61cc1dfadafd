//! Handovers as a gateway observes them: some time after they began, at its own estimate of the
//! place at that time. Modems report the true outcome.

use std::time::Duration;

use super::handover::Handover;
use super::trip::{Fix, Trip};
use crate::dice::Dice;

/// A handover as observed on board.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sighting {
    /// The carrier's place in the order of the route.
    pub carrier: usize,
    /// The true handover.
    pub handover: Handover,
    /// When it was observed.
    pub at: Duration,
    /// The train's own estimate of its position then, in metres along the track.
    pub metres: f64,
}

impl Trip {
    /// The handovers of all carriers in the order of their beginnings, each observed up to `latest`
    /// later. The delay is drawn from the trip's seed.
    pub fn sightings(&self, latest: Duration) -> Vec<Sighting> {
        let mut all: Vec<(usize, Handover)> = Vec::new();
        for (place, carrier) in self.carriers.iter().enumerate() {
            all.extend(carrier.handovers.iter().map(|handover| (place, *handover)));
        }
        all.sort_by_key(|(_, handover)| handover.at);
        let mut dice = Dice::labelled(self.seed ^ LATE, 0);
        let seen = |(carrier, handover): (usize, Handover)| {
            let at = handover.at + latest.mul_f64(dice.unit());
            Sighting { carrier, handover, at, metres: self.metres_seen(at) }
        };
        all.into_iter().map(seen).collect()
    }

    /// The train's own estimate of its position: the mean of its last readings, each extrapolated
    /// by its speed.
    pub fn metres_seen(&self, at: Duration) -> f64 {
        let read = self.fixes.partition_point(|fix| fix.at <= at);
        let last = &self.fixes[read.saturating_sub(READINGS)..read];
        let carried = |fix: &Fix| fix.metres + fix.speed * (at - fix.at).as_secs_f64();
        last.iter().map(carried).sum::<f64>() / last.len().max(1) as f64
    }
}

/// The number of readings for a position.
const READINGS: usize = 4;
/// Keeps these draws apart from others of the seed.
const LATE: u64 = 0x11db;
