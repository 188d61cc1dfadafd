//! What entries say about the known tracks: cells and places.
//!
//! An entry counts on its own track by its recorded position, and on each other known track by its
//! spot. When a track changes, all stored entries are counted on it again, next to the current
//! views, which are replaced there at the end: so nothing counts twice, and nothing stays that the
//! track does not support any more.

use std::collections::BTreeSet;

use polyrail_model::{Handover, RouteId};

use super::cells::Cells;
use super::places::{PlaceKey, Places};
use super::tracks::Tracks;
use crate::entry::{Entry, EntryKey, Link, Rates, Spot, WriterNumber};
use crate::history::{CellKey, Passage};

/// Cells and places.
#[derive(Clone, Debug)]
pub(super) struct Derived {
    /// The direction of data whose rates count.
    link: Link,
    pub cells: Cells,
    pub places: Places,
}

/// Tracks on which all stored entries are being counted again.
#[derive(Clone, Debug)]
pub(super) struct Derivation {
    pub routes: BTreeSet<RouteId>,
    /// The entries below this have been counted.
    pub below: EntryKey,
    pub derived: Derived,
}

impl Derived {
    pub fn new(link: Link) -> Self {
        Self { link, cells: Cells::default(), places: Places::default() }
    }

    /// Names a writer and the hash of its name.
    pub fn introduce(&mut self, writer: WriterNumber, creator: u32) {
        self.cells.introduce(writer, creator);
        self.places.introduce(writer, creator);
    }

    /// Counts an entry on the tracks that `counts` accepts. Returns handovers that the cell of
    /// their own track dropped.
    pub fn add(
        &mut self,
        tracks: &Tracks,
        counts: impl Fn(RouteId) -> bool,
        (writer, key): (WriterNumber, EntryKey),
        entry: &Entry,
    ) -> Vec<EntryKey> {
        let mut useless = Vec::new();
        match entry {
            Entry::Handover(handover, spot) => {
                if let Some(passage) = Passage::of(writer, key, handover) {
                    let at = (handover, spot.as_ref());
                    self.add_handover(tracks, counts, passage, at, &mut useless);
                }
            }
            Entry::Rates(rates) if rates.link == self.link => {
                self.add_rates(tracks, counts, (writer, key), rates);
            }
            Entry::Rates(_) | Entry::Track(_) => {}
        }
        useless
    }

    fn add_handover(
        &mut self,
        tracks: &Tracks,
        counts: impl Fn(RouteId) -> bool,
        passage: Passage,
        (handover, spot): (&Handover, Option<&Spot>),
        useless: &mut Vec<EntryKey>,
    ) {
        let mut add = |cell: CellKey, passage: Passage| {
            let dropped = self.cells.insert(cell, passage).dropped;
            useless.extend(dropped.filter(|one| !one.projected).map(|one| one.entry));
        };
        if counts(handover.route) {
            add(CellKey::of(handover), passage);
        }
        let found = spot.map(|spot| tracks.projections(spot, handover.route));
        for (route, position, direction) in found.into_iter().flatten() {
            if counts(route) {
                let cell = CellKey { route, direction, ..CellKey::of(handover) };
                add(cell, Passage { position, projected: true, ..passage });
            }
        }
    }

    fn add_rates(
        &mut self,
        tracks: &Tracks,
        counts: impl Fn(RouteId) -> bool,
        (writer, key): (WriterNumber, EntryKey),
        rates: &Rates,
    ) {
        let Rates { trip, carrier, route, direction, samples, .. } = rates;
        for sample in samples {
            if counts(*route) {
                let place = PlaceKey::of(carrier, *route, *direction, sample.position);
                self.places.add(place, (writer, key), *trip, sample, false);
            }
            let found = sample.spot.as_ref().map(|spot| tracks.projections(spot, *route));
            for (route, position, direction) in found.into_iter().flatten() {
                if counts(route) {
                    let place = PlaceKey::of(carrier, route, direction, position);
                    self.places.add(place, (writer, key), *trip, sample, true);
                }
            }
        }
    }

    /// Removes the entries that `gone` accepts.
    pub fn forget(&mut self, gone: impl Fn(EntryKey) -> bool) {
        self.cells.forget(|_, passage| gone(passage.entry));
        self.places.forget(|_, entry, _| gone(entry));
    }

    /// Begins to count all stored entries again on these tracks.
    pub fn begin(&self, routes: BTreeSet<RouteId>) -> Derivation {
        let derived =
            Self { link: self.link, cells: self.cells.emptied(), places: self.places.emptied() };
        Derivation { routes, below: EntryKey::default(), derived }
    }

    /// Takes over a complete derivation, and removes projections on tracks that are gone.
    pub fn replace(&mut self, tracks: &Tracks, done: Derivation) {
        let Derivation { routes, derived, .. } = done;
        self.cells.replace(|route| routes.contains(&route), derived.cells);
        self.places.replace(|route| routes.contains(&route), derived.places);
        let is_gone = |route: RouteId| tracks.get(route).is_none();
        self.cells.forget(|key, passage| passage.projected && is_gone(key.route));
        self.places.forget(|key, _, is_projected| is_projected && is_gone(key.route));
    }
}

impl Derivation {
    /// Counts an entry.
    pub fn add(&mut self, tracks: &Tracks, from: (WriterNumber, EntryKey), entry: &Entry) {
        let Self { routes, derived, .. } = self;
        // Dropped handovers were reported when the current views dropped them.
        let _ = derived.add(tracks, |route| routes.contains(&route), from, entry);
    }
}
