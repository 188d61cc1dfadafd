//! The tracks that a node knows, from the pieces in the logs.
//!
//! A piece counts if its writer is the creator of its route ([`super::creator_hash`]) or the node
//! itself, whose piece wins. At most [`TRACKS_MAX`] tracks are kept. A full collection evicts a
//! track of the other writer that has most, the one written longest ago; the node's own tracks go
//! last.

use std::collections::{BTreeMap, BTreeSet};

use polyrail_model::{Direction, Position, RouteId};

use crate::creator::creator_of;
use crate::entry::{EntryKey, Spot, TrackPiece, TrackPoint, WriterNumber};
use crate::fair::victims;
use crate::track::{SpotFinder, Track};

/// The known tracks.
#[derive(Clone, Debug, Default)]
pub(super) struct Tracks {
    routes: BTreeMap<RouteId, Route>,
    /// The hashes of the writers' names.
    creators: BTreeMap<WriterNumber, u32>,
    writes: u64,
    /// Routes whose pieces have changed since [`Tracks::refresh`].
    stale: BTreeSet<RouteId>,
    /// The routes as [`Tracks::ordered`] had them at the last [`Tracks::refresh`].
    order: Vec<RouteId>,
}

#[derive(Clone, Debug)]
struct Route {
    /// The writer that counts: the creator, or the node itself if it has a piece.
    writer: WriterNumber,
    pieces: BTreeMap<i16, Versions>,
    line: Option<Line>,
    written: u64,
}

/// A piece as the node and the creator have it; the node's own version counts.
#[derive(Clone, Debug, Default)]
struct Versions {
    own: Option<(EntryKey, Vec<TrackPoint>)>,
    creators: Option<(EntryKey, Vec<TrackPoint>)>,
}

#[derive(Clone, Debug)]
struct Line {
    track: Track,
    finder: SpotFinder,
}

/// A track that is known, or longer, since its pieces changed; with its ends before, if any.
pub(super) type Grown = (RouteId, Option<(f64, f64)>);

impl Tracks {
    /// Names a writer. Pieces of unnamed writers do not count.
    pub fn introduce(&mut self, writer: WriterNumber, creator: u32) {
        self.creators.insert(writer, creator);
    }

    /// Takes a piece; returns the entry that is useless from now on, if any: the replaced one, or
    /// the piece itself. Call [`Tracks::refresh`] afterwards.
    pub fn put(
        &mut self,
        writer: WriterNumber,
        key: EntryKey,
        piece: &TrackPiece,
    ) -> Option<EntryKey> {
        let is_own = writer == WriterNumber::OWN;
        let is_creators = match self.creators.get(&writer) {
            Some(creator) => *creator == creator_of(piece.route),
            None if is_own => false,
            None => return None,
        };
        if !(is_own || is_creators) || !piece.is_valid() {
            return Some(key);
        }
        self.writes += 1;
        let written = self.writes;
        let route = self.routes.entry(piece.route).or_insert_with(|| Route {
            writer,
            pieces: BTreeMap::new(),
            line: None,
            written,
        });
        let versions = route.pieces.entry(piece.piece).or_default();
        let known = if is_own { &mut versions.own } else { &mut versions.creators };
        let is_older = |known: &(EntryKey, Vec<TrackPoint>)| {
            known.0.log == key.log && known.0.sequence > key.sequence
        };
        if known.as_ref().is_some_and(is_older) {
            return Some(key);
        }
        let replaced = known.replace((key, piece.points.clone()));
        if is_own {
            route.writer = writer;
        }
        route.written = written;
        self.stale.insert(piece.route);
        if self.routes.len() > TRACKS_MAX {
            self.evict();
        }
        replaced.map(|(replaced, _)| replaced).filter(|replaced| *replaced != key)
    }

    /// Builds the tracks whose pieces have changed; returns the new and the longer tracks.
    pub fn refresh(&mut self) -> Vec<Grown> {
        self.order = self.ordered();
        let mut grown = Vec::new();
        for id in std::mem::take(&mut self.stale) {
            let Some(route) = self.routes.get_mut(&id) else { continue };
            let points = route.pieces.values().flat_map(Versions::points);
            let track = Track::from_points(points);
            let before = route.line.as_ref().map(|line| line.track.ends());
            route.line = track.map(|track| Line { finder: SpotFinder::new(&track), track });
            let after = route.line.as_ref().map(|line| line.track.ends());
            let is_longer = match (before, after) {
                (Some(before), Some(after)) => after.0 < before.0 || after.1 > before.1,
                (None, Some(_)) => true,
                (_, None) => false,
            };
            if is_longer {
                grown.push((id, before));
            }
        }
        grown
    }

    pub fn get(&self, route: RouteId) -> Option<&Track> {
        Some(&self.routes.get(&route)?.line.as_ref()?.track)
    }

    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// The routes that a spot is on, with position and direction, except the one on which it was
    /// recorded; in the order of [`Tracks::ordered`], at most [`PROJECTIONS_MAX`].
    pub fn projections(&self, spot: &Spot, except: RouteId) -> Vec<(RouteId, Position, Direction)> {
        let project = |id: &RouteId| {
            let line = self.routes.get(id)?.line.as_ref()?;
            let (position, direction) = line.finder.find(&line.track, spot)?;
            Some((*id, position, direction))
        };
        let others = self.order.iter().filter(|id| **id != except);
        others.filter_map(project).take(PROJECTIONS_MAX).collect()
    }

    /// The node's own routes, then a route of each other writer, then another one of each, so that
    /// a writer with many tracks leaves the others theirs.
    fn ordered(&self) -> Vec<RouteId> {
        let mut counts: BTreeMap<WriterNumber, usize> = BTreeMap::new();
        let ranked = self.routes.iter().map(|(id, route)| {
            let count = counts.entry(route.writer).or_default();
            *count += 1;
            let rank = if route.writer == WriterNumber::OWN { 0 } else { *count };
            (rank, *id)
        });
        let mut all: Vec<(usize, RouteId)> = ranked.collect();
        all.sort_unstable();
        all.into_iter().map(|(_, id)| id).collect()
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
            let versions = known.and_then(|known| known.pieces.get(&piece.piece));
            !versions.is_some_and(|versions| versions.points().eq(&piece.points))
        });
        pieces
    }

    /// Removes the pieces of entries.
    pub fn forget(&mut self, gone: impl Fn(EntryKey) -> bool) {
        let is_gone = |one: &Option<(EntryKey, _)>| one.as_ref().is_some_and(|one| gone(one.0));
        for (id, route) in &mut self.routes {
            for versions in route.pieces.values_mut() {
                for version in [&mut versions.own, &mut versions.creators] {
                    if is_gone(version) {
                        *version = None;
                        self.stale.insert(*id);
                    }
                }
            }
            route.pieces.retain(|_, versions| versions.points().next().is_some());
        }
        self.routes.retain(|_, route| !route.pieces.is_empty());
    }

    fn evict(&mut self) {
        let items = self.routes.iter();
        let items = items.map(|(id, route)| (Some(route.writer), route.written, *id));
        for id in victims(items, 1) {
            self.routes.remove(&id);
        }
    }
}

impl Versions {
    fn points(&self) -> std::slice::Iter<'_, TrackPoint> {
        let version = self.own.as_ref().or(self.creators.as_ref());
        version.map_or([].iter(), |(_, points)| points.iter())
    }
}

/// The most tracks.
pub const TRACKS_MAX: usize = 256;
/// The most tracks on which an entry counts, next to its own: as many as trains that learned the
/// line separately.
pub const PROJECTIONS_MAX: usize = 16;
