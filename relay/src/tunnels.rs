//! The tunnels of one loop: readiness, timers, samples, and the way out for the session's frames.
//!
//! Keys are never used twice, so an event of a tunnel that is gone finds nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use polyrail_model::{Identity, LinkSample, Unit};
use polyrail_session::{Endpoint, Outlet, TunnelInfo, TunnelKey};
use polyrail_tunnel::{CloseReason, Established, Tunnel, TunnelEvent};

/// How often a tunnel with data out is measured. Idle ones are not: an idle daemon sleeps.
pub const SAMPLE_EVERY: Duration = Duration::from_millis(8);

/// What the daemon knows of a tunnel before its handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// The carrier's name (gateway); empty on the cloud, which learns it from the gateway.
    pub carrier: String,
    /// Use it only when no other path is left (gateway).
    pub backup: bool,
}

/// What can be asked of a tunnel.
#[derive(Clone, Copy, Debug)]
pub struct TunnelView<'a> {
    /// The peer, once the handshake is over.
    pub peer: Option<&'a Identity>,
    /// Where the peer is.
    pub address: Option<SocketAddr>,
    /// The last measurement.
    pub sample: Option<&'a LinkSample>,
    /// Since when data is out without any of it being acknowledged; `None` when nothing is out.
    pub waiting_since: Option<Instant>,
}

/// What happened to a tunnel.
#[derive(Debug)]
pub(crate) enum Happened {
    Up(TunnelKey, Established),
    Closed {
        key: TunnelKey,
        reason: CloseReason,
        peer: Option<Identity>,
        address: Option<SocketAddr>,
    },
}

#[derive(Debug, Default)]
pub(crate) struct Tunnels {
    slots: BTreeMap<usize, Slot>,
    next_key: usize,
    timers: BTreeSet<(Instant, usize)>,
    /// Those that may have more to receive.
    receiving: Vec<usize>,
    /// Those whose room or events may have changed.
    touched: Vec<usize>,
    handshaking: usize,
    happened: Vec<Happened>,
}

struct Slot {
    tunnel: Box<dyn Tunnel>,
    label: Label,
    stage: Stage,
    peer: Option<Identity>,
    address: Option<SocketAddr>,
    /// The room that the session was told.
    room: usize,
    /// The timer that is armed.
    timer: Option<Instant>,
    sample_at: Option<Instant>,
    sample: Option<LinkSample>,
    waiting_since: Option<Instant>,
    /// Something was sent since the last sample.
    active: bool,
    receiving: bool,
    touched: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Handshaking,
    /// The session knows it.
    Up,
    /// The session has let go of it; it ends in order.
    Closing,
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("label", &self.label).field("stage", &self.stage).finish()
    }
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
        let address = tunnel.peer_addr();
        let slot = Slot {
            tunnel,
            label,
            stage: Stage::Handshaking,
            peer: None,
            address,
            room: 0,
            timer: None,
            sample_at: None,
            sample: None,
            waiting_since: None,
            active: false,
            receiving: false,
            touched: false,
        };
        self.slots.insert(key, slot);
        self.handshaking += 1;
        self.touch(key);
        Ok(TunnelKey(key))
    }

    /// Tunnels whose handshake is not over.
    pub(crate) fn handshaking(&self) -> usize {
        self.handshaking
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn keys(&self) -> Vec<TunnelKey> {
        self.slots.keys().copied().map(TunnelKey).collect()
    }

    pub(crate) fn view(&self, key: TunnelKey) -> Option<TunnelView<'_>> {
        self.slots.get(&key.0).map(|slot| TunnelView {
            peer: slot.peer.as_ref(),
            address: slot.address,
            sample: slot.sample.as_ref(),
            waiting_since: slot.waiting_since,
        })
    }

    pub(crate) fn set_congestion(&mut self, key: TunnelKey, name: &str) -> io::Result<()> {
        let slot = self.slots.get_mut(&key.0).ok_or(io::ErrorKind::NotFound)?;
        slot.tunnel.set_congestion(name)
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

    /// Whether something is left to do without an event.
    pub(crate) fn has_work(&self) -> bool {
        !self.receiving.is_empty() || !self.touched.is_empty() || !self.happened.is_empty()
    }

    /// Runs the timers that are due: ends of handshakes, and samples.
    pub(crate) fn on_timeout(&mut self, now: Instant, endpoint: &mut Endpoint) {
        while let Some(&(at, key)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            let Some(slot) = self.slots.get_mut(&key) else { continue };
            slot.timer = None;
            slot.tunnel.on_timeout(now);
            if slot.sample_at.is_some_and(|at| at <= now) {
                slot.measure(now, TunnelKey(key), endpoint);
            }
            self.touch(key);
        }
    }

    /// Reads what tunnels have, once each; those that may have more stay in the list.
    pub(crate) fn receive(&mut self, now: Instant, endpoint: &mut Endpoint) {
        for key in std::mem::take(&mut self.receiving) {
            let Some(slot) = self.slots.get_mut(&key) else { continue };
            slot.receiving = false;
            if slot.stage == Stage::Handshaking {
                continue;
            }
            let up = slot.stage == Stage::Up;
            let received = slot.tunnel.receive(&mut |bytes| {
                if up {
                    endpoint.receive(now, TunnelKey(key), bytes);
                }
            });
            if received > 0 {
                self.want_receive(key);
            }
            self.touch(key);
        }
    }

    /// Takes the events of touched tunnels and tells the session of their room.
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

    /// Lets the session send until it has nothing more or no tunnel takes more, and flushes.
    pub(crate) fn transmit(&mut self, now: Instant, registry: &Registry, endpoint: &mut Endpoint) {
        for _ in 0..ROUNDS_MAX {
            let mut sent = false;
            endpoint.transmit(now, &mut WayOut { now, tunnels: self, sent: &mut sent });
            if !sent {
                return;
            }
            for index in 0..self.touched.len() {
                if let Some(slot) = self.slots.get_mut(&self.touched[index]) {
                    slot.tunnel.flush(now);
                }
            }
            self.settle(now, registry, endpoint);
        }
    }

    /// Ends a tunnel in order; the session has let go of it or is told so now.
    pub(crate) fn close(&mut self, now: Instant, key: TunnelKey, endpoint: &mut Endpoint) {
        let Some(slot) = self.slots.get_mut(&key.0) else { return };
        match slot.stage {
            Stage::Handshaking => self.handshaking -= 1,
            Stage::Up => endpoint.tunnel_down(now, key),
            Stage::Closing => return,
        }
        slot.stage = Stage::Closing;
        slot.sample_at = None;
        slot.waiting_since = None;
        slot.tunnel.flush(now);
        slot.tunnel.close(now);
        self.touch(key.0);
    }

    pub(crate) fn take_happened(&mut self) -> Vec<Happened> {
        std::mem::take(&mut self.happened)
    }

    fn touch(&mut self, key: usize) {
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

    /// True when the tunnel is gone.
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
            match event {
                TunnelEvent::Early(_) => {}
                TunnelEvent::Up(established) if slot.stage == Stage::Handshaking => {
                    slot.stage = Stage::Up;
                    slot.peer = Some(established.peer.clone());
                    self.handshaking -= 1;
                    let info = TunnelInfo {
                        carrier: slot.label.carrier.clone(),
                        peer: established.peer.clone(),
                        exporter: Some(established.exporter),
                        backup: slot.label.backup,
                        mode: slot.tunnel.mode(),
                    };
                    endpoint.tunnel_up(now, TunnelKey(key), info);
                    slot.measure(now, TunnelKey(key), endpoint);
                    self.happened.push(Happened::Up(TunnelKey(key), established));
                    // Frames may have come with the end of the handshake.
                    self.want_receive(key);
                }
                TunnelEvent::Up(_) => {}
                TunnelEvent::Closed(reason) => {
                    self.remove(now, registry, endpoint, key, reason);
                    return true;
                }
            }
        }
        false
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
        // A socket that failed may be out of the poll already.
        let _ = slot.tunnel.deregister(registry);
        if let Some(at) = slot.timer {
            self.timers.remove(&(at, key));
        }
        match slot.stage {
            Stage::Handshaking => self.handshaking -= 1,
            Stage::Up => endpoint.tunnel_down(now, TunnelKey(key)),
            Stage::Closing => {}
        }
        let Slot { peer, address, .. } = slot;
        self.happened.push(Happened::Closed { key: TunnelKey(key), reason, peer, address });
    }

    fn settle_room(&mut self, endpoint: &mut Endpoint, key: usize) {
        let Some(slot) = self.slots.get_mut(&key) else { return };
        if slot.stage != Stage::Up {
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

impl Slot {
    fn measure(&mut self, now: Instant, key: TunnelKey, endpoint: &mut Endpoint) {
        self.sample_at = None;
        if self.stage != Stage::Up {
            return;
        }
        let Some(sample) = self.tunnel.sample(now) else { return };
        let out = sample.in_flight.0 > 0 || sample.unsent.0 > 0;
        let grown = self.sample.is_none_or(|before| sample.acked > before.acked);
        self.waiting_since = match self.waiting_since {
            Some(since) if out && !grown => Some(since),
            _ => out.then_some(now),
        };
        if out || std::mem::take(&mut self.active) {
            self.sample_at = Some(now + SAMPLE_EVERY);
        }
        self.sample = Some(sample);
        endpoint.tunnel_sample(now, key, &sample);
    }
}

/// Where the session puts its frames.
struct WayOut<'a> {
    now: Instant,
    tunnels: &'a mut Tunnels,
    sent: &'a mut bool,
}

impl Outlet for WayOut<'_> {
    fn send(&mut self, key: TunnelKey, unit: Unit, frames: &[u8]) -> usize {
        let Some(slot) = self.tunnels.slots.get_mut(&key.0) else { return 0 };
        slot.tunnel.send(unit, frames);
        slot.room = slot.tunnel.room();
        slot.active = true;
        slot.sample_at.get_or_insert(self.now + SAMPLE_EVERY);
        let room = slot.room;
        *self.sent = true;
        self.tunnels.touch(key.0);
        room
    }

    fn withdraw(&mut self, key: TunnelKey, tag: u64) {
        if let Some(slot) = self.tunnels.slots.get_mut(&key.0) {
            slot.tunnel.withdraw(tag);
        }
    }
}

/// Rounds of transmit and flush in one turn: a flush may make room again.
const ROUNDS_MAX: usize = 8;
