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
    let carriers = [CarrierProfile::A, CarrierProfile::B];
    trip_seeds(first_route, count)
        .zip(0..)
        .map(|(seed, number)| {
            let (turn, place) = (number / PER_ROUTE, number % PER_ROUTE);
            let route = Route::new(first_route + turn, Speed::Kmh300, METRES, &carriers);
            Trip::new(&route, seed, FIRST + APART * place as f64, LENGTH)
        })
        .collect()
}

/// The seeds of the routes of so many trips.
pub fn route_seeds(first_route: u64, count: u64) -> std::ops::Range<u64> {
    first_route..first_route + count.div_ceil(PER_ROUTE)
}

/// The seeds of so many trips. Worlds, messages and oracles draw from a trip's seed alone, so those
/// held back have their own.
pub fn trip_seeds(first_route: u64, count: u64) -> std::ops::Range<u64> {
    let first = if first_route >= HELD_BACK { HELD_BACK_TRIPS } else { 0 };
    first..first + count
}

/// The seeds in words.
pub fn seeds(first_route: u64, count: u64) -> String {
    let (routes, trips) = (route_seeds(first_route, count), trip_seeds(first_route, count));
    let last = |range: &std::ops::Range<u64>| range.end.saturating_sub(1);
    format!("routes {} to {}, trips {} to {}", routes.start, last(&routes), trips.start, {
        last(&trips)
    })
}

/// How long a trip is.
pub const LENGTH: Duration = Duration::from_secs(100);
/// The first trip seed of those held back.
const HELD_BACK_TRIPS: u64 = 1_000_000;
const PER_ROUTE: u64 = 4;
const METRES: f64 = 60_000.0;
const FIRST: f64 = 1_000.0;
const APART: f64 = 9_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn held_back_trips_share_no_seed_with_tuning_trips() {
        assert_eq!(seeds(TUNING, 5), "routes 1000 to 1001, trips 0 to 4");
        assert_eq!(seeds(HELD_BACK, 4), "routes 29000 to 29000, trips 1000000 to 1000003");
        let seeds =
            |from| -> Vec<u64> { trips(from, 2).unwrap().iter().map(|trip| trip.seed).collect() };
        assert_eq!(seeds(TUNING), [0, 1]);
        assert_eq!(seeds(HELD_BACK), [1_000_000, 1_000_001]);
    }
}
