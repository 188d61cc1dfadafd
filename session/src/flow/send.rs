//! The sending half of a flow: the buffer, what is on its way, and what goes again.
//!
//! Sequence numbers are those of the receiving half. Segments stay in the buffer until they are
//! acknowledged. A run that was sent is remembered with the paths that carried it and those from
//! which it may still be expected; when the latter are none, it goes again. The units of tunnels in
//! which it went are remembered, too: those that need not arrive any more are `spare`.
//!
//! Data may go out of turn, further on than the first byte never sent. What it skips over is a run,
//! too, that no path has carried: a gap. It goes in its turn, as what goes again does.
//!
//! Invariants: runs are disjoint and cover exactly what is below the first number above all that
//! was sent, and not acknowledged; every run without a live path is queued to go again; `gaps` is
//! the sum of the lengths of gaps, at most `AHEAD_MAX`, and `waiting` that of all that is queued.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Instant;

use polyrail_scheduler::PathSet;

use crate::limits::{AHEAD_MAX, RUNS_MAX, UNITS_MAX};

#[derive(Debug)]
pub(crate) struct SendHalf {
    /// 1 when an OPEN leads, else 0.
    first: u64,
    /// From `buffer_start` on; ends at `written`.
    buffer: VecDeque<u8>,
    buffer_start: u64,
    written: u64,
    fin: bool,
    /// One above the highest number sent; all above was never sent.
    next: u64,
    /// All below is acknowledged.
    acked: u64,
    runs: BTreeMap<u64, Run>,
    /// Starts of the runs that go again, and of gaps.
    again: BTreeSet<u64>,
    /// Numbers below `next` that were never sent.
    gaps: u64,
    /// Numbers below `next` that are on no path: what goes again, and gaps.
    waiting: u64,
    /// Units that are wanted no more, with the slots on which they went.
    spare: Vec<(u64, PathSet)>,
    /// The peer's window, as a number that may not be passed.
    pub limit: u64,
    /// What the peer's reader has taken.
    pub drained: u64,
}

#[derive(Clone, Debug)]
struct Run {
    end: u64,
    /// When it went first, and last.
    first_at: Instant,
    last_at: Instant,
    carried: PathSet,
    live: PathSet,
    /// The newest unit in which it went, and those before; none for a gap.
    unit: Option<Unit>,
    units_before: Vec<Unit>,
}

/// What went out in one piece, on one path or with copies on others.
#[derive(Clone, Copy, Debug)]
struct Unit {
    tag: u64,
    start: u64,
    end: u64,
    on: PathSet,
    /// What its path had sent in all, with it.
    mark: u64,
}

impl Run {
    fn units(&self) -> impl Iterator<Item = &Unit> {
        self.units_before.iter().chain(&self.unit)
    }

    /// It was never sent.
    fn is_gap(&self) -> bool {
        self.unit.is_none()
    }

    /// It as the next thing to send.
    fn piece(&self, start: u64) -> Piece {
        let (again, end, carried) = (!self.is_gap(), self.end, self.carried);
        Piece { start, end, again, carried, sent_at: again.then_some(self.first_at) }
    }
}

/// The next thing to send of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Its first number.
    pub start: u64,
    /// One above the last number that may go along.
    pub end: u64,
    /// It was sent before.
    pub again: bool,
    /// The paths (slots) that carried it.
    pub carried: PathSet,
    /// When it went first.
    pub sent_at: Option<Instant>,
}

/// A run that is out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub piece: Piece,
    /// The paths (slots) from which it is expected.
    pub live: PathSet,
    /// When it went last, on which paths, and what the first of them had sent in all by then.
    pub sent_at: Instant,
    pub on: PathSet,
    pub mark: u64,
}

/// A piece as it goes into a frame.
pub(crate) struct Content<'a> {
    /// An OPEN leads.
    pub open: bool,
    /// The bytes.
    pub data: &'a [u8],
    /// The end mark follows.
    pub fin: bool,
    /// One above its last number.
    pub end: u64,
}

impl SendHalf {
    /// A half that may send `limit` numbers; `opens` when an OPEN leads.
    pub fn new(opens: bool, limit: u64) -> Self {
        let first = u64::from(opens);
        Self {
            first,
            buffer: VecDeque::new(),
            buffer_start: first,
            written: first,
            fin: false,
            next: 0,
            acked: 0,
            runs: BTreeMap::new(),
            again: BTreeSet::new(),
            gaps: 0,
            waiting: 0,
            spare: Vec::new(),
            limit,
            drained: 0,
        }
    }

    /// Appends bytes behind what is there. The caller has asked for room; after the end was
    /// marked nothing is taken.
    pub fn write(&mut self, data: &[u8]) {
        if !self.fin {
            self.buffer.extend(data);
            self.written += data.len() as u64;
        }
    }

    /// Marks the end.
    pub fn finish(&mut self) {
        self.fin = true;
    }

    /// Whether the end was marked.
    pub fn is_finished(&self) -> bool {
        self.fin
    }

    /// The next piece: what goes again or was skipped over first, else what was never sent, as far
    /// as window and `allowance` (numbers beyond the highest that was sent) reach.
    pub fn piece(&self, allowance: u64) -> Option<Piece> {
        if let Some(&start) = self.again.first() {
            return Some(self.runs.get(&start)?.piece(start));
        }
        self.fresh(allowance)
    }

    /// What was never sent, at least `ahead` further on than this piece of the like; `None` when
    /// that is nothing, or too much would be skipped over.
    pub fn further(&self, piece: &Piece, ahead: u64, allowance: u64) -> Option<Piece> {
        if piece.again || piece.start < self.first {
            return None;
        }
        let target = piece.start.saturating_add(ahead);
        let gap = |start: u64| self.runs.get(&start).filter(|run| run.is_gap() && run.end > target);
        let within = self.again.range(..target).next_back().copied();
        let behind = self.again.range(target..).copied();
        let found = within.into_iter().chain(behind).find_map(|at| Some((at, gap(at)?)));
        if let Some((start, run)) = found {
            return Some(run.piece(start.max(target)));
        }
        let Piece { start, end, .. } = self.fresh(allowance)?;
        let from = start.max(target);
        let skipped = self.gaps.saturating_add(from - start);
        let has_data = from < end.min(self.written);
        let fresh =
            Piece { start: from, end, again: false, carried: PathSet::EMPTY, sent_at: None };
        (has_data && skipped <= AHEAD_MAX).then_some(fresh)
    }

    /// What is above all that was sent.
    fn fresh(&self, allowance: u64) -> Option<Piece> {
        let open = self.next < self.first;
        if self.runs.len() >= RUNS_MAX && !open {
            return None;
        }
        let data_end = self.written.min(self.limit).min(self.next + allowance).max(self.next);
        let data_end = if open { data_end.max(self.first) } else { data_end };
        let fin = self.fin && data_end == self.written;
        let end = data_end + u64::from(fin);
        let (start, carried) = (self.next, PathSet::EMPTY);
        let fresh = Piece { start, end, again: false, carried, sent_at: None };
        (end > self.next).then_some(fresh)
    }

    #[cfg(test)]
    fn units_kept(&self) -> usize {
        self.runs.values().map(|run| run.units().count()).sum()
    }

    /// What is on no path, bytes and marks: it was never sent, or goes again.
    pub fn remaining(&self) -> u64 {
        self.unsent() + self.waiting - self.gaps
    }

    /// The content of the piece cut to at most `most` bytes; shorter where the buffer wraps.
    pub fn content(&self, piece: &Piece, most: u64) -> Content<'_> {
        let open = piece.start < self.first;
        let start = piece.start.max(self.first);
        let data_end = piece.end.min(self.written).min(start + most).max(start);
        let data = self.slice(start, data_end);
        let data_end = start + data.len() as u64;
        let fin = self.fin && data_end == self.written && piece.end > self.written;
        Content { open, data, fin, end: data_end + u64::from(fin) }
    }

    fn slice(&self, start: u64, end: u64) -> &[u8] {
        let (front, back) = self.buffer.as_slices();
        let from = (start - self.buffer_start) as usize;
        let to = (end - self.buffer_start) as usize;
        if from < front.len() {
            &front[from..to.min(front.len())]
        } else {
            &back[from - front.len()..to - front.len()]
        }
    }

    /// The piece up to `end` went out on these paths (slots), in a unit with this tag.
    pub fn sent(
        &mut self,
        now: Instant,
        piece: &Piece,
        end: u64,
        on: PathSet,
        tag: u64,
        mark: u64,
    ) {
        let unit = Some(Unit { tag, start: piece.start, end, on, mark });
        if piece.start < self.next {
            self.split(piece.start);
            self.split(end);
            if self.again.remove(&piece.start) {
                self.waiting -= end - piece.start;
            }
        } else {
            self.skip(now, piece.start);
            self.next = end;
        }
        let Some(run) = self.runs.get_mut(&piece.start).filter(|run| !run.is_gap()) else {
            let units_before = Vec::new();
            let (first_at, last_at, carried, live) = (now, now, on, on);
            let run = Run { end, first_at, last_at, carried, live, unit, units_before };
            if let Some(gap) = self.runs.insert(piece.start, run) {
                self.gaps -= gap.end - piece.start;
            }
            return;
        };
        run.last_at = now;
        on.iter().for_each(|slot| {
            run.carried.insert(slot);
            run.live.insert(slot);
        });
        let before = std::mem::replace(&mut run.unit, unit);
        if run.units_before.len() >= UNITS_MAX - 1 {
            run.units_before.remove(0);
        }
        run.units_before.extend(before);
    }

    /// Makes all from `next` up to `end` a gap.
    fn skip(&mut self, now: Instant, end: u64) {
        if end <= self.next {
            return;
        }
        let (first_at, last_at, carried, live) = (now, now, PathSet::EMPTY, PathSet::EMPTY);
        let (unit, units_before) = (None, Vec::new());
        let gap = Run { end, first_at, last_at, carried, live, unit, units_before };
        self.runs.insert(self.next, gap);
        self.again.insert(self.next);
        self.gaps += end - self.next;
        self.waiting += end - self.next;
    }

    /// Hands over the units that need not arrive any more: of what went out more than once and has
    /// arrived, and of what was cut off.
    pub fn take_spare(&mut self) -> Vec<(u64, PathSet)> {
        std::mem::take(&mut self.spare)
    }

    /// Every unit that is out; nothing of the flow is wanted any more.
    pub fn all_units(&self) -> Vec<(u64, PathSet)> {
        distinct(self.runs.values().flat_map(Run::units))
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

    /// Takes an acknowledgement in; tells `each` the start and length of every run that it covers
    /// and the slots from which the run was expected. Returns false when it covers what was never
    /// sent.
    pub fn acknowledge(
        &mut self,
        cumulative: u64,
        ranges: &[Range<u64>],
        mut each: impl FnMut(u64, u64, PathSet),
    ) -> bool {
        let top = ranges.last().map_or(cumulative, |range| range.end.max(cumulative));
        // An honest peer acknowledges whole runs: one that cuts them small makes up what it says.
        if top > self.next || self.runs.len() > 4 * RUNS_MAX {
            return false;
        }
        let whole = self.acked..cumulative.max(self.acked);
        if self.gaps > 0 && std::iter::once(&whole).chain(ranges).any(|range| self.has_gap(range)) {
            return false;
        }
        for range in std::iter::once(&whole).chain(ranges) {
            self.settle(range.clone(), &mut each);
        }
        if cumulative > self.acked {
            self.acked = cumulative;
            let keep = cumulative.clamp(self.buffer_start, self.written);
            self.buffer.drain(..(keep - self.buffer_start) as usize);
            self.buffer_start = keep;
            if self.buffer.is_empty() && self.buffer.capacity() > IDLE_CAPACITY {
                self.buffer = VecDeque::new();
            }
        }
        true
    }

    /// Nothing that was skipped over is wanted any more; returns how much that was.
    pub fn drop_gaps(&mut self) -> u64 {
        if self.gaps > 0 {
            let (runs, again) = (&mut self.runs, &mut self.again);
            again.retain(|start| !runs.get(start).is_some_and(Run::is_gap));
            runs.retain(|_, run| !run.is_gap());
            self.waiting -= self.gaps;
        }
        std::mem::take(&mut self.gaps)
    }

    /// Whether any of these numbers was skipped over.
    fn has_gap(&self, range: &Range<u64>) -> bool {
        let below = self.runs.range(..range.end).rev();
        let mut within = below.take_while(|(_, run)| run.end > range.start);
        !range.is_empty() && within.any(|(_, run)| run.is_gap())
    }

    fn settle(&mut self, range: Range<u64>, each: &mut impl FnMut(u64, u64, PathSet)) {
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

    /// The units of a run that is gone, as far as no other run of theirs is out.
    fn spare_units(&mut self, run: &Run) {
        for unit in run.units() {
            if !self.is_out(unit.start, unit.end) {
                self.spare.push((unit.tag, unit.on));
            }
        }
    }

    /// A path will not deliver the run that contains this number, or may not. Returns how much of
    /// it is not expected from there any more; with `forget`, the path may carry it again.
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

    /// Whether any part of these numbers is out and not acknowledged.
    pub fn is_out(&self, start: u64, end: u64) -> bool {
        self.runs.range(start..end).next().is_some()
    }

    /// Ends the direction at `after`: what lies beyond is thrown away. Tells `each` the length of
    /// every run that goes, and the slots from which it was expected.
    pub fn truncate(&mut self, after: u64, mut each: impl FnMut(u64, PathSet)) {
        self.fin = false;
        self.written = self.written.min(after.max(self.buffer_start));
        self.buffer.truncate((self.written - self.buffer_start) as usize);
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
        if self.buffer.is_empty() {
            self.buffer = VecDeque::new();
        }
    }

    /// What the peer's window still lets go for the first time.
    pub fn window(&self) -> u64 {
        self.limit.saturating_sub(self.next)
    }

    /// The runs that are out and expected from some path, in their order.
    pub fn expected(&self) -> impl DoubleEndedIterator<Item = Waiting> {
        self.runs.iter().filter(|(_, run)| !run.live.is_empty()).map(|(&start, run)| {
            let Run { end, last_at, carried, live, first_at, .. } = *run;
            let piece = Piece { start, end, again: true, carried, sent_at: Some(first_at) };
            let (on, mark) = run.unit.map_or((PathSet::EMPTY, 0), |unit| (unit.on, unit.mark));
            Waiting { piece, live, sent_at: last_at, on, mark }
        })
    }

    /// One above the highest number used.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// All below is acknowledged.
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// One above the last byte written.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Bytes held until they are acknowledged.
    pub fn held(&self) -> u64 {
        self.buffer.len() as u64
    }

    /// Bytes never sent.
    pub fn unsent(&self) -> u64 {
        self.written.saturating_sub(self.next.max(self.first)) + self.gaps
    }

    /// The length of every run that is out, and the slots from which it is expected.
    pub fn out(&self) -> impl Iterator<Item = (u64, PathSet)> {
        self.runs.iter().map(|(&start, run)| (run.end - start, run.live))
    }

    /// What the peer may hold for its reader: sent, and not known to be drained.
    pub fn at_peer(&self) -> u64 {
        self.next.saturating_sub(self.drained)
    }

    /// Bytes that have arrived in order and are not known to be drained.
    pub fn unread(&self) -> u64 {
        self.acked.saturating_sub(self.drained)
    }

    /// Everything, the end included, is acknowledged.
    pub fn is_done(&self) -> bool {
        self.fin && self.acked > self.written
    }
}

/// Each unit once: runs may share one.
fn distinct<'a>(units: impl Iterator<Item = &'a Unit>) -> Vec<(u64, PathSet)> {
    let mut units: Vec<(u64, PathSet)> = units.map(|unit| (unit.tag, unit.on)).collect();
    units.sort_unstable_by_key(|(tag, _)| *tag);
    units.dedup_by_key(|(tag, _)| *tag);
    units
}

/// What an idle flow may keep allocated, in bytes.
const IDLE_CAPACITY: usize = 2_048;

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Instant {
        #[allow(clippy::disallowed_methods)] // a base for the clock of these tests
        Instant::now()
    }

    fn half(opens: bool, text: &[u8]) -> SendHalf {
        let mut half = SendHalf::new(opens, 1_000);
        half.write(text);
        half
    }

    /// Sends the next piece of at most `most` bytes on a slot.
    fn send(half: &mut SendHalf, most: u64, slot: usize) -> Option<(u64, bool, Vec<u8>, bool)> {
        let piece = half.piece(u64::MAX >> 8)?;
        let content = half.content(&piece, most);
        let (end, out) =
            (content.end, (piece.start, content.open, content.data.to_vec(), content.fin));
        half.sent(base(), &piece, end, PathSet::only(slot), 0, 0);
        assert_eq!(half.waiting, queued(half));
        Some(out)
    }

    /// What `waiting` stands for.
    fn queued(half: &SendHalf) -> u64 {
        half.again.iter().map(|start| half.runs[start].end - start).sum()
    }

    #[test]
    fn what_went_ahead_does_not_remain_but_what_goes_again_does() {
        let mut half = half(false, b"abcdefghij");
        assert_eq!(half.remaining(), 10);
        assert!(send_ahead(&mut half, 4, 2).is_some());
        assert_eq!((half.remaining(), half.unsent()), (8, 8), "two of ten are on their way");
        send(&mut half, 3, 0);
        assert_eq!(half.give_up(0, 6, 0, false), 3);
        assert_eq!((half.remaining(), half.unsent()), (8, 5), "three of them go again");
        send(&mut half, 2, 1);
        assert_eq!((half.remaining(), half.waiting), (6, 2));
        let last = std::iter::once(2..3).collect::<Vec<_>>();
        assert!(half.acknowledge(0, &last, |_, _, _| {}), "a late arrival");
        assert_eq!((half.remaining(), half.waiting), (5, 1));
        assert_eq!(half.drop_gaps(), 1);
        assert_eq!((half.remaining(), half.waiting), (4, queued(&half)));
        half.give_up(4, 6, 1, false);
        half.truncate(5, |_, _| {});
        assert_eq!((half.waiting, queued(&half)), (1, 1));
    }

    #[test]
    fn an_open_leads_and_an_end_follows() {
        let mut half = half(true, b"abcde");
        half.finish();
        assert_eq!(send(&mut half, 3, 0), Some((0, true, b"abc".to_vec(), false)));
        assert_eq!(send(&mut half, 3, 0), Some((4, false, b"de".to_vec(), true)));
        assert_eq!(send(&mut half, 3, 0), None);
        assert_eq!(half.next(), 7);
        assert!(half.acknowledge(7, &[], |_, _, _| {}));
        assert!(half.is_done());
    }

    #[test]
    fn an_open_goes_without_data_and_an_end_alone() {
        let mut half = half(true, b"");
        assert_eq!(send(&mut half, 9, 0), Some((0, true, vec![], false)));
        assert_eq!(send(&mut half, 9, 0), None);
        half.finish();
        assert_eq!(send(&mut half, 9, 0), Some((1, false, vec![], true)));
    }

    #[test]
    fn the_window_holds_data_but_not_the_end() {
        let mut half = half(false, b"abcdef");
        half.limit = 4;
        half.finish();
        assert_eq!(send(&mut half, 9, 0), Some((0, false, b"abcd".to_vec(), false)));
        assert_eq!(send(&mut half, 9, 0), None);
        half.limit = 6;
        assert_eq!(send(&mut half, 9, 0), Some((4, false, b"ef".to_vec(), true)));
    }

    #[test]
    fn what_a_path_gives_up_goes_again_unless_another_has_it() {
        let mut half = half(false, b"abcdef");
        send(&mut half, 3, 0);
        let piece = half.piece(99).unwrap();
        let mut both = PathSet::only(0);
        both.insert(1);
        half.sent(base(), &piece, 6, both, 0, 0);
        assert_eq!(half.give_up(0, 6, 0, false), 6);
        let again = half.piece(99).unwrap();
        assert_eq!((again.start, again.end, again.again), (0, 3, true));
        assert!(again.carried.contains(0));
        assert_eq!(send(&mut half, 2, 1), Some((0, false, b"ab".to_vec(), false)));
        assert_eq!(send(&mut half, 2, 1), Some((2, false, b"c".to_vec(), false)));
        assert_eq!(send(&mut half, 2, 1), None);
    }

    #[test]
    fn acknowledgements_settle_runs_and_cut_them_where_they_must() {
        let mut half = half(false, b"abcdefgh");
        send(&mut half, 4, 0);
        send(&mut half, 4, 1);
        let (mut settled, ranges) = (Vec::new(), std::iter::once(5..8).collect::<Vec<_>>());
        assert!(half.acknowledge(2, &ranges, |_, n, live| settled.push((n, live.iter().next()))));
        assert_eq!(settled, [(2, Some(0)), (3, Some(1))]);
        assert_eq!(half.held(), 6);
        half.give_up(0, 8, 0, true);
        assert_eq!(send(&mut half, 9, 1), Some((2, false, b"cd".to_vec(), false)));
        assert!(!half.acknowledge(9, &[], |_, _, _| {}), "never sent");
        assert!(half.acknowledge(8, &[], |_, _, _| {}));
        assert_eq!((half.held(), half.runs.len(), half.again.len()), (0, 0, 0));
    }

    /// The tags of the units that are spare, with the slots that carry them.
    fn spare(half: &mut SendHalf) -> Vec<(u64, Vec<usize>)> {
        half.take_spare().into_iter().map(|(tag, on)| (tag, on.iter().collect())).collect()
    }

    /// Sends the next piece of at most `most` bytes on a slot in a unit with this tag.
    fn send_as(half: &mut SendHalf, tag: u64, most: u64, slot: usize) {
        let piece = half.piece(u64::MAX >> 8).unwrap();
        let end = half.content(&piece, most).end;
        half.sent(base(), &piece, end, PathSet::only(slot), tag, 0);
    }

    #[test]
    fn a_unit_is_spare_when_all_of_it_arrived_that_went_again() {
        let mut half = half(false, b"abcdefgh");
        send_as(&mut half, 1, 8, 0);
        half.give_up(0, 8, 0, false);
        send_as(&mut half, 2, 3, 1);
        send_as(&mut half, 3, 5, 1);
        assert!(half.acknowledge(2, &[], |_, _, _| {}));
        assert_eq!(spare(&mut half), [], "the rest of unit 2 is out");
        assert!(half.acknowledge(3, &[], |_, _, _| {}));
        assert_eq!(spare(&mut half), [(2, vec![1])], "and the rest of unit 1");
        assert!(half.acknowledge(8, &[], |_, _, _| {}));
        assert_eq!(spare(&mut half), [(1, vec![0]), (3, vec![1])]);
        assert_eq!(spare(&mut half), [], "once");
    }

    #[test]
    fn what_one_path_carried_is_not_spare_but_what_was_cut_off_is() {
        let mut half = half(false, b"abcdefgh");
        send_as(&mut half, 1, 2, 0);
        send_as(&mut half, 2, 4, 1);
        send_as(&mut half, 3, 2, 0);
        assert!(half.acknowledge(2, &[], |_, _, _| {}));
        assert_eq!(spare(&mut half), []);
        assert_eq!(half.all_units().len(), 2);
        half.truncate(4, |_, _| {});
        assert_eq!(spare(&mut half), [(3, vec![0])], "a part of unit 2 is still wanted");
        half.truncate(0, |_, _| {});
        assert_eq!(spare(&mut half), [(2, vec![1])]);
    }

    #[test]
    fn a_path_that_is_gone_carries_no_spare_unit() {
        let mut half = half(false, b"abcd");
        send_as(&mut half, 1, 4, 0);
        half.give_up(0, 4, 0, true);
        send_as(&mut half, 2, 4, 1);
        half.give_up(0, 4, 1, false);
        send_as(&mut half, 3, 4, 0);
        assert!(half.acknowledge(4, &[], |_, _, _| {}));
        let of_slot_0: Vec<u64> = spare(&mut half)
            .into_iter()
            .filter(|(_, on)| on.contains(&0))
            .map(|(tag, _)| tag)
            .collect();
        assert_eq!(of_slot_0, [3], "slot 0 is another path by now");
        assert_eq!(half.units_kept(), 0);
    }

    #[test]
    fn the_units_of_a_run_are_bounded() {
        let mut half = half(false, b"abcd");
        for tag in 0..100 {
            let slot = (tag % 2) as usize;
            send_as(&mut half, tag, 4, slot);
            half.give_up(0, 4, slot, false);
        }
        assert_eq!(half.units_kept(), UNITS_MAX);
        assert!(half.acknowledge(4, &[], |_, _, _| {}));
        let tags: Vec<u64> = spare(&mut half).into_iter().map(|(tag, _)| tag).collect();
        assert_eq!(tags, (100 - UNITS_MAX as u64..100).collect::<Vec<_>>());
    }

    #[test]
    fn a_peer_that_cuts_runs_to_pieces_is_refused() {
        let mut half = half(false, &vec![7; 65_536]);
        half.limit = 1 << 20;
        while send(&mut half, 15_400, 0).is_some() {}
        let cut =
            |n: u64| (n * 64..n * 64 + 64).step_by(2).map(|at| at..at + 1).collect::<Vec<_>>();
        let mut taken = 0;
        while taken < 1_024 && half.acknowledge(0, &cut(taken), |_, _, _| {}) {
            taken += 1;
        }
        assert!(half.runs.len() < 5 * RUNS_MAX, "{} runs", half.runs.len());
        assert!(taken < 1_024, "never refused");
    }

    #[test]
    fn truncation_keeps_what_must_be_delivered() {
        let mut half = half(false, b"abcdefgh");
        half.finish();
        send(&mut half, 4, 0);
        half.truncate(6, |_, _| {});
        assert_eq!(send(&mut half, 9, 0), Some((4, false, b"ef".to_vec(), false)));
        assert_eq!(send(&mut half, 9, 0), None);
        half.give_up(0, 9, 0, false);
        half.truncate(2, |_, _| {});
        assert_eq!(send(&mut half, 9, 0), Some((0, false, b"ab".to_vec(), false)));
        half.truncate(0, |_, _| {});
        assert_eq!((half.held(), send(&mut half, 9, 0)), (0, None));
    }
    /// Sends what is `ahead` further on than the next piece.
    fn send_ahead(half: &mut SendHalf, ahead: u64, most: u64) -> Option<(u64, Vec<u8>)> {
        let piece = half.piece(u64::MAX >> 8)?;
        let piece = half.further(&piece, ahead, u64::MAX >> 8)?;
        let content = half.content(&piece, most);
        let (end, data) = (content.end, content.data.to_vec());
        half.sent(base(), &piece, end, PathSet::only(1), 9, 0);
        Some((piece.start, data))
    }

    #[test]
    fn what_is_skipped_over_goes_in_its_turn() {
        let mut half = half(false, b"abcdefghij");
        assert_eq!(send_ahead(&mut half, 4, 2), Some((4, b"ef".to_vec())));
        assert_eq!((half.unsent(), half.gaps, half.next()), (8, 4, 6));
        assert_eq!(send_ahead(&mut half, 4, 1), Some((6, b"g".to_vec())), "what is there is sent");
        assert_eq!(
            send_ahead(&mut half, 2, 1),
            Some((2, b"c".to_vec())),
            "within what was skipped"
        );
        assert_eq!((half.unsent(), half.gaps), (6, 3));
        assert_eq!(send_ahead(&mut half, 10, 1), None, "there is no more");
        let gap = half.piece(0).unwrap();
        assert_eq!((gap.start, gap.end, gap.again, gap.sent_at), (0, 2, false, None));
        assert_eq!(send(&mut half, 9, 0), Some((0, false, b"ab".to_vec(), false)));
        assert_eq!(send(&mut half, 9, 0), Some((3, false, b"d".to_vec(), false)));
        assert_eq!((half.unsent(), half.gaps), (3, 0));
        assert_eq!(send(&mut half, 9, 0), Some((7, false, b"hij".to_vec(), false)));
        assert!(half.acknowledge(10, &[], |_, _, _| {}));
        assert_eq!((half.held(), half.runs.len(), half.again.len()), (0, 0, 0));
    }

    #[test]
    fn what_was_skipped_over_cannot_be_acknowledged_but_can_be_cut_off() {
        let mut half = half(false, b"abcdefghij");
        send(&mut half, 1, 0);
        assert!(send_ahead(&mut half, 3, 2).is_some());
        let ranges = std::iter::once(4..6).collect::<Vec<_>>();
        assert!(!half.acknowledge(2, &[], |_, _, _| {}), "never sent");
        assert!(!half.acknowledge(6, &[], |_, _, _| {}));
        assert!(half.acknowledge(1, &ranges, |_, _, _| {}));
        half.truncate(3, |_, live| assert_eq!(live, PathSet::EMPTY));
        assert_eq!((half.unsent(), half.gaps), (2, 2));
        assert_eq!((half.drop_gaps(), half.again.len(), half.runs.len()), (2, 0, 0));
    }

    #[test]
    fn an_open_is_not_skipped_nor_more_than_is_bounded() {
        let mut half = half(true, b"abc");
        assert_eq!(send_ahead(&mut half, 1, 1), None);
        let mut half = SendHalf::new(false, 1 << 30);
        half.write(&vec![7; AHEAD_MAX as usize + 9]);
        assert_eq!(send_ahead(&mut half, AHEAD_MAX + 1, 1), None);
        assert_eq!(send_ahead(&mut half, AHEAD_MAX, 1).unwrap().0, AHEAD_MAX);
        assert_eq!(half.gaps, AHEAD_MAX);
        half.finish();
        assert_eq!(send_ahead(&mut half, AHEAD_MAX, 99).unwrap().1.len(), 8, "with its end");
        assert_eq!(half.next(), AHEAD_MAX + 10);
    }
}
