//! The datagrams of a session: which waits, which goes next and over which path.
//!
//! A datagram is sent at most once, with at most one copy, on the paths that the chain for
//! datagrams chooses. Real-time ones are sent before everything else, as long as their user has
//! few of them; the others wait for the turn of their user, together with the flows.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use polyrail_model::{BindingId, Bucket, Bytes, FlowId, Unit, UserId};
use polyrail_scheduler::{Chain, Decision, Input, Note, PathView, SegmentView, Turn};

use super::outlet::Outlet;
use super::session::Session;
use super::turns::Turns;
use crate::datagram::{Binding, Queued, UserDatagram};
use crate::event::Event;
use crate::limits::{BINDING_IDLE, BINDINGS_MAX};
use crate::settings::{DatagramStatus, Settings};
use crate::wire::{DATAGRAM_MAX, Datagram, Frame, encode};

#[derive(Debug)]
pub(crate) struct Datagrams {
    pub chain: Chain,
    bindings: BTreeMap<BindingId, Binding>,
    /// Bindings with real-time datagrams that wait.
    urgent: VecDeque<BindingId>,
    /// How many bytes of each user may still go before everything else.
    priority: BTreeMap<UserId, Bucket>,
    counts: DatagramStatus,
}

impl Datagrams {
    pub fn new(settings: &Settings) -> Self {
        Self {
            chain: settings.datagram_chain.build(),
            bindings: BTreeMap::new(),
            urgent: VecDeque::new(),
            priority: BTreeMap::new(),
            counts: DatagramStatus::default(),
        }
    }

    /// The binding is over: nothing of it is kept.
    pub fn forget(&mut self, id: BindingId, turns: &mut Turns) {
        let Some(binding) = self.bindings.remove(&id) else { return };
        if binding.waits {
            turns.queue.remove(binding.user, flow_of(id));
            self.urgent.retain(|waiting| *waiting != id);
        }
    }

    pub fn status(&self) -> DatagramStatus {
        DatagramStatus { bindings: self.bindings.len(), ..self.counts }
    }

    /// The binding, if there is room for it.
    fn binding(
        &mut self,
        now: Instant,
        id: BindingId,
        user: UserId,
        turns: &mut Turns,
    ) -> Option<&mut Binding> {
        if !self.bindings.contains_key(&id) {
            if self.bindings.len() >= BINDINGS_MAX {
                self.forget_idle(now, turns);
            }
            if self.bindings.len() >= BINDINGS_MAX {
                self.counts.dropped += 1;
                return None;
            }
        }
        Some(self.bindings.entry(id).or_insert_with(|| Binding::new(now, user)))
    }

    fn forget_idle(&mut self, now: Instant, turns: &mut Turns) {
        let idle =
            |binding: &Binding| now.saturating_duration_since(binding.used_at) >= BINDING_IDLE;
        let over = self.bindings.iter().filter(|(_, binding)| idle(binding));
        let over: Vec<BindingId> = over.map(|(&id, _)| id).collect();
        over.into_iter().for_each(|id| self.forget(id, turns));
        self.priority.retain(|_, bucket| !bucket.is_full(now));
    }

    /// Gives a binding with datagrams its turn.
    fn enqueue(&mut self, now: Instant, id: BindingId, turns: &mut Turns) {
        let Some(binding) = self.bindings.get_mut(&id) else { return };
        if binding.is_empty() || std::mem::replace(&mut binding.waits, true) {
            return;
        }
        let bucket = self.priority.entry(binding.user);
        let bucket = bucket.or_insert_with(|| Bucket::new(now, PRIORITY_RATE, PRIORITY_BURST));
        if binding.is_realtime() && bucket.take(now, binding.next_length()) {
            self.urgent.push_back(id);
        } else {
            let interactive = binding.is_realtime();
            turns.queue.push(Turn { user: binding.user, flow: flow_of(id), interactive });
        }
    }
}

impl Session {
    /// A binding is over.
    pub fn forget_binding(&mut self, id: BindingId) {
        self.datagrams.forget(id, &mut self.turns);
    }

    /// Queues a datagram for the peer. It may be dropped at any time.
    pub fn send_datagram(&mut self, now: Instant, datagram: UserDatagram) {
        let UserDatagram { binding: id, user, remote, payload } = datagram;
        let Self { datagrams, turns, .. } = self;
        if payload.len() > DATAGRAM_MAX {
            datagrams.counts.too_long += 1;
            return;
        }
        let Some(binding) = datagrams.binding(now, id, user.unwrap_or_default(), turns) else {
            return;
        };
        let dropped = binding.push(now, Queued { at: now, remote, payload });
        datagrams.counts.dropped += dropped;
        datagrams.enqueue(now, id, turns);
    }

    /// A datagram of the peer has arrived.
    pub(super) fn on_datagram(
        &mut self,
        now: Instant,
        slot: usize,
        datagram: Datagram,
        data: &[u8],
    ) {
        let Datagram { binding: id, sequence, user, remote, .. } = datagram;
        if let Some(path) = self.paths.get_mut(slot) {
            path.datagrams_received += data.len() as u64;
        }
        let Self { datagrams, turns, .. } = self;
        let Some(binding) = datagrams.binding(now, id, user.unwrap_or_default(), turns) else {
            return;
        };
        binding.used_at = now;
        binding.answered = true;
        if !binding.received.accept(sequence) {
            datagrams.counts.copies_received += 1;
            return;
        }
        datagrams.counts.received += 1;
        let datagram = UserDatagram { binding: id, user, remote, payload: data.to_vec() };
        self.events.push_back(Event::Datagram { session: self.key, datagram });
    }

    /// Sends waiting real-time datagrams, each binding's in turn, until no path takes any.
    pub(super) fn send_urgent(&mut self, now: Instant, outlet: &mut dyn Outlet) {
        let mut blocked = VecDeque::new();
        while let Some(id) = self.datagrams.urgent.pop_front() {
            if self.send_next(now, id, outlet) == Sent::Waits {
                blocked.push_back(id);
            } else {
                self.requeue(now, id);
            }
        }
        self.datagrams.urgent = blocked;
    }

    /// Sends the next datagram of the binding whose turn it is; false if it waits for its path.
    pub(super) fn serve_datagram(
        &mut self,
        now: Instant,
        turn: Turn,
        outlet: &mut dyn Outlet,
    ) -> Option<bool> {
        let id = binding_of(turn.flow)?;
        let sent = self.send_next(now, id, outlet);
        if sent == Sent::Waits {
            return Some(false);
        }
        self.requeue(now, id);
        Some(true)
    }

    /// The turn of a binding is over: it waits for the next one if it has more.
    fn requeue(&mut self, now: Instant, id: BindingId) {
        let Self { datagrams, turns, .. } = self;
        if let Some(binding) = datagrams.bindings.get_mut(&id) {
            binding.waits = false;
            datagrams.enqueue(now, id, turns);
        }
    }

    fn send_next(&mut self, now: Instant, id: BindingId, outlet: &mut dyn Outlet) -> Sent {
        let Self { datagrams, paths, .. } = self;
        let Some(binding) = datagrams.bindings.get_mut(&id) else { return Sent::Nothing };
        let (next, dropped) = binding.pop(now);
        datagrams.counts.dropped += dropped;
        let Some(next) = next else { return Sent::Nothing };
        let views: Vec<PathView> = paths.views(now, &datagrams.chain);
        let bytes = next.payload.len() as u64;
        let segment = SegmentView {
            flow: flow_of(id),
            offset: binding.sent,
            unsent: Bytes(bytes),
            remaining: Bytes(bytes),
            recovery: paths.recovery(),
            realtime: binding.is_realtime(),
            ..SegmentView::default()
        };
        let decision = datagrams.chain.decide(&Input { paths: &views, segment, now });
        let Decision::Send { primary, copies, .. } = decision else {
            binding.put_back(next);
            return Sent::Waits;
        };
        let datagram = Datagram {
            binding: id,
            sequence: binding.sent,
            sent_us: u64::try_from(now.saturating_duration_since(self.epoch).as_micros())
                .unwrap_or(u64::MAX),
            user: (self.role == polyrail_model::NodeRole::Gateway && !binding.answered)
                .then_some(binding.user),
            remote: next.remote,
        };
        binding.sent += 1;
        let mut frame = Vec::new();
        encode(&Frame::Datagram { datagram, data: &next.payload }, &mut frame);
        let unit = Unit::Datagram { expires: now + EXPIRES };
        datagrams.counts.sent += 1;
        datagrams.counts.copies_sent += copies.len() as u64;
        let mut on = copies;
        on.insert(primary);
        for slot in on.iter() {
            paths.send(slot, unit, &frame, outlet);
            let Some(path) = paths.get_mut(slot) else { continue };
            path.datagrams_sent += bytes;
            // Nobody acknowledges datagrams: a PING shows whether the path is dark.
            path.pings.watch(now);
            let (path, offset, copy) = (path.id, segment.offset, slot != primary);
            let note = Note::Sent { path, flow: segment.flow, offset, bytes, copy };
            datagrams.chain.note(&note, now);
        }
        let charged = bytes.max(1) * on.len() as u64;
        self.turns.queue.charge(binding.user, charged, now);
        Sent::Whole
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Whole,
    /// Nothing waits.
    Nothing,
    /// No path takes it now.
    Waits,
}

/// The number of a binding among the flows of the fair queue; flows of the wire have smaller ones.
fn flow_of(id: BindingId) -> FlowId {
    FlowId(id.0 | DATAGRAMS)
}

fn binding_of(flow: FlowId) -> Option<BindingId> {
    (flow.0 & DATAGRAMS != 0).then_some(BindingId(flow.0 & !DATAGRAMS))
}

/// Above every number of the wire.
const DATAGRAMS: u64 = 1 << 63;
/// A tunnel drops a datagram that has not left after this time.
const EXPIRES: Duration = Duration::from_millis(200);
/// Bytes a second of one user's real-time datagrams that are sent before everything else: two
/// calls with video.
const PRIORITY_RATE: f64 = 75_000.0;
const PRIORITY_BURST: f64 = 75_000.0;
