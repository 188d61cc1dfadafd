//! A track in pieces of 5 km, as writers append them to their logs.

use std::collections::BTreeMap;

use polyrail_model::{Position, RouteId};

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

    /// A track from the points of its pieces, in their order, and whether each is the node's own:
    /// the longest part without a gap. Between two points that are not both its own, the line must
    /// be as long on earth as along the track. `None` if it has fewer than two points.
    pub(crate) fn from_points<'a>(
        points: impl Iterator<Item = (&'a TrackPoint, bool)>,
    ) -> Option<Self> {
        let (mut longest, mut open) = (Self { points: vec![] }, Self { points: vec![] });
        let mut before_is_own = false;
        for (point, is_own) in points.filter_map(|(one, is_own)| Some((point(one)?, is_own))) {
            let is_trusted = std::mem::replace(&mut before_is_own, is_own) && is_own;
            let follows = open.points.last().is_none_or(|before| {
                follows(before, &point) && (is_trusted || is_as_long(before, &point))
            });
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

    /// Whether its points are as far from each other as their positions are. Others' tracks must
    /// be, because a zigzag would be near every spot.
    pub(crate) fn is_plausible(&self) -> bool {
        let (mut land, mut along) = (0.0, 0.0);
        let mut points = self.points.iter().filter_map(point);
        let Some(mut before) = points.next() else { return true };
        for point in points {
            if !is_as_long(&before, &point) {
                return false;
            }
            land += before.place.to(point.place).length();
            along += point.mark.metres() - before.mark.metres();
            before = point;
        }
        (land - along).abs() <= SLACK + SHARE * along
    }
}

/// A known part of a track, longer by the points that a new version has beyond its ends. `None` if
/// the new version is elsewhere than the known part is: positions on a track never change, because
/// records there would be moved along.
pub(crate) fn extended(known: &[TrackPoint], new: &[TrackPoint]) -> Option<Vec<TrackPoint>> {
    let line = |points: &[TrackPoint]| Track { points: points.iter().filter_map(point).collect() };
    let (before, after) = (line(known), line(new));
    let agrees = |one: &Track, other: &Track| {
        let near = |point: &Point| {
            let there = other.at(point.mark);
            there.is_none_or(|there| there.to(point.place).length() <= MOVED_MAX)
        };
        one.points.iter().all(near)
    };
    let (first, last) = (known.first()?.position, known.last()?.position);
    let is_before = |one: &&TrackPoint| one.position < first;
    let front = new.iter().filter(is_before);
    let back = new.iter().filter(|one| one.position > last);
    let all: Vec<TrackPoint> = front.chain(known).chain(back).copied().collect();
    let is_small = all.len() <= 2 * TrackPiece::POINTS_MAX;
    (is_small && agrees(&before, &after) && agrees(&after, &before)).then_some(all)
}

impl Track {
    /// The place at a position; `None` beyond the ends.
    pub(super) fn at(&self, mark: Position) -> Option<LatLon> {
        let next = self.points.partition_point(|point| point.mark < mark);
        let to = self.points.get(next)?;
        if to.mark == mark {
            return Some(to.place);
        }
        let from = self.points.get(next.checked_sub(1)?)?;
        let metres = |to: Position| to.metres() - from.mark.metres();
        let way = from.place.to(to.place);
        Some(from.place.moved(way.scaled(metres(mark) / metres(to.mark).max(0.1))))
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

/// Whether one point may come after another. Points move sideways, so the distance between two may
/// be longer than the way along the track.
pub(super) fn follows(before: &Point, point: &Point) -> bool {
    let length = before.place.to(point.place).length();
    let metres = point.mark.metres() - before.mark.metres();
    metres > 0.0 && length <= (2.0 * metres + 4.0 * SLACK).min(1.1 * GAP_MAX)
}

/// Whether two points are as far from each other as their positions are.
fn is_as_long(before: &Point, point: &Point) -> bool {
    let length = before.place.to(point.place).length();
    let metres = point.mark.metres() - before.mark.metres();
    (length - metres).abs() <= SLACK + SHARE * metres
}

/// By how much the distance of points may differ from that of their positions: so many metres, and
/// this share. Points are off by the receiver's noise, and a line replaces a curve.
const SLACK: f64 = 60.0;
const SHARE: f64 = 0.1;
/// By how much later trips may move a point of a track, in metres.
const MOVED_MAX: f64 = 60.0;
