//! Runs that are out and go out once more because a handler of the chain wants it.
//!
//! Only when no path is kept busy by anything else: the flow has nothing new that may be sent. The
//! oldest runs of each path are looked at, of a few flows each.

use std::time::{Duration, Instant};

use polyrail_model::{Bytes, FlowId, Unit};
use polyrail_scheduler::{Again, Note, OutView, PathSet, RUN_MAX, SEGMENT, Turn};

use super::Session;
use super::transmit::Outlet;
use crate::flow::Waiting;

impl Session {
    /// Asks the handlers, and sends what they want.
    pub(super) fn send_again(&mut self, now: Instant, outlet: &mut dyn Outlet) {
        if !self.views.iter().any(|view| view.available()) {
            return;
        }
        let mut flows: Vec<FlowId> = Vec::new();
        for path in self.paths.iter().flatten() {
            // What is acknowledged behind something that is not leaves late.
            let out = path.carried.iter().take(PASSED_OVER).filter(|carried| {
                let flow = self.flows.get(&carried.flow);
                flow.is_some_and(|flow| flow.send.is_out(carried.start, carried.end))
            });
            let mut seen = 0;
            for carried in out.take(LOOKED_AT) {
                if flows.len() < FLOWS_MAX && !flows.contains(&carried.flow) {
                    flows.push(carried.flow);
                    seen += 1;
                }
                if seen >= FLOWS_EACH {
                    break;
                }
            }
        }
        for id in flows {
            self.ask_again(now, id, outlet);
        }
        self.show_rooms();
    }

    fn ask_again(&mut self, now: Instant, id: FlowId, outlet: &mut dyn Outlet) {
        let Some(flow) = self.flows.get(&id).filter(|flow| !flow.queued) else { return };
        let mut waiting: Vec<Waiting> = Vec::new();
        if self.chain.looks_back() && flow.send.is_finished() && flow.send.unsent() == 0 {
            let once = |waiting: &Waiting| waiting.piece.carried.len() == 1;
            let newest = flow.send.expected().rev().take(BACK_MAX).filter(once);
            waiting.extend(newest.take(AGAIN_MAX));
        }
        let newest = waiting.len();
        for oldest in flow.send.expected().take(AGAIN_MAX) {
            let start = oldest.piece.start;
            if !waiting[..newest].iter().any(|known| known.piece.start == start) {
                waiting.push(oldest);
            }
        }
        for Waiting { piece, live, sent_at, on, mark } in waiting {
            let Some(flow) = self.flows.get(&id) else { return };
            let length = Bytes(piece.end - piece.start);
            let out = OutView {
                flow: id,
                offset: piece.start,
                length,
                ahead: self.ahead_of(on, mark).max(length),
                sent_at,
                carried: piece.carried,
                expected: live,
                tail: flow.send.is_finished() && flow.send.unsent() == 0,
                blocked: flow.send.unsent() > 0,
            };
            let user = flow.user;
            let slot = match self.chain.again(&out, &self.views, now) {
                Again::No => continue,
                Again::At(at) => {
                    let at = at.max(now + LOOK_APART);
                    self.wake_at = Some(self.wake_at.map_or(at, |known| known.min(at)));
                    continue;
                }
                Again::On(slot) => slot,
            };
            // To be asked may have changed its cap.
            self.show_room(slot);
            let fits = self.views.get(slot).is_some_and(|view| view.available());
            if !fits || live.contains(slot) {
                continue;
            }
            let most = self.left_by_cap(slot).map_or(RUN_MAX, |left| left.max(SEGMENT));
            let (end, bytes) = self.frame(now, id, &piece, most.min(RUN_MAX));
            let turn = Turn { user, flow: id, interactive: false };
            self.account(now, turn, &piece, end, bytes, PathSet::only(slot));
            let frame = std::mem::take(&mut self.scratch);
            let unit = Unit::Data { tag: self.next_tag };
            self.next_tag += 1;
            self.put(slot, unit, &frame, outlet);
            self.scratch = frame;
            self.reinjected += bytes;
            let (path, flow, offset) = (self.views[slot].id, id, piece.start);
            self.chain.note(&Note::Sent { path, flow, offset, bytes, copy: true }, now);
            if let Some(had) = live.iter().next() {
                let path = self.views[had].id;
                self.chain.note(&Note::Reinjected { path, bytes }, now);
            }
        }
    }

    /// What the path still has out of all that it had sent up to the mark.
    fn ahead_of(&self, on: PathSet, mark: u64) -> Bytes {
        let path = on.iter().next().and_then(|slot| self.paths.get(slot)?.as_ref());
        let arrived = path.map_or(mark, |path| path.sent.saturating_sub(path.outstanding));
        Bytes(mark.saturating_sub(arrived))
    }
}

/// Looks for the sake of time alone are at least so far apart.
const LOOK_APART: Duration = Duration::from_millis(5);
/// How far into what a path carries one looks, and for how many flows.
const LOOKED_AT: usize = 32;
const PASSED_OVER: usize = 256;
const FLOWS_EACH: usize = 8;
const FLOWS_MAX: usize = 32;
/// Runs of one flow that are looked at.
const AGAIN_MAX: usize = 16;
/// How far back one looks among the newest.
const BACK_MAX: usize = 512;
