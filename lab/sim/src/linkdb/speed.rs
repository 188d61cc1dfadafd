//! The computing time of forecasts.

use std::hint::black_box;
use std::time::{Duration, Instant};

use polyrail_emulator::results::{Goal, Report as Results, median};
use polyrail_model::{
    CellId, Direction, Handover, HandoverOutcome, Position, RouteId, Rsrp, Speed, TripId,
};
use polyrail_predictor::entry::WriterNumber;
use polyrail_predictor::forecast::evaluate::histories;
use polyrail_predictor::forecast::{Forecaster, TrainPosition};
use polyrail_predictor::views::Cells;

use crate::dice::Dice;
use crate::sim::metrics::quantile;

/// The forecasts of one node.
#[derive(Default)]
struct Known {
    forecaster: Forecaster,
    cells: Cells,
}

/// Prints the time of forecasts for eight carriers with 10,000 cells, and the time of learning.
pub fn judge(results: &mut Results) {
    let mut known = Known::default();
    let records = records();
    for (key, history) in histories(records.iter()) {
        known.cells.put(key, history);
    }
    let started = Instant::now();
    known.forecaster.refresh(&known.cells);
    let pooled = started.elapsed().as_secs_f64() * 1e3;
    let mut told = 0_u64;
    // The first time each cell is fitted.
    let fitting: Vec<f64> = (0..CELLS).map(|cell| round(&mut known, cell, &mut told)).collect();
    let times: Vec<f64> = (0..ROUNDS).map(|turn| round(&mut known, turn * 7, &mut told)).collect();
    let typical = median(&times);
    results.result("linkdb_forecast_8_carriers", typical, "us", Goal::AtMost(20.0), &[]);
    results.result("linkdb_forecast_8_carriers_p99", quantile(&times, 0.99), "us", Goal::None, &[]);
    let first = median(&fitting);
    results.result("linkdb_forecast_8_carriers_first", first, "us", Goal::None, &[]);
    results.result("linkdb_learn_10000_cells", pooled, "ms", Goal::None, &[]);
    after_records(results, &mut known, &mut told);
    println!("  {told} forecasts of {} asked for", (CELLS + ROUNDS + MORE) * CARRIERS.len());
}

/// The same after a recorded handover: one cell is fitted again. After enough new records the
/// parameters common to all cells are learned again, and with them all eight cells.
fn after_records(results: &mut Results, known: &mut Known, told: &mut u64) {
    let mut dice = Dice::new(2);
    let mut times = Vec::new();
    for turn in 0..MORE {
        let cell = turn * 7 % CELLS;
        let trip = TRIPS + (turn / 1_000) as u64;
        known.cells.add(&handover(&mut dice, trip, cell, turn % CARRIERS.len(), turn as u32));
        times.push(round(known, cell, told));
    }
    let typical = median(&times);
    let worst = times.iter().copied().fold(0.0, f64::max) / 1e3;
    results.result("linkdb_forecast_after_a_record", typical, "us", Goal::None, &[]);
    results.result(
        "linkdb_forecast_after_a_record_p99",
        quantile(&times, 0.99),
        "us",
        Goal::None,
        &[],
    );
    results.result("linkdb_forecast_after_a_record_worst", worst, "ms", Goal::None, &[]);
}

/// Forecasts all carriers in a cell, and returns the time in microseconds.
fn round(known: &mut Known, place: usize, told: &mut u64) -> f64 {
    let (now, cell) = (Instant::now(), place % CELLS);
    let situation = TrainPosition {
        at: now,
        route: RouteId(1),
        direction: Direction::Up,
        metres: cell as f64 * CELL_METRES + 200.0,
        speed: 83.3,
        error: 5.0,
    };
    let started = Instant::now();
    for carrier in CARRIERS {
        let (cells, own) = (&known.cells, WriterNumber::OWN);
        let seen = (CellId(cell as u64), Rsrp::from_dbm(-97.0));
        let forecast = known.forecaster.forecast(cells, own, now, &situation, carrier, seen);
        *told += u64::from(black_box(forecast).is_some());
    }
    started.elapsed().as_secs_f64() * 1e6
}

/// 24 trips through 10,000 cells.
fn records() -> Vec<Handover> {
    let mut dice = Dice::new(1);
    let mut records = Vec::new();
    for trip in 0..TRIPS {
        for cell in 0..CELLS {
            for carrier in 0..CARRIERS.len() {
                let sequence = (cell * CARRIERS.len() + carrier) as u32;
                records.push(handover(&mut dice, trip, cell, carrier, sequence));
            }
        }
    }
    records
}

/// One handover; one cell in five fails sometimes.
fn handover(dice: &mut Dice, trip: u64, cell: usize, carrier: usize, sequence: u32) -> Handover {
    let fails = (cell + carrier).is_multiple_of(5) && dice.chance(0.3);
    let metres = (cell + 1) as f64 * CELL_METRES + 70.0 * dice.normal();
    Handover {
        trip: TripId(trip),
        sequence,
        at_ms: trip * 86_400_000,
        carrier: CARRIERS[carrier].to_owned(),
        route: RouteId(1),
        direction: Direction::Up,
        position: Position::from_metres(metres),
        speed: Speed::from_metres_per_second(83.3),
        from: CellId(cell as u64),
        to: None,
        rsrp: Rsrp::from_dbm(-97.0 + 4.0 * dice.normal() - if fails { 3.0 } else { 0.0 }),
        outcome: if fails { HandoverOutcome::TypeII } else { HandoverOutcome::Success },
        dark: Duration::ZERO,
    }
}

const CARRIERS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
/// The cells of each carrier, 10,000 in all.
const CELLS: usize = 1_250;
const CELL_METRES: f64 = 1_142.0;
const TRIPS: u64 = 24;
const ROUNDS: usize = 20_000;
/// Later handovers, enough (a sixteenth) to learn the common parameters again once.
const MORE: usize = 16_000;
const _: () = assert!(MORE > TRIPS as usize * 10_000 / 16 && MORE < TRIPS as usize * 10_000 / 8);
