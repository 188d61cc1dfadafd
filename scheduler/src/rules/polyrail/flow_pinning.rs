//! `flow_pinning`: keeps each flow on one carrier, and moves it for a reason.
//!
//! Rule: our own, for datagrams. If the packets of one flow are spread over unlike paths, they
//! arrive out of order, and the congestion control inside the flow collapses. So a flow begins on
//! the path of the earliest delivery and stays on its carrier. It moves at once if that path is
//! stalled or rejected by an earlier rule, and if another path has delivered earlier by `margin`
//! for `hold`. If its path is full, it waits.

use std::time::{Duration, Instant};

use crate::params::{ParamError, Reader};
use crate::rules::hsrsch::min_rtt::group;
use crate::rules::per_flow::PerFlow;
use crate::rules::polyrail::earliest_delivery::delivery;
use crate::{Input, PathSets, SEGMENT, Schedulerlet};

#[derive(Clone, Debug)]
pub struct FlowPinning {
    margin: f64,
    hold: Duration,
    flows: PerFlow<Pin>,
}

/// The carrier of a flow.
#[derive(Clone, Copy, Debug, Default)]
struct Pin {
    carrier: Option<u32>,
    /// Since when another path has been earlier by the margin.
    later_since: Option<Instant>,
}

impl FlowPinning {
    pub fn new(params: &mut Reader<'_>) -> Result<Self, ParamError> {
        let times = || Duration::ZERO..=Duration::from_secs(60);
        let margin = params.time("margin", Duration::from_millis(30), times())?.as_secs_f64();
        let hold = params.time("hold", Duration::from_millis(500), times())?;
        Ok(Self { margin, hold, flows: PerFlow::default() })
    }
}

impl Schedulerlet for FlowPinning {
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        let group = group(sets.candidates(), input);
        let all = group.iter().map(|path| (delivery(&input.paths[path], SEGMENT), path));
        let Some((at, earliest)) = all.min_by(|a, b| a.0.total_cmp(&b.0)) else { return };
        let pin = self.flows.of(input.segment.flow);
        let mut kept = group.iter().find(|&path| Some(input.paths[path].carrier) == pin.carrier);
        match kept {
            Some(path) if delivery(&input.paths[path], SEGMENT) - at > self.margin => {
                let since = *pin.later_since.get_or_insert(input.now);
                if input.now.saturating_duration_since(since) >= self.hold {
                    kept = None;
                }
            }
            _ => pin.later_since = None,
        }
        let path = kept.unwrap_or(earliest);
        if kept.is_none() {
            *pin = Pin { carrier: Some(input.paths[path].carrier), later_since: None };
        }
        if input.paths[path].available() {
            sets.select(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use polyrail_model::{Bitrate, Bytes, FlowId};

    use super::*;
    use crate::samples::{base, chosen, full, path, stalled};
    use crate::{Chain, ChainSpec, PathView, SegmentView};

    fn chain() -> Chain {
        ChainSpec::of(&["flow_pinning"]).unwrap().build()
    }

    fn choice(chain: &mut Chain, flow: u64, paths: &[PathView], at_ms: u64) -> Option<usize> {
        let segment = SegmentView { flow: FlowId(flow), ..SegmentView::default() };
        let now = base() + Duration::from_millis(at_ms);
        chosen(chain.decide(&Input { paths, segment, now }))
    }

    fn on(carrier: u32, view: PathView) -> PathView {
        let rate = Some(Bitrate::from_mbps(20.0));
        PathView { carrier, rate, outstanding: Bytes::ZERO, ..view }
    }

    #[test]
    fn flow_stays_until_another_path_is_earlier_for_long() {
        let (slow, quick) = (on(1, path(1, 120)), on(2, path(2, 40)));
        let late = on(2, path(2, 400));
        let mut chain = chain();
        assert_eq!(choice(&mut chain, 7, &[slow, quick], 0), Some(1));
        assert_eq!(choice(&mut chain, 7, &[slow, late], 10), Some(1), "140 ms later, but not yet");
        assert_eq!(choice(&mut chain, 7, &[slow, late], 400), Some(1));
        assert_eq!(choice(&mut chain, 8, &[slow, late], 400), Some(0), "a new flow");
        assert_eq!(choice(&mut chain, 7, &[slow, quick], 450), Some(1), "earliest again");
        assert_eq!(choice(&mut chain, 7, &[slow, late], 600), Some(1), "counted anew");
        assert_eq!(choice(&mut chain, 7, &[slow, late], 1_100), Some(0));
        assert_eq!(choice(&mut chain, 7, &[slow, quick], 1_200), Some(0), "and stays there");
    }

    #[test]
    fn flow_moves_at_once_from_a_stalled_path_and_waits_for_a_full_one() {
        let (one, two) = (on(1, path(1, 40)), on(2, path(2, 60)));
        let mut chain = chain();
        assert_eq!(choice(&mut chain, 7, &[one, two], 0), Some(0));
        assert_eq!(choice(&mut chain, 7, &[full(one), two], 10), None);
        assert_eq!(choice(&mut chain, 7, &[stalled(one), two], 20), Some(1));
        assert_eq!(choice(&mut chain, 7, &[one, two], 30), Some(1), "no way back without a gain");
        let fresh = on(2, path(9, 60));
        assert_eq!(choice(&mut chain, 7, &[one, fresh], 40), Some(1), "a carrier, not a path");
    }
}
