//! What bbr2 knows of the path (`BBRv2NetworkModel`): bandwidth, the least round-trip time, and
//! what losses taught about how much may be in flight.

use std::time::{Duration, Instant};

use super::height::{Arrival, Height};
use super::{NANOS, PACKET, bytes_in};
use crate::congestion::Flight;

/// The model.
#[derive(Debug)]
pub(super) struct Model {
    rounds: u64,
    /// All that was sent so far.
    sent: u64,
    /// The round ends when something is acknowledged that left after so much had been sent.
    round_end: Option<u64>,
    /// Bits a second: the most of the cycle before, and of this one.
    bandwidths: [u64; 2],
    rtt: Duration,
    rtt_at: Option<Instant>,
    round: Round,
    bandwidth_latest: u64,
    /// Until the next probe, no more than this.
    pub(super) bandwidth_low: Option<u64>,
    inflight_latest: u64,
    /// Until the next probe, no more than this; `u64::MAX`: no bound. In bytes.
    pub(super) inflight_low: u64,
    /// No more than this; `u64::MAX`: no bound. In bytes.
    pub(super) inflight_high: u64,
    /// The bandwidth does not grow any more: STARTUP is over.
    pub(super) is_full: bool,
    full_bandwidth: u64,
    rounds_flat: u32,
    rounds_queued: u32,
    height: Height,
}

/// The sums of a round.
#[derive(Debug)]
struct Round {
    lost: u64,
    losses: u32,
    /// The most that arrived during one segment's flight.
    delivered: u64,
    in_flight_min: u64,
}

/// An acknowledgement with the figures derived from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) now: Instant,
    pub(super) prior_window: u64,
    pub(super) prior_in_flight: u64,
    pub(super) in_flight: u64,
    pub(super) acked: u64,
    pub(super) lost: u64,
    /// In all.
    pub(super) delivered: u64,
    pub(super) sent: u64,
    pub(super) rtt: Option<Duration>,
    /// Of the newest segment.
    pub(super) flight: Option<Flight>,
    /// Of the oldest. What lies between the two says hardly more than they.
    pub(super) oldest_flight: Option<Flight>,
    /// More than the bounds allow was being tried.
    pub(super) is_probing: bool,
    pub(super) ends_round: bool,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            rounds: 0,
            sent: 0,
            round_end: None,
            bandwidths: [0; 2],
            rtt: RTT_UNKNOWN,
            rtt_at: None,
            round: Round::default(),
            bandwidth_latest: 0,
            bandwidth_low: None,
            inflight_latest: 0,
            inflight_low: u64::MAX,
            inflight_high: u64::MAX,
            is_full: false,
            full_bandwidth: 0,
            rounds_flat: 0,
            rounds_queued: 0,
            height: Height::default(),
        }
    }
}

impl Default for Round {
    fn default() -> Self {
        Self { lost: 0, losses: 0, delivered: 0, in_flight_min: u64::MAX }
    }
}

impl Event {
    /// The application limited the newest segment.
    pub(super) fn is_limited(&self) -> bool {
        self.flight.is_some_and(|flight| flight.application_limited)
    }

    fn flights(&self) -> impl Iterator<Item = Flight> {
        self.oldest_flight.into_iter().chain(self.flight)
    }

    /// The best rate in bits a second, and whether the application limited it.
    fn rate(&self) -> Option<(u64, bool)> {
        let rates = self.flights().filter(|flight| !flight.acking.is_zero());
        let rates = rates.map(|flight| (rate(&flight), !flight.application_limited));
        rates.max().map(|(rate, free)| (rate, !free))
    }
}

impl Model {
    /// The most of two cycles, in bits a second.
    pub(super) fn bandwidth_most(&self) -> u64 {
        self.bandwidths[0].max(self.bandwidths[1])
    }

    /// The same within what losses allow.
    pub(super) fn bandwidth(&self) -> u64 {
        self.bandwidth_low.map_or(self.bandwidth_most(), |low| low.min(self.bandwidth_most()))
    }

    /// The least round-trip time.
    pub(super) fn rtt(&self) -> Duration {
        self.rtt
    }

    /// A bandwidth-delay product in bytes, times a gain.
    pub(super) fn product(&self, bandwidth: u64, gain: f64) -> u64 {
        bytes_in(times(bandwidth, gain), self.rtt)
    }

    /// That of the most bandwidth.
    pub(super) fn product_most(&self) -> u64 {
        self.product(self.bandwidth_most(), 1.0)
    }

    /// What joined acknowledgements add to the window.
    pub(super) fn height(&self) -> u64 {
        self.height.most()
    }

    /// With room for others.
    pub(super) fn inflight_high_with_headroom(&self) -> u64 {
        self.inflight_high - (self.inflight_high as f64 * HEADROOM) as u64
    }

    /// The most that arrived during one flight of this round.
    pub(super) fn delivered_in_round(&self) -> u64 {
        self.round.delivered
    }

    /// Rounds in a row in which a queue stood.
    pub(super) fn rounds_queued(&self) -> u32 {
        self.rounds_queued
    }

    /// Something leaves while so much is in flight.
    pub(super) fn on_sent(&mut self, now: Instant, bytes: u64, in_flight: u64) {
        self.sent += bytes;
        self.rtt_at.get_or_insert(now);
        self.round.in_flight_min = self.round.in_flight_min.min(in_flight);
    }

    /// Learns from an acknowledgement, and notes in it whether it ends a round.
    pub(super) fn learn(&mut self, event: &mut Event) {
        self.sent = event.sent;
        event.ends_round = self.round_ends(event);
        let sample = event.rate();
        let rate = sample.map(|(rate, _)| rate);
        self.learn_height(event, rate);
        if let Some((rate, limited)) = sample
            && (!limited || rate > self.bandwidth_most())
        {
            self.bandwidths[1] = self.bandwidths[1].max(rate);
        }
        if let Some(rtt) = event.rtt.filter(|rtt| *rtt < self.rtt) {
            (self.rtt, self.rtt_at) = (rtt, Some(event.now));
        }
        if event.lost > 0 {
            self.round.lost += event.lost;
            self.round.losses += 1;
        }
        let newest = event.flight.map_or(0, |flight| flight.acked_since);
        self.round.delivered = self.round.delivered.max(newest);
        self.round.in_flight_min = self.round.in_flight_min.min(event.in_flight);
        self.bandwidth_latest = self.bandwidth_latest.max(rate.unwrap_or_default());
        let delivered = event.flights().map(|flight| flight.acked_since).max().unwrap_or(0);
        self.inflight_latest = self.inflight_latest.max(delivered);
        self.adapt_lower_bounds(event);
        if event.ends_round {
            self.bandwidth_latest = rate.unwrap_or(self.bandwidth_latest);
            if delivered > 0 {
                self.inflight_latest = delivered;
            }
        }
    }

    fn round_ends(&mut self, event: &Event) -> bool {
        let Some(flight) = event.flight else { return false };
        if self.round_end.is_some_and(|end| flight.sent <= end) {
            return false;
        }
        self.rounds += 1;
        self.round_end = Some(event.sent);
        true
    }

    fn learn_height(&mut self, event: &Event, rate: Option<u64>) {
        let Some(flight) = event.flight else { return };
        let most = self.bandwidth_most();
        let known = rate.map_or(most, |rate| rate.max(most));
        let arrival = Arrival {
            now: event.now,
            bytes: event.acked,
            sent: event.sent,
            sent_of_newest: flight.sent,
            round: self.rounds,
        };
        self.height.update(known.min(self.bandwidth_low.unwrap_or(known)), known > most, &arrival);
    }

    /// A lossy round lowers the window until the next probe.
    fn adapt_lower_bounds(&mut self, event: &Event) {
        if !event.ends_round || event.is_probing || self.round.lost == 0 {
            return;
        }
        let low = self.bandwidth_low.unwrap_or(self.bandwidth_most());
        self.bandwidth_low = Some(self.bandwidth_latest.max(times(low, 1.0 - BETA)));
        if self.inflight_low == u64::MAX {
            self.inflight_low = event.prior_window;
        }
        let low = (self.inflight_low as f64 * (1.0 - BETA)) as u64;
        self.inflight_low = self.inflight_latest.max(low);
    }

    /// To be called last for an acknowledgement.
    pub(super) fn finish(&mut self, event: &Event) {
        if event.ends_round {
            self.round = Round::default();
        }
    }

    /// A round begins now.
    pub(super) fn restart_round(&mut self) {
        self.round = Round::default();
        self.round_end = Some(self.sent);
        self.rounds_queued = 0;
    }

    /// Whether the bandwidth grew by a quarter; else the round was flat.
    pub(super) fn check_growth(&mut self, event: &Event) -> bool {
        let most = self.bandwidth_most();
        if most >= times(self.full_bandwidth, GROWTH) {
            (self.full_bandwidth, self.rounds_flat) = (most, 0);
            return true;
        }
        if event.flight.is_some() && !event.is_limited() {
            self.rounds_flat += 1;
            self.is_full |= self.rounds_flat >= ROUNDS_FLAT;
        }
        false
    }

    /// Counts the rounds in which more than the path holds was in flight all the time.
    pub(super) fn check_queue(&mut self) {
        let target = self
            .product(self.bandwidth_most(), GROWTH)
            .max(self.product_most() + QUEUE_PACKETS * PACKET);
        if self.round.in_flight_min < target {
            self.rounds_queued = 0;
        } else {
            self.rounds_queued += 1;
            self.is_full = true;
        }
    }

    /// So many losses, and more than this share, in the round.
    pub(super) fn is_lossy(&self, event: &Event, losses: u32, share: f64) -> bool {
        let Some(flight) = event.flight else { return false };
        self.round.losses >= losses
            && flight.in_flight > 0
            && self.round.lost > (flight.in_flight as f64 * share) as u64
    }

    /// Whether the round-trip time must be measured again; then the last one is the minimum.
    pub(super) fn expire_rtt(&mut self, event: &Event) -> bool {
        let expired = self.rtt_at.is_none_or(|at| event.now >= at + RTT_WINDOW);
        let Some(rtt) = event.rtt.filter(|_| expired) else { return false };
        (self.rtt, self.rtt_at) = (rtt, Some(event.now));
        true
    }

    /// Idle time does not age it.
    pub(super) fn postpone_rtt(&mut self, idle: Duration) {
        self.rtt_at = self.rtt_at.map(|at| at + idle);
    }

    /// The bandwidth of the cycle before last is forgotten.
    pub(super) fn advance_bandwidth(&mut self) {
        if self.bandwidths[1] > 0 {
            self.bandwidths = [self.bandwidths[1], 0];
        }
    }
}

/// The lower of the rates at which a flight was sent and acknowledged, in bits a second. Lost bytes
/// count as sent, unlike in the kernel's estimate.
fn rate(flight: &Flight) -> u64 {
    let acked = rate_of(flight.acked_since, flight.acking);
    if flight.sending.is_zero() {
        return acked;
    }
    acked.min(rate_of(flight.sent_since, flight.sending))
}

/// A gain of a bandwidth in bits a second.
pub(super) fn times(bandwidth: u64, gain: f64) -> u64 {
    (bandwidth as f64 * gain).round() as u64
}

/// Bits a second. Whole ones: what lies between decides whether acknowledgements came early.
pub(super) fn rate_of(bytes: u64, time: Duration) -> u64 {
    let rate = u128::from(bytes) * 8 * NANOS / time.as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// Before anything was measured (RFC 9002 6.2.2).
pub(super) const RTT_UNKNOWN: Duration = Duration::from_millis(333);
const RTT_WINDOW: Duration = Duration::from_secs(10);
const GROWTH: f64 = 1.25;
const ROUNDS_FLAT: u32 = 3;
const QUEUE_PACKETS: u64 = 2;
const HEADROOM: f64 = 0.15;
/// What a loss takes away.
pub(super) const BETA: f64 = 0.3;
