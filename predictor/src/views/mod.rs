//! What a node knows from all logs: cells, tracks and the rate map, in memory.
//!
//! The logs in the database are the only state; views are derived from them at the start
//! ([`Views::rebuild`]) and kept current with each entry ([`Views::apply`]). A handover or a sample
//! counts on its own track by its recorded position, and on each other known track by its spot.
//! A track that becomes known, or longer, needs the stored entries again ([`Views::derive`]).
//!
//! Entries of others are claims. A writer that invents entries displaces only its own from a full
//! view, bends no other's track, and makes no forecast alone ([`crate::forecast`]).

mod cells;
mod places;
#[cfg(test)]
mod tests;
mod tracks;

use std::collections::BTreeMap;

use polyrail_model::{Direction, Handover, NodeRole, Position, RouteId};
use serde::{Deserialize, Serialize};

pub use crate::creator::{creator_hash, creator_of, new_route};
pub use cells::{CELLS_MAX, Cell, Cells};
pub use places::{PLACE_TRIPS_MAX, PLACES_MAX, PlaceEstimate, PlaceKey};
pub use tracks::{PROJECTIONS_MAX, TRACKS_MAX, WRITER_TRACKS_MAX};

use crate::entry::{Entry, EntryKey, Link, LogNumber, Rates, Spot, TrackPiece, WriterNumber};
use crate::history::{CellKey, Passage};
use crate::store::{Store, StoreError};
use crate::track::Track;
use places::Places;
use tracks::Tracks;

/// The views of a node.
#[derive(Clone, Debug)]
pub struct Views {
    /// The direction of data in which this node sends: only its rates count.
    link: Link,
    cells: Cells,
    tracks: Tracks,
    places: Places,
    /// Tracks that stored entries do not count on yet, and the part on which they do.
    underived: BTreeMap<RouteId, Option<(f64, f64)>>,
}

/// Tracks on which stored entries do not count yet, and the parts on which they do.
#[derive(Clone, Debug, Default)]
pub struct Underived(BTreeMap<RouteId, Option<(f64, f64)>>);

impl Underived {
    /// Whether stored entries do not count at a position of a track.
    fn is_new(&self, route: RouteId, metres: f64) -> bool {
        let derived = self.0.get(&route);
        derived.is_some_and(|part| part.is_none_or(|(first, last)| metres < first || last < metres))
    }
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
        let (cells, tracks, places) = Default::default();
        Self { link, cells, tracks, places, underived: BTreeMap::new() }
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
        self.tracks.introduce(writer, creator_hash(name));
    }

    /// Takes a new entry. Returns the entries that are useless from now on, perhaps this one: track
    /// pieces that were replaced or do not count, and handovers that their cell dropped.
    #[must_use]
    pub fn apply(&mut self, writer: WriterNumber, key: EntryKey, entry: &Entry) -> Vec<EntryKey> {
        let mut useless = Vec::new();
        match entry {
            Entry::Handover(handover, spot) => {
                self.add_handover(writer, key, handover, spot.as_ref(), &mut useless);
            }
            Entry::Track(piece) => {
                useless.extend(self.tracks.put(writer, key, piece));
                for (route, before) in self.tracks.refresh() {
                    self.underived.entry(route).or_insert(before);
                }
                if self.underived.len() > TRACKS_MAX {
                    self.underived.retain(|route, _| self.tracks.get(*route).is_some());
                }
            }
            Entry::Rates(rates) => self.add_rates(writer, key, rates),
        }
        useless
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
        visit(&mut |writer, key, entry| match entry {
            Entry::Handover(handover, spot) => {
                self.add_handover(writer, key, handover, spot.as_ref(), &mut useless);
            }
            Entry::Rates(rates) => self.add_rates(writer, key, rates),
            Entry::Track(_) => {}
        })?;
        Ok(useless)
    }

    /// Whether a track has become known or longer since [`Views::take_underived`].
    pub fn is_underived(&self) -> bool {
        !self.underived.is_empty()
    }

    /// The tracks that have become known or longer: call [`Views::derive`] with each stored entry
    /// to count it there. New entries count there already.
    pub fn take_underived(&mut self) -> Underived {
        Underived(std::mem::take(&mut self.underived))
    }

    /// Counts a stored entry on tracks that have become known or longer, outside the parts on which
    /// it counts already. Returns useless entries, as [`Views::apply`] does.
    #[must_use]
    pub fn derive(
        &mut self,
        grown: &Underived,
        writer: WriterNumber,
        key: EntryKey,
        entry: &Entry,
    ) -> Vec<EntryKey> {
        let project = |tracks: &Tracks, spot: &Spot, except: RouteId| {
            let mut all = tracks.projections(spot, except);
            all.retain(|(route, position, _)| grown.is_new(*route, position.metres()));
            all
        };
        let mut useless = Vec::new();
        match entry {
            Entry::Handover(handover, Some(spot)) => {
                let found = project(&self.tracks, spot, handover.route);
                let Some(passage) = Passage::of(writer, key, handover) else { return useless };
                for (route, position, direction) in found {
                    let cell = CellKey { route, direction, ..CellKey::of(handover) };
                    let passage = Passage { position, projected: true, ..passage };
                    self.add_passage(cell, passage, &mut useless);
                }
            }
            Entry::Rates(rates) if rates.link == self.link => {
                for sample in &rates.samples {
                    let Some(spot) = &sample.spot else { continue };
                    for (route, position, direction) in project(&self.tracks, spot, rates.route) {
                        let place = PlaceKey::of(&rates.carrier, route, direction, position);
                        self.places.add(place, writer, key, rates.trip, sample);
                    }
                }
            }
            _ => {}
        }
        useless
    }

    /// Forgets all entries of a log below a sequence number: they were evicted or purged.
    pub fn forget_below(&mut self, log: LogNumber, floor: u64) {
        let gone = |key: EntryKey| key.log == log && key.sequence < floor;
        self.cells.forget(|passage| gone(passage.entry));
        self.places.forget(gone);
        self.tracks.forget(gone);
        self.tracks.refresh();
    }

    /// The cells, for the forecaster.
    pub fn cells(&self) -> &Cells {
        &self.cells
    }

    /// The expected rate and delay of a carrier at a position, for the node `own`.
    pub fn estimate(&self, own: WriterNumber, place: &PlaceKey) -> Option<PlaceEstimate> {
        self.places.estimate(place, own)
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

    /// The spot of a train at a position of a track.
    pub fn spot(&self, route: RouteId, position: Position, direction: Direction) -> Option<Spot> {
        self.tracks.get(route)?.spot(position, direction)
    }

    /// The pieces of a track of this node that are to be appended: those that differ from the known
    /// ones.
    pub fn changed_pieces(&self, route: RouteId, track: &Track) -> Vec<TrackPiece> {
        self.tracks.changed_pieces(route, track)
    }

    /// Notes on which track a train is: entries count on it before others' tracks.
    pub fn ride(&mut self, train: &str, route: RouteId) {
        if self.tracks.ride(train, route) {
            self.underived.insert(route, None);
        }
    }

    /// The sizes of the views.
    pub fn sizes(&self) -> ViewSizes {
        let Self { cells, tracks, places, .. } = self;
        ViewSizes { cells: cells.len(), tracks: tracks.len(), places: places.len() }
    }

    fn add_handover(
        &mut self,
        writer: WriterNumber,
        key: EntryKey,
        handover: &Handover,
        spot: Option<&Spot>,
        useless: &mut Vec<EntryKey>,
    ) {
        let Some(passage) = Passage::of(writer, key, handover) else { return };
        self.add_passage(CellKey::of(handover), passage, useless);
        let Some(spot) = spot else { return };
        for (route, position, direction) in self.tracks.projections(spot, handover.route) {
            let cell = CellKey { route, direction, ..CellKey::of(handover) };
            let passage = Passage { position, projected: true, ..passage };
            self.add_passage(cell, passage, useless);
        }
    }

    /// Adds a passage. One that the cell of its own track drops is useless.
    fn add_passage(&mut self, cell: CellKey, passage: Passage, useless: &mut Vec<EntryKey>) {
        let dropped = self.cells.insert(cell, passage).dropped;
        useless.extend(dropped.filter(|one| !one.projected).map(|one| one.entry));
    }

    fn add_rates(&mut self, writer: WriterNumber, key: EntryKey, rates: &Rates) {
        if rates.link != self.link {
            return;
        }
        for sample in &rates.samples {
            let place = PlaceKey::of(&rates.carrier, rates.route, rates.direction, sample.position);
            self.places.add(place, writer, key, rates.trip, sample);
            if let Some(spot) = &sample.spot {
                for (route, position, direction) in self.tracks.projections(spot, rates.route) {
                    let place = PlaceKey::of(&rates.carrier, route, direction, position);
                    self.places.add(place, writer, key, rates.trip, sample);
                }
            }
        }
    }
}
