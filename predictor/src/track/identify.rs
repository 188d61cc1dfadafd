//! On which of the known tracks a train is.
//!
//! It is on the track that all its last readings are near to, and along which it has moved as far
//! as over land, always the same way. A train that only crosses a track does not do that.

use std::time::{Duration, Instant};

use polyrail_model::Direction;

use super::{Hint, Place, Track, Vector};

/// A reading: when, where, and its error in metres.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reading {
    pub at: Instant,
    pub place: Place,
    pub error: f64,
}

/// The last readings in their order, at most [`READINGS_MAX`]; then every second of them is left
/// out, so that those of a slow train reach back far enough.
#[derive(Clone, Debug, Default)]
pub(crate) struct Course {
    readings: Vec<Reading>,
}

/// Where on a track the last reading of a course is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Match {
    pub metres: f64,
    pub direction: Direction,
    /// Metres a second, over the course.
    pub speed: f64,
    /// The mean distance from the track.
    pub off_track: f64,
}

impl Course {
    /// Adds a reading. One that no train could have come to makes the course begin anew.
    pub fn add(&mut self, reading: Reading) {
        if self.readings.last().is_some_and(|last| !plausible(last, &reading)) {
            self.readings.clear();
        }
        if self.readings.len() >= READINGS_MAX {
            let mut number = 0_usize;
            self.readings.retain(|_| {
                number += 1;
                number % 2 == 1
            });
        }
        self.readings.push(reading);
    }

    pub fn clear(&mut self) {
        self.readings.clear();
    }

    pub fn readings(&self) -> &[Reading] {
        &self.readings
    }

    /// From the middle of the first half of the readings to that of the second, in metres over
    /// land: receivers at both ends of a train that speak by turns do not move it.
    pub fn moved(&self) -> f64 {
        let (early, late) = self.readings.split_at(self.readings.len() / 2);
        let Some(base) = early.first() else { return 0.0 };
        let middle = |readings: &[Reading]| {
            let ways = readings.iter().map(|reading| base.place.to(reading.place));
            let sum = ways.fold(Vector::default(), Vector::plus);
            sum.scaled(1.0 / readings.len().max(1) as f64)
        };
        middle(late).plus(middle(early).scaled(-1.0)).length()
    }

    /// The seconds between the middles of its halves.
    fn time_of_halves(&self) -> f64 {
        let (early, late) = self.readings.split_at(self.readings.len() / 2);
        let Some(base) = early.first() else { return 0.0 };
        let since = |one: &Reading| one.at.saturating_duration_since(base.at).as_secs_f64();
        let middle = |readings: &[Reading]| {
            readings.iter().map(since).sum::<f64>() / readings.len().max(1) as f64
        };
        middle(late) - middle(early)
    }

    /// From the first reading to the last.
    pub fn lasted(&self) -> Duration {
        match self.readings.as_slice() {
            [first, .., last] => last.at.saturating_duration_since(first.at),
            _ => Duration::ZERO,
        }
    }
}

/// Which of these tracks a course is on: its number and the place there; the nearest, if it is on
/// several.
pub(crate) fn identify<'a>(
    course: &Course,
    tracks: impl Iterator<Item = &'a Track>,
) -> Option<(usize, Match)> {
    let matches = tracks.enumerate().filter_map(|(at, track)| Some((at, on_track(course, track)?)));
    matches.min_by(|one, other| one.1.off_track.total_cmp(&other.1.off_track))
}

fn on_track(course: &Course, track: &Track) -> Option<Match> {
    let readings = course.readings();
    let moved = course.moved();
    if readings.len() < READINGS_MIN || moved < MOVED_MIN || track.points() < 2 {
        return None;
    }
    let mut metres: Vec<f64> = Vec::with_capacity(readings.len());
    let mut off_sum = 0.0;
    let mut before: Option<(Place, f64)> = None;
    for reading in readings {
        let hint = before.map(|(place, metres)| Hint {
            metres,
            reach: 2.0 * place.to(reading.place).length() + BESIDE_MAX,
        });
        let found = track.nearest(reading.place, hint).filter(|one| one.off_track <= BESIDE_MAX)?;
        off_sum += found.off_track;
        metres.push(found.metres);
        before = Some((reading.place, found.metres));
    }
    let half = readings.len() / 2;
    let (early, late) = (mean(&metres[..half]), mean(&metres[half..]));
    let along = late - early;
    let backwards = metres.windows(2).any(|pair| (pair[1] - pair[0]) * along.signum() < -BACK_MAX);
    let close = (0.7 * moved - NOISE..1.5 * moved + NOISE).contains(&along.abs());
    if backwards || !close {
        return None;
    }
    let direction = if along < 0.0 { Direction::Down } else { Direction::Up };
    let speed = along.abs() / course.time_of_halves().max(0.1);
    let off_track = off_sum / readings.len() as f64;
    Some(Match { metres: *metres.last()?, direction, speed, off_track })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn plausible(one: &Reading, other: &Reading) -> bool {
    let time = other.at.saturating_duration_since(one.at).as_secs_f64();
    let noise = 3.0 * (one.error + other.error) + BACK_MAX;
    time < GAP_MAX && one.place.to(other.place).length() <= SPEED_MAX * time + noise
}

/// Readings of a course, at most.
const READINGS_MAX: usize = 16;
const READINGS_MIN: usize = 4;
/// Below this a way has no direction, in metres.
const MOVED_MIN: f64 = 100.0;
/// How far beside a track a train may be that is on it.
const BESIDE_MAX: f64 = 200.0;
/// Two receivers of one train are no farther apart, in metres.
const BACK_MAX: f64 = 250.0;
/// What two readings may err against each other, in metres.
const NOISE: f64 = 40.0;
/// No train is faster, in metres per second.
pub(crate) const SPEED_MAX: f64 = polyrail_model::VELOCITY_MAX;
/// Readings further apart are two courses, in seconds.
const GAP_MAX: f64 = 120.0;
