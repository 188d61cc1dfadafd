//! How long a forecast takes.

use std::hint::black_box;
use std::time::{Duration, Instant};

use polyrail_emulator::results::{Goal, Report as Results, median};
use polyrail_model::{
    CellId, Direction, Handover, HandoverOutcome, Position, RouteId, Speed, TripId,
};
use polyrail_predictor::forecast::evaluate::histories;
use polyrail_predictor::forecast::{ForecastSettings, Forecaster, Situation};

use crate::dice::Dice;

/// Prints what eight carriers' forecasts take beside 10,000 cells, and what learning takes.
pub fn judge(results: &mut Results) {
    let mut forecaster = Forecaster::new(ForecastSettings::default());
    let records = records();
    for (key, history) in histories(records.iter()) {
        forecaster.learn(key, history);
    }
    let started = Instant::now();
    forecaster.refresh();
    let pooled = started.elapsed().as_secs_f64() * 1e3;
    let now = Instant::now();
    let mut told = 0_u64;
    let mut round = |forecaster: &mut Forecaster, place: usize| {
        let cell = place % CELLS;
        let situation = Situation {
            at: now,
            route: RouteId(1),
            direction: Direction::Up,
            metres: cell as f64 * CELL_METRES + 200.0,
            speed: 83.3,
            error: 5.0,
        };
        let started = Instant::now();
        for carrier in CARRIERS {
            let forecast = forecaster.forecast(now, &situation, carrier, CellId(cell as u64));
            told += u64::from(black_box(forecast).is_some());
        }
        started.elapsed().as_secs_f64() * 1e6
    };
    // The first time each cell is fitted.
    let fitting: Vec<f64> = (0..CELLS).map(|place| round(&mut forecaster, place)).collect();
    let times: Vec<f64> = (0..ROUNDS).map(|turn| round(&mut forecaster, turn * 7)).collect();
    let typical = median(&times);
    results.result("linkdb_forecast_8_carriers", typical, "us", Goal::AtMost(20.0), &[]);
    let mut sorted = times;
    sorted.sort_by(f64::total_cmp);
    let slow = sorted[ROUNDS * 99 / 100];
    results.result("linkdb_forecast_8_carriers_p99", slow, "us", Goal::None, &[]);
    let first = median(&fitting);
    results.result("linkdb_forecast_8_carriers_first", first, "us", Goal::None, &[]);
    results.result("linkdb_learn_10000_cells", pooled, "ms", Goal::None, &[]);
    println!("  {told} forecasts of {} asked for", (CELLS + ROUNDS) * CARRIERS.len());
}

/// 24 trips through 10,000 cells, of which one of five fails at times.
fn records() -> Vec<Handover> {
    let mut dice = Dice::new(1);
    let mut records = Vec::new();
    for trip in 0..24 {
        for cell in 0..CELLS {
            for (number, carrier) in CARRIERS.iter().enumerate() {
                let fails = (cell + number) % 5 == 0 && dice.chance(0.3);
                let metres = (cell + 1) as f64 * CELL_METRES + 70.0 * dice.normal();
                records.push(Handover {
                    trip: TripId(trip),
                    sequence: (cell * CARRIERS.len() + number) as u32,
                    at_ms: trip * 86_400_000,
                    carrier: (*carrier).to_owned(),
                    route: RouteId(1),
                    direction: Direction::Up,
                    position: Position::from_metres(metres),
                    speed: Speed::from_metres_per_second(83.3),
                    from: CellId(cell as u64),
                    to: None,
                    rsrp: None,
                    outcome: if fails { HandoverOutcome::TypeII } else { HandoverOutcome::Success },
                    dark: Duration::ZERO,
                });
            }
        }
    }
    records
}

const CARRIERS: [&str; 8] = ["a", "b", "c", "d", "e", "f", "g", "h"];
/// Of each carrier; 10,000 in all.
const CELLS: usize = 1_250;
const CELL_METRES: f64 = 1_142.0;
const ROUNDS: usize = 20_000;
