//! Control frames: what is due, on which path, and when it is said again.
//!
//! Control goes ahead of data, on the fastest path that makes progress, several frames together.
//! It is state, not messages: each frame is made when it leaves, from what holds then. What was
//! said since the last confirmed PING is said again when the path stalls or is lost.

use std::time::{Duration, Instant};

use polyrail_model::{FlowId, Unit};

use super::{Outcome, Outlet, Session};
use crate::Role;
use crate::flow::{Due, Flow, Life};
use crate::limits::{ACK_DELAY_MAX, ACK_REPEAT_MAX, ACK_UPLINK_SHARE, CONTROL_BATCH};
use crate::path::Path;
use crate::wire::{ACK_RANGES_MAX, Ack, Frame, NUMBER_MAX, Reset, encode};

impl Session {
    pub(super) fn send_control(&mut self, now: Instant, outlet: &mut dyn Outlet) {
        self.send_on_all(now, outlet);
        if !self.may_acknowledge(now) {
            return;
        }
        while self.has_control() {
            let Some(slot) = self.control_slot(None) else { return };
            let mut batch = std::mem::take(&mut self.scratch);
            batch.clear();
            let repeatable = self.fill(now, slot, &mut batch);
            if batch.is_empty() {
                // What was due has become needless.
                self.scratch = batch;
                continue;
            }
            self.ack_tokens -= batch.len() as f64;
            self.put_control(slot, &batch, outlet);
            if repeatable && batch.len() <= ACK_REPEAT_MAX {
                let other = self.control_slot(Some(slot));
                let roomy = |slot: &usize| {
                    self.paths[*slot].as_ref().is_some_and(|path| path.room > 0 && !path.backup)
                };
                if let Some(other) = other.filter(roomy) {
                    self.ack_tokens -= batch.len() as f64;
                    self.put_control(other, &batch, outlet);
                }
            }
            self.scratch = batch;
        }
    }

    fn has_control(&self) -> bool {
        self.due_credit || !self.due.is_empty() || !self.due_ended.is_empty()
    }

    /// PONGs, PINGs, GOAWAY and notices go on the paths that they are about.
    fn send_on_all(&mut self, now: Instant, outlet: &mut dyn Outlet) {
        let clock = self.clock(now);
        let mut batch = std::mem::take(&mut self.scratch);
        for (slot, token, sent_us, received_us) in std::mem::take(&mut self.pongs) {
            batch.clear();
            encode(&Frame::Pong { token, sent_us, received_us }, &mut batch);
            self.put_control(slot, &batch, outlet);
        }
        let goaway = self.going_away.clone().filter(|_| std::mem::take(&mut self.goaway_due));
        let notices = self.take_notices();
        for slot in 0..self.paths.len() {
            let Some(path) = &mut self.paths[slot] else { continue };
            batch.clear();
            if let Some(reason) = &goaway {
                encode(&Frame::GoAway { reason: reason.clone() }, &mut batch);
            }
            if !path.dismissed {
                batch.extend_from_slice(&notices);
            }
            if path.wants_ping(now) {
                path.pinged(now, self.next_ping);
                encode(&Frame::Ping { token: self.next_ping, sent_us: clock }, &mut batch);
                self.next_ping += 1;
            }
            if !batch.is_empty() {
                self.put_control(slot, &batch, outlet);
            }
        }
        self.scratch = batch;
    }

    /// The fastest path that may be used and still takes control.
    fn control_slot(&self, but: Option<usize>) -> Option<usize> {
        let takes = |path: &Path| !path.hidden && path.takes_control();
        let able = |path: &&(usize, &Path)| takes(path.1) && Some(path.0) != but;
        let paths = self.paths.iter().enumerate().filter_map(|(i, p)| p.as_ref().map(|p| (i, p)));
        let able: Vec<(usize, &Path)> = paths.filter(|path| able(&path)).collect();
        let regular = able.iter().filter(|path| !path.1.backup).min_by_key(|path| path.1.srtt());
        regular.or(able.iter().min_by_key(|path| path.1.srtt())).map(|path| path.0)
    }

    /// Paths that may be used and still take control, the fastest first. Backups only while there
    /// is nothing else.
    pub(super) fn live_slots(&self) -> Vec<usize> {
        let paths = self.paths.iter().enumerate().filter_map(|(i, p)| p.as_ref().map(|p| (i, p)));
        let live: Vec<(usize, &Path)> = paths.filter(|(_, path)| !path.hidden).collect();
        let regular = live.iter().any(|(_, path)| !path.backup);
        let takes = |path: &Path| path.takes_control() && !(regular && path.backup);
        let mut able: Vec<(usize, &Path)> =
            live.into_iter().filter(|(_, path)| takes(path)).collect();
        able.sort_by_key(|(_, path)| path.srtt());
        able.into_iter().map(|(slot, _)| slot).collect()
    }

    /// Puts what is due into one batch; true when all of it may be said twice at no harm and some
    /// use.
    fn fill(&mut self, now: Instant, slot: usize, batch: &mut Vec<u8>) -> bool {
        let mut spoken = Vec::new();
        if std::mem::take(&mut self.due_credit) {
            let (limit, drained) = self.flow_control.credit.advertise();
            encode(&Frame::Window { flow: FlowId::default(), limit, drained }, batch);
            spoken.push(FlowId::default());
        }
        while batch.len() < CONTROL_BATCH - FRAME_MAX
            && let Some(id) = self.due.pop_front()
        {
            if self.say(id, batch) {
                spoken.push(id);
            }
        }
        while batch.len() < CONTROL_BATCH - FRAME_MAX
            && let Some(id) = self.due_ended.pop_first()
        {
            self.say_ended(id, batch);
            spoken.push(id);
        }
        if let Some(path) = &mut self.paths[slot] {
            spoken.into_iter().for_each(|id| path.speaks(now, id));
        }
        !batch.is_empty()
    }

    /// Says what is due for one flow; false when nothing was.
    fn say(&mut self, id: FlowId, batch: &mut Vec<u8>) -> bool {
        let Some(flow) = self.flows.get_mut(&id) else { return false };
        let due = std::mem::take(&mut flow.due);
        flow.due = Due { ack_delayed: due.ack_delayed, ..Due::default() };
        let length = batch.len();
        if due.reset
            && let Some(reset) = reset_of(flow)
        {
            encode(&Frame::Reset(reset), batch);
        }
        if due.ack {
            encode(&Frame::Ack(ack_of(flow, self.role)), batch);
        } else if due.window {
            let (told, owes) = (flow.recv.limit(), flow.recv.owes_drained());
            let quarter = flow.recv.wants_drained();
            let (limit, drained) = flow.recv.advertise();
            if limit > told || owes || quarter {
                encode(&Frame::Window { flow: id, limit, drained }, batch);
            }
        }
        batch.len() > length
    }

    /// Says again how a flow ended.
    fn say_ended(&mut self, id: FlowId, batch: &mut Vec<u8>) {
        match self.tombstones.get(&id).map(|tombstone| tombstone.outcome) {
            Some(Outcome::Reset { reason, last, after }) => {
                let reset = Reset { flow: id, answer: true, reason, last, after };
                encode(&Frame::Reset(reset), batch);
            }
            Some(Outcome::Delivered) | None => {
                let ack = Ack {
                    flow: id,
                    done: true,
                    cumulative: NUMBER_MAX,
                    limit: NUMBER_MAX,
                    drained: NUMBER_MAX,
                    ..Ack::default()
                };
                encode(&Frame::Ack(ack), batch);
            }
        }
    }

    /// Sends control on a path; what goes beyond its room is counted.
    pub(super) fn put_control(&mut self, slot: usize, bytes: &[u8], outlet: &mut dyn Outlet) {
        self.put(slot, Unit::Control, bytes, outlet);
        if let Some(Some(path)) = self.paths.get_mut(slot)
            && path.room == 0
        {
            path.control_debt += bytes.len();
        }
    }

    /// Sends bytes on a path; the tunnel answers with the room that is left.
    pub(super) fn put(&mut self, slot: usize, unit: Unit, bytes: &[u8], outlet: &mut dyn Outlet) {
        let Some(Some(path)) = self.paths.get_mut(slot) else { return };
        let room = outlet.send(path.tunnel, unit, bytes) as u64;
        if room > 0 {
            path.control_debt = 0;
        }
        path.room = room;
        self.show_room(slot);
    }

    /// Acknowledgements take at most [`ACK_UPLINK_SHARE`] of the uplink, where its rate is known;
    /// when that is used up they wait, at most [`ACK_DELAY_MAX`].
    fn may_acknowledge(&mut self, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.ack_tokens_at).as_secs_f64();
        self.ack_tokens_at = now;
        let rates = self.paths.iter().flatten().filter_map(Path::proven_rate);
        let uplink: u64 = rates.map(|rate| rate.as_bps() / 8).sum();
        if uplink == 0 {
            self.ack_tokens = ACK_BURST;
        }
        let earned = uplink as f64 * ACK_UPLINK_SHARE * age;
        self.ack_tokens = (self.ack_tokens + earned).clamp(-ACK_BURST, ACK_BURST);
        if self.ack_tokens > 0.0 || !self.has_control() {
            self.ack_blocked_until = None;
            return true;
        }
        let until = *self.ack_blocked_until.get_or_insert(now + ACK_DELAY_MAX);
        if now < until {
            return false;
        }
        self.ack_blocked_until = None;
        true
    }

    /// Acknowledgements whose delay is over become due.
    pub(super) fn ripen_acks(&mut self, now: Instant) {
        while let Some(&(at, id)) = self.ack_line.front() {
            if at > now + ACK_SLACK {
                break;
            }
            self.ack_line.pop_front();
            let Some(flow) = self.flows.get_mut(&id) else { continue };
            flow.due.ack_delayed = false;
            if flow.recv.unacknowledged > 0 {
                flow.due.ack = true;
                self.list(id);
            } else if flow.recv.owes_drained() {
                flow.due.window = true;
                self.list(id);
            }
        }
    }
}

fn ack_of(flow: &mut Flow, role: Role) -> Ack {
    flow.recv.unacknowledged = 0;
    let (limit, drained) = flow.recv.advertise();
    Ack {
        flow: flow.id,
        done: false,
        dialed: role == Role::Cloud && flow.dialed,
        cumulative: flow.recv.cumulative(),
        limit,
        drained,
        echo: flow.recv.echo.take(),
        ranges: flow.recv.told_ranges(ACK_RANGES_MAX),
    }
}

fn reset_of(flow: &Flow) -> Option<Reset> {
    let (id, next) = (flow.id, flow.send.next());
    match flow.life {
        Life::Live => None,
        Life::Resetting { reason, after, .. } => {
            Some(Reset { flow: id, answer: false, reason, last: next, after })
        }
        // The answer: how far this side still reads.
        Life::Ending { reason, after } => {
            Some(Reset { flow: id, answer: true, reason, last: next, after })
        }
    }
}

/// More than the longest control frame, in bytes.
const FRAME_MAX: usize = 1_024;
/// Acknowledgements that become due so shortly after another go with it.
const ACK_SLACK: Duration = Duration::from_millis(2);
/// What acknowledgements may take at once, in bytes.
const ACK_BURST: f64 = 16.0 * 1024.0;
