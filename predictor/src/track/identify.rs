//! Identifies the known track of a train.
//!
//! All its last readings are near the track, and it has moved as far along the track as over land,
//! in one direction. A train that crosses a track does not match.

use std::time::{Duration, Instant};

use polyrail_model::{Direction, Position};

use super::{Hint, LatLon, Track, Vector};

/// A reading: when, where, and its error in metres.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reading {
    pub at: Instant,
    pub place: LatLon,
    pub error: f64,
}

/// The last readings in their order, at most [`READINGS_MAX`]. A full course drops every second
/// reading, so that the readings of a slow train span enough time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Course {
    readings: Vec<Reading>,
}

/// The place of a course's last reading on a track.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Match {
    pub metres: f64,
    pub direction: Direction,
    /// Metres per second, over the course.
    pub speed: f64,
    /// The mean distance from the track.
    pub off_track: f64,
}

impl Course {
    /// Adds a reading. An unreachable one restarts the course.
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

    /// The distance from the middle of the first half of the readings to that of the second, in
    /// metres over land. Alternating receivers at both ends of a train do not change it.
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

    /// The seconds between the middles of the halves.
    fn time_of_halves(&self) -> f64 {
        let (early, late) = self.readings.split_at(self.readings.len() / 2);
        let Some(base) = early.first() else { return 0.0 };
        let since = |one: &Reading| one.at.saturating_duration_since(base.at).as_secs_f64();
        let middle = |readings: &[Reading]| {
            readings.iter().map(since).sum::<f64>() / readings.len().max(1) as f64
        };
        middle(late) - middle(early)
    }

    /// The time from the first reading to the last.
    pub fn lasted(&self) -> Duration {
        match self.readings.as_slice() {
            [first, .., last] => last.at.saturating_duration_since(first.at),
            _ => Duration::ZERO,
        }
    }
}

impl Track {
    /// How many of the next [`LOOK_KM`] km a track goes on as another one does, by its places and
    /// its positions, for a train that is on both.
    pub(crate) fn goes_with(&self, here: &Match, other: &Self, there: &Match) -> usize {
        let agrees = |km: &usize| {
            let metres = 1_000.0 * *km as f64;
            let ahead = |one: &Match| one.metres + one.direction.sign() * metres;
            let reach = GROWN + DRIFT * metres;
            let place = self.at(Position::from_metres(ahead(here)));
            let hint = Hint { metres: ahead(there), reach };
            let found = place.and_then(|place| other.nearest(place, Some(hint)));
            found.is_some_and(|found| {
                found.off_track <= NEAR && (found.metres - hint.metres).abs() <= reach
            })
        };
        (1..=LOOK_KM).take_while(agrees).count()
    }
}

/// The match of a course on one track.
pub(crate) fn on_track(course: &Course, track: &Track) -> Option<Match> {
    let readings = course.readings();
    let moved = course.moved();
    if readings.len() < READINGS_MIN || moved < MOVED_MIN || track.points() < 2 {
        return None;
    }
    if !track.may_be_near(readings.first()?.place, BESIDE_MAX) {
        return None;
    }
    let mut metres: Vec<f64> = Vec::with_capacity(readings.len());
    let mut off_sum = 0.0;
    let mut before: Option<(LatLon, f64)> = None;
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

/// The most and the fewest readings of a course.
const READINGS_MAX: usize = 16;
const READINGS_MIN: usize = 4;
/// A shorter way has no direction, in metres.
const MOVED_MIN: f64 = 100.0;
/// The largest distance of a train from its track, in metres.
const BESIDE_MAX: f64 = 200.0;
/// The largest distance between two receivers of one train, in metres.
const BACK_MAX: f64 = 250.0;
/// The error between two readings, in metres.
const NOISE: f64 = 40.0;
/// No train is faster, in metres per second.
pub(crate) const SPEED_MAX: f64 = polyrail_model::VELOCITY_MAX;
/// Two writers' tracks of one line are so near each other, in metres, and positions along them
/// drift apart by no more than this at first and by this share of the way.
const NEAR: f64 = 60.0;
const GROWN: f64 = 100.0;
const DRIFT: f64 = 0.03;
/// How far ahead tracks are compared.
const LOOK_KM: usize = 20;
/// Readings further apart belong to two courses, in seconds.
const GAP_MAX: f64 = 120.0;
