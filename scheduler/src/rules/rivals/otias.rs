//! `otias`: the path over which the segment arrives first behind the queued bytes.
//!
//! Rule: Yang, Wang and Amer, "Out-of-order transmission for in-order arrival scheduling for
//! multipath TCP" (2014); for Linux in `vkirany/mptcp-kau`, `net/mptcp/mptcp_otias.c`. The least
//! `wait + srtt / 2` wins. A path whose queue q is smaller than the free window (W - F) has no
//! wait; else it is `floor((q - (W - F) + mss) / W)` round trips, as in the paper; the code for
//! Linux rounds up.
//!
//! Choices: the source queues on full paths without limit, and later data takes the slower path.
//! Here a full path takes nothing, and the backlog of the session counts as queued on it. If the
//! end of the backlog would take the slower path, that path gets the first such byte further on in
//! the flow, or the segment itself if the flow is shorter. Else the segment waits for the better
//! path while it gains.

use std::time::Duration;

use crate::rules::hsrsch::min_rtt::{group, is_open};
use crate::rules::path_rate::window;
use crate::rules::waits::Waits;
use crate::{Input, PathSets, PathView, SEGMENT, Schedulerlet};

#[derive(Debug, Default)]
pub struct Otias {
    waits: Waits,
}

impl Schedulerlet for Otias {
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        let group = group(sets.candidates(), input);
        let available = group.filter(|i| is_open(&input.paths[i]));
        let cost = |path: usize| {
            let view = &input.paths[path];
            let waiting = input.segment.backlog.0.saturating_sub(SEGMENT);
            arrival(view, if is_open(view) { 0 } else { waiting })
        };
        let Some(path) = available.iter().min_by_key(|&path| cost(path)) else { return };
        let other = group.without(available).iter().map(cost).min();
        let gain = other.map_or(Duration::ZERO, |other| cost(path).saturating_sub(other));
        if !gain.is_zero() && self.waits.hold(sets, input, gain) {
            return;
        }
        if sets.select(path) {
            if gain.is_zero() {
                let before = |full: usize| queued_before(&input.paths[full], cost(path));
                sets.begin_ahead(group.without(available).iter().map(before).sum());
            }
            sets.limit_run(free(&input.paths[path]).saturating_sub(input.paths[path].unsent.0));
        }
    }
}

/// The arrival time of a segment behind the queue and `more`.
fn arrival(path: &PathView, more: u64) -> Duration {
    let (free, queued) = (free(path), path.unsent.0.saturating_add(more));
    let rounds =
        if queued < free { 0 } else { (queued - free).saturating_add(SEGMENT) / window(path) };
    let rounds = u32::try_from(rounds).unwrap_or(u32::MAX);
    path.srtt.saturating_mul(rounds).saturating_add(path.srtt / 2)
}

/// The bytes queued on a path before a segment would arrive no earlier than `limit`: the least
/// `more` for which [`arrival`] is not below it.
fn queued_before(path: &PathView, limit: Duration) -> u64 {
    let over = limit.saturating_sub(path.srtt / 2);
    if over.is_zero() {
        return 0;
    }
    let rounds = over.as_nanos().div_ceil(path.srtt.as_nanos().max(1));
    let rounds = u64::try_from(rounds).unwrap_or(u64::MAX);
    let room = rounds.saturating_mul(window(path)).saturating_add(free(path));
    room.saturating_sub(path.unsent.0.saturating_add(SEGMENT)).min(AHEAD_MAX)
}

/// The free part of the window.
fn free(path: &PathView) -> u64 {
    window(path).saturating_sub(path.in_flight.0)
}

/// The largest distance ahead in bytes.
const AHEAD_MAX: u64 = 1 << 32;

#[cfg(test)]
mod tests {
    use polyrail_model::Bytes;

    use super::*;
    use crate::samples::{base, full, ms, path};
    use crate::{ChainSpec, Decision, SegmentView};

    /// A path with a window of 10 segments.
    fn at(id: u64, srtt_ms: u64, in_flight: u64, unsent: u64) -> PathView {
        let (in_flight, unsent) = (Bytes(in_flight * SEGMENT), Bytes(unsent * SEGMENT));
        PathView { window: Bytes(10 * SEGMENT), in_flight, unsent, ..path(id, srtt_ms) }
    }

    /// The path now, or how long the segment waits.
    fn choice(paths: &[PathView], backlog: u64) -> Result<usize, Duration> {
        let segment = SegmentView { backlog: Bytes(backlog * SEGMENT), ..SegmentView::default() };
        let mut chain = ChainSpec::named("otias").unwrap().build();
        match chain.decide(&Input { paths, segment, now: base() }) {
            Decision::Send { primary, .. } => Ok(primary),
            Decision::Wait { until } => {
                let until = until.unwrap();
                let later = chain.decide(&Input { paths, segment, now: until });
                assert!(matches!(later, Decision::Send { .. }), "a wait is bounded");
                Err(until - base())
            }
        }
    }

    #[test]
    fn table() {
        let slow = at(2, 200, 0, 0); // 100 ms
        assert_eq!(choice(&[at(1, 40, 9, 0), slow], 1), Ok(0), "no wait: 20 ms");
        // 19 queued beyond what the window takes: (19 + 1) / 10 = 2 round trips, 80 + 20 ms.
        assert_eq!(choice(&[at(1, 40, 10, 19), slow], 1), Ok(0), "as fast: the first");
        // 29: 3 round trips, 120 + 20 ms.
        assert_eq!(choice(&[at(1, 40, 10, 29), slow], 1), Ok(1));
        // Full: (0 + 1) / 10 rounds down to none, 20 ms, so the gain is 80 ms.
        assert_eq!(choice(&[full(at(1, 40, 10, 0)), slow], 1), Err(ms(80)));
        // The last of 10 has (9 + 1) / 10 = 1 round trip: 60 ms, a gain of 40 ms.
        assert_eq!(choice(&[full(at(1, 40, 10, 0)), slow], 10), Err(ms(40)));
        assert_eq!(choice(&[full(at(1, 40, 10, 0)), slow], 20), Ok(1), "no gain any more");
        // Three paths: 40, 60 + 120 ms and 75 ms.
        let third = at(3, 150, 0, 0);
        assert_eq!(choice(&[at(1, 80, 0, 0), at(2, 120, 10, 9), third], 1), Ok(0));
        assert_eq!(choice(&[at(1, 80, 10, 9), at(2, 120, 10, 9), third], 1), Ok(2));
    }

    #[test]
    fn a_run_fills_the_window_and_no_more() {
        let mut chain = ChainSpec::named("otias").unwrap().build();
        let segment = SegmentView { backlog: Bytes(99 * SEGMENT), ..SegmentView::default() };
        let input = Input { paths: &[at(1, 40, 6, 1)], segment, now: base() };
        let Decision::Send { run_max, .. } = chain.decide(&input) else { panic!("it has room") };
        assert_eq!(run_max, 3 * SEGMENT);
    }
    #[test]
    fn slower_path_gets_the_first_byte_that_the_faster_would_not_deliver_earlier() {
        let ahead = |paths: &[PathView], backlog: u64| {
            let segment =
                SegmentView { backlog: Bytes(backlog * SEGMENT), ..SegmentView::default() };
            let mut chain = ChainSpec::named("otias").unwrap().build();
            match chain.decide(&Input { paths, segment, now: base() }) {
                Decision::Send { primary, ahead, .. } => (primary, ahead / SEGMENT),
                Decision::Wait { .. } => panic!("it goes"),
            }
        };
        // 100 ms: over the fast path after 2 round trips and a half, behind (19 + 1) / 10 rounds.
        let (fast, slow) = (full(at(1, 40, 10, 0)), at(2, 200, 0, 0));
        assert_eq!(ahead(&[fast, slow], 20), (1, 19));
        assert_eq!(ahead(&[fast, slow], 500), (1, 19), "however much waits");
        assert_eq!(ahead(&[full(at(1, 40, 10, 9)), slow], 20), (1, 10), "9 are queued already");
        assert_eq!(ahead(&[fast, fast, slow], 50), (2, 38), "each takes as many");
        assert_eq!(ahead(&[at(1, 40, 9, 0), slow], 500), (0, 0));
        let arrives = |more: u64| arrival(&fast, more * SEGMENT) >= slow.srtt / 2;
        assert!(arrives(19) && !arrives(18));
    }
}
