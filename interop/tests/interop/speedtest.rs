//! `polyrail speedtest` over emulated carriers of known rates.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use polyrail_interop::carrier::Link;
use polyrail_interop::lab::Side;
use polyrail_interop::world::{Plan, World};
use serde_json::Value;

use crate::{alone, both_modes, in_both_modes};

const BOUND: Duration = Duration::from_secs(90);
const SOON: Duration = Duration::from_secs(15);
const RATES: [(&str, f64); 2] = [("fast", 20.0), ("slow", 5.0)];

fn plan() -> Plan {
    RATES
        .into_iter()
        .fold(Plan::new(), |plan, (name, mbit_s)| plan.carrier(name, Link::new(mbit_s, 40)))
}

/// Runs a test and returns its rows.
fn rows(world: &World, arguments: &str) -> Result<Vec<Value>> {
    let answer = world.operate(Side::Gateway, &format!("speedtest --json {arguments}"))?;
    let test: Value = serde_json::from_str(&answer.output).context(answer.errors)?;
    println!("{test}");
    test["rows"].as_array().cloned().context("no rows")
}

fn mbit_s(row: &Value, direction: &str) -> Result<f64> {
    let rate = row[format!("{direction}_bits_per_s")].as_f64();
    Ok(rate.with_context(|| format!("no rate: {row}"))? / 1e6)
}

/// The test's bytes on a carrier.
fn bytes(row: &Value, carrier: &str) -> u64 {
    let each = row["carriers"].as_array().into_iter().flatten();
    let own = each.filter(|one| one["carrier"] == carrier);
    let both = |one: &Value| ["sent_bytes", "received_bytes"].map(|key| one[key].as_u64());
    own.flat_map(both).flatten().sum()
}

#[test]
fn speed_test_finds_the_rates_of_carriers_and_of_the_bond() -> Result<()> {
    alone(|| {
        both_modes(&plan(), BOUND, |world| {
            let rows = rows(world, "--seconds 4")?;
            ensure!(rows.len() == 3, "{} rows", rows.len());
            for ((name, rate), row) in RATES.into_iter().zip(&rows) {
                ensure!(row["error"].is_null(), "{row}");
                for direction in ["download", "upload"] {
                    let share = mbit_s(row, direction)? / rate;
                    ensure!((0.6..1.05).contains(&share), "{share:.2} of {name}: {row}");
                }
                let rtt = |key: &str| row[key].as_f64().with_context(|| format!("no {key}"));
                ensure!((39e3..80e3).contains(&rtt("rtt_idle_us")?), "{row}");
                ensure!(rtt("rtt_download_us")? >= 39e3 && rtt("rtt_upload_us")? >= 39e3, "{row}");
                let used = bytes(row, name) as f64;
                let least = (mbit_s(row, "download")? + mbit_s(row, "upload")?) * 4e6 / 8.0;
                ensure!(used >= least * 0.9 && used < least * 1.6, "{used} bytes: {row}");
            }
            let bond = &rows[2];
            for direction in ["download", "upload"] {
                let (bond, fast) = (mbit_s(bond, direction)?, mbit_s(&rows[0], direction)?);
                let all: f64 = RATES.iter().map(|(_, rate)| rate).sum();
                let least = fast.max(0.7 * all);
                ensure!(bond > least, "{direction}: {bond} Mbit/s, {fast} Mbit/s alone");
            }
            ensure!(RATES.iter().all(|(name, _)| bytes(bond, name) > 1_000_000), "{bond}");
            Ok(())
        })
    })
}

#[test]
fn speed_test_skips_metered_carriers_and_measures_those_that_are_named() -> Result<()> {
    let plan = plan().carrier_key(0, "metered", true);
    // Also if a passenger may have a single flow.
    let (key, one) = ("session.user_flows_max", 1);
    let plan = plan.gateway(key, one).cloud(key, one);
    in_both_modes(&plan, BOUND, |world| {
        let table = world.ask(Side::Gateway, "speedtest --seconds 1")?;
        ensure!(table.contains("not tested: fast (it is metered"), "{table}");
        ensure!(table.contains("competed with passengers"), "{table}");
        ensure!(!table.contains("(bond)"), "{table}");
        let named = rows(world, "--seconds 1 --carrier fast")?;
        ensure!(named[0]["error"].is_null(), "{named:?}");
        ensure!(named.len() == 1 && bytes(&named[0], "fast") > 500_000, "{named:?}");
        ensure!(named[0]["carriers"].as_array().map(Vec::len) == Some(1), "{named:?}");
        let unknown = world.operate(Side::Gateway, "speedtest --carrier none")?;
        ensure!(!unknown.good && unknown.errors.contains("no path"), "{unknown:?}");
        let cloud = world.operate(Side::Cloud, "speedtest")?;
        ensure!(!cloud.good && cloud.errors.contains("ask the gateway"), "{cloud:?}");
        Ok(())
    })
}

#[test]
fn speed_test_names_a_path_that_goes_dark_and_ends_without_its_client() -> Result<()> {
    in_both_modes(&plan(), BOUND, |world| {
        let begun = Instant::now();
        let rows = std::thread::scope(|scope| {
            let test = scope.spawn(|| rows(world, "--seconds 3 --carrier fast"));
            let dark = (|| {
                wait_for_step(world, "download")?;
                // A second test does not start.
                let other = world.operate(Side::Gateway, "speedtest")?;
                ensure!(!other.good && other.errors.contains("a speed test runs"), "{other:?}");
                world.carriers[0].darken(&world.lab)
            })();
            let rows = test.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            dark.and(rows)
        })?;
        let error = rows[0]["error"].as_str().unwrap_or_default();
        ensure!(rows.len() == 1 && error.contains("dark"), "{rows:?}");
        ensure!(begun.elapsed() < Duration::from_secs(30), "it took {:?}", begun.elapsed());
        world.carriers[0].brighten(&world.lab)?;

        // Nobody asks about this one, as after Ctrl-C.
        let socket = Side::Gateway.admin_socket(&world.lab);
        let body = r#"{"seconds": 30, "carriers": ["slow"]}"#;
        polyrail_interop::admin::post(&socket, "/v1/speedtest", body)?;
        std::thread::sleep(Duration::from_secs(5));
        let test = polyrail_interop::admin::get(&socket, "/v1/speedtest")?;
        ensure!(test["state"] == "stopped", "{test}");
        let flows = polyrail_interop::admin::get(&socket, "/v1/flows?user=0000000000000001")?;
        ensure!(
            flows["flows"]
                .as_array()
                .is_some_and(|flows| { flows.iter().all(|flow| flow["state"] != "open") }),
            "{flows}"
        );
        let file = world.web.add(200_000, 1)?;
        world.download(&file).verify(&world.lab.passenger, &file)?;
        Ok(())
    })
}

/// Waits until the running test is in this step.
fn wait_for_step(world: &World, step: &str) -> Result<()> {
    let socket = Side::Gateway.admin_socket(&world.lab);
    let deadline = Instant::now() + SOON;
    loop {
        let test = polyrail_interop::admin::get(&socket, "/v1/speedtest");
        if test.is_ok_and(|test| test["measuring"]["step"] == step) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the step {step} does not come");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A trickle must not be taken for the rate of the carrier that it uses.
#[test]
fn carrier_that_carried_a_trickle_reaches_its_rate_within_a_second() -> Result<()> {
    alone(|| {
        both_modes(&plan(), BOUND, |world| {
            rows(world, "--seconds 3 --carrier slow")?;
            for _ in 0..3 {
                let row = rows(world, "--seconds 1 --carrier fast")?.remove(0);
                for direction in ["download", "upload"] {
                    let reached = mbit_s(&row, direction)?;
                    ensure!(reached > 10.0, "{direction}: {reached} of 20 Mbit/s: {row}");
                }
            }
            Ok(())
        })
    })
}
