//! What forecasts are made from: the cells' histories as the database has them.

use std::time::Instant;

use polyrail_model::Handover;
use polyrail_predictor::forecast::{ForecastSettings, Forecaster};

use super::keeper::Keeper;

/// A forecaster that knows what the database knows, and keeps it while there is none.
pub(super) struct Learned {
    pub(super) forecaster: Forecaster,
    guard: bool,
}

impl Learned {
    /// From all that the database holds.
    pub(super) fn new(now: Instant, keeper: &mut Keeper, guard: bool) -> Self {
        let mut learned = Self { forecaster: forecaster(guard), guard };
        learned.follow(now, keeper, guard);
        learned
    }

    /// A handover that was just seen.
    pub(super) fn add(&mut self, handover: &Handover) {
        self.forecaster.add(handover);
    }

    /// Takes over what has changed in the database, beside what is in memory: one that was begun
    /// anew knows less. Another guard judges all cells anew; it waits
    /// for a database that can be read, for what is in memory alone would be forgotten with it.
    pub(super) fn follow(&mut self, now: Instant, keeper: &mut Keeper, guard: bool) {
        let cells = if guard == self.guard {
            keeper.take_changed(now)
        } else if let Some(cells) = keeper.cells(now) {
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
