//! `blest`: takes a slower path only while it does not block the faster one.
//!
//! Rule: S. Ferlin and others, "BLEST: Blocking Estimation-based MPTCP Scheduler", as in
//! multipath-tcp/mptcp, `net/mptcp/mptcp_blest.c`. If `min_rtt` would take a slower path s than the
//! fastest f, the rule estimates how long the segment lingers on s and how much f could send
//! meanwhile. It skips s if the window has no space for both:
//!
//! ```text
//! linger = max(s_s, min_s + (max_s - min_s)(F + 1) / W), or max_s if F + 1 >= W
//! n = floor(linger / ((min_f + max_f) / 2)) + 1
//! X = lambda x mss x W_f (2^n - 1)                            in initial slow start, n at most 16
//! X = lambda x mss x (max(W_f, threshold + 1) + (n - 1) / 2) n     else; the division is whole
//! skip s if X > send window - (segment + queued_s)
//! ```
//!
//! F and W of s are in segments. Lambda starts at 1.2. At most once per least round-trip time of s
//! it rises by 0.04 if the session retransmitted, else falls by 0.01, within 1.0 and 1.3.
//!
//! Choices: f is the fastest path that `min_rtt` could take. The send window is the receiver's
//! grant plus the data of the flow in flight. The slow-start threshold is unknown: when a window
//! shrinks, it is assumed to be 0.7 of the previous window (RFC 9438, section 4.6). A segment waits
//! no longer than it would linger. The slower path gets one segment at a time.

use std::time::{Duration, Instant};

use crate::params::{ParamError, Reader};
use crate::rules::heads::Heads;
use crate::rules::hsrsch::min_rtt::{fastest, group};
use crate::rules::path_rate::window;
use crate::rules::per_path::PerPath;
use crate::rules::waits::Waits;
use crate::{Input, Note, PathSets, PathView, SEGMENT, Schedulerlet};

#[derive(Clone, Debug)]
pub struct Blest {
    /// In thousandths.
    lambda: u64,
    lambda_at: Option<Instant>,
    retransmitted: bool,
    paths: PerPath<Seen>,
    heads: Heads,
    waits: Waits,
}

/// Observations of a path.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// The least and the greatest smoothed round-trip time.
    srtt: Option<(Duration, Duration)>,
    /// The latest window in bytes.
    window: u64,
    /// The slow-start threshold in segments, as far as it can be guessed; else zero.
    threshold: u64,
}

impl Blest {
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        let lambda = params.number("lambda", 1.2, 1.0..=1.3)?;
        Ok(Self {
            lambda: (lambda * 1_000.0).round() as u64,
            lambda_at: None,
            retransmitted: false,
            paths: PerPath::default(),
            heads: Heads::default(),
            waits: Waits::default(),
        })
    }

    fn look_at(&mut self, path: &PathView) {
        let seen = self.paths.of(path.id);
        let (least, most) = seen.srtt.unwrap_or((path.srtt, path.srtt));
        seen.srtt = Some((least.min(path.srtt), most.max(path.srtt)));
        let window = window(path);
        if window < seen.window {
            seen.threshold = seen.window / SEGMENT * 7 / 10;
        }
        seen.window = window;
    }

    /// The least and the greatest smoothed round-trip time of the path, in microseconds.
    fn srtts(&self, path: &PathView) -> (f64, f64) {
        let seen = self.paths.get(path.id).and_then(|seen| seen.srtt);
        let (least, most) = seen.unwrap_or((path.srtt, path.srtt));
        (least.as_micros() as f64, most.as_micros() as f64)
    }

    fn adjust(&mut self, slow: &PathView, now: Instant) {
        let since = *self.lambda_at.get_or_insert(now);
        let (least, _) = self.srtts(slow);
        if (now.saturating_duration_since(since).as_micros() as f64) < least {
            return;
        }
        let lambda = if self.retransmitted { self.lambda + WORSE } else { self.lambda - BETTER };
        self.lambda = lambda.clamp(LAMBDA_MIN, LAMBDA_MAX);
        (self.lambda_at, self.retransmitted) = (Some(now), false);
    }

    /// The time of a segment on the path, in microseconds.
    fn linger(&self, path: &PathView) -> f64 {
        let (least, most) = self.srtts(path);
        let (window, out) = (window(path) / SEGMENT, path.in_flight.0.div_ceil(SEGMENT) + 1);
        let estimate = match out >= window {
            true => most,
            false => least + (most - least) * out as f64 / window as f64,
        };
        estimate.max(path.srtt.as_micros() as f64)
    }

    /// The bytes that the path sends in this time in microseconds.
    fn sends_in(&self, path: &PathView, time_us: f64) -> f64 {
        let (least, most) = self.srtts(path);
        let mean = (least + most) / 2.0;
        let rounds = if mean > 0.0 { (time_us / mean).floor() + 1.0 } else { 1.0 };
        let window = (window(path) / SEGMENT) as f64;
        let segments = if path.slow_start {
            window * (rounds.min(ROUNDS_MAX).exp2() - 1.0)
        } else {
            let threshold = self.paths.get(path.id).map_or(0, |seen| seen.threshold);
            let window = window.max((threshold + 1) as f64);
            (window + ((rounds - 1.0) / 2.0).floor()) * rounds
        };
        segments * (SEGMENT * self.lambda) as f64 / 1_000.0
    }

    /// The free part of the send window in bytes, with one more segment on the slow path.
    fn space(&self, slow: &PathView, input: &Input<'_>) -> u64 {
        let segment = &input.segment;
        let on_paths =
            input.paths.iter().fold(0, |sum: u64, path| sum.saturating_add(path.outstanding.0));
        let out = segment.offset.saturating_sub(self.heads.arrived(segment.flow)).min(on_paths);
        let queued = slow.in_flight.0.saturating_add(slow.unsent.0);
        let window = segment.window.0.saturating_add(out);
        window.saturating_sub(queued.saturating_add(SEGMENT))
    }
}

impl Schedulerlet for Blest {
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        let group = group(sets.candidates(), input);
        for path in group.iter() {
            self.look_at(&input.paths[path]);
        }
        let Some(slow) = fastest(group, input) else { return };
        let Some(fast) = group.iter().min_by_key(|&i| input.paths[i].srtt) else { return };
        if input.paths[fast].srtt < input.paths[slow].srtt {
            let (fast, slow) = (&input.paths[fast], &input.paths[slow]);
            self.adjust(slow, input.now);
            let linger = self.linger(slow);
            if self.sends_in(fast, linger) > self.space(slow, input) as f64 {
                let longest = Duration::from_micros(linger as u64);
                if self.waits.hold(sets, input, longest) {
                    return;
                }
            }
            sets.limit_run(SEGMENT);
        }
        sets.select(slow);
    }

    fn note(&mut self, note: &Note, _now: Instant) {
        self.heads.note(note);
        match *note {
            Note::Reinjected { .. } => self.retransmitted = true,
            Note::Gone { path } => self.paths.forget(path),
            Note::Sent { .. } | Note::Acked { .. } => {}
        }
    }
}

/// Bounds and steps of lambda, in thousandths (`mptcp_blest.c`).
const LAMBDA_MIN: u64 = 1_000;
const LAMBDA_MAX: u64 = 1_300;
const WORSE: u64 = 40;
const BETTER: u64 = 10;

/// The largest number of doublings of a window (`mptcp_blest.c`).
const ROUNDS_MAX: f64 = 16.0;

#[cfg(test)]
mod tests {
    use polyrail_model::{Bytes, FlowId, PathId};

    use super::*;
    use crate::samples::{acked, backup, base, full, path, stalled};
    use crate::{Chain, ChainSpec, Decision, PathSet, SegmentView};

    /// A path with a window of so many segments.
    fn at(id: u64, srtt_ms: u64, window: u64) -> PathView {
        PathView { window: Bytes(window * SEGMENT), ..path(id, srtt_ms) }
    }

    fn new() -> Chain {
        ChainSpec::of(&["blest"]).unwrap().build()
    }

    fn ask(chain: &mut Chain, paths: &[PathView], window: u64, at_ms: u64) -> Option<usize> {
        let segment = SegmentView { window: Bytes(window), ..SegmentView::default() };
        let now = base() + Duration::from_millis(at_ms);
        match chain.decide(&Input { paths, segment, now }) {
            Decision::Send { primary, .. } => Some(primary),
            Decision::Wait { until } => {
                assert!(until.is_none_or(|until| until > now));
                None
            }
        }
    }

    /// The least window in which the slower path is used, between two bounds.
    fn needed(paths: &[PathView]) -> u64 {
        let sends = |window: &u64| ask(&mut new(), paths, *window, 0).is_some();
        let (mut no, mut yes) = (0, 1 << 30);
        while no + 1 < yes {
            let middle = (no + yes) / 2;
            if sends(&middle) { yes = middle } else { no = middle }
        }
        yes
    }

    #[test]
    fn table() {
        let (fast, slow) = (full(at(1, 20, 10)), at(2, 100, 10));
        // 100 ms are n = 6 rounds of 20 ms: (10 + 5 / 2) 6 = 72 segments, with lambda 86.4:
        // 120,960 bytes, and a segment on the slow path.
        assert_eq!(needed(&[fast, slow]), 120_960 + 1_400);
        // Ten more segments are on the slow path.
        let busy = PathView { in_flight: Bytes(7 * SEGMENT), unsent: Bytes(3 * SEGMENT), ..slow };
        assert_eq!(needed(&[fast, busy]), 120_960 + 11 * 1_400);
        // In slow start 10 (2^6 - 1) = 630 segments, with lambda 756.
        let young = PathView { slow_start: true, ..fast };
        assert_eq!(needed(&[young, slow]), 1_058_400 + 1_400);
        for (paths, choice) in [
            ([at(1, 20, 10), slow], Some(0)),
            ([fast, full(slow)], None),
            ([stalled(fast), slow], Some(1)),
            ([backup(fast), slow], Some(1)),
            ([full(at(1, 100, 10)), slow], Some(1)),
        ] {
            assert_eq!(ask(&mut new(), &paths, 0, 0), choice, "{paths:?}");
        }
    }

    #[test]
    fn round_trip_times_are_remembered() {
        let mut chain = new();
        let fast = |srtt| full(at(1, srtt, 10));
        ask(&mut chain, &[fast(20), at(2, 300, 10)], 1 << 30, 0);
        ask(&mut chain, &[fast(60), at(2, 100, 10)], 1 << 30, 0);
        // Two of ten segments are out, one comes: 100 + (300 - 100) 3 / 10 = 160 ms, which are
        // n = 5 rounds of (20 + 60) / 2 ms: (10 + 4 / 2) 5 = 60 segments, with lambda 72:
        // 100,800 bytes, and three segments.
        let slow = PathView { in_flight: Bytes(2 * SEGMENT), ..at(2, 100, 10) };
        assert_eq!(ask(&mut chain, &[fast(20), slow], 100_800 + 3 * 1_400 - 1, 0), None);
        assert_eq!(ask(&mut chain, &[fast(20), slow], 100_800 + 3 * 1_400, 0), Some(1));
    }

    #[test]
    fn shrunken_window_is_expected_to_recover() {
        let mut chain = new();
        ask(&mut chain, &[full(at(1, 20, 100)), at(2, 100, 10)], 0, 0);
        // From 100 segments to one: the threshold is 70. (71 + 2) 6 = 438, with lambda 525.6.
        let paths = [full(at(1, 20, 1)), at(2, 100, 10)];
        assert_eq!(ask(&mut chain, &paths, 735_840 + 1_400 - 1, 0), None);
        assert_eq!(ask(&mut chain, &paths, 735_840 + 1_400, 0), Some(1));
    }

    #[test]
    fn data_in_flight_is_part_of_the_window() {
        let (fast, slow) = (full(at(1, 20, 10)), at(2, 100, 10));
        let fast = PathView { outstanding: Bytes(100_000), ..fast };
        let mut chain = new();
        let flow = FlowId(1);
        chain.note(&acked(PathId(1), 50_000, 50_000), base());
        let mut ask = |offset, window| {
            let segment =
                SegmentView { flow, offset, window: Bytes(window), ..SegmentView::default() };
            let decision = chain.decide(&Input { paths: &[fast, slow], segment, now: base() });
            matches!(decision, Decision::Send { .. })
        };
        assert!(!ask(60_000, 112_359) && ask(60_000, 112_360), "10,000 bytes are out");
        assert!(!ask(900_000, 22_359) && ask(900_000, 22_360), "no more than all paths have");
    }

    #[test]
    fn lambda_follows_retransmissions() {
        let (mut chain, paths) = (new(), [full(at(1, 20, 10)), at(2, 100, 10)]);
        let needs = |lambda: u64| 72 * SEGMENT * lambda / 1_000 + SEGMENT;
        let retransmitted = Note::Reinjected { path: PathId(2), bytes: 1 };
        // The least window with which a segment goes out; each is another, so that none waits.
        let lambda_after = |chain: &mut Chain, at| {
            let now = base() + Duration::from_millis(at);
            (1_000..=1_300).step_by(10).find(|&lambda| {
                let window = Bytes(needs(lambda));
                let segment = SegmentView { window, offset: at + lambda, ..Default::default() };
                let decision = chain.decide(&Input { paths: &paths, segment, now });
                matches!(decision, Decision::Send { .. })
            })
        };
        assert_eq!(lambda_after(&mut chain, 0), Some(1_200));
        chain.note(&retransmitted, base());
        assert_eq!(lambda_after(&mut chain, 99), Some(1_200));
        assert_eq!(lambda_after(&mut chain, 100), Some(1_240));
        assert_eq!(lambda_after(&mut chain, 199), Some(1_240), "once a round trip");
        assert_eq!(lambda_after(&mut chain, 200), Some(1_230));
        let falls: Vec<_> = (3..40).map(|n| lambda_after(&mut chain, 100 * n).unwrap()).collect();
        assert_eq!((falls[0], falls[22], falls[36]), (1_220, 1_000, 1_000));
        for n in 40..50 {
            chain.note(&retransmitted, base());
            let wanted = (1_000 + 40 * (n - 39)).min(1_300);
            assert_eq!(lambda_after(&mut chain, 100 * n), Some(wanted));
        }
    }

    #[test]
    fn wait_is_bounded_and_the_slow_path_gets_one_segment() {
        let (mut chain, paths) = (new(), [full(at(1, 20, 10)), at(2, 100, 10)]);
        let decide = |chain: &mut Chain, at| {
            let now = base() + Duration::from_millis(at);
            chain.decide(&Input { paths: &paths, segment: SegmentView::default(), now })
        };
        let until = Some(base() + Duration::from_millis(100));
        assert_eq!(decide(&mut chain, 0), Decision::Wait { until });
        assert_eq!(decide(&mut chain, 99), Decision::Wait { until });
        let sends =
            Decision::Send { primary: 1, copies: PathSet::EMPTY, run_max: SEGMENT, ahead: 0 };
        assert_eq!(decide(&mut chain, 100), sends);
    }
}
