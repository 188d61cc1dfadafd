//! A track, learned from trips: points along a line, each with its metres from the beginning of the
//! track. There is no map.
//!
//! The metres of a point never change, so records of earlier trips stay valid. Later trips may move
//! a point sideways, or remove it where the line is straight. A track grows at either end, with
//! negative metres before its beginning. A branch or a crossing line is a track of its own.
//!
//! Invariants: metres increase from point to point; there are 1 to [`POINTS_MAX`] points; a track
//! is at most [`LENGTH_MAX`] metres long.

mod codec;
mod geometry;
mod identify;
mod learner;
mod pieces;
mod planar;
mod simplify;
mod spot;
#[cfg(test)]
mod tests;

use polyrail_model::{Direction, Position};

pub(crate) use geometry::{LatLon, Vector};
pub(crate) use identify::{Course, Match, Reading, SPEED_MAX, on_track};
pub use learner::TrackLearner;
pub(crate) use pieces::extended;
pub(crate) use planar::Covariance;
pub(crate) use spot::SpotFinder;

/// A line for counting positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Track {
    points: Vec<Point>,
}

/// A point of a track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    place: LatLon,
    mark: Position,
    /// The number of averaged trips, at most [`WEIGHT_MAX`].
    weight: u8,
}

/// The part of a track to search, because loops, parallel lines and crossings have several nearest
/// points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hint {
    /// The expected position.
    pub metres: f64,
    /// The largest distance from it.
    pub reach: f64,
}

/// The nearest point of a track.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Projection {
    /// Metres from the beginning of the track.
    pub metres: f64,
    /// The distance from the track, in metres.
    pub off_track: f64,
    /// The bearing of the track in direction of increasing metres, in degrees clockwise from north;
    /// zero for a single point.
    pub bearing: f64,
    /// The end that the place is beyond, if any.
    pub beyond: Option<Direction>,
    /// The distance to the left of the track.
    pub(crate) left: f64,
    /// The nearer point along the track.
    pub(crate) point: usize,
}

impl Track {
    /// A single point, to grow from.
    pub(crate) fn begun(place: LatLon) -> Self {
        Self { points: vec![Point { place, mark: Position::default(), weight: 1 }] }
    }

    /// The number of points.
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

    /// Whether its points have the same metres as those of another track.
    pub(crate) fn has_marks_of<'a>(&'a self, other: &'a Self) -> bool {
        let marks = |track: &'a Self| track.points.iter().map(|point| point.mark);
        marks(self).eq(marks(other))
    }

    /// Projects a point, in degrees north and east, on the track; near the hint, if there is one.
    /// `None` for invalid coordinates, and for a hint off the track.
    pub fn project(&self, latitude: f64, longitude: f64, hint: Option<Hint>) -> Option<Projection> {
        self.nearest(LatLon::from_degrees(latitude, longitude)?, hint)
    }

    pub(crate) fn nearest(&self, place: LatLon, hint: Option<Hint>) -> Option<Projection> {
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

    fn onto(&self, place: LatLon, pair: &[Point], at: usize) -> Projection {
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

    /// The point at an end, and the way out of the track there, one metre long; no way for a single
    /// point.
    fn end(&self, end: Direction) -> Option<(&Point, Option<Vector>)> {
        let (last, before) = match end {
            Direction::Up => (self.points.last()?, self.points.iter().rev().nth(1)),
            Direction::Down => (self.points.first()?, self.points.get(1)),
        };
        let out = before.map(|before| before.place.to(last.place));
        Some((last, out.map(|out| out.scaled(1.0 / out.length().max(1e-3)))))
    }

    /// Whether the track may grow by this distance.
    fn may_grow(&self, metres: f64) -> bool {
        self.points.len() < POINTS_MAX && self.length() + metres <= LENGTH_MAX && metres <= GAP_MAX
    }
}

/// The most points of a track. At a point every 100 m only 3,200 km of curves need more; then a new
/// track begins at its end.
pub const POINTS_MAX: usize = 32_768;
/// The longest track, in metres; a new one begins at its end.
pub const LENGTH_MAX: f64 = 2_000_000.0;
/// The largest distance of neighbouring points, in metres: a tunnel on a first trip.
const GAP_MAX: f64 = 60_000.0;
/// The number of averaged trips; later ones weigh as if there had been this many.
const WEIGHT_MAX: u8 = 16;
