//! What is remembered of a cell: its last handovers, in a bounded summary that outlives the trips.

use std::collections::VecDeque;

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

/// The last handovers out of a cell, the oldest first; at most [`PASSAGES_MAX`], the oldest fall
/// out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CellHistory {
    passages: VecDeque<Passage>,
}

impl CellHistory {
    /// Adds a handover; one that it holds already changes nothing. True when it was added.
    pub fn add(&mut self, handover: &Handover) -> bool {
        let Handover { trip, sequence, position, rsrp, outcome, .. } = *handover;
        let known = |passage: &Passage| passage.trip == trip && passage.sequence == sequence;
        if self.passages.iter().any(known) {
            return false;
        }
        if self.passages.len() >= PASSAGES_MAX {
            self.passages.pop_front();
        }
        self.passages.push_back(Passage { trip, sequence, position, rsrp, outcome });
        true
    }

    /// The handovers, the oldest first.
    pub fn passages(&self) -> impl ExactSizeIterator<Item = &Passage> {
        self.passages.iter()
    }

    /// The same without those of one trip.
    pub fn without(&self, trip: TripId) -> Self {
        Self { passages: self.passages.iter().filter(|one| one.trip != trip).copied().collect() }
    }
}

impl FromIterator<Passage> for CellHistory {
    /// From passages of which each is another, the oldest first; the last [`PASSAGES_MAX`] stay.
    fn from_iter<I: IntoIterator<Item = Passage>>(passages: I) -> Self {
        let mut passages: VecDeque<_> = passages.into_iter().collect();
        passages.drain(..passages.len().saturating_sub(PASSAGES_MAX));
        Self { passages }
    }
}

/// What a cell remembers; smartcore's SVM takes seconds over thousands.
pub const PASSAGES_MAX: usize = 128;
