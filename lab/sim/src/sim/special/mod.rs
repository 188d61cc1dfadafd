//! Scenarios outside the rail: steady carriers, a bad carrier next to a good one, and both carriers
//! forecast to fail.

mod all_foreseen;
mod bad_carrier;

use std::time::Duration;

use anyhow::Result;
use polyrail_emulator::link::LinkSpec;
use polyrail_emulator::rail::{CarrierTrip, Trip};
use polyrail_emulator::results::Goal;
use polyrail_model::{Bitrate, Bytes};

use super::goals::Verdicts;
use super::metrics::mean;
use super::runs::parallel;
use super::{Contestant, Engine, bound, bulk, trips};

/// Prints the results of all scenarios, each with the seeds of `count` trips.
///
/// # Errors
/// A schedule cannot hold a trip.
pub fn judge(first_route: u64, count: u64, threads: usize, verdicts: &mut Verdicts) -> Result<()> {
    let polyrail = Contestant::parse("polyrail", Engine::Full)?;
    let seeds: Vec<u64> = trips::trip_seeds(first_route, count).collect();
    let shares = parallel(seeds.len(), threads, |number| {
        let trip = trip(seeds[number], &[steady(7.5, 45), steady(12.0, 55)]);
        bulk(&trip, &polyrail).bytes as f64 / bound::bulk(&trip).bytes as f64
    });
    verdicts.result("sim_bulk_of_bound_static", mean(&shares), "x", Goal::AtLeast(0.9), &shares);
    bad_carrier::judge(&seeds, threads, verdicts)?;
    all_foreseen::judge(&seeds, threads, verdicts)
}

fn trip(seed: u64, carriers: &[LinkSpec]) -> Trip {
    let carrier = |link: &LinkSpec| CarrierTrip {
        links: [link.clone(), link.clone()],
        handovers: Vec::new(),
    };
    Trip {
        seed,
        length: trips::LENGTH,
        carriers: carriers.iter().map(carrier).collect(),
        fixes: Vec::new(),
    }
}

/// A link with a queue of 250 ms.
fn steady(mbps: f64, delay_ms: u64) -> LinkSpec {
    let queue = Bytes((mbps * 1e6 / 8.0 * 0.25) as u64);
    LinkSpec::steady(Bitrate::from_mbps(mbps), Duration::from_millis(delay_ms), queue)
}
