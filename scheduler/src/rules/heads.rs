//! Which run of a flow is the head of the line.

use polyrail_model::FlowId;

use crate::rules::per_flow::PerFlow;
use crate::{Note, OutView};

/// How far each flow has arrived without a gap. Bounded as [`PerFlow`]: a forgotten flow has no
/// head until it moves on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heads {
    arrived: PerFlow<u64>,
}

impl Heads {
    /// Learns what has arrived. Returns whether a flow has moved on.
    pub fn note(&mut self, note: &Note) -> bool {
        let Note::Acked { flow, cumulative, .. } = *note else { return false };
        let arrived = self.arrived.of(flow);
        let moved = cumulative > *arrived;
        *arrived = cumulative.max(*arrived);
        moved
    }

    /// How much of the flow has arrived without a gap, as far as is known.
    pub fn arrived(&self, flow: FlowId) -> u64 {
        self.arrived.get(flow).copied().unwrap_or(0)
    }

    /// Whether everything before this run has arrived.
    pub fn is_head(&self, out: &OutView) -> bool {
        out.offset <= self.arrived(out.flow)
    }
}
