//! The tracks that a node knows, from the pieces in the logs.
//!
//! A piece counts if its writer is the creator of its route ([`super::creator_hash`]) or the node
//! itself, whose piece wins. A piece of the creator must be as long on earth as along the track.
//! Its later versions only extend it, so all of these are kept, and no restart moves or shortens
//! it. At most [`TRACKS_MAX`] tracks are kept, [`WRITER_TRACKS_MAX`] of each other writer, and at
//! most [`PIECES_MAX`] pieces. A full collection evicts a track of the other writer that has most,
//! the one written longest ago; the node's own tracks go last.

use std::collections::{BTreeMap, BTreeSet};

use polyrail_model::{Direction, Position, RouteId};

use crate::creator::creator_of;
use crate::entry::{EntryKey, Spot, TrackPiece, TrackPoint, WriterNumber};
use crate::fair::victims;
use crate::track::{LENGTH_MAX, SpotFinder, Track, extended};

/// The known tracks.
#[derive(Clone, Debug, Default)]
pub(super) struct Tracks {
    routes: BTreeMap<RouteId, Route>,
    /// The hashes of the writers' names.
    creators: BTreeMap<WriterNumber, u32>,
    writes: u64,
    /// Routes whose pieces have changed since [`Tracks::refresh`].
    stale: BTreeSet<RouteId>,
    /// The routes that trains ride now, by their names; at most [`RIDDEN_MAX`].
    ridden: BTreeMap<String, RouteId>,
    /// The routes by their rights to entries, as of the last [`Tracks::refresh`] or ride.
    order: Vec<RouteId>,
    /// How many of them are first: all entries count on these.
    first: usize,
}

#[derive(Clone, Debug)]
struct Route {
    /// The writer that counts: the creator, or the node itself if it has a piece.
    writer: WriterNumber,
    pieces: BTreeMap<i16, Piece>,
    line: Option<SpotFinder>,
    written: u64,
}

/// A piece as the node and the creator have it; the node's own version counts.
#[derive(Clone, Debug, Default)]
struct Piece {
    own: Option<Version>,
    creators: Option<Version>,
}

/// A version of a piece, and the entries that it comes from.
#[derive(Clone, Debug)]
struct Version {
    entries: Vec<EntryKey>,
    points: Vec<TrackPoint>,
}

impl Tracks {
    /// Names a writer. Pieces of unnamed writers do not count.
    pub fn introduce(&mut self, writer: WriterNumber, creator: u32) {
        self.creators.insert(writer, creator);
    }

    /// Takes a piece; returns the entries that are useless from now on: the replaced one, the piece
    /// itself, or those of an evicted track. Call [`Tracks::refresh`] afterwards.
    pub fn put(
        &mut self,
        writer: WriterNumber,
        key: EntryKey,
        piece: &TrackPiece,
    ) -> Vec<EntryKey> {
        let is_own = writer == WriterNumber::OWN;
        let is_creators = match self.creators.get(&writer) {
            Some(creator) => *creator == creator_of(piece.route),
            None if is_own => false,
            None => return vec![],
        };
        let counts = is_own || is_creators && piece.is_plausible();
        if !(counts && piece.is_valid() && self.is_in_reach(piece)) {
            return vec![key];
        }
        self.writes += 1;
        let written = self.writes;
        let route = self.routes.entry(piece.route).or_insert_with(|| Route {
            writer,
            pieces: BTreeMap::new(),
            line: None,
            written,
        });
        let known = route.pieces.entry(piece.piece).or_default();
        let mut useless = match known.put(is_own, key, &piece.points) {
            Ok(replaced) => replaced,
            Err(useless) => return useless,
        };
        if is_own {
            route.writer = writer;
        }
        route.written = written;
        self.stale.insert(piece.route);
        self.enforce_limits(writer, &mut useless);
        useless
    }

    /// Whether a track with this piece is no longer than a track may be.
    fn is_in_reach(&self, piece: &TrackPiece) -> bool {
        let pieces = self.routes.get(&piece.route).map(|route| &route.pieces);
        let ends =
            pieces.and_then(|all| Some((*all.first_key_value()?.0, *all.last_key_value()?.0)));
        ends.is_none_or(|(first, last)| {
            let reach = i32::from(last.max(piece.piece)) - i32::from(first.min(piece.piece));
            f64::from(reach) * TrackPiece::LENGTH <= LENGTH_MAX
        })
    }

    fn enforce_limits(&mut self, writer: WriterNumber, useless: &mut Vec<EntryKey>) {
        let is_other = writer != WriterNumber::OWN;
        let others = self.routes.values().filter(|one| is_other && one.writer == writer);
        if others.count() > WRITER_TRACKS_MAX {
            self.evict(|route| route.writer == writer, useless);
        } else if self.routes.len() > TRACKS_MAX {
            self.evict(|_| true, useless);
        }
        while self.pieces() > PIECES_MAX
            && let Some(heaviest) = self.heaviest()
        {
            self.evict(|route| route.writer == heaviest, useless);
        }
    }

    /// The writer with most pieces; the node itself only if there is no other.
    fn heaviest(&self) -> Option<WriterNumber> {
        let mut counts: BTreeMap<WriterNumber, usize> = BTreeMap::new();
        for route in self.routes.values() {
            *counts.entry(route.writer).or_default() += route.pieces.len();
        }
        let weight = |(writer, count): &(WriterNumber, usize)| {
            (*writer != WriterNumber::OWN, *count, *writer)
        };
        counts.into_iter().max_by_key(weight).map(|(writer, _)| writer)
    }

    /// Whether pieces have changed since [`Tracks::refresh`].
    pub fn is_stale(&self) -> bool {
        !self.stale.is_empty()
    }

    /// Builds the tracks whose pieces have changed. Returns those on which other entries may count
    /// from now on, or by other positions: new tracks, gone ones, and those with other points along
    /// them.
    pub fn refresh(&mut self) -> Vec<RouteId> {
        self.order();
        let mut changed = Vec::new();
        for id in std::mem::take(&mut self.stale) {
            let Some(route) = self.routes.get_mut(&id) else {
                changed.push(id);
                continue;
            };
            let track = Track::from_points(route.pieces.values().flat_map(Piece::points));
            let before = route.line.as_ref().map(|line| &line.track);
            let is_same = match (before, &track) {
                (Some(before), Some(track)) => before.has_marks_of(track),
                (before, track) => before.is_none() && track.is_none(),
            };
            if !is_same {
                changed.push(id);
            }
            route.line = track.map(SpotFinder::new);
        }
        changed
    }

    pub fn get(&self, route: RouteId) -> Option<&Track> {
        Some(&self.routes.get(&route)?.line.as_ref()?.track)
    }

    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// The number of pieces of all routes.
    pub fn pieces(&self) -> usize {
        self.routes.values().map(|route| route.pieces.len()).sum()
    }

    /// Notes on which route a train is. Returns whether entries may be missing on it, because other
    /// routes took its place.
    pub fn ride(&mut self, train: &str, route: RouteId) -> bool {
        if self.ridden.get(train) == Some(&route) {
            return false;
        }
        let was_first = self.order[..self.first].contains(&route);
        if self.ridden.contains_key(train) || self.ridden.len() < RIDDEN_MAX {
            self.ridden.insert(train.to_owned(), route);
            self.order();
        }
        !was_first && self.get(route).is_some() && self.order.len() > PROJECTIONS_MAX
    }

    /// The routes that a spot is on, with position and direction, except the one on which it was
    /// recorded: all of the first ones in their order, and others up to [`PROJECTIONS_MAX`].
    pub fn projections(&self, spot: &Spot, except: RouteId) -> Vec<(RouteId, Position, Direction)> {
        let project = |id: &RouteId| {
            let line = self.routes.get(id).filter(|_| *id != except)?.line.as_ref()?;
            let (position, direction) = line.find(spot)?;
            Some((*id, position, direction))
        };
        let (first, others) = self.order.split_at(self.first);
        let mut found: Vec<_> = first.iter().filter_map(project).collect();
        let room = PROJECTIONS_MAX.saturating_sub(found.len());
        found.extend(others.iter().filter_map(project).take(room));
        found
    }

    /// Orders the routes: first the node's own and those that trains ride, then one of each other
    /// writer, then another one of each, so that a writer with many leaves the others theirs.
    fn order(&mut self) {
        let ridden: BTreeSet<RouteId> = self.ridden.values().copied().collect();
        let mut counts: BTreeMap<WriterNumber, usize> = BTreeMap::new();
        let ranked = self.routes.iter().map(|(id, route)| {
            if route.writer == WriterNumber::OWN || ridden.contains(id) {
                return (0, *id);
            }
            let count = counts.entry(route.writer).or_default();
            *count += 1;
            (*count, *id)
        });
        let mut all: Vec<(usize, RouteId)> = ranked.collect();
        all.sort_unstable();
        self.first = all.partition_point(|(rank, _)| *rank == 0);
        self.order = all.into_iter().map(|(_, id)| id).collect();
    }

    /// The tracks of the node itself, the one written longest ago first.
    pub fn own(&self) -> Vec<(RouteId, Track)> {
        self.of(|route| route.writer == WriterNumber::OWN, usize::MAX)
    }

    /// The tracks of other writers, at most `max`: of the writers with most tracks the ones written
    /// longest ago are left out.
    pub fn shared(&self, max: usize) -> Vec<(RouteId, Track)> {
        self.of(|route| route.writer != WriterNumber::OWN, max)
    }

    fn of(&self, is_meant: impl Fn(&Route) -> bool, max: usize) -> Vec<(RouteId, Track)> {
        let meant = self.routes.iter().filter(|(_, route)| route.line.is_some() && is_meant(route));
        let items = meant.clone().map(|(id, route)| (Some(route.writer), route.written, *id));
        let surplus = meant.clone().count().saturating_sub(max);
        let left_out: BTreeSet<RouteId> = victims(items, surplus).into_iter().collect();
        let mut tracks: Vec<_> = meant.filter(|(id, _)| !left_out.contains(id)).collect();
        tracks.sort_by_key(|(_, route)| route.written);
        let tracks = tracks.into_iter();
        tracks.filter_map(|(id, route)| Some((*id, route.line.as_ref()?.track.clone()))).collect()
    }

    /// The pieces of a track that differ from the known ones.
    pub fn changed_pieces(&self, route: RouteId, track: &Track) -> Vec<TrackPiece> {
        let mut pieces = track.pieces(route);
        let known = self.routes.get(&route);
        pieces.retain(|piece| {
            let known = known.and_then(|known| known.pieces.get(&piece.piece)?.version());
            !known.is_some_and(|known| known.points == piece.points)
        });
        pieces
    }

    /// Removes the pieces of entries.
    pub fn forget(&mut self, gone: impl Fn(EntryKey) -> bool) {
        let is_gone = |one: &mut Version| one.entries.iter().any(|key| gone(*key));
        let Self { routes, creators, stale, .. } = self;
        routes.retain(|id, route| {
            for piece in route.pieces.values_mut() {
                let (own, creators) = (piece.own.take_if(is_gone), piece.creators.take_if(is_gone));
                if own.or(creators).is_some() {
                    stale.insert(*id);
                }
            }
            route.pieces.retain(|_, piece| piece.version().is_some());
            if route.pieces.values().all(|piece| piece.own.is_none()) {
                let creator = creators.iter().find(|(_, hash)| **hash == creator_of(*id));
                route.writer = creator.map_or(route.writer, |(writer, _)| *writer);
            }
            !route.pieces.is_empty()
        });
    }

    /// Evicts one of these tracks; its entries are useless.
    fn evict(&mut self, may_go: impl Fn(&Route) -> bool, useless: &mut Vec<EntryKey>) {
        let items = self.routes.iter().filter(|(_, route)| may_go(route));
        let items = items.map(|(id, route)| (Some(route.writer), route.written, *id));
        for id in victims(items, 1) {
            let pieces = self.routes.remove(&id).map(|route| route.pieces).unwrap_or_default();
            self.stale.insert(id);
            let versions = pieces.into_values().flat_map(|one| [one.own, one.creators]);
            useless.extend(versions.flatten().flat_map(|version| version.entries));
        }
    }
}

impl Piece {
    fn version(&self) -> Option<&Version> {
        self.own.as_ref().or(self.creators.as_ref())
    }

    /// The points, and whether they are the node's own.
    fn points(&self) -> impl Iterator<Item = (&TrackPoint, bool)> {
        let points = self.version().map_or(&[][..], |version| &version.points);
        points.iter().map(|point| (point, self.own.is_some()))
    }

    /// Takes a version; returns the entries that do not count any more. An error, with the useless
    /// entries, if it was here, adds nothing, or moves the known part.
    fn put(
        &mut self,
        is_own: bool,
        key: EntryKey,
        points: &[TrackPoint],
    ) -> Result<Vec<EntryKey>, Vec<EntryKey>> {
        let known = if is_own { &mut self.own } else { &mut self.creators };
        let Some(version) = known else {
            *known = Some(Version { entries: vec![key], points: points.to_vec() });
            return Ok(vec![]);
        };
        let is_later = |one: &EntryKey| one.log == key.log && one.sequence > key.sequence;
        if version.entries.contains(&key) {
            return Err(vec![]);
        }
        if version.entries.iter().any(is_later) {
            return Err(vec![key]);
        }
        if is_own {
            version.points = points.to_vec();
            return Ok(std::mem::replace(&mut version.entries, vec![key]));
        }
        match extended(&version.points, points) {
            Some(longer) if longer.len() > version.points.len() => {
                version.points = longer;
                version.entries.push(key);
                Ok(vec![])
            }
            _ => Err(vec![key]),
        }
    }
}

/// The most tracks.
pub const TRACKS_MAX: usize = 256;
/// The most tracks of one other writer; it uses no more itself ([`crate::position::TRACKS_MAX`]).
pub const WRITER_TRACKS_MAX: usize = 32;
/// The most pieces of all tracks: 82,000 km of line.
pub const PIECES_MAX: usize = 16_384;
/// Trains whose routes are noted.
const RIDDEN_MAX: usize = 1_024;
/// The most tracks on which an entry counts, next to its own: as many as trains that learned the
/// line separately.
pub const PROJECTIONS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ridden_routes_are_bounded() {
        let mut tracks = Tracks::default();
        for train in 0..2 * RIDDEN_MAX as u64 {
            assert!(!tracks.ride(&format!("train-{train}"), RouteId(train)), "it is unknown");
        }
        assert_eq!(tracks.ridden.len(), RIDDEN_MAX);
        tracks.ride("train-0", RouteId(9));
        assert_eq!(tracks.ridden.get("train-0"), Some(&RouteId(9)), "a known train goes on");
    }
}
