//! One trip along a route: links, telemetry, and the handovers as they truly were.

use std::time::Duration;

use polyrail_model::{Bitrate, Bytes};

use super::dice::{Dice, Wander};
use super::profile::CarrierProfile;
use super::route::{Cell, Route};
use crate::link::{Blackout, BlackoutWindow, LinkSpec, Probability, Rate, Schedule, ScheduleError};

/// A trip.
#[derive(Clone, Debug, PartialEq)]
pub struct Trip {
    /// The seed that it was drawn from, beside the route's.
    pub seed: u64,
    /// How long it takes.
    pub length: Duration,
    /// The carriers, in the order of the route.
    pub carriers: Vec<CarrierTrip>,
    /// Where the train said it was, once a second.
    pub fixes: Vec<Fix>,
}

/// What a trip makes of one carrier.
#[derive(Clone, Debug, PartialEq)]
pub struct CarrierTrip {
    /// The link from the gateway to the cloud, and back.
    pub links: [LinkSpec; 2],
    /// Its handovers in their order.
    pub handovers: Vec<Handover>,
}

/// A handover as it truly was.
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
    /// How strong the cell that is left was, in dBm.
    pub rsrp: f64,
    /// How it ended.
    pub outcome: Outcome,
    /// For how long nothing passed.
    pub dark: Duration,
}

/// How a handover ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Well.
    Success,
    /// The cell was lost before the next was joined; what was queued was kept (type II).
    FailureHeld,
    /// The same; what was queued was lost (type III).
    FailureDropped,
}

/// A reading of the position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fix {
    /// When.
    pub at: Duration,
    /// Where, in metres along the track, with GPS's error.
    pub metres: f64,
    /// How fast, in metres a second.
    pub speed: f64,
}

impl Trip {
    /// Draws a trip of at most this length, from `start` metres on.
    ///
    /// # Errors
    /// The trip is so long that a schedule cannot hold it.
    pub fn new(
        route: &Route,
        seed: u64,
        start: f64,
        length: Duration,
    ) -> Result<Self, ScheduleError> {
        let mut carriers = Vec::new();
        for (number, (profile, cells)) in route.carriers.iter().zip(&route.cells).enumerate() {
            let mut dice = Dice::new(seed ^ route.seed.rotate_left(32), 100 + number as u64);
            carriers.push(carrier(&mut dice, route, profile, cells, start, length)?);
        }
        let mut dice = Dice::new(seed ^ route.seed.rotate_left(32), 99);
        let speed = route.speed.metres_per_second();
        let fixes = (0..=length.as_secs()).map(|second| Fix {
            at: Duration::from_secs(second),
            metres: start + speed * second as f64 + GPS_ERROR * dice.normal(),
            speed,
        });
        Ok(Self { seed, length, carriers, fixes: fixes.collect() })
    }
}

fn carrier(
    dice: &mut Dice,
    route: &Route,
    profile: &CarrierProfile,
    cells: &[Cell],
    start: f64,
    length: Duration,
) -> Result<CarrierTrip, ScheduleError> {
    let speed = route.speed.metres_per_second();
    let end = start + speed * length.as_secs_f64();
    let mut handovers = Vec::new();
    for pair in cells.windows(2).filter(|_| speed > 0.0) {
        let (cell, next) = (&pair[0], &pair[1]);
        let (late, weak) = (dice.normal(), dice.normal());
        let metres = cell.to + late * cell.border.spread;
        let fails = cell.border.fails_at(late, weak);
        let (outcome, dark) = ending(dice, fails);
        if metres <= start || metres >= end {
            continue;
        }
        let at = Duration::from_secs_f64((metres - start) / speed);
        let rsrp = RSRP - 4.0 * late - 5.0 * weak;
        handovers.push(Handover { from: cell.id, to: next.id, at, metres, rsrp, outcome, dark });
    }
    let windows: Vec<BlackoutWindow> = handovers
        .iter()
        .map(|handover| {
            let dropped = handover.outcome == Outcome::FailureDropped;
            let mode = if dropped { Blackout::Drop } else { Blackout::Hold };
            BlackoutWindow { start: handover.at, length: handover.dark, mode }
        })
        .collect();
    let weather = weather(dice, route, profile, cells, &handovers, start, length);
    let loss = Probability::new(profile.loss * route.speed.loss_share());
    let link = |share: f64| -> Result<LinkSpec, ScheduleError> {
        let rate = |mbps: f64| Rate::Limited(Bitrate::from_mbps(mbps * share));
        let rates = weather.iter().map(|now| (now.at, rate(now.mbps)));
        let delays = weather.iter().map(|now| (now.at, now.delay));
        let spec = LinkSpec {
            rate: schedule(rates)?,
            delay: schedule(delays)?,
            queue: Bytes((QUEUE_SECONDS * profile.mbps[1] * share * 1e6 / 8.0) as u64),
            loss: loss.unwrap_or_default(),
            ..LinkSpec::default()
        };
        spec.with_blackouts(&windows)
    };
    Ok(CarrierTrip { links: [link(UPLINK)?, link(1.0)?], handovers })
}

/// The first value holds from the beginning.
fn schedule<T: Copy>(
    mut steps: impl Iterator<Item = (Duration, T)>,
) -> Result<Schedule<T>, ScheduleError> {
    let first = steps.next().ok_or(ScheduleError::Order)?;
    Schedule::new(first.1, steps, None)
}

fn ending(dice: &mut Dice, fails: bool) -> (Outcome, Duration) {
    let (outcome, seconds) = if !fails {
        (Outcome::Success, dice.between(0.02, 0.1))
    } else if dice.happens(0.5) {
        // More than half exceed 1 s, a quarter 2 s.
        (Outcome::FailureHeld, dice.lognormal(1.1, 0.886).clamp(FAILURE[0], FAILURE[1]))
    } else {
        // A quarter exceeds 5 s.
        (Outcome::FailureDropped, dice.lognormal(1.6, 1.69).clamp(FAILURE[0], FAILURE[1]))
    };
    (outcome, Duration::from_secs_f64(seconds))
}

/// What the radio gives for one step of time.
struct Weather {
    at: Duration,
    mbps: f64,
    delay: Duration,
}

fn weather(
    dice: &mut Dice,
    route: &Route,
    profile: &CarrierProfile,
    cells: &[Cell],
    handovers: &[Handover],
    start: f64,
    length: Duration,
) -> Vec<Weather> {
    let speed = route.speed.metres_per_second();
    let [low, median, high] = profile.mbps;
    // The quartiles of a lognormal distribution lie 1.349 deviations apart.
    let total = (high / low).ln() / 1.349;
    let fast = FAST_OF_JUMPS * profile.jumps;
    let rest = (total * total - fast * fast - QUALITY * QUALITY - SHAPE * SHAPE).max(0.04);
    let slow = rest.sqrt();
    let mut slowly = Wander::new(dice, STEP, SLOW_MEMORY);
    let mut quickly = Wander::new(dice, STEP, FAST_MEMORY);
    let mut trembling = Wander::new(dice, STEP, DELAY_MEMORY);
    let base = profile.rtt_ms[0] * BASE_OF_RTT / 2.0;
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
            let exponent = slow * slowly.next(dice) + fast * quickly.next(dice) + quality + shape;
            let mbps = (median * MARGIN * exponent.exp()).clamp(RATE[0], RATE[1]);
            let delay = base * (DELAY_SIGMA * trembling.next(dice)).exp();
            Weather {
                at: Duration::from_secs_f64(at),
                mbps,
                delay: Duration::from_secs_f64(delay / 1_000.0),
            }
        })
        .collect()
}

/// The middle of a cell is better than its edges: the logarithm of the difference, zero in the
/// mean.
fn shape(cell: &Cell, metres: f64) -> f64 {
    let place = ((metres - cell.from) / (cell.to - cell.from)).clamp(0.0, 1.0);
    let from_middle = (2.0 * place - 1.0).abs();
    2.0 * SHAPE * (0.5 - from_middle)
}

/// The radio changes every tenth of a second.
const STEP: f64 = 0.1;
const SLOW_MEMORY: f64 = 6.0;
const FAST_MEMORY: f64 = 0.35;
const DELAY_MEMORY: f64 = 1.0;
const DELAY_SIGMA: f64 = 0.15;
/// The deviation of what is fast, for each share of windows that jump.
const FAST_OF_JUMPS: f64 = 2.2;
const QUALITY: f64 = 0.55;
const SHAPE: f64 = 0.35;
/// The least round-trip time, of the loaded one at its first quartile.
const BASE_OF_RTT: f64 = 0.62;
/// A flow gets less than the link gives.
const MARGIN: f64 = 1.15;
const RATE: [f64; 2] = [0.05, 150.0];
const QUEUE_SECONDS: f64 = 0.5;
const UPLINK: f64 = 0.35;
const FAILURE: [f64; 2] = [0.3, 10.0];
const GPS_ERROR: f64 = 8.0;
const RSRP: f64 = -100.0;
