//! The trip after the learned ones, and its forecasts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use polyrail_emulator::rail::{CarrierProfile, Route, Signal, Speed, Trip};
use polyrail_model::{CellId, Direction, Handover, LinkForecast, RouteId, Rsrp};
use polyrail_predictor::entry::WriterNumber;
use polyrail_predictor::forecast::{Forecaster, TrainPosition};
use polyrail_predictor::views::Cells;

use crate::dice::Dice;
use crate::linkdb::records::{REPORT_MS, recorded};
use crate::sim::failures;
use crate::sim::trips::LENGTH;
use crate::sim::{Contestant, world_told};
use crate::world::World;

/// One route, its learned database, and the next trip.
pub(super) struct Next {
    route: Route,
    pub trip: Trip,
    learned: Arc<Vec<Handover>>,
}

/// A modem's report: when it was made, the cell and its signal.
type Reported = (Duration, Option<u32>, Option<Rsrp>);

/// The trips after the learned ones, each on another part of the route. The failure rates of its
/// cells are `failures` times as high as usual.
pub(super) fn next(seed: u64, speed: Speed, failures: f64) -> Result<Vec<Next>> {
    let carriers = [CarrierProfile::A, CarrierProfile::B];
    let apart = PART_METRES.max(speed.metres_per_second() * LENGTH.as_secs_f64());
    let metres = METRES.max(2.0 * START_METRES + apart * PARTS as f64);
    let route = Route::new(seed, speed, metres, &carriers).with_failures(failures);
    let whole = Duration::from_secs_f64((metres - START_METRES) / speed.metres_per_second());
    let report = Duration::from_millis(REPORT_MS);
    let mut learned = Vec::new();
    for number in 0..TRIPS {
        let trip = Trip::new(&route, seed * 1_000 + number, 0.0, whole)?;
        let records = recorded(&route, &trip, number, report);
        learned.extend(records.into_iter().map(|(record, _)| record));
    }
    let learned = Arc::new(learned);
    let part = |number: u64| {
        let start = START_METRES + apart * number as f64;
        let trip = Trip::new(&route, seed * 1_000 + TRIPS + number, start, LENGTH)?;
        Ok(Next { route: route.clone(), trip, learned: learned.clone() })
    };
    (0..PARTS).map(part).collect()
}

impl Next {
    /// The forecasts for a carrier, by the time since the trip's beginning: one for each reading of
    /// the position, and one whenever its modem reports another cell.
    fn forecasts(&self, begin: Instant, carrier: usize) -> Vec<(Duration, Option<LinkForecast>)> {
        let mut forecaster = Forecaster::default();
        let (mut cells, own) = (Cells::default(), WriterNumber::OWN);
        for handover in self.learned.iter() {
            cells.add(handover);
        }
        let name = self.route.carriers[carrier].name;
        let mut last: Option<LinkForecast> = None;
        let one = |(after, cell, rsrp): Reported| {
            let at = begin + after;
            let situation = TrainPosition {
                at,
                route: RouteId(self.route.seed),
                direction: Direction::Up,
                metres: self.trip.metres_seen(after),
                speed: self.route.speed.metres_per_second(),
                error: GPS_ERROR,
            };
            last = match cell {
                Some(cell) => {
                    let seen = (CellId(u64::from(cell)), rsrp);
                    forecaster.train(&cells);
                    forecaster.forecast(&cells, own, at, &situation, name, seen)
                }
                // The forecast for the lost cell holds until it expires.
                None => last.filter(|last| last.expires_at > at),
            };
            (after + LAG, last)
        };
        self.reports(carrier).into_iter().map(one).collect()
    }

    /// The known cell of a carrier's modem and its signal over time: with each reading of the
    /// position, and up to [`REPORT_MS`] after each change, as in the learned records.
    fn reports(&self, carrier: usize) -> Vec<Reported> {
        let signals = &self.trip.signals(&self.route)[carrier];
        let report = |one: &Signal| (one.at, one.cell, one.rsrp.and_then(Rsrp::from_dbm));
        let mut reports: Vec<Reported> = signals.iter().map(report).collect();
        let mut dice = Dice::new(self.trip.seed ^ 0x4e_3057);
        for handover in &self.trip.carriers[carrier].handovers {
            let mut late = || Duration::from_millis(REPORT_MS).mul_f64(dice.unit());
            reports.push((handover.at + handover.dark + late(), Some(handover.to), None));
        }
        reports.sort_by_key(|(at, ..)| *at);
        let between = |pair: &[Reported]| {
            let (at, cell, rsrp) = pair[0];
            let times = (0..).map(move |count| at + FORECAST_EVERY * count);
            let next = pair.get(1).map_or(at + FORECAST_EVERY, |next| next.0.max(at + TINY));
            times.take_while(move |at| *at < next).map(move |at| (at, cell, rsrp))
        };
        (0..reports.len()).flat_map(|one| between(&reports[one..])).collect()
    }

    /// The trip's world for a contestant, with learned forecasts or none.
    pub fn world(&self, contestant: &Contestant, learned: bool) -> World {
        world_told(&self.trip, contestant, |world| {
            if learned {
                self.tell(world);
            }
        })
    }

    /// Schedules all forecasts of the trip in the world.
    fn tell(&self, world: &mut World) {
        let begin = world.now() - world.elapsed();
        for carrier in 0..self.trip.carriers.len() {
            for (at, forecast) in self.forecasts(begin, carrier) {
                if at >= world.elapsed() {
                    world.foresee(at - world.elapsed(), carrier, forecast);
                }
            }
        }
    }

    /// For each measured failure, whether it was forecast when it began.
    pub fn forecast_failures(&self) -> Vec<bool> {
        let begin = Instant::now();
        let mut forecast = Vec::new();
        for (number, carrier) in self.trip.carriers.iter().enumerate() {
            let told = self.forecasts(begin, number);
            for handover in failures(&self.trip, carrier) {
                let before = told.iter().take_while(|(at, _)| *at <= handover.at).last();
                let near = |forecast: &LinkForecast| {
                    forecast.fails_at <= begin + handover.at + forecast.uncertainty
                };
                forecast.push(before.and_then(|(_, last)| *last).is_some_and(|last| near(&last)));
            }
        }
        forecast
    }
}

/// Learned trips.
const TRIPS: u64 = 24;
/// The least length of a route.
const METRES: f64 = 40_000.0;
const START_METRES: f64 = 1_000.0;
/// The measured parts of each route, and the least distance between their beginnings.
const PARTS: u64 = 4;
const PART_METRES: f64 = 9_000.0;
const GPS_ERROR: f64 = 8.0;
/// The interval of forecasts, as in the daemons.
const FORECAST_EVERY: Duration = Duration::from_millis(250);
/// Each report makes a forecast.
const TINY: Duration = Duration::from_nanos(1);
/// From the reading of the position until both sides have the forecast.
const LAG: Duration = Duration::from_millis(60);
