//! The encoding of a track in exports of version 1.
//!
//! All numbers are big-endian: a version (1 byte, 1), the number of points (4 bytes), and for each
//! point its latitude and longitude in ten-millionths of a degree (4 bytes each, signed), its
//! decimetres from where the track was begun (4 bytes, signed) and its weight (1 byte).

use polyrail_model::Position;
use polyrail_model::codec::{Cursor, FieldError};

use super::pieces::follows;
use super::{LENGTH_MAX, LatLon, POINTS_MAX, Point, Track, WEIGHT_MAX};

impl Track {
    /// Decodes a track.
    ///
    /// # Errors
    /// The bytes are not a track.
    pub fn decode(bytes: &[u8]) -> Result<Self, FieldError> {
        let mut cursor = Cursor(bytes);
        if cursor.byte()? != VERSION {
            return Err(FieldError::Invalid("version"));
        }
        let count = u32::from_be_bytes(cursor.array()?) as usize;
        if !(1..=POINTS_MAX).contains(&count) {
            return Err(FieldError::Invalid("number of points"));
        }
        let mut track = Self { points: Vec::with_capacity(count) };
        for _ in 0..count {
            let point = point(&mut cursor)?;
            if !track.points.last().is_none_or(|before| follows(before, &point)) {
                return Err(FieldError::Invalid("order of points"));
            }
            track.points.push(point);
        }
        let is_valid = cursor.0.is_empty() && track.length() <= LENGTH_MAX;
        if is_valid { Ok(track) } else { Err(FieldError::Invalid("length")) }
    }
}

fn point(cursor: &mut Cursor<'_>) -> Result<Point, FieldError> {
    let [latitude, longitude, decimetres] =
        [cursor.array()?, cursor.array()?, cursor.array()?].map(i32::from_be_bytes);
    let weight = Some(cursor.byte()?).filter(|weight| (1..=WEIGHT_MAX).contains(weight));
    let place = LatLon::from_units(latitude, longitude);
    let point = place.zip(weight).map(|(place, weight)| {
        let mark = Position { decimetres };
        Point { place, mark, weight }
    });
    point.ok_or(FieldError::Invalid("point"))
}

const VERSION: u8 = 1;
