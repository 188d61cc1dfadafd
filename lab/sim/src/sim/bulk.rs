//! One endless download: goodput, order, and which carrier did how much.

use std::time::Duration;

use polyrail_emulator::rail::{CarrierTrip, Fluid, Handover, HandoverResult, Trip};

use super::metrics::mean;
use super::{Contestant, carrier_name, resent, world};
use crate::world::{Side, World};

/// How it went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bulk {
    /// What the passenger read.
    pub bytes: u64,
    /// In so much time.
    pub seconds: f64,
    /// Bytes that the cloud sent more than once.
    pub resent: u64,
    /// The share of the bytes that had to wait for earlier ones.
    pub late_share: f64,
    /// How long those waited, in the mean, in seconds.
    pub late_mean: f64,
    /// How long bytes waited at the 95th percentile of all, in seconds.
    pub wait_p95: f64,
    /// The bytes that crossed each carrier, with all that the tunnels add and send again.
    pub crossed: Vec<u64>,
    /// The same by each second from the start on.
    pub crossed_by: Vec<Vec<u64>>,
    /// Bytes over the carrier with less capacity, as a share of its capacity.
    pub worse_use: f64,
    /// Mbit/s in the two seconds from each failure of a handover on.
    pub after_failures: Vec<f64>,
    /// Bytes that the cloud had sent over the carrier and that were not acknowledged when each of
    /// these failures began.
    pub at_failures: Vec<u64>,
}

impl Bulk {
    /// Mbit/s.
    pub fn goodput(&self) -> f64 {
        self.bytes as f64 * 8e-6 / self.seconds
    }
}

/// A download without end, from the start to the trip's end.
pub fn bulk(trip: &Trip, contestant: &Contestant) -> Bulk {
    let mut world = world(trip, contestant);
    world.watch_arrivals();
    bulk_in(world, trip, contestant)
}

/// The same in an existing world. If it does not watch arrivals, no byte counts as late.
pub fn bulk_in(mut world: World, trip: &Trip, contestant: &Contestant) -> Bulk {
    let from = world.elapsed();
    let carriers = 0..world.carrier_count();
    let crossed = |world: &World| -> Vec<u64> {
        carriers.clone().map(|c| world.delivered(c, Side::Cloud)).collect()
    };
    let before = crossed(&world);
    let since = |now: Vec<u64>| now.iter().zip(&before).map(|(now, then)| now - then).collect();
    let Ok(flow) = world.open(1) else { return Bulk::default() };
    world.flow_mut(flow).server = (ENDLESS, false);
    let read = |world: &World| world.flow(flow).legs[0].read;
    let (mut curve, mut crossed_by) = (vec![(from, 0)], vec![since(before.clone())]);
    let failing = failing(trip, from);
    let mut at_failures = vec![0; failing.len()];
    while world.elapsed() < trip.length {
        let now = world.elapsed();
        let soon = failing.iter().zip(&mut at_failures);
        for ((carrier, _), held) in soon.filter(|((_, at), _)| (now..now + SAMPLE).contains(at)) {
            *held = outstanding(&world, *carrier);
        }
        world.run_for(SAMPLE.min(trip.length - world.elapsed()));
        curve.push((world.elapsed(), read(&world)));
        if (curve.len() - 1).is_multiple_of(SAMPLES_A_SECOND) {
            crossed_by.push(since(crossed(&world)));
        }
    }
    let seconds = (world.elapsed() - from).as_secs_f64();
    let crossed: Vec<u64> = since(crossed(&world));
    let waits = world.arrivals().map(|arrivals| arrivals.waits()).unwrap_or_default();
    Bulk {
        bytes: read(&world),
        seconds,
        resent: resent(&world, Side::Cloud),
        late_share: waits.late_share,
        late_mean: waits.late_mean,
        wait_p95: waits.p95,
        worse_use: worse_use(&contestant.trip(trip), from, &crossed),
        after_failures: after_failures(&failing, &curve),
        at_failures,
        crossed,
        crossed_by,
    }
}

fn worse_use(trip: &Trip, from: Duration, crossed: &[u64]) -> f64 {
    let (from, to) = (from.as_secs_f64(), trip.length.as_secs_f64());
    let had = trip
        .carriers
        .iter()
        .map(|carrier| Fluid::of([&carrier.links[1]].into_iter(), trip.length).volume(from, to));
    let uses = had.zip(crossed).min_by(|a, b| a.0.total_cmp(&b.0));
    uses.map_or(0.0, |(had, crossed)| *crossed as f64 / had)
}

/// The carriers and times of the failures from a time on.
fn failing(trip: &Trip, from: Duration) -> Vec<(usize, Duration)> {
    let all = trip.carriers.iter().enumerate();
    let all = all.flat_map(|(number, carrier)| {
        failures(trip, carrier).map(move |handover| (number, handover.at))
    });
    all.filter(|(_, at)| *at >= from).collect()
}

/// Bytes that the cloud has sent over a carrier and that are not acknowledged.
fn outstanding(world: &World, carrier: usize) -> u64 {
    let status = world.status(Side::Cloud);
    let paths = status.sessions.iter().flat_map(|session| &session.paths);
    let own = paths.filter(|path| path.carrier == carrier_name(carrier));
    own.map(|path| path.outstanding.0).sum()
}

fn after_failures(failing: &[(usize, Duration)], curve: &[(Duration, u64)]) -> Vec<f64> {
    let at = |time: Duration| {
        let place = curve.partition_point(|(at, _)| *at <= time).saturating_sub(1);
        curve[place].1
    };
    let bytes = failing.iter().map(|(_, begun)| at(*begun + AFTER) - at(*begun));
    bytes.map(|bytes| bytes as f64 * 8e-6 / AFTER.as_secs_f64()).collect()
}

/// The failures of a carrier from the start of workloads on whose next two seconds are on the trip.
pub(crate) fn failures<'a>(
    trip: &'a Trip,
    carrier: &'a CarrierTrip,
) -> impl Iterator<Item = &'a Handover> {
    let failed = |handover: &&Handover| handover.outcome != HandoverResult::Success;
    let within =
        |handover: &&Handover| handover.at >= super::START && handover.at + AFTER <= trip.length;
    carrier.handovers.iter().filter(failed).filter(within)
}

/// The mean over several trips of a figure of each.
pub fn mean_of(list: &[Bulk], figure: impl Fn(&Bulk) -> f64) -> f64 {
    mean(&list.iter().map(figure).collect::<Vec<_>>())
}

const ENDLESS: u64 = 1 << 40;
const SAMPLE: Duration = Duration::from_millis(50);
const SAMPLES_A_SECOND: usize = 20;
/// POLYCORN 6.2, Fig. 11a.
const AFTER: Duration = Duration::from_secs(2);
