//! A Kalman filter of a position and a velocity, also in two dimensions.
//!
//! Between readings the speed changes at random, as white noise of [`JERK`].

use std::time::{Duration, Instant};

use super::{LatLon, Vector};

/// The covariance of a position and a velocity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Covariance {
    /// Variance of the position, in square metres.
    pub position: f64,
    /// Their covariance.
    pub both: f64,
    /// Variance of the velocity.
    pub velocity: f64,
}

impl Covariance {
    /// The covariance of these deviations.
    pub fn new(position: f64, velocity: f64) -> Self {
        Self { position: position * position, both: 0.0, velocity: velocity * velocity }
    }

    /// Advances the time, in seconds.
    pub fn grow(&mut self, time: f64) {
        self.position +=
            2.0 * time * self.both + time * time * self.velocity + JERK * time.powi(3) / 3.0;
        self.both += time * self.velocity + JERK * time * time / 2.0;
        self.velocity += JERK * time;
    }

    /// Takes a position of this deviation; returns the gains of position and velocity.
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

/// A moving point.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planar {
    at: Instant,
    pub place: LatLon,
    velocity: Vector,
    covariance: Covariance,
}

impl Planar {
    pub fn new(at: Instant, place: LatLon, deviation: f64) -> Self {
        let covariance = Covariance::new(deviation, VELOCITY);
        Self { at, place, velocity: Vector::default(), covariance }
    }

    /// Takes a reading; starts over after a long pause or far from the expected point.
    pub fn read(&mut self, at: Instant, place: LatLon, deviation: f64) {
        let time = at.saturating_duration_since(self.at);
        if time > SILENCE {
            *self = Self::new(at, place, deviation);
            return;
        }
        let time = time.as_secs_f64();
        let moved = self.place.moved(self.velocity.scaled(time));
        let miss = moved.to(place);
        let mut covariance = self.covariance;
        covariance.grow(time);
        if miss.length() > GATE * (covariance.position + deviation * deviation).sqrt() {
            *self = Self::new(at, place, deviation);
            return;
        }
        let [position, velocity] = covariance.read_position(deviation);
        self.place = moved.moved(miss.scaled(position));
        self.velocity = self.velocity.plus(miss.scaled(velocity));
        (self.at, self.covariance) = (at, covariance);
    }
}

/// The intensity of the noise that changes a train's speed, in m²/s³: 0.7 m/s after a second,
/// 5.5 m/s after a minute.
const JERK: f64 = 0.5;
/// The deviation of an unknown velocity, in metres per second.
const VELOCITY: f64 = 40.0;
/// The filter starts over after a longer pause.
const SILENCE: Duration = Duration::from_secs(20);
/// The filter starts over at a reading this many deviations off.
const GATE: f64 = 8.0;
