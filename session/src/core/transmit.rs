//! Sending: the next flow, its path, and the length of the run.
//!
//! A run is scheduled, encoded and handed to its tunnels in one step, so that nothing is queued
//! between the scheduler and the tunnel. The scheduler sees the paths as they are at that time.

use std::time::{Duration, Instant};

use polyrail_model::{Bytes, FlowId, NodeRole, Unit, Weight};
use polyrail_scheduler::{
    Again, Decision, Input, Note, OutView, PathSet, PathView, RUN_MAX, SEGMENT, SegmentView, Turn,
};

use super::confined::confined;
use super::outlet::Outlet;
use super::session::Session;
use crate::flow::{Piece, Waiting};
use crate::limits::{ASIDE_MAX, WAKE_APART};
use crate::path::Carried;
use crate::wire::{DataMarks, Frame, Open, encode};

/// A run to send.
#[derive(Clone, Copy, Debug)]
struct Scheduled {
    turn: Turn,
    piece: Piece,
    run_max: u64,
    primary: usize,
    copies: PathSet,
    /// It is a copy of a run that another path carries.
    copy: bool,
}

impl Session {
    /// Sends due control frames and scheduled data until tunnels are full or no data is left.
    pub fn transmit(&mut self, now: Instant, outlet: &mut dyn Outlet) {
        self.paths.looked_at = now;
        self.paths.refill(now);
        self.paths.send_withdrawals(outlet);
        self.messages.send(now, &mut self.paths, &mut self.turns, outlet);
        let clock = (now, self.clock(now));
        let Self { outbox, flows, flow_control, paths, .. } = self;
        outbox.send(clock, flows, flow_control, paths, outlet);
        self.messages.send_background(now, &mut self.paths, &mut self.turns, outlet);
        self.send_urgent(now, outlet);
        self.serve_all(now, outlet);
        if self.chain.has_handlers() {
            self.send_again(now, outlet);
        }
        self.paths.limited_until().into_iter().for_each(|at| self.turns.wake_by(at));
    }

    /// Serves flows in turn.
    fn serve_all(&mut self, now: Instant, outlet: &mut dyn Outlet) {
        let (mut in_vain, mut fed) = (0, false);
        // Made for the next flow: datagrams have views of their own.
        let mut views = None;
        while self.paths.any_available(&self.chain) {
            let Some(turn) = self.turns.queue.pop() else {
                if !self.turns.starved.has_rest() || std::mem::replace(&mut fed, true) {
                    break;
                }
                let more = self.turns.starved.take_rest();
                more.into_iter().for_each(|id| self.enqueue(now, id));
                continue;
            };
            let served = match self.serve_datagram(now, turn, outlet) {
                Some(true) => Served::Sent,
                Some(false) => Served::Wait { fresh: false },
                None => {
                    let views = views.get_or_insert_with(|| self.paths.views(now, &self.chain));
                    self.serve(now, turn, views, outlet)
                }
            };
            match served {
                Served::Nothing => {}
                Served::Sent => views = None,
                Served::Wait { fresh: true } => {
                    self.turns.queue.push_front(turn);
                    break;
                }
                waits => {
                    // A confined flow may wait for long, and must not shorten the runs of others.
                    let interactive = turn.interactive && !matches!(waits, Served::Confined);
                    self.turns.aside.push(Turn { interactive, ..turn });
                    in_vain += 1;
                    if in_vain >= ASIDE_MAX {
                        return self.turns.wake_by(now + WAKE_APART);
                    }
                }
            }
        }
        if fed && self.turns.starved.has_rest() {
            self.turns.wake_by(now + WAKE_APART);
        }
        self.turns.rejoin();
    }

    fn serve(
        &mut self,
        now: Instant,
        turn: Turn,
        views: &[PathView],
        outlet: &mut dyn Outlet,
    ) -> Served {
        let Some(only) = self.flows.get(turn.flow).and_then(|flow| flow.only) else {
            return self.serve_flow(now, turn, views, outlet);
        };
        let views = confined(views, only);
        if !views.iter().any(PathView::available) {
            return Served::Confined;
        }
        match self.serve_flow(now, turn, &views, outlet) {
            Served::Wait { .. } => Served::Confined,
            served => served,
        }
    }

    fn serve_flow(
        &mut self,
        now: Instant,
        turn: Turn,
        views: &[PathView],
        outlet: &mut dyn Outlet,
    ) -> Served {
        let Some(flow) = self.flows.get_mut(turn.flow) else { return Served::Nothing };
        let allowance = self.flow_control.allowance(flow);
        let Some(piece) = flow.send.piece(allowance) else {
            flow.queued = false;
            self.turns.enqueue(now, flow, &self.flow_control);
            return Served::Nothing;
        };
        let segment = SegmentView {
            flow: turn.flow,
            offset: piece.start,
            unsent: Bytes(flow.send.unsent() + flow.behind),
            backlog: Bytes(self.flow_control.backlog()),
            window: Bytes(allowance.min(flow.send.window())),
            remaining: Bytes(flow.send.remaining() + flow.behind),
            carried: piece.carried,
            tail: flow.send.fin,
            reinjected: piece.again,
            realtime: false,
            recovery: self.paths.recovery(),
        };
        let decision = self.chain.decide(&Input { paths: views, segment, now });
        let (primary, copies, mut run_max, ahead) = match decision {
            Decision::Send { primary, copies, run_max, ahead } => {
                (primary, free(copies, views), run_max, ahead)
            }
            Decision::Wait { until } => {
                // A rule that returns the current time would be asked forever.
                until.into_iter().for_each(|at| self.turns.wake_by(at.max(now + WAKE_APART)));
                return Served::Wait { fresh: !piece.again && until.is_none() };
            }
        };
        // The segment that needs no credit is only sent in its turn.
        let allowed = allowance.min(self.flow_control.credit.left());
        let further = (ahead > 0).then(|| flow.send.further(&piece, ahead, allowed)).flatten();
        let piece = further.unwrap_or(piece);
        // A cap may be less than a run; a run may take more than the tunnel's room.
        if let Some(left) = self.paths.left_by_cap(primary, &self.chain) {
            run_max = run_max.min(left.max(SEGMENT));
            // Acknowledgements of whole runs must not leave a short queue empty.
            if let Some(path) = views.get(primary).filter(|path| path.calls) {
                let cap = path.outstanding.0.saturating_add(left);
                run_max = run_max.min((cap / RUNS_BESIDE_CALL).max(SEGMENT));
            }
        }
        if self.turns.interactive_waits() && !turn.interactive {
            run_max = run_max.min(INTERACTIVE_RUN);
        }
        if flow.binding().is_some() && piece.start < STREAM_BEGIN {
            run_max = run_max.min(SEGMENT);
        }
        let run = Scheduled { turn, piece, run_max, primary, copies, copy: false };
        let bytes = self.send_run(now, &run, outlet);
        self.reinjected += bytes * copies.len() as u64;
        if let Some(flow) = self.flows.get_mut(turn.flow) {
            flow.queued = false;
            let binding = flow.binding();
            self.turns.enqueue(now, flow, &self.flow_control);
            binding.into_iter().for_each(|binding| self.advance(now, binding));
        }
        self.relieve_one(turn.flow);
        Served::Sent
    }

    /// Sends a run on its paths; returns its bytes of data.
    fn send_run(&mut self, now: Instant, run: &Scheduled, outlet: &mut dyn Outlet) -> u64 {
        let &Scheduled { turn, piece, run_max, primary, copies, copy } = run;
        let mut frame = Vec::new();
        self.flows.number(turn.flow);
        self.run_us = self.clock(now).max(self.run_us + 1);
        let (end, bytes) = self.encode_run(turn.flow, &piece, run_max, &mut frame);
        let mut on = copies;
        on.insert(primary);
        self.account(now, turn, &piece, (end, bytes), on);
        let unit = Unit::Data { tag: self.next_tag };
        self.next_tag += 1;
        self.paths.send(primary, unit, &frame, outlet);
        copies.iter().for_each(|slot| self.paths.send(slot, unit, &frame, outlet));
        for slot in on.iter() {
            let Some(path) = self.paths.get(slot).map(|path| path.id) else { continue };
            let copy = copy || slot != primary;
            let (flow, offset) = (turn.flow, piece.start);
            self.chain.note(&Note::Sent { path, flow, offset, bytes, copy }, now);
        }
        bytes
    }

    /// Encodes a run; returns its end and its bytes of data.
    fn encode_run(
        &self,
        id: FlowId,
        piece: &Piece,
        run_max: u64,
        frame: &mut Vec<u8>,
    ) -> (u64, u64) {
        let sent_us = self.run_us;
        let Some(flow) = self.flows.get(id) else { return (piece.end, 0) };
        // An OPEN has a longer header than DATA: it leaves room for the longest host name.
        let content = flow.send.content(piece, run_max);
        // Only the gateway decides about weights.
        let weight = if self.role == NodeRole::Gateway { flow.weight } else { Weight::default() };
        let marks = DataMarks { fin: content.fin, tail: flow.send.fin, weight };
        let bytes = content.data.len() as u64;
        let number = flow.number.unwrap_or_default();
        match (&flow.target, content.open) {
            (Some(target), true) => {
                let (user, window) = (flow.user, flow.recv.limit);
                let target = target.clone();
                let open = Open { flow: number, user, window, sent_us, marks, target };
                encode(&Frame::Open { open, data: content.data }, frame);
            }
            _ => {
                let (flow, sequence) = (number, piece.start);
                let data = Frame::Data { flow, sequence, sent_us, marks, data: content.data };
                encode(&data, frame);
            }
        }
        (content.end, bytes)
    }

    /// Counts a run that ends at `end` and is sent on these paths.
    fn account(
        &mut self,
        now: Instant,
        turn: Turn,
        piece: &Piece,
        (end, bytes): (u64, u64),
        on: PathSet,
    ) {
        let Some(flow) = self.flows.get_mut(turn.flow) else { return };
        self.flow_control.credit.sent(end.saturating_sub(flow.send.next));
        let first = on.iter().next().and_then(|slot| self.paths.get(slot));
        let mark = first.map_or(0, |path| path.sent + bytes);
        flow.send.sent(now, piece, end, on, self.next_tag, mark);
        self.flow_control.recount(flow);
        flow.charge(now, bytes);
        let weight = flow.weight;
        for path in on.iter().filter_map(|slot| self.paths.get(slot)) {
            flow.carriers.insert(path.carrier_number);
            if flow.only.is_some() {
                self.confined.sent(path.carrier_number, bytes);
            }
        }
        let run = Carried { flow: turn.flow, start: piece.start, end };
        self.paths.carry((now, self.run_us), on, run, bytes, &self.flows);
        self.turns.queue.charge(turn.user, weight.cost(bytes), now);
    }

    // Runs that are sent again because a handler of the chain decides so, while the flow has
    // nothing new to send. The oldest runs of each path are considered, of a few flows each.

    /// Asks the handlers about runs in flight, and sends the runs that they choose.
    fn send_again(&mut self, now: Instant, outlet: &mut dyn Outlet) {
        if !self.paths.any_available(&self.chain) {
            return;
        }
        let mut flows: Vec<FlowId> = Vec::new();
        for path in self.paths.iter() {
            // Acknowledged runs after an unacknowledged one are still listed.
            let out = path.carried.iter().take(PASSED_OVER).filter(|run| {
                let flow = self.flows.get(run.flow);
                flow.is_some_and(|flow| flow.send.runs.is_out(run.start, run.end))
            });
            let mut seen = 0;
            for run in out.take(RUNS_EACH) {
                if flows.len() < FLOWS_MAX && !flows.contains(&run.flow) {
                    flows.push(run.flow);
                    seen += 1;
                }
                if seen >= FLOWS_EACH {
                    break;
                }
            }
        }
        let mut views = self.views_for_copies(now);
        for id in flows {
            for waiting in self.candidates(id) {
                if self.ask_again(now, id, &waiting, &views, outlet) {
                    views = self.views_for_copies(now);
                }
            }
        }
    }

    /// The views of all paths for handlers, which use a metered path as they use a backup.
    fn views_for_copies(&self, now: Instant) -> Vec<PathView> {
        let mut views = self.paths.views(now, &self.chain);
        views.iter_mut().for_each(|view| view.backup |= view.metered);
        views
    }

    /// The runs of a flow about which handlers are asked: the newest of its tail, and the oldest.
    fn candidates(&self, id: FlowId) -> Vec<Waiting> {
        let mut waiting: Vec<Waiting> = Vec::new();
        let Some(flow) = self.flows.get(id).filter(|flow| !flow.queued) else { return waiting };
        if self.chain.looks_back() && flow.send.fin && flow.send.unsent() == 0 {
            let once = |waiting: &Waiting| waiting.piece.carried.len() == 1;
            let newest = flow.send.runs.expected().rev().take(BACK_MAX).filter(once);
            waiting.extend(newest.take(AGAIN_MAX));
        }
        let newest = waiting.len();
        for oldest in flow.send.runs.expected().take(AGAIN_MAX) {
            let start = oldest.piece.start;
            if !waiting[..newest].iter().any(|known| known.piece.start == start) {
                waiting.push(oldest);
            }
        }
        waiting
    }

    /// Asks the handlers about one run; returns whether it was sent again.
    fn ask_again(
        &mut self,
        now: Instant,
        id: FlowId,
        waiting: &Waiting,
        views: &[PathView],
        outlet: &mut dyn Outlet,
    ) -> bool {
        let &Waiting { piece, live, sent_at, on, mark } = waiting;
        let Some(flow) = self.flows.get(id) else { return false };
        let own = flow.only.map(|only| confined(views, only));
        let views = own.as_deref().unwrap_or(views);
        let (length, unsent) = (Bytes(piece.end - piece.start), flow.send.unsent());
        let out = OutView {
            flow: id,
            offset: piece.start,
            length,
            ahead: self.paths.ahead_of(on, mark).max(length),
            sent_at,
            carried: piece.carried,
            expected: live,
            tail: flow.send.fin && unsent == 0,
            blocked: unsent > 0,
        };
        let turn = Turn { user: flow.user, flow: id, interactive: false };
        let slot = match self.chain.again(&out, views, now) {
            Again::No => return false,
            Again::At(at) => {
                self.turns.wake_by(at.max(now + ASK_APART));
                return false;
            }
            Again::On(slot) => slot,
        };
        // Asking may have changed the handler's cap.
        let left = self.paths.left_by_cap(slot, &self.chain);
        let fits = views.get(slot).is_some_and(PathView::available) && left != Some(0);
        if !fits || live.contains(slot) {
            return false;
        }
        let run_max = left.map_or(RUN_MAX, |left| left.max(SEGMENT)).min(RUN_MAX);
        let run =
            Scheduled { turn, piece, run_max, primary: slot, copies: PathSet::EMPTY, copy: true };
        let bytes = self.send_run(now, &run, outlet);
        self.reinjected += bytes;
        if let Some(path) = live.iter().next().and_then(|had| self.paths.get(had)) {
            self.chain.note(&Note::Reinjected { path: path.id, bytes }, now);
        }
        true
    }
}

/// The paths on which a copy costs no money.
fn free(copies: PathSet, views: &[PathView]) -> PathSet {
    let costs = |slot: &usize| views.get(*slot).is_some_and(|view| view.metered);
    copies.iter().filter(|slot| !costs(slot)).collect()
}

enum Served {
    Sent,
    /// The flow has nothing to send.
    Nothing,
    /// The scheduler waits for a better path.
    Wait {
        fresh: bool,
    },
    /// The flow waits for the carriers to which it is confined.
    Confined,
}

/// The longest run while an interactive flow waits: about 3 KB, so that the flow does not wait long
/// for its turn.
const INTERACTIVE_RUN: u64 = 2 * SEGMENT;
/// A stream's first bytes go in short runs: all datagrams of a run arrive at the same time, and
/// the user's control takes that for a queue while it looks for its rate (HyStart++, RFC 9406).
const STREAM_BEGIN: u64 = 256 * 1_024;
/// Runs of which the bytes in flight consist at least, next to a call.
const RUNS_BESIDE_CALL: u64 = 8;
/// The least time until a handler is asked again.
const ASK_APART: Duration = Duration::from_millis(5);
/// Runs of a path that are considered, settled runs that are skipped, and the flows of both.
const RUNS_EACH: usize = 32;
const PASSED_OVER: usize = 256;
const FLOWS_EACH: usize = 8;
const FLOWS_MAX: usize = 32;
/// Runs of one flow about which handlers are asked.
const AGAIN_MAX: usize = 16;
/// The newest runs of a flow among which candidates are sought.
const BACK_MAX: usize = 512;
