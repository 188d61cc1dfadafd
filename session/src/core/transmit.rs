//! Sending: whose turn it is, which path, how much; and the session's timers.
//!
//! A run is decided, framed and handed to its tunnels in one step, so that nothing is queued
//! between the scheduler and the tunnel. A tunnel answers each frame with the room that is left.

use std::time::Instant;

use polyrail_model::{Bytes, FlowId, Unit};
use polyrail_scheduler::{Decision, Input, Note, PathSet, SEGMENT, SegmentView, Turn};

use super::Session;
use crate::TunnelKey;
use crate::flow::Piece;
use crate::limits::{ASIDE_MAX, WAKE_APART};
use crate::path::Carried;
use crate::wire::{DataMarks, Frame, Open, encode};

/// Where frames go. Each call hands over whole frames, at most 16,384 bytes, that belong into one
/// unit of the tunnel.
pub trait Outlet {
    /// Takes frames for the tunnel and returns the room that it has left, in bytes.
    fn send(&mut self, tunnel: TunnelKey, unit: Unit, frames: &[u8]) -> usize;

    /// What went out over the tunnel as [`Unit::Data`] with this tag need not arrive any more.
    fn withdraw(&mut self, tunnel: TunnelKey, tag: u64);
}

impl Session {
    /// Sends what is due and what the scheduler lets go, until tunnels are full or nothing is left.
    pub fn transmit(&mut self, now: Instant, outlet: &mut dyn Outlet) {
        for (tunnel, tag) in self.withdrawals.drain(..) {
            outlet.withdraw(tunnel, tag);
        }
        self.send_messages(now, outlet);
        self.send_control(now, outlet);
        self.send_background(now, outlet);
        self.refresh_delays(now);
        if !self.forecasts.is_empty() || !self.outlooks.is_empty() {
            self.refresh_forecasts(now);
        }
        self.show_rooms();
        self.serve_all(now, outlet);
        if self.chain.has_handlers() {
            self.send_again(now, outlet);
        }
    }

    /// Serves flows in turn. Those that wait for a better path stand aside until all others have
    /// been asked, if that takes several goes: they do not keep others from a path that is free.
    fn serve_all(&mut self, now: Instant, outlet: &mut dyn Outlet) {
        let mut in_vain = 0;
        while self.views.iter().any(|view| view.available()) {
            let Some(turn) = self.queue.pop() else { break };
            match self.serve(now, turn, outlet) {
                Served::Nothing => {}
                Served::Sent => {}
                Served::Wait { fresh: true } => {
                    self.queue.push_front(turn);
                    break;
                }
                Served::Wait { fresh: false } => {
                    self.aside.push(turn);
                    self.aside_interactive |= turn.interactive;
                    in_vain += 1;
                    if in_vain >= ASIDE_MAX {
                        self.wake_by(now + WAKE_APART);
                        return;
                    }
                }
            }
        }
        self.aside.drain(..).rev().for_each(|turn| self.queue.push_front(turn));
        self.aside_interactive = false;
    }

    /// The scheduler is asked again at this time at the latest.
    pub(super) fn wake_by(&mut self, at: Instant) {
        self.wake_at = Some(self.wake_at.map_or(at, |known| known.min(at)));
    }

    fn serve(&mut self, now: Instant, turn: Turn, outlet: &mut dyn Outlet) -> Served {
        let Some(flow) = self.flows.get(&turn.flow) else { return Served::Nothing };
        let allowance = self.allowance(flow);
        let Some(piece) = flow.send.piece(allowance) else {
            self.unqueue(now, turn.flow);
            return Served::Nothing;
        };
        let segment = SegmentView {
            flow: turn.flow,
            offset: piece.start,
            unsent: Bytes(flow.send.unsent()),
            backlog: Bytes(self.backpressure.backlog()),
            window: Bytes(allowance.min(flow.send.window())),
            age: piece.sent_at.map(|at| now.saturating_duration_since(at)),
            interactive: turn.interactive,
            remaining: Bytes(flow.send.remaining()),
            carried: piece.carried,
            tail: flow.send.is_finished(),
            reinjected: piece.again,
        };
        let decision = self.chain.decide(&Input { paths: &self.views, segment, now });
        let (primary, copies, mut run_max, ahead) = match decision {
            Decision::Send { primary, copies, run_max, ahead } => (primary, copies, run_max, ahead),
            Decision::Wait { until } => {
                // A rule that names this very moment would be asked for ever.
                until.into_iter().for_each(|at| self.wake_by(at.max(now + WAKE_APART)));
                return Served::Wait { fresh: !piece.again && until.is_none() };
            }
        };
        // What needs no credit is only taken in its turn.
        let allowed = allowance.min(self.credit.left());
        let further = (ahead > 0).then(|| flow.send.further(&piece, ahead, allowed)).flatten();
        let piece = further.unwrap_or(piece);
        // A cap may be less than a run; of the tunnel's room a run may take more than is left.
        if let Some(left) = self.left_by_cap(primary) {
            run_max = run_max.min(left.max(SEGMENT));
        }
        let interactive_waits = self.queue.interactive_waits() || self.aside_interactive;
        if interactive_waits && !turn.interactive {
            run_max = run_max.min(INTERACTIVE_RUN);
        }
        let mut on = copies;
        on.insert(primary);
        let (end, bytes) = self.frame(now, turn.flow, &piece, run_max);
        self.account(now, turn, &piece, end, bytes, on);
        let frame = std::mem::take(&mut self.scratch);
        let unit = Unit::Data { tag: self.next_tag };
        self.next_tag += 1;
        self.put(primary, unit, &frame, outlet);
        copies.iter().for_each(|slot| self.put(slot, unit, &frame, outlet));
        self.scratch = frame;
        self.reinjected += bytes * copies.len() as u64;
        for slot in on.iter() {
            let (path, copy) = (self.views[slot].id, slot != primary);
            let note = Note::Sent { path, flow: turn.flow, offset: piece.start, bytes, copy };
            self.chain.note(&note, now);
        }
        self.requeue(now, turn.flow);
        Served::Sent
    }

    /// Encodes the run into the scratch buffer; returns its end and its bytes of data.
    pub(super) fn frame(
        &mut self,
        now: Instant,
        id: FlowId,
        piece: &Piece,
        run_max: u64,
    ) -> (u64, u64) {
        let sent_us = self.clock(now);
        self.scratch.clear();
        let Some(flow) = self.flows.get(&id) else { return (piece.end, 0) };
        // An OPEN has a longer header than DATA: it leaves room for the longest host name.
        let content = flow.send.content(piece, run_max);
        let marks = DataMarks { fin: content.fin, tail: flow.send.is_finished() };
        let bytes = content.data.len() as u64;
        match (&flow.destination, content.open) {
            (Some(destination), true) => {
                let open = Open {
                    flow: id,
                    user: flow.user,
                    window: flow.recv.limit(),
                    sent_us,
                    marks,
                    destination: destination.clone(),
                };
                encode(&Frame::Open { open, data: content.data }, &mut self.scratch);
            }
            _ => {
                let (flow, sequence) = (id, piece.start);
                let data = Frame::Data { flow, sequence, sent_us, marks, data: content.data };
                encode(&data, &mut self.scratch);
            }
        }
        (content.end, bytes)
    }

    pub(super) fn account(
        &mut self,
        now: Instant,
        turn: Turn,
        piece: &Piece,
        end: u64,
        bytes: u64,
        on: PathSet,
    ) {
        let Some(flow) = self.flows.get_mut(&turn.flow) else { return };
        let fresh = end.saturating_sub(flow.send.next());
        if flow.send.at_peer() == 0 && fresh > 0 {
            flow.send.drained_at = now;
        }
        self.credit.sent(fresh);
        let first = on.iter().next().and_then(|slot| self.paths.get(slot)?.as_ref());
        let mark = first.map_or(0, |path| path.sent + bytes);
        flow.send.sent(now, piece, end, on, self.next_tag, mark);
        self.backpressure.recount(flow);
        flow.charge(now, bytes);
        let length = end - piece.start;
        for slot in on.iter() {
            let Some(Some(path)) = self.paths.get_mut(slot) else { continue };
            if path.outstanding == 0 {
                path.progress_at = now;
            }
            path.outstanding += length;
            path.sent += bytes;
            path.carried.push_back(Carried { flow: turn.flow, start: piece.start, end });
            self.views[slot].outstanding = Bytes(path.outstanding);
        }
        self.queue.charge(turn.user, bytes.max(1), now);
    }

    fn unqueue(&mut self, now: Instant, id: FlowId) {
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.queued = false;
        }
        self.enqueue(now, id);
    }

    fn requeue(&mut self, now: Instant, id: FlowId) {
        self.unqueue(now, id);
        self.relieve_one(now, id);
    }

    /// When [`Session::on_timeout`] wants to be called.
    pub fn next_timeout(&self) -> Option<Instant> {
        let lines = [&self.ack_line, &self.open_line, &self.reset_line];
        let lines = lines.into_iter().filter_map(|line| line.front().map(|&(at, _)| at));
        let judged = self.settings.stall;
        let paths = self.paths.iter().flatten().map(|path| path.deadline(judged));
        let others = [self.backpressure.check_at(), self.ack_blocked_until, self.wake_at];
        lines.chain(paths).chain(others.into_iter().flatten()).min()
    }

    /// Does what has become due by now.
    pub fn on_timeout(&mut self, now: Instant) {
        self.ripen_acks(now);
        self.wake_at = self.wake_at.filter(|&at| at > now);
        while let Some(&(at, id)) = self.open_line.front() {
            if at > now {
                break;
            }
            self.open_line.pop_front();
            if let Some(flow) = self.flows.get_mut(&id)
                && std::mem::take(&mut flow.hold)
            {
                self.enqueue(now, id);
            }
        }
        self.hurry_resets(now);
        self.check_draining(now);
        self.listen(now);
        self.judge(now);
        self.dismiss_drained(now);
    }

    /// Opens no more flows and tells the peer.
    pub fn go_away(&mut self, reason: &str) {
        if self.going_away.is_none() {
            self.going_away = Some(reason.to_owned());
            self.goaway_due = true;
        }
    }

    /// A new path must hear of the going away, too, and of all that is granted.
    pub fn brief_new_path(&mut self) {
        self.goaway_due = self.going_away.is_some();
        self.due_credit = true;
    }
}

enum Served {
    Sent,
    /// The flow has nothing that may be sent.
    Nothing,
    /// No path takes this segment now.
    Wait {
        fresh: bool,
    },
}

/// The longest run while an interactive flow waits: 4 KB with its frame (DESIGN: TLS records).
const INTERACTIVE_RUN: u64 = 2 * SEGMENT;
