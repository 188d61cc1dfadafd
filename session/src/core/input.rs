//! Frames of the peer.
//!
//! A breach that concerns one flow resets that flow; one that concerns the session is returned, and
//! costs the peer the path on which it came.

use std::time::Instant;

use polyrail_model::{FlowId, UserId};
use polyrail_scheduler::{Note, PathSet};

use super::{Outcome, Session, Tombstone};
use crate::flow::{Flow, Life, Run, Violation};
use crate::limits::{ACK_DELAY, ACK_EVERY, FLOWS_AHEAD_MAX, FLOWS_REFUSED_MAX, WINDOW_INITIAL};
use crate::wire::{Ack, DataMarks, Echo, Frame, Open, Reset};
use crate::{Event, FlowKey, ResetReason, Role, TunnelKey};

impl Session {
    /// Takes in a frame that came over this tunnel.
    pub fn input(
        &mut self,
        now: Instant,
        tunnel: TunnelKey,
        frame: Frame<'_>,
    ) -> Result<(), Violation> {
        let Some(slot) = self.slot_of(tunnel) else { return Ok(()) };
        match frame {
            Frame::Open { open, data } => self.on_open(now, slot, &open, data),
            Frame::Data { flow, sequence, sent_us, marks, data } => {
                let run = Run { sequence, open: false, data, fin: marks.fin };
                self.on_run(now, slot, flow, &run, sent_us)
            }
            Frame::Ack(ack) => {
                let heard = ack.echo.and_then(|echo| self.hear_echo(now, echo));
                self.on_ack(now, &ack);
                if let Some(slot) = heard {
                    self.progress(now, slot);
                }
                Ok(())
            }
            Frame::Window { flow, limit, drained } => {
                self.on_window(now, flow, limit, drained);
                Ok(())
            }
            Frame::Reset(reset) => self.on_reset(now, &reset),
            Frame::Ping { token, sent_us } => {
                if self.pongs.len() < PONGS_MAX {
                    self.pongs.push((slot, token, sent_us, self.clock(now)));
                }
                Ok(())
            }
            Frame::Pong { token, sent_us, received_us } => {
                if let Some(path) = self.paths[slot].as_ref().map(|path| path.id) {
                    self.hear_echo(now, Echo { path, sent_us, received_us });
                }
                self.on_pong(now, slot, token);
                Ok(())
            }
            Frame::Message { channel, latest, serial, waited_us, payload } => {
                self.on_message((channel, latest), serial, waited_us, payload);
                Ok(())
            }
            Frame::PathStatus(notice) => {
                self.on_notice(now, notice);
                Ok(())
            }
            Frame::GoAway { reason } => {
                tracing::info!(reason, "the peer is going away");
                self.peer_going = true;
                Ok(())
            }
            Frame::Unknown { kind } => {
                tracing::trace!(kind, "frame of an unknown type skipped");
                Ok(())
            }
            Frame::Hello { .. }
            | Frame::Join { .. }
            | Frame::Welcome { .. }
            | Frame::Reject { .. } => Err(Violation("a greeting inside a session")),
        }
    }

    fn on_pong(&mut self, now: Instant, slot: usize, token: u64) {
        let Some(path) = &mut self.paths[slot] else { return };
        if let Some(rtt) = path.ponged(now, token) {
            path.measured(rtt);
            self.progress(now, slot);
            self.refresh(slot);
        }
    }

    fn on_open(
        &mut self,
        now: Instant,
        slot: usize,
        open: &Open,
        data: &[u8],
    ) -> Result<(), Violation> {
        if self.role == Role::Gateway {
            return Err(Violation("an OPEN from the cloud"));
        }
        if !self.make_sure_of(now, open.flow)? {
            return Ok(());
        }
        let full = self.flows.len() > self.settings.flows_max;
        let key = FlowKey { session: self.key, flow: open.flow };
        if let Some(flow) = self.flows.get_mut(&open.flow)
            && flow.destination.is_none()
            && flow.is_callers()
        {
            flow.user = open.user;
            flow.destination = Some(open.destination.clone());
            flow.send.limit = flow.send.limit.max(open.window);
            if full || self.going_away.is_some() {
                self.reset(now, open.flow, ResetReason::Overload);
            } else {
                let (user, destination) = (open.user, open.destination.clone());
                self.events.push_back(Event::Opened { flow: key, user, destination });
            }
        }
        let DataMarks { fin, .. } = open.marks;
        self.on_run(now, slot, open.flow, &Run { sequence: 0, open: true, data, fin }, open.sent_us)
    }

    /// Whether the flow is there; makes an embryo for one that was never seen. An ended flow's end
    /// is said again.
    fn make_sure_of(&mut self, now: Instant, id: FlowId) -> Result<bool, Violation> {
        if self.flows.contains_key(&id) {
            return Ok(true);
        }
        if self.seen.contains(id.0) {
            self.say_end_again(id);
            return Ok(false);
        }
        self.see(id)?;
        if self.flows.len() >= self.settings.flows_max + FLOWS_REFUSED_MAX {
            return Err(Violation("more flows than the bound"));
        }
        self.flows.insert(id, Flow::new(now, id, UserId(0), false, 0, WINDOW_INITIAL));
        Ok(true)
    }

    /// Notes that the peer uses a number for a flow that was not seen before.
    fn see(&mut self, id: FlowId) -> Result<(), Violation> {
        if self.role == Role::Gateway {
            return Err(Violation("a flow that was never opened"));
        }
        if id.0 > self.seen.end() + FLOWS_AHEAD_MAX {
            return Err(Violation("a flow far ahead of all others"));
        }
        self.seen.insert(id.0..id.0 + 1);
        Ok(())
    }

    fn on_run(
        &mut self,
        now: Instant,
        slot: usize,
        id: FlowId,
        run: &Run<'_>,
        sent_us: u64,
    ) -> Result<(), Violation> {
        let received_us = self.clock(now);
        if let Some(path) = &mut self.paths[slot] {
            path.hears(now, run.data.len() as u64, self.role == Role::Gateway);
        }
        if !self.make_sure_of(now, id)? {
            self.count_ended(id, run.end());
            return Ok(());
        }
        let path_id = self.paths[slot].as_ref().map(|path| path.id);
        let Some(flow) = self.flows.get_mut(&id) else { return Ok(()) };
        let (held, highest, unread) = (flow.recv.held(), flow.recv.highest(), flow.recv.unread());
        let advanced = match flow.recv.accept(run) {
            Ok(advanced) => advanced,
            Err(Violation(what)) => {
                tracing::warn!(flow = id.0, what, "the peer broke the protocol on a flow");
                self.break_off(now, id);
                return Ok(());
            }
        };
        self.held_received += flow.recv.held();
        self.held_received -= held;
        self.credit.receive(flow.recv.highest() - highest);
        self.credit.arrived(flow.user, flow.recv.unread().saturating_sub(unread));
        flow.recv.echo = path_id.map(|path| Echo { path, sent_us, received_us });
        flow.recv.unacknowledged += 1;
        let soon = flow.recv.unacknowledged >= ACK_EVERY || run.fin || run.open;
        if soon {
            flow.due.ack = true;
            self.list(id);
        } else if !flow.due.ack_delayed {
            flow.due.ack_delayed = true;
            self.ack_line.push_back((now + ACK_DELAY, id));
        }
        if advanced {
            self.announce(id);
            self.after_drain(now, id);
        }
        if self.credit.is_kept(self.flows.len()) {
            Ok(())
        } else {
            Err(Violation("data beyond the session's credit"))
        }
    }

    /// Tells the caller that there is something to read, once until it reads.
    fn announce(&mut self, id: FlowId) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        if flow.is_callers()
            && flow.destination.is_some() | (self.role == Role::Gateway)
            && !flow.told_readable
        {
            flow.told_readable = true;
            self.events
                .push_back(Event::Readable { flow: FlowKey { session: self.key, flow: id } });
        }
    }

    fn on_ack(&mut self, now: Instant, ack: &Ack) {
        let (id, lately) = (ack.flow, self.lately());
        let Some(flow) = self.flows.get_mut(&id) else { return };
        let before = flow.send.held();
        let (cumulative, drained) = if ack.done {
            // It wants no more, nor what was skipped over.
            flow.send.drop_gaps();
            (flow.send.next(), flow.send.next())
        } else {
            (ack.cumulative, ack.drained)
        };
        let mut settled: Vec<(u64, u64, PathSet)> = Vec::new();
        let ranges = if ack.done { &[] } else { ack.ranges.as_slice() };
        let each = |start, length, live| settled.push((start, length, live));
        if !flow.send.acknowledge(cumulative, ranges, each) {
            tracing::warn!(flow = id.0, "the peer acknowledged what was never sent");
            self.break_off(now, id);
            return;
        }
        let freed = before - flow.send.held();
        let spare = flow.send.take_spare();
        self.held_sent -= freed;
        flow.send.limit = flow.send.limit.max(ack.limit);
        let progressed = self.backpressure.drained(now, flow, drained, lately);
        self.backpressure.recount(flow);
        if ack.dialed && !flow.dialed && self.role == Role::Gateway && flow.life == Life::Live {
            flow.dialed = true;
            self.events.push_back(Event::Dialed { flow: FlowKey { session: self.key, flow: id } });
        }
        if let (true, Life::Resetting { answered, after, .. }) = (ack.done, &mut flow.life) {
            (*answered, *after) = (true, 0);
        }
        let freed = before > flow.send.held();
        let forgotten = ack.done && flow.life == Life::Live && !flow.send.is_done();
        self.note_acked(now, id, &settled);
        self.credit_paths(now, &settled);
        self.withdraw(spare);
        if forgotten {
            self.forget_flow(now, id);
            return;
        }
        if freed {
            self.relieve_one(now, id);
            self.relieve(now);
        }
        self.enqueue(now, id);
        if progressed && !self.starved.is_empty() {
            self.feed_starved(now);
        }
        self.end_if_over(now, id);
    }

    /// Tells the scheduler. Of copies the first path stands for all, and that is not sure.
    fn note_acked(&mut self, now: Instant, flow: FlowId, settled: &[(u64, u64, PathSet)]) {
        let cumulative = self.flows.get(&flow).map_or(0, |flow| flow.send.acked());
        for &(offset, bytes, live) in settled {
            let Some(slot) = live.iter().next() else { continue };
            let (path, sure) = (self.views[slot].id, live.len() == 1);
            self.chain.note(&Note::Acked { path, sure, flow, offset, bytes, cumulative }, now);
        }
    }

    /// Paths that alone can have delivered what was acknowledged have made progress. Of those that
    /// carried the same, and of a fresh path, the echoes tell.
    fn credit_paths(&mut self, now: Instant, settled: &[(u64, u64, PathSet)]) {
        let (mut touched, mut progressed) = (PathSet::EMPTY, PathSet::EMPTY);
        for &(_, length, live) in settled {
            self.settle(length, live);
            live.iter().for_each(|slot| touched.insert(slot));
            if live.len() == 1 {
                live.iter().for_each(|slot| progressed.insert(slot));
            }
        }
        for slot in touched.iter() {
            self.trim_carried(slot);
            let path = self.paths.get(slot).and_then(Option::as_ref);
            // What was taken back from another path may have arrived over that.
            let credible = path.is_some_and(|path| path.proven && path.delivered);
            if credible && progressed.contains(slot) {
                self.progress(now, slot);
            }
        }
    }

    /// The peer does not know the flow any more, and it was not over.
    fn forget_flow(&mut self, now: Instant, id: FlowId) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        flow.life = Life::Ending { reason: ResetReason::Internal, after: 0 };
        self.end_if_over(now, id);
    }

    fn on_window(&mut self, now: Instant, id: FlowId, limit: u64, drained: u64) {
        if id == FlowId::default() {
            self.credit.raise_limit(limit);
            self.feed_starved(now);
            return;
        }
        let lately = self.lately();
        let Some(flow) = self.flows.get_mut(&id) else { return };
        flow.send.limit = flow.send.limit.max(limit);
        let progressed = self.backpressure.drained(now, flow, drained, lately);
        self.backpressure.recount(flow);
        if progressed && !self.starved.is_empty() {
            self.feed_starved(now);
        }
        self.relieve_one(now, id);
        self.enqueue(now, id);
    }

    /// A server whose bytes are still to come was reached, also when the RESET overtakes the word.
    fn prove_dialed(&mut self, id: FlowId, reset: &Reset) {
        if let (Role::Gateway, Some(flow)) = (self.role, self.flows.get_mut(&id))
            && reset.after > 0
            && flow.life == Life::Live
            && !std::mem::replace(&mut flow.dialed, true)
        {
            self.events.push_back(Event::Dialed { flow: FlowKey { session: self.key, flow: id } });
        }
    }

    fn on_reset(&mut self, now: Instant, reset: &Reset) -> Result<(), Violation> {
        let id = reset.flow;
        if !self.flows.contains_key(&id) && !self.awaits(reset) {
            return self.on_reset_of_none(reset);
        }
        if !self.make_sure_of(now, id)? {
            return Ok(());
        }
        let Some(flow) = self.flows.get_mut(&id) else { return Ok(()) };
        let highest = flow.recv.highest();
        flow.recv.raise(reset.last);
        self.credit.receive(flow.recv.highest() - highest);
        if !self.credit.is_kept(self.flows.len()) {
            return Err(Violation("a RESET beyond the session's credit"));
        }
        self.prove_dialed(id, reset);
        let Some(flow) = self.flows.get_mut(&id) else { return Ok(()) };
        flow.life = match flow.life {
            Life::Resetting { reason, after: before, .. } => {
                // An answer says how far the other side still reads; who resets reads no more.
                let after = if reset.answer { before.min(reset.after) } else { 0 };
                flow.life = Life::Resetting { reason, after, answered: true };
                self.cut_sending(now, id, after);
                self.end_if_over(now, id);
                if after < before && !self.flows.contains_key(&id) {
                    // The other side is to hear how many numbers were used in the end.
                    self.say_end_again(id);
                }
                return Ok(());
            }
            // Said again, a RESET may shorten what is still to be read, and never lengthens it.
            Life::Ending { reason, after: before } => {
                Life::Ending { reason, after: before.min(reset.after) }
            }
            Life::Live => Life::Ending { reason: reset.reason, after: reset.after },
        };
        flow.due.reset |= !reset.answer;
        self.cut_sending(now, id, 0);
        let Some(flow) = self.flows.get(&id) else { return Ok(()) };
        let (gone, known) =
            (reset.after == 0, flow.destination.is_some() || self.role == Role::Gateway);
        if gone {
            self.discard_received(id);
        }
        if gone && !known {
            self.bury(now, id);
            return Ok(());
        }
        self.list(id);
        self.end_if_over(now, id);
        Ok(())
    }

    /// A RESET has overtaken its OPEN, and what precedes it is still to be delivered.
    fn awaits(&self, reset: &Reset) -> bool {
        let delivers = !reset.answer && reset.after > 0;
        delivers && self.role == Role::Cloud && !self.seen.contains(reset.flow.0)
    }

    /// The peer has used numbers of a flow that is over: they count, and are free again.
    fn count_ended(&mut self, id: FlowId, end: u64) {
        if let Some(tombstone) = self.tombstones.get_mut(&id) {
            let more = end.saturating_sub(tombstone.counted);
            tombstone.counted += more;
            self.credit.receive(more);
            self.credit.release(more);
            self.due_credit |= self.credit.wants_update();
        }
    }

    /// A RESET of a flow that is over, or whose OPEN was overtaken.
    fn on_reset_of_none(&mut self, reset: &Reset) -> Result<(), Violation> {
        let id = reset.flow;
        if !self.seen.contains(id.0) {
            self.see(id)?;
            let outcome = Outcome::Reset { reason: reset.reason, last: 0, after: 0 };
            self.remember(id, Tombstone { outcome, counted: 0 });
        }
        self.count_ended(id, reset.last);
        if !reset.answer {
            self.say_end_again(id);
        }
        Ok(())
    }
}

/// Unanswered PINGs that are remembered; more come only from a peer that misbehaves.
const PONGS_MAX: usize = 64;
