//! What is remembered of a cell: its last handovers, in a bounded summary that outlives the trips.
//!
//! Handovers of a train that stands are not among them, and of each trip only the first few: what
//! happens while one train stays somewhere must not outweigh those that pass.

use std::collections::{BTreeSet, VecDeque};

use polyrail_model::{
    CellId, Direction, Handover, HandoverOutcome, Position, RouteId, Rsrp, TripId,
};

/// Whose handovers are counted together: those out of one cell, on one track, in one direction.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CellKey {
    /// The carrier.
    pub carrier: String,
    /// The track.
    pub route: RouteId,
    /// Which way the train goes.
    pub direction: Direction,
    /// The cell that is left.
    pub cell: CellId,
}

impl CellKey {
    /// Where a handover counts.
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
    /// Counts the handovers of the trip.
    pub sequence: u32,
    /// Where it began.
    pub position: Position,
    /// How strong the cell was.
    pub rsrp: Option<Rsrp>,
    /// How it ended.
    pub outcome: HandoverOutcome,
}

/// The last handovers out of a cell; at most [`PASSAGES_MAX`], and of one trip the first
/// [`TRIP_PASSAGES_MAX`].
///
/// Trips are in the order in which they came, or in that of their times where those are known
/// ([`CellHistory::add_in_order`]); passages of a trip by their numbers: in whatever order the
/// records of a trip come, the same are held. When it is full, what is first falls out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CellHistory {
    passages: VecDeque<Passage>,
}

impl CellHistory {
    /// Adds a handover, unless the train stood, its trip has earlier ones here, or it is here
    /// already. True when it was added.
    pub fn add(&mut self, handover: &Handover) -> bool {
        let Handover { trip, sequence, position, rsrp, outcome, .. } = *handover;
        let new = Passage { trip, sequence, position, rsrp, outcome };
        is_learned(handover) && self.insert(new, self.passages.len())
    }

    /// Adds a handover as [`CellHistory::add`] does; but a trip that is not here yet goes behind
    /// those that are not newer, by what `is_newer` says of a trip that is here, and before all
    /// others. A full history thus keeps the newest trips, in whatever order they come.
    ///
    /// # Errors
    /// Those of `is_newer`; nothing was added.
    pub fn add_in_order<E>(
        &mut self,
        handover: &Handover,
        mut is_newer: impl FnMut(TripId) -> Result<bool, E>,
    ) -> Result<bool, E> {
        let Handover { trip, sequence, position, rsrp, outcome, .. } = *handover;
        if !is_learned(handover) {
            return Ok(false);
        }
        let (mut first, mut end) = (0, self.passages.len());
        // Nearly all come in order: the last one is looked at before the middle.
        let mut look = end.saturating_sub(1);
        while first < end {
            match is_newer(self.passages[look].trip)? {
                true => end = look,
                false => first = look + 1,
            }
            look = first + (end - first) / 2;
        }
        Ok(self.insert(Passage { trip, sequence, position, rsrp, outcome }, first))
    }

    /// Inserts a passage; of a trip that is not here yet, at a place between two trips.
    fn insert(&mut self, new: Passage, place_of_trip: usize) -> bool {
        let first = self.passages.iter().position(|one| one.trip == new.trip);
        let first = first.unwrap_or(place_of_trip);
        let own = self.passages.range(first..).take_while(|one| one.trip == new.trip);
        let held = own.clone().count();
        let place = own.clone().take_while(|one| one.sequence < new.sequence).count();
        if place >= TRIP_PASSAGES_MAX || own.clone().any(|one| one.sequence == new.sequence) {
            return false;
        }
        if held >= TRIP_PASSAGES_MAX {
            self.passages.remove(first + held - 1);
        }
        self.passages.insert(first + place, new);
        if self.passages.len() > PASSAGES_MAX {
            self.passages.pop_front();
            return first + place > 0;
        }
        true
    }

    /// The handovers, the oldest trip first.
    pub fn passages(&self) -> impl ExactSizeIterator<Item = &Passage> {
        self.passages.iter()
    }

    /// On how many trips a handover failed, of those at places that `counts` takes.
    pub fn trips_that_failed(&self, counts: impl Fn(Position) -> bool) -> u32 {
        let failed = |one: &&Passage| one.outcome.is_failure() && counts(one.position);
        let trips: BTreeSet<TripId> =
            self.passages.iter().filter(failed).map(|one| one.trip).collect();
        trips.len() as u32
    }

    /// The same without those of one trip.
    pub fn without(&self, trip: TripId) -> Self {
        Self { passages: self.passages.iter().filter(|one| one.trip != trip).copied().collect() }
    }
}

impl FromIterator<Passage> for CellHistory {
    /// From passages, the oldest trip first; what is bounded is bounded here as well.
    fn from_iter<I: IntoIterator<Item = Passage>>(passages: I) -> Self {
        let mut history = Self::default();
        for passage in passages {
            history.insert(passage, history.passages.len());
        }
        history
    }
}

/// Whether cells learn from a handover: not while the train stood. A modem that goes to and fro at
/// a platform, or in a depot at night, says nothing about those who pass.
pub fn is_learned(handover: &Handover) -> bool {
    handover.speed.metres_per_second() >= STANDING
}

/// What a cell remembers; smartcore's SVM takes seconds over thousands.
pub const PASSAGES_MAX: usize = 128;
/// Handovers of one trip that a cell remembers. The first ones count: they are where a train that
/// passes leaves the cell, and what was learned of a trip does not change while it goes on. Two,
/// because a train may come back to a cell for a moment and leave it for good elsewhere.
pub const TRIP_PASSAGES_MAX: usize = 2;
/// A slower train stands, in metres a second: positions that waver look like that.
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
    fn the_first_two_of_a_trip_are_held_in_whatever_order_they_come() {
        let orders: [&[(u64, u32)]; 4] = [
            &[(1, 3), (1, 5), (1, 7), (2, 1), (2, 2), (2, 9)],
            &[(1, 7), (2, 9), (1, 5), (2, 2), (2, 1), (1, 3)],
            &[(1, 5), (1, 3), (1, 3), (2, 2), (1, 7), (2, 9), (2, 1)],
            &[(1, 7), (1, 3), (2, 2), (2, 1), (1, 5), (2, 1)],
        ];
        for order in orders {
            assert_eq!(held(&of(order)), [(1, 3), (1, 5), (2, 1), (2, 2)], "{order:?}");
        }
        let all = orders[1].iter().map(|(trip, sequence)| of(&[(*trip, *sequence)]));
        let all: CellHistory =
            all.flat_map(|one| one.passages().copied().collect::<Vec<_>>()).collect();
        assert_eq!(all, of(orders[0]), "as from a file");
    }

    #[test]
    fn what_is_added_is_told() {
        let mut history = of(&[(1, 3)]);
        let cases = [((1, 3), false), ((1, 5), true), ((1, 5), false), ((1, 6), false)];
        for ((trip, sequence), added) in cases.into_iter().chain([((1, 4), true)]) {
            assert_eq!(history.add(&one(trip, sequence)), added, "{sequence}");
        }
        assert_eq!(held(&history), [(1, 3), (1, 4)]);
    }

    /// A train goes from cell to cell and back all night.
    #[test]
    fn one_trip_does_not_push_out_the_others() {
        let trips = PASSAGES_MAX as u64;
        let mut history = of(&(0..trips).map(|trip| (trip, 0)).collect::<Vec<_>>());
        for sequence in 0..1_000 {
            history.add(&one(trips, sequence));
        }
        let rest: Vec<_> = (2..trips).map(|trip| (trip, 0)).collect();
        assert_eq!(held(&history), [&rest[..], &[(trips, 0), (trips, 1)]].concat());
        assert!(!history.add(&one(2, 0)), "it is there");
        // Before all others it falls out at once.
        let mut first = of(&(0..trips).map(|trip| (trip, 5)).collect::<Vec<_>>());
        assert!(!first.add(&one(0, 4)) && held(&first)[0] == (0, 5));
    }

    #[test]
    fn a_full_history_keeps_the_newest_in_whatever_order_they_come() {
        let all: Vec<(u64, u32)> =
            (0..100).flat_map(|trip| [(trip, 3), (trip, 7)]).chain([(100, 1)]).collect();
        let mut backwards = all.clone();
        backwards.reverse();
        let mut shuffled = all.clone();
        shuffled.sort_by_key(|(trip, sequence)| (trip * 37 % 101, *sequence));
        for order in [&all, &backwards, &shuffled] {
            let mut history = CellHistory::default();
            for (trip, sequence) in order {
                let newer = |other: TripId| Ok::<_, ()>(other.0 > *trip);
                history.add_in_order(&one(*trip, *sequence), newer).unwrap();
            }
            assert_eq!(held(&history), all[all.len() - PASSAGES_MAX..]);
            let (before, stands) = (history.clone(), polyrail_model::Speed::default());
            let failing = |_| Err("a page cannot be read");
            assert!(history.add_in_order(&one(200, 0), failing).is_err());
            let standing = Handover { speed: stands, ..one(200, 0) };
            assert_eq!(history.add_in_order(&standing, failing), Ok(false));
            assert_eq!(history, before);
        }
    }

    #[test]
    fn nothing_is_learned_from_a_train_that_stands() {
        for (speed, learned) in [(0.0, false), (1.99, false), (2.0, true), (83.0, true)] {
            let speed = polyrail_model::Speed::from_metres_per_second(speed);
            let handover = Handover { speed, ..one(1, 1) };
            assert_eq!(CellHistory::default().add(&handover), learned, "{speed:?}");
        }
    }

    #[test]
    fn failures_of_one_trip_are_one_trip() {
        let of = |trips: [u64; 2]| -> CellHistory {
            let outcome = HandoverOutcome::TypeII;
            let mut history = CellHistory::default();
            for (sequence, trip) in (0..).zip(trips) {
                history.add(&Handover { outcome, ..one(trip, sequence) });
            }
            history
        };
        let count = |trips| of(trips).trips_that_failed(|_| true);
        assert_eq!((count([1, 1]), count([1, 2])), (1, 2));
        assert_eq!(of([1, 2]).trips_that_failed(|_| false), 0);
    }
}
