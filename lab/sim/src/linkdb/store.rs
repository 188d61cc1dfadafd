//! The size of a LinkDB with many handovers, and how long opening and appending take.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use polyrail_emulator::results::{Goal, Report as Results, median};
use polyrail_model::{
    CellId, Direction, Handover, HandoverOutcome, NodeRole, Position, RouteId, Rsrp, Speed, TripId,
};
use polyrail_predictor::entry::Entry;
use polyrail_predictor::forecast::Forecaster;
use polyrail_predictor::store::{Limits, Store};
use polyrail_predictor::views::Views;

use crate::dice::Dice;

/// Fills a database with so many handovers and prints its figures; at a million they have goals.
///
/// # Errors
/// The database cannot be written in the folder for temporary files.
pub fn judge(results: &mut Results, events: u64) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("polyrail-linkdb-eval-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let judged = filled(results, &folder.join("handovers.redb"), events);
    std::fs::remove_dir_all(&folder)?;
    judged
}

fn filled(results: &mut Results, path: &Path, events: u64) -> Result<()> {
    let mut store = Store::open(path, Limits::default())?;
    let mut dice = Dice::new(1);
    let now_ms = FIRST_MS + (events / PER_TRIP + 1) * TRIP_MS;
    let mut trip = |trip: u64| -> Vec<Handover> {
        (0..PER_TRIP).map(|sequence| handover(&mut dice, trip, sequence)).collect()
    };
    let trips: Vec<u64> = (0..events / PER_TRIP).collect();
    for batch in trips.chunks(BATCH) {
        let handovers = batch.iter().flat_map(|number| trip(*number)).map(entry);
        let handovers: Vec<Entry> = handovers.collect();
        store.append_own(&handovers, now_ms)?;
    }
    let mut appended = Vec::new();
    for one in trip(events / PER_TRIP) {
        let began = Instant::now();
        ensure!(
            store.append_own(&[entry(one)], now_ms)?.fresh.len() == 1,
            "a new handover was not accepted"
        );
        appended.push(began.elapsed().as_secs_f64() * 1e3);
    }
    drop(store);
    let (mut opened, mut begun) = (Vec::new(), Vec::new());
    for _ in 0..OPENED {
        let began = Instant::now();
        let store = Store::open(path, Limits::default())?;
        opened.push(began.elapsed().as_secs_f64() * 1e3);
        begun.push(begin(&store)?);
    }
    let stats = Store::open(path, Limits::default())?.stats()?;
    // The oldest trips are evicted for the newest.
    ensure!(stats.entries + PER_TRIP >= events, "only {} handovers are kept", stats.entries);
    let size_mb = std::fs::metadata(path)?.len() as f64 / 1e6;
    let at_most = |most| if events >= 1_000_000 { Goal::AtMost(most) } else { Goal::None };
    for (name, samples, goal) in [
        ("open", &opened, at_most(OPEN_MS)),
        ("begin", &begun, Goal::None),
        ("append", &appended, Goal::None),
    ] {
        results.result(&format!("linkdb_store_{name}"), median(samples), "ms", goal, samples);
    }
    results.result("linkdb_store_events", stats.entries as f64, "", Goal::None, &[]);
    results.result("linkdb_store_size", size_mb, "MB", at_most(SIZE_MB), &[]);
    Ok(())
}

/// What a daemon does after opening its database, in milliseconds: it derives the views.
fn begin(store: &Store) -> Result<f64> {
    let began = Instant::now();
    let (views, _) = Views::of_store(store, NodeRole::Gateway)?;
    Forecaster::default().refresh(views.cells());
    ensure!(!views.cells().is_empty(), "the database has no cells");
    Ok(began.elapsed().as_secs_f64() * 1e3)
}

fn entry(handover: Handover) -> Entry {
    Entry::Handover(handover, None)
}

fn handover(dice: &mut Dice, trip: u64, sequence: u64) -> Handover {
    let (modem, number) = (sequence % 2, sequence / 2);
    let fails = dice.chance(0.06);
    let metres = (number + 1) as f64 * 800.0 + 80.0 * dice.normal();
    let cell = |number: u64| CellId(0x0c80_0000 + number * 0x10);
    Handover {
        trip: TripId((trip + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        sequence: sequence as u32,
        at_ms: FIRST_MS + trip * TRIP_MS + sequence * 4_800,
        carrier: ["modem-one", "modem-two"][modem as usize].to_owned(),
        route: RouteId(7_919),
        direction: if trip.is_multiple_of(2) { Direction::Up } else { Direction::Down },
        position: Position::from_metres(metres),
        speed: Speed::from_metres_per_second(83.3),
        from: cell(number),
        to: Some(cell(number + 1)),
        rsrp: Rsrp::from_dbm(-95.0 + 3.0 * dice.normal()),
        outcome: if fails { HandoverOutcome::TypeII } else { HandoverOutcome::Success },
        dark: Duration::from_millis(if fails { 1_500 } else { 60 }),
    }
}

/// Handovers of a trip, of both modems.
const PER_TRIP: u64 = 250;
/// Trips that are written together.
const BATCH: usize = 40;
/// The first trip, and the time between trips.
const FIRST_MS: u64 = 1_780_000_000_000;
const TRIP_MS: u64 = 1_800_000;
/// The largest size, and the longest opening.
const SIZE_MB: f64 = 500.0;
const OPEN_MS: f64 = 1_000.0;
/// How often the database is opened.
const OPENED: usize = 7;
