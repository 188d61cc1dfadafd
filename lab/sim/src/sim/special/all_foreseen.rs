//! Both carriers are predicted to fail, and do not.
//!
//! ```text
//!              22 s         23 s         24.5 s       26 s   27 s
//!   one  -- rejected --- position ------- probed ----- over
//!   other    rejected --- position ------------- probed --- over
//!            `-- both rejected: measured ---´
//! ```
//!
//! A path is rejected from its round trip and the error of the position (1 s here) before the
//! failure until 2.5 s after it. While both are rejected, traffic uses the carrier with the later
//! failure, because it is the more likely to work until then. The seed decides which carrier that
//! is.

use std::time::Duration;

use anyhow::Result;
use polyrail_emulator::rail::{Fix, Handover, HandoverResult, Trip};
use polyrail_emulator::results::Goal;

use super::{steady, trip};
use crate::sim::goals::Verdicts;
use crate::sim::metrics::mean;
use crate::sim::runs::parallel;
use crate::sim::{Contestant, Engine, world};
use crate::world::Side;

/// The results of `polyrail full` and of HSRSCH.
pub fn judge(seeds: &[u64], threads: usize, verdicts: &mut Verdicts) -> Result<()> {
    for (end, name, engine) in
        [("", "polyrail+oracle", Engine::Full), ("_hsrsch", "hsrsch+oracle", Engine::Paper)]
    {
        let contestant = Contestant::parse(name, engine)?;
        let seen = parallel(seeds.len(), threads, |number| seen(&contestant, seeds[number]));
        let of = |place: usize| seen.iter().map(|seen| seen[place]).collect::<Vec<f64>>();
        for (place, name) in FIGURES.into_iter().enumerate() {
            let goal = Goal::AtLeast(0.9);
            let name = format!("sim_all_predicted_{name}{end}");
            verdicts.result(&name, mean(&of(place)), "x", goal, &of(place));
        }
    }
    Ok(())
}

fn seen(contestant: &Contestant, seed: u64) -> [f64; 3] {
    let latest = (seed % 2) as usize;
    let trip = foreseen(seed, latest);
    let mut world = world(&trip, contestant);
    let Ok(flow) = world.open(1) else { return [f64::NAN; 3] };
    world.flow_mut(flow).server = (1 << 40, false);
    let looks = [EARLY + SETTLED, LATE, EARLY + BEYOND].map(|at| {
        world.run_for(at.saturating_sub(world.elapsed()));
        [world.flow(flow).legs[0].read, world.delivered(latest, Side::Cloud)]
    });
    let since = |look: usize, what: usize| (looks[look][what] - looks[0][what]) as f64;
    let over_latest = |look: usize| (since(look, 1) / since(look, 0)).min(1.0);
    let seconds = (BEYOND - SETTLED).as_secs_f64();
    [since(2, 0) * 8e-6 / seconds / MBPS, over_latest(2), over_latest(1)]
}

/// Two steady carriers with handovers that the oracle forecasts to fail.
fn foreseen(seed: u64, latest: usize) -> Trip {
    let mut trip = trip(seed, &[steady(MBPS, 45), steady(MBPS, 55)]);
    // The error of the position, over this speed, is 1 s.
    trip.fixes = vec![Fix { at: Duration::ZERO, metres: 0.0, speed: 20.0 }];
    for (number, carrier) in trip.carriers.iter_mut().enumerate() {
        carrier.handovers.push(Handover {
            from: 0,
            to: 1,
            at: if number == latest { LATE } else { EARLY },
            metres: 0.0,
            rsrp: -100.0,
            outcome: HandoverResult::FailureHeld,
            dark: FORESEEN_FOR,
        });
    }
    trip
}

/// While both are rejected: bytes read, over one carrier's capacity; bytes of the carrier with the
/// later failure, over the bytes read (a carrier counts headers as well); and the same for the time
/// before that failure's position.
const FIGURES: [&str; 3] = ["share", "over_latest", "over_latest_ahead"];
const MBPS: f64 = 10.0;
const EARLY: Duration = Duration::from_secs(22);
const LATE: Duration = Duration::from_secs(23);
/// The forecast length of the outages. The links are not dark.
const FORESEEN_FOR: Duration = Duration::from_secs(4);
/// The time until packets sent earlier have arrived.
const SETTLED: Duration = Duration::from_millis(300);
/// How long after its position a failed forecast still rejects the path, before it is probed.
const BEYOND: Duration = Duration::from_millis(2_500);
