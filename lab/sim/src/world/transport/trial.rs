//! One flow over two links in virtual time, without a session: a trial, as `polyrail-lab trials`
//! plays it with the kernel's TCP, or an endless download.
//!
//! The flow never gives up: after a blackout it continues at its next timeout.

use std::time::{Duration, Instant};

use polyrail_emulator::link::{LinkModel, LinkSpec};
use polyrail_emulator::trials::{FLOW_BEGINS, SAMPLE_EVERY, Sample, Trial};
use polyrail_model::Unit;

use super::{Content, Delivery, Packet, PacketKind, Transport};
use crate::congestion::{Algorithm, Estimate};

/// Plays a trial; the samples begin with the flow.
pub fn play(trial: &Trial, algorithm: Algorithm, seed: u64) -> Vec<Sample> {
    let mut course = Course::new(trial, algorithm, seed);
    // The kernel's flow has its handshake before it begins.
    course.push(Content::Hello);
    course.run(FLOW_BEGINS);
    course.flowing = true;
    let mut samples = Vec::new();
    let mut at = FLOW_BEGINS;
    while at < trial.length {
        course.run(at);
        course.fill();
        samples.push(course.sample(at));
        at += SAMPLE_EVERY;
    }
    samples
}

/// The figures of an endless flow.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Endless {
    /// The times of new data, each with its bytes.
    pub arrivals: Vec<(Duration, usize)>,
    /// The times at which packets sent only once were acknowledged, with their round-trip times.
    pub rtts: Vec<(Duration, Duration)>,
    /// The sender every [`SAMPLE_EVERY`].
    pub states: Vec<State>,
}

/// A sender at one instant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    /// Bytes in flight.
    pub in_flight: u64,
    /// The window in bytes.
    pub window: u64,
    /// The control's model of the path.
    pub estimate: Option<Estimate>,
}

/// A download of endless data over these links (up, down).
pub fn endless(
    links: &[LinkSpec; 2],
    seed: u64,
    algorithm: Algorithm,
    length: Duration,
) -> Endless {
    let seeds = [seed, seed ^ 0x9e37_79b9_7f4a_7c15];
    let mut course = Course::over(links, seeds, Duration::ZERO, algorithm, UNSENT_ENDLESS);
    course.seen = Some(Endless::default());
    course.flowing = true;
    course.fill();
    let mut states = Vec::new();
    for number in 1..=(length.as_nanos() / SAMPLE_EVERY.as_nanos()) as u32 {
        course.run(SAMPLE_EVERY * number);
        states.push(course.server.sender.state());
    }
    course.run(length);
    Endless { states, ..course.seen.unwrap_or_default() }
}

/// A running flow.
pub(super) struct Course {
    start: Instant,
    now: Instant,
    /// Up, then down.
    links: [LinkModel<Packet>; 2],
    client: Transport,
    server: Transport,
    /// The program has endless data.
    pub(super) flowing: bool,
    delivered: u64,
    tag: u64,
    /// What an endless flow records.
    seen: Option<Endless>,
}

impl Course {
    /// A trial at the link's epoch, with nothing sent.
    pub(super) fn new(trial: &Trial, algorithm: Algorithm, seed: u64) -> Self {
        // The phase of the clocks' ticks is chance.
        let age = Duration::from_millis(seed.wrapping_mul(397) % 2_048);
        let seeds = [seed.wrapping_mul(2), seed.wrapping_mul(2) + 1];
        Self::over(&trial.links, seeds, age, algorithm, UNSENT)
    }

    /// A flow over these links, whose ends have existed for `age` and keep `unsent` bytes.
    fn over(
        links: &[LinkSpec; 2],
        seeds: [u64; 2],
        age: Duration,
        algorithm: Algorithm,
        unsent: usize,
    ) -> Self {
        // The base of virtual time: only differences from it matter.
        let start = Instant::now();
        let [up, down] = links.clone();
        let born = start - age;
        let end = || Transport::new(born, 0, true, unsent, algorithm.begin());
        Self {
            start,
            now: start,
            links: [LinkModel::new(up, start, seeds[0]), LinkModel::new(down, start, seeds[1])],
            client: end(),
            server: end(),
            flowing: false,
            delivered: 0,
            tag: 0,
            seen: None,
        }
    }

    /// Runs until this time after the epoch.
    pub(super) fn run(&mut self, until: Duration) {
        let until = self.start + until;
        while let Some(next) = self.next().filter(|next| *next <= until) {
            self.now = self.now.max(next);
            self.step();
        }
        self.now = until;
    }

    fn next(&self) -> Option<Instant> {
        let links = self.links.iter().filter_map(LinkModel::next_departure);
        let ends = [self.server.sender.next_timeout(), self.client.receiver.next_timeout()];
        links.chain(ends.into_iter().flatten()).min()
    }

    fn step(&mut self) {
        while let Some(packet) = self.links[1].poll(self.now) {
            self.at_client(packet);
        }
        if let Some(kind) = self.client.receiver.on_timeout(self.now) {
            self.acknowledge(kind);
        }
        while let Some(packet) = self.links[0].poll(self.now) {
            self.measure(&packet);
            if self.server.sender.on_ack(self.now, &packet.kind) {
                self.fill();
            }
        }
        if self.server.sender.next_timeout().is_some_and(|at| at <= self.now) {
            self.server.sender.on_timeout(self.now, Duration::MAX);
            // The program of a trial writes when an acknowledgement frees memory, as with TCP.
            if self.seen.is_some() {
                self.fill();
            }
        }
        self.pump();
    }

    /// Records the round-trip time that an acknowledgement shows.
    fn measure(&mut self, packet: &Packet) {
        let PacketKind::Ack { serial, .. } = packet.kind else { return };
        if let (Some(seen), Some(sent_at)) = (&mut self.seen, self.server.sender.sent_once(serial))
        {
            seen.rtts.push((self.now - self.start, self.now - sent_at));
        }
    }

    fn at_client(&mut self, packet: Packet) {
        let PacketKind::Data { serial, order, segment } = packet.kind else { return };
        if let Some(seen) = &mut self.seen
            && self.client.receiver.is_new(serial)
        {
            seen.arrivals.push((self.now - self.start, segment.range.len()));
        }
        let mut deliveries = Vec::new();
        let kind = self.client.receiver.accept(self.now, serial, order, segment, &mut deliveries);
        for delivery in deliveries {
            if let Delivery::Frames(segment) = delivery {
                self.delivered += segment.bytes().len() as u64;
            }
        }
        if let Some(kind) = kind {
            self.acknowledge(kind);
        }
    }

    fn acknowledge(&mut self, kind: PacketKind) {
        let packet = Packet { connection: 0, kind };
        let size = packet.size();
        let _lost_or_not = self.links[0].enqueue(self.now, packet, size);
    }

    /// Keeps data queued, and sends.
    pub(super) fn fill(&mut self) {
        while self.flowing && self.server.sender.room() >= CHUNK {
            self.write(CHUNK);
        }
        self.pump();
    }

    /// The program writes more bytes.
    pub(super) fn write(&mut self, bytes: usize) {
        self.tag += 1;
        self.push(Content::Frames(Unit::Data { tag: self.tag }, vec![0; bytes]));
    }

    pub(super) fn push(&mut self, content: Content) {
        self.server.sender.push(content);
        self.pump();
    }

    fn pump(&mut self) {
        let (now, down) = (self.now, &mut self.links[1]);
        self.server.sender.pump(now, |packet| {
            let size = packet.size();
            let _lost_or_not = down.enqueue(now, packet, size);
        });
    }

    /// A sample of sender and receiver.
    pub(super) fn sample(&self, at: Duration) -> Sample {
        Sample {
            at_s: at.as_secs_f64(),
            delivered: self.delivered,
            queue: self.links[1].queued().bytes,
            ..self.server.sender.account()
        }
    }
}

/// The bytes that the program keeps in the socket: more than any window here.
const UNSENT: usize = 512 * 1_024;
/// The same for an endless flow, also over the fastest link of a trip.
const UNSENT_ENDLESS: usize = 1 << 20;
/// Bytes of one write: whole segments.
const CHUNK: usize = 40 * super::SEGMENT;
