//! One trip along a route: links, telemetry, and the handovers as they truly were.

use std::time::Duration;

use polyrail_model::{Bitrate, Bytes};

use super::dice::Dice;
use super::profile::CarrierProfile;
use super::radio::weather;
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
    pub outcome: HandoverResult,
    /// For how long nothing passed.
    pub dark: Duration,
}

/// How a handover ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoverResult {
    /// Well.
    Success,
    /// The cell was lost before the next was joined; queued packets were kept (type II).
    FailureHeld,
    /// The same; queued packets were lost (type III).
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
    let windows: Vec<BlackoutWindow> = handovers
        .iter()
        .map(|handover| {
            let dropped = handover.outcome == HandoverResult::FailureDropped;
            let mode = if dropped { Blackout::Drop } else { Blackout::Hold };
            BlackoutWindow { start: handover.at, length: handover.dark, mode }
        })
        .collect();
    let radio = &profile.radio;
    let weather = weather(dice, route, radio, cells, &handovers, start, length);
    let loss = Probability::new(profile.loss * route.speed.loss_share());
    let link = |share: f64| -> Result<LinkSpec, ScheduleError> {
        let rate = |mbps: f64| Rate::Limited(Bitrate::from_mbps(mbps * share));
        let rates = weather.iter().map(|now| (now.at, rate(now.mbps)));
        let delays = weather.iter().map(|now| (now.at, now.delay));
        let spec = LinkSpec {
            rate: schedule(rates)?,
            delay: schedule(delays)?,
            queue: Bytes((radio.queue * radio.mbps * share * 1e6 / 8.0) as u64),
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

fn ending(dice: &mut Dice, fails: bool) -> (HandoverResult, Duration) {
    let (outcome, seconds) = if !fails {
        (HandoverResult::Success, dice.between(0.02, 0.1))
    } else if dice.happens(HELD) {
        // More than half exceed 1 s, a quarter 2 s (Wang et al. 5.1, as the next).
        (HandoverResult::FailureHeld, dice.lognormal(1.1, 0.886).clamp(FAILURE[0], FAILURE[1]))
    } else {
        // A quarter exceeds 5 s.
        (HandoverResult::FailureDropped, dice.lognormal(1.6, 1.69).clamp(FAILURE[0], FAILURE[1]))
    };
    (outcome, Duration::from_secs_f64(seconds))
}

/// How much of the rate down the way up has.
pub(super) const UPLINK: f64 = 0.35;
const FAILURE: [f64; 2] = [0.3, 10.0];
/// The share of failures of type II (Wang et al., MobiCom 2019, table 3, at 300 km/h).
const HELD: f64 = 0.53;
const GPS_ERROR: f64 = 8.0;
/// What a late place, a weak moment and the measurement do to the signal, in dB.
const RSRP_LATE: f64 = 2.0;
const RSRP_WEAK: f64 = 3.0;
const RSRP_NOISE: f64 = 2.0;
