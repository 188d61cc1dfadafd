//! Datagrams that a session sends and receives: which goes next, and over which path.
//!
//! A datagram is sent at most once, with at most one copy, on the paths that the chain for
//! datagrams chooses.

use std::time::{Duration, Instant};

use polyrail_model::{BindingId, Bytes, Destination, NodeRole, Unit, UserId, Weight};
use polyrail_scheduler::{
    Chain, Decision, Input, Note, PathView, SEGMENT, SegmentView, Turn, rank,
};

use super::datagrams::{binding_of, flow_of};
use super::outlet::Outlet;
use super::paths::Paths;
use super::session::Session;
use crate::carriers::CarrierSet;
use crate::datagram::{Binding, Queued, STREAM, UserDatagram};
use crate::event::Event;
use crate::limits::ASIDE_MAX;
use crate::path::Path;
use crate::wire::{DATAGRAM_MAX, Datagram, Frame, encode};

impl Session {
    /// A binding is over.
    pub fn forget_binding(&mut self, id: BindingId) {
        self.datagrams.forget(id, &mut self.turns);
    }

    /// Queues a datagram for the peer. It may be dropped at any time.
    pub fn send_datagram(&mut self, now: Instant, weight: Option<Weight>, datagram: UserDatagram) {
        let UserDatagram { binding, user, remote, payload, expedited } = datagram;
        let of = (binding, user.unwrap_or_default(), self.clock(now));
        let Self { datagrams, turns, .. } = self;
        if payload.len() > DATAGRAM_MAX {
            datagrams.counts.drops.too_long += 1;
            return;
        }
        datagrams.push(now, of, Queued { at: now, remote, payload, expedited }, turns);
        let id = binding;
        let Some(binding) = datagrams.bindings.get_mut(&id) else { return };
        binding.weight = weight.unwrap_or(binding.weight);
        self.open_stream(now, id);
        self.advance(now, id);
    }

    /// Lets the binding's datagrams go on: into its stream, or to their turn.
    pub(super) fn advance(&mut self, now: Instant, id: BindingId) {
        if self.takes_stream(now, id) {
            return self.feed_stream(now, id);
        }
        let Self { datagrams, turns, .. } = self;
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
        let Some(path) = self.paths.get_mut(slot) else { return };
        path.datagrams_received += data.len() as u64;
        let mut carriers = CarrierSet::default();
        carriers.insert(path.carrier_number);
        self.take_datagram(now, Some(slot), carriers, datagram, data);
    }

    /// Takes a datagram that these carriers have carried: over this path, or in a stream.
    pub(super) fn take_datagram(
        &mut self,
        now: Instant,
        slot: Option<usize>,
        carriers: CarrierSet,
        datagram: Datagram,
        data: &[u8],
    ) {
        let Datagram { binding: id, sequence, user, weight, remote, .. } = datagram;
        let of = (id, user.unwrap_or_default(), self.clock(now));
        let role = self.role;
        let Self { datagrams, turns, paths, flows, .. } = self;
        if role == NodeRole::Cloud {
            let stream = datagrams.streams.flow_of(id).and_then(|flow| flows.get_mut(flow));
            stream.into_iter().for_each(|stream| stream.weight = weight);
        }
        let Some(binding) = datagrams.binding(now, of, turns) else { return };
        binding.used_at = now;
        if role == NodeRole::Cloud {
            binding.weight = weight;
        }
        if !binding.received.accept(sequence) {
            datagrams.counts.copies_received += 1;
            return;
        }
        binding.on_received(now, data.len());
        binding.carriers.add(carriers);
        if self.role == NodeRole::Cloud {
            binding.set_remote(&remote);
        }
        self.traffic.received(now, binding.user, data.len() as u64);
        let payload = data.to_vec();
        let datagram = UserDatagram { binding: id, user, remote, payload, expedited: false };
        let path = slot.and_then(|slot| paths.get(slot));
        let wait = |old: u32| {
            let old = paths.iter().find(|path| path.carrier_number == old);
            let behind =
                |(old, new): (&Path, &Path)| old.link.srtt().saturating_sub(new.link.srtt());
            old.zip(path).map_or(Duration::ZERO, behind)
        };
        let by = path.map_or(STREAM, |path| path.carrier_number);
        let passes = binding.reorder.pass(now, by, (sequence, datagram), wait);
        let holds = binding.reorder.until().is_some();
        datagrams.counts.received += 1;
        self.events.extend(passes.map(|datagram| Event::Datagram { session: self.key, datagram }));
        if holds {
            self.pass_held(now, id);
        }
        self.open_stream(now, id);
    }

    /// Delivers received datagrams that are no longer held back.
    fn pass_held(&mut self, now: Instant, id: BindingId) {
        let Some(binding) = self.datagrams.bindings.get_mut(&id) else { return };
        while let Some(datagram) = binding.reorder.pop(now) {
            self.events.push_back(Event::Datagram { session: self.key, datagram });
        }
        self.datagrams.held_until.extend(binding.reorder.until().map(|until| (until, id)));
    }

    /// Delivers received datagrams whose wait for earlier ones is over.
    pub(super) fn pass_overdue(&mut self, now: Instant) {
        while let Some(&(until, id)) = self.datagrams.held_until.first()
            && until <= now
        {
            self.datagrams.held_until.pop_first();
            self.pass_held(now, id);
        }
    }

    /// Sends waiting real-time datagrams, first those of users who sent few. Bulk data fills the
    /// tunnels, and they send datagrams before it; so some may be sent beyond the room of a path.
    pub(super) fn send_urgent(&mut self, now: Instant, outlet: &mut dyn Outlet) {
        let mut blocked = Vec::new();
        while blocked.len() < ASIDE_MAX
            && let Some(turn) = self.datagrams.urgent.pop()
        {
            let Some(id) = binding_of(turn.flow) else { continue };
            if self.send_next(now, id, true, outlet) == Sent::Waits {
                blocked.push(turn);
            } else {
                self.requeue(now, id);
            }
        }
        let urgent = &mut self.datagrams.urgent;
        blocked.into_iter().rev().for_each(|turn| urgent.push_front(turn));
    }

    /// Sends the next datagram of the binding whose turn it is; false if it waits for its path.
    pub(super) fn serve_datagram(
        &mut self,
        now: Instant,
        turn: Turn,
        outlet: &mut dyn Outlet,
    ) -> Option<bool> {
        let id = binding_of(turn.flow)?;
        let sent = self.send_next(now, id, false, outlet);
        if sent == Sent::Waits {
            return Some(false);
        }
        self.requeue(now, id);
        Some(true)
    }

    /// The turn of a binding is over: it waits for the next one if it has more.
    fn requeue(&mut self, now: Instant, id: BindingId) {
        if let Some(binding) = self.datagrams.bindings.get_mut(&id) {
            binding.waits = false;
            self.advance(now, id);
        }
    }

    fn send_next(
        &mut self,
        now: Instant,
        id: BindingId,
        is_urgent: bool,
        outlet: &mut dyn Outlet,
    ) -> Sent {
        if self.takes_stream(now, id) {
            return Sent::Nothing;
        }
        let (sent_us, role) = (self.clock(now), self.role);
        let Self { datagrams, paths, .. } = self;
        let Some((user, next)) = datagrams.pop(now, id) else { return Sent::Nothing };
        let may_copy = datagrams.may_copy(now, user, next.cost() as u64);
        let Some(binding) = datagrams.bindings.get_mut(&id) else { return Sent::Nothing };
        let weight = binding.weight;
        let views = views(now, paths, &datagrams.chain, is_urgent);
        let (bytes, cost) = (next.payload.len() as u64, next.cost() as u64);
        let segment = SegmentView {
            flow: flow_of(id),
            offset: binding.sequence,
            unsent: Bytes(cost),
            remaining: Bytes(cost),
            recovery: LOSS_COST,
            realtime: binding.is_realtime() && may_copy,
            ..SegmentView::default()
        };
        let decision = datagrams.chain.decide(&Input { paths: &views, segment, now });
        let Decision::Send { primary, copies, .. } = decision else {
            let before = binding.queued_bytes();
            binding.put_back(next);
            datagrams.count(user, before, before + cost as usize);
            return Sent::Waits;
        };
        if role == NodeRole::Gateway {
            binding.set_remote(&next.remote);
        }
        if binding.is_call(now) {
            paths.called_at = Some(now);
        }
        let datagram = header(role, id, binding, next.remote, sent_us);
        binding.on_sent(bytes);
        let (mut frame, unit) = (Vec::new(), Unit::Datagram { expires: now + EXPIRES });
        encode(&Frame::Datagram { datagram, data: &next.payload }, &mut frame);
        datagrams.counts.sent += 1;
        datagrams.counts.copies_sent += copies.len() as u64;
        let mut on = copies;
        on.insert(primary);
        for slot in on.iter() {
            paths.send(slot, unit, &frame, outlet);
            let Some(path) = paths.get_mut(slot) else { continue };
            path.datagrams_sent += bytes;
            binding.carriers.insert(path.carrier_number);
            if is_urgent && path.room == 0 {
                path.urgent_debt += cost as usize;
            }
            // Nobody acknowledges datagrams: a PING shows whether the path is dark.
            path.pings.watch(now);
            let (path, offset, copy) = (path.id, segment.offset, slot != primary);
            let note = Note::Sent { path, flow: segment.flow, offset, bytes: cost, copy };
            datagrams.chain.note(&note, now);
        }
        if on.len() > 1 {
            datagrams.on_copied(now, user, cost);
        }
        self.traffic.sent(now, user, bytes);
        self.charge(now, user, weight.cost(cost * on.len() as u64), is_urgent);
        Sent::Whole
    }

    /// The user has sent this much of its share.
    fn charge(&mut self, now: Instant, user: UserId, cost: u64, is_urgent: bool) {
        self.turns.queue.charge(user, cost, now);
        if is_urgent {
            self.datagrams.urgent.charge(user, cost, now);
        }
    }
}

/// The header of the next datagram of a binding.
pub(super) fn header(
    role: NodeRole,
    id: BindingId,
    binding: &Binding,
    remote: Destination,
    sent_us: u64,
) -> Datagram {
    let is_gateway = role == NodeRole::Gateway;
    Datagram {
        binding: id,
        sequence: binding.sequence,
        sent_us,
        user: is_gateway.then_some(binding.user),
        weight: if is_gateway { binding.weight } else { Weight::default() },
        remote,
    }
}

/// The views of all paths; of a full one that takes real-time datagrams, if it is about one, with
/// room for it.
fn views(now: Instant, paths: &Paths, chain: &Chain, is_urgent: bool) -> Vec<PathView> {
    let mut views = paths.views(now, chain);
    for (slot, view) in views.iter_mut().enumerate().filter(|_| is_urgent) {
        if paths.get(slot).is_some_and(Path::takes_urgent) {
            view.room = view.room.max(Bytes(SEGMENT));
        }
    }
    rank(&mut views);
    views
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Whole,
    /// Nothing waits, or it takes the stream.
    Nothing,
    /// No path takes it now.
    Waits,
}

/// What a lost datagram costs, as a delay: the session does not send it again. Chosen: a loss with
/// a probability of 0.01 is as bad as 20 ms.
const LOSS_COST: Duration = Duration::from_secs(2);

/// A tunnel drops a datagram that has not left after this time.
const EXPIRES: Duration = Duration::from_millis(200);
