//! The sending half of a flow: the buffer, the window, and the next piece.
//!
//! Sequence numbers are those of the receiving half. Data stays in the buffer until it is
//! acknowledged. [`Runs`] keeps the runs in flight; reinjections have priority over new data.
//!
//! Data may be sent out of order, beyond the first unsent byte. The skipped bytes are a gap, which
//! is sent in its turn.
//!
//! Invariants: runs cover exactly the unacknowledged numbers below `next`; gaps are at most
//! `AHEAD_MAX` long together.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use polyrail_scheduler::PathSet;

use super::runs::{Piece, Runs, Unit};
use crate::limits::{AHEAD_MAX, RUNS_MAX};

#[derive(Debug, Default)]
pub(crate) struct SendHalf {
    /// 1 if the direction begins with an OPEN, else 0.
    first: u64,
    /// The bytes from `buffer_start` to `written`.
    buffer: VecDeque<u8>,
    buffer_start: u64,
    /// One above the last byte written.
    pub written: u64,
    pub fin: bool,
    /// One above the highest number sent.
    pub next: u64,
    /// All below is acknowledged.
    pub acked: u64,
    pub runs: Runs,
    /// The peer's window, as a number that may not be passed.
    pub limit: u64,
    /// The number up to which the peer's reader has taken bytes.
    pub drained: u64,
}

/// The content of a frame.
pub(crate) struct Content<'a> {
    /// It begins with an OPEN.
    pub open: bool,
    /// The bytes.
    pub data: &'a [u8],
    /// The end mark follows.
    pub fin: bool,
    /// One above its last number.
    pub end: u64,
}

impl SendHalf {
    /// A half that may send `limit` numbers; `opens` if it begins with an OPEN.
    pub fn new(opens: bool, limit: u64) -> Self {
        let first = u64::from(opens);
        Self { first, buffer_start: first, written: first, limit, ..Self::default() }
    }

    /// Appends bytes; the caller has asked for room. After the end mark it takes none.
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

    /// The next piece: a reinjection or a gap first, else new data within the window and the
    /// `allowance` (of numbers beyond the highest sent).
    pub fn piece(&self, allowance: u64) -> Option<Piece> {
        self.runs.first_again().or_else(|| self.fresh(allowance))
    }

    /// A piece of unsent data at least `ahead` beyond this piece of unsent data; `None` if there is
    /// none, or too much would be skipped.
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

    /// The new data above the highest number sent.
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

    /// Bytes and marks that are on no path: unsent, or to reinject.
    pub fn remaining(&self) -> u64 {
        self.unsent() + self.runs.waiting - self.runs.gaps
    }

    /// The content of the piece, at most `max` bytes; shorter where the buffer wraps.
    pub fn content(&self, piece: &Piece, max: u64) -> Content<'_> {
        let open = piece.start < self.first;
        let start = piece.start.max(self.first);
        let data_end = piece.end.min(self.written).min(start + max).max(start);
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

    /// The piece up to `end` was sent on these paths (slots), in a unit with this tag.
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

    /// Whether this acknowledgement covers a part of a run.
    pub fn splits(&self, cumulative: u64, ranges: &[Range<u64>]) -> bool {
        let edges = ranges.iter().flat_map(|range| [range.start, range.end]);
        edges.chain([cumulative]).any(|at| self.runs.is_inside(at))
    }

    /// Takes an acknowledgement; passes `each` the start and length of every run that it covers and
    /// the slots from which the run was expected. Returns false if it covers unsent numbers.
    pub fn acknowledge(
        &mut self,
        cumulative: u64,
        ranges: &[Range<u64>],
        mut each: impl FnMut(u64, u64, PathSet),
    ) -> bool {
        let top = ranges.last().map_or(cumulative, |range| range.end.max(cumulative));
        // An honest peer acknowledges whole runs; one that splits them without end is malicious.
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

    /// Ends the direction at `after` and discards later bytes. Passes `each` the length of every
    /// discarded run, and the slots from which it was expected.
    pub fn truncate(&mut self, after: u64, each: impl FnMut(u64, PathSet)) {
        self.fin = false;
        self.written = self.written.min(after.max(self.buffer_start));
        self.buffer.truncate((self.written - self.buffer_start) as usize);
        self.runs.truncate(after, each);
        if self.buffer.is_empty() {
            self.buffer = VecDeque::new();
        }
    }

    /// Frees memory if at most half of the buffer is used, so that it allocates at most twice its
    /// bytes. This moves the place where the buffer wraps, and so the ends of runs.
    pub fn shrink(&mut self) {
        let (length, capacity) = (self.buffer.len(), self.buffer.capacity());
        if capacity > IDLE_CAPACITY && length <= capacity / 2 {
            self.buffer.shrink_to(length + length / 2);
        }
    }

    /// Bytes that the buffer allocates.
    pub fn allocated(&self) -> u64 {
        self.buffer.capacity() as u64
    }

    /// The bytes that the writer has written.
    pub fn accepted(&self) -> u64 {
        self.written - self.first
    }

    /// New numbers that the peer's window permits.
    pub fn window(&self) -> u64 {
        self.limit.saturating_sub(self.next)
    }

    /// Unacknowledged and unsent bytes in the buffer.
    pub fn held(&self) -> u64 {
        self.buffer.len() as u64
    }

    /// Bytes never sent.
    pub fn unsent(&self) -> u64 {
        self.written.saturating_sub(self.next.max(self.first)) + self.runs.gaps
    }

    /// Bytes at the peer: sent, and not known to be drained.
    pub fn at_peer(&self) -> u64 {
        self.next.saturating_sub(self.drained)
    }

    /// Unread bytes at the peer: acknowledged in order, and not known to be drained.
    pub fn unread(&self) -> u64 {
        self.acked.saturating_sub(self.drained)
    }

    /// All data and the end are acknowledged.
    pub fn is_done(&self) -> bool {
        self.fin && self.acked > self.written
    }
}

/// The largest allocation of an idle flow, in bytes.
const IDLE_CAPACITY: usize = 2_048;

#[cfg(test)]
mod tests;
