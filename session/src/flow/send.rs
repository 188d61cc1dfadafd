//! The sending half of a flow: the buffer, the window, and what is sent next.
//!
//! Sequence numbers are those of the receiving half. Data stays in the buffer until it is
//! acknowledged. [`Runs`] knows what is in flight; runs that are sent again come first.
//!
//! Data may be sent out of turn, further on than the first byte never sent. What it skips over is a
//! gap, which is sent in its turn.
//!
//! Invariants: runs cover exactly what is below `next` and not acknowledged; gaps are at most
//! `AHEAD_MAX` long together.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use polyrail_scheduler::PathSet;

use super::runs::{Piece, Runs, Unit};
use crate::limits::{AHEAD_MAX, RUNS_MAX};

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
    pub runs: Runs,
    /// The peer's window, as a number that may not be passed.
    pub limit: u64,
    /// What the peer's reader has taken.
    pub drained: u64,
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
            runs: Runs::default(),
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
        self.runs.first_again().or_else(|| self.fresh(allowance))
    }

    /// What was never sent, at least `ahead` further on than this piece of the like; `None` when
    /// that is nothing, or too much would be skipped over.
    pub fn further(&self, piece: &Piece, ahead: u64, allowance: u64) -> Option<Piece> {
        if piece.again || piece.start < self.first {
            return None;
        }
        let target = piece.start.saturating_add(ahead);
        if let Some(gap) = self.runs.gap_from(target) {
            return Some(gap);
        }
        let Piece { start, end, .. } = self.fresh(allowance)?;
        let from = start.max(target);
        let skipped = self.runs.gaps.saturating_add(from - start);
        let has_data = from < end.min(self.written);
        let fresh =
            Piece { start: from, end, again: false, carried: PathSet::EMPTY, sent_at: None };
        (has_data && skipped <= AHEAD_MAX).then_some(fresh)
    }

    /// What is above all that was sent.
    fn fresh(&self, allowance: u64) -> Option<Piece> {
        let open = self.next < self.first;
        if self.runs.is_full() && !open {
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

    /// What is on no path, bytes and marks: it was never sent, or goes again.
    pub fn remaining(&self) -> u64 {
        self.unsent() + self.runs.waiting - self.runs.gaps
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
        let unit = Unit { tag, start: piece.start, end, on, mark };
        if piece.start < self.next {
            self.runs.resent(now, unit);
        } else {
            self.runs.skip(now, self.next..piece.start);
            self.runs.sent(now, unit);
            self.next = end;
        }
        debug_assert!(self.next >= self.acked && self.runs.waiting >= self.runs.gaps);
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
        if std::iter::once(&whole).chain(ranges).any(|range| self.runs.has_gap(range)) {
            return false;
        }
        for range in std::iter::once(&whole).chain(ranges) {
            self.runs.settle(range.clone(), &mut each);
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

    /// Ends the direction at `after`: what lies beyond is thrown away. Tells `each` the length of
    /// every run that goes, and the slots from which it was expected.
    pub fn truncate(&mut self, after: u64, each: impl FnMut(u64, PathSet)) {
        self.fin = false;
        self.written = self.written.min(after.max(self.buffer_start));
        self.buffer.truncate((self.written - self.buffer_start) as usize);
        self.runs.truncate(after, each);
        if self.buffer.is_empty() {
            self.buffer = VecDeque::new();
        }
    }

    /// What the peer's window still lets go for the first time.
    pub fn window(&self) -> u64 {
        self.limit.saturating_sub(self.next)
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
        self.written.saturating_sub(self.next.max(self.first)) + self.runs.gaps
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

/// What an idle flow may keep allocated, in bytes.
const IDLE_CAPACITY: usize = 2_048;

#[cfg(test)]
mod tests;
