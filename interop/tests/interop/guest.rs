//! The daemons in a guest: over netem carriers of the guest's kernel, and during clock steps.

use std::sync::PoisonError;
use std::time::Duration;

use anyhow::{Result, ensure};
use polyrail_emulator::guest;
use polyrail_interop::addresses::{Family, SERVER};
use polyrail_interop::carrier::Link;
use polyrail_interop::programs::Programs;
use polyrail_interop::world::{Plan, World};
use polyrail_interop::{matrix, privilege};

use crate::matrix::{TOLERANCE, judge};
use crate::{MACHINE, in_both_modes};

/// The time limit on the host's clock, booting included. An idle machine takes about 70 s.
const LIMIT: Duration = Duration::from_secs(10 * 60);
/// The time limit of a download on the guest's clock.
const BOUND: Duration = Duration::from_secs(20);
/// Small, as are the rates, because QEMU interprets only about 80 million instructions a second.
const SIZE: u64 = 800_000;
const DARK: Duration = Duration::from_secs(1);

#[test]
fn downloads_survive_a_blackout_of_netem_and_steps_of_the_clock() -> Result<()> {
    if guest::is_inside() {
        let plan = Plan::new()
            .proxy_alone()
            .carrier("alpha", Link::new(2.0, 40))
            .carrier("beta", Link::new(1.5, 60));
        in_both_modes(&plan, BOUND, download_through_a_blackout)?;
        return judge(matrix::run_clock_rows(&matrix::clock_rows(false), TOLERANCE)?);
    }
    if !guest::is_installed() {
        return privilege::skip_or_fail(
            "guest",
            "QEMU or the guest's kernel is missing: run `make setup`",
        );
    }
    let name = "guest::downloads_survive_a_blackout_of_netem_and_steps_of_the_clock";
    let _shared = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    println!("{}", guest::run_test(name, &Programs::find()?.with_tools(), LIMIT)?);
    Ok(())
}

fn download_through_a_blackout(world: &mut World) -> Result<()> {
    let file = world.web.add(SIZE, 1)?;
    let download = world.download_from(&SERVER.host(Family::V4), &file).socks5(world.proxy());
    let mut running = download.start(&world.lab.passenger)?;
    running.wait_for_bytes(SIZE / 4)?;
    world.carriers[0].dark_for(&world.lab, DARK)?;
    ensure!(!running.ended(), "the download ended during the blackout");
    let before = world.carried()?;
    let report = running.verify(&file)?;
    println!("MEASURED {:.2} Mbit/s over 2 and 1.5", report.mbit_s());
    for (carrier, bytes) in world.carriers.iter().zip(world.carried()?.iter().zip(before)) {
        let share = (bytes.0 - bytes.1) as f64 / SIZE as f64;
        println!("MEASURED {} carried {share:.2} after the blackout", carrier.name());
        ensure!(share > 0.1, "{} carried only {share:.2} after the blackout", carrier.name());
    }
    Ok(())
}
