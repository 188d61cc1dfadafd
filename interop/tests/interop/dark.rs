//! Carriers that go dark in the middle of downloads.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polyrail_interop::world::Plan;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::{full, in_both_modes, seed};

const SIZE: u64 = 6_000_000;

#[test]
fn one_carrier_dark_for_5_s_at_random_moments_of_a_download() -> Result<()> {
    let rounds = if full() { 20 } else { 2 };
    let bound = Duration::from_secs(12 * rounds);
    in_both_modes(&Plan::twins(), bound, |world| {
        let mut generator = Pcg64::seed_from_u64(seed("dark moments"));
        let file = world.web.add(SIZE, 4)?;
        for round in 0..rounds {
            let carrier = generator.random_range(0..2);
            let moment = generator.random_range(0..SIZE * 9 / 10);
            let mut running = world.download(&file).start(&world.lab.passenger)?;
            running.wait_for_bytes(moment)?;
            let carrier = &world.carriers[carrier];
            carrier.dark_for(&world.lab, Duration::from_secs(5))?;
            let what = || format!("round {round}: {} dark after {moment} bytes", carrier.name());
            let report = running.verify(&file).with_context(what)?;
            println!("{}: whole after {:.2} s", what(), report.total_s);
        }
        Ok(())
    })
}

#[test]
fn all_open_flows_go_on_after_both_carriers_were_dark() -> Result<()> {
    let night = Duration::from_secs(if full() { 30 } else { 8 });
    in_both_modes(&Plan::twins(), night + Duration::from_secs(30), |world| {
        let file = world.web.add(3_000_000, 5)?;
        let mut flows = Vec::new();
        for _ in 0..4 {
            flows.push(world.download(&file).start(&world.lab.passenger)?);
        }
        for flow in &mut flows {
            flow.wait_for_bytes(200_000)?;
        }
        world.carriers.iter().try_for_each(|carrier| carrier.darken(&world.lab))?;
        std::thread::sleep(night);
        let before: Vec<u64> = flows.iter().map(|flow| flow.bytes()).collect();
        world.carriers.iter().try_for_each(|carrier| carrier.brighten(&world.lab))?;
        let returned = Instant::now();
        while flows.iter().zip(&before).all(|(flow, before)| flow.bytes() == *before) {
            ensure!(returned.elapsed() < Duration::from_secs(20), "no byte came after the return");
            std::thread::sleep(Duration::from_millis(1));
        }
        println!("first user byte {:?} after the carriers' return", returned.elapsed());
        flows.into_iter().try_for_each(|flow| flow.verify(&file).map(|_| ()))
    })
}

#[test]
fn a_modem_that_resets_and_loses_its_routes_comes_back() -> Result<()> {
    in_both_modes(&Plan::twins(), Duration::from_secs(30), |world| {
        let file = world.web.add(16_000_000, 6)?;
        let mut running = world.download(&file).start(&world.lab.passenger)?;
        running.wait_for_bytes(1_000_000)?;
        world.carriers[0].unplug(&world.lab)?;
        std::thread::sleep(Duration::from_secs(1));
        world.carriers[0].replug(&world.lab)?;
        let at_return = world.carried()?[0];
        running.verify(&file)?;
        let since = world.carried()?[0] - at_return;
        println!("{since} bytes over the carrier since its return");
        ensure!(since > 500_000, "the carrier is hardly used after its return: {since} bytes");
        Ok(())
    })
}
