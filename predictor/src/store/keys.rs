//! The keys of cells and places: bytes that sort by carrier, track, direction and place.

use polyrail_model::{CellId, Direction, Position, RouteId};

use crate::history::CellKey;
use crate::record::{RecordError, check_carrier, direction_bit, direction_of};

/// A hundred metres of track, of one carrier and direction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlaceKey {
    /// The carrier.
    pub carrier: String,
    /// The track.
    pub route: RouteId,
    /// Which way the train goes.
    pub direction: Direction,
    /// Hundreds of metres from the beginning of the track, rounded down.
    pub hectometre: i32,
}

impl PlaceKey {
    /// The place in which a position is.
    pub fn of(carrier: &str, route: RouteId, direction: Direction, position: Position) -> Self {
        let hectometre = position.decimetres.div_euclid(1000);
        Self { carrier: carrier.to_owned(), route, direction, hectometre }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = prefix(&self.carrier, self.route, self.direction);
        // With the sign's bit turned, negative numbers sort first.
        bytes.extend((self.hectometre as u32 ^ 1 << 31).to_be_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
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

pub(super) fn decode_cell(bytes: &[u8]) -> Result<CellKey, RecordError> {
    let (carrier, route, direction, rest) = split_prefix(bytes)?;
    let cell = CellId(u64::from_be_bytes(exactly(rest)?));
    Ok(CellKey { carrier, route, direction, cell })
}

/// A name that is too long to be a carrier's finds nothing.
fn prefix(carrier: &str, route: RouteId, direction: Direction) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(carrier.len()).unwrap_or(u8::MAX)];
    bytes.extend(carrier.as_bytes());
    bytes.extend(route.0.to_be_bytes());
    bytes.push(direction_bit(direction));
    bytes
}

fn split_prefix(bytes: &[u8]) -> Result<(String, RouteId, Direction, &[u8]), RecordError> {
    let (length, rest) = bytes.split_first().ok_or(RecordError::Truncated)?;
    let (name, rest) = rest.split_at_checked((*length).into()).ok_or(RecordError::Truncated)?;
    let name = str::from_utf8(name).map_err(|_| RecordError::Impossible("carrier"))?;
    check_carrier(name)?;
    let (route, rest) = rest.split_first_chunk().ok_or(RecordError::Truncated)?;
    let (direction, rest) = rest.split_first().ok_or(RecordError::Truncated)?;
    if *direction > 1 {
        return Err(RecordError::Impossible("direction"));
    }
    let route = RouteId(u64::from_be_bytes(*route));
    Ok((name.to_owned(), route, direction_of(*direction), rest))
}

fn exactly<const N: usize>(bytes: &[u8]) -> Result<[u8; N], RecordError> {
    let too = if bytes.len() < N { RecordError::Truncated } else { RecordError::Trailing };
    bytes.try_into().map_err(|_| too)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_sort_along_the_track_and_come_back() {
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
            assert_eq!(PlaceKey::decode(&[&bytes[..], &[0]].concat()), Err(RecordError::Trailing));
        }
    }
}
