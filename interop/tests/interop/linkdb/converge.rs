//! The gateway has trips of its own and the cloud those of another train. The links are cut during
//! synchronisation.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use polyrail_interop::lab::Side;
use polyrail_interop::linkdb::Rail;
use polyrail_interop::linkdb::{self, Record};
use polyrail_interop::world::{Plan, World};

use super::{DAY_MS, count, days_ago, events, must_be_equal, wait_for_linkdb};
use crate::scenario;

const BOUND: Duration = Duration::from_secs(55);
/// The trips of each side, and the handovers of each trip.
const TRIPS: u64 = 12;
const HANDOVERS: u64 = 150;
const ALL: u64 = TRIPS * HANDOVERS;
const CUT: Duration = Duration::from_secs(4);
const SOON: Duration = Duration::from_secs(40);
/// Flows may finish for 5 s.
const END: Duration = Duration::from_secs(10);

#[test]
fn databases_converge_after_a_cut() -> Result<()> {
    let own = linkdb::records(trips(1, "alpha")?);
    let others = linkdb::records_of("train-2", trips(101, "beta")?);
    let rail = Rail { records: [own, others], telemetry: Vec::new() };
    scenario(&Plan::twins().rail(rail), BOUND, |world| {
        let heard = |world: &World| -> Result<[u64; 2]> {
            let [here, there] = [Side::Gateway, Side::Cloud].map(|side| world.linkdb(side));
            Ok([count(&here?, "received"), count(&there?, "received")])
        };
        let started = Instant::now();
        let mut at_cut = heard(world)?;
        while at_cut.iter().sum::<u64>() < ALL / 2 {
            ensure!(started.elapsed() < SOON, "synchronisation is too slow: {at_cut:?}");
            std::thread::sleep(super::POLL);
            at_cut = heard(world)?;
        }
        world.carriers.iter().try_for_each(|carrier| carrier.darken(&world.lab))?;
        std::thread::sleep(CUT);
        let after = heard(world)?;
        println!("{at_cut:?} of {ALL} each before the cut, {after:?} after it");
        ensure!(after.iter().any(|heard| *heard < ALL), "synchronisation ended before the cut");
        world.carriers.iter().try_for_each(|carrier| carrier.brighten(&world.lab))?;
        let cut = Instant::now();
        for side in [Side::Gateway, Side::Cloud] {
            let all = |state: &serde_json::Value| events(state) == 2 * ALL;
            let state = wait_for_linkdb(world, side, "equal databases", SOON, all)?;
            ensure!(count(&state, "received") == ALL, "{state}");
        }
        println!("equal {:?} after the cut", cut.elapsed());
        for daemon in [&mut world.gateway, &mut world.cloud] {
            daemon.signal(Signal::SIGTERM)?;
            daemon.wait(END)?;
        }
        let equal = must_be_equal(world)?;
        ensure!(equal as u64 == 2 * ALL, "{equal} handovers");
        world.restart_cloud()?;
        world.restart_gateway()?;
        world.wait_until_up()
    })
}

/// Trips with numbers from `first` and handovers of one carrier.
fn trips(first: u64, carrier: &str) -> Result<impl Iterator<Item = Record<'_>>> {
    let first_ms = days_ago(first + TRIPS)?;
    Ok((0..TRIPS * HANDOVERS).map(move |number| {
        let (trip, sequence) = (number / HANDOVERS, number % HANDOVERS);
        let fails = sequence % 9 == 3;
        Record {
            trip: first + trip,
            sequence: sequence as usize,
            at_ms: first_ms + trip * DAY_MS + sequence * 10_000,
            carrier,
            metres: sequence as f64 * 800.0 + trip as f64,
            metres_per_second: 80.0,
            from: sequence,
            to: sequence + 1,
            rsrp_dbm: Some(-100.0),
            outcome: if fails { "type2" } else { "success" },
            dark: Duration::from_millis(if fails { 2_000 } else { 40 }),
        }
    }))
}
