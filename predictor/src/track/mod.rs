//! A track as it is learned from trips: points along a line, each with its metres from where the
//! track was begun. There is no map.
//!
//! The metres of a point are fixed when it is learned and never change: a point may be moved
//! sideways when later trips know better, and left out when the line is straight, but a record of
//! an earlier trip stays at its place. A track grows at either end, with metres below zero before
//! its beginning. A line that branches off, or one that crosses, is a track of its own.
//!
//! Invariants: metres grow from point to point; there is at least one point and at most
//! [`POINTS_MAX`]; the whole is at most [`LENGTH_MAX`] metres long.

mod codec;
mod geometry;
mod identify;
mod learner;
mod planar;
mod simplify;
#[cfg(test)]
mod tests;

use polyrail_model::{Direction, Position};

pub use codec::TrackError;
pub(crate) use geometry::{Place, Vector};
pub(crate) use identify::{Course, Match, Reading, SPEED_MAX, identify};
pub(crate) use learner::Found;
pub use learner::TrackLearner;
pub(crate) use planar::Spread;

/// A line along which positions are counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Track {
    points: Vec<Point>,
}

/// A point of a track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    place: Place,
    mark: Position,
    /// How many trips it is the mean of, at most [`WEIGHT_MAX`].
    weight: u8,
}

/// Where on a track a place is looked for: loops, parallel lines and crossings have others that
/// are as near.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hint {
    /// Where it is thought to be.
    pub metres: f64,
    /// How far from there it may be.
    pub reach: f64,
}

/// The nearest point of a track.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Projection {
    /// Metres from where the track was begun.
    pub metres: f64,
    /// How far the place is from the track, in metres.
    pub off_track: f64,
    /// Where the track leads there when metres grow, in degrees clockwise from north; zero where
    /// it is a mere point.
    pub bearing: f64,
    /// The end, where the place is beyond it.
    pub beyond: Option<Direction>,
    /// How far the place lies to the left of the track as it is drawn.
    pub(crate) left: f64,
    /// The point that is nearer along the track.
    pub(crate) point: usize,
}

impl Track {
    /// One point, to grow from.
    pub(crate) fn begun(place: Place) -> Self {
        Self { points: vec![Point { place, mark: Position::default(), weight: 1 }] }
    }

    /// How many points it has.
    pub fn points(&self) -> usize {
        self.points.len()
    }

    /// The metres of its first and its last point.
    pub fn ends(&self) -> (f64, f64) {
        let mark = |point: Option<&Point>| point.map_or(0.0, |point| point.mark.metres());
        (mark(self.points.first()), mark(self.points.last()))
    }

    /// Its length in metres.
    pub fn length(&self) -> f64 {
        let (first, last) = self.ends();
        last - first
    }

    /// Finds the nearest point of the track, in degrees north and east; near the hint, if there is
    /// one. `None` for what is no place, and when the hint is off the track.
    pub fn project(&self, latitude: f64, longitude: f64, hint: Option<Hint>) -> Option<Projection> {
        self.nearest(Place::from_degrees(latitude, longitude)?, hint)
    }

    pub(crate) fn nearest(&self, place: Place, hint: Option<Hint>) -> Option<Projection> {
        let (from, to) = match hint {
            None => (0, self.points.len()),
            Some(hint) => self.span(hint)?,
        };
        let points = &self.points[from..to];
        if let [only] = points {
            let off_track = only.place.to(place).length();
            let beyond = (self.points.len() == 1).then_some(Direction::Up);
            let metres = only.mark.metres();
            let point = from;
            return Some(Projection { metres, off_track, bearing: 0.0, beyond, left: 0.0, point });
        }
        let all = points.windows(2).zip(from..).map(|(pair, at)| self.onto(place, pair, at));
        all.min_by(|one, other| one.off_track.total_cmp(&other.off_track))
    }

    /// The points around a hint.
    fn span(&self, hint: Hint) -> Option<(usize, usize)> {
        let (least, most) = (hint.metres - hint.reach, hint.metres + hint.reach);
        let (first, last) = self.ends();
        if !(least <= last && most >= first) {
            return None;
        }
        let from = self.points.partition_point(|point| point.mark.metres() < least);
        let to = self.points.partition_point(|point| point.mark.metres() <= most);
        Some((from.saturating_sub(1), (to + 1).min(self.points.len())))
    }

    fn onto(&self, place: Place, pair: &[Point], at: usize) -> Projection {
        let (a, b) = (&pair[0], &pair[1]);
        let (along, away) = (a.place.to(b.place), a.place.to(place));
        let length = along.length().max(1e-3);
        let share = along.dot(away) / (length * length);
        let beyond = match share {
            share if share < 0.0 && at == 0 => Some(Direction::Down),
            share if share > 1.0 && at + 2 == self.points.len() => Some(Direction::Up),
            _ => None,
        };
        let share = share.clamp(0.0, 1.0);
        let off_track = away.plus(along.scaled(-share)).length();
        let metres = a.mark.metres() + share * (b.mark.metres() - a.mark.metres());
        let left = along.cross(away) / length;
        let point = if share < 0.5 { at } else { at + 1 };
        Projection { metres, off_track, bearing: along.bearing(), beyond, left, point }
    }

    /// The point at an end, and the way out of the track there, one metre long; no way for a mere
    /// point.
    fn end(&self, end: Direction) -> Option<(&Point, Option<Vector>)> {
        let (last, before) = match end {
            Direction::Up => (self.points.last()?, self.points.iter().rev().nth(1)),
            Direction::Down => (self.points.first()?, self.points.get(1)),
        };
        let out = before.map(|before| before.place.to(last.place));
        Some((last, out.map(|out| out.scaled(1.0 / out.length().max(1e-3)))))
    }

    /// Whether a point so far beyond an end still belongs to this track.
    fn may_grow(&self, metres: f64) -> bool {
        self.points.len() < POINTS_MAX && self.length() + metres <= LENGTH_MAX && metres <= GAP_MAX
    }
}

/// 4,000 km of curves at a point each 100 m would need more: then it is not extended, and a new
/// track begins at its end.
pub const POINTS_MAX: usize = 32_768;
/// No track is longer, in metres; a new one begins at its end.
pub const LENGTH_MAX: f64 = 2_000_000.0;
/// How far two neighbouring points may be from each other, in metres: a tunnel on a first trip.
const GAP_MAX: f64 = 60_000.0;
/// So many trips are averaged; later ones count as if these were all there were before.
const WEIGHT_MAX: u8 = 16;
