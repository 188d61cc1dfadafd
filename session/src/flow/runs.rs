//! The runs of a flow that are in flight, lost with their path, or skipped.
//!
//! A sent run is kept with the paths that carried it and the paths from which it is still expected;
//! if there are none of the latter, it is reinjected. The tunnels' units that carried it are kept,
//! too: units that need not arrive any more are `spare`.
//!
//! A gap is a run that no path has carried, because later data was sent out of order.
//!
//! Invariants: runs are disjoint; every run without a live path is in `again`; `gaps` is the sum of
//! the lengths of gaps, and `waiting` that of all runs in `again`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Instant;

use polyrail_scheduler::PathSet;

use crate::limits::{RUNS_MAX, UNITS_MAX};

#[derive(Debug, Default)]
pub(crate) struct Runs {
    pub(super) runs: BTreeMap<u64, Run>,
    /// Starts of the runs to reinject, and of gaps.
    pub(super) again: BTreeSet<u64>,
    /// Skipped numbers.
    pub(super) gaps: u64,
    /// Numbers that are on no path: reinjections and gaps.
    pub(super) waiting: u64,
    /// Units that need not arrive any more, with the slots that carry them.
    spare: Vec<(u64, PathSet)>,
}

#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) end: u64,
    /// When it was first and last sent.
    first_at: Instant,
    last_at: Instant,
    carried: PathSet,
    live: PathSet,
    /// The newest unit that carried it, and earlier ones; none for a gap.
    unit: Option<Unit>,
    units_before: Vec<Unit>,
}

/// Data sent as one unit, on one path or with copies on others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit {
    pub tag: u64,
    pub start: u64,
    pub end: u64,
    pub on: PathSet,
    /// The bytes that its path had sent in total, including it.
    pub mark: u64,
}

impl Run {
    fn units(&self) -> impl Iterator<Item = &Unit> {
        self.units_before.iter().chain(&self.unit)
    }

    /// It was never sent.
    fn is_gap(&self) -> bool {
        self.unit.is_none()
    }

    /// The run as the next piece to send.
    fn piece(&self, start: u64) -> Piece {
        let (again, end, carried) = (!self.is_gap(), self.end, self.carried);
        Piece { start, end, again, carried, sent_at: again.then_some(self.first_at) }
    }
}

/// The next piece of a flow to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Its first number.
    pub start: u64,
    /// One above its last number.
    pub end: u64,
    /// It was sent before.
    pub again: bool,
    /// The paths (slots) that carried it.
    pub carried: PathSet,
    /// When it was first sent.
    pub sent_at: Option<Instant>,
}

/// A run in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub piece: Piece,
    /// The paths (slots) from which it is expected.
    pub live: PathSet,
    /// When it was last sent, on which paths, and the bytes that the first of them had sent then.
    pub sent_at: Instant,
    pub on: PathSet,
    pub mark: u64,
}

impl Runs {
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    pub fn is_full(&self) -> bool {
        self.len() >= RUNS_MAX
    }

    /// The first run to reinject, or gap.
    pub fn first_again(&self) -> Option<Piece> {
        let &start = self.again.first()?;
        Some(self.runs.get(&start)?.piece(start))
    }

    /// The first skipped numbers from `target` on.
    pub fn gap_from(&self, target: u64) -> Option<Piece> {
        let gap = |start: u64| self.runs.get(&start).filter(|run| run.is_gap() && run.end > target);
        let within = self.again.range(..target).next_back().copied();
        let behind = self.again.range(target..).copied();
        let mut found = within.into_iter().chain(behind).filter_map(|at| Some((at, gap(at)?)));
        let (start, run) = found.next()?;
        Some(run.piece(start.max(target)))
    }

    /// A unit with numbers that had been sent before, or skipped, was sent.
    pub fn resent(&mut self, now: Instant, unit: Unit) {
        self.split(unit.start);
        self.split(unit.end);
        if self.again.remove(&unit.start) {
            self.waiting -= unit.end - unit.start;
        }
        if self.runs.get(&unit.start).is_some_and(Run::is_gap) {
            self.runs.remove(&unit.start);
            self.gaps -= unit.end - unit.start;
        }
        let Some(run) = self.runs.get_mut(&unit.start) else { return self.sent(now, unit) };
        run.last_at = now;
        run.carried = run.carried.or(unit.on);
        run.live = run.live.or(unit.on);
        let before = run.unit.replace(unit);
        if run.units_before.len() >= UNITS_MAX - 1 {
            run.units_before.remove(0);
        }
        run.units_before.extend(before);
    }

    /// A unit was sent for the first time.
    pub fn sent(&mut self, now: Instant, unit: Unit) {
        let Unit { start, end, on, .. } = unit;
        self.insert(now, start..end, on, Some(unit));
    }

    /// Skips numbers that were never sent.
    pub fn skip(&mut self, now: Instant, range: Range<u64>) {
        if !range.is_empty() {
            self.again.insert(range.start);
            self.gaps += range.end - range.start;
            self.waiting += range.end - range.start;
            self.insert(now, range, PathSet::EMPTY, None);
        }
    }

    fn insert(&mut self, now: Instant, range: Range<u64>, on: PathSet, unit: Option<Unit>) {
        let Range { start, end } = range;
        let (first_at, last_at, carried, live) = (now, now, on, on);
        let units_before = Vec::new();
        self.runs.insert(start, Run { end, first_at, last_at, carried, live, unit, units_before });
    }

    /// Returns the units that need not arrive any more: of runs that were sent more than once and
    /// have arrived, and of truncated runs.
    pub fn take_spare(&mut self) -> Vec<(u64, PathSet)> {
        std::mem::take(&mut self.spare)
    }

    /// All units in flight, because the flow is over.
    pub fn all_units(&self) -> Vec<(u64, PathSet)> {
        distinct(self.runs.values().flat_map(Run::units))
    }

    /// Whether `at` lies inside a run.
    pub fn is_inside(&self, at: u64) -> bool {
        self.runs.range(..at).next_back().is_some_and(|(_, run)| run.end > at)
    }

    /// Makes `at` the edge of a run if it lies inside one.
    fn split(&mut self, at: u64) {
        let Some((&start, run)) = self.runs.range_mut(..at).next_back() else { return };
        if run.end <= at {
            return;
        }
        let tail = run.clone();
        run.end = at;
        self.runs.insert(at, tail);
        if self.again.contains(&start) {
            self.again.insert(at);
        }
    }

    /// Removes all gaps; returns their length.
    pub fn drop_gaps(&mut self) -> u64 {
        if self.gaps > 0 {
            let (runs, again) = (&mut self.runs, &mut self.again);
            again.retain(|start| !runs.get(start).is_some_and(Run::is_gap));
            runs.retain(|_, run| !run.is_gap());
            self.waiting -= self.gaps;
        }
        std::mem::take(&mut self.gaps)
    }

    /// Whether any of these numbers is in a gap.
    pub fn has_gap(&self, range: &Range<u64>) -> bool {
        let below = self.runs.range(..range.end).rev();
        let mut within = below.take_while(|(_, run)| run.end > range.start);
        self.gaps > 0 && !range.is_empty() && within.any(|(_, run)| run.is_gap())
    }

    /// These numbers are acknowledged; passes `each` the start and length of every run among them,
    /// and the slots from which the run was expected.
    pub fn settle(&mut self, range: Range<u64>, each: &mut impl FnMut(u64, u64, PathSet)) {
        if range.is_empty() || self.runs.is_empty() {
            return;
        }
        self.split(range.start);
        self.split(range.end);
        while let Some((&start, run)) = self.runs.range(range.clone()).next() {
            each(start, run.end - start, run.live);
            if self.again.remove(&start) {
                self.waiting -= run.end - start;
            }
            if let Some(run) = self.runs.remove(&start)
                && run.carried.len() > 1
            {
                self.spare_units(&run);
            }
        }
    }

    /// Marks the units of a settled run as spare, unless another run of theirs is in flight.
    fn spare_units(&mut self, run: &Run) {
        for unit in run.units() {
            if !self.is_out(unit.start, unit.end) {
                self.spare.push((unit.tag, unit.on));
            }
        }
    }

    /// A path may not deliver these numbers. Returns how many of them are not expected from it any
    /// more; with `forget`, the path may carry them again.
    pub fn give_up(&mut self, start: u64, end: u64, slot: usize, forget: bool) -> u64 {
        let mut freed = 0;
        for (&at, run) in self.runs.range_mut(start..end) {
            if forget {
                run.carried.remove(slot);
                let units = run.units_before.iter_mut().chain(&mut run.unit);
                units.for_each(|unit| unit.on.remove(slot));
            }
            if !run.live.contains(slot) {
                continue;
            }
            run.live.remove(slot);
            freed += run.end - at;
            if run.live.is_empty() && self.again.insert(at) {
                self.waiting += run.end - at;
            }
        }
        freed
    }

    /// Whether any of these numbers is in flight.
    pub fn is_out(&self, start: u64, end: u64) -> bool {
        self.runs.range(start..end).next().is_some()
    }

    /// Discards all runs from `after` on. Passes `each` the length of every run, and the slots from
    /// which it was expected.
    pub fn truncate(&mut self, after: u64, mut each: impl FnMut(u64, PathSet)) {
        self.split(after);
        let cut = self.runs.split_off(&after);
        for (start, run) in &cut {
            self.gaps -= if run.is_gap() { run.end - start } else { 0 };
            self.waiting -= if self.again.contains(start) { run.end - start } else { 0 };
            each(run.end - start, run.live);
        }
        let gone = |unit: &&Unit| !self.is_out(unit.start, unit.end);
        let spare = distinct(cut.values().flat_map(Run::units).filter(gone));
        self.spare.extend(spare);
        self.again.retain(|&start| start < after);
    }

    /// The runs that are expected from some path, in their order.
    pub fn expected(&self) -> impl DoubleEndedIterator<Item = Waiting> {
        self.runs.iter().filter(|(_, run)| !run.live.is_empty()).map(|(&start, run)| {
            let Run { end, last_at, carried, live, first_at, .. } = *run;
            let piece = Piece { start, end, again: true, carried, sent_at: Some(first_at) };
            let (on, mark) = run.unit.map_or((PathSet::EMPTY, 0), |unit| (unit.on, unit.mark));
            Waiting { piece, live, sent_at: last_at, on, mark }
        })
    }

    /// The length of every run, and the slots from which it is expected.
    pub fn out(&self) -> impl Iterator<Item = (u64, PathSet)> {
        self.runs.iter().map(|(&start, run)| (run.end - start, run.live))
    }

    #[cfg(test)]
    pub(super) fn units_kept(&self) -> usize {
        self.runs.values().map(|run| run.units().count()).sum()
    }
}

/// Each unit once, because runs may share a unit.
fn distinct<'a>(units: impl Iterator<Item = &'a Unit>) -> Vec<(u64, PathSet)> {
    let mut units: Vec<(u64, PathSet)> = units.map(|unit| (unit.tag, unit.on)).collect();
    units.sort_unstable_by_key(|(tag, _)| *tag);
    units.dedup_by_key(|(tag, _)| *tag);
    units
}
