//! A track in pieces of 5 km, as writers append them to their logs.

use std::collections::BTreeMap;

use polyrail_model::RouteId;

use super::{GAP_MAX, LENGTH_MAX, LatLon, POINTS_MAX, Point, Track, WEIGHT_MAX};
use crate::entry::{TrackPiece, TrackPoint};

impl Track {
    /// The pieces of the track, those without points left out.
    pub fn pieces(&self, route: RouteId) -> Vec<TrackPiece> {
        let mut pieces: BTreeMap<i16, Vec<TrackPoint>> = BTreeMap::new();
        for Point { place, mark, weight } in &self.points {
            let (latitude, longitude) = place.units();
            let point = TrackPoint { latitude, longitude, position: *mark, weight: *weight };
            // A track is shorter than 1,000 pieces.
            pieces.entry(piece_of(mark.metres()) as i16).or_default().push(point);
        }
        let pieces = pieces.into_iter();
        pieces.map(|(piece, points)| TrackPiece { route, piece, points: thinned(points) }).collect()
    }

    /// A track from the points of its pieces, in their order: the longest part without a gap.
    /// `None` if it has fewer than two points.
    pub(crate) fn from_points<'a>(points: impl Iterator<Item = &'a TrackPoint>) -> Option<Self> {
        let (mut longest, mut open) = (Self { points: vec![] }, Self { points: vec![] });
        for point in points.filter_map(point) {
            let follows = open.points.last().is_none_or(|before| follows(before, &point));
            let first = open.points.first().map_or(point.mark, |first| first.mark);
            let is_short = point.mark.metres() - first.metres() <= LENGTH_MAX;
            if !follows || !is_short || open.points.len() >= POINTS_MAX {
                if open.length() > longest.length() {
                    longest = std::mem::replace(&mut open, Self { points: vec![] });
                }
                open.points.clear();
            }
            open.points.push(point);
        }
        let longest = if open.length() > longest.length() { open } else { longest };
        (longest.points.len() >= 2).then_some(longest)
    }
}

impl TrackPiece {
    /// Whether its points are valid, in its stretch, and in order.
    pub(crate) fn is_valid(&self) -> bool {
        let is_in_stretch =
            |one: &TrackPoint| piece_of(one.position.metres()) == f64::from(self.piece);
        let is_sorted = self.points.windows(2).all(|pair| pair[0].position < pair[1].position);
        let is_valid = |one: &TrackPoint| point(one).is_some() && is_in_stretch(one);
        (1..=Self::POINTS_MAX).contains(&self.points.len())
            && is_sorted
            && self.points.iter().all(is_valid)
    }
}

/// At most [`TrackPiece::POINTS_MAX`] points, evenly chosen, with the first and the last.
fn thinned(points: Vec<TrackPoint>) -> Vec<TrackPoint> {
    let (count, max) = (points.len(), TrackPiece::POINTS_MAX);
    if count <= max {
        return points;
    }
    (0..max).map(|at| points[at * (count - 1) / (max - 1)]).collect()
}

fn piece_of(metres: f64) -> f64 {
    (metres / TrackPiece::LENGTH).floor()
}

fn point(point: &TrackPoint) -> Option<Point> {
    let TrackPoint { latitude, longitude, position, weight } = *point;
    let place = LatLon::from_units(latitude, longitude)?;
    (1..=WEIGHT_MAX).contains(&weight).then_some(Point { place, mark: position, weight })
}

/// Whether one point may come after another.
pub(super) fn follows(before: &Point, point: &Point) -> bool {
    point.mark > before.mark && before.place.to(point.place).length() <= 1.1 * GAP_MAX
}
