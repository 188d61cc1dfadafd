//! Carriers and the connections over them: how tunnels come up, live and die.

use std::rc::Rc;
use std::time::{Duration, Instant};

use polyrail_emulator::link::{Blackout, LinkModel, LinkSpec, Rate};
use polyrail_model::{Bytes, Identity, LinkSample, PathWish, TunnelMode, Unit};
use polyrail_session::{TunnelInfo, TunnelKey};

use super::transport::{Content, Delivery, Packet, PacketKind, Segment, Transport};
use super::{Links, Side, Timer, Verbosity, World};
use crate::congestion::{Algorithm, Control};
use crate::dice::Dice;

/// A race of new connections for a carrier's path.
#[derive(Debug, Default)]
pub(super) struct Race {
    pub number: u32,
    /// Attempts still to be made.
    pub left: u32,
    /// Running attempts and their beginnings, the oldest first.
    pub alive: Vec<(usize, Instant)>,
}

/// The properties of a carrier.
#[derive(Clone, Debug)]
pub struct CarrierSpec {
    /// Its name.
    pub name: String,
    /// From the gateway to the cloud, and back.
    pub links: [LinkSpec; 2],
    /// Tunnels deliver bytes in order (TLS), else whole messages in any order (QUIC).
    pub stream: bool,
    /// Used only if no other carrier is up.
    pub backup: bool,
    /// The bytes that a tunnel accepts ahead of its transport.
    pub room: usize,
    /// The congestion control of both ends.
    pub congestion: Algorithm,
}

/// The state of a carrier.
pub struct Carrier {
    pub(super) spec: CarrierSpec,
    pub(super) links: Links,
    /// The next departure of each link, cached because computing it is slow.
    pub(super) departures: [Option<Instant>; 2],
    /// The gateway uses it.
    pub(super) enabled: bool,
    /// The newest connection, as long as the gateway has it.
    pub(super) current: Option<usize>,
    /// The cloud's process that issued the gateway's ticket.
    ticket: Option<u32>,
    /// The race for a new path, if one is running.
    pub(super) race: Race,
}

/// One connection.
pub(super) struct Connection {
    pub(super) carrier: usize,
    pub(super) ends: [Option<End>; 2],
    exporter: [u8; 32],
    /// Its address is lost: none of its packets arrives.
    lost_address: bool,
    /// Delivers in order.
    stream: bool,
    /// Whether it sends early data, and whether the cloud accepts it.
    early: Option<bool>,
    /// The early data that it sent before the end of its handshake.
    captured: Vec<Vec<u8>>,
}

/// One end of a connection.
pub(super) struct End {
    pub(super) transport: Transport,
    /// `None` also if the endpoint that knew it has died.
    pub(super) key: Option<TunnelKey>,
    /// The handshake has ended.
    confirmed: bool,
    /// Early data that waits for the end of the handshake.
    held: Vec<Rc<Segment>>,
    /// The room last reported to the endpoint.
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
            ticket: None,
            race: Race::default(),
        }
    }

    pub(super) fn send(&mut self, now: Instant, from: Side, packet: Packet) {
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

    /// Starts or ends a blackout of a carrier.
    pub fn blackout(&mut self, carrier: usize, blackout: Option<Blackout>) {
        self.say(Verbosity::Operations, || format!("carrier {carrier} blackout {blackout:?}"));
        self.change_links(carrier, |now, link| link.set_blackout(now, blackout));
    }

    /// The number of carriers.
    pub fn carrier_count(&self) -> usize {
        self.carriers.len()
    }

    /// Bytes that a link has delivered so far.
    pub fn delivered(&self, carrier: usize, from: Side) -> u64 {
        self.carriers[carrier].links[from as usize].counters().delivered.bytes
    }

    /// Bytes handed to a link so far, also those that it dropped.
    pub fn offered(&self, carrier: usize, from: Side) -> u64 {
        self.carriers[carrier].links[from as usize].counters().offered.bytes
    }

    /// How long the queue of a link takes to leave at the present rate; `None` if it is empty or
    /// the link is dark.
    pub fn queue_time(&self, carrier: usize, from: Side) -> Option<Duration> {
        let link = &self.carriers[carrier].links[from as usize];
        let queued = link.queued().bytes;
        let Rate::Limited(rate) = link.spec().rate.at(self.elapsed()).value else { return None };
        rate.time_for(Bytes(queued)).filter(|wait| !wait.is_zero() && link.blackout().is_none())
    }

    /// The gateway disables or enables a carrier.
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

    /// A connection breaks: its packets are lost, and each side learns of it after its own time.
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

    /// The carrier gives the gateway another address. The old connection receives nothing from now
    /// on. The gateway learns of it after a time, the cloud by a timeout. With `overlap` a new
    /// connection starts before the old one ends.
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

    /// Starts a second connection of the same carrier, next to the first.
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
        if self.carriers[carrier].current.is_none() {
            self.start(carrier);
        }
    }

    /// Starts a connection, the carrier's newest.
    pub(super) fn start(&mut self, carrier: usize) -> Option<usize> {
        let Carrier { spec, enabled, current, ticket, .. } = &mut self.carriers[carrier];
        if !*enabled {
            return None;
        }
        let id = self.next_connection;
        self.next_connection += 1;
        *current = Some(id);
        let (stream, room, congestion) = (spec.stream, spec.room, spec.congestion);
        let valid = ticket.is_some_and(|of| of == self.upheavals.cloud_restarts);
        let early = ticket.is_some() && self.dice.chance(self.habits.early);
        let early = early.then(|| valid && self.dice.chance(self.habits.early_accepted));
        let control = |side: Side| congestion.begin_in(&self.couplings[side as usize]);
        let ends = [Side::Gateway, Side::Cloud]
            .map(|side| Some(End::new(self.now, id, stream, room, control(side))));
        let exporter = self.dice.key();
        self.connections.insert(id, Connection::new(carrier, ends, exporter, stream, early));
        self.timer(CONNECT_TIMEOUT, Timer::Deadline { connection: id });
        self.push(id, Side::Gateway, Content::Hello);
        if early.is_some() {
            self.coverage.early += 1;
            self.end_up(id, Side::Gateway, false);
        }
        Some(id)
    }

    /// An eavesdropper replays early data of an older connection.
    pub fn replay(&mut self, which: usize) {
        let Some((carrier, units)) = self.captured.get(which).cloned() else { return };
        self.say(Verbosity::Operations, || format!("early data is replayed: {which}"));
        self.upheavals.replays += 1;
        self.coverage.replayed += 1;
        let id = self.next_connection;
        self.next_connection += 1;
        let (now, exporter) = (self.now, self.dice.key());
        let ends = [None, Some(End::new(now, id, false, EARLY_ROOM, Algorithm::Reno.begin()))];
        self.connections.insert(id, Connection::new(carrier, ends, exporter, false, Some(true)));
        self.timer(CONNECT_TIMEOUT, Timer::Deadline { connection: id });
        self.end_up(id, Side::Cloud, false);
        let key = self.connections.get(&id).and_then(|c| c.ends[1].as_ref()?.key);
        for unit in units {
            if let Some(key) = key {
                self.feed(Side::Cloud, key, &unit);
            }
        }
        self.drain();
    }

    /// The number of the eavesdropper's recordings.
    pub fn captured(&self) -> usize {
        self.captured.len()
    }

    pub(super) fn connect_deadline(&mut self, connection: usize) {
        let up = |side: Side| {
            let end = self.connections.get(&connection)?.ends[side as usize].as_ref()?;
            Some(end.confirmed)
        };
        for (side, up) in Side::BOTH.map(|side| (side, up(side))) {
            if up == Some(false) {
                self.end_down(connection, side, "no handshake in time");
            }
        }
    }

    /// Queues a message in a transport, and sends what the window allows.
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

    /// Polls the link that `from` sends into: one packet, or none.
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
            PacketKind::Ack { .. } => {
                if end.transport.sender.on_ack(self.now, &packet.kind) {
                    self.pump(id, side);
                    self.report(id, side, false);
                }
            }
            PacketKind::Data { serial, order, segment } => {
                let mut deliveries = Vec::new();
                let receiver = &mut end.transport.receiver;
                let kind = receiver.accept(self.now, serial, order, segment, &mut deliveries);
                if let Some(kind) = kind {
                    self.carriers[carrier].send(self.now, side, Packet { connection: id, kind });
                }
                deliveries.into_iter().for_each(|delivery| self.deliver(id, side, delivery));
            }
        }
    }

    fn deliver(&mut self, connection: usize, side: Side, delivery: Delivery) {
        let Some(c) = self.connections.get_mut(&connection) else { return };
        match (delivery, side, c.early) {
            (Delivery::Hello, Side::Cloud, early) => {
                self.push(connection, side, Content::Hello);
                if early != Some(false) {
                    self.end_up(connection, side, early.is_none());
                }
            }
            (Delivery::Hello, Side::Gateway, early) => {
                let (process, carrier) = (self.upheavals.cloud_restarts, c.carrier);
                self.carriers[carrier].ticket = Some(process);
                if early.is_some() {
                    self.push(connection, side, Content::Finished);
                    self.confirm(connection, side);
                } else {
                    self.end_up(connection, side, true);
                }
            }
            (Delivery::Finished, _, Some(true)) => self.confirm(connection, side),
            (Delivery::Finished, ..) => {
                self.end_up(connection, side, true);
                let Some(c) = self.connections.get_mut(&connection) else { return };
                let held = c.ends[side as usize].as_mut().map(|end| std::mem::take(&mut end.held));
                for segment in held.unwrap_or_default() {
                    self.deliver(connection, side, Delivery::Frames(segment));
                }
            }
            (Delivery::Frames(segment), ..) => self.hand_over(connection, side, segment),
            (Delivery::Close, ..) => self.end_down(connection, side, "closed by the peer"),
        }
    }

    fn hand_over(&mut self, connection: usize, side: Side, segment: Rc<Segment>) {
        let again = self.dice.chance(self.habits.repeats);
        let Some(c) = self.connections.get_mut(&connection) else { return };
        let repeatable = !c.stream && !segment.is_greeting();
        let Some(end) = &mut c.ends[side as usize] else { return };
        let Some(key) = end.key else {
            end.held.push(segment);
            return;
        };
        self.feed(side, key, segment.bytes());
        // Only a message in one segment consists of whole frames.
        if again && repeatable && segment.is_whole() {
            self.feed(side, key, segment.bytes());
        }
    }

    /// The handshake of a tunnel with early data has ended.
    fn confirm(&mut self, connection: usize, side: Side) {
        let Some(c) = self.connections.get_mut(&connection) else { return };
        let exporter = c.exporter;
        let (carrier, captured) = (c.carrier, std::mem::take(&mut c.captured));
        let Some(end) = &mut c.ends[side as usize] else { return };
        end.confirmed = true;
        end.transport.sender.limit_early(None);
        end.told_room = end.transport.sender.room();
        let Some(key) = end.key else { return };
        let node = &mut self.nodes[side as usize];
        node.endpoint.tunnel_confirmed(self.now, key, exporter);
        node.endpoint.tunnel_room(key, end.told_room);
        node.dirty = true;
        if !captured.is_empty() {
            self.capture(carrier, captured);
        }
    }

    fn capture(&mut self, carrier: usize, units: Vec<Vec<u8>>) {
        self.captured.push_back((carrier, units));
        if self.captured.len() > CAPTURED_MAX {
            self.captured.pop_front();
        }
    }

    fn feed(&mut self, side: Side, key: TunnelKey, bytes: &[u8]) {
        self.trace.note(&[1, side as u64, key.0 as u64, bytes.len() as u64]);
        let node = &mut self.nodes[side as usize];
        if let Some(arrivals) = self.arrivals.as_mut().filter(|_| side == Side::Gateway)
            && let Some(&connection) = node.tunnels.get(&key)
        {
            arrivals.see(self.now, connection, bytes);
        }
        if let Some(copies) = self.copies.as_mut().filter(|_| side == Side::Gateway)
            && let Some(&connection) = node.tunnels.get(&key)
        {
            copies.arrived(self.now, connection, bytes);
        }
        node.endpoint.receive(self.now, key, bytes);
        node.dirty = true;
    }

    fn end_up(&mut self, connection: usize, side: Side, confirmed: bool) {
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
        let wish = if backup { PathWish::BACKUP } else { PathWish::default() };
        let mode = if c.stream { TunnelMode::Tls } else { TunnelMode::Quic };
        let exporter = confirmed.then_some(c.exporter);
        let info = TunnelInfo { carrier, peer, exporter, wish, mode };
        end.confirmed = confirmed;
        if !confirmed {
            end.transport.sender.limit_early(Some(EARLY_ROOM));
        }
        end.told_room = end.transport.sender.room();
        let room = end.told_room;
        self.say(Verbosity::Everything, || format!("{side:?} tunnel {} up, {connection}", key.0));
        let node = &mut self.nodes[side as usize];
        node.endpoint.tunnel_up(self.now, key, info);
        node.endpoint.tunnel_room(key, room);
        node.dirty = true;
    }

    /// One side has lost or given up its end of a connection.
    pub(super) fn end_down(&mut self, connection: usize, side: Side, why: &str) {
        let Some(c) = self.connections.get_mut(&connection) else { return };
        let Some(end) = c.ends[side as usize].take() else { return };
        let carrier = c.carrier;
        let captured = std::mem::take(&mut c.captured);
        if c.ends.iter().all(Option::is_none) {
            self.connections.remove(&connection);
        }
        self.say(Verbosity::Everything, || format!("{side:?} connection {connection} down: {why}"));
        if !captured.is_empty() {
            self.capture(carrier, captured);
        }
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

    /// The endpoint closes a tunnel: accepted bytes are flushed first.
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
        if let Some(kind) = end.transport.receiver.on_timeout(self.now)
            && !c.lost_address
        {
            let carrier = &mut self.carriers[c.carrier];
            carrier.send(self.now, side, Packet { connection, kind });
        }
        if end.transport.sender.next_timeout().is_none_or(|at| at > self.now) {
            return;
        }
        if end.transport.sender.on_timeout(self.now, self.habits.patience) {
            self.pump(connection, side);
            self.report(connection, side, true);
        } else {
            self.end_down(connection, side, "no answer");
        }
    }

    /// Reports changed room to the endpoint, and a sample at intervals.
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
        let idle = end.transport.sender.is_idle();
        if urgent || idle || self.now >= end.sample_at {
            end.sample_at = self.now + SAMPLE_EVERY;
            let sample: LinkSample = end.transport.sender.sample(self.now);
            node.endpoint.tunnel_sample(self.now, key, &sample);
            node.dirty = true;
            if side == Side::Gateway && sample.timeouts >= RESTART_TIMEOUTS {
                let carrier = c.carrier;
                self.restart_path(carrier);
            }
        }
    }
}

impl End {
    fn new(
        now: Instant,
        connection: usize,
        stream: bool,
        room: usize,
        control: Box<dyn Control>,
    ) -> Self {
        Self {
            transport: Transport::new(now, connection, stream, room, control),
            key: None,
            confirmed: false,
            held: Vec::new(),
            told_room: 0,
            closing: false,
            sample_at: now,
        }
    }
}

impl Connection {
    fn new(
        carrier: usize,
        ends: [Option<End>; 2],
        exporter: [u8; 32],
        stream: bool,
        early: Option<bool>,
    ) -> Self {
        let (lost_address, captured) = (false, Vec::new());
        Self { carrier, ends, exporter, lost_address, stream, early, captured }
    }

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
        unit: Unit,
        frames: &[u8],
        carriers: &mut [Carrier],
    ) -> usize {
        let Some(end) = &mut self.ends[side as usize] else { return 0 };
        if side == Side::Gateway && !end.confirmed {
            self.captured.push(frames.to_vec());
        }
        end.transport.sender.push(Content::Frames(unit, frames.to_vec()));
        self.pump(now, side, carriers);
        let Some(end) = &mut self.ends[side as usize] else { return 0 };
        end.told_room = end.transport.sender.room();
        end.told_room
    }

    /// The endpoint withdraws a unit.
    pub(super) fn withdraw(&mut self, side: Side, tag: u64) {
        if let Some(end) = &mut self.ends[side as usize] {
            end.transport.sender.withdraw(tag);
        }
    }
}

fn identity(name: &str) -> Identity {
    Identity::new(name).unwrap_or_else(|error| panic!("{error}"))
}

/// The time limit of a handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(8);
/// The limit of early data, in bytes.
const EARLY_ROOM: usize = 14_000;
/// The most recordings of the eavesdropper.
const CAPTURED_MAX: usize = 8;
/// Timeouts of the gateway's transport after which it restarts a path.
const RESTART_TIMEOUTS: u32 = 2;
/// The interval of samples, as in the daemons (`relay/src/slot.rs`). An idle tunnel reports at
/// once.
const SAMPLE_EVERY: Duration = Duration::from_millis(8);
