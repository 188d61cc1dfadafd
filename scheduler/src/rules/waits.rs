//! Waits for a better path: one per flow, each with an end.

use std::time::{Duration, Instant};

use polyrail_model::FlowId;

use crate::rules::per_flow::PerFlow;
use crate::{Input, PathSets, SegmentView};

/// The remaining wait of each flow's first segment, bounded as [`PerFlow`]. A forgotten wait starts
/// over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits {
    /// The offset of the waiting segment and the end of its wait.
    flows: PerFlow<Option<(u64, Instant)>>,
}

impl Waits {
    /// Holds the segment back if it may still wait. Returns whether it does.
    pub fn hold(&mut self, sets: &mut PathSets, input: &Input<'_>, longest: Duration) -> bool {
        let until = self.until(&input.segment, input.now, longest);
        until.inspect(|&until| sets.wake_at(until)).is_some()
    }

    /// The end of the segment's wait, unless it has passed: `longest` after the first call for this
    /// segment, and at most [`WAIT_MAX`] after it.
    pub fn until(
        &mut self,
        segment: &SegmentView,
        now: Instant,
        longest: Duration,
    ) -> Option<Instant> {
        let wait = self.flows.of(segment.flow);
        let until = match *wait {
            Some((offset, until)) if offset == segment.offset => until,
            _ => now + longest.min(WAIT_MAX),
        };
        *wait = Some((segment.offset, until));
        (now < until).then_some(until)
    }

    /// Ends the wait of a flow whose segment was sent.
    pub fn end(&mut self, flow: FlowId) {
        if self.flows.get(flow).is_some() {
            *self.flows.of(flow) = None;
        }
    }
}

/// The longest wait, whatever the gain, because paths change meanwhile.
const WAIT_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{base, ms};

    #[test]
    fn waits_are_bounded_per_flow_and_segment() {
        let mut waits = Waits::default();
        let mut until = |flow, offset, at, longest| {
            let segment = SegmentView { flow: FlowId(flow), offset, ..SegmentView::default() };
            waits.until(&segment, base() + ms(at), ms(longest)).map(|until| until - base())
        };
        assert_eq!(until(1, 0, 0, 50), Some(ms(50)));
        assert_eq!(until(2, 0, 20, 50), Some(ms(70)), "another flow");
        assert_eq!(until(1, 0, 49, 90), Some(ms(50)), "the first call decides");
        assert_eq!(until(1, 0, 50, 90), None);
        assert_eq!(until(1, 1, 50, 90), Some(ms(140)), "the next segment");
        assert_eq!(until(3, 0, 0, 5_000), Some(ms(1_000)));
    }
}
