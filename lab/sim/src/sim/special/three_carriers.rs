//! Three carriers: with two, `disconnect_redundancy` has no path for copies behind rejection.

use anyhow::Result;
use polyrail_emulator::rail::CarrierProfile;
use polyrail_emulator::results::Goal;

use crate::sim::figures::ratio;
use crate::sim::goals::{HEADLINE_SIZES, Verdicts};
use crate::sim::runs::parallel;
use crate::sim::{Contestant, Download, Engine, bulk, downloads, trips};

/// HSRSCH with `disconnect_redundancy` over that without: goodput of a bulk download in the 2 s
/// after a failed handover begins, and of downloads.
pub fn judge(first_route: u64, count: u64, threads: usize, verdicts: &mut Verdicts) -> Result<()> {
    let carriers = [CarrierProfile::A, CarrierProfile::B, CarrierProfile::A];
    let trips = trips::trips_over(&carriers, first_route, count)?;
    let pair =
        ["hsrsch+oracle", "hsrsch_bare+oracle"].map(|name| Contestant::named(name, Engine::Paper));
    let runs = parallel(2 * trips.len(), threads, |run| {
        let (trip, contestant) = (&trips[run / 2], &pair[run % 2]);
        let downloads = downloads(trip, contestant, &HEADLINE_SIZES).list;
        let goodputs: Vec<f64> = downloads.iter().map(Download::goodput).collect();
        [bulk(trip, contestant).after_failures, goodputs]
    });
    for (place, what) in ["after_failures", "downloads"].into_iter().enumerate() {
        let of = |kind: usize| -> Vec<Vec<f64>> {
            runs.iter().skip(kind).step_by(2).map(|run| run[place].clone()).collect()
        };
        let over = ratio(&of(0), &of(1));
        let name = format!("sim_three_carriers_{what}_hsrsch_over_bare");
        verdicts.sure(&name, over, Goal::None, &of(0).concat());
    }
    Ok(())
}
