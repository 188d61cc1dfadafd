//! The trips that schedulers are compared on, by their seeds.

use std::time::Duration;

use polyrail_emulator::link::ScheduleError;
use polyrail_emulator::rail::{CarrierProfile, Route, Speed, Trip};

/// The first route seed of the trips on which schedulers may be tuned.
pub const TUNING: u64 = 1_000;
/// The first route seed of the trips on which they never are.
pub const HELD_BACK: u64 = 29_000;

/// So many trips of 100 s over carriers A and B at 300 km/h, four on each route.
///
/// # Errors
/// A schedule cannot hold a trip.
pub fn trips(first_route: u64, count: u64) -> Result<Vec<Trip>, ScheduleError> {
    (0..count)
        .map(|number| {
            let (turn, place) = (number / PER_ROUTE, number % PER_ROUTE);
            let carriers = [CarrierProfile::A, CarrierProfile::B];
            let route = Route::new(first_route + turn, Speed::Kmh300, METRES, &carriers);
            Trip::new(&route, number, FIRST + APART * place as f64, LENGTH)
        })
        .collect()
}

/// The seeds in words.
pub fn seeds(first_route: u64, count: u64) -> String {
    let last = first_route + count.saturating_sub(1) / PER_ROUTE;
    format!("routes {first_route} to {last}, trips 0 to {}", count.saturating_sub(1))
}

/// How long a trip is.
pub const LENGTH: Duration = Duration::from_secs(100);
const PER_ROUTE: u64 = 4;
const METRES: f64 = 60_000.0;
const FIRST: f64 = 1_000.0;
const APART: f64 = 9_000.0;
