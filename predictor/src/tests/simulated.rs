//! A simulated line with the receivers of a train, for the tests of this crate.

use std::time::{Duration, Instant};

use polyrail_model::{Fix, RouteId};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::track::{LatLon, Vector};

/// Random numbers from a seed.
pub(crate) struct Dice(Pcg64Mcg);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    pub fn share(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub fn between(&mut self, least: f64, most: f64) -> f64 {
        least + (most - least) * self.share()
    }

    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.share()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.share()).cos()
    }

    pub fn route(&mut self) -> RouteId {
        RouteId(self.0.next_u64())
    }
}

/// A line, by a point every ten metres.
pub(crate) struct Line {
    places: Vec<LatLon>,
}

impl Line {
    /// A line from a point, first towards a bearing, then in curves of at least 2.5 km radius.
    pub fn new(seed: u64, from: LatLon, bearing: f64, metres: f64) -> Self {
        let mut dice = Dice::new(seed);
        let (mut place, mut bearing, mut curve) = (from, bearing, 0.0);
        let mut places = vec![place];
        for step in 0..(metres / STEP) as usize {
            if step % 200 == 199 {
                // Half of the line is straight.
                curve = (dice.between(-1.0, 1.0) * 2.0).clamp(-1.0, 1.0) * (STEP / 2_500.0);
                curve = if dice.share() < 0.5 { 0.0 } else { curve };
            }
            bearing += f64::to_degrees(curve);
            place = place.moved(heading(bearing).scaled(STEP));
            places.push(place);
        }
        Self { places }
    }

    /// A line along this one up to a branch.
    pub fn branch(&self, metres: f64, bearing: f64, length: f64) -> Self {
        let mut places = self.places[..=(metres / STEP) as usize].to_vec();
        let [before, from] = [places[places.len() - 2], places[places.len() - 1]];
        let mut ahead = before.to(from).bearing();
        let mut place = from;
        for step in 0..(length / STEP) as usize {
            // A curve of 1,500 m radius until it has turned.
            if step as f64 * STEP < bearing.abs().to_radians() * 1_500.0 {
                ahead += f64::to_degrees(STEP / 1_500.0) * bearing.signum();
            }
            place = place.moved(heading(ahead).scaled(STEP));
            places.push(place);
        }
        Self { places }
    }

    pub fn length(&self) -> f64 {
        (self.places.len() - 1) as f64 * STEP
    }

    pub fn place(&self, metres: f64) -> LatLon {
        let steps = (metres / STEP).clamp(0.0, (self.places.len() - 2) as f64);
        let at = steps as usize;
        let way = self.places[at].to(self.places[at + 1]);
        self.places[at].moved(way.scaled(metres / STEP - at as f64))
    }

    pub fn bearing(&self, metres: f64) -> f64 {
        let at = ((metres / STEP) as usize).min(self.places.len() - 2);
        self.places[at].to(self.places[at + 1]).bearing()
    }

    /// A fix with GPS's error and no speed.
    pub fn fix(&self, dice: &mut Dice, at: Instant, metres: f64, error: f64) -> Fix {
        let off = Vector { east: error * dice.normal(), north: error * dice.normal() };
        fix(at, self.place(metres).moved(off), error)
    }
}

/// A fix at a point.
pub(crate) fn fix(at: Instant, place: LatLon, error: f64) -> Fix {
    let (latitude, longitude) = place.units();
    let (latitude, longitude) = (f64::from(latitude) / 1e7, f64::from(longitude) / 1e7);
    let error = Some(error);
    Fix { at, time_ms: None, latitude, longitude, speed: None, heading: None, error }
}

/// A base of time; the tests have no clock.
#[allow(clippy::disallowed_methods)] // Only differences count.
pub(crate) fn start() -> Instant {
    Instant::now()
}

pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn heading(bearing: f64) -> Vector {
    let (sine, cosine) = bearing.to_radians().sin_cos();
    Vector { east: sine, north: cosine }
}

const STEP: f64 = 10.0;
