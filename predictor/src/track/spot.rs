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
        let turned = if direction == Direction::Up { 0.0 } else { 180.0 };
        let bearing = along.bearing() + turned;
        let heading = (bearing.rem_euclid(360.0) / DEGREES).round() as u16 as u8;
        Some(Spot { latitude, longitude, heading })
    }
}

impl Track {
    /// False if no line of the track is within so many metres of a place: much quicker than the
    /// distance, because a train compares its first reading with every point that it knows.
    pub(super) fn may_be_near(&self, place: LatLon, metres: f64) -> bool {
        let (latitude, longitude) = place.units();
        let margin = metres / METRES_PER_UNIT;
        let wide = margin / (f64::from(latitude) / 1e7).to_radians().cos().max(0.01);
        // More, because the line may be at another latitude.
        let (margin, wide) = (margin.ceil() as i32, (1.1 * wide).ceil() as i32);
        let is_within = |one: i32, other: i32, at: i32, margin: i32| {
            one.min(other).saturating_sub(margin) <= at
                && at <= one.max(other).saturating_add(margin)
        };
        let is_at_date_line = longitude.unsigned_abs() > 1_790_000_000;
        is_at_date_line
            || self.points.windows(2).any(|pair| {
                let (one, other) = (pair[0].place.units(), pair[1].place.units());
                is_within(one.0, other.0, latitude, margin)
                    && is_within(one.1, other.1, longitude, wide)
            })
    }
}

/// A track with the bounds of its parts, to find spots on it quickly.
#[derive(Clone, Debug)]
pub(crate) struct SpotFinder {
    pub track: Track,
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
    pub fn new(track: Track) -> Self {
        let parts = (0..track.points.len().saturating_sub(1)).step_by(PART);
        let parts = parts.map(|first| Bounds::around(&track, part(&track, first))).collect();
        Self { whole: Bounds::around(&track, 0..track.points.len()), parts, track }
    }

    /// The position and direction of a spot along the track.
    pub fn find(&self, spot: &Spot) -> Option<(Position, Direction)> {
        if !self.whole.contains(spot) {
            return None;
        }
        let place = LatLon::from_units(spot.latitude, spot.longitude)?;
        let mut found: Option<(f64, Position, Direction)> = None;
        let near = self.parts.iter().zip((0..).step_by(PART));
        let near = near.filter(|(bounds, _)| bounds.contains(spot));
        for (_, first) in near.take(PARTS_MAX) {
            let points = part(&self.track, first);
            for (pair, at) in self.track.points[points].windows(2).zip(first..) {
                let one = self.track.onto(place, pair, at);
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
/// The most parts that are searched for one spot: of a track that passes it again and again, as
/// only a ring or a forged one does, the first ones.
const PARTS_MAX: usize = 16;
/// Degrees of a unit of heading.
const DEGREES: f64 = 360.0 / 256.0;
/// Metres of a ten-millionth of a degree of latitude.
const METRES_PER_UNIT: f64 = 0.011;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::track::{Point, Vector};

    fn place(east: f64, north: f64) -> LatLon {
        LatLon::from_degrees(50.0, 8.0).unwrap().moved(Vector { east, north })
    }

    /// A straight line from one point to another, in metres east and north, by a point each km.
    fn track(from: (f64, f64), to: (f64, f64)) -> Track {
        let length = (to.0 - from.0).hypot(to.1 - from.1);
        let point = |metres: f64| {
            let share = metres / length;
            let place = place(from.0 + share * (to.0 - from.0), from.1 + share * (to.1 - from.1));
            Point { place, mark: Position::from_metres(metres), weight: 1 }
        };
        let count = (length / 1_000.0) as usize;
        Track { points: (0..=count).map(|one| point(1_000.0 * one as f64)).collect() }
    }

    /// The spot of a train at metres of a straight line to the north.
    fn spot(metres: f64, direction: Direction) -> Spot {
        let own = track((0.0, 0.0), (0.0, 40_000.0));
        own.spot(Position::from_metres(metres), direction).unwrap()
    }

    #[test]
    fn places_within_some_metres_may_be_near() {
        let at = |north, east| LatLon::from_degrees(north, east).unwrap();
        for (latitude, longitude) in [(0.0, 9.0), (50.0, 8.0), (-50.0, -8.0), (70.0, 179.99)] {
            let mut track = Track::begun(at(latitude, longitude));
            let begin = track.points[0];
            for hundred in 1..50 {
                let (east, north) = (60.0 * f64::from(hundred), 80.0 * f64::from(hundred));
                let place = begin.place.moved(super::super::Vector { east, north });
                let mark = Position::from_metres(100.0 * f64::from(hundred));
                track.points.push(super::super::Point { place, mark, ..begin });
            }
            for (off, is_near) in [(0.0, true), (199.0, true), (20_000.0, longitude > 179.0)] {
                let side = super::super::Vector { east: 0.8 * off, north: -0.6 * off };
                let place = track.points[25].place.moved(side);
                assert_eq!(track.may_be_near(place, 200.0), is_near, "{latitude} {off}");
            }
        }
    }

    #[test]
    fn spot_is_found_on_tracks_along_its_way() {
        let (up, down) = (Some(Direction::Up), Some(Direction::Down));
        let north = ((0.0, 0.0), (0.0, 40_000.0));
        let turned = |degrees: f64| {
            let (sine, cosine) = degrees.to_radians().sin_cos();
            let far = 5_000.0;
            let (east, north) = (far * sine, far * cosine);
            ((-east, 20_000.0 - north), (east, 20_000.0 + north))
        };
        let moved = |east: f64| ((east, 0.0), (east, 40_000.0));
        let part = |from: f64, to: f64| ((0.0, from), (0.0, to));
        // The other track, metres along it and direction for a train that goes up.
        let cases = [
            ("the same", north, 20_000.0, up),
            ("parallel", moved(90.0), 20_000.0, up),
            ("parallel to the west", moved(-90.0), 20_000.0, up),
            ("too far", moved(110.0), 0.0, None),
            ("opposite", ((0.0, 40_000.0), (0.0, 0.0)), 20_000.0, down),
            ("opposite and parallel", ((50.0, 40_000.0), (50.0, 0.0)), 20_000.0, down),
            ("crossing", turned(90.0), 0.0, None),
            ("crossing at 50 degrees", turned(50.0), 0.0, None),
            ("merging at 40 degrees", turned(40.0), 5_000.0, up),
            ("back at 140 degrees", turned(140.0), 5_000.0, down),
            ("back at 130 degrees", turned(130.0), 0.0, None),
            ("within a part", part(17_500.0, 25_500.0), 2_500.0, up),
            ("before its beginning", part(20_050.0, 30_050.0), 0.0, None),
            ("beyond its end", part(9_950.0, 19_950.0), 0.0, None),
        ];
        for (name, (from, to), metres, wanted) in cases {
            let finder = SpotFinder::new(track(from, to));
            for (direction, wanted) in [(Direction::Up, wanted), (Direction::Down, back(wanted))] {
                let found = finder.find(&spot(20_000.0, direction));
                assert_eq!(found.map(|(_, direction)| direction), wanted, "{name}");
                let off = found.map_or(0.0, |(position, _)| position.metres() - metres);
                assert!(off.abs() < 2.0, "{name}: {off}");
            }
        }
    }

    fn back(direction: Option<Direction>) -> Option<Direction> {
        direction.map(|direction| match direction {
            Direction::Up => Direction::Down,
            Direction::Down => Direction::Up,
        })
    }

    #[test]
    fn finder_finds_what_a_search_of_all_points_finds() {
        let mut dice = crate::simulated::Dice::new(5);
        let from = LatLon::from_degrees(50.0, 8.0).unwrap();
        let line = crate::simulated::Line::new(5, from, 60.0, 60_000.0);
        let point = |metres: f64| Point {
            place: line.place(metres),
            mark: Position::from_metres(metres),
            weight: 1,
        };
        let track = Track { points: (0..600).map(|one| point(100.0 * f64::from(one))).collect() };
        let finder = SpotFinder::new(track.clone());
        let mut found = 0;
        for _ in 0..2_000 {
            let metres = dice.between(100.0, 59_000.0);
            let off = Vector { east: 60.0 * dice.normal(), north: 60.0 * dice.normal() };
            let place = line.place(metres).moved(off);
            let (latitude, longitude) = place.units();
            let heading = (line.bearing(metres).rem_euclid(360.0) / DEGREES) as u8;
            let nearest = track.nearest(place, None).unwrap();
            let spot = Spot { latitude, longitude, heading };
            let one = finder.find(&spot);
            assert_eq!(one.is_some(), nearest.off_track <= BESIDE_MAX, "{nearest:?}");
            if let Some((position, direction)) = one {
                assert!((position.metres() - nearest.metres).abs() < 0.1);
                assert_eq!(direction, Direction::Up);
                found += 1;
            }
        }
        assert!((500..2_000).contains(&found), "{found}");
    }

    /// A forged track may pass a place thousands of times.
    #[test]
    fn search_of_one_spot_is_bounded() {
        let passes = |count: usize| {
            let point = |number: usize| {
                let (pass, step) = (number / 8, number % 8);
                let east = 100.0 * step as f64 - 400.0;
                let north = 5.0 * (pass % 10) as f64;
                let place = place(if pass % 2 == 0 { east } else { -east }, north);
                Point { place, mark: Position::from_metres(100.0 * number as f64), weight: 1 }
            };
            let crossing: Vec<Point> = (0..8 * count).map(point).collect();
            let mut points = crossing;
            let metres = 800.0 * count as f64;
            points.extend([(-500.0, 0.0), (500.0, 1_000.0)].map(|(north, beyond)| Point {
                place: place(0.0, north),
                mark: Position::from_metres(metres + beyond),
                weight: 1,
            }));
            Track { points }
        };
        let spot = spot(0.0, Direction::Up);
        for (count, is_found) in [(5, true), (2_000, false)] {
            let found = SpotFinder::new(passes(count)).find(&spot);
            assert_eq!(found.is_some(), is_found, "{count} crossings");
        }
    }

    #[test]
    fn spot_has_place_and_heading() {
        let track = track((0.0, 0.0), (7_000.0, 7_000.0));
        let at = |metres: f64, direction| track.spot(Position::from_metres(metres), direction);
        for (metres, direction, heading) in [
            (0.0, Direction::Up, Some(32)),
            (2_500.0, Direction::Up, Some(32)),
            (2_500.0, Direction::Down, Some(160)),
            (-199.0, Direction::Down, Some(160)),
            (9_150.0, Direction::Up, Some(32)),
            (9_250.0, Direction::Up, None),
            (-201.0, Direction::Up, None),
        ] {
            let spot = at(metres, direction);
            assert_eq!(spot.map(|spot| spot.heading), heading, "{metres}");
            let Some(spot) = spot else { continue };
            let there = LatLon::from_units(spot.latitude, spot.longitude).unwrap();
            let side = metres / 2.0_f64.sqrt();
            assert!(place(side, side).to(there).length() < 1.0, "{metres}");
        }
        let single = Track::begun(place(0.0, 0.0));
        assert_eq!(single.spot(Position::default(), Direction::Up), None);
    }
}
