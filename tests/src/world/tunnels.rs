//! Carriers and the connections over them: how tunnels come up, live and die.

use std::time::{Duration, Instant};

use polyrail_emulator::link::{Blackout, LinkModel, LinkSpec};
use polyrail_model::{Identity, LinkSample, TunnelMode};
use polyrail_session::{TunnelInfo, TunnelKey};

use super::transport::{Content, Delivery, Packet, PacketKind, Transport};
use super::{Links, Side, Timer, Verbosity, World};
use crate::dice::Dice;

/// What a carrier is like.
#[derive(Clone, Debug)]
pub struct CarrierSpec {
    /// Its name.
    pub name: String,
    /// From the gateway to the cloud, and back.
    pub links: [LinkSpec; 2],
    /// Tunnels hand over bytes in order (TLS), else whole messages in any order (QUIC).
    pub stream: bool,
    /// Used when no other is left.
    pub backup: bool,
    /// What a tunnel takes ahead of its transport, in bytes.
    pub room: usize,
}

/// A carrier as it is now.
pub struct Carrier {
    pub(super) spec: CarrierSpec,
    pub(super) links: Links,
    /// When each link yields next; kept beside it because asking costs.
    pub(super) departures: [Option<Instant>; 2],
    /// The gateway makes connections over it.
    pub(super) enabled: bool,
    /// The newest connection, while the gateway has it.
    pub(super) current: Option<usize>,
}

/// One connection.
pub(super) struct Connection {
    carrier: usize,
    pub(super) ends: [Option<End>; 2],
    exporter: [u8; 32],
    /// Its address is gone: nothing of it arrives any more.
    lost_address: bool,
}

/// One end of a connection.
pub(super) struct End {
    pub(super) transport: Transport,
    key: Option<TunnelKey>,
    /// The room that the endpoint was told last.
    told_room: usize,
    closing: bool,
    sample_at: Instant,
}

impl Carrier {
    pub(super) fn new(start: Instant, spec: &CarrierSpec, dice: &mut Dice) -> Self {
        let [up, down] = spec.links.clone();
        let mut link = |spec| LinkModel::new(spec, start, dice.number());
        Self {
            spec: spec.clone(),
            links: [link(up), link(down)],
            departures: [None; 2],
            enabled: true,
            current: None,
        }
    }

    fn send(&mut self, now: Instant, from: Side, packet: Packet) {
        let size = packet.size();
        let link = &mut self.links[from as usize];
        let _verdict = link.enqueue(now, packet, size);
        self.departures[from as usize] = link.next_departure();
    }
}

impl World {
    /// Changes both links of a carrier.
    pub fn change_links(
        &mut self,
        carrier: usize,
        mut change: impl FnMut(Instant, &mut LinkModel<Packet>),
    ) {
        let now = self.now;
        let carrier = &mut self.carriers[carrier];
        for side in Side::BOTH {
            let link = &mut carrier.links[side as usize];
            change(now, link);
            carrier.departures[side as usize] = link.next_departure();
        }
    }

    /// Makes a carrier dark, or light again.
    pub fn blackout(&mut self, carrier: usize, blackout: Option<Blackout>) {
        self.say(Verbosity::Operations, || format!("carrier {carrier} blackout {blackout:?}"));
        self.change_links(carrier, |now, link| link.set_blackout(now, blackout));
    }

    /// How many carriers there are.
    pub fn carrier_count(&self) -> usize {
        self.carriers.len()
    }

    /// Bytes that a link has delivered so far.
    pub fn delivered(&self, carrier: usize, from: Side) -> u64 {
        self.carriers[carrier].links[from as usize].counters().delivered.bytes
    }

    /// The gateway takes a carrier out of use, or into use again.
    pub fn enable(&mut self, carrier: usize, enabled: bool) {
        self.say(Verbosity::Operations, || format!("carrier {carrier} enabled {enabled}"));
        let was = std::mem::replace(&mut self.carriers[carrier].enabled, enabled);
        if was && !enabled {
            if let Some(connection) = self.carriers[carrier].current {
                self.end_down(connection, Side::Gateway, "disabled");
            }
        } else if enabled && !was {
            self.timer(Duration::ZERO, Timer::Connect { carrier });
        }
        self.drain();
    }

    /// A connection dies: each side learns after its own time; what is out is lost.
    pub fn break_connection(&mut self, carrier: usize, learns: [Duration; 2]) {
        let Some(connection) = self.carriers[carrier].current else { return };
        self.say(Verbosity::Operations, || {
            format!("connection {connection} of carrier {carrier} breaks, known after {learns:?}")
        });
        if let Some(broken) = self.connections.get_mut(&connection) {
            broken.lost_address = true;
        }
        for side in Side::BOTH {
            self.timer(learns[side as usize], Timer::EndDown { connection, side });
        }
    }

    /// The carrier gives the gateway another address. The old connection is silent from now on;
    /// the gateway learns after a time, the cloud by itself. With `overlap` a new connection is
    /// made before the old one ends.
    pub fn change_address(&mut self, carrier: usize, learns: Duration, overlap: bool) {
        let Some(connection) = self.carriers[carrier].current else { return };
        self.say(Verbosity::Operations, || {
            format!("carrier {carrier} changes its address, learns {learns:?}, overlap {overlap}")
        });
        if let Some(old) = self.connections.get_mut(&connection) {
            old.lost_address = true;
        }
        if overlap {
            self.carriers[carrier].current = None;
            self.timer(Duration::ZERO, Timer::Connect { carrier });
        }
        self.timer(learns, Timer::EndDown { connection, side: Side::Gateway });
    }

    /// A second connection of the same carrier, while the first one lives on.
    pub fn race(&mut self, carrier: usize) {
        self.say(Verbosity::Operations, || format!("carrier {carrier} races a new connection"));
        self.carriers[carrier].current = None;
        self.timer(Duration::ZERO, Timer::Connect { carrier });
    }

    /// Whether a carrier's newest tunnel is up at the gateway.
    pub fn is_up(&self, carrier: usize) -> bool {
        let current = self.carriers[carrier].current.and_then(|c| self.connections.get(&c));
        current.is_some_and(|c| c.ends[0].as_ref().is_some_and(|end| end.key.is_some()))
    }

    pub(super) fn connect(&mut self, carrier: usize) {
        let Carrier { spec, enabled, current, .. } = &mut self.carriers[carrier];
        if !*enabled || current.is_some() {
            return;
        }
        let id = self.next_connection;
        self.next_connection += 1;
        *current = Some(id);
        let (now, stream, room) = (self.now, spec.stream, spec.room);
        let end = || {
            let transport = Transport::new(now, id, stream, room);
            let (told_room, closing) = (0, false);
            Some(End { transport, key: None, told_room, closing, sample_at: now })
        };
        let exporter = self.dice.key();
        let ends = [end(), end()];
        let connection = Connection { carrier, ends, exporter, lost_address: false };
        self.connections.insert(id, connection);
        self.timer(CONNECT_TIMEOUT, Timer::Deadline { connection: id });
        self.push(id, Side::Gateway, Content::Hello);
    }

    pub(super) fn connect_deadline(&mut self, connection: usize) {
        let up = |side: Side| {
            let end = self.connections.get(&connection)?.ends[side as usize].as_ref()?;
            Some(end.key.is_some())
        };
        for (side, up) in Side::BOTH.map(|side| (side, up(side))) {
            if up == Some(false) {
                self.end_down(connection, side, "no handshake in time");
            }
        }
    }

    /// Hands a message to a transport and sends what may go.
    fn push(&mut self, connection: usize, side: Side, content: Content) {
        let Some(c) = self.connections.get_mut(&connection) else { return };
        let Some(end) = &mut c.ends[side as usize] else { return };
        end.transport.sender.push(content);
        self.pump(connection, side);
    }

    fn pump(&mut self, connection: usize, side: Side) {
        if let Some(c) = self.connections.get_mut(&connection) {
            c.pump(self.now, side, &mut self.carriers);
        }
    }

    /// One packet, or a wake-up in vain, of the link that `from` sends into.
    pub(super) fn poll_link(&mut self, carrier: usize, from: Side) {
        let c = &mut self.carriers[carrier];
        let link = &mut c.links[from as usize];
        let packet = link.poll(self.now);
        c.departures[from as usize] = link.next_departure();
        if let Some(packet) = packet {
            self.on_packet(carrier, from.other(), packet);
        }
    }

    fn on_packet(&mut self, carrier: usize, side: Side, packet: Packet) {
        let id = packet.connection;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.lost_address {
            return;
        }
        let Some(end) = &mut connection.ends[side as usize] else {
            if !matches!(packet.kind, PacketKind::Rst) {
                let packet = Packet { connection: id, kind: PacketKind::Rst };
                self.carriers[carrier].send(self.now, side, packet);
            }
            return;
        };
        match packet.kind {
            PacketKind::Rst => self.end_down(id, side, "reset by the peer"),
            PacketKind::Ack { serial, cumulative } => {
                if end.transport.sender.on_ack(self.now, serial, cumulative) {
                    self.pump(id, side);
                    self.report(id, side, false);
                }
            }
            PacketKind::Data { serial, segment } => {
                let mut deliveries = Vec::new();
                let kind = end.transport.receiver.accept(serial, segment, &mut deliveries);
                self.carriers[carrier].send(self.now, side, Packet { connection: id, kind });
                deliveries.into_iter().for_each(|delivery| self.deliver(id, side, delivery));
            }
        }
    }

    fn deliver(&mut self, connection: usize, side: Side, delivery: Delivery) {
        match delivery {
            Delivery::Hello => {
                if side == Side::Cloud {
                    self.push(connection, side, Content::Hello);
                }
                self.end_up(connection, side);
            }
            Delivery::Frames(segment) => {
                let again = self.dice.chance(self.habits.repeats);
                let Some(c) = self.connections.get(&connection) else { return };
                let repeatable = !self.carriers[c.carrier].spec.stream && !segment.is_greeting();
                let Some(key) = c.ends[side as usize].as_ref().and_then(|end| end.key) else {
                    return;
                };
                self.feed(side, key, segment.bytes());
                // Only a message that came as one segment is whole frames.
                if again && repeatable && segment.is_whole() {
                    self.feed(side, key, segment.bytes());
                }
            }
            Delivery::Close => self.end_down(connection, side, "closed by the peer"),
        }
    }

    fn feed(&mut self, side: Side, key: TunnelKey, bytes: &[u8]) {
        self.trace.note(&[1, side as u64, key.0 as u64, bytes.len() as u64]);
        let node = &mut self.nodes[side as usize];
        node.endpoint.receive(self.now, key, bytes);
        node.dirty = true;
    }

    fn end_up(&mut self, connection: usize, side: Side) {
        let Some(c) = self.connections.get_mut(&connection) else { return };
        let Some(end) = &mut c.ends[side as usize] else { return };
        let node = &mut self.nodes[side as usize];
        let key = node.new_tunnel(connection);
        end.key = Some(key);
        let spec = &self.carriers[c.carrier].spec;
        let (carrier, peer) = match side {
            Side::Gateway => (spec.name.clone(), identity("cloud")),
            Side::Cloud => (String::new(), identity("train-7")),
        };
        let backup = spec.backup && side == Side::Gateway;
        let info =
            TunnelInfo { carrier, peer, exporter: Some(c.exporter), backup, mode: TunnelMode::Tls };
        end.told_room = end.transport.sender.room();
        let room = end.told_room;
        self.say(Verbosity::Everything, || format!("{side:?} tunnel {} up, {connection}", key.0));
        let node = &mut self.nodes[side as usize];
        node.endpoint.tunnel_up(self.now, key, info);
        node.endpoint.tunnel_room(key, room);
        node.dirty = true;
    }

    /// One side has lost its end of a connection, or given it up.
    pub(super) fn end_down(&mut self, connection: usize, side: Side, why: &str) {
        let Some(c) = self.connections.get_mut(&connection) else { return };
        let Some(end) = c.ends[side as usize].take() else { return };
        let carrier = c.carrier;
        if c.ends.iter().all(Option::is_none) {
            self.connections.remove(&connection);
        }
        self.say(Verbosity::Everything, || format!("{side:?} connection {connection} down: {why}"));
        if let Some(key) = end.key {
            let now = self.now;
            let node = &mut self.nodes[side as usize];
            node.drop_tunnel(now, key);
            node.endpoint.tunnel_down(now, key);
            node.dirty = true;
        }
        if side == Side::Gateway && self.carriers[carrier].current == Some(connection) {
            self.carriers[carrier].current = None;
            let backoff = self.dice.millis(20, 800);
            self.timer(backoff, Timer::Connect { carrier });
        }
    }

    /// The endpoint wants a tunnel closed: what was handed over is flushed first.
    pub(super) fn close_tunnel(&mut self, side: Side, key: TunnelKey) {
        let Some(&connection) = self.nodes[side as usize].tunnels.get(&key) else { return };
        let Some(c) = self.connections.get_mut(&connection) else { return };
        let Some(end) = &mut c.ends[side as usize] else { return };
        if !std::mem::replace(&mut end.closing, true) {
            self.push(connection, side, Content::Close);
            let flush = self.dice.millis(0, 400);
            self.timer(flush, Timer::EndDown { connection, side });
        }
    }

    pub(super) fn transport_timeout(&mut self, connection: usize, side: Side) {
        let Some(c) = self.connections.get_mut(&connection) else { return };
        let Some(end) = &mut c.ends[side as usize] else { return };
        if end.transport.sender.on_timeout(self.now, self.habits.patience) {
            self.pump(connection, side);
            self.report(connection, side, true);
        } else {
            self.end_down(connection, side, "no answer");
        }
    }

    /// Tells the endpoint what has changed: room, and a sample now and then.
    fn report(&mut self, connection: usize, side: Side, urgent: bool) {
        let Some(c) = self.connections.get_mut(&connection) else { return };
        let Some(end) = &mut c.ends[side as usize] else { return };
        let Some(key) = end.key else { return };
        let node = &mut self.nodes[side as usize];
        let (room, bound) = (end.transport.sender.room(), self.carriers[c.carrier].spec.room);
        if room > end.told_room && (room >= bound / 2 || end.told_room >= bound / 2) {
            end.told_room = room;
            node.endpoint.tunnel_room(key, room);
            node.dirty = true;
        }
        if urgent || self.now >= end.sample_at {
            end.sample_at = self.now + SAMPLE_EVERY;
            let sample: LinkSample = end.transport.sender.sample(self.now);
            node.endpoint.tunnel_sample(self.now, key, &sample);
            node.dirty = true;
        }
    }
}

impl End {
    /// The endpoint that knew it is gone.
    pub(super) fn forget_key(&mut self) {
        self.key = None;
    }
}

impl Connection {
    fn pump(&mut self, now: Instant, side: Side, carriers: &mut [Carrier]) {
        let Some(end) = &mut self.ends[side as usize] else { return };
        let carrier = &mut carriers[self.carrier];
        let silent = self.lost_address;
        end.transport.sender.pump(now, |packet| {
            if !silent {
                carrier.send(now, side, packet);
            }
        });
    }

    /// Frames from the endpoint; returns the room left.
    pub(super) fn take(
        &mut self,
        now: Instant,
        side: Side,
        frames: &[u8],
        carriers: &mut [Carrier],
    ) -> usize {
        let Some(end) = &mut self.ends[side as usize] else { return 0 };
        end.transport.sender.push(Content::Frames(frames.to_vec()));
        self.pump(now, side, carriers);
        let Some(end) = &mut self.ends[side as usize] else { return 0 };
        end.told_room = end.transport.sender.room();
        end.told_room
    }
}

fn identity(name: &str) -> Identity {
    Identity::new(name).unwrap_or_else(|error| panic!("{error}"))
}

/// A carrier that does not answer is tried anew after this.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(8);
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
