//! `edpf`: the path that delivers the segment earliest.
//!
//! Rule: Chebrolu and Rao, "Bandwidth aggregation for real-time applications in heterogeneous
//! wireless networks" (2006), earliest delivery path first: `d_i = max(a + D_i, A_i) + L / B_i`
//! with a the present, D the delay without queues, A the time at which the path is free at the far
//! end, L the length and B the rate. The least d wins, then `A_i = d_i`.
//!
//! Choices where the source is open: D is the one-way delay. B is the delivery rate, or a window
//! per round trip while that is unknown. A is at most `a + D_i + outstanding_i / B_i`, so that
//! errors of the rate do not add up. On a full path the whole backlog comes first (see `otias`). A
//! run goes to the path as long as each of its segments would.

use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Bytes};

use crate::rules::hsrsch::min_rtt::group;
use crate::rules::path_rate::{delay, rate};
use crate::rules::per_path::PerPath;
use crate::rules::waits::Waits;
use crate::{Input, Note, PathSets, PathView, SEGMENT, Schedulerlet};

#[derive(Debug, Default)]
pub struct Edpf {
    paths: PerPath<Use>,
    waits: Waits,
}

/// A path as it was at the last decision.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    /// A.
    free_at: Option<Instant>,
    delay: Duration,
    rate: Bitrate,
}

impl Edpf {
    /// When so many bytes would be there over this path.
    fn delivery(&mut self, path: &PathView, bytes: u64, now: Instant) -> Instant {
        let used = self.paths.of(path.id);
        (used.delay, used.rate) = (delay(path), rate(path));
        let drained = now + used.delay + duration(used.rate, path.outstanding.0);
        used.free_at = used.free_at.map(|at| at.min(drained));
        used.delivery(bytes, now)
    }
}

impl Use {
    fn delivery(&self, bytes: u64, now: Instant) -> Instant {
        let arrival = now + self.delay;
        self.free_at.map_or(arrival, |at| at.max(arrival)) + duration(self.rate, bytes)
    }
}

impl Schedulerlet for Edpf {
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        let now = input.now;
        let group = group(sets.candidates(), input);
        let available = group.filter(|i| input.paths[i].available());
        if available.is_empty() {
            return;
        }
        let mut earliest = Earliest::default();
        for path in group.iter() {
            let open = available.contains(path);
            let bytes = if open { SEGMENT } else { input.segment.backlog.0.max(SEGMENT) };
            earliest.add(path, self.delivery(&input.paths[path], bytes, now), open);
        }
        earliest.select(sets, input, &mut self.waits, |path| {
            duration(rate(&input.paths[path]), SEGMENT)
        });
    }

    fn note(&mut self, note: &Note, now: Instant) {
        match *note {
            Note::Sent { path, bytes, .. } => {
                let used = self.paths.of(path);
                if used.rate.as_bps() > 0 {
                    used.free_at = Some(used.delivery(bytes, now));
                }
            }
            Note::Gone { path } => self.paths.forget(path),
            Note::Acked { .. } | Note::Reinjected { .. } => {}
        }
    }
}

/// The open path that delivers earliest, and the time of the next best path.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Earliest {
    best: Option<(Instant, usize)>,
    next: Option<Instant>,
}

impl Earliest {
    /// Adds a path that would deliver at this time. Only an open path can be the best.
    pub fn add(&mut self, path: usize, at: Instant, open: bool) {
        let better = open && self.best.is_none_or(|(known, _)| at < known);
        let later = match better {
            true => self.best.replace((at, path)).map(|(known, _)| known),
            false => Some(at),
        };
        self.next = [self.next, later].into_iter().flatten().min();
    }

    /// Selects the best path, unless the segment may wait for a full path that delivers earlier.
    /// The run ends before the segment that another path would deliver earlier; `step` is the time
    /// that the path needs for each further segment.
    pub fn select(
        self,
        sets: &mut PathSets,
        input: &Input<'_>,
        waits: &mut Waits,
        step: impl FnOnce(usize) -> Duration,
    ) {
        let Some((at, path)) = self.best else { return };
        let gain = self.next.map_or(Duration::ZERO, |next| at.saturating_duration_since(next));
        if !gain.is_zero() && waits.hold(sets, input, gain) {
            return;
        }
        sets.select(path);
        if let Some(next) = self.next {
            let ahead = next.saturating_duration_since(at).as_nanos();
            let more = ahead.checked_div(step(path).as_nanos()).unwrap_or(0);
            sets.limit_run(SEGMENT * (1 + more.min(RUN_SEGMENTS_MAX) as u64));
        }
    }
}

/// How long the rate takes for so much; at most [`FAR`].
pub(crate) fn duration(rate: Bitrate, bytes: u64) -> Duration {
    rate.time_for(Bytes(bytes)).unwrap_or(FAR).min(FAR)
}

/// Later than anything that matters.
const FAR: Duration = Duration::from_secs(3_600);

/// More than a decision may grant anyway.
const RUN_SEGMENTS_MAX: u128 = 1_000;

#[cfg(test)]
mod tests {

    use super::*;
    use crate::samples::{base, full, path, send};
    use crate::{Chain, ChainSpec, Decision, SegmentView};

    /// A path on which a segment takes `segment_ms`; much is out, so A counts in full.
    fn at(id: u64, owd_ms: u64, segment_ms: u64) -> PathView {
        PathView {
            owd: Some(Duration::from_millis(owd_ms)),
            rate: Some(Bitrate::from_bps(SEGMENT * 8 * 1_000 / segment_ms)),
            outstanding: Bytes(1 << 30),
            ..path(id, 2 * owd_ms)
        }
    }

    /// Sends one segment at a time; answers with the paths.
    fn sent(chain: &mut Chain, paths: &[PathView], now: Instant, count: usize) -> Vec<usize> {
        let segment = SegmentView { backlog: Bytes(SEGMENT), ..SegmentView::default() };
        (0..count).flat_map(|_| send(chain, paths, segment, SEGMENT, now)).collect()
    }

    fn edpf() -> Chain {
        ChainSpec::named("edpf").unwrap().build()
    }

    #[test]
    fn table() {
        // Path 0 delivers at 20 + 10 n ms: 30, 40, 50, 60, 70 ...; path 1 at 35 + 20 n: 55, 75 ...
        let paths = [at(1, 20, 10), at(2, 35, 20)];
        let mut chain = edpf();
        assert_eq!(sent(&mut chain, &paths, base(), 8), [0, 0, 0, 1, 0, 0, 1, 0]);
        // 30 40 50 | 55 | 60 70 | 75 | 80. A is now 80 and 75 ms. 40 ms later: path 0 at
        // max(40 + 20, 80) + 10 = 90, path 1 at max(40 + 35, 75) + 20 = 95.
        assert_eq!(sent(&mut chain, &paths, base() + Duration::from_millis(40), 2), [0, 1]);
    }

    #[test]
    fn segment_waits_for_a_full_path_while_it_gains() {
        let (fast, slow) = (full(at(1, 20, 10)), at(2, 100, 10));
        let choice = |backlog: u64| {
            let backlog = Bytes(backlog * SEGMENT);
            let segment = SegmentView { backlog, ..SegmentView::default() };
            edpf().decide(&Input { paths: &[fast, slow], segment, now: base() })
        };
        // 20 + 10 against 100 + 10 ms: 80 ms are gained.
        let until = Some(base() + Duration::from_millis(80));
        assert_eq!(choice(1), Decision::Wait { until });
        // The last of nine: 20 + 90 ms, as late as over the other.
        assert!(matches!(choice(9), Decision::Send { primary: 1, .. }));
    }

    #[test]
    fn run_ends_where_another_path_is_earlier() {
        let choice = |paths: &[PathView]| {
            let segment = SegmentView { backlog: Bytes(99 * SEGMENT), ..SegmentView::default() };
            match edpf().decide(&Input { paths, segment, now: base() }) {
                Decision::Send { primary, run_max, .. } => (primary, run_max / SEGMENT),
                Decision::Wait { .. } => panic!("it has room"),
            }
        };
        // 21 ... 34 ms against 35.5: 15 segments, 11 of them in a run, 5 at 11.2 Mbit/s.
        assert_eq!(choice(&[at(1, 20, 1), at(2, 25, 10)]), (0, 5));
        assert_eq!(choice(&[at(1, 20, 1), at(2, 22, 1)]), (0, 3), "21, 22, 23");
    }

    #[test]
    fn acknowledged_data_delays_no_segment() {
        let paths = [at(1, 20, 10), at(2, 200, 10)];
        let mut chain = edpf();
        // 20 + 10 n ms against 210: 19 segments, then one, then one as early as the other's second.
        let first = sent(&mut chain, &paths, base(), 21);
        assert_eq!(first.iter().filter(|path| **path == 0).count(), 20);
        assert_eq!(first[19], 1);
        let idle = [PathView { outstanding: Bytes::ZERO, ..paths[0] }, paths[1]];
        assert_eq!(sent(&mut chain, &idle, base(), 1), [0]);
    }
}
