//! The history of a cell: its last handovers, a bounded summary that outlives the trips.
//!
//! It excludes handovers of a standing train and keeps only the first few of each trip, because one
//! train that stays in a place must not outweigh the trains that pass it. For the same reason no
//! writer outweighs the others ([`CellHistory::weighed`]).

use std::collections::{BTreeSet, VecDeque};

use polyrail_model::{
    CellId, Direction, Handover, HandoverOutcome, Position, RouteId, Rsrp, TripId,
};

use crate::entry::{EntryKey, WriterNumber};
use crate::fair::{crowded_out, weighed};

/// The key of a history: the handovers out of one cell, on one track, in one direction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellKey {
    /// The carrier.
    pub carrier: String,
    /// The track.
    pub route: RouteId,
    /// The direction of travel.
    pub direction: Direction,
    /// The old cell.
    pub cell: CellId,
}

impl CellKey {
    /// The key of a handover's history.
    pub fn of(handover: &Handover) -> Self {
        let Handover { route, direction, from, .. } = *handover;
        Self { carrier: handover.carrier.clone(), route, direction, cell: from }
    }
}

/// One handover out of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// The trip.
    pub trip: TripId,
    /// The number of the handover in its trip.
    pub sequence: u32,
    /// The position at its beginning.
    pub position: Position,
    /// The power of the cell.
    pub rsrp: Option<Rsrp>,
    /// How it ended.
    pub outcome: HandoverOutcome,
    /// Who observed it.
    pub writer: WriterNumber,
    /// Its entry.
    pub entry: EntryKey,
    /// It was recorded on another track, and `position` is the projection on this one.
    pub projected: bool,
}

impl Passage {
    /// The passage of a writer's handover; none while the train stood. A modem that alternates
    /// between cells at a platform, or in a depot at night, says nothing about passing trains.
    pub fn of(writer: WriterNumber, entry: EntryKey, handover: &Handover) -> Option<Self> {
        let Handover { trip, sequence, position, speed, rsrp, outcome, .. } = *handover;
        let projected = false;
        let passage = Self { trip, sequence, position, rsrp, outcome, writer, entry, projected };
        (speed.metres_per_second() >= STANDING).then_some(passage)
    }

    fn is_of_trip(&self, other: &Self) -> bool {
        (self.trip, self.writer) == (other.trip, other.writer)
    }
}

/// The last handovers out of a cell: at most [`PASSAGES_MAX`], and the first [`TRIP_PASSAGES_MAX`]
/// of each trip of a writer.
///
/// Trips are in the order of arrival. Passages of a trip are in order of their numbers, so the
/// order in which a trip's records arrive does not matter. A full history drops the first passage
/// of the writer that has most, so that no writer displaces another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CellHistory {
    passages: VecDeque<Passage>,
}

/// The effect of an insertion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inserted {
    /// The history holds the passage, and did not before.
    pub added: bool,
    /// The passage that a full history dropped for it, or itself.
    pub dropped: Option<Passage>,
}

impl CellHistory {
    /// Adds a handover of this node, unless the train stood, its trip has enough earlier ones here,
    /// or it is known. Returns whether it was added.
    pub fn add(&mut self, handover: &Handover) -> bool {
        let new = Passage::of(WriterNumber::OWN, EntryKey::default(), handover);
        new.is_some_and(|new| self.insert(new).added)
    }

    /// Adds a passage of any writer; a new trip is the newest.
    pub fn insert(&mut self, new: Passage) -> Inserted {
        // Most handovers are of a recent trip.
        let last = self.passages.iter().rposition(|one| one.is_of_trip(&new));
        let first = last.map_or(self.passages.len(), |last| {
            let before = self.passages.range(..last).rev();
            last - before.take_while(|one| one.is_of_trip(&new)).count()
        });
        let same = self.passages.range(first..).take_while(|one| one.is_of_trip(&new));
        let held = same.clone().count();
        let place = same.clone().take_while(|one| one.sequence < new.sequence).count();
        if place >= TRIP_PASSAGES_MAX || same.clone().any(|one| one.sequence == new.sequence) {
            return Inserted::default();
        }
        if held >= TRIP_PASSAGES_MAX {
            self.passages.remove(first + held - 1);
        }
        self.passages.insert(first + place, new);
        if self.passages.len() <= PASSAGES_MAX {
            return Inserted { added: true, dropped: None };
        }
        let gone = crowded_out(self.passages.iter().map(|one| one.writer));
        let dropped = gone.and_then(|gone| self.passages.remove(gone));
        Inserted { added: gone != Some(first + place), dropped }
    }

    /// The handovers, oldest trip first.
    pub fn passages(&self) -> impl ExactSizeIterator<Item = &Passage> + Clone {
        self.passages.iter()
    }

    /// The writers, each once.
    pub fn writers(&self) -> BTreeSet<WriterNumber> {
        self.passages.iter().map(|one| one.writer).collect()
    }

    /// The history as it counts for a node: of each other writer only the newest passages, no more
    /// than the median of the others' numbers. A writer with the cell for itself has nobody to
    /// compare with, and counts in full.
    pub fn weighed(&self, own: WriterNumber) -> Self {
        let newest_first = weighed(self.passages.iter().rev(), |one| one.writer, own);
        Self { passages: newest_first.into_iter().rev().collect() }
    }

    /// The number of trips with a failure.
    pub fn trips_that_failed(&self) -> u32 {
        let failed = self.passages.iter().filter(|one| one.outcome.is_failure());
        let trips: BTreeSet<_> = failed.map(|one| (one.writer, one.trip)).collect();
        trips.len() as u32
    }

    /// The passages that `keeps` accepts.
    pub(crate) fn retained(&self, mut keeps: impl FnMut(&Passage) -> bool) -> Self {
        Self { passages: self.passages.iter().filter(|one| keeps(one)).copied().collect() }
    }
}

/// Passages of a cell; smartcore's SVM takes seconds for thousands.
pub const PASSAGES_MAX: usize = 128;
/// Passages of one trip in a history. The first ones count, because they are where a passing train
/// leaves the cell, and because later handovers of the trip then change nothing. Two, because a
/// train may leave a cell for a moment and then for good elsewhere.
pub const TRIP_PASSAGES_MAX: usize = 2;
/// A slower train stands, in metres per second; noisy positions look like this.
const STANDING: f64 = 2.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::handover;

    fn one(trip: u64, sequence: u32) -> Handover {
        Handover { trip: TripId(trip), sequence, ..handover() }
    }

    fn held(history: &CellHistory) -> Vec<(u64, u32)> {
        history.passages().map(|one| (one.trip.0, one.sequence)).collect()
    }

    fn of(all: &[(u64, u32)]) -> CellHistory {
        let mut history = CellHistory::default();
        for (trip, sequence) in all {
            history.add(&one(*trip, *sequence));
        }
        history
    }

    #[test]
    fn first_two_of_a_trip_are_kept_in_any_order_of_arrival() {
        let orders: [&[(u64, u32)]; 4] = [
            &[(1, 3), (1, 5), (1, 7), (2, 1), (2, 2), (2, 9)],
            &[(1, 7), (2, 9), (1, 5), (2, 2), (2, 1), (1, 3)],
            &[(1, 5), (1, 3), (1, 3), (2, 2), (1, 7), (2, 9), (2, 1)],
            &[(1, 7), (1, 3), (2, 2), (2, 1), (1, 5), (2, 1)],
        ];
        for order in orders {
            assert_eq!(held(&of(order)), [(1, 3), (1, 5), (2, 1), (2, 2)], "{order:?}");
        }
    }

    /// A train alternates between cells all night.
    #[test]
    fn one_trip_does_not_displace_the_others() {
        let trips = PASSAGES_MAX as u64;
        let mut history = of(&(0..trips).map(|trip| (trip, 0)).collect::<Vec<_>>());
        for sequence in 0..1_000 {
            history.add(&one(trips, sequence));
        }
        let rest: Vec<_> = (2..trips).map(|trip| (trip, 0)).collect();
        assert_eq!(held(&history), [&rest[..], &[(trips, 0), (trips, 1)]].concat());
        assert!(!history.add(&one(2, 0)), "it is there");
        // As the first passage it is dropped at once.
        let mut first = of(&(0..trips).map(|trip| (trip, 5)).collect::<Vec<_>>());
        assert!(!first.add(&one(0, 4)) && held(&first)[0] == (0, 5));
    }
}
