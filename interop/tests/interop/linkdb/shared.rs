//! A cloud that shares its LinkDB with another one through PostgreSQL.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use polyrail_interop::lab::Side;
use polyrail_interop::linkdb::{self, Rail, Record};
use polyrail_interop::programs::Programs;
use polyrail_interop::world::Plan;
use polyrail_shared::scratch::{Cloud, Postgres};

use super::{days_ago, events, wait_for_linkdb};
use crate::scenario;

const BOUND: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(30);
const HANDOVERS: u64 = 60;

#[test]
fn cloud_shares_what_its_gateway_learned() -> Result<()> {
    let mut postgres = Postgres::start(&["fsync=off"])?;
    let owner = postgres.server("owner").url;
    let migrate = ["linkdb", "shared", "migrate", "--url", &owner, "--retention-days", "30"];
    for expected in ["created schema 1", "the schema has version 1 already"] {
        let output = Command::new(Programs::find()?.path("polyrail")).args(migrate).output()?;
        let words = String::from_utf8_lossy(&output.stdout);
        ensure!(words.contains(expected), "{words}{}", String::from_utf8_lossy(&output.stderr));
    }
    postgres.prepare(&["a", "b"])?;
    let folder = tempfile::tempdir()?;
    let other = Cloud::start(folder.path(), "b", postgres.server("b"))?;
    let rail = Rail { records: [linkdb::records(trip()?), String::new()], telemetry: Vec::new() };
    let plan = Plan::twins().rail(rail).cloud("linkdb.shared.url", postgres.server("a").url);
    scenario(&plan, BOUND, |world| {
        other.wait(SOON, |entries, _| entries == HANDOVERS)?;
        let is_sent = |state: &serde_json::Value| {
            state["shared"]["connected"] == true && state["shared"]["sent"] == HANDOVERS
        };
        wait_for_linkdb(world, Side::Cloud, "shared entries", SOON, is_sent)?;
        postgres.stop();
        let is_away = |state: &serde_json::Value| state["shared"]["error"].is_string();
        wait_for_linkdb(world, Side::Cloud, "error", SOON, is_away)?;
        let status = world.ask(Side::Cloud, "linkdb status")?;
        ensure!(status.contains("shared         not reachable for"), "{status}");
        // The cloud starts and serves without the server.
        world.restart_cloud()?;
        world.wait_until_up()?;
        postgres.resume()?;
        let is_back = |state: &serde_json::Value| {
            state["shared"]["connected"] == true && events(state) == HANDOVERS
        };
        wait_for_linkdb(world, Side::Cloud, "server", SOON, is_back)?;
        let log = world.cloud.log();
        let lost = log.matches("cannot use the shared LinkDB").count();
        ensure!(lost >= 1, "{log}");
        Ok(())
    })?;
    let rows = postgres.sql("SELECT count(*) FROM polyrail.entry")?;
    ensure!(rows == HANDOVERS.to_string(), "{rows} rows");
    drop(other.stop().context("the other cloud's file")?);
    Ok(())
}

fn trip() -> Result<impl Iterator<Item = Record<'static>>> {
    let at_ms = days_ago(1)?;
    Ok((0..HANDOVERS).map(move |number| Record {
        trip: 1,
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
