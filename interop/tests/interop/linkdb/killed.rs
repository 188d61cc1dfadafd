//! The gateway is killed repeatedly while it records.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use polyrail_interop::bench::fresh_seed;
use polyrail_interop::lab::Side;
use polyrail_interop::linkdb::Announcer;
use polyrail_interop::linkdb::Rail;
use polyrail_interop::world::Plan;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use serde_json::Value;

use super::{count, events, joins, must_be_equal, wait_for_linkdb};
use crate::scenario;

/// How often the gateway is killed.
const ROUNDS: u32 = 5;
const BOUND: Duration = Duration::from_secs(50);
/// The time in each cell.
const CELL: Duration = Duration::from_millis(200);
/// The least number of handovers recorded between two kills.
const RECORDS: u64 = 8;
/// The cloud has received all if it receives none for so long.
const QUIET: Duration = Duration::from_secs(2);
const SOON: Duration = Duration::from_secs(15);
/// Flows may finish for 5 s.
const END: Duration = Duration::from_secs(10);

#[test]
fn a_killed_gateway_keeps_its_database() -> Result<()> {
    scenario(&Plan::twins().rail(Rail::default()), BOUND, |world| {
        let mut generator = Pcg64::seed_from_u64(fresh_seed("killed gateway"));
        let file = world.web.add(500_000, 23)?;
        let over = Arc::new(AtomicBool::new(false));
        let train = world.train.clone().context("no train")?;
        let told = over.clone();
        let train = std::thread::spawn(move || ride(&train, &told));
        let mut kept = 0;
        for round in 0..ROUNDS {
            let recorded = |state: &Value| count(state, "recorded") >= RECORDS;
            let state = wait_for_linkdb(world, Side::Gateway, "records", SOON, recorded)?;
            // Not always just after a handover.
            std::thread::sleep(CELL.mul_f64(generator.random_range(0.0..1.0)));
            let before = events(&state);
            ensure!(before >= kept + RECORDS, "round {round}: {state}");
            world.restart_gateway()?;
            let open = |state: &Value| state.pointer("/store/open") == Some(&Value::Bool(true));
            let state = wait_for_linkdb(world, Side::Gateway, "database", SOON, open)?;
            println!("round {round}: {before} handovers before, {} after", events(&state));
            ensure!(events(&state) >= before, "{before} handovers before: {state}");
            ensure!(state.pointer("/store/damaged") == Some(&Value::Null), "{state}");
            kept = before;
            world.wait_until_up()?;
            world.download(&file).verify(&world.lab.passenger, &file)?;
        }
        over.store(true, Ordering::Relaxed);
        train.join().ok().context("the train panicked")?;
        become_equal(world, kept)
    })
}

/// Once synchronised, the cloud has the same handovers as the gateway.
fn become_equal(world: &mut polyrail_interop::world::World, least: u64) -> Result<()> {
    let (started, mut before) = (Instant::now(), 0);
    loop {
        let received = count(&world.linkdb(Side::Cloud)?, "received");
        if received >= least && received == before {
            break;
        }
        ensure!(started.elapsed() < SOON, "{received} handovers received, still not all");
        before = received;
        std::thread::sleep(QUIET);
    }
    for daemon in [&mut world.gateway, &mut world.cloud] {
        daemon.signal(Signal::SIGTERM)?;
        daemon.wait(END)?;
    }
    println!("{} handovers on both sides", must_be_equal(world)?);
    world.restart_cloud()?;
    world.restart_gateway()?;
    world.wait_until_up()
}

/// Sends telemetry of a train that changes its cell continuously.
fn ride(train: &Announcer, over: &AtomicBool) {
    let began = Instant::now();
    let mut cell = 0;
    while !over.load(Ordering::Relaxed) {
        cell += 1;
        train.say(&joins(cell, began.elapsed().as_secs_f64() * 80.0));
        std::thread::sleep(CELL);
    }
}
