//! One end of a simulated reliable transport: what TCP under TLS, or QUIC, does for a tunnel.
//!
//! Messages are cut into segments, lost segments go again (three later ones acknowledged, or a
//! timeout with exponential backoff), a window grows by slow start and halves on loss. It knows no
//! link: it takes and makes [`Packet`]s.
//!
//! Two flavours: a stream hands over segments in order, cut anywhere; the other one hands over
//! whole messages as they become complete, but greetings keep their place, and control frames their
//! order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Bytes, LinkSample};

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
    /// Not handed over before this one was.
    after: u64,
    content: Content,
}

/// What a message holds.
#[derive(Debug)]
pub enum Content {
    /// The tunnel's own handshake.
    Hello,
    /// Frames of the session.
    Frames(Vec<u8>),
    /// An orderly end.
    Close,
}

/// What the transport hands over.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// The peer's handshake.
    Hello,
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
            Content::Frames(bytes) => &bytes[self.range.clone()],
            Content::Hello | Content::Close => &[],
        }
    }

    /// It is all of its message.
    pub fn is_whole(&self) -> bool {
        self.range.len() == self.message.length()
    }

    /// Greets or answers a greeting: its order against all that follows is kept.
    pub fn is_greeting(&self) -> bool {
        self.message.is_barrier()
    }
}

impl Message {
    /// Keeps its place among its like: all but data.
    fn is_control(&self) -> bool {
        match &self.content {
            Content::Hello | Content::Close => true,
            Content::Frames(bytes) => !matches!(bytes.get(1), Some(5 | 6)),
        }
    }

    fn is_barrier(&self) -> bool {
        match &self.content {
            Content::Hello => true,
            Content::Frames(bytes) => self.number == 1 || matches!(bytes.get(1), Some(1..=4)),
            Content::Close => false,
        }
    }

    fn length(&self) -> usize {
        match &self.content {
            Content::Hello => HELLO_BYTES,
            Content::Frames(bytes) => bytes.len(),
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
    room_bound: usize,
    next_message: u64,
    barrier: u64,
    control: u64,
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
    /// Messages that were handed over: all below, and these.
    below: u64,
    handed: BTreeSet<u64>,
}

impl Transport {
    /// An end that keeps at most about `room_bound` bytes unsent.
    pub fn new(now: Instant, connection: usize, stream: bool, room_bound: usize) -> Self {
        Self {
            sender: Sender::new(now, connection, room_bound),
            receiver: Receiver {
                stream,
                cumulative: 0,
                ahead: BTreeMap::new(),
                parts: BTreeMap::new(),
                below: 0,
                handed: BTreeSet::new(),
            },
        }
    }
}

impl Sender {
    fn new(now: Instant, connection: usize, room_bound: usize) -> Self {
        Self {
            connection,
            room_bound,
            next_message: 0,
            barrier: 0,
            control: 0,
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
        let mut message = Message { number, after: self.barrier, content };
        if message.is_control() {
            message.after = self.control.max(self.barrier);
            self.control = number;
        }
        let message = Rc::new(message);
        self.next_message += 1;
        if message.is_barrier() {
            self.barrier = message.number;
        }
        let length = message.length();
        for start in (0..length).step_by(SEGMENT) {
            let range = start..(start + SEGMENT).min(length);
            self.unsent_bytes += range.len();
            self.unsent.push_back(Rc::new(Segment { message: Rc::clone(&message), range }));
        }
    }

    /// What it takes now.
    pub fn room(&self) -> usize {
        self.room_bound.saturating_sub(self.unsent_bytes)
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
                    let out = Out { segment, sent_at: now, order, acked, once: true, starved };
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
            self.in_flight += out.segment.range.len();
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
        let length = out.segment.range.len();
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
            lost.map(|(&serial, out)| (serial, out.order, out.segment.range.len())).collect();
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
        self.parts.entry(segment.message.number).or_default().push(segment);
        // Messages that wait for a greeting follow it at once.
        while let Some(number) = self.ready() {
            let Some(mut parts) = self.parts.remove(&number) else { return };
            parts.sort_by_key(|part| part.range.start);
            parts.iter().for_each(|part| hand_over(part, deliveries));
            self.handed.insert(number);
            while self.handed.remove(&self.below) {
                self.below += 1;
            }
        }
    }

    fn ready(&self) -> Option<u64> {
        let whole = |parts: &Vec<Rc<Segment>>| {
            let message = &parts[0].message;
            let held: usize = parts.iter().map(|part| part.range.len()).sum();
            let last = message.is_barrier() || matches!(message.content, Content::Close);
            let first = message.number == 0 || self.was_handed(message.after);
            held == message.length() && first && (!last || self.below == message.number)
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
        Content::Frames(_) => deliveries.push(Delivery::Frames(Rc::clone(segment))),
        Content::Hello if last => deliveries.push(Delivery::Hello),
        Content::Close => deliveries.push(Delivery::Close),
        Content::Hello => {}
    }
}

/// The most data in one packet, in bytes.
pub const SEGMENT: usize = 1_400;
/// What headers add, in bytes.
pub const HEADER: usize = 40;
const HELLO_BYTES: usize = 700;
const TIMEOUT_FIRST: Duration = Duration::from_secs(1);
const TIMEOUT_MIN: Duration = Duration::from_millis(200);
const TIMEOUT_MAX: Duration = Duration::from_secs(8);
