//! Waits for a better path: one a flow, each with an end.

use std::time::{Duration, Instant};

use polyrail_model::FlowId;

use crate::rules::per_flow::PerFlow;
use crate::{Input, PathSets, SegmentView};

/// How long the first segment of each flow may still wait. Bounded as [`PerFlow`]: a forgotten
/// wait begins anew.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits {
    /// Where the segment begins that waits, and until when it may.
    flows: PerFlow<Option<(u64, Instant)>>,
}

impl Waits {
    /// Holds the segment back if it may still wait. Returns whether it does.
    pub fn hold(&mut self, sets: &mut PathSets, input: &Input<'_>, longest: Duration) -> bool {
        let until = self.until(&input.segment, input.now, longest);
        until.inspect(|&until| sets.wake_at(until)).is_some()
    }

    /// Until when the segment may wait, if it may: for `longest` since it was first asked for, and
    /// at most [`WAIT_MAX`].
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

/// However much better the other path seems, paths change meanwhile.
const WAIT_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{base, ms};

    #[test]
    fn flows_wait_for_themselves_and_not_for_ever() {
        let mut waits = Waits::default();
        let mut until = |flow, offset, at, longest| {
            let segment = SegmentView { flow: FlowId(flow), offset, ..SegmentView::default() };
            waits.until(&segment, base() + ms(at), ms(longest)).map(|until| until - base())
        };
        assert_eq!(until(1, 0, 0, 50), Some(ms(50)));
        assert_eq!(until(2, 0, 20, 50), Some(ms(70)), "another flow");
        assert_eq!(until(1, 0, 49, 90), Some(ms(50)), "the first word counts");
        assert_eq!(until(1, 0, 50, 90), None);
        assert_eq!(until(1, 1, 50, 90), Some(ms(140)), "the next segment");
        assert_eq!(until(3, 0, 0, 5_000), Some(ms(1_000)));
    }
}
