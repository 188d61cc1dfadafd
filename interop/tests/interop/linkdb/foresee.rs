//! A failure that both sides predict: with HSRSCH, the carrier is empty when it occurs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use polyrail_interop::carrier::{self, Link};
use polyrail_interop::lab::Side;
use polyrail_interop::linkdb::{self, Rail};
use polyrail_interop::report::median;
use polyrail_interop::world::{Plan, World};

use super::journey::{self, FAILURES, FIRST, HANDOVERS, Journey, SECOND, SPEED};
use super::{count, must_be_equal, wait_for_linkdb};
use crate::{alone, both_modes};

const BOUND: Duration = Duration::from_secs(58);
/// More than the carriers deliver until the second failure.
const SIZE: u64 = 32_000_000;
const MBIT_S: f64 = 5.0;
const QUEUE_KIB: u32 = 96;
/// The way to the first failure.
const APPROACH: f64 = SPEED * 6.0;
const DARK: Duration = Duration::from_millis(1_500);
const PACKET: f64 = 1_500.0;
/// How long before a failure the carrier's counters are read.
const LOOK: Duration = Duration::from_millis(150);
/// How long before a failure the daemons are asked for their forecasts.
const ASKED: Duration = Duration::from_millis(1_500);
const SOON: Duration = Duration::from_secs(15);
/// Flows may finish for 5 s.
const END: Duration = Duration::from_secs(10);
const SIDES: [Side; 2] = [Side::Gateway, Side::Cloud];

#[test]
fn both_sides_predict_a_failure_and_empty_the_carrier() -> Result<()> {
    let records = journey::learned()?;
    let link = || Link::new(MBIT_S, 40).queue_kib(QUEUE_KIB);
    let plan = Plan::new()
        .carrier("alpha", link())
        .carrier("beta", link())
        .gateway("scheduler.chain", "hsrsch")
        .cloud("scheduler.chain", "hsrsch")
        .gateway("linkdb.forecast", false)
        .cloud("linkdb.forecast", false)
        .rail(Rail { records: [records, String::new()], telemetry: Vec::new() });
    // The test measures bytes in flight at a moment, so the machine must not be busy.
    alone(|| both_modes(&plan, BOUND, predicts))
}

fn predicts(world: &mut World) -> Result<()> {
    let file = world.web.add(SIZE, 21)?;
    let mut download = world.download(&file).start(&world.lab.passenger)?;
    download.wait_for_bytes(1_000_000)?;
    let train = world.train.clone().context("no train")?;
    let journey = Journey::begin(train, FIRST - APPROACH);
    let without = fail_at(world, &journey, FIRST, false)?;
    is_recorded(world, &journey)?;
    for side in SIDES {
        let mut file = world.configurations[usize::from(side == Side::Cloud)].clone();
        file.set("linkdb.forecast", true);
        file.write(&side.configuration(&world.lab))?;
        world.ask(side, "reload")?;
    }
    let with = fail_at(world, &journey, SECOND, true)?;
    ensure!(!download.ended(), "the download was over too soon");
    println!("{with} bytes inside with forecasts, {without} without");
    // On a stalled machine the carrier is never full; one packet counts as empty.
    let most = (without / 10.0).max(PACKET);
    ensure!(with < most, "{with} bytes inside, without forecasts {without}");
    is_received_after_all_were_dark(world, &journey)?;
    carries_again(world, "alpha")?;
    download.verify(&file)?;
    drop(journey);
    for daemon in [&mut world.gateway, &mut world.cloud] {
        daemon.signal(Signal::SIGTERM)?;
        daemon.wait(END)?;
    }
    must_be_equal(world)?;
    let database = linkdb::database(&world.lab, Side::Cloud);
    let failed = |line: &&String| line.contains(",type");
    let failures = linkdb::export(&world.programs, &database)?.iter().filter(failed).count();
    ensure!(failures as u64 == FAILURES + 2, "{failures} failures, not {}", FAILURES + 2);
    world.restart_cloud()?;
    world.restart_gateway()?;
    world.wait_until_up()
}

/// Alpha fails at this place and then has no cell. Returns its bytes in flight just before.
fn fail_at(world: &World, journey: &Journey, metres: f64, predicted: bool) -> Result<f64> {
    let at = journey.reaches(metres);
    let wait = |before: Duration| (at - before).saturating_duration_since(Instant::now());
    ensure!(!wait(ASKED).is_zero(), "the place was reached before the test was ready");
    std::thread::sleep(wait(ASKED));
    for side in SIDES {
        for (name, fails) in [("alpha", predicted), ("beta", false)] {
            let ahead = world.predicted_failure(side, name)?;
            println!("{} predicts for {name}: {ahead:?}", side.name());
            ensure!(ahead.is_some() == fails, "{} predicts for {name}: {ahead:?}", side.name());
        }
    }
    std::thread::sleep(wait(LOOK));
    let mut looks = Vec::new();
    while looks.is_empty() || Instant::now() < at {
        let alpha = carrier::counters(&world.lab)?.into_iter().find(|one| one.carrier == "alpha");
        looks.push(alpha.context("no alpha")?.down_inside_bytes as f64);
        std::thread::sleep(Duration::from_millis(2));
    }
    world.carriers[0].darken(&world.lab)?;
    journey.alpha_has(None);
    Ok(median(&looks))
}

/// The handover at [`FIRST`] ends. Both sides record it, as a failure because no packet passed.
fn is_recorded(world: &World, journey: &Journey) -> Result<()> {
    std::thread::sleep(DARK);
    world.carriers[0].brighten(&world.lab)?;
    let (_, cell) = journey::cells(FIRST);
    journey.alpha_has(Some(cell));
    let recorded = |state: &serde_json::Value| count(state, "recorded") == 1;
    wait_for_linkdb(world, Side::Gateway, "record", SOON, recorded)?;
    let received = |state: &serde_json::Value| count(state, "received") == HANDOVERS + 1;
    wait_for_linkdb(world, Side::Cloud, "record", SOON, received).map(drop)
}

/// The handover at [`SECOND`] ends and is recorded while all carriers are dark. The cloud receives
/// it later, and both forecasts end.
fn is_received_after_all_were_dark(world: &World, journey: &Journey) -> Result<()> {
    std::thread::sleep(DARK);
    world.carriers[1].darken(&world.lab)?;
    let (_, cell) = journey::cells(SECOND);
    journey.alpha_found(cell, DARK);
    wait_for_linkdb(world, Side::Gateway, "record", SOON, |state| count(state, "recorded") == 2)?;
    std::thread::sleep(Duration::from_millis(500));
    let heard = count(&world.linkdb(Side::Cloud)?, "received");
    ensure!(heard == HANDOVERS + 1, "{heard} handovers crossed dark carriers");
    world.carriers.iter().try_for_each(|carrier| carrier.brighten(&world.lab))?;
    let received = |state: &serde_json::Value| count(state, "received") == HANDOVERS + 2;
    wait_for_linkdb(world, Side::Cloud, "record", SOON, received)?;
    for side in SIDES {
        let started = Instant::now();
        while let Some(ahead) = world.predicted_failure(side, "alpha")? {
            let name = side.name();
            ensure!(started.elapsed() < SOON, "{name} still predicts for alpha: {ahead:?}");
            std::thread::sleep(super::POLL);
        }
    }
    Ok(())
}

fn carries_again(world: &World, name: &str) -> Result<()> {
    let carried = || -> Result<u64> {
        let alpha = carrier::counters(&world.lab)?.into_iter().find(|one| one.carrier == name);
        Ok(alpha.context("no such carrier")?.down_bytes)
    };
    let (before, started) = (carried()?, Instant::now());
    while carried()? < before + 500_000 {
        ensure!(started.elapsed() < SOON, "{name} carries nothing after its handover");
        std::thread::sleep(super::POLL);
    }
    Ok(())
}
