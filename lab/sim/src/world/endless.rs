//! One long-lived flow over the two links of a carrier, without a session, as in a measurement with
//! a bulk transfer.
//!
//! Both ends are the world's own transport, and the sender has endless data. The flow never gives
//! up: after a blackout it continues at its next timeout.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::{Duration, Instant};

use polyrail_emulator::link::{LinkModel, LinkSpec};
use polyrail_model::Unit;

use super::transport::{Content, HEADER, Packet, PacketKind, SEGMENT, Transport};
use crate::congestion::Algorithm;

/// The figures of an endless flow.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Endless {
    /// The times of new data, each with its bytes.
    pub arrivals: Vec<(Duration, usize)>,
    /// The times at which packets sent only once were acknowledged, with their round-trip times.
    pub rtts: Vec<(Duration, Duration)>,
}

/// A download of endless data over these links (up, down).
pub fn endless(
    links: &[LinkSpec; 2],
    seed: u64,
    algorithm: Algorithm,
    length: Duration,
) -> Endless {
    let mut course = Course::new(links, seed, algorithm);
    let end = course.start + length;
    course.fill();
    while let Some(next) = course.next().filter(|next| *next < end) {
        course.step(next);
    }
    course.seen
}

struct Course {
    start: Instant,
    now: Instant,
    links: [LinkModel<Packet>; 2],
    /// The next departure of each link, cached because computing it is slow.
    departures: [Option<Instant>; 2],
    near: Transport,
    far: Transport,
    /// Packets in flight: when each was sent, unless it was sent more than once.
    sent: BTreeMap<u64, Option<Instant>>,
    /// The receiver has all packets below it, and these.
    cumulative: u64,
    ahead: BTreeSet<u64>,
    seen: Endless,
}

impl Course {
    fn new(links: &[LinkSpec; 2], seed: u64, algorithm: Algorithm) -> Self {
        let start = Instant::now();
        let [up, down] = links.clone();
        let links = [
            LinkModel::new(up, start, seed),
            LinkModel::new(down, start, seed ^ 0x9e37_79b9_7f4a_7c15),
        ];
        Self {
            start,
            now: start,
            links,
            departures: [None; 2],
            near: Transport::new(start, 0, true, ROOM, algorithm),
            far: Transport::new(start, 0, true, ROOM, algorithm),
            sent: BTreeMap::new(),
            cumulative: 0,
            ahead: BTreeSet::new(),
            seen: Endless::default(),
        }
    }

    fn next(&self) -> Option<Instant> {
        let [up, down] = self.departures;
        let ends = [self.near.receiver.next_timeout(), self.far.sender.next_timeout()];
        [up, down].into_iter().chain(ends).flatten().min()
    }

    fn step(&mut self, now: Instant) {
        self.now = now.max(self.now);
        if self.departures[DOWN].is_some_and(|at| at <= self.now) {
            let packet = self.links[DOWN].poll(self.now);
            self.departures[DOWN] = self.links[DOWN].next_departure();
            packet.into_iter().for_each(|packet| self.receive(&packet));
        }
        if self.departures[UP].is_some_and(|at| at <= self.now) {
            let packet = self.links[UP].poll(self.now);
            self.departures[UP] = self.links[UP].next_departure();
            packet.into_iter().for_each(|packet| self.acknowledge(&packet));
        }
        let late = self.near.receiver.on_timeout(self.now);
        self.answer(late);
        if self.far.sender.next_timeout().is_some_and(|at| at <= self.now) {
            self.far.sender.on_timeout(self.now, Duration::MAX);
            self.fill();
        }
    }

    fn receive(&mut self, packet: &Packet) {
        let PacketKind::Data { serial, order, ref segment } = packet.kind else { return };
        if serial >= self.cumulative && self.ahead.insert(serial) {
            let bytes = packet.size() - HEADER;
            self.seen.arrivals.push((self.now - self.start, bytes));
            while self.ahead.remove(&self.cumulative) {
                self.cumulative += 1;
            }
        }
        let (segment, mut deliveries) = (Rc::clone(segment), Vec::new());
        let kind = self.near.receiver.accept(self.now, serial, order, segment, &mut deliveries);
        self.answer(kind);
    }

    fn answer(&mut self, kind: Option<PacketKind>) {
        let Some(kind) = kind else { return };
        let ack = Packet { connection: 0, kind };
        let size = ack.size();
        let _verdict = self.links[UP].enqueue(self.now, ack, size);
        self.departures[UP] = self.links[UP].next_departure();
    }

    fn acknowledge(&mut self, packet: &Packet) {
        let PacketKind::Ack { serial, cumulative, .. } = packet.kind else { return };
        if let Some(Some(left)) = self.sent.remove(&serial) {
            self.seen.rtts.push((self.now - self.start, self.now - left));
        }
        while self.sent.first_key_value().is_some_and(|(first, _)| *first < cumulative) {
            self.sent.pop_first();
        }
        if self.far.sender.on_ack(self.now, &packet.kind) {
            self.fill();
        }
    }

    /// Keeps data queued, and sends.
    fn fill(&mut self) {
        let Self { now, far, links, sent, .. } = self;
        let now = *now;
        while far.sender.room() > SEGMENT {
            far.sender.push(Content::Frames(Unit::Control, vec![0; 8 * SEGMENT]));
        }
        far.sender.pump(now, |packet| {
            if let PacketKind::Data { serial, .. } = packet.kind {
                let again = sent.contains_key(&serial);
                sent.insert(serial, (!again).then_some(now));
            }
            let size = packet.size();
            let _verdict = links[DOWN].enqueue(now, packet, size);
        });
        self.departures[DOWN] = self.links[DOWN].next_departure();
    }
}

const UP: usize = 0;
const DOWN: usize = 1;
/// More than any window, in bytes.
const ROOM: usize = 1 << 20;
