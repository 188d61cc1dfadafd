//! Streams of datagrams: a binding with more than a call sends its datagrams in a flow of the
//! session, in both directions, so that they arrive in order over all carriers and a lost or dark
//! carrier costs none. A single carrier is less than a download inside the binding can use, and
//! its losses are congestion to it.
//!
//! The gateway opens the stream, and ends it when it is idle. Datagrams wait in the queue of their
//! binding, where CoDel judges them; the stream's buffer of unsent bytes is short. Real-time
//! datagrams stay outside, but for the first ones of QUIC, and so does all if there is no stream.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use polyrail_model::{BindingId, FlowId, NodeRole};
use polyrail_scheduler::RUN_MAX;

use super::datagram_traffic::header;
use super::datagrams::Datagrams;
use super::flow_control::FlowControl;
use super::session::Session;
use crate::datagram::Binding;
use crate::flow::{Flow, Life};
use crate::limits::WAKE_APART;
use crate::wire::{self, DATAGRAM_MAX, Frame, HEADER, ResetReason, Target, encode};

impl Session {
    /// The peer takes streams (gateway).
    pub fn offer_streams(&mut self) {
        self.datagrams.streams.offered = true;
    }

    /// The stream of a binding that may carry more.
    pub(super) fn stream_of(&self, id: BindingId) -> Option<FlowId> {
        let flow = self.datagrams.streams.flow_of(id)?;
        self.flows.get(flow).is_some_and(|flow| flow.life == Life::Live).then_some(flow)
    }

    /// Whether the datagrams of a binding go into its stream now. Without a path they stay in the
    /// queue, where they become stale.
    pub(super) fn takes_stream(&self, now: Instant, id: BindingId) -> bool {
        let binding = self.datagrams.bindings.get(&id);
        binding.is_some_and(|binding| binding.prefers_stream(now))
            && self.stream_of(id).is_some()
            && self.paths.iter().any(|path| !path.hidden)
    }

    /// Opens a stream for a binding that needs one (gateway).
    pub(super) fn open_stream(&mut self, now: Instant, id: BindingId) {
        let streams = &self.datagrams.streams;
        if !streams.offered || self.going_away.is_some() || self.peer_going {
            return;
        }
        let Some(binding) = self.datagrams.bindings.get(&id) else { return };
        let (user, weight) = (binding.user, binding.weight);
        let is_wanted = binding.is_bulk(now) && self.stream_of(id).is_none();
        if !is_wanted || streams.pauses(now, user) {
            return;
        }
        if !streams.has_room(user) || self.flows.len() >= self.settings.flows_max {
            return self.datagrams.streams.pause(now, user);
        }
        let (flow, limit) = (self.flows.next_id(), self.flow_control.peer_window);
        let mut opened = Flow::new(now, flow, user, true, limit, self.window_initial());
        (opened.target, opened.weight) = (Some(Target::Binding(id)), weight);
        self.flows.insert(opened);
        let streams = &mut self.datagrams.streams;
        streams.insert(id, user, flow, self.heard);
        streams.due.get_or_insert(now + LOOK_EVERY);
        self.enqueue(now, flow);
    }

    /// The gateway has opened a stream (cloud). A former one of the binding is over.
    pub(super) fn accept_stream(&mut self, now: Instant, flow: FlowId, id: BindingId) {
        self.flows.streams += 1;
        let Some(user) = self.user_of(flow) else { return };
        let streams = &mut self.datagrams.streams;
        if self.refuses_flows || !self.settings.datagrams || !streams.has_room(user) {
            return self.reset(now, flow, ResetReason::Quota);
        }
        if let Some(former) = streams.insert(id, user, flow, self.heard) {
            self.reset(now, former, ResetReason::Idle);
        }
    }

    /// A flow is over, or soon: if it is a stream, its binding's datagrams go on without it.
    pub(super) fn leave_stream(&mut self, now: Instant, flow: FlowId) {
        if let Some(binding) = self.flows.get(flow).and_then(Flow::binding) {
            self.advance(now, binding);
        }
    }

    /// Moves waiting datagrams of a binding into its stream, as many as that sends soon.
    pub(super) fn feed_stream(&mut self, now: Instant, id: BindingId) {
        let Some(stream) = self.stream_of(id) else { return };
        let (sent_us, role) = (self.clock(now), self.role);
        let Self { flows, flow_control, datagrams, turns, traffic, .. } = self;
        let Some(flow) = flows.get_mut(stream) else { return };
        let mut frame = Vec::new();
        let has_room = |flow: &Flow, control: &FlowControl| {
            flow.send.held() == 0 || control.room(flow) >= FRAME_MAX as u64
        };
        while flow.send.unsent() < UNSENT && has_room(flow, flow_control) {
            let Some((user, next)) = datagrams.pop(now, id) else { break };
            let Some(binding) = datagrams.bindings.get_mut(&id) else { break };
            frame.clear();
            let datagram = header(role, id, binding, next.remote.clone(), sent_us);
            encode(&Frame::Datagram { datagram, data: &next.payload }, &mut frame);
            let bytes = next.payload.len() as u64;
            if role == NodeRole::Gateway {
                binding.set_remote(&next.remote);
            }
            binding.on_sent(bytes);
            binding.carriers.add(flow.carriers);
            datagrams.counts.sent += 1;
            traffic.sent(now, user, bytes);
            flow.send.write(&frame);
            flow_control.held_sent += frame.len() as u64;
            flow_control.recount(flow);
            datagrams.streams.use_now(self.heard, id);
        }
        let behind = datagrams.bindings.get(&id).map_or(0, |binding| binding.queued_bytes());
        flow.behind = behind as u64;
        turns.enqueue(now, flow, flow_control);
    }

    /// Delivers datagrams of a stream that are whole; if there are many, some of them later.
    pub(super) fn read_stream(&mut self, now: Instant, flow: FlowId, id: BindingId) {
        let Some(stream) = self.flows.get(flow).filter(|flow| flow.is_callers()) else { return };
        let parts = stream.recv.readable();
        let all = parts[0].len() + parts[1].len();
        let (mut bytes, carriers, mut taken) = (Vec::new(), stream.carriers, 0);
        for part in parts {
            let room = READ_MAX + FRAME_MAX - bytes.len();
            bytes.extend_from_slice(&part[..part.len().min(room)]);
        }
        let is_valid = loop {
            if taken > READ_MAX {
                break true;
            }
            match wire::first(&bytes[taken..]) {
                Ok(Some((Frame::Datagram { datagram, data }, length)))
                    if datagram.binding == id =>
                {
                    taken += length;
                    self.take_datagram(now, None, carriers, datagram, data);
                }
                Ok(None) => break bytes.len() - taken < FRAME_MAX,
                _ => break false,
            }
        };
        if taken > 0 {
            self.datagrams.streams.use_now(self.heard, id);
            self.consume(now, flow, taken);
        }
        if !is_valid {
            return self.violate(now, flow, "a stream with more than datagrams of its binding");
        }
        if taken > READ_MAX && taken < all {
            self.datagrams.streams.read_later(flow);
            self.turns.wake_by(now + WAKE_APART);
        }
    }

    /// Delivers the datagrams left for this turn, and ends streams that are not needed (gateway):
    /// idle ones, and those of bindings that are over, or whose passenger has sent nothing.
    pub(super) fn attend_streams(&mut self, now: Instant) {
        for flow in self.datagrams.streams.take_unread() {
            if let Some(binding) = self.flows.get(flow).and_then(Flow::binding) {
                self.read_stream(now, flow, binding);
            }
        }
        if self.datagrams.streams.due.is_none_or(|at| now < at) {
            return;
        }
        let Datagrams { streams, bindings, .. } = &mut self.datagrams;
        let is_needed = streams.sweep(now);
        let is_known = |id: &BindingId| bindings.get(id).is_some_and(Binding::has_sent);
        let lost = streams.all().filter(|(id, _)| !is_known(id));
        let over: BTreeSet<FlowId> =
            streams.idle(self.heard).chain(lost).map(|(_, flow)| flow).collect();
        streams.due = is_needed.then(|| now + LOOK_EVERY);
        over.into_iter().for_each(|flow| self.reset(now, flow, ResetReason::Idle));
    }
}

/// Bytes of a stream that wait outside of its binding's queue.
const UNSENT: u64 = RUN_MAX;
/// More than the longest DATAGRAM.
const FRAME_MAX: usize = HEADER + DATAGRAM_MAX + 320;
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Bytes that one stream delivers in a turn: a receiver that is behind gets its windows of data at
/// once, and the socket for them has little room.
const READ_MAX: usize = 64 * 1_024;
