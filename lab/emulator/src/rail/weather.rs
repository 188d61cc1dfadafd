//! The weather of the radio: rate and delay of a carrier's link over a trip.

use std::time::Duration;

use super::handover::Handover;
use super::profile::Radio;
use super::random::Wander;
use super::route::{Cell, Route};
use crate::dice::Dice;

/// The link during one step of time.
pub(super) struct Weather {
    pub at: Duration,
    pub mbps: f64,
    /// One way.
    pub delay: Duration,
}

/// Draws the weather of one carrier's trip.
pub(super) fn weather(
    dice: &mut Dice,
    route: &Route,
    radio: &Radio,
    cells: &[Cell],
    handovers: &[Handover],
    start: f64,
    length: Duration,
) -> Vec<Weather> {
    let speed = route.speed.metres_per_second();
    let scale = route.speed.rate_share();
    let slow = (1.0 - radio.fast.powi(2) - QUALITY.powi(2) - SHAPE.powi(2)).max(0.0).sqrt();
    let mut slowly = Wander::new(dice, STEP, SLOW_MEMORY);
    let mut quickly = Wander::new(dice, STEP, radio.fast_memory);
    let mut trembling = Wander::new(dice, STEP, radio.rtt_memory);
    let steps = (length.as_secs_f64() / STEP).ceil() as u64 + 1;
    let mut passed = 0;
    (0..steps)
        .map(|step| {
            let at = STEP * step as f64;
            let metres = start + speed * at;
            while handovers.get(passed).is_some_and(|handover| handover.at.as_secs_f64() <= at) {
                passed += 1;
            }
            let cell = match passed.checked_sub(1).and_then(|last| handovers.get(last)) {
                Some(last) => cells.get(last.to as usize),
                None => cells.iter().find(|cell| metres < cell.to),
            };
            let (quality, shape) =
                cell.map_or((0.0, 0.0), |cell| (cell.quality, shape(cell, metres)));
            let deviations = slow * slowly.next(dice)
                + radio.fast * quickly.next(dice)
                + QUALITY * quality
                + SHAPE * shape;
            let rtt_ms = radio.rtt_ms * (radio.rtt_sigma * trembling.next(dice)).exp();
            Weather {
                at: Duration::from_secs_f64(at),
                mbps: rate(radio, deviations, scale),
                delay: Duration::from_secs_f64(rtt_ms / 2_000.0),
            }
        })
        .collect()
}

/// The rate at so many deviations from the median.
fn rate(radio: &Radio, deviations: f64, scale: f64) -> f64 {
    let [below, above] = radio.sigma;
    let sigma = if deviations < 0.0 { below } else { above };
    (radio.mbps * scale * (sigma * deviations).exp()).clamp(RATE[0], RATE[1])
}

/// The middle of a cell is better than its edges: from -1.7 to 1.7, with a mean of zero and a
/// deviation of one.
fn shape(cell: &Cell, metres: f64) -> f64 {
    let place = ((metres - cell.from) / (cell.to - cell.from)).clamp(0.0, 1.0);
    let from_middle = (2.0 * place - 1.0).abs();
    3.0_f64.sqrt() * (1.0 - 2.0 * from_middle)
}

/// The step of the radio's changes, in seconds.
const STEP: f64 = 0.1;
const SLOW_MEMORY: f64 = 6.0;
/// The weights of the cell and of the place in it.
const QUALITY: f64 = 0.4;
const SHAPE: f64 = 0.2;
const RATE: [f64; 2] = [0.05, 150.0];
