//! One trip along a route: links, positions and true handovers.

use std::time::Duration;

use polyrail_model::{Bitrate, Bytes};

use super::handover::{Handover, HandoverResult, handovers};
use super::profile::CarrierProfile;
use super::route::{Cell, Route};
use super::weather::weather;
use crate::dice::Dice;
use crate::link::{Blackout, BlackoutWindow, LinkSpec, Probability, Rate, Schedule, ScheduleError};

/// A trip.
#[derive(Clone, Debug, PartialEq)]
pub struct Trip {
    /// The seed that it was drawn from, together with the route's.
    pub seed: u64,
    /// How long it takes.
    pub length: Duration,
    /// The carriers, in the order of the route.
    pub carriers: Vec<CarrierTrip>,
    /// The readings of the position, once a second.
    pub fixes: Vec<Fix>,
}

/// One carrier on a trip.
#[derive(Clone, Debug, PartialEq)]
pub struct CarrierTrip {
    /// The link from the gateway to the cloud, and back.
    pub links: [LinkSpec; 2],
    /// Its handovers in their order.
    pub handovers: Vec<Handover>,
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
            let mut dice = Dice::labelled(seed ^ route.seed.rotate_left(32), 100 + number as u64);
            carriers.push(carrier(&mut dice, route, profile, cells, start, length)?);
        }
        let mut dice = Dice::labelled(seed ^ route.seed.rotate_left(32), 99);
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
    let handovers = handovers(dice, speed, cells, start, end);
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

/// A schedule whose first value holds from the beginning.
fn schedule<T: Copy>(
    mut steps: impl Iterator<Item = (Duration, T)>,
) -> Result<Schedule<T>, ScheduleError> {
    let first = steps.next().ok_or(ScheduleError::Order)?;
    Schedule::new(first.1, steps, None)
}

/// The uplink's share of the downlink's rate.
pub(super) const UPLINK: f64 = 0.35;
const GPS_ERROR: f64 = 8.0;
