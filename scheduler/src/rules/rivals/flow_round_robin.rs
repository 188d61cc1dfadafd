//! `flow_round_robin`: assigns each new flow to the next carrier.
//!
//! Rule: current practice on trains (POLYCORN 6.3: single-path TCP over the SIM cards in turn). All
//! of a flow goes over its carrier. A carrier outlives its paths, so a restarted path keeps its
//! flows.
//!
//! Choices: a flow whose carrier has no live path moves to the next carrier that has one, and stays
//! there. A flow on a backup moves once another path lives. A segment that all live paths of its
//! carrier have carried goes over the fastest other path. While its carrier is full, a flow waits
//! for room or a stall, and other flows go on. A flow that [`PerFlow`] forgot is assigned again.

use std::time::Duration;

use crate::rules::hsrsch::min_rtt::{fastest, group};
use crate::rules::per_flow::PerFlow;
use crate::{Input, PathSet, PathSets, Schedulerlet};

#[derive(Clone, Debug, Default)]
pub struct FlowRoundRobin {
    /// The carrier of each flow.
    pins: PerFlow<Option<u32>>,
    /// Who got the last flow.
    last: Option<u32>,
}

impl FlowRoundRobin {
    /// The members that run over the flow's carrier.
    fn own(&mut self, set: PathSet, input: &Input<'_>) -> PathSet {
        let of = |carrier: u32| set.filter(|i| input.paths[i].carrier == carrier);
        let pin = self.pins.of(input.segment.flow);
        if let Some(carrier) = *pin
            && !of(carrier).is_empty()
        {
            return of(carrier);
        }
        let Some(next) = next(set, input, self.last) else { return PathSet::EMPTY };
        (*pin, self.last) = (Some(next), Some(next));
        of(next)
    }
}

/// The carrier behind the last one, by number; the first again behind all.
fn next(set: PathSet, input: &Input<'_>, last: Option<u32>) -> Option<u32> {
    let carriers = || set.iter().map(|i| input.paths[i].carrier);
    let behind = carriers().filter(|&carrier| last.is_none_or(|last| carrier > last)).min();
    behind.or_else(|| carriers().min())
}

impl Schedulerlet for FlowRoundRobin {
    fn apply(&mut self, sets: &mut PathSets, input: &Input<'_>) {
        let live = sets.candidates().filter(|i| !input.paths[i].stalled);
        let regular = live.filter(|i| !input.paths[i].backup);
        let own = self.own(if regular.is_empty() { live } else { regular }, input);
        let carried = input.segment.carried;
        let usable = if !own.without(carried).is_empty() {
            own.without(carried)
        } else if !live.without(carried).is_empty() {
            group(live, input)
        } else {
            own
        };
        if let Some(path) = fastest(usable, input) {
            sets.select(path);
        } else if let Some(srtt) = usable.iter().map(|i| input.paths[i].srtt).min() {
            // Who waits for a time does not hold up the flows of other carriers.
            sets.wake_at(input.now + srtt.max(ASK_AGAIN_MIN));
        }
    }
}

/// The least time after which a flow of a full carrier asks again, if nothing else wakes it.
const ASK_AGAIN_MIN: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use polyrail_model::FlowId;

    use super::*;
    use crate::samples::{backup, base, full, path, stalled};
    use crate::{Chain, Decision, PathView, SegmentView};

    fn chain() -> Chain {
        Chain::new(vec![Box::new(FlowRoundRobin::default())])
    }

    fn on(chain: &mut Chain, flow: u64, paths: &[PathView], carried: &[usize]) -> Option<u64> {
        let mask = carried.iter().copied().collect();
        let segment = SegmentView { flow: FlowId(flow), carried: mask, ..SegmentView::default() };
        match chain.decide(&Input { paths, segment, now: base() }) {
            Decision::Send { primary, .. } => Some(paths[primary].id.0),
            Decision::Wait { .. } => None,
        }
    }

    /// A path with this id over this carrier.
    fn over(carrier: u32, id: u64) -> PathView {
        PathView { carrier, ..path(id, 40) }
    }

    #[test]
    fn flows_are_dealt_in_turn_and_stay() {
        let (mut chain, paths) = (chain(), [over(7, 1), over(3, 2), over(5, 3)]);
        let dealt: Vec<_> = (1..=5).map(|flow| on(&mut chain, flow, &paths, &[])).collect();
        // Carriers 3, 5, 7, and from the front.
        assert_eq!(dealt, [Some(2), Some(3), Some(1), Some(2), Some(3)]);
        let later: Vec<_> = (1..=5).rev().map(|flow| on(&mut chain, flow, &paths, &[])).collect();
        assert_eq!(later, [Some(3), Some(2), Some(1), Some(3), Some(2)]);
        let waits = [paths[0], full(paths[1]), paths[2]];
        assert_eq!(on(&mut chain, 1, &waits, &[]), None, "waits for its own");
        let segment = SegmentView { flow: FlowId(1), ..SegmentView::default() };
        let decision = chain.decide(&Input { paths: &waits, segment, now: base() });
        assert_eq!(decision, Decision::Wait { until: Some(base() + Duration::from_millis(40)) });
    }

    #[test]
    fn a_restarted_path_keeps_its_flows() {
        let mut chain = chain();
        assert_eq!(on(&mut chain, 1, &[over(1, 1), over(2, 2)], &[]), Some(1));
        assert_eq!(on(&mut chain, 1, &[stalled(over(1, 1)), over(1, 9), over(2, 2)], &[]), Some(9));
        assert_eq!(on(&mut chain, 1, &[over(2, 2), over(1, 9)], &[]), Some(9));
    }

    #[test]
    fn a_flow_without_a_carrier_is_dealt_again() {
        let (mut chain, a, b, c) = (chain(), over(1, 1), over(2, 2), over(3, 3));
        assert_eq!(on(&mut chain, 1, &[a, b, c], &[]), Some(1));
        assert_eq!(on(&mut chain, 2, &[a, b, c], &[]), Some(2));
        assert_eq!(on(&mut chain, 1, &[stalled(a), b, c], &[]), Some(3), "the next in turn");
        assert_eq!(on(&mut chain, 1, &[a, b, c], &[]), Some(3), "and stays");
        assert_eq!(on(&mut chain, 2, &[stalled(a), stalled(b), stalled(c)], &[]), None);
        assert_eq!(on(&mut chain, 2, &[a, b, c], &[]), Some(2), "no other lived");
        assert_eq!(on(&mut chain, 3, &[backup(a), stalled(b)], &[]), Some(1));
        assert_eq!(on(&mut chain, 3, &[backup(a), b], &[]), Some(2), "backups last");
    }

    #[test]
    fn what_its_carrier_has_carried_goes_elsewhere() {
        let (mut chain, a, b) = (chain(), over(1, 1), over(2, 2));
        assert_eq!(on(&mut chain, 1, &[a, b], &[]), Some(1));
        assert_eq!(on(&mut chain, 1, &[a, b], &[0]), Some(2));
        assert_eq!(on(&mut chain, 1, &[a, full(b)], &[0]), None);
        assert_eq!(on(&mut chain, 1, &[a, stalled(b)], &[0]), Some(1));
        assert_eq!(on(&mut chain, 1, &[a, b], &[0, 1]), Some(1));
        assert_eq!(on(&mut chain, 1, &[a, b], &[]), Some(1), "its carrier is the same");
    }
}
