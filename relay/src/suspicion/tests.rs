//! Synthetic samples: senders like bbr2 and cubic over links like those that carriers have, in
//! steps of a millisecond.

use std::collections::VecDeque;
use std::time::Instant;

use polyrail_model::Bytes;

use super::*;

const PACKET: f64 = 1_200.0;

/// The link between the two ends.
#[derive(Clone, Copy)]
struct Link {
    mbps: f64,
    rtt_ms: u64,
    queue_bytes: f64,
    /// A share of the packets.
    loss: f64,
    /// Rate and size of the token bucket.
    policer: Option<(f64, f64)>,
    /// Everything is dropped.
    dark: bool,
}

const FAST: Link =
    Link { mbps: 50.0, rtt_ms: 60, queue_bytes: 5e5, loss: 0.0, policer: None, dark: false };

#[derive(Clone, Copy, PartialEq, Debug)]
enum Control {
    Bbr,
    Cubic,
}

type Change = (u64, fn(&mut Link));

/// A link with its changes, and the offered load in Mbit/s if it is limited.
struct World {
    name: &'static str,
    link: Link,
    changes: &'static [Change],
    offered_mbps: fn(u64) -> Option<f64>,
}

struct Sender {
    control: Control,
    now_ms: u64,
    link: Link,
    // The network.
    queue_bytes: f64,
    tokens: f64,
    /// (comes back at, bytes, lost, sent at)
    flying: VecDeque<(f64, bool, u64)>,
    // The transport.
    srtt: f64,
    rtt_min: f64,
    in_flight: f64,
    window: f64,
    acked: f64,
    sent: u64,
    lost: u64,
    timeouts: u32,
    heard_ms: u64,
    budget: f64,
    bandwidths: VecDeque<f64>,
    round: Round,
    cycle_ms: u64,
    startup: bool,
    stale_rounds: u32,
    window_max: f64,
    random: u64,
}

#[derive(Default)]
struct Round {
    begun_ms: u64,
    acked: f64,
    lost: f64,
}

impl Sender {
    fn new(control: Control, link: Link, seed: u64) -> Self {
        Self {
            control,
            now_ms: 0,
            link,
            queue_bytes: 0.0,
            tokens: link.policer.map_or(0.0, |(_, size)| size),
            flying: VecDeque::new(),
            srtt: link.rtt_ms as f64,
            rtt_min: link.rtt_ms as f64,
            in_flight: 0.0,
            window: 10.0 * PACKET,
            acked: 0.0,
            sent: 0,
            lost: 0,
            timeouts: 0,
            heard_ms: 0,
            budget: 0.0,
            bandwidths: VecDeque::new(),
            round: Round::default(),
            cycle_ms: 0,
            startup: true,
            stale_rounds: 0,
            window_max: f64::MAX,
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    fn chance(&mut self, share: f64) -> bool {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((self.random >> 33) as f64 / f64::from(1u32 << 31)) < share
    }

    /// Bytes a millisecond.
    fn bandwidth(&self) -> f64 {
        self.bandwidths.iter().copied().fold(PACKET / 10.0, f64::max)
    }

    fn step(&mut self, offered_mbps: Option<f64>) {
        self.now_ms += 1;
        self.queue_bytes = (self.queue_bytes - self.link.mbps * 125.0).max(0.0);
        if let Some((mbps, size)) = self.link.policer {
            self.tokens = (self.tokens + mbps * 125.0).min(size);
        }
        while self.flying.front().is_some_and(|(at, ..)| *at <= self.now_ms as f64) {
            let Some((_, lost, sent_ms)) = self.flying.pop_front() else { break };
            self.on_fate(lost, sent_ms);
        }
        if self.now_ms - self.round.begun_ms >= self.srtt as u64 {
            self.end_round(offered_mbps.is_some());
        }
        self.send(offered_mbps);
        let silence = (self.now_ms - self.heard_ms) as f64;
        if self.in_flight > 0.0
            && silence > (self.srtt * 2.0 + 25.0) * f64::from(1 << self.timeouts)
        {
            self.timeouts = (self.timeouts + 1).min(12);
            self.put_on_wire();
        }
    }

    fn on_fate(&mut self, lost: bool, sent_ms: u64) {
        if self.link.dark && lost {
            // A loss is found when data is acknowledged again.
            self.flying.push_back((self.now_ms as f64 + 50.0, lost, sent_ms));
            return;
        }
        self.in_flight -= PACKET;
        if lost {
            self.lost += 1;
            self.round.lost += PACKET;
            return;
        }
        let rtt = (self.now_ms - sent_ms) as f64;
        self.srtt += (rtt - self.srtt) / 8.0;
        self.rtt_min = self.rtt_min.min(rtt);
        self.acked += PACKET;
        self.round.acked += PACKET;
        self.timeouts = 0;
        self.heard_ms = self.now_ms;
        if self.control == Control::Cubic {
            self.window += if self.startup { PACKET } else { PACKET * PACKET / self.window };
        }
    }

    fn end_round(&mut self, limited: bool) {
        let time = (self.now_ms - self.round.begun_ms) as f64;
        let loss = self.round.lost / (self.round.lost + self.round.acked).max(1.0);
        let before = self.bandwidth();
        let rate = self.round.acked / time;
        if self.round.acked > 0.0 && (!limited || rate > before) {
            self.bandwidths.push_back(rate);
        }
        if self.bandwidths.len() > 10 {
            self.bandwidths.pop_front();
        }
        match self.control {
            Control::Cubic if loss > 0.0 => {
                self.startup = false;
                self.window = (self.window * 0.7).max(2.0 * PACKET);
            }
            Control::Cubic => {}
            Control::Bbr => {
                let grown = self.bandwidth() > before * 1.25;
                self.stale_rounds = if grown { 0 } else { self.stale_rounds + 1 };
                if self.startup && (self.stale_rounds >= 3 || loss > 0.02) {
                    self.startup = false;
                    self.cycle_ms = self.now_ms;
                }
                let product = self.bandwidth() * self.rtt_min;
                if loss > 0.02 {
                    self.window_max = (self.in_flight * 0.7).max(product);
                }
                let gain = if self.startup { 2.77 } else { 2.0 };
                self.window = (gain * product).min(self.window_max).max(4.0 * PACKET);
            }
        }
        self.round = Round { begun_ms: self.now_ms, ..Round::default() };
    }

    /// Bytes a millisecond.
    fn pace(&mut self) -> f64 {
        if self.control == Control::Cubic {
            return 1.25 * self.window / self.srtt;
        }
        let since = (self.now_ms - self.cycle_ms) as f64;
        let gain = match since / self.rtt_min {
            _ if self.startup => 2.77,
            rounds if rounds < 2.0 => 0.7,
            _ if since < 2_000.0 => 1.0,
            _ if since < 2_000.0 + 2.0 * self.rtt_min => {
                self.window_max = f64::MAX;
                1.25
            }
            _ => {
                self.cycle_ms = self.now_ms;
                0.7
            }
        };
        gain * self.bandwidth()
    }

    fn send(&mut self, offered_mbps: Option<f64>) {
        let pace = self.pace();
        self.budget += offered_mbps.map_or(pace, |mbps| pace.min(mbps * 125.0));
        while self.budget >= PACKET && self.in_flight + PACKET <= self.window {
            self.budget -= PACKET;
            self.put_on_wire();
        }
        self.budget = self.budget.min(2.0 * PACKET);
    }

    fn put_on_wire(&mut self) {
        if self.in_flight <= 0.0 {
            self.heard_ms = self.now_ms;
        }
        self.sent += 1;
        self.in_flight += PACKET;
        let policed = self.link.policer.is_some() && self.tokens < PACKET;
        if self.link.policer.is_some() && !policed {
            self.tokens -= PACKET;
        }
        let full = self.queue_bytes + PACKET > self.link.queue_bytes;
        let unlucky = self.chance(self.link.loss);
        let lost = policed || full || unlucky || self.link.dark;
        if !policed && !full {
            self.queue_bytes += PACKET;
        }
        let back = self.now_ms as f64
            + self.link.rtt_ms as f64
            + self.queue_bytes / (self.link.mbps * 125.0);
        self.flying.push_back((back, lost, self.now_ms));
    }

    fn sample(&self, start: Instant, limited: bool) -> LinkSample {
        let ms = |ms: f64| Duration::from_secs_f64(ms / 1e3);
        LinkSample {
            at: start + Duration::from_millis(self.now_ms),
            srtt: ms(self.srtt),
            rtt_min: ms(self.rtt_min),
            rtt_var: ms(self.srtt / 16.0),
            window: Bytes(self.window as u64),
            in_flight: Bytes(self.in_flight as u64),
            unsent: Bytes(if limited { 0 } else { 16_384 }),
            delivery_rate: None,
            application_limited: limited,
            sent_packets: self.sent,
            lost_packets: self.lost,
            spurious_packets: 0,
            timeouts: self.timeouts,
            acked: Bytes(self.acked as u64),
        }
    }
}

/// The times of suspicion within 20 s, with the rates.
fn run(world: &World, control: Control, seed: u64) -> Vec<(f64, f64)> {
    let mut sender = Sender::new(control, world.link, seed);
    let mut suspicion = Suspicion::default();
    let start = Instant::now();
    let mut said = Vec::new();
    for now_ms in 1..=20_000 {
        for (at_ms, change) in world.changes {
            if *at_ms == now_ms {
                change(&mut sender.link);
            }
        }
        let offered = (world.offered_mbps)(now_ms);
        sender.step(offered);
        // As in the relay, an idle tunnel is not measured.
        if now_ms % 8 == 0 && (sender.in_flight > 0.0 || offered.is_none()) {
            let sample = sender.sample(start, offered.is_some());
            if let Some(rate) = suspicion.on_sample(&sample) {
                said.push((now_ms as f64 / 1e3, rate.as_mbps()));
            }
        }
    }
    said
}

const ALWAYS: fn(u64) -> Option<f64> = |_| None;

const fn policed(mbps: f64, size: f64, rtt_ms: u64) -> Link {
    Link { policer: Some((mbps, size)), rtt_ms, ..FAST }
}

#[test]
fn policing_is_detected_within_three_and_a_half_seconds_of_sending() {
    let plain = |name, link| World { name, link, changes: &[], offered_mbps: ALWAYS };
    let worlds = [
        plain("1 Mbit/s, 16 kB, 60 ms", policed(1.0, 16e3, 60)),
        plain("1 Mbit/s, 32 kB, 20 ms", policed(1.0, 32e3, 20)),
        plain("1 Mbit/s, 125 kB, 60 ms", policed(1.0, 125e3, 60)),
        plain("1 Mbit/s, 32 kB, 200 ms", policed(1.0, 32e3, 200)),
        plain("5 Mbit/s, 64 kB, 60 ms", policed(5.0, 64e3, 60)),
        plain("with 1 % loss", Link { loss: 0.01, ..policed(1.0, 32e3, 60) }),
        plain("a slow carrier", Link { mbps: 8.0, ..policed(1.0, 32e3, 60) }),
    ];
    for world in &worlds {
        for control in [Control::Bbr, Control::Cubic] {
            for seed in 1..=3 {
                let said = run(world, control, seed);
                let wanted = world.link.policer.unwrap().0;
                let (at, rate) = said.first().copied().unwrap_or((f64::MAX, 0.0));
                assert!(at <= 3.5, "{} {control:?}", world.name);
                assert!((0.4 * wanted..2.0 * wanted).contains(&rate), "{} {control:?}", world.name);
                assert!(said.len() >= 2, "{} {control:?}: said once", world.name);
            }
        }
    }
}

#[test]
fn policing_that_begins_later_is_detected() {
    let begins: &[Change] = &[(8_000, |link| link.policer = Some((1.0, 32e3)))];
    let world = World { name: "from 8 s on", link: FAST, changes: begins, offered_mbps: ALWAYS };
    for control in [Control::Bbr, Control::Cubic] {
        let said = run(&world, control, 7);
        let (at, rate) = said.first().copied().unwrap_or_default();
        assert!((8.0..12.0).contains(&at) && (0.5..2.0).contains(&rate), "{control:?}: {said:?}");
    }
}

#[test]
fn blackouts_handovers_queues_and_light_loss_are_not_policing() {
    let plain = |name, link| World { name, link, changes: &[], offered_mbps: ALWAYS };
    let drop_tail = Link { mbps: 10.0, queue_bytes: 1e5, ..FAST };
    let dark: &[Change] = &[(5_000, |link| link.dark = true), (8_000, |link| link.dark = false)];
    let handover: &[Change] = &[
        (5_000, |link| (link.dark, link.mbps) = (true, 4.0)),
        (5_080, |link| (link.dark, link.rtt_ms) = (false, 80)),
        (12_000, |link| link.mbps = 30.0),
    ];
    let worlds = [
        plain("clean", Link { mbps: 20.0, ..FAST }),
        plain("1 % random loss", Link { mbps: 20.0, loss: 0.01, ..FAST }),
        plain("drop-tail, 80 ms", drop_tail),
        plain("drop-tail, 80 ms, 1 % loss", Link { loss: 0.01, ..drop_tail }),
        World { name: "3 s blackout", link: FAST, changes: dark, offered_mbps: ALWAYS },
        World { name: "handover", link: FAST, changes: handover, offered_mbps: ALWAYS },
        World {
            name: "3 % loss, little to send",
            link: Link { loss: 0.03, ..FAST },
            changes: &[],
            offered_mbps: |_| Some(0.3),
        },
        World {
            name: "policed, and never more to send",
            link: policed(1.0, 32e3, 60),
            changes: &[],
            offered_mbps: |_| Some(0.5),
        },
        World {
            name: "idle",
            link: policed(1.0, 32e3, 60),
            changes: &[],
            offered_mbps: |_| Some(0.0),
        },
    ];
    for world in &worlds {
        for control in [Control::Bbr, Control::Cubic] {
            for seed in 1..=3 {
                let said = run(world, control, seed);
                assert!(said.is_empty(), "{} {control:?}: {said:?}", world.name);
            }
        }
    }
}
