//! Learns a track while a train travels along it.
//!
//! A track begins at a point and grows at the end that the train passes, by a point every 100
//! metres. Readings in between are smoothed, so that its length is that of the line without the
//! receiver's noise. Known points move sideways to the mean of the trips. Both are visible in the
//! track only after [`TrackLearner::settle`], but positions are in its coordinates from the first
//! reading on. The caller rejects outliers, because it knows the expected position.

use std::collections::BTreeMap;
use std::time::Instant;

use polyrail_model::{Direction, Position};

use super::planar::Planar;
use super::{Hint, LatLon, Point, Projection, Track, WEIGHT_MAX};

/// A track and the readings of a trip.
#[derive(Clone, Debug)]
pub struct TrackLearner {
    track: Track,
    /// The first and last position known before this trip.
    known: Option<(Position, Position)>,
    /// The train's offsets to the left of points: their sum and number.
    offsets: BTreeMap<Position, (f64, u32)>,
    smooth: Option<Planar>,
    /// The end that the last reading was beyond.
    beyond: Option<Direction>,
    changed: bool,
}

impl TrackLearner {
    /// A new track.
    pub(crate) fn begin_at(place: LatLon) -> Self {
        let track = Track::begun(place);
        Self { changed: true, known: None, ..Self::resume(track) }
    }

    /// A track of earlier trips.
    pub fn resume(track: Track) -> Self {
        let known = Some(marks(&track));
        let offsets = BTreeMap::new();
        Self { track, known, offsets, smooth: None, beyond: None, changed: false }
    }

    /// The track so far, not simplified.
    pub fn track(&self) -> &Track {
        &self.track
    }

    /// Whether it has changed since the last call of [`TrackLearner::settle`].
    pub fn changed(&self) -> bool {
        self.changed
    }

    /// Whether a position was unknown before this trip.
    pub(crate) fn is_new(&self, metres: f64) -> bool {
        !self.known.is_some_and(|(first, last)| (first.metres()..=last.metres()).contains(&metres))
    }

    /// Projects a point near the hint, also beyond an end where the track may grow.
    pub(crate) fn find(&self, place: LatLon, hint: Hint) -> Option<Projection> {
        let projection = self.track.nearest(place, Some(hint))?;
        let Some(end) = projection.beyond else { return Some(projection) };
        let (point, out) = self.track.end(end)?;
        let away = point.place.to(place);
        let distance = match out {
            // Near the end, sideways noise would count as distance.
            Some(out) if away.length() < SPACING / 2.0 => out.dot(away).max(0.0),
            _ => away.length(),
        };
        if distance > hint.reach || !self.track.may_grow(distance) {
            return Some(projection);
        }
        let metres = point.mark.metres() + end.sign() * distance;
        let bearing = if out.is_none() { away.bearing() } else { projection.bearing };
        Some(Projection { metres, off_track: 0.0, bearing, ..projection })
    }

    /// Learns from a projected reading, with its error in metres.
    pub(crate) fn learn(&mut self, at: Instant, place: LatLon, error: f64, found: &Projection) {
        let smooth = self.smooth.get_or_insert_with(|| Planar::new(at, place, error));
        smooth.read(at, place, error);
        let smooth = smooth.place;
        self.beyond = found.beyond;
        match self.beyond {
            Some(end) => self.grow(end, smooth, SPACING),
            None => self.compare(found),
        }
    }

    /// Ends the track where the train has joined another one: drops the new points at the end near
    /// these metres that are within `beside` of the other track.
    pub(crate) fn end_at(&mut self, metres: f64, other: &Track, beside: f64) {
        let (first, last) = self.track.ends();
        let up = last - metres < metres - first;
        (self.beyond, self.smooth) = (None, None);
        while self.track.points.len() > 1 {
            let place = if up { self.track.points.len() - 1 } else { 0 };
            let Point { place: at, mark, .. } = self.track.points[place];
            let near = other.nearest(at, None).is_some_and(|one| one.off_track <= beside);
            if !near || !self.is_new(mark.metres()) {
                break;
            }
            self.track.points.remove(place);
        }
    }

    fn grow(&mut self, end: Direction, place: LatLon, least: f64) {
        let Some((point, out)) = self.track.end(end) else { return };
        let away = point.place.to(place);
        let distance = away.length();
        let outward = out.is_none_or(|out| out.dot(away) > 0.0);
        if distance < least || !outward || !self.track.may_grow(distance) {
            return;
        }
        let mark = Position::from_metres(point.mark.metres() + end.sign() * distance);
        let point = Point { place, mark, weight: 1 };
        match end {
            Direction::Up => self.track.points.push(point),
            Direction::Down => self.track.points.insert(0, point),
        }
        self.changed = true;
    }

    fn compare(&mut self, found: &Projection) {
        let Some(point) = self.track.points.get(found.point) else { return };
        if self.is_new(point.mark.metres()) || found.left.abs() > BESIDE_MAX {
            return;
        }
        let (sum, readings) = self.offsets.entry(point.mark).or_default();
        *sum += found.left;
        *readings = readings.saturating_add(1);
        self.changed = true;
    }

    /// Applies the readings to the track; afterwards nothing in it is new.
    pub fn settle(&mut self) {
        if let (Some(end), Some(smooth)) = (self.beyond, self.smooth) {
            self.grow(end, smooth.place, SPACING_LAST);
        }
        for (mark, (sum, readings)) in std::mem::take(&mut self.offsets) {
            if readings >= READINGS_MIN {
                self.move_point(mark, sum / f64::from(readings));
            }
        }
        let points = &self.track.points;
        let at = |mark: Position| points.partition_point(|point| point.mark < mark);
        let (front, back) = self.known.map_or((0, 0), |(first, last)| (at(first), at(last)));
        // The back first, because the front's points are counted from the beginning.
        self.track.simplify(back..self.track.points.len());
        self.track.simplify(0..front + 1);
        self.known = Some(marks(&self.track));
        self.changed = false;
    }

    /// A copy of the track after [`TrackLearner::settle`].
    pub fn settled(&self) -> Track {
        let mut copy = self.clone();
        copy.settle();
        copy.track
    }

    fn move_point(&mut self, mark: Position, left: f64) {
        let points = &mut self.track.points;
        let Ok(at) = points.binary_search_by_key(&mark, |point| point.mark) else { return };
        let before = points[at.saturating_sub(1)].place;
        let after = points[(at + 1).min(points.len() - 1)].place;
        let along = before.to(after);
        if along.length() < 1.0 {
            return;
        }
        let point = &mut points[at];
        let share = left / (f64::from(point.weight) + 1.0) / along.length();
        let to_left = super::Vector { east: -along.north, north: along.east };
        point.place = point.place.moved(to_left.scaled(share));
        point.weight = (point.weight + 1).min(WEIGHT_MAX);
    }
}

fn marks(track: &Track) -> (Position, Position) {
    let mark = |point: Option<&Point>| point.map_or(Position::default(), |point| point.mark);
    (mark(track.points.first()), mark(track.points.last()))
}

/// The distance between the points of a growing track, in metres.
const SPACING: f64 = 100.0;
/// The same before the last point.
const SPACING_LAST: f64 = 30.0;
/// Readings farther from the track do not move it: a parallel line, a bad receiver.
const BESIDE_MAX: f64 = 60.0;
/// The fewest readings that move a point.
const READINGS_MIN: u32 = 3;
