//! The sending half: transmission, pacing and retransmission.
//!
//! Like the kernel's: a segment is lost when three later ones were acknowledged, or at a timeout;
//! each timeout of a series takes twice as long. Two round trips after the last progress a probe is
//! sent, to provoke an acknowledgement (RFC 8985 7, RFC 9002 6.2). An acknowledgement of a segment
//! sent before a timeout shows that the timeout was spurious, and undoes it (RFC 3522).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

use polyrail_emulator::trials::Sample;
use polyrail_model::{Bitrate, Bytes, LinkSample, Unit};

use super::round_trip::{RoundTrip, TIMEOUT_FIRST};
use super::sequence::Sequence;
use super::trial::State;
use super::{Content, Message, Packet, PacketKind, SEGMENT, Segment};
use crate::congestion::{Ack, Control, Flight, Loss, Phase};

/// The sending half.
#[derive(Debug)]
pub struct Sender {
    connection: usize,
    stream: bool,
    room_bound: usize,
    /// The bytes left for early data, until the handshake ends.
    early_room: Option<usize>,
    next_message: u64,
    epoch: u64,
    control: u64,
    /// Unfinished units of data, by tag.
    tags: BTreeMap<u64, u64>,
    /// The number of withdrawn units.
    pub(in crate::world) withdrawn: u64,
    unsent: VecDeque<Rc<Segment>>,
    unsent_bytes: usize,
    out: Sequence<Out>,
    /// Segments in flight and not lost, in the order of transmission.
    flight: Sequence<u64>,
    /// Serials of segments to retransmit.
    lost: BTreeSet<u64>,
    next_serial: u64,
    next_order: u64,
    highest_order: u64,
    congestion: Box<dyn Control>,
    in_flight: usize,
    phase: Phase,
    /// The recovery ends when all below this serial is acknowledged.
    recovery: u64,
    /// Segments below this order were sent before the first timeout of a series.
    timeout_order: u64,
    rtt: RoundTrip,
    timeouts: u32,
    alarm: Option<(Instant, Alarm)>,
    /// The origin of the clock's ticks.
    clock: Instant,
    /// When pacing allows the next segment.
    pace_at: Option<Instant>,
    /// A probe was sent since the last progress.
    probed: bool,
    progress_at: Instant,
    acked: u64,
    acked_at: Instant,
    /// When the newest acknowledged segment was sent.
    first_sent_at: Instant,
    idle_since: Option<Instant>,
    rate: Option<Bitrate>,
    /// Until this is acknowledged, the application limits the rate.
    limited_until: Option<u64>,
    /// The same, as far as it counts for the congestion control.
    told_until: Option<u64>,
    sent: u64,
    /// The same when the newest acknowledged segment was sent.
    first_sent: u64,
    sent_packets: u64,
    lost_packets: u64,
    resent_packets: u64,
}

/// The alarm without acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alarm {
    Probe,
    Timeout,
}

#[derive(Debug)]
struct Out {
    segment: Rc<Segment>,
    /// Its size in the window.
    length: usize,
    order: u64,
    /// It was sent more than once.
    again: bool,
    left: Departure,
}

/// The state of the sender when a segment was sent.
#[derive(Clone, Copy, Debug)]
struct Departure {
    sent_at: Instant,
    /// Total bytes acknowledged, the time of that, and the time of their transmission.
    acked: u64,
    acked_at: Instant,
    first_sent_at: Instant,
    limited: bool,
    /// Bytes in flight and sent in total, with it; and those sent when the newest acknowledged one
    /// was.
    in_flight: u64,
    sent: u64,
    first_sent: u64,
}

/// The segments settled by an acknowledgement.
#[derive(Debug, Default)]
struct Settled {
    bytes: u64,
    /// The newest, and the oldest.
    newest: Option<Newest>,
    oldest: Option<Newest>,
    /// Least and longest round-trip time.
    rtt: Option<(Duration, Duration)>,
}

#[derive(Clone, Copy, Debug)]
struct Newest {
    order: u64,
    /// The copy sent then is the one that arrived.
    timed: bool,
    left: Departure,
}

impl Sender {
    pub(super) fn new(
        now: Instant,
        connection: usize,
        stream: bool,
        room_bound: usize,
        control: Box<dyn Control>,
    ) -> Self {
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
            out: Sequence::default(),
            flight: Sequence::default(),
            lost: BTreeSet::new(),
            next_serial: 0,
            next_order: 1,
            highest_order: 0,
            congestion: control,
            in_flight: 0,
            phase: Phase::Open,
            recovery: 0,
            timeout_order: 0,
            rtt: RoundTrip::default(),
            timeouts: 0,
            alarm: None,
            clock: now,
            pace_at: None,
            probed: false,
            progress_at: now,
            acked: 0,
            acked_at: now,
            first_sent_at: now,
            idle_since: Some(now),
            rate: None,
            limited_until: Some(0),
            told_until: Some(0),
            sent: 0,
            first_sent: 0,
            sent_packets: 0,
            lost_packets: 0,
            resent_packets: 0,
        }
    }

    /// Queues a message, whatever the room.
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
        // Like `tcp_rate_check_app_limited`: less than a full segment waits.
        let open = (self.in_flight as u64) < self.congestion.window();
        if open && self.unsent_bytes < SEGMENT && self.lost.is_empty() {
            self.on_limited();
        }
    }

    /// The application, not the path, limits the rate of the bytes in flight.
    fn on_limited(&mut self) {
        self.limited_until = Some(self.acked + self.in_flight as u64);
        if self.congestion.on_limited(self.in_flight as u64) {
            self.told_until = self.limited_until;
        }
    }

    /// The bytes it accepts now.
    pub fn room(&self) -> usize {
        let room = self.room_bound.saturating_sub(self.unsent_bytes);
        self.early_room.map_or(room, |early| early.min(room))
    }

    /// When an unacknowledged segment was sent, if only once.
    pub(super) fn sent_once(&self, serial: u64) -> Option<Instant> {
        self.out.get(serial).filter(|out| !out.again).map(|out| out.left.sent_at)
    }

    /// Nothing is in flight and nothing waits.
    pub fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.unsent_bytes == 0
    }

    /// Limits early data until the handshake ends; `None`: it has ended.
    pub fn limit_early(&mut self, room: Option<usize>) {
        self.early_room = room;
    }

    /// Withdraws the unit of data with this tag.
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
        // Segments are numbered in the order of their messages.
        let behind = self.out.values_mut().skip_while(|out| out.segment.message.number < number);
        behind
            .take_while(|out| out.segment.message.number == number)
            .for_each(|out| out.segment = Rc::clone(&mark));
    }

    /// Sends what window and pacing allow.
    pub fn pump(&mut self, now: Instant, mut emit: impl FnMut(Packet)) {
        if self.alarm.is_some_and(|(at, what)| what == Alarm::Probe && at <= now) {
            self.probe(now, &mut emit);
        }
        while (self.in_flight as u64) < self.congestion.window() {
            if self.pace_at.is_some_and(|at| at > now) {
                break;
            }
            let serial = match self.lost.pop_first() {
                Some(serial) => serial,
                None => match self.next_new(now) {
                    Some(serial) => serial,
                    None => {
                        self.on_limited();
                        break;
                    }
                },
            };
            self.send(now, serial, &mut emit);
        }
        if self.out.is_empty() {
            self.progress_at = now;
            self.alarm = None;
            self.idle_since.get_or_insert(now);
        } else if self.alarm.is_none() {
            self.alarm = Some(self.next_alarm(now));
        }
    }

    /// `tcp_schedule_loss_probe`, else the timeout.
    fn next_alarm(&self, now: Instant) -> (Instant, Alarm) {
        match self.rtt.smoothed() {
            Some(srtt) if !self.probed && self.timeouts == 0 && self.phase == Phase::Open => {
                let lone = self.out.len() == 1;
                let margin = if lone { PROBE_MARGIN_LONE } else { PROBE_MARGIN };
                (self.rounded(now, (srtt * 2 + margin).min(self.timeout())), Alarm::Probe)
            }
            _ => (self.rounded(now, self.timeout()), Alarm::Timeout),
        }
    }

    /// When the kernel's timer wheel fires: the longer the delay, the coarser
    /// (`kernel/time/timer.c`).
    fn rounded(&self, now: Instant, delay: Duration) -> Instant {
        // Nanoseconds in 64 bits: this is computed at each acknowledgement.
        let delay = delay.as_nanos() as u64;
        let mut grain = TICK.as_nanos() as u64;
        while delay >= grain * 63 && grain < TICK.as_nanos() as u64 * 4_096 {
            grain *= 8;
        }
        let at = now.saturating_duration_since(self.clock).as_nanos() as u64 + delay;
        self.clock + Duration::from_nanos((at / grain + 1) * grain)
    }

    /// Sends new data, else the newest segment again, whatever the window.
    fn probe(&mut self, now: Instant, emit: &mut impl FnMut(Packet)) {
        self.probed = true;
        self.alarm = Some((self.rounded(now, self.timeout()), Alarm::Timeout));
        if let Some(serial) = self.next_new(now) {
            self.send(now, serial, emit);
        } else if let Some(serial) = self.flight.pop_last() {
            // It uses no more of the window than before.
            self.in_flight -= self.out.get(serial).map_or(0, |out| out.length);
            self.send(now, serial, emit);
        }
    }

    fn next_new(&mut self, now: Instant) -> Option<u64> {
        let segment = self.unsent.pop_front()?;
        self.unsent_bytes -= segment.range.len();
        if let Some(since) = self.idle_since.take() {
            self.congestion.on_restart(now, now.saturating_duration_since(since));
            (self.acked_at, self.first_sent_at) = (now, now);
            self.first_sent = self.sent + SEGMENT as u64;
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        let out =
            Out { length: SEGMENT, segment, order: 0, again: false, left: self.departure(now) };
        self.out.insert(serial, out);
        Some(serial)
    }

    fn send(&mut self, now: Instant, serial: u64, emit: &mut impl FnMut(Packet)) {
        // The kernel's window and rates count packets of full size, however small they are.
        let length = Bytes(SEGMENT as u64);
        self.congestion.on_sent(now, length.0, self.in_flight as u64);
        self.in_flight += SEGMENT;
        self.sent += length.0;
        let left = self.departure(now);
        let Some(out) = self.out.get_mut(serial) else { return };
        out.again = out.order != 0;
        self.resent_packets += u64::from(out.again);
        out.order = self.next_order;
        (out.length, out.left) = (SEGMENT, left);
        self.flight.insert(out.order, serial);
        self.next_order += 1;
        self.sent_packets += 1;
        let (order, segment) = (out.order, Rc::clone(&out.segment));
        let kind = PacketKind::Data { serial, order, segment };
        let packet = Packet { connection: self.connection, kind };
        if let Some(pace) = self.congestion.pacing() {
            let time = pace.time_for(length).unwrap_or(PACE_MAX);
            let from = self.pace_at.map_or(now, |at| at.max(now));
            self.pace_at = Some(from + time.min(PACE_MAX));
        }
        emit(packet);
    }

    fn departure(&self, now: Instant) -> Departure {
        Departure {
            sent_at: now,
            acked: self.acked,
            acked_at: self.acked_at,
            first_sent_at: self.first_sent_at,
            limited: self.told_until.is_some(),
            in_flight: self.in_flight as u64,
            sent: self.sent,
            first_sent: self.first_sent,
        }
    }

    fn timeout(&self) -> Duration {
        (self.rtt.timeout() * (1 << self.timeouts.min(12))).min(TIMEOUT_MAX)
    }

    /// Handles an acknowledgement. Returns whether it acknowledged anything new.
    pub fn on_ack(&mut self, now: Instant, ack: &PacketKind) -> bool {
        let PacketKind::Ack { serial, from, order, cumulative, .. } = *ack else { return false };
        let before = self.in_flight;
        let mut settled = Settled::default();
        self.settle(now, serial, order, true, &mut settled);
        while let Some(old) = self.out.first().filter(|old| *old < cumulative) {
            self.settle(now, old, order, false, &mut settled);
        }
        for old in from..serial {
            self.settle(now, old, order, false, &mut settled);
        }
        let Some(newest) = settled.newest else { return false };
        if let Some((_, longest)) = settled.rtt {
            self.rtt.measure(longest, self.acked, self.acked + self.in_flight as u64);
        }
        if self.phase == Phase::Loss && order < self.timeout_order {
            self.undo();
        }
        self.timeouts = 0;
        self.progress_at = now;
        self.alarm = None;
        self.probed = false;
        self.acked_at = now;
        (self.first_sent_at, self.first_sent) = (newest.left.sent_at, newest.left.sent);
        self.highest_order = self.highest_order.max(newest.order);
        self.limited_until = self.limited_until.filter(|until| self.acked <= *until);
        self.told_until = self.told_until.filter(|until| self.acked <= *until);
        let rate = self.rate_of(now, &newest.left);
        if let Some(rate) = rate
            && (!newest.left.limited || self.rate.is_none_or(|known| rate > known))
        {
            self.rate = Some(match self.rate {
                Some(known) if rate < known => smooth(known, rate),
                _ => rate,
            });
        }
        if self.out.first().is_none_or(|first| first >= self.recovery) {
            self.phase = Phase::Open;
        }
        let lost = self.find_lost();
        self.congestion.on_ack(&Ack {
            now,
            bytes: settled.bytes,
            delivered: self.acked,
            prior_delivered: newest.left.acked,
            rtt: settled.rtt.map(|(least, _)| least),
            rate,
            application_limited: newest.left.limited,
            in_flight: self.in_flight as u64,
            prior_in_flight: before as u64,
            lost,
            sent: self.sent,
            phase: self.phase,
            flight: newest.timed.then(|| newest.left.flight(now, self.acked)),
            oldest_flight: settled
                .oldest
                .filter(|oldest| oldest.order < newest.order)
                .map(|oldest| oldest.left.flight(now, self.acked - settled.bytes + SEGMENT as u64)),
        });
        true
    }

    /// The segments declared lost at the timeout are in flight after all.
    fn undo(&mut self) {
        for serial in std::mem::take(&mut self.lost) {
            if let Some(out) = self.out.get(serial) {
                self.flight.insert(out.order, serial);
                self.in_flight += out.length;
            }
        }
        self.phase = Phase::Open;
        self.recovery = 0;
        self.congestion.on_undo();
    }

    /// Settles a segment acknowledged by a packet of this order: its own, if it has `arrived`.
    fn settle(
        &mut self,
        now: Instant,
        serial: u64,
        order: u64,
        arrived: bool,
        settled: &mut Settled,
    ) {
        let Some(out) = self.out.remove(serial) else { return };
        let Out { length, left, .. } = out;
        self.flight.remove(out.order);
        if !self.lost.remove(&serial) {
            self.in_flight = self.in_flight.saturating_sub(length);
        }
        self.acked += length as u64;
        settled.bytes += length as u64;
        let timed = if arrived { order == out.order } else { !out.again };
        if timed {
            let rtt = now.saturating_duration_since(left.sent_at);
            let (least, longest) = settled.rtt.unwrap_or((rtt, rtt));
            settled.rtt = Some((least.min(rtt), longest.max(rtt)));
        }
        // A copy sent after the packet that arrived cannot have arrived: it was an earlier copy,
        // which proves nothing about segments sent before the last one (RFC 8985 6.2, step 2).
        let order = match arrived {
            true => order,
            false if out.order <= order => out.order,
            false => 0,
        };
        if settled.newest.is_none_or(|newest| order > newest.order) {
            settled.newest = Some(Newest { order, timed, left });
        }
        if timed && settled.oldest.is_none_or(|oldest| order < oldest.order) {
            settled.oldest = Some(Newest { order, timed, left });
        }
    }

    /// The rate over the flight of the newest segment: the bytes acknowledged meanwhile, over the
    /// longer of the times of sending and acknowledging (Linux, `tcp_rate.c`).
    fn rate_of(&self, now: Instant, newest: &Departure) -> Option<Bitrate> {
        let sending = newest.sent_at.saturating_duration_since(newest.first_sent_at);
        let acking = now.saturating_duration_since(newest.acked_at);
        let time = sending.max(acking);
        if time.is_zero() || time < self.rtt.shortest() {
            return None;
        }
        let bytes = self.acked - newest.acked;
        Some(Bitrate::from_bps((bytes as f64 * 8.0 / time.as_secs_f64()) as u64))
    }

    /// Declares segments lost that three later ones have overtaken; returns their bytes.
    fn find_lost(&mut self) -> u64 {
        let edge = self.highest_order.saturating_sub(REORDERING);
        let mut bytes = 0;
        while let Some(first) = self.flight.first().filter(|first| *first < edge) {
            let Some(serial) = self.flight.remove(first) else { break };
            let length = self.out.get(serial).map_or(0, |out| out.length);
            self.lost.insert(serial);
            self.lost_packets += 1;
            self.in_flight = self.in_flight.saturating_sub(length);
            bytes += length as u64;
        }
        if bytes > 0 && self.phase == Phase::Open {
            self.phase = Phase::Recovery;
            self.recovery = self.next_serial;
            self.congestion.on_loss(&Loss { delivered: self.acked, sent: self.sent });
        }
        bytes
    }

    /// When to call [`Sender::on_timeout`].
    pub fn next_timeout(&self) -> Option<Instant> {
        let waits = || !self.unsent.is_empty() || !self.lost.is_empty();
        let open = || (self.in_flight as u64) < self.congestion.window();
        let pace = self.pace_at.filter(|_| waits() && open());
        match (self.alarm, pace) {
            (Some((alarm, _)), Some(pace)) => Some(alarm.min(pace)),
            (alarm, pace) => alarm.map(|(at, _)| at).or(pace),
        }
    }

    /// Handles a timeout. [`Sender::pump`] handles pacing and probes. If nothing was acknowledged,
    /// all segments in flight are retransmitted slowly. False if the connection is given up.
    pub fn on_timeout(&mut self, now: Instant, patience: Duration) -> bool {
        if self.alarm.is_none_or(|(at, what)| what == Alarm::Probe || at > now) {
            return true;
        }
        self.alarm = None;
        if now.saturating_duration_since(self.progress_at) >= patience {
            return false;
        }
        let first = self.timeouts == 0;
        self.timeouts += 1;
        self.lost_packets += self.flight.len() as u64;
        self.lost.extend(self.out.numbers());
        self.flight.clear();
        self.in_flight = 0;
        if first {
            self.timeout_order = self.next_order;
        }
        self.phase = Phase::Loss;
        self.recovery = self.next_serial;
        self.pace_at = None;
        self.congestion.on_timeout(now, first);
        true
    }

    /// The sender's part of a trial's sample.
    pub(super) fn account(&self) -> Sample {
        Sample {
            rtt_ms: self.rtt.smoothed().unwrap_or_default().as_secs_f64() * 1e3,
            window: self.congestion.window(),
            backoff: self.timeouts,
            rto_ms: self.timeout().as_secs_f64() * 1e3,
            resent: self.resent_packets,
            ..Sample::default()
        }
    }

    /// The state of an endless flow.
    pub(super) fn state(&self) -> State {
        State {
            in_flight: self.in_flight as u64,
            window: self.congestion.window(),
            estimate: self.congestion.estimate(),
        }
    }

    /// A tunnel's sample.
    pub fn sample(&self, now: Instant) -> LinkSample {
        LinkSample {
            at: now,
            srtt: self.rtt.smoothed().unwrap_or(TIMEOUT_FIRST),
            rtt_min: self.rtt.least().unwrap_or(TIMEOUT_MAX),
            rtt_var: self.rtt.deviation(),
            window: Bytes(self.congestion.window()),
            in_flight: Bytes(self.in_flight as u64),
            unsent: Bytes(self.unsent_bytes as u64),
            delivery_rate: self.rate,
            application_limited: self.limited_until.is_some(),
            sent_packets: self.sent_packets,
            lost_packets: self.lost_packets,
            spurious_packets: 0,
            timeouts: self.timeouts,
            acked: Bytes(self.acked),
        }
    }
}

impl Departure {
    /// The flight of a segment that is acknowledged now, with `acked` bytes in total.
    fn flight(&self, now: Instant, acked: u64) -> Flight {
        Flight {
            in_flight: self.in_flight,
            sent: self.sent,
            sent_since: self.sent.saturating_sub(self.first_sent),
            sending: self.sent_at.saturating_duration_since(self.first_sent_at),
            acked_since: acked - self.acked,
            acking: now.saturating_duration_since(self.acked_at),
            application_limited: self.limited,
        }
    }
}

fn smooth(known: Bitrate, rate: Bitrate) -> Bitrate {
    Bitrate::from_bps((known.as_bps() / 8).saturating_mul(7) + rate.as_bps() / 8)
}

/// The number of later acknowledgements before a segment counts as lost.
const REORDERING: u64 = 3;
const TIMEOUT_MAX: Duration = Duration::from_secs(120);
/// A tick of the kernel's clock: 250 a second.
const TICK: Duration = Duration::from_millis(4);
/// The delay of a probe beyond two round trips: two ticks of the kernel's clock, and the time of a
/// delayed acknowledgement if one segment is in flight (RFC 8985 7.2).
const PROBE_MARGIN: Duration = Duration::from_millis(8);
const PROBE_MARGIN_LONE: Duration = Duration::from_millis(200);
/// The longest pause of pacing.
const PACE_MAX: Duration = Duration::from_secs(1);
