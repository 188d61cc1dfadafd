//! Routes name their creator: the upper half of a route's number is a hash of the writer's name.
//!
//! So a node can tell whether a piece of a track comes from the writer that began the track, and
//! nobody bends the track of another.

use polyrail_model::RouteId;

/// The hash of a writer's name: FNV-1a with 64 bits, its halves combined by exclusive or.
pub fn creator_hash(writer: &str) -> u32 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(PRIME);
    let hash = writer.bytes().fold(BASIS, step);
    (hash >> 32) as u32 ^ hash as u32
}

/// The number of a new route of a creator, from a random number.
pub fn new_route(creator: u32, random: u32) -> RouteId {
    RouteId(u64::from(creator) << 32 | u64::from(random))
}

/// The same route as one of another creator.
pub fn with_creator(route: RouteId, creator: u32) -> RouteId {
    new_route(creator, route.0 as u32)
}

/// The hash of a route's creator.
pub fn creator_of(route: RouteId) -> u32 {
    (route.0 >> 32) as u32
}

/// The constants of FNV-1a (draft-eastlake-fnv, section 5).
const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_stable() {
        // FNV-1a of "" and "a" with 64 bits: cbf29ce484222325 and af63dc4c8601ec8c.
        assert_eq!(creator_hash(""), 0xcbf2_9ce4 ^ 0x8422_2325);
        assert_eq!(creator_hash("a"), 0xaf63_dc4c ^ 0x8601_ec8c);
        let route = new_route(creator_hash("train-7"), 9);
        assert_eq!((creator_of(route), route.0 as u32), (creator_hash("train-7"), 9));
    }
}
