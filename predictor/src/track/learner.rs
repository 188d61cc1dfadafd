//! Learning a track while a train goes along it.
//!
//! A track is begun at a place and grows at the end that the train passes, by a point each
//! 100 metres; places in between are smoothed, so that its length is that of the line and not of
//! the receiver's noise. What was known before is refined: its points move sideways to the mean of
//! the trips. Both show in the track after [`TrackLearner::settle`] only, but positions count in
//! its coordinates from the first reading on. Outliers are refused by the caller, who knows where
//! the train ought to be.

use std::collections::BTreeMap;
use std::time::Instant;

use polyrail_model::{Direction, Position};

use super::planar::Planar;
use super::{Hint, Place, Point, Projection, Track, WEIGHT_MAX};

/// A track and what is learned of it on a trip.
#[derive(Clone, Debug)]
pub struct TrackLearner {
    track: Track,
    /// The metres between which it was known before this trip.
    known: Option<(Position, Position)>,
    /// How far left of its points the train was: the sum and the number of readings.
    offsets: BTreeMap<Position, (f64, u32)>,
    smooth: Option<Planar>,
    /// The end that the last reading was beyond.
    beyond: Option<Direction>,
    changed: bool,
}

/// Where on the track a place is, beyond its ends as well.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Found {
    pub metres: f64,
    pub off_track: f64,
    pub bearing: f64,
    projection: Projection,
}

impl TrackLearner {
    /// A new track that begins here.
    pub(crate) fn begin_at(place: Place) -> Self {
        let track = Track::begun(place);
        Self { changed: true, known: None, ..Self::resume(track) }
    }

    /// Goes on with a track of earlier trips.
    pub fn resume(track: Track) -> Self {
        let known = Some(marks(&track));
        let offsets = BTreeMap::new();
        Self { track, known, offsets, smooth: None, beyond: None, changed: false }
    }

    /// The track as far as it is learned, not simplified.
    pub fn track(&self) -> &Track {
        &self.track
    }

    /// Whether it has changed since [`TrackLearner::settle`] was last called.
    pub fn changed(&self) -> bool {
        self.changed
    }

    /// Whether these metres were not known before this trip.
    pub(crate) fn is_new(&self, metres: f64) -> bool {
        !self.known.is_some_and(|(first, last)| (first.metres()..=last.metres()).contains(&metres))
    }

    /// Finds a place near the hint, beyond an end as well while the track may grow there.
    pub(crate) fn find(&self, place: Place, hint: Hint) -> Option<Found> {
        let projection = self.track.nearest(place, Some(hint))?;
        let Projection { metres, off_track, bearing, .. } = projection;
        let on_it = Found { metres, off_track, bearing, projection };
        let Some(end) = projection.beyond else { return Some(on_it) };
        let (point, out) = self.track.end(end)?;
        let away = point.place.to(place);
        let distance = match out {
            // Near the point, noise to the side would count as a way.
            Some(out) if away.length() < SPACING / 2.0 => out.dot(away).max(0.0),
            _ => away.length(),
        };
        if distance > hint.reach || !self.track.may_grow(distance) {
            return Some(on_it);
        }
        let metres = point.mark.metres() + end.sign() * distance;
        let bearing = if out.is_none() { away.bearing() } else { bearing };
        Some(Found { metres, off_track: 0.0, bearing, projection })
    }

    /// Takes a reading that was found on the track, with its error in metres.
    pub(crate) fn learn(&mut self, at: Instant, place: Place, error: f64, found: &Found) {
        let smooth = self.smooth.get_or_insert_with(|| Planar::new(at, place, error));
        smooth.read(at, place, error);
        let smooth = smooth.place;
        self.beyond = found.projection.beyond;
        match self.beyond {
            Some(end) => self.grow(end, smooth, SPACING),
            None => self.compare(found),
        }
    }

    /// Ends at a track that the train has come to: at the end that is nearer to these metres, what
    /// is new and at most so far from the other is given up, else both would tell of one line.
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

    fn grow(&mut self, end: Direction, place: Place, least: f64) {
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

    fn compare(&mut self, found: &Found) {
        let Some(point) = self.track.points.get(found.projection.point) else { return };
        if self.is_new(point.mark.metres()) || found.projection.left.abs() > BESIDE_MAX {
            return;
        }
        let (sum, readings) = self.offsets.entry(point.mark).or_default();
        *sum += found.projection.left;
        *readings = readings.saturating_add(1);
        self.changed = true;
    }

    /// Works what was learned into the track; nothing is new after it.
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
        // The back first: the front's points are counted from the beginning.
        self.track.simplify(back..self.track.points.len());
        self.track.simplify(0..front + 1);
        self.known = Some(marks(&self.track));
        self.changed = false;
    }

    /// The track as it would be after [`TrackLearner::settle`], which is left for later.
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

/// Between the points of a track that grows, in metres.
const SPACING: f64 = 100.0;
/// Before the last one.
const SPACING_LAST: f64 = 30.0;
/// Readings farther from the track say nothing of it: a parallel line, a bad receiver.
const BESIDE_MAX: f64 = 60.0;
/// Fewer readings near a point do not move it.
const READINGS_MIN: u32 = 3;
