//! Clouds that share a LinkDB through PostgreSQL.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polyrail_interop::admin;
use polyrail_interop::fleet::Fleet;
use polyrail_interop::lab::Side;
use polyrail_interop::linkdb::{self, Rail, Record};
use polyrail_interop::process::Process;
use polyrail_interop::programs::Programs;
use polyrail_interop::world::Plan;
use polyrail_shared::scratch::{Cloud, Postgres};
use serde_json::Value;

use super::{POLL, count, days_ago, events, wait_for_linkdb};
use crate::{beside_others, scenario};

const BOUND: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(30);
/// Generous, because other scenarios run.
const LONG: Duration = Duration::from_secs(60);
const HANDOVERS: u64 = 60;
const CLOUDS: usize = 3;
const TRAINS: usize = 20;

#[test]
fn cloud_shares_what_its_gateway_learned() -> Result<()> {
    let Some(mut postgres) = Postgres::start_or_skip(&["fsync=off"])? else { return Ok(()) };
    let owner = postgres.server("owner").url;
    let migrate = ["linkdb", "shared", "migrate", "--url", &owner, "--retention-days", "30"];
    for expected in ["created schema 1", "the schema has version 1 already"] {
        let output = Command::new(Programs::find()?.path("polyrail")).args(migrate).output()?;
        let words = String::from_utf8_lossy(&output.stdout);
        ensure!(words.contains(expected), "{words}{}", String::from_utf8_lossy(&output.stderr));
    }
    postgres.prepare(&["a", "b"])?;
    let folder = tempfile::tempdir()?;
    let rail = Rail { records: [linkdb::records(trip(1)?), String::new()], telemetry: Vec::new() };
    let plan = Plan::twins().rail(rail).cloud("linkdb.shared.url", postgres.server("a").url);
    scenario(&plan, BOUND, |world| {
        let other = Cloud::start(folder.path(), "b", postgres.server("b"))?;
        other.wait(SOON, |entries, _| entries == HANDOVERS)?;
        let is_sent = |state: &Value| {
            state["shared"]["connected"] == true && state["shared"]["sent"] == HANDOVERS
        };
        wait_for_linkdb(world, Side::Cloud, "shared entries", SOON, is_sent)?;
        postgres.stop();
        let is_away = |state: &Value| state["shared"]["error"].is_string();
        wait_for_linkdb(world, Side::Cloud, "error", SOON, is_away)?;
        let status = world.ask(Side::Cloud, "linkdb status")?;
        ensure!(status.contains("shared         not reachable for"), "{status}");
        // The cloud starts and serves without the server.
        world.restart_cloud()?;
        world.wait_until_up()?;
        postgres.resume()?;
        let is_back =
            |state: &Value| state["shared"]["connected"] == true && events(state) == HANDOVERS;
        wait_for_linkdb(world, Side::Cloud, "server", SOON, is_back)?;
        let log = world.cloud.log();
        let lost = log.matches("cannot use the shared LinkDB").count();
        ensure!(lost >= 1, "{log}");
        drop(other.stop().context("the other cloud's file")?);
        must_have_rows(&postgres, HANDOVERS)
    })
}

/// Three clouds and twenty trains. One of the clouds dies, and its trains move and learn more while
/// the server is away.
#[test]
fn fleet_learns_through_three_clouds_and_loses_nothing() -> Result<()> {
    beside_others(|| {
        let Some(mut postgres) = Postgres::start_or_skip(&["fsync=off"])? else { return Ok(()) };
        let names = ["a", "b", "c"];
        postgres.prepare(&names)?;
        let urls = names.map(|name| postgres.server(name).url);
        let mut fleet = Fleet::sharing(urls.to_vec(), TRAINS).context("setting up")?;
        play(&mut fleet, &mut postgres).inspect_err(|_| println!("{}", fleet.tails()))
    })
}

fn play(fleet: &mut Fleet, postgres: &mut Postgres) -> Result<()> {
    let begun = Instant::now();
    let reached = |step: &str| println!("{step} after {:?}", begun.elapsed());
    for train in 0..TRAINS {
        fleet.teach(train, &linkdb::records(trip(1 + train as u64)?))?;
    }
    let mut all = TRAINS as u64 * HANDOVERS;
    wait_for_all(fleet, Side::Cloud, all)?;
    reached("clouds have all");
    // Each train knows what the trains of the other clouds learned.
    wait_for_all(fleet, Side::Gateway, all)?;
    reached("trains have all");
    let preferred = |train: usize| train % CLOUDS;
    fleet.wait_for_clouds(preferred, LONG).context("before the death of a cloud")?;
    reached("trains are on the clouds that they prefer");
    let own = |fleet: &Fleet| state(fleet, Side::Cloud, 1).map(|state| count(&state, "received"));
    let before = own(fleet)?;

    fleet.clouds[0].kill();
    let moved: Vec<usize> = (0..TRAINS).step_by(CLOUDS).collect();
    fleet.slowest_to_serve(LONG).context("after the death of a cloud")?;
    reached("trains moved");
    postgres.stop();
    for &train in &moved {
        fleet.teach(train, &linkdb::records(trip(101 + train as u64)?))?;
    }
    let more = moved.len() as u64 * HANDOVERS;
    wait_for_entries(fleet, Side::Cloud, 1, all + more)?;
    let (learned, other) = (own(fleet)? - before, state(fleet, Side::Cloud, 2)?);
    ensure!(learned == more, "{learned} entries of {more} were new from trains that moved");
    ensure!(events(&other) == all && other["shared"]["connected"] == false, "{other}");

    reached("trains learned more");
    postgres.resume()?;
    all += more;
    fleet.restart_cloud(0)?;
    wait_for_all(fleet, Side::Cloud, all)?;
    must_have_rows(postgres, all)?;

    reached("clouds have all");
    postgres.sql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE application_name = 'polyrail'",
    )?;
    fleet.teach(0, &linkdb::records(trip(201)?))?;
    all += HANDOVERS;
    wait_for_all(fleet, Side::Cloud, all)?;
    wait_for_all(fleet, Side::Gateway, all)?;
    must_have_rows(postgres, all)?;
    fleet.clouds.iter_mut().for_each(Process::kill);
    let exports = (0..CLOUDS).map(|cloud| fleet.export(Side::Cloud, cloud));
    let exports: Vec<Vec<String>> = exports.collect::<Result<_>>()?;
    ensure!(exports.iter().all(|one| *one == exports[0]), "the clouds' files differ");
    Ok(())
}

fn state(fleet: &Fleet, side: Side, number: usize) -> Result<Value> {
    admin::get(&fleet.socket(side, number), "/v1/linkdb")
}

/// Waits until each daemon of a kind has exactly so many entries.
fn wait_for_all(fleet: &Fleet, side: Side, entries: u64) -> Result<()> {
    let daemons = if side == Side::Cloud { CLOUDS } else { TRAINS };
    (0..daemons).try_for_each(|number| wait_for_entries(fleet, side, number, entries))
}

/// The same for one of them.
fn wait_for_entries(fleet: &Fleet, side: Side, number: usize, entries: u64) -> Result<()> {
    let started = Instant::now();
    loop {
        let state = state(fleet, side, number);
        if state.as_ref().is_ok_and(|state| events(state) == entries) {
            return Ok(());
        }
        let name = side.name();
        ensure!(started.elapsed() < LONG, "{name} {number}, not {entries} entries: {state:?}");
        std::thread::sleep(POLL);
    }
}

/// The server has so many entries, none of them twice.
fn must_have_rows(postgres: &Postgres, entries: u64) -> Result<()> {
    let rows =
        postgres.sql("SELECT count(*), count(DISTINCT (log, sequence)) FROM polyrail.entry")?;
    ensure!(rows == format!("{entries}|{entries}"), "{rows} rows, not {entries}");
    Ok(())
}

fn trip(number: u64) -> Result<impl Iterator<Item = Record<'static>>> {
    let at_ms = days_ago(number)?;
    Ok((0..HANDOVERS).map(move |number| Record {
        trip: at_ms,
        sequence: number as usize,
        at_ms: at_ms + number * 10_000,
        carrier: "alpha",
        metres: number as f64 * 800.0,
        metres_per_second: 80.0,
        from: number,
        to: number + 1,
        rsrp_dbm: Some(-100.0),
        outcome: "success",
        dark: Duration::from_millis(40),
    }))
}
