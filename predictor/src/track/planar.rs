//! A Kalman filter of a position and a velocity, and its two-dimensional use on places.
//!
//! Speed changes at random between readings, as white noise of [`JERK`].

use std::time::{Duration, Instant};

use super::{Place, Vector};

/// How uncertain a position and a velocity are together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    /// Of the position, in square metres.
    pub position: f64,
    pub both: f64,
    pub velocity: f64,
}

impl Spread {
    /// Of these deviations.
    pub fn new(position: f64, velocity: f64) -> Self {
        Self { position: position * position, both: 0.0, velocity: velocity * velocity }
    }

    /// Time passes, in seconds.
    pub fn grow(&mut self, time: f64) {
        self.position +=
            2.0 * time * self.both + time * time * self.velocity + JERK * time.powi(3) / 3.0;
        self.both += time * self.velocity + JERK * time * time / 2.0;
        self.velocity += JERK * time;
    }

    /// A position of this deviation is read: the shares of the difference by which position and
    /// velocity change.
    pub fn read_position(&mut self, deviation: f64) -> [f64; 2] {
        let sum = self.position + deviation * deviation;
        let gain = [self.position / sum, self.both / sum];
        self.velocity -= gain[1] * self.both;
        self.position *= 1.0 - gain[0];
        self.both *= 1.0 - gain[0];
        gain
    }

    /// The same for a velocity.
    pub fn read_velocity(&mut self, deviation: f64) -> [f64; 2] {
        let sum = self.velocity + deviation * deviation;
        let gain = [self.both / sum, self.velocity / sum];
        self.position -= gain[0] * self.both;
        self.velocity *= 1.0 - gain[1];
        self.both *= 1.0 - gain[1];
        gain
    }
}

/// A place that moves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planar {
    at: Instant,
    pub place: Place,
    velocity: Vector,
    spread: Spread,
}

impl Planar {
    pub fn new(at: Instant, place: Place, deviation: f64) -> Self {
        let spread = Spread::new(deviation, VELOCITY);
        Self { at, place, velocity: Vector::default(), spread }
    }

    /// A reading; after a long silence or far from what was thought it begins anew.
    pub fn read(&mut self, at: Instant, place: Place, deviation: f64) {
        let time = at.saturating_duration_since(self.at);
        if time > SILENCE {
            *self = Self::new(at, place, deviation);
            return;
        }
        let time = time.as_secs_f64();
        let moved = self.place.moved(self.velocity.scaled(time));
        let miss = moved.to(place);
        let mut spread = self.spread;
        spread.grow(time);
        if miss.length() > GATE * (spread.position + deviation * deviation).sqrt() {
            *self = Self::new(at, place, deviation);
            return;
        }
        let [position, velocity] = spread.read_position(deviation);
        self.place = moved.moved(miss.scaled(position));
        self.velocity = self.velocity.plus(miss.scaled(velocity));
        (self.at, self.spread) = (at, spread);
    }
}

/// The intensity of the noise that changes a train's speed, in m²/s³: 0.7 m/s after a second,
/// 5.5 m/s after a minute.
const JERK: f64 = 0.5;
/// What a train's velocity may be, one deviation in metres a second.
const VELOCITY: f64 = 40.0;
const SILENCE: Duration = Duration::from_secs(20);
/// So many deviations off, it is elsewhere.
const GATE: f64 = 8.0;
