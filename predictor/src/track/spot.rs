//! Spots: from a position on a track to a point on earth, and back on another track.
//!
//! A spot is on a track if it is within 100 m of it, not beyond its ends, and if the train moved
//! along it: its heading differs from the track's bearing by less than 45 degrees, or by more than
//! 135 degrees in the other direction. So spots on a parallel track count, and those on a crossing
//! one do not.

use std::ops::Range;

use polyrail_model::{Direction, Position};

use super::{LatLon, Track};
use crate::entry::Spot;

impl Track {
    /// The spot of a train at a position, moving in a direction; also a little beyond an end, where
    /// a growing track has no point yet. `None` elsewhere.
    pub fn spot(&self, position: Position, direction: Direction) -> Option<Spot> {
        let next = self.points.partition_point(|point| point.mark <= position);
        let next = next.clamp(1, self.points.len().checked_sub(1).filter(|last| *last > 0)?);
        let (a, b) = (&self.points[next - 1], &self.points[next]);
        let (from, to) = (a.mark.metres(), b.mark.metres());
        let metres = position.metres();
        if !(from - BEYOND_MAX..=to + BEYOND_MAX).contains(&metres) {
            return None;
        }
        let along = a.place.to(b.place);
        let (latitude, longitude) =
            a.place.moved(along.scaled((metres - from) / (to - from).max(0.1))).units();
        let bearing = match direction {
            Direction::Up => along.bearing(),
            Direction::Down => along.bearing() + 180.0,
        };
        let heading = (bearing.rem_euclid(360.0) / DEGREES).round() as u16 as u8;
        Some(Spot { latitude, longitude, heading })
    }
}

/// A track with the bounds of its parts, to find spots on it quickly.
#[derive(Clone, Debug)]
pub(crate) struct SpotFinder {
    whole: Bounds,
    parts: Vec<Bounds>,
}

/// A rectangle around points, wider by the largest distance of a spot.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    latitudes: (i32, i32),
    longitudes: (i32, i32),
}

impl SpotFinder {
    pub fn new(track: &Track) -> Self {
        let parts = (0..track.points.len().saturating_sub(1)).step_by(PART);
        let parts = parts.map(|first| Bounds::around(track, part(track, first))).collect();
        Self { whole: Bounds::around(track, 0..track.points.len()), parts }
    }

    /// The position and direction of a spot along the track of this finder.
    pub fn find(&self, track: &Track, spot: &Spot) -> Option<(Position, Direction)> {
        if !self.whole.contains(spot) {
            return None;
        }
        let place = LatLon::from_units(spot.latitude, spot.longitude)?;
        let mut found: Option<(f64, Position, Direction)> = None;
        let near = self.parts.iter().zip((0..).step_by(PART));
        for (_, first) in near.filter(|(bounds, _)| bounds.contains(spot)) {
            let points = part(track, first);
            for (pair, at) in track.points[points].windows(2).zip(first..) {
                let one = track.onto(place, pair, at);
                let is_nearer = found.is_none_or(|(off_track, ..)| one.off_track < off_track);
                if one.off_track > BESIDE_MAX || one.beyond.is_some() || !is_nearer {
                    continue;
                }
                if let Some(direction) = direction(spot, one.bearing) {
                    found = Some((one.off_track, Position::from_metres(one.metres), direction));
                }
            }
        }
        found.map(|(_, position, direction)| (position, direction))
    }
}

impl Bounds {
    fn around(track: &Track, points: Range<usize>) -> Self {
        let (mut south, mut north) = (i32::MAX, i32::MIN);
        let (mut west, mut east) = (i32::MAX, i32::MIN);
        for point in &track.points[points] {
            let (latitude, longitude) = point.place.units();
            (south, north) = (south.min(latitude), north.max(latitude));
            (west, east) = (west.min(longitude), east.max(longitude));
        }
        let margin = BESIDE_MAX / METRES_PER_UNIT;
        let farthest = f64::from(north.saturating_abs().max(south.saturating_abs())) / 1e7;
        let wide = margin / farthest.to_radians().cos().max(0.01);
        let (margin, wide) = (margin.ceil() as i32, wide.ceil() as i32);
        Self {
            latitudes: (south.saturating_sub(margin), north.saturating_add(margin)),
            longitudes: (west.saturating_sub(wide), east.saturating_add(wide)),
        }
    }

    fn contains(&self, spot: &Spot) -> bool {
        let is_in = |(least, most): (i32, i32), value: i32| least <= value && value <= most;
        is_in(self.latitudes, spot.latitude) && is_in(self.longitudes, spot.longitude)
    }
}

/// The points of a part, the first of the next one included.
fn part(track: &Track, first: usize) -> Range<usize> {
    first..(first + PART + 1).min(track.points.len())
}

/// The direction along a track with this bearing, if the spot's heading gives one.
fn direction(spot: &Spot, bearing: f64) -> Option<Direction> {
    let turned = (f64::from(spot.heading) * DEGREES - bearing).rem_euclid(360.0);
    match turned.min(360.0 - turned) {
        along if along < 45.0 => Some(Direction::Up),
        back if back > 135.0 => Some(Direction::Down),
        _ => None,
    }
}

/// The largest distance of a spot from a track, in metres.
const BESIDE_MAX: f64 = 100.0;
/// How far beyond the end of a track a spot is still known: two points of a growing track.
const BEYOND_MAX: f64 = 200.0;
/// Lines between points in a part.
const PART: usize = 8;
/// Degrees of a unit of heading.
const DEGREES: f64 = 360.0 / 256.0;
/// Metres of a ten-millionth of a degree of latitude.
const METRES_PER_UNIT: f64 = 0.011;
