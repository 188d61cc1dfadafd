//! The order in which flows send: the fair queue, and the flows that wait outside of it.
//!
//! Invariant: a flow that has data and may send it is in the queue or set aside, or is among the
//! starved flows and has its turn among them.

use std::time::Instant;

use polyrail_scheduler::{FairQueue, RUN_MAX, Turn};

use super::flow_control::FlowControl;
use super::starved::Starved;
use crate::flow::Flow;
use crate::limits::INTERACTIVE_MAX;

#[derive(Debug)]
pub(crate) struct Turns {
    pub queue: FairQueue,
    /// Flows that wait for a better path until all other flows had their turn, so that they do not
    /// keep them from a free path.
    pub aside: Vec<Turn>,
    /// Flows that wait for credit, not for a path.
    pub starved: Starved,
    /// When a scheduler that delays a segment decides again.
    pub wake_at: Option<Instant>,
}

impl Turns {
    pub fn new(now: Instant) -> Self {
        let queue = FairQueue::new(now);
        Self { queue, aside: Vec::new(), starved: Starved::default(), wake_at: None }
    }

    /// Queues the flow if it has data and may send it.
    pub fn enqueue(&mut self, now: Instant, flow: &mut Flow, control: &FlowControl) {
        if flow.queued || flow.hold {
            return;
        }
        if flow.send.piece(control.allowance(flow)).is_none() {
            if flow.send.unsent() > 0 && flow.send.window() > 0 {
                self.starved.insert(flow.user, flow.id);
            }
            return;
        }
        flow.queued = true;
        let small = flow.send.unsent() <= RUN_MAX;
        let interactive = small && flow.recent(now) < INTERACTIVE_MAX;
        self.queue.push(Turn { user: flow.user, flow: flow.id, interactive });
    }

    /// The flow is over.
    pub fn forget(&mut self, flow: &Flow) {
        if flow.queued {
            self.queue.remove(flow.user, flow.id);
        }
        self.starved.remove(flow.id);
    }

    /// Returns the flows set aside to the front of the queue, in order.
    pub fn rejoin(&mut self) {
        self.aside.drain(..).rev().for_each(|turn| self.queue.push_front(turn));
    }

    /// Whether an interactive flow waits.
    pub fn interactive_waits(&self) -> bool {
        self.queue.interactive_waits() || self.aside.iter().any(|turn| turn.interactive)
    }

    /// The scheduler must decide again at this time.
    pub fn wake_by(&mut self, at: Instant) {
        self.wake_at = Some(self.wake_at.map_or(at, |known| known.min(at)));
    }
}
