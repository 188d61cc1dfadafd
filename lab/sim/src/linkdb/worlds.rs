//! Worlds that differ from the generator's in one respect.

use std::time::Duration;

use polyrail_emulator::rail::{Cell, Handover, HandoverResult, Route, Speed, Trip};
use polyrail_model as model;
use polyrail_model::CellId;

use crate::dice::Dice;

/// What differs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum World {
    /// Nothing.
    #[default]
    Generated,
    /// Some handovers are far off the usual place.
    HeavyTails,
    /// Every second cell is left at either of two places.
    TwoPlaces,
    /// From the thirteenth trip on every third cell has a new number; shorter campaigns are the
    /// generator's.
    Renumbered,
    /// Handovers come so many seconds after a fixed place that the speed decides where.
    PlacesBySpeed,
    /// The measured signal alone decides which handovers fail; lateness weakens it a little.
    FailuresBySignal,
    /// The lateness alone does.
    FailuresByLateness,
    /// Chance alone does, at the cell's rate.
    FailuresByChance,
}

impl World {
    /// Changes the handovers of a trip that starts at the beginning of the route.
    pub fn reshape(self, route: &Route, trip: &mut Trip, number: u64) {
        if matches!(self, Self::Generated | Self::Renumbered) {
            return;
        }
        let speed = route.speed.metres_per_second();
        let end = speed * trip.length.as_secs_f64();
        for (carrier, (own, cells)) in trip.carriers.iter_mut().zip(&route.cells).enumerate() {
            let mut before = 0.0_f64;
            own.handovers.retain_mut(|handover| {
                let Some(cell) = cells.get(handover.from as usize) else { return false };
                let seed = route.seed << 32 | (carrier as u64) << 20 | u64::from(cell.id);
                self.change(cell, handover, speed, [seed, number]);
                handover.metres = handover.metres.max(before + 1.0);
                before = handover.metres;
                handover.at = Duration::from_secs_f64(handover.metres / speed);
                handover.metres < end
            });
        }
    }

    fn change(self, cell: &Cell, handover: &mut Handover, speed: f64, [seed, trip]: [u64; 2]) {
        let late = (handover.metres - cell.to) / cell.border.spread;
        let mut dice = Dice::new(seed ^ trip.rotate_left(48));
        match self {
            Self::Generated | Self::Renumbered => {}
            Self::HeavyTails => {
                // Tukey's h-distribution, at most half a cell away.
                let most = (cell.to - cell.from) / 2.0;
                let off = late * cell.border.spread * (TAILS * late * late / 2.0).exp();
                handover.metres = cell.to + off.clamp(-most, most);
            }
            Self::TwoPlaces => {
                if seed.is_multiple_of(2) && dice.chance(0.5) {
                    handover.metres -= SECOND_PLACE * (cell.to - cell.from);
                }
            }
            Self::PlacesBySpeed => {
                handover.metres += BY_SPEED_S * (speed - Speed::Kmh300.metres_per_second());
            }
            Self::FailuresBySignal => {
                decide(cell, handover, (cell.border.rsrp - handover.rsrp) / SIGNAL_DB);
            }
            Self::FailuresByLateness => decide(cell, handover, late),
            Self::FailuresByChance => decide(cell, handover, dice.normal()),
        }
    }

    /// The number that a cell has on a trip.
    pub fn rename(self, record: &mut model::Handover) {
        if self == Self::Renumbered && record.trip.0 >= RENUMBERED_FROM {
            record.from = renamed(record.from);
            record.to = record.to.map(renamed);
        }
    }
}

fn renamed(CellId(cell): CellId) -> CellId {
    CellId(if cell.is_multiple_of(3) { cell + RENUMBERED } else { cell })
}

/// The handover fails as often as the cell's do, where this standard normal value is greatest.
fn decide(cell: &Cell, handover: &mut Handover, value: f64) {
    let half = value * std::f64::consts::FRAC_1_SQRT_2;
    let fails = cell.border.fails_at(half, half);
    if fails != (handover.outcome != HandoverResult::Success) {
        (handover.outcome, handover.dark) = match fails {
            true => (HandoverResult::FailureHeld, Duration::from_secs(2)),
            false => (HandoverResult::Success, Duration::from_millis(50)),
        };
    }
}

/// Of 1,000 handovers five are more than six deviations away.
const TAILS: f64 = 0.2;
/// How far before the usual place the second one is, as a share of the cell.
const SECOND_PLACE: f64 = 0.3;
const BY_SPEED_S: f64 = 2.0;
/// The deviation of the generator's signal at a border: 2 dB by lateness, 3 by weakness, 2 by
/// noise.
const SIGNAL_DB: f64 = 4.123;
/// A campaign has 24 trips.
const RENUMBERED_FROM: u64 = 12;
const RENUMBERED: u64 = 1_000_000;
