//! What a train is told on its way to one handover, by the rules of the forecaster.
//!
//! Where the handover is going to be decides nothing here: the train goes through its cell from
//! where it joined it, and at each place the forecast counts that is in force there
//! ([`CellForecast::in_force`]). So on its way to the second place where a cell is left it passes
//! the first, and beyond all that history knows nothing is foreseen.

use std::collections::BTreeMap;

use polyrail_model::{Handover, Position};

use super::speed;
use crate::forecast::cell::CellForecast;
use crate::history::CellKey;

/// All cells that were learned, by what they foresee.
pub(super) type FittedCells<'a> = BTreeMap<&'a CellKey, Vec<CellForecast>>;

/// A train's way through the cell that a handover leaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way<'a> {
    /// Its end.
    pub handover: &'a Handover,
    /// Where the cell was joined; `None`: before the trip.
    pub from: Option<Position>,
}

/// What a train is told on such a way.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Foreseen {
    /// Some place was foreseen.
    pub any: bool,
    /// One was passed while it was.
    pub passed: bool,
    /// The one that is when the handover begins.
    pub last: Option<Position>,
}

impl<'a> Way<'a> {
    /// The ways of a trip, whose handovers come in their order.
    pub fn all(trip: &[&'a Handover]) -> Vec<Self> {
        let mut joined: BTreeMap<&str, &Handover> = BTreeMap::new();
        let way = |handover: &&'a Handover| {
            let handover = *handover;
            let before = joined.insert(&handover.carrier, handover);
            let track = |one: &Handover| (one.route, one.direction);
            let before = before.filter(|before| track(before) == track(handover));
            let along = |one: &Handover| handover.direction.sign() * one.position.metres();
            // One that was farther along went back since.
            let from = before.map(|one| if along(one) < along(handover) { one } else { handover });
            Self { handover, from: from.map(|one| one.position) }
        };
        trip.iter().map(way).collect()
    }

    /// The forecasts of the cell, if it was learned.
    pub fn cell<'c>(&self, cells: &'c FittedCells) -> &'c [CellForecast] {
        cells.get(&CellKey::of(self.handover)).map_or(&[], Vec::as_slice)
    }

    /// What is foreseen on it where `place` says of each forecast what it foresees.
    pub fn foreseen(
        &self,
        cell: &[CellForecast],
        place: impl Fn(&CellForecast, f64) -> Option<Position>,
    ) -> Foreseen {
        let (to, speed) = (self.handover.position, speed(self.handover));
        let mut all = Foreseen::default();
        for one in CellForecast::along(cell, self.from, to) {
            if let Some(place) = place(one, speed) {
                all.any = true;
                all.passed |= one.is_passed(place, to);
            }
        }
        all.last = CellForecast::in_force(cell, to).and_then(|one| place(one, speed));
        all
    }
}
