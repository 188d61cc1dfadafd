//! The forecaster, kept equal to the cells' histories in the database.

use super::buffered::BufferedStore;
use crate::forecast::{ForecastSettings, Forecaster};

/// A forecaster that follows the database, and keeps its cells while the database is unreadable.
pub(super) struct CellCache {
    pub(super) forecaster: Forecaster,
    guard: bool,
}

impl CellCache {
    /// From all cells of the database.
    pub(super) fn new(store: &mut BufferedStore, guard: bool) -> Self {
        let mut cache = Self { forecaster: forecaster(guard), guard };
        cache.follow(store, guard);
        cache
    }

    /// Applies the changes of the database. A new setting of the guard needs all cells: it
    /// waits until the database can be read.
    pub(super) fn follow(&mut self, store: &mut BufferedStore, guard: bool) {
        let cells = if guard == self.guard {
            store.take_changed()
        } else if let Some(cells) = store.cells() {
            *self = Self { forecaster: forecaster(guard), guard };
            cells
        } else {
            return;
        };
        for (key, history) in cells {
            self.forecaster.learn(key, history);
        }
    }
}

fn forecaster(guard: bool) -> Forecaster {
    Forecaster::new(ForecastSettings { guard, ..ForecastSettings::default() })
}
