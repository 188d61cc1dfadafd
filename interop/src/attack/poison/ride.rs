//! The victim's first trip over the line, and the forecasts of both sides on it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use super::line::{SPEED, telemetry};
use crate::admin;
use crate::configuration::GATEWAY_NAME;
use crate::lab::Side;
use crate::report::median;
use crate::world::World;

/// The carrier and the cell of a forecast, and the side that made it.
pub(super) type Place = (&'static str, String, u64);

/// Where each forecast expects the failure, in metres of the line.
pub(super) type Forecasts = BTreeMap<Place, f64>;

/// Drives the world's gateway along the line for this many metres.
pub(super) fn ride(world: &World, length: f64) -> Result<Forecasts> {
    let train = world.train.as_ref().context("no telemetry")?;
    let began = Instant::now();
    let metres = || START + began.elapsed().as_secs_f64() * SPEED;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for tick in 0.. {
                let at = began + TICK * tick;
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
                if over.load(Ordering::Relaxed) {
                    return;
                }
                train.say(&telemetry(metres()));
            }
        });
        let mut seen: BTreeMap<Place, Vec<f64>> = BTreeMap::new();
        let (mut asked, mut busy) = (0_u32, 0_u32);
        while metres() < START + length {
            for side in [Side::Gateway, Side::Cloud] {
                asked += 1;
                let Some(told) = forecasts(world, side) else {
                    busy += 1;
                    continue;
                };
                for (carrier, cell, ahead) in told {
                    let at = metres() + ahead * SPEED;
                    seen.entry((side.name(), carrier, cell)).or_default().push(at);
                }
            }
            std::thread::sleep(LOOK);
        }
        over.store(true, Ordering::Relaxed);
        println!("{busy} of {asked} questions had no answer in a second");
        Ok(seen.into_iter().map(|(place, at)| (place, median(&at))).collect())
    })
}

/// The forecasts of a side for the world's gateway: carrier, cell, and seconds ahead. `None` if its
/// LinkDB is too busy to answer.
fn forecasts(world: &World, side: Side) -> Option<Vec<(String, u64, f64)>> {
    let state = admin::get(&side.admin_socket(&world.lab), "/v1/linkdb").ok()?;
    let trips = state["trips"].as_array()?;
    let own = trips.iter().filter(|trip| side == Side::Gateway || trip["gateway"] == GATEWAY_NAME);
    let carriers = own.filter_map(|trip| trip["carriers"].as_array()).flatten();
    let forecast = |one: &Value| {
        let carrier = one["carrier"].as_str()?.to_owned();
        Some((carrier, one["cell"].as_u64()?, one["fails_in_s"].as_f64()?))
    };
    Some(carriers.filter_map(forecast).collect())
}

/// Where the trip begins, in metres of the line.
const START: f64 = 1_000.0;
/// The interval of telemetry.
const TICK: Duration = Duration::from_millis(200);
/// The interval at which both sides are asked.
const LOOK: Duration = Duration::from_millis(100);
