//! What a node knows from all logs: cells, tracks and the rate map, in memory.
//!
//! The logs in the database are the only state; views are derived from them at the start
//! ([`Views::rebuild`]) and kept current with each entry ([`Views::take`]). A handover or a sample
//! counts on its own track by its recorded position, and on each other known track by its spot.
//! A track that becomes known, changes its ends, or is gone needs the stored entries again
//! ([`Views::begin_derivation`]).
//!
//! Entries of others are claims. A writer that invents entries displaces only its own from a full
//! view, bends no other's track, and makes no forecast alone ([`crate::forecast`]).

mod cells;
mod derived;
mod places;
#[cfg(test)]
mod tests;
mod tracks;

use std::collections::BTreeSet;

use polyrail_model::{Direction, NodeRole, RouteId};
use serde::{Deserialize, Serialize};

pub use crate::creator::{creator_hash, creator_of, new_route};
pub use cells::{CELLS_MAX, Cell, Cells};
pub use places::{PLACE_TRIPS_MAX, PLACES_MAX, PlaceEstimate, PlaceKey};
pub use tracks::{PIECES_MAX, PROJECTIONS_MAX, TRACKS_MAX, WRITER_TRACKS_MAX};

use crate::entry::{Entry, EntryKey, Link, LogNumber, TrackPiece, WriterNumber};
use crate::store::{Store, StoreError};
use crate::track::Track;
use derived::{Derivation, Derived};
use tracks::Tracks;

/// The views of a node.
#[derive(Clone, Debug)]
pub struct Views {
    tracks: Tracks,
    derived: Derived,
    /// Tracks that have changed since the last derivation began.
    changed: BTreeSet<RouteId>,
    /// Some tracks are gone since then.
    is_any_gone: bool,
    derivation: Option<Derivation>,
}

/// The sizes of the views.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewSizes {
    /// Cells.
    pub cells: usize,
    /// Tracks.
    pub tracks: usize,
    /// Places of the rate map.
    pub places: usize,
}

impl Views {
    /// Empty views of a node.
    pub fn new(role: NodeRole) -> Self {
        let link = match role {
            NodeRole::Gateway => Link::Up,
            NodeRole::Cloud => Link::Down,
        };
        Self {
            tracks: Tracks::default(),
            derived: Derived::new(link),
            changed: BTreeSet::new(),
            is_any_gone: false,
            derivation: None,
        }
    }

    /// The views of a database, and its useless entries.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn of_store(store: &Store, role: NodeRole) -> Result<(Self, Vec<EntryKey>), StoreError> {
        let mut views = Self::new(role);
        for (number, log) in store.logs() {
            views.introduce(store.writer(number), &log.id.writer);
        }
        let useless = views.rebuild(|apply| {
            store.visit(|writer, key, entry| {
                apply(writer, key, &entry);
                Ok::<_, StoreError>(())
            })
        })?;
        Ok((views, useless))
    }

    /// Names a writer; call it before its first entry, because the name decides which tracks are
    /// its own.
    pub fn introduce(&mut self, writer: WriterNumber, name: &str) {
        let creator = creator_hash(name);
        self.tracks.introduce(writer, creator);
        self.derived.introduce(writer, creator);
    }

    /// Takes a new entry. Returns the entries that are useless from now on, perhaps this one: track
    /// pieces that were replaced or do not count, and handovers that their cell dropped. A piece
    /// changes its track with [`Views::refresh`].
    #[must_use]
    pub fn take(&mut self, writer: WriterNumber, key: EntryKey, entry: &Entry) -> Vec<EntryKey> {
        if let Entry::Track(piece) = entry {
            return self.tracks.put(writer, key, piece);
        }
        if let Some(derivation) = self.derivation.as_mut().filter(|one| key < one.below) {
            derivation.add(&self.tracks, (writer, key), entry);
        }
        self.derived.add(&self.tracks, |_| true, (writer, key), entry)
    }

    /// Takes a new entry, and changes its track at once.
    #[must_use]
    pub fn apply(&mut self, writer: WriterNumber, key: EntryKey, entry: &Entry) -> Vec<EntryKey> {
        let useless = self.take(writer, key, entry);
        self.refresh();
        useless
    }

    /// Whether [`Views::refresh`] has something to do.
    pub fn is_stale(&self) -> bool {
        self.tracks.is_stale()
    }

    /// Changes the tracks whose pieces have changed: milliseconds for a long one.
    pub fn refresh(&mut self) {
        for route in if self.is_stale() { self.tracks.refresh() } else { vec![] } {
            let is_gone = self.tracks.get(route).is_none();
            self.is_any_gone |= is_gone;
            if is_gone {
                self.changed.remove(&route)
            } else {
                self.changed.insert(route)
            };
        }
    }

    /// Derives empty views from all stored entries. `visit` calls its argument with each entry, in
    /// the order of the logs; it is called twice, because tracks come first. Returns useless
    /// entries, as [`Views::apply`] does.
    ///
    /// # Errors
    /// Those of `visit`; the views are incomplete.
    pub fn rebuild<E>(
        &mut self,
        mut visit: impl FnMut(&mut dyn FnMut(WriterNumber, EntryKey, &Entry)) -> Result<(), E>,
    ) -> Result<Vec<EntryKey>, E> {
        let mut useless = Vec::new();
        visit(&mut |writer, key, entry| {
            if let Entry::Track(piece) = entry {
                useless.extend(self.tracks.put(writer, key, piece));
            }
        })?;
        self.tracks.refresh();
        visit(&mut |writer, key, entry| {
            useless.extend(self.derived.add(&self.tracks, |_| true, (writer, key), entry));
        })?;
        Ok(useless)
    }

    /// Whether tracks have changed since the last derivation began.
    pub fn needs_derivation(&self) -> bool {
        !self.changed.is_empty() || self.is_any_gone
    }

    /// Begins to count all stored entries again on tracks that have changed. Until
    /// [`Views::next_derived`] is `None`, call [`Views::derive`] with the entries from there on, in
    /// the order of their keys, and then [`Views::derived_below`] or [`Views::end_derivation`].
    pub fn begin_derivation(&mut self) {
        self.is_any_gone = false;
        let derivation = self.derived.begin(std::mem::take(&mut self.changed));
        let needs_entries = !derivation.routes.is_empty();
        self.derivation = Some(derivation);
        if !needs_entries {
            self.end_derivation();
        }
    }

    /// The next entry to be counted again.
    pub fn next_derived(&self) -> Option<EntryKey> {
        self.derivation.as_ref().map(|one| one.below)
    }

    /// Counts a stored entry again.
    pub fn derive(&mut self, writer: WriterNumber, key: EntryKey, entry: &Entry) {
        if let Some(derivation) = &mut self.derivation {
            derivation.add(&self.tracks, (writer, key), entry);
        }
    }

    /// All entries below this were counted again.
    pub fn derived_below(&mut self, next: EntryKey) {
        if let Some(derivation) = &mut self.derivation {
            derivation.below = next;
        }
    }

    /// All entries were counted again: they count on the changed tracks from now on.
    pub fn end_derivation(&mut self) {
        if let Some(done) = self.derivation.take() {
            self.derived.replace(&self.tracks, done);
        }
    }

    /// Forgets all entries of a log below a sequence number: they were evicted or purged.
    pub fn forget_below(&mut self, log: LogNumber, floor: u64) {
        let gone = |key: EntryKey| key.log == log && key.sequence < floor;
        self.derived.forget(gone);
        if let Some(derivation) = &mut self.derivation {
            derivation.derived.forget(gone);
        }
        self.tracks.forget(gone);
        self.refresh();
    }

    /// The cells, for the forecaster.
    pub fn cells(&self) -> &Cells {
        &self.derived.cells
    }

    /// The expected rate and delay of a carrier at a position, for the node `own`.
    pub fn estimate(&self, own: WriterNumber, place: &PlaceKey) -> Option<PlaceEstimate> {
        self.derived.places.estimate(place, own)
    }

    /// The expected rates and delays along one direction of a track, for the node `own`: by carrier
    /// and then by place.
    pub fn estimates(
        &self,
        own: WriterNumber,
        route: RouteId,
        direction: Direction,
    ) -> impl Iterator<Item = (&PlaceKey, PlaceEstimate)> {
        self.derived.places.along(route, direction, own)
    }

    /// The tracks of the node itself, the one written longest ago first.
    pub fn own_tracks(&self) -> Vec<(RouteId, Track)> {
        self.tracks.own()
    }

    /// The tracks of other writers, at most `max`, a fair share of each writer.
    pub fn shared_tracks(&self, max: usize) -> Vec<(RouteId, Track)> {
        self.tracks.shared(max)
    }

    /// A track.
    pub fn track(&self, route: RouteId) -> Option<&Track> {
        self.tracks.get(route)
    }

    /// The pieces of a track of this node that are to be appended: those that differ from the known
    /// ones.
    pub fn changed_pieces(&self, route: RouteId, track: &Track) -> Vec<TrackPiece> {
        self.tracks.changed_pieces(route, track)
    }

    /// Notes on which track a train is: entries count on it before others' tracks.
    pub fn ride(&mut self, train: &str, route: RouteId) {
        if self.tracks.ride(train, route) {
            self.changed.insert(route);
        }
    }

    /// The sizes of the views.
    pub fn sizes(&self) -> ViewSizes {
        let Derived { cells, places, .. } = &self.derived;
        ViewSizes { cells: cells.len(), tracks: self.tracks.len(), places: places.len() }
    }

    /// The number of pieces of tracks.
    #[cfg(test)]
    fn pieces(&self) -> usize {
        self.tracks.pieces()
    }

    /// The visits of all places.
    #[cfg(test)]
    fn visits(&self) -> std::collections::BTreeSet<String> {
        self.derived.places.visits()
    }
}
