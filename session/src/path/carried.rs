//! The runs that a path carried, in order, until they are settled.
//!
//! A run is settled when all its numbers are acknowledged or its flow is over. Settled entries are
//! removed from the front, and everywhere once the list has doubled: a peer that never
//! acknowledges the first run would otherwise make the list grow with every later one.

use std::collections::{BTreeSet, VecDeque};

use polyrail_model::FlowId;

/// A run sent over a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Carried {
    pub flow: FlowId,
    pub start: u64,
    pub end: u64,
}

#[derive(Debug, Default)]
pub(crate) struct CarriedRuns {
    runs: VecDeque<Carried>,
    /// The length after the last removal of all settled entries.
    kept: usize,
}

impl CarriedRuns {
    /// Adds a run. If the list has doubled, removes copies and the runs that are not `out` any
    /// more.
    pub fn push(&mut self, run: Carried, out: impl Fn(&Carried) -> bool) {
        if self.runs.len() >= 2 * self.kept + SETTLED_MAX {
            let mut seen = BTreeSet::new();
            self.runs.retain(|run| out(run) && seen.insert(*run));
            self.kept = self.runs.len();
        }
        self.runs.push_back(run);
    }

    /// Removes the runs at the front that are not `out` any more.
    pub fn trim(&mut self, out: impl Fn(&Carried) -> bool) {
        while self.runs.front().is_some_and(|run| !out(run)) {
            self.runs.pop_front();
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Carried> {
        self.runs.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Settled entries that stay beyond twice the runs in flight.
const SETTLED_MAX: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64) -> Carried {
        Carried { flow: FlowId(1), start, end: start + 1 }
    }

    #[test]
    fn settled_and_repeated_runs_do_not_accumulate_behind_one_in_flight() {
        let mut carried = CarriedRuns::default();
        let is_out = |run: &Carried| run.start < 10;
        for start in 0..100_000 {
            carried.push(run(start), is_out);
            carried.push(run(start % 10), is_out);
            carried.trim(is_out);
            assert!(carried.runs.len() <= SETTLED_MAX + 21, "{}", carried.runs.len());
        }
        carried.push(run(100_000), is_out);
        assert!((0..10).map(run).eq(carried.iter().copied().take(10)), "in order");
        carried.trim(|run| run.start == 100_000);
        assert_eq!(carried.iter().filter(|run| run.start < 10).count() + 1, carried.runs.len());
        carried.trim(|_| false);
        assert!(carried.is_empty());
    }

    #[test]
    fn runs_in_flight_stay() {
        let mut carried = CarriedRuns::default();
        (0..10_000).for_each(|start| carried.push(run(start), |_| true));
        assert!((0..10_000).map(run).eq(carried.iter().copied()));
    }
}
