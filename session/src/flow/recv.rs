//! The receiving half of a flow: reassembly, the window, and acknowledgements.
//!
//! Sequence numbers count bytes; the OPEN takes number 0 in the opener's direction and the end
//! mark takes the number after the last byte, so that one cumulative number acknowledges all.
//!
//! Invariants: every byte is delivered once and in order; the buffers hold at most the window, and
//! beyond it single segments at the cumulative number, which the session's credit bounds; a piece
//! is never dropped for lack of room, because the window limits the sender; the numbers that are
//! received and not drained cover the allocation of the buffers, but for an eighth.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use super::ahead::Ahead;
use super::ready::Ready;
use crate::limits::{FRAGMENTS_MAX, WINDOW_MIN};
use crate::ranges::RangeSet;
use crate::wire::Echo;

/// A received run.
pub(crate) struct Run<'a> {
    /// Sequence number of the first byte, or of the OPEN.
    pub sequence: u64,
    /// The first number is an OPEN's.
    pub open: bool,
    /// The bytes.
    pub data: &'a [u8],
    /// The direction ends after it.
    pub fin: bool,
}

impl Run<'_> {
    /// One above its last number.
    pub fn end(&self) -> u64 {
        self.sequence + u64::from(self.open) + self.data.len() as u64 + u64::from(self.fin)
    }
}

/// The peer broke the protocol on this flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub &'static str);

#[derive(Debug, Default)]
pub(crate) struct RecvHalf {
    /// Number 0 is an OPEN.
    opened: bool,
    received: RangeSet,
    /// The next number that is missing.
    pub cumulative: u64,
    /// One above the highest number received.
    pub highest: u64,
    /// The number of the end mark.
    fin: Option<u64>,
    /// In order and unread.
    ready: Ready,
    /// Out of order.
    ahead: Ahead,
    /// There is no reader any more: bytes are counted and discarded.
    discarding: bool,
    /// Bytes that the peer may send beyond the drained ones.
    window: u64,
    /// The largest limit sent to the peer.
    pub limit: u64,
    /// The drained bytes last sent to the peer.
    sent_drained: u64,
    epoch: Option<(Instant, u64)>,
    /// Runs since the last acknowledgement.
    pub unacknowledged: u32,
    /// The latest arrival.
    pub echo: Option<Echo>,
    /// The numbers that the session has counted as released.
    pub released: u64,
    /// Where the latest arrivals began; at most [`RECENT_MAX`].
    recent: VecDeque<u64>,
    /// If an ACK cannot state all ranges, the next one continues here.
    stated_to: u64,
}

impl RecvHalf {
    /// A half whose peer was granted `window` bytes; `opened` when the peer leads with an OPEN.
    pub fn new(window: u64, opened: bool) -> Self {
        Self { opened, window, limit: window, ..Self::default() }
    }

    /// How many numbers above the highest the run uses.
    ///
    /// # Errors
    /// The run breaks the protocol.
    pub fn fresh(&self, run: &Run<'_>) -> Result<u64, Violation> {
        let data_start = run.sequence + u64::from(run.open);
        let data_end = data_start + run.data.len() as u64;
        self.check(run, data_start, data_end, run.end())?;
        Ok(run.end().saturating_sub(self.highest))
    }

    /// Takes a run that [`RecvHalf::fresh`] has accepted. Returns whether the reader has new data.
    pub fn accept(&mut self, run: &Run<'_>) -> bool {
        let data_start = run.sequence + u64::from(run.open);
        let end = run.end();
        if run.fin {
            self.fin = Some(end - 1);
        }
        self.highest = self.highest.max(end);
        if end <= self.cumulative {
            return false;
        }
        let before = self.cumulative;
        if self.discarding {
            if run.sequence <= before {
                self.cumulative = end;
            }
            return self.cumulative > before;
        }
        let stored = self.store(run, data_start);
        self.received.insert(run.sequence..end);
        self.cumulative = self.received.advance(before);
        if run.sequence >= self.cumulative {
            if self.recent.len() >= RECENT_MAX {
                self.recent.pop_front();
            }
            self.recent.push_back(run.sequence);
        }
        self.promote(stored);
        self.cumulative > before
    }

    fn check(
        &self,
        run: &Run<'_>,
        data_start: u64,
        data_end: u64,
        end: u64,
    ) -> Result<(), Violation> {
        if run.open != (self.opened && run.sequence == 0) {
            return Err(Violation("an OPEN that is not at the beginning, or data in its place"));
        }
        if self.fin.is_some_and(|fin| data_end > fin || (run.fin && data_end != fin)) {
            return Err(Violation("data beyond the end of the flow"));
        }
        if run.fin && self.highest > end {
            return Err(Violation("an end before data that has arrived"));
        }
        // The segment at the cumulative number is always accepted.
        let head = run.sequence <= self.cumulative && data_end - data_start <= HEAD_MAX;
        if data_end > self.limit && !head {
            return Err(Violation("data beyond the window"));
        }
        if self.received.len() > FRAGMENTS_MAX {
            return Err(Violation("too many pieces out of order"));
        }
        Ok(())
    }

    /// Stores the bytes that have not arrived before: those at the cumulative number for the
    /// reader, others out of order. Returns the number up to which the reader has them.
    fn store(&mut self, run: &Run<'_>, start: u64) -> u64 {
        let end = start + run.data.len() as u64;
        let from = start.max(self.cumulative);
        let mut stored = self.cumulative.max(u64::from(self.opened));
        let at = |number: u64| (number - start) as usize;
        for gap in self.received.missing(from..end.max(from)) {
            if run.sequence <= self.cumulative && gap.start == stored {
                self.ready.push(&run.data[at(gap.start)..at(gap.end)]);
                stored = gap.end;
            } else {
                self.ahead.put(gap.start, &run.data[at(gap.start)..at(gap.end)]);
            }
        }
        stored
    }

    /// Moves bytes from `stored` on that have become contiguous to the reader.
    fn promote(&mut self, stored: u64) {
        let end = self.fin.map_or(self.cumulative, |fin| fin.min(self.cumulative));
        let (ready, end) = (&mut self.ready, end.max(stored));
        ready.reserve((end - stored) as usize);
        self.ahead.take(stored..end, |bytes| ready.push(bytes));
    }

    /// The unread bytes.
    pub fn readable(&self) -> [&[u8]; 2] {
        self.ready.slices()
    }

    /// The number of unread bytes in order.
    pub fn unread(&self) -> u64 {
        self.ready.len() as u64
    }

    /// The reader took `count` bytes, at most all.
    pub fn consume(&mut self, count: usize) -> usize {
        self.ready.consume(count)
    }

    /// Numbers that the reader has passed since the last call.
    pub fn release(&mut self) -> u64 {
        let more = self.drained().saturating_sub(self.released);
        self.released += more;
        more
    }

    /// The peer has used numbers up to `last`, whether they arrive or not.
    pub fn raise(&mut self, last: u64) {
        self.highest = self.highest.max(last);
    }

    /// Discards all bytes, including those that still arrive, and forgets the ranges out of order:
    /// the peer stops when it receives the RESET.
    pub fn discard(&mut self) {
        self.discarding = true;
        self.ready.clear();
        (self.ahead, self.received) = (Ahead::default(), RangeSet::default());
        self.recent = VecDeque::new();
    }

    /// Adapts the window to the reader. A reader that drains half a window within two round trips
    /// adds that half. A reader that takes more than sixteen round trips for it, and leaves bytes
    /// unread, halves the window, down to [`WINDOW_MIN`].
    pub fn tune(&mut self, now: Instant, drained: u64, rtt: Duration, largest: u64) {
        let (since, sum) = self.epoch.unwrap_or((now, 0));
        let (age, sum) = (now.saturating_duration_since(since), sum + drained);
        self.epoch = Some((since, sum));
        if sum < self.window / 2 {
            return;
        }
        if age <= rtt * 2 {
            self.window += sum;
        } else if age > rtt * 16 && !self.ready.is_empty() {
            self.window /= 2;
        }
        self.epoch = Some((now, 0));
        self.window = self.window.min(largest).max(WINDOW_MIN.min(largest));
    }

    /// Whether to send the peer a larger limit: if it rises by a quarter of the window.
    pub fn wants_window(&self) -> bool {
        self.fin.is_none() && self.next_limit() - self.limit >= self.window / 4
    }

    /// Whether to send the peer the drained bytes: after a quarter of the window, and of a large
    /// window earlier, because the peer takes a reader without progress for stalled.
    pub fn wants_drained(&self) -> bool {
        self.drained() - self.sent_drained >= (self.window / 4).min(DRAINED_STEP_MAX)
    }

    /// Whether the reader has drained all bytes and the peer does not know it.
    pub fn owes_drained(&self) -> bool {
        self.ready.is_empty() && self.drained() > self.sent_drained
    }

    fn next_limit(&self) -> u64 {
        self.limit.max(self.drained() + self.window)
    }

    /// The limit and the drained bytes, which are now sent to the peer.
    pub fn advertise(&mut self) -> (u64, u64) {
        self.limit = self.next_limit();
        self.sent_drained = self.drained();
        (self.limit, self.sent_drained)
    }

    /// The sequence number up to which the reader has taken bytes and passed marks.
    pub fn drained(&self) -> u64 {
        let mark = u64::from(!self.ready.is_empty() && self.fin_reached());
        self.cumulative - self.ready.len() as u64 - mark
    }

    /// The bytes that the reader has taken.
    pub fn delivered(&self) -> u64 {
        let open = u64::from(self.opened && self.cumulative > 0);
        self.drained() - open - u64::from(self.finished())
    }

    /// The ranges received out of order, rising, at most `max`. If there are more: the ranges of
    /// the latest arrivals, and the others in turn, so that the peer learns of each.
    pub fn ranges_for_ack(&mut self, max: usize) -> Vec<Range<u64>> {
        if self.received.len() <= max {
            return self.received.iter().collect();
        }
        let mut ranges = BTreeMap::new();
        for range in self.recent.iter().rev().filter_map(|at| self.received.containing(*at)) {
            if ranges.len() >= max / 2 {
                break;
            }
            ranges.insert(range.start, range.end);
        }
        for _ in 0..2 * max {
            if ranges.len() >= max {
                break;
            }
            let next = self.received.from(self.stated_to).or_else(|| self.received.from(0));
            let Some(range) = next else { break };
            self.stated_to = range.end;
            ranges.insert(range.start, range.end);
        }
        ranges.into_iter().map(|(start, end)| start..end).collect()
    }

    /// Bytes in the buffers, in order and out of order.
    pub fn held(&self) -> u64 {
        self.ready.len() as u64 + self.ahead.bytes()
    }

    /// The number of ranges that arrived out of order.
    pub fn ranges(&self) -> usize {
        self.received.len()
    }

    /// The end mark has been reached.
    pub fn fin_reached(&self) -> bool {
        self.fin.is_some_and(|fin| self.cumulative > fin)
    }

    /// The reader has taken everything, including the end.
    pub fn finished(&self) -> bool {
        self.fin_reached() && self.ready.is_empty()
    }
}

/// Bytes that a segment at the cumulative number may carry beyond the window.
const HEAD_MAX: u64 = polyrail_scheduler::SEGMENT;
/// Bytes that may be drained before the peer learns of it: more than between two acknowledgements
/// of arriving data, and few enough that a reader of 64 KiB/s does not seem to stall.
const DRAINED_STEP_MAX: u64 = WINDOW_MIN / 2;

/// Arrivals that an acknowledgement states before older ones: more than between two of them.
const RECENT_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn run(sequence: u64, data: &[u8], fin: bool) -> Run<'_> {
        Run { sequence, open: false, data, fin }
    }

    fn accept(half: &mut RecvHalf, run: &Run<'_>) -> Result<bool, Violation> {
        half.fresh(run)?;
        Ok(half.accept(run))
    }

    fn read(half: &mut RecvHalf) -> Vec<u8> {
        let all = half.readable().concat();
        half.consume(all.len());
        all
    }

    #[test]
    fn of_many_ranges_the_latest_are_stated_and_all_in_turn() {
        let mut half = RecvHalf::new(10_000, false);
        let all: Vec<u64> = (1..=100).map(|at| 2 * at).collect();
        for &at in &all {
            accept(&mut half, &run(at, b"x", false)).unwrap();
        }
        accept(&mut half, &run(301, b"x", false)).unwrap();
        let mut stated = std::collections::BTreeSet::new();
        for _ in 0..8 {
            let ranges = half.ranges_for_ack(32);
            assert!(ranges.len() <= 32 && ranges.contains(&(301..302)), "{ranges:?}");
            assert!(ranges.is_sorted_by_key(|range| range.start));
            stated.extend(ranges.into_iter().map(|range| range.start));
        }
        assert!(all.iter().all(|at| stated.contains(at)), "{stated:?}");
        assert_eq!(half.ranges_for_ack(101).len(), 101);
    }

    #[test]
    fn bytes_are_delivered_once_and_in_order() {
        let mut half = RecvHalf::new(100, false);
        assert_eq!(accept(&mut half, &run(3, b"def", false)), Ok(false));
        assert_eq!(accept(&mut half, &run(1, b"bcd", false)), Ok(false));
        assert_eq!(accept(&mut half, &run(0, b"a", false)), Ok(true));
        assert_eq!(read(&mut half), b"abcdef");
        assert_eq!(accept(&mut half, &run(2, b"cdefgh", true)), Ok(true));
        assert!(!half.finished());
        assert_eq!(read(&mut half), b"gh");
        assert!(half.finished());
        assert_eq!((half.cumulative, half.drained(), half.held()), (9, 9, 0));
        assert_eq!(accept(&mut half, &run(0, b"abcdefgh", true)), Ok(false));
    }

    #[test]
    fn bytes_that_are_read_return_as_credit_at_once() {
        let mut half = RecvHalf::new(1 << 20, false);
        (0..100).for_each(|at| _ = accept(&mut half, &run(at * 1_400, &[7; 1_400], false)));
        accept(&mut half, &run(150_000, b"out of order", false)).unwrap();
        for count in [20_000, 45_000, 10_000, 64_990] {
            half.consume(count);
            assert_eq!(half.release(), count as u64);
        }
        assert_eq!((half.released, half.drained()), (139_990, 139_990));
    }

    #[test]
    fn open_takes_the_first_number() {
        let mut half = RecvHalf::new(100, true);
        assert_eq!(accept(&mut half, &run(4, b"d", false)), Ok(false));
        assert!(accept(&mut half, &run(0, b"abc", false)).is_err(), "data in its place");
        let open = Run { sequence: 0, open: true, data: b"abc", fin: false };
        assert_eq!(accept(&mut half, &open), Ok(true));
        assert_eq!(read(&mut half), b"abcd");
        assert_eq!(half.drained(), 5);
    }

    #[test]
    fn end_may_arrive_alone_and_early() {
        let mut half = RecvHalf::new(100, false);
        assert_eq!(accept(&mut half, &run(2, b"", true)), Ok(false));
        assert_eq!(accept(&mut half, &run(0, b"ab", false)), Ok(true));
        assert_eq!(half.drained(), 0);
        assert_eq!(read(&mut half), b"ab");
        assert_eq!(half.drained(), 3);
        assert!(half.finished());
    }

    #[test]
    fn violations_are_rejected() {
        let mut half = RecvHalf::new(10, false);
        assert!(accept(&mut half, &run(8, b"xyz", false)).is_err(), "beyond the window");
        assert_eq!(
            accept(&mut half, &run(0, b"0123456789ab", false)),
            Ok(true),
            "the head is accepted"
        );
        assert!(accept(&mut half, &run(5, b"", true)).is_err(), "an end inside the data");
        assert_eq!(accept(&mut half, &run(12, b"", true)), Ok(true));
        assert!(accept(&mut half, &run(12, b"x", false)).is_err(), "beyond the end");
        assert!(accept(&mut half, &run(11, b"", true)).is_err(), "another end");
        let open = Run { sequence: 1, open: true, data: b"", fin: false };
        assert!(accept(&mut RecvHalf::new(10, false), &open).is_err(), "an OPEN in the middle");
    }

    #[test]
    fn window_grows_with_a_quick_reader_and_shrinks_with_a_slow_one() {
        #[allow(clippy::disallowed_methods)] // a base for the clock of this test
        let now = Instant::now();
        let rtt = Duration::from_millis(50);
        let mut half = RecvHalf::new(WINDOW_MIN, false);
        half.tune(now, WINDOW_MIN / 2, rtt, 1 << 20);
        assert_eq!(half.window, WINDOW_MIN * 3 / 2);
        half.tune(now, 1 << 20, rtt, 1 << 20);
        assert_eq!(half.window, 1 << 20, "never above the largest");
        half.tune(now + rtt * 20, 1 << 20, rtt, 1 << 20);
        assert_eq!(half.window, 1 << 20, "no bytes are unread");
        accept(&mut half, &run(0, b"abc", false)).unwrap();
        half.tune(now + rtt * 40, 1 << 20, rtt, 1 << 20);
        assert_eq!(half.window, 1 << 19);
        assert!(half.wants_window() && !half.owes_drained());
        assert_eq!(half.advertise(), (1 << 19, 0));
    }

    #[test]
    fn progress_of_a_steady_reader_is_sent_within_two_periods_with_any_window() {
        let step = Duration::from_millis(50);
        for window in [WINDOW_MIN, 2 << 20, 4 << 20] {
            let mut half = RecvHalf::new(window, false);
            accept(&mut half, &run(0, &vec![0; window as usize], false)).unwrap();
            let mut since_sent = Duration::ZERO;
            // 300 KB/s, until the window is read.
            for _ in 0..window / 15_000 {
                half.consume(15_000);
                since_sent += step;
                if half.wants_window() || half.wants_drained() {
                    half.advertise();
                    since_sent = Duration::ZERO;
                }
                assert!(since_sent < crate::limits::PACE_PERIOD * 2, "window {window}");
            }
        }
    }

    #[test]
    fn drained_bytes_are_sent_without_a_larger_window() {
        let mut half = RecvHalf::new(100, false);
        accept(&mut half, &run(0, &[0; 60], true)).unwrap();
        half.consume(20);
        assert!(!half.wants_window() && !half.wants_drained() && !half.owes_drained());
        half.consume(20);
        assert!(half.wants_drained());
        assert_eq!(half.advertise(), (140, 40));
        half.consume(20);
        assert!(half.owes_drained() && !half.wants_window());
        assert_eq!(half.advertise(), (161, 61));
        assert!(!half.owes_drained());
    }

    #[test]
    fn discarding_half_holds_no_bytes() {
        let mut half = RecvHalf::new(100, false);
        accept(&mut half, &run(0, b"abc", false)).unwrap();
        accept(&mut half, &run(5, b"fgh", false)).unwrap();
        assert_eq!(half.held(), 6);
        half.discard();
        accept(&mut half, &run(5, b"fgh", false)).unwrap();
        accept(&mut half, &run(3, b"de", false)).unwrap();
        assert_eq!((half.held(), half.ranges(), half.cumulative, half.drained()), (0, 0, 5, 5));
    }
}
