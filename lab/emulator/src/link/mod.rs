//! One direction of an emulated link, without clock, socket or thread.
//!
//! The stages of a packet:
//!
//! ```text
//! enqueue -> [blackout with drop?] -> [too big?] -> [UDP: policed?]
//!         -> byte-bounded drop-tail queue -> server (rate over time)
//!         -> random and bursty loss -> duplication -> propagation delay -> poll
//! ```
//!
//! Loss comes after the server: a lost packet has used the link, as it does on the air. The delay
//! of a packet is the one in force when it leaves the server. Packets keep their order however the
//! delay changes, except those that [`Reorder`] holds back on purpose. A packet that has left the
//! server is beyond a blackout and still arrives.
//!
//! # Drain contract
//! Time is a parameter and never runs backwards (an earlier instant counts as the latest one seen).
//! After each input ([`LinkModel::enqueue`] or a `set_…`) ask [`LinkModel::next_departure`]; at
//! that instant or later call [`LinkModel::poll`] until it answers `None`, and ask again. A wake-up
//! may be in vain (the packet was lost), but each moves the next one forward. How often and how
//! late the model is polled changes neither which packets are delivered nor their due instants.
//!
//! # Bounds
//! The queue holds `LinkSpec::queue` bytes beside the packet being sent (full: the arriving packet
//! is dropped); in propagation there are at most [`FLIGHT_MAX`] bytes (full: the packet is dropped
//! and counted as `flight_full`).

mod chance;
mod counters;
mod policing;
mod recent;
mod schedule;
mod spec;

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use polyrail_model::Bytes;

pub use chance::{BurstLoss, Probability};
pub use counters::{Counters, Tally};
pub use policing::{BURST_BYTES_MIN, BURST_TIME, Policing};
pub use schedule::{STEPS_MAX, Schedule, ScheduleError, Step};
pub use spec::{Blackout, BlackoutWindow, LinkSpec, PathMtu, Rate, Reorder, Setting};

use chance::Chance;
use policing::Policer;
use recent::{Piece, Recent};

/// The most data in propagation: half a second of 1 Gbit/s.
pub const FLIGHT_MAX: Bytes = Bytes::from_mib(64);

/// Work of one byte: a server of `r` bit/s does `r` units in a nanosecond.
const UNITS_PER_BYTE: u128 = 8_000_000_000;

/// How many pieces of its schedules a search for the next departure looks at. Beyond them the
/// answer is a wake-up in vain.
const LOOKAHEAD_PIECES_MAX: usize = 4096;

/// The fate of a packet offered to the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It waits or is in propagation; it may still be lost.
    Queued,
    /// The queue was full.
    QueueFull,
    /// A dropping blackout was on.
    Blackout,
    /// It is larger than the link's [`PathMtu`].
    TooBig,
    /// It is UDP, and [`Policing`] had no room for it.
    Policed,
}

/// The class of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// UDP over IPv4 or IPv6, fragments of it included.
    Udp,
    /// Anything else.
    Other,
}

/// One direction of a link, carrying packets of type `P`.
#[derive(Debug)]
pub struct LinkModel<P> {
    spec: LinkSpec,
    epoch: Instant,
    clock: Instant,
    forced: Option<Blackout>,
    policer: Policer,
    chance: Chance,
    queue: VecDeque<Held<P>>,
    waiting_bytes: u64,
    head_work: u128,
    flight: BTreeMap<(Instant, u64), Held<P>>,
    flight_bytes: u64,
    serial: u64,
    last_due: Instant,
    counters: Counters,
    /// The capacity of the server, by `spec` and `forced`.
    capacity: Recent<Capacity>,
    /// The delay, by `spec`.
    delay: Recent<Duration>,
}

#[derive(Debug)]
struct Held<P> {
    packet: P,
    bytes: u64,
}

/// The capacity of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Capacity {
    Dropping,
    Stopped,
    Limited(u64),
    Unlimited,
}

impl<P: Clone> LinkModel<P> {
    /// A link whose schedules begin at `epoch`; equal seeds and inputs give equal outcomes.
    pub fn new(spec: LinkSpec, epoch: Instant, seed: u64) -> Self {
        Self {
            chance: Chance::new(seed),
            policer: Policer::new(spec.udp, epoch),
            spec,
            epoch,
            clock: epoch,
            forced: None,
            queue: VecDeque::new(),
            waiting_bytes: 0,
            head_work: 0,
            flight: BTreeMap::new(),
            flight_bytes: 0,
            serial: 0,
            last_due: epoch,
            counters: Counters::default(),
            capacity: Recent::default(),
            delay: Recent::default(),
        }
    }

    /// Offers a packet that takes `bytes` on the link (none counts as one) and is not UDP.
    pub fn enqueue(&mut self, now: Instant, packet: P, bytes: usize) -> Verdict {
        self.enqueue_as(now, Class::Other, packet, bytes)
    }

    /// As [`LinkModel::enqueue`], for a packet of any class.
    pub fn enqueue_as(&mut self, now: Instant, class: Class, packet: P, bytes: usize) -> Verdict {
        let bytes = (bytes as u64).max(1);
        self.advance(now);
        self.counters.offered.add(bytes);
        let capacity = self.piece(self.clock).value;
        if capacity == Capacity::Dropping {
            self.counters.blackout.add(bytes);
            return Verdict::Blackout;
        }
        if self.spec.mtu.is_some_and(|mtu| bytes > u64::from(mtu.bytes)) {
            self.counters.too_big.add(bytes);
            return Verdict::TooBig;
        }
        if class == Class::Udp && !self.policer.admits(self.clock, bytes) {
            self.counters.policed.add(bytes);
            return Verdict::Policed;
        }
        if self.queue.is_empty() {
            self.head_work = u128::from(bytes) * UNITS_PER_BYTE;
        } else if self.waiting_bytes + bytes > self.spec.queue.0 {
            self.counters.queue_full.add(bytes);
            return Verdict::QueueFull;
        } else {
            self.waiting_bytes += bytes;
        }
        self.queue.push_back(Held { packet, bytes });
        self.serve(capacity, self.clock, self.clock);
        Verdict::Queued
    }

    /// The next packet that has arrived by `now`.
    pub fn poll(&mut self, now: Instant) -> Option<P> {
        self.poll_due(now).map(|(_, packet)| packet)
    }

    /// As [`LinkModel::poll`], with the instant at which the packet was due.
    pub fn poll_due(&mut self, now: Instant) -> Option<(Instant, P)> {
        self.advance(now);
        let first = self.flight.first_entry()?;
        let due = first.key().0;
        if due > self.clock {
            return None;
        }
        let held = first.remove();
        self.flight_bytes -= held.bytes;
        self.counters.delivered.add(held.bytes);
        Some((due, held.packet))
    }

    /// The earliest instant at which a poll can yield something; `None` when the link is empty or
    /// stopped for good.
    pub fn next_departure(&self) -> Option<Instant> {
        let in_flight = self.flight.first_key_value().map(|(key, _)| key.0);
        let served = self.next_service();
        in_flight.into_iter().chain(served).min()
    }

    /// The counters so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The backlog of the queue, with the packet being sent.
    pub fn queued(&self) -> Tally {
        let head = self.queue.front().map_or(0, |held| held.bytes);
        Tally { packets: self.queue.len() as u64, bytes: self.waiting_bytes + head }
    }

    /// Packets in propagation.
    pub fn in_flight(&self) -> Tally {
        Tally { packets: self.flight.len() as u64, bytes: self.flight_bytes }
    }

    /// The specification now in force.
    pub fn spec(&self) -> &LinkSpec {
        &self.spec
    }

    /// Changes a property from `now` on.
    pub fn set(&mut self, now: Instant, setting: Setting) {
        self.advance(now);
        self.spec.set(setting);
        match setting {
            Setting::Rate(_) => {
                self.capacity.forget();
                self.settle();
            }
            Setting::Delay(_) => self.delay.forget(),
            Setting::BurstLoss(_) => self.chance.end_burst(),
            Setting::Udp(udp) => self.policer = Policer::new(udp, self.clock),
            Setting::Seed(seed) => self.chance = Chance::new(seed),
            Setting::Loss(_) | Setting::Queue(_) | Setting::Reorder(_) | Setting::Mtu(_) => {}
        }
    }

    /// Forces a blackout from `now` on, or ends the one forced. A scheduled blackout is not ended.
    pub fn set_blackout(&mut self, now: Instant, blackout: Option<Blackout>) {
        self.advance(now);
        self.forced = blackout;
        self.capacity.forget();
        self.settle();
    }

    /// The blackout that is on, forced or scheduled.
    pub fn blackout(&self) -> Option<Blackout> {
        let offset = self.clock.duration_since(self.epoch);
        self.forced.max(self.spec.blackouts.at(offset).value)
    }

    /// Applies a change of the server's state at once.
    fn settle(&mut self) {
        match self.piece(self.clock).value {
            Capacity::Dropping => self.drop_queue(),
            capacity => self.serve(capacity, self.clock, self.clock),
        }
    }

    /// Lets the server work until `now`.
    fn advance(&mut self, now: Instant) {
        while self.clock < now {
            if self.queue.is_empty() {
                self.clock = now;
                return;
            }
            let piece = self.piece(self.clock);
            let end = piece.until.map_or(now, |until| until.min(now));
            match piece.value {
                Capacity::Dropping => self.drop_queue(),
                capacity => self.serve(capacity, self.clock, end),
            }
            self.clock = end;
        }
        if !self.queue.is_empty() && self.piece(self.clock).value == Capacity::Dropping {
            self.drop_queue();
        }
    }

    /// Serves the queue with one capacity from `from` to `to`, both included.
    fn serve(&mut self, capacity: Capacity, from: Instant, to: Instant) {
        let rate = match capacity {
            Capacity::Dropping | Capacity::Stopped => return,
            Capacity::Limited(rate) => u128::from(rate),
            Capacity::Unlimited => return self.serve_all(from),
        };
        let mut at = from;
        while !self.queue.is_empty() {
            let need = self.head_work.div_ceil(rate);
            let left = to.duration_since(at).as_nanos();
            if need > left {
                self.head_work -= left * rate;
                return;
            }
            at += nanos(need);
            // The server's work in the last nanosecond beyond this packet counts for the next.
            let credit = need * rate - self.head_work;
            self.complete(at);
            self.head_work = self.head_work.saturating_sub(credit);
        }
    }

    fn serve_all(&mut self, at: Instant) {
        while !self.queue.is_empty() {
            self.complete(at);
        }
    }

    /// The head of the queue leaves the server at `at`; the next one steps up.
    fn complete(&mut self, at: Instant) {
        let Some(held) = self.queue.pop_front() else { return };
        if let Some(next) = self.queue.front() {
            self.waiting_bytes -= next.bytes;
            self.head_work = u128::from(next.bytes) * UNITS_PER_BYTE;
        }
        let loss = self.spec.loss_at(at.duration_since(self.epoch));
        if self.chance.loses(loss, self.spec.burst_loss) {
            self.counters.lost.add(held.bytes);
            return;
        }
        if self.chance.happens(self.spec.duplicate) {
            self.counters.duplicated.add(held.bytes);
            let copy = Held { packet: held.packet.clone(), bytes: held.bytes };
            self.propagate(at, copy);
        }
        self.propagate(at, held);
    }

    fn propagate(&mut self, at: Instant, held: Held<P>) {
        if self.flight_bytes + held.bytes > FLIGHT_MAX.0 {
            self.counters.flight_full.add(held.bytes);
            return;
        }
        let in_order = self.in_order_due(at);
        let due = match self.spec.reorder {
            Some(reorder) if self.chance.happens(reorder.share) => in_order + reorder.delay,
            _ => {
                self.last_due = in_order;
                in_order
            }
        };
        self.serial += 1;
        self.flight_bytes += held.bytes;
        self.flight.insert((due, self.serial), held);
    }

    /// When a packet that leaves the server at `at` arrives in order.
    fn in_order_due(&self, at: Instant) -> Instant {
        let delay = self.delay.at(at, || {
            let step = self.spec.delay.at(at.duration_since(self.epoch));
            Piece { value: step.value, until: self.instant(step.until) }
        });
        (at + delay.value).max(self.last_due)
    }

    fn drop_queue(&mut self) {
        for held in self.queue.drain(..) {
            self.counters.blackout.add(held.bytes);
        }
        self.waiting_bytes = 0;
    }

    /// When the packet being sent arrives at the earliest.
    fn next_service(&self) -> Option<Instant> {
        // Only an input ends a forced blackout.
        if self.queue.is_empty() || self.forced.is_some() {
            return None;
        }
        let (mut at, mut work) = (self.clock, self.head_work);
        for _ in 0..LOOKAHEAD_PIECES_MAX {
            let piece = self.piece(at);
            let need = match piece.value {
                Capacity::Dropping => return None,
                Capacity::Stopped => u128::MAX,
                Capacity::Limited(rate) => work.div_ceil(u128::from(rate)),
                Capacity::Unlimited => 0,
            };
            let length = piece.until.map(|until| until.duration_since(at).as_nanos());
            match length {
                Some(length) if need > length => {
                    if let Capacity::Limited(rate) = piece.value {
                        work -= length * u128::from(rate);
                    }
                    at += nanos(length);
                }
                None if need == u128::MAX => return None,
                _ => return Some(self.in_order_due(at + nanos(need))),
            }
        }
        Some(at)
    }

    /// The capacity of the server at an instant.
    fn piece(&self, at: Instant) -> Piece<Capacity> {
        self.capacity.at(at, || self.look(at))
    }

    fn look(&self, at: Instant) -> Piece<Capacity> {
        let offset = at.duration_since(self.epoch);
        let dark = self.spec.blackouts.at(offset);
        let rate = self.spec.rate.at(offset);
        let value = match (self.forced.max(dark.value), rate.value) {
            (Some(Blackout::Drop), _) => Capacity::Dropping,
            (Some(Blackout::Hold), _) => Capacity::Stopped,
            (None, Rate::Unlimited) => Capacity::Unlimited,
            (None, Rate::Limited(rate)) if rate.as_bps() == 0 => Capacity::Stopped,
            (None, Rate::Limited(rate)) => Capacity::Limited(rate.as_bps()),
        };
        Piece { value, until: self.instant(dark.until.into_iter().chain(rate.until).min()) }
    }

    fn instant(&self, offset: Option<Duration>) -> Option<Instant> {
        self.epoch.checked_add(offset?)
    }
}

/// A number of nanoseconds; centuries when it is too large to hold.
fn nanos(count: u128) -> Duration {
    Duration::from_nanos(u64::try_from(count).unwrap_or(u64::MAX))
}
