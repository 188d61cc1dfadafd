//! The receiving half: acknowledges, and delivers complete units.
//!
//! A stream acknowledges like the kernel: at first each segment at once, later every second one, or
//! a single one after a delay; always at once while a segment is missing. QUIC acknowledges each
//! segment at once.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::{Content, DATAGRAM_OF_ACK, Delivery, HEADER, PacketKind, Segment};

/// The receiving half.
#[derive(Debug, Default)]
pub struct Receiver {
    stream: bool,
    cumulative: u64,
    ahead: BTreeMap<u64, Rc<Segment>>,
    parts: BTreeMap<u64, Vec<Rc<Segment>>>,
    /// Delivered or dropped messages: all below, and these.
    below: u64,
    handed: BTreeSet<u64>,
    /// The number of delivered greetings.
    epoch: u64,
    /// The number of segments that are still acknowledged at once.
    quick: u32,
    /// The order of the newest new segment, as TCP's timestamps echo it. A duplicate does not
    /// change it, so that its acknowledgement looks like that of the first copy.
    echo: u64,
    /// A segment whose acknowledgement is delayed, and its deadline.
    waiting: Option<(u64, u64, Instant)>,
}

impl Receiver {
    pub(super) fn new(stream: bool) -> Self {
        Self { stream, quick: QUICK, ..Self::default() }
    }

    /// Receives a segment; returns the acknowledgement to send, and delivers complete units.
    pub fn accept(
        &mut self,
        now: Instant,
        serial: u64,
        order: u64,
        segment: Rc<Segment>,
        deliveries: &mut Vec<Delivery>,
    ) -> Option<PacketKind> {
        let in_order = serial == self.cumulative && self.ahead.is_empty();
        let order = if serial < self.cumulative { self.echo } else { order };
        self.echo = self.echo.max(order);
        if in_order {
            self.cumulative += 1;
            match self.stream {
                true => hand_over(&segment, deliveries),
                false => self.collect(segment, deliveries),
            }
        } else if self.is_new(serial) {
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
        // quiche answers each datagram that it receives, and radio links deliver them singly.
        if self.stream && in_order && self.quick == 0 && self.waiting.is_none() {
            self.waiting = Some((serial, order, now + DELAY));
            return None;
        }
        self.quick = self.quick.saturating_sub(1);
        self.waiting = None;
        Some(self.acknowledgement(serial, order))
    }

    /// A segment that has not arrived yet.
    pub(super) fn is_new(&self, serial: u64) -> bool {
        serial >= self.cumulative && !self.ahead.contains_key(&serial)
    }

    fn acknowledgement(&self, serial: u64, order: u64) -> PacketKind {
        let from = if self.ahead.is_empty() { serial } else { self.from(serial) };
        let size = if self.stream { HEADER } else { DATAGRAM_OF_ACK };
        PacketKind::Ack { serial, from, order, cumulative: self.cumulative, size }
    }

    /// The beginning of the run that ends with this segment.
    fn from(&self, serial: u64) -> u64 {
        let before = self.ahead.range(..serial).rev().zip(1..=RUN_MAX);
        let run = before.take_while(|((at, _), back)| **at + back == serial).count();
        serial - run as u64
    }

    /// When to call [`Receiver::on_timeout`].
    pub fn next_timeout(&self) -> Option<Instant> {
        self.waiting.map(|(.., until)| until)
    }

    /// The delayed acknowledgement that is due.
    pub fn on_timeout(&mut self, now: Instant) -> Option<PacketKind> {
        let (serial, order, _) = self.waiting.take_if(|(.., until)| *until <= now)?;
        Some(self.acknowledgement(serial, order))
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
        // Messages that waited for this one follow at once.
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
                // Data also needs the tunnel, which the first message opens.
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

/// The kernel's first quick acknowledgements (`TCP_MAX_QUICKACKS`), and its least delay
/// (`TCP_DELACK_MIN`).
const QUICK: u32 = 16;
const DELAY: Duration = Duration::from_millis(40);
/// How many earlier segments an acknowledgement repeats, in case theirs were lost.
const RUN_MAX: u64 = 32;
