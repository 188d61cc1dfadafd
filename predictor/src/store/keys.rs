//! The keys of cells and places: bytes that sort by carrier, track, direction and place.

use polyrail_model::codec::{Cursor, FieldError};
use polyrail_model::{CellId, Direction, Position, RouteId};
use serde::{Deserialize, Serialize};

use crate::history::CellKey;
use crate::record::check_carrier;

/// A hundred metres of track, for one carrier and direction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PlaceKey {
    /// The carrier.
    pub carrier: String,
    /// The track.
    pub route: RouteId,
    /// The direction of travel.
    pub direction: Direction,
    /// Hundreds of metres from the beginning of the track, rounded down.
    pub hectometre: i32,
}

impl PlaceKey {
    /// The place of a position.
    pub fn of(carrier: &str, route: RouteId, direction: Direction, position: Position) -> Self {
        let hectometre = position.decimetres.div_euclid(1000);
        Self { carrier: carrier.to_owned(), route, direction, hectometre }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = prefix(&self.carrier, self.route, self.direction);
        // With the sign bit flipped, negative numbers sort first.
        bytes.extend((self.hectometre as u32 ^ 1 << 31).to_be_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, FieldError> {
        let (carrier, route, direction, rest) = split_prefix(bytes)?;
        let hectometre = u32::from_be_bytes(exactly(rest)?) ^ 1 << 31;
        Ok(Self { carrier, route, direction, hectometre: hectometre as i32 })
    }
}

pub(super) fn encode_cell(key: &CellKey) -> Vec<u8> {
    let mut bytes = prefix(&key.carrier, key.route, key.direction);
    bytes.extend(key.cell.0.to_be_bytes());
    bytes
}

pub(super) fn decode_cell(bytes: &[u8]) -> Result<CellKey, FieldError> {
    let (carrier, route, direction, rest) = split_prefix(bytes)?;
    let cell = CellId(u64::from_be_bytes(exactly(rest)?));
    Ok(CellKey { carrier, route, direction, cell })
}

/// A name too long for a carrier matches nothing.
fn prefix(carrier: &str, route: RouteId, direction: Direction) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(carrier.len()).unwrap_or(u8::MAX)];
    bytes.extend(carrier.as_bytes());
    bytes.extend(route.0.to_be_bytes());
    bytes.push(direction as u8);
    bytes
}

fn split_prefix(bytes: &[u8]) -> Result<(String, RouteId, Direction, &[u8]), FieldError> {
    let mut cursor = Cursor(bytes);
    let length = cursor.byte()?.into();
    let name = str::from_utf8(cursor.take(length)?);
    let name = name.map_err(|_| FieldError::Invalid("carrier"))?;
    check_carrier(name)?;
    let route = RouteId(u64::from_be_bytes(cursor.array()?));
    Ok((name.to_owned(), route, Direction::from_bit(cursor.byte()?), cursor.0))
}

fn exactly<const N: usize>(bytes: &[u8]) -> Result<[u8; N], FieldError> {
    bytes.try_into().map_err(|_| FieldError::Invalid("key length"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_places_sort_along_the_track() {
        let key = |metres: f64| {
            PlaceKey::of("A", RouteId(9), Direction::Down, Position::from_metres(metres))
        };
        let metres = [-1e6, -100.1, -100.0, -0.1, 0.0, 99.9, 100.0, 1e8];
        let hectometres: Vec<_> = metres.map(|metres| key(metres).hectometre).into();
        assert_eq!(hectometres, [-10_000, -2, -1, -1, 0, 0, 1, 1_000_000]);
        let keys: Vec<_> = metres.map(|metres| key(metres).encode()).into();
        assert!(keys.is_sorted());
        for (metres, bytes) in metres.into_iter().zip(&keys) {
            assert_eq!(PlaceKey::decode(bytes), Ok(key(metres)));
            for end in 0..bytes.len() {
                assert!(PlaceKey::decode(&bytes[..end]).is_err());
            }
            assert!(PlaceKey::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
    }
}
