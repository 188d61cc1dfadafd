//! LinkDB with the real daemons: forecasts that empty a carrier before its failure, databases that
//! converge despite failures of links and daemons, and unusable databases.

mod broken;
mod converge;
mod foresee;
mod journey;
mod killed;
mod outcomes;
mod shared;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use polyrail_interop::lab::Side;
use polyrail_interop::linkdb;
use polyrail_interop::world::World;
use serde_json::{Value, json};

const POLL: Duration = Duration::from_millis(20);
const DAY_MS: u64 = 86_400_000;

/// Waits until a condition holds for the state of a daemon's LinkDB.
fn wait_for_linkdb(
    world: &World,
    side: Side,
    what: &str,
    limit: Duration,
    holds: impl Fn(&Value) -> bool,
) -> Result<Value> {
    let started = Instant::now();
    loop {
        // A daemon that has just started does not answer yet.
        let state = world.linkdb(side);
        match state {
            Ok(state) if holds(&state) => return Ok(state),
            _ if started.elapsed() < limit => std::thread::sleep(POLL),
            state => {
                let state = state.with_context(|| format!("the {}", side.name()))?;
                let name = side.name();
                anyhow::bail!("{name}: no {what} within {limit:?}: {state}");
            }
        }
    }
}

/// The handovers in a daemon's database.
fn events(state: &Value) -> u64 {
    state.pointer("/store/stats/entries").and_then(Value::as_u64).unwrap_or(0)
}

/// A counter in the state of a daemon's LinkDB.
fn count(state: &Value, key: &str) -> u64 {
    state[key].as_u64().unwrap_or(0)
}

/// Checks that the databases of ended daemons contain the same handovers; returns their number.
fn must_be_equal(world: &World) -> Result<usize> {
    let export = |side| linkdb::export(&world.programs, &linkdb::database(&world.lab, side));
    let (gateway, cloud) = (export(Side::Gateway)?, export(Side::Cloud)?);
    let alone = gateway.iter().filter(|line| !cloud.contains(line)).take(3);
    let alone: Vec<&String> =
        alone.chain(cloud.iter().filter(|line| !gateway.contains(line)).take(3)).collect();
    let (there, here) = (gateway.len(), cloud.len());
    ensure!(gateway == cloud, "{there} and {here} lines, on one side alone: {alone:#?}");
    // The first line names the columns.
    Ok(there - 1)
}

/// Telemetry of a train whose modem of alpha has just joined a cell without a failure.
fn joins(cell: u64, metres: f64) -> String {
    let line = json!({
        "metres": metres,
        "metres_per_second": 80.0,
        "carriers": [{ "carrier": "alpha", "cell": cell, "rsrp_dbm": -90.0 }],
        "handovers": [{ "carrier": "alpha", "outcome": "success", "dark_s": 0.04 }],
    });
    line.to_string()
}

/// The time this many days ago, in milliseconds since 1970.
fn days_ago(days: u64) -> Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok((now.as_millis() as u64).saturating_sub(days * DAY_MS))
}
