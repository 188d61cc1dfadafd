//! The bbr of the QUIC tunnels: quiche's `bbr2_gcongestion`, related to BBR versions 2 and 3
//! (draft-ietf-ccwg-bbr), with the tunnels' parameters (`tunnel/src/quic/context.rs`) and with
//! [`Supplement`], the code that drives it there: pacing, idleness, the bound on steady carriers.
//!
//! ```text
//! STARTUP -- flat for 3 rounds, or lossy --> DRAIN -- in flight <= BDP --> PROBE_BW
//!
//! PROBE_BW:  DOWN -> CRUISE -> REFILL -> UP -> DOWN     every 2 s, or as often as Reno would
//!              \________________^   \                   (up to 63 rounds)
//!                                    +-> PROBE_RTT      10 s after the least round-trip time;
//!                                                       half a BDP for 200 ms, then back
//! ```
//!
//! Losses set two bounds of the bytes in flight: `inflight_high` outlives a cycle, `inflight_low`
//! applies until the next probe. The window is never smaller than ten packets.
//!
//! A timeout declares nothing lost: one or two probes exceed the window, and the losses that they
//! show are retransmitted at the old rate. The sender here declares everything lost at a timeout,
//! so a narrow window limits it until something is acknowledged.
//!
//! Left out: pairs of packets sent at once, losses detected by time, and growing reordering.

mod cycle;
mod height;
mod model;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use polyrail_congestion::{PathModel, Supplement};
use polyrail_model::Bitrate;

use super::{Ack, Control, Loss, SEGMENT};
use cycle::Cycle;
use model::{Event, Model, RTT_UNKNOWN, rate_of, times};

/// quiche's bbr.
#[derive(Debug)]
pub struct Bbr2 {
    parameters: Parameters,
    model: Model,
    mode: Mode,
    window: u64,
    gains: Gains,
    /// Bits a second.
    pace: u64,
    /// Packets behind which pacing does not wait, with this one.
    burst: u32,
    in_flight: u64,
    /// Bytes in flight at timeouts since the last acknowledgement. QUIC still counts them.
    unseen: u64,
    timeouts: u64,
    supplement: Supplement,
}

/// The parameters that a user of quiche sets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameters {
    /// More than this share lost in a round is too much (`loss_threshold`).
    pub(super) loss_threshold: f64,
    /// The window of a probe for bandwidth, in BDP (`probe_bw_up_cwnd_gain`).
    pub(super) up_window_gain: f64,
}

/// Of the bandwidth, and of the bandwidth-delay product.
#[derive(Clone, Copy, Debug)]
struct Gains {
    pacing: f64,
    window: f64,
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    Startup,
    Drain,
    ProbeBw(Cycle),
    /// Until when, once little enough is in flight.
    ProbeRtt(Cycle, Option<Instant>),
}

impl Bbr2 {
    /// With these parameters.
    pub(super) fn new(parameters: Parameters) -> Self {
        Self {
            parameters,
            model: Model::default(),
            mode: Mode::Startup,
            window: WINDOW_INITIAL,
            gains: Gains { pacing: STARTUP_PACING, window: STARTUP_WINDOW },
            pace: times(rate_of(WINDOW_INITIAL, RTT_UNKNOWN), PACING_FIRST),
            burst: BURST + 1,
            in_flight: 0,
            unseen: 0,
            timeouts: 0,
            supplement: Supplement::default(),
        }
    }

    /// What an acknowledgement means, with what the sender had already given up.
    fn event(&mut self, ack: &Ack) -> Event {
        let unseen = std::mem::take(&mut self.unseen);
        self.timeouts = 0;
        self.in_flight = ack.in_flight;
        Event {
            now: ack.now,
            prior_window: self.window,
            prior_in_flight: (ack.prior_in_flight + unseen).max(ack.in_flight + ack.bytes),
            in_flight: ack.in_flight,
            acked: ack.bytes,
            lost: ack.lost + unseen,
            delivered: ack.delivered,
            sent: ack.sent,
            rtt: ack.rtt,
            flight: ack.flight,
            oldest_flight: ack.oldest_flight,
            is_probing: match &self.mode {
                Mode::Startup => true,
                Mode::Drain | Mode::ProbeRtt(..) => false,
                Mode::ProbeBw(cycle) => cycle.is_probing(),
            },
            ends_round: false,
        }
    }

    fn path_model(&self) -> PathModel {
        PathModel {
            rate: Bitrate::from_bps(self.model.bandwidth_most()),
            rtt: self.model.rtt(),
            in_startup: matches!(self.mode, Mode::Startup),
        }
    }

    /// Goes on in the mode that it is in; true when that is another one now.
    fn step(&mut self, event: &Event) -> bool {
        let model = &mut self.model;
        let target = model.product(model.bandwidth(), 1.0).min(self.window);
        let next = match &mut self.mode {
            Mode::Startup if is_startup_over(model, event, &self.parameters) => {
                model.bandwidth_low = None;
                Some(Mode::Drain)
            }
            Mode::Startup => None,
            Mode::Drain => {
                self.gains = Gains { pacing: DRAIN_PACING, window: DRAIN_WINDOW };
                let drained = event.in_flight <= model.product_most();
                drained.then(|| Mode::ProbeBw(Cycle::new(event.now, model)))
            }
            Mode::ProbeBw(cycle) => {
                if cycle.advance(event, model, &self.parameters, target) {
                    self.gains.window = 1.0;
                    Some(Mode::ProbeRtt(*cycle, None))
                } else {
                    self.gains.window = cycle.window_gain(&self.parameters);
                    None
                }
            }
            Mode::ProbeRtt(_, until @ None) => {
                if event.in_flight <= probe_rtt_target(model) {
                    *until = Some(event.now + PROBE_RTT_TIME);
                }
                None
            }
            Mode::ProbeRtt(cycle, Some(until)) => {
                let over = event.now > *until;
                over.then(|| Mode::ProbeBw(cycle.resume(event.now, model)))
            }
        };
        let Some(next) = next else { return false };
        self.mode = next;
        true
    }

    fn set_pace(&mut self, event: &Event) {
        let bandwidth = self.model.bandwidth();
        if bandwidth == 0 {
            return;
        }
        if event.delivered == event.acked {
            self.pace = rate_of(self.window, self.model.rtt());
            return;
        }
        let rate = times(bandwidth, self.gains.pacing);
        // It never falls in STARTUP. After DRAIN the supplement's applies.
        self.pace = if self.model.is_full { rate } else { self.pace.max(rate) };
    }

    fn set_window(&mut self, event: &Event) {
        let model = &self.model;
        let target = model.product(model.bandwidth(), self.gains.window).max(WINDOW_LEAST);
        if model.is_full {
            self.window = (self.window + event.acked).min(target + model.height());
        } else if self.window < target || self.window < 2 * WINDOW_INITIAL {
            self.window += event.acked;
        }
        let most = match &self.mode {
            Mode::Startup | Mode::Drain => model.inflight_low,
            Mode::ProbeBw(cycle) if cycle.is_cruising() => {
                model.inflight_low.min(model.inflight_high_with_headroom())
            }
            Mode::ProbeBw(_) => model.inflight_low.min(model.inflight_high),
            Mode::ProbeRtt(..) => model
                .inflight_low
                .min(model.inflight_high_with_headroom())
                .min(probe_rtt_target(model)),
        };
        self.window = self.window.min(most).clamp(WINDOW_LEAST, WINDOW_MAX);
    }
}

/// Flat for three rounds, or lossy and not growing.
fn is_startup_over(model: &mut Model, event: &Event, parameters: &Parameters) -> bool {
    if model.is_full || !event.ends_round {
        return model.is_full;
    }
    let grows = model.check_growth(event);
    if !grows
        && !event.is_limited()
        && !model.is_full
        && model.is_lossy(event, STARTUP_LOSSES, parameters.loss_threshold)
    {
        model.inflight_high = model.product_most().max(model.delivered_in_round());
        model.is_full = true;
    }
    model.is_full
}

fn probe_rtt_target(model: &Model) -> u64 {
    model.product(model.bandwidth_most(), PROBE_RTT_SHARE)
}

impl Control for Bbr2 {
    fn on_sent(&mut self, now: Instant, bytes: u64, in_flight: u64) {
        self.burst = self.burst.saturating_sub(1);
        self.in_flight = in_flight + bytes;
        self.model.on_sent(now, bytes, in_flight + self.unseen);
    }

    fn on_limited(&mut self, in_flight: u64) -> bool {
        let path = self.path_model();
        self.supplement.idleness_counts(&path, in_flight + self.unseen)
    }

    fn on_ack(&mut self, ack: &Ack) {
        self.supplement.on_acked(ack.now, ack.delivered, ack.in_flight);
        let mut event = self.event(ack);
        if event.lost > 0 {
            self.burst = 0;
        }
        self.model.learn(&mut event);
        for _ in 0..MODE_CHANGES {
            if !self.step(&event) {
                break;
            }
        }
        self.set_pace(&event);
        self.set_window(&event);
        self.model.finish(&event);
        let path = self.path_model();
        self.supplement.refresh(Some(&path), ack.in_flight);
    }

    /// Nothing apart from what the acknowledgement told.
    fn on_loss(&mut self, _loss: &Loss) {}

    fn on_timeout(&mut self, _now: Instant, first: bool) {
        self.timeouts = if first { 1 } else { self.timeouts + 1 };
        self.unseen += std::mem::take(&mut self.in_flight);
    }

    fn on_undo(&mut self) {
        (self.unseen, self.timeouts) = (0, 0);
    }

    fn on_restart(&mut self, now: Instant, idle: Duration) {
        match &mut self.mode {
            Mode::Startup | Mode::Drain => {}
            Mode::ProbeBw(_) => self.model.postpone_rtt(idle),
            Mode::ProbeRtt(cycle, until) if until.is_none_or(|until| now > until) => {
                self.mode = Mode::ProbeBw(cycle.resume(now, &mut self.model));
            }
            Mode::ProbeRtt(..) => {}
        }
    }

    fn window(&self) -> u64 {
        let most = self.window.min(self.supplement.bound().unwrap_or(u64::MAX));
        match self.timeouts {
            0 => most,
            row => most.saturating_sub(self.unseen).max(row.min(PROBES) * SEGMENT as u64),
        }
    }

    fn pacing(&self) -> Option<Bitrate> {
        let own = || Bitrate::from_bps(self.pace);
        (self.burst == 0).then(|| self.supplement.pacing().unwrap_or_else(own))
    }
}

/// As the tunnels set them (`tunnel/src/quic/context.rs`).
pub(super) const OF_TUNNELS: Parameters = Parameters { loss_threshold: 0.1, up_window_gain: 1.5 };
/// The window at the beginning: packets are short before the path's MTU is known.
const WINDOW_INITIAL: u64 = 32 * 1_200;
/// The least one.
const WINDOW_LEAST: u64 = 10 * SEGMENT as u64;
/// Before a round-trip time is known: 2 / ln 2.
const PACING_FIRST: f64 = 2.885;
const STARTUP_PACING: f64 = 2.773;
const STARTUP_WINDOW: f64 = 2.0;
/// Losses in a round, each of an acknowledgement, that end STARTUP.
const STARTUP_LOSSES: u32 = 8;
const DRAIN_PACING: f64 = 1.0 / 2.885;
const DRAIN_WINDOW: f64 = 2.0;
const PROBE_RTT_TIME: Duration = Duration::from_millis(200);
const PROBE_RTT_SHARE: f64 = 0.5;
/// By one acknowledgement.
const MODE_CHANGES: u32 = 4;
const WINDOW_MAX: u64 = 20_000 * SEGMENT as u64;
/// Only at the beginning: the pacer means to grant them after each pause, but asks too late.
const BURST: u32 = 10;
/// The most packets that go at a timeout.
const PROBES: u64 = 2;
/// What quiche takes for a packet in its rules.
const PACKET: u64 = 1_300;
const NANOS: u128 = 1_000_000_000;

/// What a bandwidth in bits a second carries, in bytes.
fn bytes_in(bandwidth: u64, time: Duration) -> u64 {
    let bytes = u128::from(bandwidth) * time.as_nanos() / (8 * NANOS);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
