//! Resets that begin here, and the cutting of flows that they need.

use std::time::Instant;

use polyrail_model::FlowId;
use polyrail_scheduler::PathSet;

use super::Session;
use crate::flow::Life;
use crate::limits::RESET_LINGER;
use crate::{Event, FlowKey, ResetReason};

impl Session {
    /// Resets a flow for its caller, who hears no more of it. What was written before is delivered
    /// first when its endpoint reset it; else nothing more is delivered.
    pub fn reset(&mut self, now: Instant, id: FlowId, reason: ResetReason) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        match flow.life {
            Life::Resetting { .. } => return,
            Life::Ending { .. } => {
                self.bury(now, id);
                self.say_end_again(id);
                return;
            }
            Life::Live => {}
        }
        if flow.hold || (flow.send.next() == 0 && flow.recv.highest() == 0 && self.opens(id)) {
            // The peer has never heard of it.
            return self.bury(now, id);
        }
        let flow = match self.flows.get_mut(&id) {
            Some(flow) => flow,
            None => return,
        };
        let after = if reason == ResetReason::PeerReset { flow.send.written() } else { 0 };
        flow.life = Life::Resetting { reason, after, answered: false };
        flow.due.reset = true;
        self.cut_sending(now, id, after);
        self.discard_received(id);
        if after > 0 {
            self.reset_line.push_back((now + RESET_LINGER, id));
            self.enqueue(now, id);
        }
        self.after_drain(now, id);
        self.list(id);
    }

    /// Resets a flow on which the peer broke the protocol. The caller hears of it at once.
    pub(super) fn break_off(&mut self, now: Instant, id: FlowId) {
        let reason = ResetReason::Protocol;
        let Some(flow) = self.flows.get(&id) else { return };
        let known = flow.destination.is_some() || self.role == crate::Role::Gateway;
        if known && flow.is_callers() {
            let flow = FlowKey { session: self.key, flow: id };
            self.events.push_back(Event::Reset { flow, reason });
        }
        self.reset(now, id, reason);
    }

    fn opens(&self, id: FlowId) -> bool {
        self.role == crate::Role::Gateway && self.flows.contains_key(&id)
    }

    /// The caller is told of a reset that has no frame: its session is gone.
    pub fn abandon(&mut self, reason: ResetReason) {
        for (&id, flow) in &self.flows {
            if flow.is_callers()
                && (flow.destination.is_some() || self.role == crate::Role::Gateway)
            {
                let flow = FlowKey { session: self.key, flow: id };
                self.events.push_back(Event::Reset { flow, reason });
            }
        }
        self.flows.clear();
    }

    /// Ends the sending half at `after`.
    pub(super) fn cut_sending(&mut self, now: Instant, id: FlowId, after: u64) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        let before = flow.send.held();
        let mut dropped: Vec<(u64, PathSet)> = Vec::new();
        flow.send.truncate(after, |length, live| dropped.push((length, live)));
        let freed = before - flow.send.held();
        self.flow_control.held_sent -= freed;
        self.flow_control.recount(flow);
        let spare = flow.send.take_spare();
        dropped.into_iter().for_each(|(length, live)| self.settle(length, live));
        self.withdraw(spare);
        self.cramped.remove(&id);
        self.relieve();
    }

    /// Throws away what was received and not read.
    pub(super) fn discard_received(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        self.flow_control.held_received -= flow.recv.held();
        flow.recv.discard();
    }

    /// Reset flows that could not deliver in time deliver no more.
    pub(super) fn hurry_resets(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.reset_line.front() {
            if at > now {
                break;
            }
            self.reset_line.pop_front();
            let Some(flow) = self.flows.get_mut(&id) else { continue };
            if let Life::Resetting { after, .. } = &mut flow.life {
                *after = 0;
                flow.due.reset = true;
                self.cut_sending(now, id, 0);
                self.list(id);
                self.end_if_over(now, id);
            }
        }
    }
}
