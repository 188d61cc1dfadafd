//! `tail_rejection`: keeps the end of a flow off a path that would finish it later.
//!
//! Rule: POLYCORN 4.4 and appendix A. For segments of a flow whose end is known, path i is rejected
//! if even an empty flow would arrive later over it than all that remains over another path:
//!
//! ```text
//! owd_i + buf_i / bw_i > min over j of (owd_j + (buf_j + remain) / bw_j)(1 + eta_j)
//! ```
//!
//! `eta` is the variance of the round-trip time over the round-trip time, at most 1.
//!
//! Choices where the paper is open: `bw` is the delivery rate. `buf` is the data that the transport
//! has unsent or in flight, so `owd` is the least one-way delay; half the least round-trip time
//! while it is unknown. `remain` excludes data on paths and data sent ahead. `owd_error` makes path
//! i earlier and path j later. Stalled, backup and unavailable paths and paths without a rate are
//! no alternative. The segment waits for room on the better path, but no longer than the expected
//! gain.

use std::time::{Duration, Instant};

use polyrail_model::Bytes;

use crate::params::{ParamError, Reader};
use crate::rules::waits::Waits;
use crate::{Input, Kind, Note, PathSet, PathSets, PathView, Schedulerlet};

#[derive(Debug)]
pub struct TailRejection {
    eta_max: f64,
    waits: Waits,
}

impl TailRejection {
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        Ok(Self { eta_max: params.number("eta_max", 1.0, 0.0..=10.0)?, waits: Waits::default() })
    }

    /// The latest arrival time of all that remains over this path.
    fn latest(&self, path: &PathView, remain: Bytes) -> Option<f64> {
        let eta = match path.srtt.as_secs_f64() {
            srtt if srtt > 0.0 => (path.rtt_var.as_secs_f64() / srtt).min(self.eta_max),
            _ => 0.0,
        };
        Some((arrival(path, remain)? + path.owd_error.as_secs_f64()) * (1.0 + eta))
    }
}

/// The arrival time of these further bytes over this path, in seconds.
fn arrival(path: &PathView, more: Bytes) -> Option<f64> {
    let rate = path.rate.filter(|rate| rate.as_bps() > 0)?;
    let before = Bytes(path.unsent.0.saturating_add(path.in_flight.0).saturating_add(more.0));
    let owd = path.owd.unwrap_or(path.rtt_min / 2);
    Some(owd.as_secs_f64() + before.0 as f64 * 8.0 / rate.as_bps() as f64)
}

impl Schedulerlet for TailRejection {
    fn kind(&self) -> Kind {
        Kind::SelectionFilter
    }

    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        let segment = &input.segment;
        if !segment.tail {
            return;
        }
        let usable = |path: &PathView| !path.stalled && !path.backup;
        for path in sets.selected().iter() {
            let others = sets.candidates().or(sets.selected()).without(PathSet::only(path));
            let others = others.iter().filter(|&other| usable(&input.paths[other]));
            let best = others
                .filter_map(|other| self.latest(&input.paths[other], segment.remaining))
                .min_by(f64::total_cmp);
            let view = &input.paths[path];
            let (Some(own), Some(best)) = (arrival(view, Bytes::ZERO), best) else { continue };
            let own = own - view.owd_error.as_secs_f64();
            if own <= best {
                continue;
            }
            let gain = Duration::try_from_secs_f64(own - best).unwrap_or(Duration::MAX);
            if self.waits.hold(sets, input, gain) {
                sets.deselect(path);
            }
        }
    }

    fn note(&mut self, note: &Note, _now: Instant) {
        if let Note::Sent { flow, .. } = *note {
            self.waits.end(flow);
        }
    }
}

#[cfg(test)]
mod tests {
    use polyrail_model::Bitrate;

    use super::*;
    use crate::samples::{backup, base, full, ms, path, stalled};
    use crate::{ChainSpec, Decision, SegmentView};

    /// A path with this one-way delay (ms), rate (Mbit/s) and buffer (KB).
    fn at(id: u64, owd_ms: u64, mbps: f64, buffer_kb: u64) -> PathView {
        PathView {
            owd: Some(Duration::from_millis(owd_ms)),
            rate: Some(Bitrate::from_mbps(mbps)),
            in_flight: Bytes(buffer_kb * 1_000),
            ..path(id, 2 * owd_ms)
        }
    }

    /// The tail of a flow with so many KB left: the path that it takes now, and after a wait.
    fn tail(paths: &[PathView], left_kb: u64) -> (Option<usize>, Option<Duration>) {
        let segment =
            SegmentView { tail: true, remaining: Bytes(left_kb * 1_000), ..SegmentView::default() };
        let mut chain = ChainSpec::of(&["min_rtt", "tail_rejection"]).unwrap().build();
        match chain.decide(&Input { paths, segment, now: base() }) {
            Decision::Send { primary, .. } => (Some(primary), None),
            Decision::Wait { until } => {
                let until = until.unwrap();
                let later = chain.decide(&Input { paths, segment, now: until });
                assert!(matches!(later, Decision::Send { .. }), "a wait is bounded");
                (None, Some(until - base()))
            }
        }
    }

    #[test]
    fn table() {
        // Over the full one: 20 ms + (20 + 10) KB at 8 Mbit/s = 50 ms; over the slow one at least
        // 100 ms.
        let (fast, slow) = (full(at(1, 20, 8.0, 20)), at(2, 100, 8.0, 0));
        assert_eq!(tail(&[fast, slow], 10), (None, Some(ms(50))), "waits for what it gains");
        assert_eq!(tail(&[fast, slow], 60), (Some(1), None), "80 KB take 100 ms");
        let unsteady = PathView { rtt_var: ms(40), ..fast };
        assert_eq!(tail(&[unsteady, slow], 10), (Some(1), None), "twice 50 ms");
        let shaky = PathView { rtt_var: ms(400), ..full(at(1, 10, 8.0, 0)) };
        assert_eq!(tail(&[shaky, slow], 10), (None, Some(ms(60))), "eta is 1 at most");
        assert_eq!(tail(&[stalled(fast), slow], 10), (Some(1), None), "the other is dead");
        assert_eq!(tail(&[backup(fast), slow], 10), (Some(1), None), "the other is a backup");
        let old = PathView { owd_error: ms(30), ..fast };
        assert_eq!(tail(&[old, slow], 10), (None, Some(ms(20))), "80 ms at the latest");
        let both = [old, PathView { owd_error: ms(30), ..slow }];
        assert_eq!(tail(&both, 10), (Some(1), None), "and 70 ms at the earliest");
        let unknown = PathView { rate: None, ..fast };
        assert_eq!(tail(&[unknown, slow], 10), (Some(1), None), "the other is unknown");
        assert_eq!(tail(&[slow], 10), (Some(0), None), "no other path");
        let late = PathView { owd: Some(ms(4_700)), ..at(3, 10, 8.0, 0) };
        assert_eq!(tail(&[late, slow], 10), (Some(1), None), "the other has room: no wait");
    }

    #[test]
    fn middle_of_a_flow_uses_any_path() {
        let paths = [full(at(1, 20, 8.0, 20)), at(2, 100, 8.0, 0)];
        let mut chain = ChainSpec::of(&["min_rtt", "tail_rejection"]).unwrap().build();
        let input = Input { paths: &paths, segment: SegmentView::default(), now: base() };
        assert!(matches!(chain.decide(&input), Decision::Send { primary: 1, .. }));
    }
}
