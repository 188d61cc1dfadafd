//! One end of a simulated reliable transport: what TCP under TLS, or QUIC, does for a tunnel.
//!
//! Messages are cut into segments, lost segments go again (three later ones acknowledged, or a
//! timeout with exponential backoff), a window grows by slow start and halves on loss. It knows no
//! link: it takes and makes [`Packet`]s.
//!
//! Two flavours. A stream (TLS) hands over segments in order, cut anywhere. The other one (QUIC)
//! hands over whole units: control and greetings in their order, data as it becomes complete, but
//! behind the greeting that it was sent behind; what was sent before a greeting and comes after it
//! is dropped. There, data that is withdrawn is not sent again: a mark goes in its place.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Bytes, LinkSample, Unit};

/// What travels over a link.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The connection it belongs to.
    pub connection: usize,
    /// What it is.
    pub kind: PacketKind,
}

/// The kinds of packets.
#[derive(Clone, Debug)]
pub enum PacketKind {
    /// A segment.
    Data {
        /// Its place in the order of first sending.
        serial: u64,
        /// The segment.
        segment: Rc<Segment>,
    },
    /// One segment arrived, and all below.
    Ack {
        /// The one that arrived.
        serial: u64,
        /// All below have arrived.
        cumulative: u64,
    },
    /// The connection is not known here.
    Rst,
}

/// A part of a message.
#[derive(Debug)]
pub struct Segment {
    message: Rc<Message>,
    range: Range<usize>,
}

/// What one call of the session handed over, or a mark of the tunnel itself.
#[derive(Debug)]
pub struct Message {
    number: u64,
    /// Control and greetings: not handed over before this one was.
    after: u64,
    /// Greetings sent before.
    epoch: u64,
    content: Content,
}

/// What a message holds.
#[derive(Debug)]
pub enum Content {
    /// The tunnel's own handshake.
    Hello,
    /// Its end: what came before was early.
    Finished,
    /// Frames of the session.
    Frames(Unit, Vec<u8>),
    /// In place of data that was withdrawn.
    Withdrawn,
    /// An orderly end.
    Close,
}

/// What the transport hands over.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// The peer's handshake.
    Hello,
    /// Its end.
    Finished,
    /// Bytes of frames.
    Frames(Rc<Segment>),
    /// The peer has closed.
    Close,
}

impl Packet {
    /// What it takes on the link, in bytes.
    pub fn size(&self) -> usize {
        match &self.kind {
            PacketKind::Data { segment, .. } => segment.range.len() + HEADER,
            PacketKind::Ack { .. } | PacketKind::Rst => HEADER,
        }
    }
}

impl Segment {
    /// The bytes of frames in it.
    pub fn bytes(&self) -> &[u8] {
        match &self.message.content {
            Content::Frames(_, bytes) => &bytes[self.range.clone()],
            _ => &[],
        }
    }

    /// It is all of its message.
    pub fn is_whole(&self) -> bool {
        self.range.len() == self.message.length()
    }

    /// Greets or answers a greeting.
    pub fn is_greeting(&self) -> bool {
        self.message.is_barrier()
    }
}

impl Message {
    /// Keeps its place among its like: all but data.
    fn is_control(&self) -> bool {
        !matches!(&self.content, Content::Frames(Unit::Data { .. }, _) | Content::Withdrawn)
    }

    fn is_barrier(&self) -> bool {
        matches!(&self.content, Content::Frames(Unit::Greeting, _))
    }

    fn length(&self) -> usize {
        match &self.content {
            Content::Hello => HELLO_BYTES,
            Content::Finished => FINISHED_BYTES,
            Content::Frames(_, bytes) => bytes.len(),
            Content::Withdrawn => 0,
            Content::Close => 1,
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Transport {
    pub(super) sender: Sender,
    pub(super) receiver: Receiver,
}

/// The sending half.
#[derive(Debug)]
pub struct Sender {
    connection: usize,
    stream: bool,
    room_bound: usize,
    /// What early data may still take, until the handshake is over.
    early_room: Option<usize>,
    next_message: u64,
    epoch: u64,
    control: u64,
    /// Units of data that are not over, by tag.
    tags: BTreeMap<u64, u64>,
    /// How many were withdrawn.
    pub(super) withdrawn: u64,
    unsent: VecDeque<Rc<Segment>>,
    unsent_bytes: usize,
    out: BTreeMap<u64, Out>,
    /// Serials of what goes again.
    lost: BTreeSet<u64>,
    next_serial: u64,
    next_order: u64,
    highest_order: u64,
    window: f64,
    threshold: f64,
    in_flight: usize,
    recovery: u64,
    srtt: Option<Duration>,
    rtt_var: Duration,
    rtt_min: Duration,
    timeouts: u32,
    timeout_at: Option<Instant>,
    progress_at: Instant,
    acked: u64,
    rate: Option<Bitrate>,
    application_limited: bool,
    sent_packets: u64,
    lost_packets: u64,
}

#[derive(Debug)]
struct Out {
    segment: Rc<Segment>,
    /// What it takes of the window.
    length: usize,
    sent_at: Instant,
    order: u64,
    /// What was acknowledged in all when it left, and whether it went once only.
    acked: u64,
    once: bool,
    starved: bool,
}

/// The receiving half.
#[derive(Debug)]
pub struct Receiver {
    stream: bool,
    cumulative: u64,
    ahead: BTreeMap<u64, Rc<Segment>>,
    parts: BTreeMap<u64, Vec<Rc<Segment>>>,
    /// Messages that were handed over or dropped: all below, and these.
    below: u64,
    handed: BTreeSet<u64>,
    /// Greetings handed over.
    epoch: u64,
}

impl Transport {
    /// An end that keeps at most about `room_bound` bytes unsent.
    pub fn new(now: Instant, connection: usize, stream: bool, room_bound: usize) -> Self {
        Self {
            sender: Sender::new(now, connection, stream, room_bound),
            receiver: Receiver {
                stream,
                cumulative: 0,
                ahead: BTreeMap::new(),
                parts: BTreeMap::new(),
                below: 0,
                handed: BTreeSet::new(),
                epoch: 0,
            },
        }
    }
}

impl Sender {
    fn new(now: Instant, connection: usize, stream: bool, room_bound: usize) -> Self {
        Self {
            connection,
            stream,
            room_bound,
            early_room: None,
            next_message: 0,
            epoch: 0,
            control: 0,
            tags: BTreeMap::new(),
            withdrawn: 0,
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            out: BTreeMap::new(),
            lost: BTreeSet::new(),
            next_serial: 0,
            next_order: 1,
            highest_order: 0,
            window: 10.0 * SEGMENT as f64,
            threshold: f64::MAX,
            in_flight: 0,
            recovery: 0,
            srtt: None,
            rtt_var: Duration::ZERO,
            rtt_min: Duration::MAX,
            timeouts: 0,
            timeout_at: None,
            progress_at: now,
            acked: 0,
            rate: None,
            application_limited: true,
            sent_packets: 0,
            lost_packets: 0,
        }
    }

    /// Takes a message, whatever the room.
    pub fn push(&mut self, content: Content) {
        let number = self.next_message;
        let message = Message { number, after: self.control, epoch: self.epoch, content };
        if message.is_control() {
            self.control = number;
        }
        if let Content::Frames(Unit::Data { tag }, _) = message.content {
            assert!(self.tags.insert(tag, number).is_none(), "tag {tag} was used before");
        }
        let message = Rc::new(message);
        self.next_message += 1;
        self.epoch += u64::from(message.is_barrier());
        let length = message.length();
        if let Some(room) = &mut self.early_room {
            *room = room.saturating_sub(length);
        }
        for start in (0..length).step_by(SEGMENT) {
            let range = start..(start + SEGMENT).min(length);
            self.unsent_bytes += range.len();
            self.unsent.push_back(Rc::new(Segment { message: Rc::clone(&message), range }));
        }
    }

    /// What it takes now.
    pub fn room(&self) -> usize {
        let room = self.room_bound.saturating_sub(self.unsent_bytes);
        self.early_room.map_or(room, |early| early.min(room))
    }

    /// Only so much may go until the handshake is over; `None` when it is.
    pub fn limit_early(&mut self, room: Option<usize>) {
        self.early_room = room;
    }

    /// The unit of data with this tag need not arrive any more.
    pub fn withdraw(&mut self, tag: u64) {
        let Some(number) = self.tags.remove(&tag).filter(|_| !self.stream) else { return };
        self.withdrawn += 1;
        let (after, epoch) = (0, 0);
        let message = Rc::new(Message { number, after, epoch, content: Content::Withdrawn });
        let mark = Rc::new(Segment { message, range: 0..0 });
        let (mut first, mut dropped) = (true, 0);
        self.unsent.retain_mut(|segment| {
            if segment.message.number != number {
                return true;
            }
            dropped += segment.range.len();
            *segment = Rc::clone(&mark);
            std::mem::replace(&mut first, false)
        });
        self.unsent_bytes -= dropped;
        for out in self.out.values_mut().filter(|out| out.segment.message.number == number) {
            out.segment = Rc::clone(&mark);
        }
    }

    /// Nothing waits and nothing is out.
    pub fn is_idle(&self) -> bool {
        self.unsent.is_empty() && self.out.is_empty()
    }

    /// Hands over what the window lets go.
    pub fn pump(&mut self, now: Instant, mut emit: impl FnMut(Packet)) {
        while (self.in_flight as f64) < self.window {
            let serial = match self.lost.pop_first() {
                Some(serial) => serial,
                None => {
                    let Some(segment) = self.unsent.pop_front() else {
                        self.application_limited = true;
                        break;
                    };
                    self.unsent_bytes -= segment.range.len();
                    let serial = self.next_serial;
                    self.next_serial += 1;
                    let starved = self.application_limited && self.out.is_empty();
                    self.application_limited = false;
                    let (order, acked) = (0, self.acked);
                    let length = segment.range.len();
                    let once = true;
                    let out = Out { segment, length, sent_at: now, order, acked, once, starved };
                    self.out.insert(serial, out);
                    serial
                }
            };
            let Some(out) = self.out.get_mut(&serial) else { continue };
            out.once &= out.order == 0;
            out.order = self.next_order;
            out.sent_at = now;
            out.acked = self.acked;
            self.next_order += 1;
            out.length = out.segment.range.len();
            self.in_flight += out.length;
            self.sent_packets += 1;
            let kind = PacketKind::Data { serial, segment: Rc::clone(&out.segment) };
            emit(Packet { connection: self.connection, kind });
        }
        if self.out.is_empty() {
            self.progress_at = now;
        } else if self.timeout_at.is_none() {
            self.timeout_at = Some(now + self.timeout());
        }
    }

    fn timeout(&self) -> Duration {
        let base = self.srtt.map_or(TIMEOUT_FIRST, |srtt| srtt + self.rtt_var * 4);
        (base.max(TIMEOUT_MIN) * (1 << self.timeouts.min(8))).min(TIMEOUT_MAX)
    }

    /// An acknowledgement. Returns whether anything was new.
    pub fn on_ack(&mut self, now: Instant, serial: u64, cumulative: u64) -> bool {
        let below: Vec<u64> = self.out.range(..cumulative).map(|(&serial, _)| serial).collect();
        let mut progressed = self.settle(now, serial);
        for old in below {
            progressed |= self.settle(now, old);
        }
        if progressed {
            self.timeouts = 0;
            self.progress_at = now;
            self.timeout_at = None;
            self.find_lost();
        }
        progressed
    }

    fn settle(&mut self, now: Instant, serial: u64) -> bool {
        let Some(out) = self.out.remove(&serial) else { return false };
        let length = out.length;
        if !self.lost.remove(&serial) {
            self.in_flight = self.in_flight.saturating_sub(length);
        }
        self.acked += length as u64;
        self.highest_order = self.highest_order.max(out.order);
        if out.once {
            let rtt = now.saturating_duration_since(out.sent_at);
            self.measure(rtt, self.acked - out.acked, out.starved);
        }
        if self.window < self.threshold {
            self.window += length as f64;
        } else {
            self.window += SEGMENT as f64 * length as f64 / self.window;
        }
        true
    }

    fn measure(&mut self, rtt: Duration, acked: u64, starved: bool) {
        self.rtt_min = self.rtt_min.min(rtt);
        let Some(srtt) = self.srtt else {
            (self.srtt, self.rtt_var) = (Some(rtt), rtt / 2);
            return;
        };
        self.rtt_var = (self.rtt_var * 3 + srtt.abs_diff(rtt)) / 4;
        self.srtt = Some((srtt * 7 + rtt) / 8);
        let micros = u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX).max(1);
        let rate = acked.saturating_mul(8_000_000) / micros;
        let known = self.rate.map_or(0, Bitrate::as_bps);
        if !starved || rate > known {
            self.rate =
                Some(Bitrate::from_bps(if rate > known { rate } else { (known * 7 + rate) / 8 }));
        }
    }

    /// What three later ones have overtaken is lost; the window halves once a round trip.
    fn find_lost(&mut self) {
        let edge = self.highest_order.saturating_sub(3);
        let lost = self.out.iter().filter(|(serial, out)| {
            out.order < edge && out.order > 0 && !self.lost.contains(serial)
        });
        let lost: Vec<(u64, u64, usize)> =
            lost.map(|(&serial, out)| (serial, out.order, out.length)).collect();
        for (serial, order, length) in lost {
            self.lost.insert(serial);
            self.lost_packets += 1;
            self.in_flight = self.in_flight.saturating_sub(length);
            if order > self.recovery {
                self.recovery = self.next_order;
                self.threshold = (self.window / 2.0).max(2.0 * SEGMENT as f64);
                self.window = self.threshold;
            }
        }
    }

    /// When to call [`Sender::on_timeout`].
    pub fn next_timeout(&self) -> Option<Instant> {
        self.timeout_at
    }

    /// Nothing was acknowledged for a timeout: all that is out goes again, slowly. Returns false
    /// when the connection is given up.
    pub fn on_timeout(&mut self, now: Instant, patience: Duration) -> bool {
        self.timeout_at = None;
        if now.saturating_duration_since(self.progress_at) >= patience {
            return false;
        }
        self.timeouts += 1;
        self.lost_packets += self.out.len() as u64;
        self.lost.extend(self.out.keys().copied());
        self.in_flight = 0;
        self.recovery = self.next_order;
        self.threshold = (self.window / 2.0).max(2.0 * SEGMENT as f64);
        self.window = 2.0 * SEGMENT as f64;
        true
    }

    /// What a tunnel reports.
    pub fn sample(&self, now: Instant) -> LinkSample {
        LinkSample {
            at: now,
            srtt: self.srtt.unwrap_or(TIMEOUT_FIRST),
            rtt_min: self.rtt_min.min(TIMEOUT_MAX),
            rtt_var: self.rtt_var,
            window: Bytes(self.window as u64),
            in_flight: Bytes(self.in_flight as u64),
            unsent: Bytes(self.unsent_bytes as u64),
            delivery_rate: self.rate,
            application_limited: self.application_limited,
            sent_packets: self.sent_packets,
            lost_packets: self.lost_packets,
            timeouts: self.timeouts,
            acked: Bytes(self.acked),
        }
    }
}

impl Receiver {
    /// Takes a segment in; returns the acknowledgement to send, and hands over what is complete.
    pub fn accept(
        &mut self,
        serial: u64,
        segment: Rc<Segment>,
        deliveries: &mut Vec<Delivery>,
    ) -> PacketKind {
        if serial >= self.cumulative && !self.ahead.contains_key(&serial) {
            self.ahead.insert(serial, Rc::clone(&segment));
            if !self.stream {
                self.collect(segment, deliveries);
            }
            while let Some(segment) = self.ahead.remove(&self.cumulative) {
                self.cumulative += 1;
                if self.stream {
                    hand_over(&segment, deliveries);
                }
            }
        }
        PacketKind::Ack { serial, cumulative: self.cumulative }
    }

    fn collect(&mut self, segment: Rc<Segment>, deliveries: &mut Vec<Delivery>) {
        let number = segment.message.number;
        if self.was_handed(number) {
            return;
        }
        if matches!(segment.message.content, Content::Withdrawn) {
            self.parts.remove(&number);
            self.over(number);
        } else {
            self.parts.entry(number).or_default().push(segment);
        }
        // Messages that wait for another one follow it at once.
        while let Some(number) = self.ready() {
            let Some(mut parts) = self.parts.remove(&number) else { return };
            self.over(number);
            let message = Rc::clone(&parts[0].message);
            if message.is_control() || message.epoch == self.epoch {
                parts.sort_by_key(|part| part.range.start);
                parts.iter().for_each(|part| hand_over(part, deliveries));
            }
            self.epoch += u64::from(message.is_barrier());
        }
    }

    fn over(&mut self, number: u64) {
        self.handed.insert(number);
        while self.handed.remove(&self.below) {
            self.below += 1;
        }
    }

    fn ready(&self) -> Option<u64> {
        let whole = |parts: &Vec<Rc<Segment>>| {
            let message = &parts[0].message;
            let held: usize = parts.iter().map(|part| part.range.len()).sum();
            let turn = match &message.content {
                Content::Close => self.below == message.number,
                _ if message.number == 0 => true,
                _ if message.is_control() => self.was_handed(message.after),
                // Data needs the tunnel, too, which the first message makes.
                _ => message.epoch <= self.epoch && self.was_handed(0),
            };
            held == message.length() && turn
        };
        self.parts.iter().find(|(_, parts)| whole(parts)).map(|(&number, _)| number)
    }

    fn was_handed(&self, message: u64) -> bool {
        message < self.below || self.handed.contains(&message)
    }
}

fn hand_over(segment: &Rc<Segment>, deliveries: &mut Vec<Delivery>) {
    let last = segment.range.end == segment.message.length();
    match &segment.message.content {
        Content::Frames(..) => deliveries.push(Delivery::Frames(Rc::clone(segment))),
        Content::Hello if last => deliveries.push(Delivery::Hello),
        Content::Finished => deliveries.push(Delivery::Finished),
        Content::Close => deliveries.push(Delivery::Close),
        Content::Hello | Content::Withdrawn => {}
    }
}

/// The most data in one packet, in bytes.
pub const SEGMENT: usize = 1_400;
/// What headers add, in bytes.
pub const HEADER: usize = 40;
const HELLO_BYTES: usize = 700;
const FINISHED_BYTES: usize = 60;
const TIMEOUT_FIRST: Duration = Duration::from_secs(1);
const TIMEOUT_MIN: Duration = Duration::from_millis(200);
const TIMEOUT_MAX: Duration = Duration::from_secs(8);
