//! The forecaster, kept equal to the cells' histories in the database.

use std::collections::BTreeSet;

use polyrail_model::TripId;

use super::buffered::BufferedStore;
use crate::forecast::{ForecastSettings, Forecaster};
use crate::history::{CellHistory, CellKey, Passage};
use crate::views::Cells;

/// A forecaster that follows the database, and keeps its cells while the database is unreadable.
pub(super) struct CellCache {
    pub(super) forecaster: Forecaster,
    pub(super) cells: Cells,
    guard: bool,
}

impl CellCache {
    /// From all cells of the database.
    pub(super) fn new(store: &mut BufferedStore, guard: bool) -> Self {
        let mut cache = Self { forecaster: forecaster(guard), cells: Cells::default(), guard };
        cache.follow(store, guard);
        cache
    }

    /// Applies the changes of the database. A new setting of the guard needs all cells: it
    /// waits until the database can be read.
    pub(super) fn follow(&mut self, store: &mut BufferedStore, guard: bool) {
        let cells = if guard == self.guard {
            store.take_changed()
        } else if let Some(cells) = store.cells() {
            (self.forecaster, self.guard) = (forecaster(guard), guard);
            cells
        } else {
            return;
        };
        for (key, history) in cells {
            self.learn(key, &history);
        }
    }

    /// Takes a cell of the database. The passages known before stay, as older ones: a database that
    /// had to be created again knows less.
    fn learn(&mut self, key: CellKey, history: &CellHistory) {
        let known = self.cells.get(&key).map(|cell| cell.history.clone()).unwrap_or_default();
        let id = |one: &Passage| (one.trip, one.sequence);
        let told: BTreeSet<(TripId, u32)> = history.passages().map(id).collect();
        let trips: BTreeSet<TripId> = history.passages().map(|one| one.trip).collect();
        let before = known.passages().filter(|one| !told.contains(&id(one)));
        let (shared, older): (Vec<_>, Vec<_>) = before.partition(|one| trips.contains(&one.trip));
        let all = older.into_iter().chain(history.passages()).chain(shared);
        self.cells.put(key, all.copied().collect());
    }
}

fn forecaster(guard: bool) -> Forecaster {
    Forecaster::new(ForecastSettings { guard, ..ForecastSettings::default() })
}
