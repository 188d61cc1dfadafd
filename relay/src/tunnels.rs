//! The tunnels of one loop: readiness, timers, samples, and the outlet for the session's frames.
//!
//! Keys are never reused, so a late event of a removed tunnel finds nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::time::Instant;

use mio::{Registry, Token};
use polyrail_model::{PathWish, TunnelMode, Unit};
use polyrail_session::{Endpoint, Outlet, TunnelKey};
use polyrail_tunnel::{CloseReason, Early, Established, Tunnel, TunnelDrops, TunnelEvent};

use crate::handshakes::Handshakes;
use crate::slot::{SAMPLE_EVERY, Slot, Stage};
use crate::{Label, MovingTunnel, RelayEvent, TunnelView, Workers};

#[derive(Debug, Default)]
pub(crate) struct Tunnels {
    slots: BTreeMap<usize, Slot>,
    next_key: usize,
    timers: BTreeSet<(Instant, usize)>,
    /// Tunnels that may have more to receive.
    receiving: Vec<usize>,
    /// Tunnels whose room or events may have changed.
    touched: Vec<usize>,
    /// Tunnels to flush in this turn.
    unflushed: Vec<usize>,
    counts: BTreeMap<TunnelMode, Counts>,
    /// The datagrams that removed tunnels had dropped.
    drops: TunnelDrops,
    events: Vec<RelayEvent>,
    workers: Workers,
    refuses_own: bool,
}

/// Counts of one mode.
#[derive(Debug, Default)]
struct Counts {
    all: usize,
    handshaking: Handshakes,
}

impl Tunnels {
    pub(crate) fn add(
        &mut self,
        registry: &Registry,
        base: usize,
        mut tunnel: Box<dyn Tunnel>,
        label: Label,
    ) -> io::Result<TunnelKey> {
        let key = self.next_key;
        tunnel.register(registry, Token(base + key))?;
        self.next_key += 1;
        let slot = Slot::new(tunnel, label);
        let counts = self.counts.entry(slot.mode).or_default();
        counts.all += 1;
        counts.handshaking.begin(key, slot.address.map(|address| address.ip()));
        self.slots.insert(key, slot);
        self.touch(key);
        Ok(TunnelKey(key))
    }

    pub(crate) fn refuse_own(&mut self) {
        self.refuses_own = true;
    }

    pub(crate) fn set_workers(&mut self, workers: Workers) {
        self.workers = workers;
    }

    /// Acts on the event with which a tunnel has moved here.
    pub(crate) fn welcome(
        &mut self,
        now: Instant,
        endpoint: &mut Endpoint,
        TunnelKey(key): TunnelKey,
        event: TunnelEvent,
        begun: Instant,
    ) {
        if let Some(slot) = self.slots.get_mut(&key) {
            slot.begun = begun;
        }
        match event {
            TunnelEvent::Early(early) => self.on_early(now, endpoint, key, early),
            TunnelEvent::Up(established) => self.on_up(now, endpoint, key, established),
            // It does not move.
            TunnelEvent::Closed(_) => {}
        }
    }

    /// Tunnels of a mode in their handshake, including those in early data.
    pub(crate) fn handshaking(&self, mode: TunnelMode) -> usize {
        self.counts.get(&mode).map_or(0, |counts| counts.handshaking.count())
    }

    /// The tunnel with the oldest unfinished handshake.
    pub(crate) fn oldest_handshake(&self, mode: TunnelMode) -> Option<TunnelKey> {
        self.counts.get(&mode)?.handshaking.oldest().map(TunnelKey)
    }

    /// The number of unfinished handshakes with the network of an address, and the oldest of them.
    pub(crate) fn handshakes_of(
        &self,
        mode: TunnelMode,
        address: IpAddr,
    ) -> (usize, Option<TunnelKey>) {
        let Some(counts) = self.counts.get(&mode) else { return (0, None) };
        let (count, oldest) = counts.handshaking.of(address);
        (count, oldest.map(TunnelKey))
    }

    pub(crate) fn of_mode(&self, mode: TunnelMode) -> usize {
        self.counts.get(&mode).map_or(0, |counts| counts.all)
    }

    /// The datagrams that all tunnels since the start have dropped.
    pub(crate) fn datagram_drops(&self) -> TunnelDrops {
        let mut all = self.drops;
        self.slots.values().for_each(|slot| all += slot.tunnel.datagram_drops());
        all
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn keys(&self) -> Vec<TunnelKey> {
        self.slots.keys().copied().map(TunnelKey).collect()
    }

    pub(crate) fn view(&self, key: TunnelKey) -> Option<TunnelView<'_>> {
        self.slots.get(&key.0).map(Slot::view)
    }

    /// The tunnels of a carrier that are still in their handshake start with this wish.
    pub(crate) fn set_wish(&mut self, carrier: &str, wish: PathWish) {
        let labels = self.slots.values_mut().map(|slot| &mut slot.label);
        labels.filter(|label| label.carrier == carrier).for_each(|label| label.wish = wish);
    }

    pub(crate) fn set_congestion(&mut self, key: TunnelKey, name: &str) -> io::Result<()> {
        let slot = self.slots.get_mut(&key.0).ok_or(io::ErrorKind::NotFound)?;
        slot.tunnel.set_congestion(name)
    }

    /// A tunnel starts from what the newest of these has measured about the carrier.
    pub(crate) fn resume(&mut self, now: Instant, key: TunnelKey, siblings: &[TunnelKey]) {
        let known = |other: &TunnelKey| self.slots.get(&other.0)?.tunnel.knowledge();
        let known = siblings.iter().find_map(known);
        if let (Some(known), Some(slot)) = (known, self.slots.get_mut(&key.0)) {
            slot.tunnel.resume(now, known);
        }
    }

    pub(crate) fn on_ready(&mut self, now: Instant, key: usize, readable: bool, writable: bool) {
        let Some(slot) = self.slots.get_mut(&key) else { return };
        slot.tunnel.on_ready(now, readable, writable);
        self.want_receive(key);
        self.touch(key);
    }

    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Whether there is work that needs no event.
    pub(crate) fn has_work(&self) -> bool {
        !self.receiving.is_empty() || !self.touched.is_empty() || !self.events.is_empty()
    }

    /// Runs due timers: handshake timeouts and samples.
    pub(crate) fn on_timeout(&mut self, now: Instant, endpoint: &mut Endpoint) {
        while let Some(&(at, key)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            let Some(slot) = self.slots.get_mut(&key) else { continue };
            slot.timer = None;
            slot.tunnel.on_timeout(now);
            if slot.sample_at.is_some_and(|at| at <= now) {
                self.measure(now, key, endpoint);
            }
            // Its transport may have received more.
            self.want_receive(key);
            self.touch(key);
        }
    }

    /// Receives from each ready tunnel once; tunnels that may have more stay in the list.
    pub(crate) fn receive(&mut self, now: Instant, endpoint: &mut Endpoint) {
        for key in std::mem::take(&mut self.receiving) {
            let Some(slot) = self.slots.get_mut(&key) else { continue };
            slot.receiving = false;
            if slot.stage == Stage::Handshaking {
                continue;
            }
            let known = slot.stage.is_known();
            let mut handed_out = 0;
            let received = slot.tunnel.receive(&mut |bytes| {
                handed_out += bytes.len() as u64;
                if known {
                    endpoint.receive(now, TunnelKey(key), bytes);
                }
            });
            slot.received_bytes += handed_out;
            if received > 0 {
                self.want_receive(key);
            }
            self.touch(key);
        }
    }

    /// Handles events of touched tunnels and reports their room to the session.
    pub(crate) fn settle(&mut self, now: Instant, registry: &Registry, endpoint: &mut Endpoint) {
        for key in std::mem::take(&mut self.touched) {
            let Some(slot) = self.slots.get_mut(&key) else { continue };
            slot.touched = false;
            if self.settle_events(now, registry, endpoint, key) {
                continue;
            }
            self.settle_room(endpoint, key);
            self.rearm(key);
        }
    }

    /// Lets the session send until it has no more data or no tunnel has room, and flushes. Tunnels
    /// that only received or withdrew data are flushed, too, because their transports have
    /// acknowledgements and flow control to send.
    pub(crate) fn transmit(&mut self, now: Instant, registry: &Registry, endpoint: &mut Endpoint) {
        for _ in 0..ROUNDS_MAX {
            endpoint.transmit(now, &mut TunnelOutlet { now, tunnels: self });
            if self.unflushed.is_empty() {
                return;
            }
            for key in std::mem::take(&mut self.unflushed) {
                let Some(slot) = self.slots.get_mut(&key) else { continue };
                slot.unflushed = false;
                slot.tunnel.flush(now);
                self.look_at(key);
            }
            self.settle(now, registry, endpoint);
        }
    }

    /// Closes tunnels at the session's request, after its last frames and withdrawals for them.
    pub(crate) fn drain_and_close(
        &mut self,
        now: Instant,
        registry: &Registry,
        endpoint: &mut Endpoint,
        closing: &[TunnelKey],
    ) {
        if !closing.is_empty() {
            self.transmit(now, registry, endpoint);
        }
        closing.iter().for_each(|&key| self.close(now, key, endpoint));
    }

    /// Closes a tunnel gracefully and tells the session if it still uses the tunnel.
    pub(crate) fn close(&mut self, now: Instant, key: TunnelKey, endpoint: &mut Endpoint) {
        let Some(slot) = self.slots.get_mut(&key.0) else { return };
        if slot.stage == Stage::Closing {
            return;
        }
        let (stage, mode) = (std::mem::replace(&mut slot.stage, Stage::Closing), slot.mode);
        slot.sample_at = None;
        slot.tunnel.flush(now);
        slot.tunnel.close(now);
        self.leave(now, endpoint, key.0, stage, mode);
        self.touch(key.0);
    }

    /// Drops a tunnel whose handshake is unfinished. If the handshake finished meanwhile, the peer
    /// knows the tunnel, so it is closed gracefully.
    pub(crate) fn give_up(
        &mut self,
        now: Instant,
        registry: &Registry,
        endpoint: &mut Endpoint,
        key: TunnelKey,
    ) {
        let Some(slot) = self.slots.get(&key.0) else { return };
        if !slot.stage.is_handshaking() {
            return self.close(now, key, endpoint);
        }
        let after = now.saturating_duration_since(slot.begun);
        self.remove(now, registry, endpoint, key.0, CloseReason::HandshakeTimedOut { after });
    }

    pub(crate) fn take_events(&mut self) -> Vec<RelayEvent> {
        std::mem::take(&mut self.events)
    }

    /// Schedules a check of its events and room, and a flush.
    fn touch(&mut self, key: usize) {
        self.look_at(key);
        if let Some(slot) = self.slots.get_mut(&key)
            && !std::mem::replace(&mut slot.unflushed, true)
        {
            self.unflushed.push(key);
        }
    }

    fn look_at(&mut self, key: usize) {
        if let Some(slot) = self.slots.get_mut(&key)
            && !std::mem::replace(&mut slot.touched, true)
        {
            self.touched.push(key);
        }
    }

    fn want_receive(&mut self, key: usize) {
        if let Some(slot) = self.slots.get_mut(&key)
            && !std::mem::replace(&mut slot.receiving, true)
        {
            self.receiving.push(key);
        }
    }

    /// Handles its events; returns true if the tunnel was removed.
    fn settle_events(
        &mut self,
        now: Instant,
        registry: &Registry,
        endpoint: &mut Endpoint,
        key: usize,
    ) -> bool {
        while let Some(slot) = self.slots.get_mut(&key)
            && let Some(event) = slot.tunnel.poll_event()
        {
            if slot.stage == Stage::Handshaking
                && let Some(to) = self.workers.goes_to(&event)
            {
                self.hand_over(registry, key, to, event);
                return true;
            }
            if self.refuses_own && !matches!(event, TunnelEvent::Closed(_)) {
                self.remove(now, registry, endpoint, key, CloseReason::Local);
                return true;
            }
            match event {
                TunnelEvent::Early(early) => self.on_early(now, endpoint, key, early),
                TunnelEvent::Up(established) => self.on_up(now, endpoint, key, established),
                TunnelEvent::Closed(reason) => {
                    self.remove(now, registry, endpoint, key, reason);
                    return true;
                }
            }
        }
        false
    }

    fn on_early(&mut self, now: Instant, endpoint: &mut Endpoint, key: usize, early: Early) {
        let Some(slot) = self.slots.get_mut(&key) else { return };
        if slot.stage != Stage::Handshaking {
            return;
        }
        slot.stage = Stage::Early;
        slot.update_addresses();
        endpoint.tunnel_up(now, TunnelKey(key), slot.info(&early.peer, None));
        slot.peer = Some(early.peer);
        slot.serial = Some(early.serial);
        self.events.push(RelayEvent::TunnelEarly { tunnel: TunnelKey(key) });
        self.want_receive(key);
    }

    fn on_up(&mut self, now: Instant, endpoint: &mut Endpoint, key: usize, up: Established) {
        let Some(slot) = self.slots.get_mut(&key) else { return };
        let (stage, tunnel) = (slot.stage, TunnelKey(key));
        if !stage.is_handshaking() {
            return;
        }
        if stage == Stage::Early && slot.peer.as_ref() != Some(&up.peer) {
            // No tunnel implementation permits this.
            tracing::error!(before = ?slot.peer, peer = %up.peer, "tunnel changed its peer");
            return self.close(now, tunnel, endpoint);
        }
        slot.stage = Stage::Up;
        slot.update_addresses();
        slot.serial = Some(up.serial.clone());
        slot.expires = Some(up.expires);
        if stage == Stage::Early {
            endpoint.tunnel_confirmed(now, tunnel, up.exporter);
        } else {
            slot.peer = Some(up.peer.clone());
            endpoint.tunnel_up(now, tunnel, slot.info(&up.peer, Some(up.exporter)));
        }
        if let Some(counts) = self.counts.get_mut(&slot.mode) {
            counts.handshaking.end(key);
        }
        self.measure(now, key, endpoint);
        self.events.push(RelayEvent::TunnelUp { tunnel, established: up });
        // Frames may have arrived with the end of the handshake.
        self.want_receive(key);
    }

    fn measure(&mut self, now: Instant, key: usize, endpoint: &mut Endpoint) {
        let Some(slot) = self.slots.get_mut(&key) else { return };
        if let Some(rate) = slot.measure(now, TunnelKey(key), endpoint) {
            self.events.push(RelayEvent::TunnelPoliced { tunnel: TunnelKey(key), rate });
        }
    }

    /// Updates session and counts when a tunnel leaves `stage`.
    fn leave(
        &mut self,
        now: Instant,
        endpoint: &mut Endpoint,
        key: usize,
        stage: Stage,
        mode: TunnelMode,
    ) {
        if stage.is_known() {
            endpoint.tunnel_closing(now, TunnelKey(key));
        }
        if stage.is_handshaking()
            && let Some(counts) = self.counts.get_mut(&mode)
        {
            counts.handshaking.end(key);
        }
    }

    fn remove(
        &mut self,
        now: Instant,
        registry: &Registry,
        endpoint: &mut Endpoint,
        key: usize,
        reason: CloseReason,
    ) {
        let Some(mut slot) = self.slots.remove(&key) else { return };
        self.drops += slot.tunnel.datagram_drops();
        // A failed socket may be unregistered already.
        let _ = slot.tunnel.deregister(registry);
        if let Some(at) = slot.timer {
            self.timers.remove(&(at, key));
        }
        self.leave(now, endpoint, key, slot.stage, slot.mode);
        endpoint.tunnel_down(now, TunnelKey(key));
        if let Some(counts) = self.counts.get_mut(&slot.mode) {
            counts.all -= 1;
        }
        let Slot { peer, address, .. } = slot;
        self.events.push(RelayEvent::TunnelClosed {
            tunnel: TunnelKey(key),
            reason,
            peer,
            address,
        });
    }

    /// Removes a tunnel that the session does not know, because another worker owns its peer.
    fn hand_over(&mut self, registry: &Registry, key: usize, to: usize, event: TunnelEvent) {
        let Some(slot) = self.slots.remove(&key) else { return };
        let Slot { mut tunnel, begun, mode, timer, .. } = slot;
        // A failed socket may be unregistered already.
        let _ = tunnel.deregister(registry);
        if let Some(at) = timer {
            self.timers.remove(&(at, key));
        }
        if let Some(counts) = self.counts.get_mut(&mode) {
            counts.all -= 1;
            counts.handshaking.end(key);
        }
        if let Some(parcel) = tunnel.pack(to) {
            self.events.push(RelayEvent::TunnelMoves(MovingTunnel { to, parcel, event, begun }));
        }
    }

    fn settle_room(&mut self, endpoint: &mut Endpoint, key: usize) {
        let Some(slot) = self.slots.get_mut(&key) else { return };
        if !slot.stage.is_known() {
            return;
        }
        let room = slot.tunnel.room();
        if room != slot.room {
            slot.room = room;
            endpoint.tunnel_room(TunnelKey(key), room);
        }
    }

    fn rearm(&mut self, key: usize) {
        let Some(slot) = self.slots.get_mut(&key) else { return };
        let wanted = slot.tunnel.next_timeout().into_iter().chain(slot.sample_at).min();
        if wanted == slot.timer {
            return;
        }
        if let Some(old) = std::mem::replace(&mut slot.timer, wanted) {
            self.timers.remove(&(old, key));
        }
        self.timers.extend(wanted.map(|at| (at, key)));
    }
}

/// Writes the session's frames to the tunnels.
struct TunnelOutlet<'a> {
    now: Instant,
    tunnels: &'a mut Tunnels,
}

impl Outlet for TunnelOutlet<'_> {
    fn send(&mut self, key: TunnelKey, unit: Unit, frames: &[u8]) -> usize {
        let Some(slot) = self.tunnels.slots.get_mut(&key.0) else {
            self.tunnels.drops.ended += u64::from(matches!(unit, Unit::Datagram { .. }));
            return 0;
        };
        slot.tunnel.send(unit, frames);
        slot.sent_bytes += frames.len() as u64;
        slot.room = slot.tunnel.room();
        slot.active = true;
        slot.sample_at.get_or_insert(self.now + SAMPLE_EVERY);
        let room = slot.room;
        self.tunnels.touch(key.0);
        room
    }

    fn withdraw(&mut self, key: TunnelKey, tag: u64) {
        if let Some(slot) = self.tunnels.slots.get_mut(&key.0) {
            slot.tunnel.withdraw(tag);
            self.tunnels.touch(key.0);
        }
    }
}

/// Rounds of transmit and flush in one turn, because a flush may make room.
const ROUNDS_MAX: usize = 8;
