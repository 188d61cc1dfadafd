//! The true handovers of a carrier on a trip.

use std::time::Duration;

use super::route::Cell;
use crate::dice::Dice;

/// A true handover.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Handover {
    /// The cell that is left.
    pub from: u32,
    /// The cell that is joined.
    pub to: u32,
    /// When it began.
    pub at: Duration,
    /// Where, in metres along the track.
    pub metres: f64,
    /// The signal of the cell that is left, in dBm.
    pub rsrp: f64,
    /// Its outcome.
    pub outcome: HandoverResult,
    /// The length of the outage.
    pub dark: Duration,
}

/// The outcome of a handover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoverResult {
    /// Success.
    Success,
    /// The cell was lost before the next was joined; queued packets were kept (type II).
    FailureHeld,
    /// The same; queued packets were lost (type III).
    FailureDropped,
}

/// Draws the handovers between two places, at a speed in metres a second.
pub(super) fn handovers(
    dice: &mut Dice,
    speed: f64,
    cells: &[Cell],
    start: f64,
    end: f64,
) -> Vec<Handover> {
    let mut handovers = Vec::new();
    for pair in cells.windows(2).filter(|_| speed > 0.0) {
        let (cell, next) = (&pair[0], &pair[1]);
        let (late, weak, noise) = (dice.normal(), dice.normal(), dice.normal());
        let metres = cell.to + late * cell.border.spread;
        let fails = cell.border.fails_at(late, weak);
        let (outcome, dark) = ending(dice, fails);
        if metres <= start || metres >= end {
            continue;
        }
        let at = Duration::from_secs_f64((metres - start) / speed);
        let rsrp = cell.border.rsrp - RSRP_LATE * late - RSRP_WEAK * weak + RSRP_NOISE * noise;
        handovers.push(Handover { from: cell.id, to: next.id, at, metres, rsrp, outcome, dark });
    }
    handovers
}

fn ending(dice: &mut Dice, fails: bool) -> (HandoverResult, Duration) {
    let (outcome, seconds) = if !fails {
        (HandoverResult::Success, dice.uniform(0.02, 0.1))
    } else if dice.chance(HELD) {
        // More than half exceed 1 s, a quarter 2 s (Wang et al. 5.1, as the next).
        (HandoverResult::FailureHeld, dice.lognormal(1.1, 0.886).clamp(FAILURE[0], FAILURE[1]))
    } else {
        // A quarter exceeds 5 s.
        (HandoverResult::FailureDropped, dice.lognormal(1.6, 1.69).clamp(FAILURE[0], FAILURE[1]))
    };
    (outcome, Duration::from_secs_f64(seconds))
}

const FAILURE: [f64; 2] = [0.3, 10.0];
/// The share of failures of type II (Wang et al., MobiCom 2019, table 3, at 300 km/h).
const HELD: f64 = 0.53;
/// The effects of a late place, a weak moment and the measurement on the signal, in dB.
const RSRP_LATE: f64 = 2.0;
const RSRP_WEAK: f64 = 3.0;
const RSRP_NOISE: f64 = 2.0;
