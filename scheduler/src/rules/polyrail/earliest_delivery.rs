//! `earliest_delivery`: the path that would deliver the segment first at its present rate.
//!
//! Rule: our own, similar to `edpf`. A path of rate `rate` ([`attainable_rate`]) with `out` bytes
//! in flight delivers a segment after `(out + segment) / rate - least round trip / 2`, and not
//! before its one-way delay. The earliest path with room wins.
//!
//! A segment waits for a full path if that would deliver the rest of the flow earlier, by `margin`,
//! than the best other path would deliver this segment. It waits for the gain, and at most a
//! second.

use std::time::Duration;

use crate::params::{ParamError, Reader};
use crate::rules::hsrsch::min_rtt::group;
use crate::rules::path_rate::{attainable_rate, delay};
use crate::rules::waits::Waits;
use crate::{Input, PathSet, PathSets, PathView, SEGMENT, Schedulerlet};

#[derive(Clone, Debug)]
pub struct EarliestDelivery {
    margin: f64,
    waits: Waits,
}

impl EarliestDelivery {
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        let times = Duration::ZERO..=Duration::from_secs(60);
        let margin = params.time("margin", Duration::from_millis(20), times)?.as_secs_f64();
        Ok(Self { margin, waits: Waits::default() })
    }
}

/// The rate that the path attains, in bytes per second; at least one.
pub(crate) fn bytes_s(path: &PathView) -> f64 {
    (attainable_rate(path).as_bps() as f64 / 8.0).max(1.0)
}

/// When so many bytes more would be there over this path, in seconds from now.
pub(crate) fn delivery(path: &PathView, bytes: u64) -> f64 {
    let drained = path.outstanding.0.saturating_add(bytes) as f64 / bytes_s(path);
    (drained - path.rtt_min.as_secs_f64() / 2.0).max(delay(path).as_secs_f64())
}

/// The earliest of these, and when.
fn earliest(of: PathSet, paths: &[PathView], bytes: u64) -> Option<(f64, usize)> {
    let all = of.iter().map(|path| (delivery(&paths[path], bytes), path));
    all.min_by(|a, b| a.0.total_cmp(&b.0))
}

impl Schedulerlet for EarliestDelivery {
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        let (paths, segment) = (input.paths, &input.segment);
        let group = group(sets.candidates(), input);
        let available = group.filter(|i| paths[i].available());
        let Some((at, path)) = earliest(available, paths, SEGMENT) else { return };
        let full = group.without(available).filter(|i| !paths[i].stalled);
        if let Some((all, _)) = earliest(full, paths, segment.remaining.0.max(SEGMENT))
            && all + self.margin < at
            && self.waits.hold(sets, input, seconds(at - all))
        {
            return;
        }
        sets.select(path);
    }
}

/// A time; zero for none that is sound.
pub(crate) fn seconds(time: f64) -> Duration {
    Duration::try_from_secs_f64(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use polyrail_model::{Bitrate, Bytes};

    use super::*;
    use crate::samples::{backup, base, full, path, stalled};
    use crate::{ChainSpec, Decision, SegmentView};

    fn at(id: u64, rtt_ms: u64, mbps: f64, out_kb: u64) -> PathView {
        PathView {
            rate: Some(Bitrate::from_mbps(mbps)),
            outstanding: Bytes(out_kb * 1_000),
            window: Bytes::ZERO,
            ..path(id, rtt_ms)
        }
    }

    fn decision(paths: &[PathView], remaining: u64) -> Decision {
        let segment = SegmentView { remaining: Bytes(remaining), ..SegmentView::default() };
        let mut chain = ChainSpec::of(&["earliest_delivery"]).unwrap().build();
        chain.decide(&Input { paths, segment, now: base() })
    }

    fn choice(paths: &[PathView]) -> Option<usize> {
        match decision(paths, 0) {
            Decision::Send { primary, .. } => Some(primary),
            Decision::Wait { .. } => None,
        }
    }

    #[test]
    fn table() {
        let (near, far) = (at(1, 40, 8.0, 0), at(2, 60, 8.0, 0));
        assert_eq!(choice(&[]), None, "no path");
        assert_eq!(choice(&[far, near]), Some(1), "20 against 30 ms");
        // 51.4 KB at 1 KB a millisecond, less 20: 31 ms.
        assert_eq!(choice(&[at(1, 40, 8.0, 50), far]), Some(1));
        assert_eq!(choice(&[at(1, 40, 8.0, 47), far]), Some(0));
        // Twice as fast: 5.7 ms, so 20.
        assert_eq!(choice(&[at(1, 40, 16.0, 50), far]), Some(0));
        assert_eq!(choice(&[full(near), far]), Some(1), "the nearer is full");
        assert_eq!(choice(&[stalled(near), far]), Some(1), "the nearer is dead");
        assert_eq!(choice(&[full(near), full(far)]), None, "all full");
        // A rate that has fallen to a tenth: 11.4 KB take 114 ms.
        let fallen = PathView { capacity: Some(Bitrate::from_mbps(0.8)), ..at(1, 40, 8.0, 10) };
        assert_eq!(choice(&[fallen, far]), Some(1));
        // 2 KB a round trip: 10 KB take 200 ms.
        let held = PathView { window: Bytes(2_000), ..at(1, 40, 8.0, 10) };
        assert_eq!(choice(&[held, far]), Some(1));
    }

    #[test]
    fn a_segment_waits_for_a_path_that_would_bring_all_of_its_flow_earlier() {
        let (near, far) = (full(at(1, 40, 8.0, 0)), at(2, 200, 8.0, 0));
        // 60 KB at 1 KB a millisecond, less 20: 40 ms, against 100.
        let wait = Decision::Wait { until: Some(base() + Duration::from_millis(60)) };
        assert_eq!(decision(&[near, far], 60_000), wait);
        // 100 KB: 80 ms; 101 KB: 81.
        assert!(matches!(decision(&[near, far], 99_000), Decision::Wait { .. }));
        assert!(matches!(decision(&[near, far], 101_000), Decision::Send { primary: 1, .. }));
        assert!(matches!(decision(&[stalled(near), far], 1_000), Decision::Send { .. }));
        assert!(matches!(decision(&[backup(near), far], 1_000), Decision::Send { .. }));
    }
}
