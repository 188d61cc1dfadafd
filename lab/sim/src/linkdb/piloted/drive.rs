//! The generated trips of one route, and the readings of the train's satellite receiver.
//!
//! Trains run beyond both ends of the route. There only the receiver has readings, and the modems
//! report the first and the last cell.

use std::time::{Duration, Instant};

use anyhow::Result;
use polyrail_emulator::rail::{CarrierProfile, Route, Signal, Speed, Trip};

use polyrail_model::{Fix, Observation};

use super::line::Line;
use crate::dice::Dice;

/// The trips to play.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    /// How long the route is.
    pub metres: f64,
    /// How many trips there are.
    pub trips: u64,
    /// The greatest delay of a modem's report, in seconds.
    pub report: f64,
    /// The receiver's error, as a multiple of the generator's.
    pub noise: f64,
}

/// A route and its line on the ground.
#[derive(Clone, Debug)]
pub struct Course {
    /// The cells.
    pub route: Route,
    /// Their places on the ground.
    pub line: Line,
    /// How long a trip takes, in seconds.
    pub length: f64,
}

/// One generated trip.
#[derive(Clone, Debug)]
pub struct Drive {
    /// Counts the trips of a route.
    pub number: u64,
    /// The trip.
    pub trip: Trip,
    /// The reports of each carrier's modem, once a second.
    pub signals: Vec<Vec<Signal>>,
}

/// Converts seconds of a trip to instants.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Course {
    /// A route of two carriers at 300 km/h.
    pub fn new(seed: u64, setup: &Setup) -> Self {
        let speed = Speed::Kmh300;
        let carriers = [CarrierProfile::A, CarrierProfile::B];
        let route = Route::new(seed, speed, setup.metres, &carriers);
        let beyond = (BEFORE.max(BEHIND) + 10.0) * speed.metres_per_second();
        let line = Line::new(seed, -beyond, setup.metres + beyond);
        let length = speed.time_for(setup.metres).unwrap_or_default().as_secs_f64();
        Self { route, line, length }
    }

    /// Whether the line was learned in the other direction, so that positions fall on these trips.
    pub fn is_down(&self) -> bool {
        !self.route.seed.is_multiple_of(2)
    }

    /// The trips, the same as [`super::super::records::campaign`] makes.
    ///
    /// # Errors
    /// A schedule cannot hold a trip.
    pub fn drives(&self, setup: &Setup) -> Result<Vec<Drive>> {
        let length = Duration::from_secs_f64(self.length);
        let drive = |number| {
            let seed = self.route.seed * TRIP_SEEDS + number;
            let trip = Trip::new(&self.route, seed, 0.0, length)?;
            Ok(Drive { number, signals: trip.signals(&self.route), trip })
        };
        (0..setup.trips).map(drive).collect()
    }

    /// The time in which a train is observed, in seconds of its trip.
    pub fn span(&self) -> (f64, f64) {
        (-BEFORE, self.length + BEHIND)
    }

    /// The readings of a receiver on a trip: the generator's along the line, with the same error
    /// across.
    pub fn fixes(&self, drive: &Drive, clock: Clock, setup: &Setup) -> Vec<(f64, Observation)> {
        let mut dice = Dice::new(drive.trip.seed ^ 0xf1c5);
        let speed = self.route.speed.metres_per_second();
        let read = |second: i64| {
            let at = second as f64;
            let fix = usize::try_from(second).ok().and_then(|second| drive.trip.fixes.get(second));
            let drawn = RECEIVER_ERROR * dice.normal();
            let along = fix.map_or(drawn, |fix| fix.metres - speed * at);
            let aside = RECEIVER_ERROR * dice.normal();
            let off = [along, aside].map(|off| setup.noise * off);
            (at, self.fix(clock, at, speed * at, off))
        };
        self.seconds().map(read).collect()
    }

    /// The readings on a trip in the other direction, on which only the line is learned.
    pub fn fixes_back(&self, clock: Clock, setup: &Setup) -> Vec<(f64, Observation)> {
        let mut dice = Dice::new(self.route.seed ^ 0xbac4);
        let speed = self.route.speed.metres_per_second();
        let read = |second: i64| {
            let at = second as f64;
            let off = [dice.normal(), dice.normal()].map(|off| setup.noise * RECEIVER_ERROR * off);
            (at, self.fix(clock, at, self.route.metres - speed * at, off))
        };
        self.seconds().map(read).collect()
    }

    fn seconds(&self) -> impl Iterator<Item = i64> + use<> {
        let (from, to) = self.span();
        from as i64..=to as i64
    }

    fn fix(&self, clock: Clock, at: f64, metres: f64, [along, aside]: [f64; 2]) -> Observation {
        let [latitude, longitude] = self.line.place(metres + along, aside);
        Observation::Fix(Fix {
            at: clock.at(at),
            time_ms: None,
            latitude,
            longitude,
            speed: Some(self.route.speed.metres_per_second()),
            heading: None,
            error: Some(RECEIVER_ERROR),
        })
    }
}

impl Clock {
    /// A clock whose trip begins a little after `start`, to leave room for earlier observations.
    pub fn new(start: Instant) -> Self {
        Self(start + Duration::from_secs_f64(2.0 * BEFORE))
    }

    /// The instant of a second, from -60 on.
    pub fn at(self, second: f64) -> Instant {
        let way = Duration::from_secs_f64(second.abs());
        if second < 0.0 { self.0.checked_sub(way).unwrap_or(self.0) } else { self.0 + way }
    }

    /// The gateway's clock at a second of the trip of this number, in milliseconds since 1970.
    pub fn wall_ms(number: u64, second: f64) -> u64 {
        FIRST_MS + number * DAY_MS + ((second + 2.0 * BEFORE) * 1_000.0).round().max(0.0) as u64
    }
}

/// How long a train is observed before and after the route, in seconds: until its direction is
/// known, and until the last handovers have ended.
const BEFORE: f64 = 30.0;
const BEHIND: f64 = 25.0;
/// The generator's error, in metres.
const RECEIVER_ERROR: f64 = 8.0;
/// The same as in the campaign without a pilot.
const TRIP_SEEDS: u64 = 1_000;
/// A trip a day.
const DAY_MS: u64 = 86_400_000;
const FIRST_MS: u64 = 1_780_000_000_000;
