//! The controller: it holds a small queue, whatever rate the link has at the moment.
//!
//! The window is the delivery rate times the least round-trip time and a target queue. While the
//! queue is nearly empty, window and pacing rate are doubled: that is a startup at any time. A
//! queue that stays for three round trips is not the own one, which leaves sooner: the path's delay
//! has changed, or a rival holds it, and both count as delay from then on. Loss is no sign of
//! congestion before a tenth of two rounds in a row is lost. Now and then a drain shows the delay
//! without the own queue.

use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, Bytes};

use crate::PACKET;
use crate::extreme::Extreme;
use crate::flight::Flight;

/// The controller of one connection.
#[derive(Clone, Debug)]
pub struct Rail {
    flight: Flight,
    /// Recent delivery rates in bytes per second.
    rates: Extreme<f64>,
    /// When the path last showed a rate.
    rate_at: Option<Instant>,
    /// The newest sample, also if the application limited it.
    newest: Option<f64>,
    /// Round-trip times of the last seconds, and of the last part of a round.
    rtts: Extreme<Duration>,
    rtts_new: Extreme<Duration>,
    srtt: Option<Duration>,
    round: Round,
    drain: Drain,
    /// The highest rate since the last drain, in bytes per second.
    rate_highest: f64,
    /// Since when the queue has been longer than a full window makes it.
    high_since: Option<Instant>,
    /// Whether the last round was lossy.
    was_lossy: bool,
    ceiling: Option<Ceiling>,
    /// What an earlier connection knew, until the first round-trip time.
    resumed: Option<Knowledge>,
    /// Bytes that may leave at once after an idle time.
    burst: u64,
}

/// The totals of a connection when an acknowledgement was received.
#[derive(Clone, Copy, Debug)]
pub struct Acked {
    /// The time.
    pub now: Instant,
    /// All bytes acknowledged so far.
    pub acked: u64,
    /// All bytes declared lost so far.
    pub lost: u64,
    /// Bytes in flight after it.
    pub in_flight: u64,
    /// The newest round-trip time, if there is one.
    pub rtt: Option<Duration>,
}

/// What a connection knows about its path, for the next one over the same carrier.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knowledge {
    /// The delivery rate.
    pub rate: Bitrate,
    /// The least round-trip time.
    pub rtt: Duration,
    /// When it was last confirmed.
    pub at: Instant,
}

/// A round trip: it ends when a byte sent after its begin is acknowledged or lost.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    end: u64,
    /// The totals at its begin.
    acked: u64,
    lost: u64,
    began: Option<Instant>,
}

/// The rate that the path delivered in a round of heavy loss: its queue is shorter than the target.
#[derive(Clone, Copy, Debug)]
struct Ceiling {
    /// In bytes per second.
    rate: f64,
    until: Instant,
    /// The smoothed round-trip time then: half of it is that of another path.
    srtt: Duration,
}

/// A drain of the own queue.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Drain {
    /// The next one begins then, unless a smaller round-trip time is seen before.
    Due(Instant),
    /// It began then.
    Since(Instant),
}

impl Rail {
    /// The controller of a fresh connection.
    pub fn new(now: Instant) -> Self {
        Self {
            flight: Flight::new(now),
            rates: Extreme::greatest(),
            rate_at: None,
            newest: None,
            rtts: Extreme::least(),
            rtts_new: Extreme::least(),
            srtt: None,
            round: Round::default(),
            drain: Drain::Due(now + DRAIN_EVERY),
            rate_highest: 0.0,
            high_since: None,
            was_lossy: false,
            ceiling: None,
            resumed: None,
            burst: 0,
        }
    }

    /// Starts from the knowledge of an earlier connection (RFC 9959): if a round-trip time confirms
    /// the path, with half of the rate. Old knowledge has no effect.
    pub fn resume(&mut self, now: Instant, known: Knowledge) {
        let fresh = now.saturating_duration_since(known.at) <= KNOWN_FOR;
        self.resumed = Some(known).filter(|_| fresh);
        if let Some(rtt) = self.srtt {
            self.confirm(now, rtt);
        }
    }

    /// Jumps to half of the known rate if the path is alike (RFC 9959 section 4.3).
    fn confirm(&mut self, now: Instant, rtt: Duration) {
        let Some(known) = self.resumed.take() else { return };
        let half = known.rate.as_bps() as f64 / 8.0 / 2.0;
        let is_alike = rtt >= known.rtt / 2 && rtt <= known.rtt * 10;
        if is_alike && self.rate().is_none_or(|rate| rate < half) {
            self.rates.add(now, half);
        }
    }

    /// What the next connection can start from; `None` before the first measurement.
    pub fn knowledge(&self) -> Option<Knowledge> {
        let rate = Bitrate::from_bytes_per_second(self.rate()? as u64);
        Some(Knowledge { rate, rtt: self.rtt_least()?, at: self.rate_at? })
    }

    /// The delivery rate. Before the path has shown one, that of the application: a gateway that
    /// only acknowledges knows no other.
    pub fn delivery_rate(&self) -> Option<Bitrate> {
        self.rate().or(self.newest).map(|rate| Bitrate::from_bytes_per_second(rate as u64))
    }

    /// Bytes are sent; `in_flight` are those before it.
    pub fn on_sent(&mut self, now: Instant, bytes: u64, in_flight: u64) {
        if in_flight == 0 {
            self.on_restart(now);
        }
        self.flight.on_sent(now, bytes, in_flight);
        self.burst = self.burst.saturating_sub(bytes);
    }

    /// Sending begins after an idle time: the rate before it counts until there are samples, and
    /// there is no own queue to drain. That rate may be far too low, so the first bytes leave at
    /// once, if this connection has measured it and loss does not limit it.
    fn on_restart(&mut self, now: Instant) {
        if let Some(rate) = self.rate() {
            self.rates.clear();
            self.rates.add(now, rate);
            let is_free = self.rate_at.is_some() && self.ceiling.is_none();
            self.burst = if is_free { RESTART_BURST } else { 0 };
        }
        self.rtts_new.clear();
        self.high_since = None;
        self.drain = Drain::Due(now + DRAIN_EVERY);
    }

    /// The application has nothing more to send: the rates of the bytes in flight say nothing about
    /// the path, except when they are higher than known ones.
    pub fn on_limited(&mut self, in_flight: u64) {
        self.flight.on_limited(in_flight);
    }

    /// The path changed: delays measured before do not apply.
    pub fn on_path_change(&mut self) {
        self.rtts.clear();
        self.rtts_new.clear();
        (self.ceiling, self.high_since) = (None, None);
    }

    /// An acknowledgement was received.
    pub fn on_acked(&mut self, ack: &Acked) {
        if let Some(rtt) = ack.rtt {
            self.on_rtt(ack.now, rtt);
        }
        let least = self.rtt_least().unwrap_or(RTT_UNKNOWN);
        let seen = self.flight.on_acked(ack.now, ack.acked, ack.in_flight, least);
        if let Some(seen) = seen {
            self.burst = 0;
            self.newest = Some(seen.rate);
        }
        if let Some(seen) = seen
            && (!seen.limited || self.rate().is_some_and(|known| seen.rate > known))
        {
            self.rates.add(ack.now, seen.rate);
            self.rate_at = Some(ack.now);
            self.rates.expire(ack.now, RATE_PERIOD.max(least * 2));
        }
        if self.round.began.is_none() || ack.acked + ack.lost >= self.round.end {
            self.on_round(ack);
        }
        self.look_at_queue(ack);
    }

    fn on_rtt(&mut self, now: Instant, rtt: Duration) {
        let rtt = rtt.max(RTT_MIN);
        if self.rtts.get().is_none_or(|(_, least)| rtt <= least + RTT_NOISE)
            && let Drain::Due(at) = &mut self.drain
        {
            *at = now + DRAIN_EVERY;
        }
        self.rtts.add(now, rtt);
        self.rtts.expire(now, RTT_PERIOD);
        self.srtt = Some(self.srtt.map_or(rtt, |srtt| (srtt * 7 + rtt) / 8));
        self.rtts_new.add(now, rtt);
        self.rtts_new.expire(now, self.srtt.unwrap_or(rtt) / 2);
        self.confirm(now, rtt);
    }

    /// A round is over.
    fn on_round(&mut self, ack: &Acked) {
        let began = self.round.began.unwrap_or(ack.now);
        let (acked, lost) = (ack.acked - self.round.acked, ack.lost - self.round.lost);
        let time = ack.now.saturating_duration_since(began);
        // Silence is a blackout, and says nothing about the queue.
        let is_steady = self.srtt.is_some_and(|srtt| time <= srtt * 2) && !time.is_zero();
        let is_lossy = lost > LOSS_LEAST && lost as f64 > LOSS_MAX * (acked + lost) as f64;
        let was_lossy = std::mem::replace(&mut self.was_lossy, is_steady && is_lossy);
        let srtt = self.srtt.unwrap_or(RTT_UNKNOWN);
        let holds = |ceiling: &Ceiling| ack.now < ceiling.until && srtt * 2 > ceiling.srtt;
        self.ceiling = self.ceiling.filter(holds);
        if was_lossy && self.was_lossy {
            // A drain may have held the round back.
            let least = self.rate().unwrap_or(0.0) / 2.0;
            self.ceiling = Some(Ceiling {
                rate: (acked as f64 / time.as_secs_f64()).max(least),
                until: ack.now + (srtt * CEILING_ROUNDS).min(CEILING_MAX),
                srtt,
            });
        }
        self.round = Round {
            end: ack.acked + ack.lost + ack.in_flight.max(1),
            acked: ack.acked,
            lost: ack.lost,
            began: Some(ack.now),
        };
    }

    /// Begins and ends drains, and forgets a delay that does not apply any more.
    fn look_at_queue(&mut self, ack: &Acked) {
        let (Some(queue), Some(srtt)) = (self.queue(), self.srtt) else { return };
        let rate = self.rate().unwrap_or(0.0);
        // A rate that falls while the queue stays is that of a longer path.
        let is_suspect = queue > self.target() && rate * 4.0 < self.rate_highest * 3.0;
        self.rate_highest = if self.drains() { rate } else { self.rate_highest.max(rate) };
        self.drain = match self.drain {
            Drain::Due(at) if ack.now >= at || is_suspect => Drain::Since(ack.now),
            Drain::Since(_) if queue * 4 <= self.target() => Drain::Due(ack.now + DRAIN_EVERY),
            // By the present round-trip time: that at its begin may hold a queue that has left.
            Drain::Since(began) if ack.now.saturating_duration_since(began) >= srtt * 2 => {
                // The queue is not the own one.
                if queue * 2 > self.target() {
                    self.forget_delay();
                }
                Drain::Due(ack.now + DRAIN_EVERY)
            }
            same => same,
        };
        if queue <= self.queue_own() * 3 / 2 {
            self.high_since = None;
            return;
        }
        let since = *self.high_since.get_or_insert(ack.now);
        if ack.now.saturating_duration_since(since) >= srtt * 3 {
            self.forget_delay();
        }
    }

    /// The present queue counts as delay from now on.
    fn forget_delay(&mut self) {
        if let Some((at, least)) = self.rtts_new.get() {
            self.rtts.clear();
            self.rtts.add(at, least);
            self.high_since = None;
        }
    }

    /// The rate to send at; `None` before the first sample and right after an idle time: the first
    /// window needs no pacing (RFC 9002 7.7).
    pub fn pacing(&self) -> Option<Bitrate> {
        let rate = self.rate().filter(|_| self.burst == 0)?;
        let gain = if self.drains() { DRAIN_GAIN } else { PACING_GAIN * self.boost() };
        let paced = (rate * gain).min(self.ceiling.map_or(f64::INFINITY, |ceiling| ceiling.rate));
        let least = PACKET as f64 * 2.0 / self.srtt.unwrap_or(RTT_UNKNOWN).as_secs_f64();
        Some(Bitrate::from_bytes_per_second(paced.max(least) as u64))
    }

    /// How many bytes may be in flight.
    pub fn window(&self) -> Bytes {
        if self.rate().is_none() {
            return Bytes(WINDOW_FIRST);
        }
        if self.drains() {
            return Bytes((self.product() * 3 / 4).max(WINDOW_MIN));
        }
        let queue = self.rate().unwrap_or(0.0) * self.target().as_secs_f64();
        let window = (self.product() as f64 + queue) * self.boost();
        let least = if self.burst > 0 { RESTART_BURST } else { 0 };
        Bytes((window as u64 + WINDOW_SLACK).max(least))
    }

    /// The time that packets wait in the path's queue, by the newest round-trip times.
    pub fn queue(&self) -> Option<Duration> {
        Some(self.rtts_new.get()?.1.saturating_sub(self.rtts.get()?.1))
    }

    /// The queue that it aims at.
    pub fn target(&self) -> Duration {
        TARGET_MIN.max(self.rtt_least().unwrap_or(RTT_UNKNOWN) / 2)
    }

    /// The queue that a full window makes.
    fn queue_own(&self) -> Duration {
        let slack = self.rate().map_or(0.0, |rate| WINDOW_SLACK as f64 / rate.max(1.0));
        self.target() + Duration::try_from_secs_f64(slack).unwrap_or(RTT_UNKNOWN)
    }

    fn drains(&self) -> bool {
        matches!(self.drain, Drain::Since(_))
    }

    /// How far to exceed the present rate: two at an empty queue, one from half of the target on.
    fn boost(&self) -> f64 {
        let queue = self.queue().unwrap_or_default().as_secs_f64();
        2.0 - (queue / self.target().as_secs_f64() * 2.0).min(1.0)
    }

    /// Bytes per second; `None` before the first sample.
    fn rate(&self) -> Option<f64> {
        self.rates.get().map(|(_, rate)| rate)
    }

    fn rtt_least(&self) -> Option<Duration> {
        self.rtts.get().map(|(_, rtt)| rtt)
    }

    /// The bandwidth-delay product in bytes.
    fn product(&self) -> u64 {
        let rtt = self.rtt_least().unwrap_or(RTT_UNKNOWN);
        (self.rate().unwrap_or(0.0) * rtt.as_secs_f64()) as u64
    }
}

/// The window limits the rate; pacing only spreads packets.
const PACING_GAIN: f64 = 1.25;
/// Bytes that leave at once after an idle time, if a rate was known before: our own. On the
/// simulated rail downloads of 256 KB take 5 % less time than without, and 256 KiB gain no more.
const RESTART_BURST: u64 = 128 * 1_024;
/// In a drain.
const DRAIN_GAIN: f64 = 0.75;
/// The least queue to aim at: below it the jitter of radio links looks like a queue.
const TARGET_MIN: Duration = Duration::from_millis(30);
/// Rates of radio links change within a quarter of a second.
const RATE_PERIOD: Duration = Duration::from_millis(250);
/// The period of the least round-trip time. It is longer than the time between drains.
const RTT_PERIOD: Duration = Duration::from_secs(10);
const DRAIN_EVERY: Duration = Duration::from_millis(800);
/// Loss below this share of two rounds in a row is not a sign of congestion: half of the loss that
/// TCP's bbr tolerates.
const LOSS_MAX: f64 = 0.1;
/// Fewer lost bytes are no sign at all.
const LOSS_LEAST: u64 = 3 * PACKET;
/// For so many rounds the rate stays at what the path delivered. The probe behind them costs two
/// rounds of up to half of their packets.
const CEILING_ROUNDS: u32 = 24;
/// And not longer: the link changes.
const CEILING_MAX: Duration = Duration::from_millis(1_500);
/// Knowledge is valid for so long (RFC 9959 leaves this to the path's kind).
const KNOWN_FOR: Duration = Duration::from_secs(60);
/// Shorter times are the clock's error.
const RTT_MIN: Duration = Duration::from_micros(100);
/// Round-trip times that differ by less are alike.
const RTT_NOISE: Duration = Duration::from_millis(2);
/// The initial round-trip time of RFC 9002 6.2.2.
const RTT_UNKNOWN: Duration = Duration::from_millis(333);
/// RFC 9002 7.2.
const WINDOW_FIRST: u64 = 10 * PACKET;
const WINDOW_MIN: u64 = 4 * PACKET;
/// For acknowledgements that arrive in bunches.
const WINDOW_SLACK: u64 = 4 * PACKET;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn base() -> Instant {
        #[allow(clippy::disallowed_methods)] // the base of this test's clock
        Instant::now()
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A sender that always has data, over a link with a queue: bytes a millisecond, a round trip
    /// without the queue, and the queue's length.
    struct Link {
        rail: Rail,
        now: Instant,
        /// Packets in flight: when they are acknowledged or found lost, when they were sent, and
        /// whether they are lost.
        flight: std::collections::VecDeque<(Instant, Instant, bool)>,
        free_at: Instant,
        next_at: Instant,
        acked: u64,
        lost: u64,
        per_ms: u64,
        delay: Duration,
        /// The longest wait in the queue; packets that would wait longer are lost.
        longest: Duration,
    }

    impl Link {
        fn new(rail: Rail, now: Instant, per_ms: u64, delay: Duration) -> Self {
            let flight = std::collections::VecDeque::new();
            let (free_at, next_at, acked, lost) = (now, now, 0, 0);
            let longest = ms(10_000);
            Self { rail, now, flight, free_at, next_at, acked, lost, per_ms, delay, longest }
        }

        fn in_flight(&self) -> u64 {
            self.flight.len() as u64 * PACKET
        }

        fn step(&mut self) {
            self.now += ms(1);
            while let Some((_, sent, is_lost)) = self.flight.pop_front_if(|one| one.0 <= self.now) {
                *if is_lost { &mut self.lost } else { &mut self.acked } += PACKET;
                let (acked, lost, in_flight) = (self.acked, self.lost, self.in_flight());
                let rtt = Some(self.now - sent).filter(|_| !is_lost);
                self.rail.on_acked(&Acked { now: self.now, acked, lost, in_flight, rtt });
            }
            while self.in_flight() + PACKET <= self.rail.window().0 && self.next_at <= self.now {
                self.rail.on_sent(self.now, PACKET, self.in_flight());
                let pace = self.rail.pacing().and_then(|rate| rate.time_for(Bytes(PACKET)));
                self.next_at = self.next_at.max(self.now - ms(1)) + pace.unwrap_or_default();
                let is_lost = self.free_at.saturating_duration_since(self.now) > self.longest;
                if !is_lost {
                    let serving = Duration::from_nanos(PACKET * 1_000_000 / self.per_ms);
                    self.free_at = self.free_at.max(self.now) + serving;
                }
                self.flight.push_back((self.free_at + self.delay, self.now, is_lost));
            }
        }

        fn run(&mut self, time: Duration) -> f64 {
            let (acked, end) = (self.acked, self.now + time);
            while self.now < end {
                self.step();
            }
            (self.acked - acked) as f64 / time.as_millis() as f64 / self.per_ms as f64
        }

        fn queue(&self) -> Duration {
            self.free_at.saturating_duration_since(self.now)
        }
    }

    #[test]
    fn link_is_filled_with_the_target_queue() {
        let begin = base();
        let mut link = Link::new(Rail::new(begin), begin, 2_500, ms(50));
        link.run(ms(1_000));
        let share = link.run(ms(9_000));
        assert!(share > 0.95, "{share} of the rate");
        assert!(link.queue() < link.rail.target() * 3 / 2, "{:?}", link.queue());
    }

    #[test]
    fn rate_that_rises_twentyfold_is_used_within_a_second() {
        let begin = base();
        let mut link = Link::new(Rail::new(begin), begin, 250, ms(50));
        link.run(ms(5_000));
        link.per_ms = 5_000;
        link.run(ms(1_000));
        let share = link.run(ms(1_000));
        assert!(share > 0.9, "{share} of the new rate");
    }

    #[test]
    fn delay_that_rises_is_not_taken_for_a_queue() {
        let begin = base();
        let mut link = Link::new(Rail::new(begin), begin, 2_500, ms(40));
        link.run(ms(5_000));
        link.delay = ms(200);
        link.run(ms(2_000));
        let share = link.run(ms(3_000));
        assert!(share > 0.85, "{share} of the rate");
    }

    #[test]
    fn shallow_queue_costs_few_packets() {
        let begin = base();
        let mut link = Link::new(Rail::new(begin), begin, 2_500, ms(50));
        link.longest = ms(5);
        link.run(ms(2_000));
        let (share, lost) = (link.run(ms(8_000)), link.lost);
        assert!(share > 0.8, "{share} of the rate");
        assert!((lost as f64) < 0.15 * link.acked as f64, "{lost} of {} lost", link.acked);
    }

    #[test]
    fn fresh_connection_starts_with_half_of_the_known_rate_if_the_path_is_alike() {
        let begin = base();
        let known =
            |age| Knowledge { rate: Bitrate::from_mbps(40.0), rtt: ms(50), at: begin - age };
        for (known, delay, wanted) in [
            (known(ms(0)), ms(50), 20.0),
            (known(ms(0)), ms(10), 0.0),
            (known(KNOWN_FOR + ms(1)), ms(50), 0.0),
        ] {
            let mut link = {
                let mut rail = Rail::new(begin);
                rail.resume(begin, known);
                Link::new(rail, begin, 10_000, delay)
            };
            while link.acked == 0 {
                link.step();
            }
            let rate = link.rail.rate().map_or(0.0, |rate| rate * 8e-6);
            assert!(rate >= wanted && rate < wanted + 15.0, "{rate} Mbit/s, {wanted} at {delay:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn two_seconds_never_bring_less_than_a_tenth_of_the_rate(
            steps in prop::collection::vec((500_u64..6_000, 20_u64..120, 1_000_u64..6_000), 1..5),
            longest in 50_u64..2_000,
        ) {
            let begin = base();
            let mut link = Link::new(Rail::new(begin), begin, steps[0].0, ms(steps[0].1));
            link.longest = ms(longest);
            // Bytes that the link could deliver until each millisecond, and those that it did.
            let mut totals = vec![(0, 0)];
            for &(per_ms, delay, time) in &steps {
                (link.per_ms, link.delay) = (per_ms, ms(delay));
                for _ in 0..time {
                    link.step();
                    totals.push((totals.last().unwrap().0 + per_ms, link.acked));
                }
            }
            let later = totals.iter().skip(2_000);
            for (place, (before, after)) in totals.iter().zip(later).enumerate() {
                let (offered, used) = (after.0 - before.0, after.1 - before.1);
                // The part of a packet that has crossed the link does not count yet.
                let used = used + PACKET;
                prop_assert!(used * 10 >= offered, "{used} of {offered} bytes from {place} ms on");
            }
        }

        #[test]
        fn queue_of_a_steady_link_is_not_above_its_target_for_two_seconds(
            per_ms in 100_u64..6_000, delay in 5_u64..150,
        ) {
            let begin = base();
            let mut link = Link::new(Rail::new(begin), begin, per_ms, ms(delay));
            let target = ms((delay / 2).max(30) + 4 * PACKET / per_ms) * 11 / 10;
            let mut high = 0;
            for _ in 0..10_000 {
                link.step();
                high = if link.queue() > target { high + 1 } else { 0 };
                prop_assert!(high < 2_000, "{:?}, target {target:?}", link.queue());
            }
        }
    }
}
