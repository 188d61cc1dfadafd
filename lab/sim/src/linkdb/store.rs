//! How large a LinkDB gets, and how long its operations take, near the bounds of what it keeps.

mod feed;
mod full;

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use polyrail_emulator::results::{Goal, Report as Results, median};
use polyrail_predictor::forecast::{ForecastSettings, Forecaster};
use polyrail_predictor::store::{Limits, Store};
use polyrail_predictor::track::Track;

use crate::dice::Dice;
use full::{Filling, PER_TRIP};

/// Fills a database with so many handovers and all that belongs to them, and prints its figures.
/// Misses it a goal, the same is printed of handovers alone.
///
/// # Errors
/// The database cannot be made in the folder for temporary files.
pub fn judge(results: &mut Results, events: u64) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("polyrail-linkdb-eval-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let judged = both(results, &folder, events);
    std::fs::remove_dir_all(&folder)?;
    judged
}

fn both(results: &mut Results, folder: &Path, events: u64) -> Result<()> {
    let path = folder.join("full.redb");
    let full = filled(results, "linkdb_store", &path, Filling { events, full: true })?;
    let mut store = Store::open(&path, Limits::default())?;
    store.compact()?;
    drop(store);
    results.result("linkdb_store_size_compacted", megabytes(&path)?, "MB", Goal::None, &[]);
    feed::judge(results, &path, Filling { events, full: true })?;
    std::fs::remove_file(&path)?;
    if !full {
        let path = folder.join("handovers.redb");
        filled(results, "linkdb_store_handovers", &path, Filling { events, full: false })?;
    }
    Ok(())
}

/// Whether all goals are met.
fn filled(results: &mut Results, prefix: &str, path: &Path, filling: Filling) -> Result<bool> {
    let events = filling.events;
    let mut store = Store::open(path, Limits::default())?;
    let began = Instant::now();
    filling.pour(&mut store)?;
    let poured = began.elapsed().as_secs_f64();
    let single = single(&mut store, filling)?;
    drop(store);
    let (mut opened, mut begun) = (Vec::new(), Vec::new());
    for _ in 0..OPENED {
        let began = Instant::now();
        let store = Store::open(path, Limits::default())?;
        opened.push(began.elapsed().as_secs_f64() * 1e3);
        begun.push(begin(&store)?);
    }
    let stats = Store::open(path, Limits::default())?.stats()?;
    // The oldest trips make room for the newest.
    ensure!(stats.events + PER_TRIP >= events, "only {} handovers are kept", stats.events);
    println!(
        "\n## {prefix}: {} handovers, {} cells, {} places, {} tracks; filled in {poured:.0} s; \
         opened {OPENED} times with the file in the page cache\n",
        stats.events, stats.cells, stats.places, stats.tracks
    );
    let worst = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let size = megabytes(path)?;
    let all = events >= 1_000_000;
    let at_most = |most: f64| if all { Goal::AtMost(most) } else { Goal::None };
    let mut figure = |name: &str, value: f64, unit: &str, goal: Goal, samples: &[f64]| {
        results.result(&format!("{prefix}_{name}"), value, unit, goal, samples);
    };
    figure("events", stats.events as f64, "", Goal::None, &[]);
    figure("cells", stats.cells as f64, "", Goal::None, &[]);
    figure("places", stats.places as f64, "", Goal::None, &[]);
    figure("tracks", stats.tracks as f64, "", Goal::None, &[]);
    figure("size", size, "MB", at_most(SIZE_MB), &[]);
    figure("open", median(&opened), "ms", at_most(OPEN_MS), &opened);
    figure("open_worst", worst(&opened), "ms", at_most(OPEN_MS), &[]);
    figure("begin", median(&begun), "ms", Goal::None, &begun);
    figure("append", median(&single), "ms", Goal::None, &single);
    figure("append_worst", worst(&single), "ms", Goal::None, &[]);
    Ok(!all || size <= SIZE_MB && worst(&opened) <= OPEN_MS)
}

/// How long each durable append of one handover takes, in milliseconds.
fn single(store: &mut Store, filling: Filling) -> Result<Vec<f64>> {
    let mut dice = Dice::new(2);
    let mut took = Vec::new();
    for sequence in 0..SINGLE {
        // For the first of them the oldest trip falls out.
        let one = filling.handover(&mut dice, filling.events / PER_TRIP, sequence);
        let began = Instant::now();
        let appended = store.append(&[one], filling.now_ms())?;
        took.push(began.elapsed().as_secs_f64() * 1e3);
        ensure!(appended.fresh == 1, "a new handover was not taken");
    }
    Ok(took)
}

/// What a daemon does when it has opened its database, in milliseconds: it reads tracks and cells
/// and learns from them.
fn begin(store: &Store) -> Result<f64> {
    let began = Instant::now();
    let mut tracks = Vec::new();
    for (_, bytes) in store.tracks()? {
        tracks.push(Track::decode(&bytes)?);
    }
    let mut forecaster = Forecaster::new(ForecastSettings::default());
    for (key, history) in store.cells_by_age()? {
        forecaster.learn(key, history);
    }
    forecaster.refresh();
    let took = began.elapsed().as_secs_f64() * 1e3;
    ensure!(!forecaster.is_empty(), "no cells of {} tracks", tracks.len());
    Ok(took)
}

fn megabytes(path: &Path) -> Result<f64> {
    Ok(std::fs::metadata(path)?.len() as f64 / 1e6)
}

/// How large it may be, and how long its opening may take.
const SIZE_MB: f64 = 500.0;
const OPEN_MS: f64 = 1_000.0;
/// Handovers that are written one by one, and how often the database is opened.
const SINGLE: u64 = 100;
const OPENED: usize = 7;
