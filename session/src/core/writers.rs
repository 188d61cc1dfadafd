//! Writers that wait for room.

use std::collections::BTreeSet;

use polyrail_model::FlowId;
use polyrail_scheduler::SEGMENT;

use super::flow_control::FlowControl;
use super::flows::Flows;
use crate::flow::{Flow, Life};
use crate::limits::{UNSENT_MAX, WRITABLE_MIN};

#[derive(Debug, Default)]
pub(crate) struct Writers {
    pub waiting: BTreeSet<FlowId>,
    /// The next writer in turn.
    next: FlowId,
}

/// How many bytes the flow's writer may write now.
pub(super) fn room(flow: &Flow, control: &FlowControl) -> u64 {
    if flow.life == Life::Live && !flow.send.fin {
        control.room(flow)
    } else {
        UNSENT_MAX // later writes to a reset flow are discarded
    }
}

impl Writers {
    /// Returns the writers that have room now; a few at a time, in turn.
    pub fn relieve(&mut self, flows: &Flows, control: &FlowControl) -> Vec<FlowId> {
        let turn = self.waiting.range(self.next..).chain(self.waiting.range(..self.next));
        let asked: Vec<FlowId> = turn.copied().take(RELIEVED_AT_ONCE).collect();
        self.next = asked.last().map_or(FlowId(0), |last| FlowId(last.0 + 1));
        asked.into_iter().filter(|&id| self.relieve_one(id, flows, control)).collect()
    }

    /// Whether this writer waited and has room now.
    pub fn relieve_one(&mut self, id: FlowId, flows: &Flows, control: &FlowControl) -> bool {
        let Some(flow) = flows.get(id).filter(|_| self.waiting.contains(&id)) else { return false };
        let least = match &flow.send {
            send if send.held() == 0 => 1,
            send if send.unsent() == 0 => SEGMENT,
            // Its room is at most the floor, which is less than `WRITABLE_MIN`.
            _ if control.window(flow) == 0 => SEGMENT,
            _ => WRITABLE_MIN,
        };
        room(flow, control) >= least && self.waiting.remove(&id)
    }
}

/// Writers woken at once when memory becomes free.
const RELIEVED_AT_ONCE: usize = 16;
