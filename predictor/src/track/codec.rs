//! A track as bytes, for the store.
//!
//! All numbers are big-endian: a version (1 byte, 1), the number of points (4 bytes), and for each
//! point its latitude and longitude in ten-millionths of a degree (4 bytes each, signed), its
//! decimetres from where the track was begun (4 bytes, signed) and its weight (1 byte).

use polyrail_model::Position;
use thiserror::Error;

use super::{GAP_MAX, LENGTH_MAX, POINTS_MAX, Place, Point, Track, WEIGHT_MAX};

/// Why bytes are no track.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TrackError {
    /// It was written by a version that this one does not know.
    #[error("a track of version {0}; this is version {VERSION}")]
    Version(u8),
    /// There are fewer or more bytes than its points need.
    #[error("a track of {0} bytes, which is not what its points need")]
    Length(usize),
    /// There is no point, or there are too many.
    #[error("a track of {0} points; 1 to {POINTS_MAX} may be")]
    Points(u32),
    /// A point is no place, is not beyond the one before it, or too far.
    #[error("point {0} of a track is out of place")]
    Point(usize),
}

impl Track {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD + self.points.len() * POINT);
        out.push(VERSION);
        out.extend_from_slice(&(self.points.len() as u32).to_be_bytes());
        for point in &self.points {
            let (latitude, longitude) = point.place.units();
            for number in [latitude, longitude, point.mark.decimetres] {
                out.extend_from_slice(&number.to_be_bytes());
            }
            out.push(point.weight);
        }
        out
    }

    /// From bytes, all of them.
    ///
    /// # Errors
    /// They are not what [`Track::encode`] writes.
    pub fn decode(bytes: &[u8]) -> Result<Self, TrackError> {
        let (head, body) = bytes.split_at_checked(HEAD).ok_or(TrackError::Length(bytes.len()))?;
        if head[0] != VERSION {
            return Err(TrackError::Version(head[0]));
        }
        let count = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let points = usize::try_from(count).ok().filter(|count| (1..=POINTS_MAX).contains(count));
        let points = points.ok_or(TrackError::Points(count))?;
        if body.len() != points * POINT {
            return Err(TrackError::Length(bytes.len()));
        }
        let mut track = Self { points: Vec::with_capacity(points) };
        for (at, bytes) in body.chunks_exact(POINT).enumerate() {
            let point = point(bytes).ok_or(TrackError::Point(at))?;
            if !track.points.last().is_none_or(|before| follows(before, &point)) {
                return Err(TrackError::Point(at));
            }
            track.points.push(point);
        }
        if track.length() > LENGTH_MAX {
            return Err(TrackError::Point(points - 1));
        }
        Ok(track)
    }
}

fn point(bytes: &[u8]) -> Option<Point> {
    let number = |at: usize| {
        bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map(i32::from_be_bytes)
    };
    let place = Place::from_units(number(0)?, number(4)?)?;
    let mark = Position { decimetres: number(8)? };
    let weight = *bytes.get(12)?;
    (1..=WEIGHT_MAX).contains(&weight).then_some(Point { place, mark, weight })
}

fn follows(before: &Point, point: &Point) -> bool {
    point.mark > before.mark && before.place.to(point.place).length() <= 1.1 * GAP_MAX
}

const VERSION: u8 = 1;
const HEAD: usize = 5;
const POINT: usize = 13;
