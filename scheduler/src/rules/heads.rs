//! The head of the line of each flow: the run with its first unacknowledged byte.

use polyrail_model::FlowId;

use crate::rules::per_flow::PerFlow;
use crate::{Note, OutView};

/// The cumulatively acknowledged bytes of each flow, bounded as [`PerFlow`]. A forgotten flow has
/// no head until its next acknowledgement.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heads {
    arrived: PerFlow<u64>,
}

impl Heads {
    /// Records an acknowledgement. Returns whether the flow made progress.
    pub fn note(&mut self, note: &Note) -> bool {
        let Note::Acked { flow, cumulative, .. } = *note else { return false };
        let arrived = self.arrived.of(flow);
        let moved = cumulative > *arrived;
        *arrived = cumulative.max(*arrived);
        moved
    }

    /// The cumulatively acknowledged bytes of the flow, as far as known.
    pub fn arrived(&self, flow: FlowId) -> u64 {
        self.arrived.get(flow).copied().unwrap_or(0)
    }

    /// Whether everything before this run has arrived.
    pub fn is_head(&self, out: &OutView) -> bool {
        out.offset <= self.arrived(out.flow)
    }
}
