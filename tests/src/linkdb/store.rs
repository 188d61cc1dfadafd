//! How large a LinkDB gets, and how long its operations take.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use polyrail_emulator::results::{Goal, Report as Results, median};
use polyrail_model::{
    CellId, Direction, Handover, HandoverOutcome, Position, RouteId, Rsrp, Speed, TripId,
};
use polyrail_predictor::store::{Limits, Store};

use crate::dice::Dice;

/// Fills a database with so many handovers and prints its figures.
///
/// # Errors
/// The database cannot be made in the folder for temporary files.
pub fn judge(results: &mut Results, events: u64) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("polyrail-linkdb-eval-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let judged = filled(results, &folder.join("linkdb.redb"), events);
    std::fs::remove_dir_all(&folder)?;
    judged
}

fn filled(results: &mut Results, path: &std::path::Path, events: u64) -> Result<()> {
    let mut store = Store::open(path, Limits::default())?;
    let mut dice = Dice::new(1);
    let now_ms = FIRST_MS + events / PER_TRIP * TRIP_MS;
    let mut batch = Vec::new();
    for trip in 0..events / PER_TRIP {
        batch.extend((0..PER_TRIP as u32).map(|sequence| handover(&mut dice, trip, sequence)));
        if batch.len() >= BATCH {
            store.append(&batch, now_ms)?;
            batch.clear();
        }
    }
    store.append(&batch, now_ms)?;
    let mut single = Vec::new();
    for sequence in 0..SINGLE {
        let one = handover(&mut dice, events, sequence);
        let began = Instant::now();
        store.append(std::slice::from_ref(&one), now_ms)?;
        single.push(began.elapsed().as_secs_f64() * 1e3);
    }
    drop(store);
    let mut opened = Vec::new();
    for _ in 0..OPENED {
        let began = Instant::now();
        let store = Store::open(path, Limits::default())?;
        opened.push(began.elapsed().as_secs_f64() * 1e3);
        // The oldest trips make room for the newest.
        let stats = store.stats()?;
        ensure!(stats.events + PER_TRIP >= events, "only {} handovers are kept", stats.events);
    }
    let bytes = std::fs::metadata(path)?.len() as f64 / 1e6;
    let goals = if events >= 1_000_000 {
        [Goal::AtMost(1_000.0), Goal::AtMost(500.0)]
    } else {
        [Goal::None, Goal::None]
    };
    results.result("linkdb_store_events", events as f64, "", Goal::None, &[]);
    results.result("linkdb_store_open", median(&opened), "ms", goals[0], &opened);
    results.result("linkdb_store_size", bytes, "MB", goals[1], &[]);
    results.result("linkdb_store_append", median(&single), "ms", Goal::None, &single);
    Ok(())
}

fn handover(dice: &mut Dice, trip: u64, sequence: u32) -> Handover {
    let cell = u64::from(sequence / 2);
    let fails = dice.chance(0.06);
    Handover {
        trip: TripId(trip + 1),
        sequence,
        at_ms: FIRST_MS + trip * TRIP_MS + u64::from(sequence) * 6_000,
        carrier: ["a", "b"][sequence as usize % 2].to_owned(),
        route: RouteId(trip % 4),
        direction: if trip.is_multiple_of(2) { Direction::Up } else { Direction::Down },
        position: Position::from_metres(cell as f64 * 1_100.0 + 80.0 * dice.normal()),
        speed: Speed::from_metres_per_second(83.3),
        from: CellId(cell),
        to: Some(CellId(cell + 1)),
        rsrp: Rsrp::from_dbm(-95.0 + 3.0 * dice.normal()),
        outcome: if fails { HandoverOutcome::TypeII } else { HandoverOutcome::Success },
        dark: Duration::from_millis(if fails { 1_500 } else { 60 }),
    }
}

const PER_TRIP: u64 = 200;
/// Handovers that are written together while the database is filled.
const BATCH: usize = 10_000;
/// Handovers that are written one by one, and how often the database is opened.
const SINGLE: u32 = 100;
const OPENED: usize = 5;
/// The first trip, and how far trips are apart.
const FIRST_MS: u64 = 1_780_000_000_000;
const TRIP_MS: u64 = 1_800_000;
