//! BBR as Linux has it, version 1 (`tcp_bbr.c`): a model of bandwidth (maximum over ten rounds) and
//! round-trip time (minimum over ten seconds), STARTUP, DRAIN, PROBE_BW and PROBE_RTT. Loss says
//! nothing, but for packet conservation in the first round after it, and a timeout begins with one
//! segment. The estimator of policers (`lt_bw`) is left out: the links police UDP alone.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use polyrail_model::Bitrate;

use super::{Ack, Control, Loss, WINDOW_FIRST};
use crate::world::transport::SEGMENT;

/// The kernel's bbr.
#[derive(Debug)]
pub struct Bbr {
    mode: Mode,
    window: u64,
    /// What it was before a recovery or PROBE_RTT.
    prior_window: u64,
    pacing_gain: f64,
    window_gain: f64,
    /// Bits a second by round.
    bandwidths: VecDeque<(u64, u64)>,
    rtt_min: Option<(Duration, Instant)>,
    round: u64,
    round_end: u64,
    full_bandwidth: u64,
    full_rounds: u32,
    is_full: bool,
    cycle: usize,
    cycle_began: Option<Instant>,
    probe_rtt_until: Option<Instant>,
    /// Recovery: until so much is delivered the window follows what is acknowledged.
    conserving_until: Option<u64>,
    recovering: bool,
    delivered: u64,
    pace: Option<Bitrate>,
    idle_restart: bool,
    losses_in_round: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Startup,
    Drain,
    ProbeBw,
    ProbeRtt,
}

impl Default for Bbr {
    fn default() -> Self {
        Self {
            mode: Mode::Startup,
            window: WINDOW_FIRST,
            prior_window: 0,
            pacing_gain: GAIN_HIGH,
            window_gain: GAIN_HIGH,
            bandwidths: VecDeque::new(),
            rtt_min: None,
            round: 0,
            round_end: 0,
            full_bandwidth: 0,
            full_rounds: 0,
            is_full: false,
            cycle: 0,
            cycle_began: None,
            probe_rtt_until: None,
            conserving_until: None,
            recovering: false,
            delivered: 0,
            pace: None,
            idle_restart: false,
            losses_in_round: 0,
        }
    }
}

impl Bbr {
    fn bandwidth(&self) -> u64 {
        self.bandwidths.front().map_or(0, |(_, rate)| *rate)
    }

    /// What fits on the way, times a gain.
    fn inflight(&self, gain: f64) -> u64 {
        let Some((rtt, _)) = self.rtt_min else { return WINDOW_FIRST };
        let product = self.bandwidth() as f64 / 8.0 * rtt.as_secs_f64() * gain;
        // Headroom for delayed and joined acknowledgements, as `bbr_quantization_budget` has it.
        let segments = (product / SEGMENT as f64).ceil() as u64 + 3 * GOAL;
        let even = segments + segments % 2;
        even * SEGMENT as u64
    }

    fn learn_bandwidth(&mut self, ack: &Ack) -> bool {
        let begins = ack.prior_delivered >= self.round_end;
        if begins {
            self.round += 1;
            self.round_end = ack.delivered;
            self.losses_in_round = 0;
        }
        if let Some(rate) = ack.rate.map(Bitrate::as_bps)
            && (!ack.application_limited || rate >= self.bandwidth())
        {
            while self.bandwidths.back().is_some_and(|(_, known)| *known <= rate) {
                self.bandwidths.pop_back();
            }
            self.bandwidths.push_back((self.round, rate));
        }
        while self.bandwidths.len() > 1
            && self.bandwidths.front().is_some_and(|(at, _)| at + BANDWIDTH_ROUNDS <= self.round)
        {
            self.bandwidths.pop_front();
        }
        begins
    }

    fn check_full(&mut self, ack: &Ack, begins: bool) {
        if self.is_full || !begins || ack.application_limited {
            return;
        }
        if self.bandwidth() as f64 >= self.full_bandwidth as f64 * FULL_GROWTH {
            self.full_bandwidth = self.bandwidth();
            self.full_rounds = 0;
            return;
        }
        self.full_rounds += 1;
        self.is_full = self.full_rounds >= FULL_ROUNDS;
    }

    fn check_cycle(&mut self, ack: &Ack) {
        if self.mode != Mode::ProbeBw {
            return;
        }
        let Some((rtt, _)) = self.rtt_min else { return };
        let began = *self.cycle_began.get_or_insert(ack.now);
        let lasted = ack.now.saturating_duration_since(began) > rtt;
        let over = match self.pacing_gain {
            gain if gain > 1.0 => {
                let full = ack.prior_in_flight >= self.inflight(gain);
                lasted && (self.losses_in_round > 0 || full)
            }
            gain if gain < 1.0 => lasted || ack.prior_in_flight <= self.inflight(1.0),
            _ => lasted,
        };
        if over {
            self.cycle = (self.cycle + 1) % CYCLE.len();
            self.cycle_began = Some(ack.now);
            self.pacing_gain = CYCLE[self.cycle];
        }
    }

    fn check_drain(&mut self, ack: &Ack) {
        if self.mode == Mode::Startup && self.is_full {
            self.mode = Mode::Drain;
            (self.pacing_gain, self.window_gain) = (1.0 / GAIN_HIGH, GAIN_HIGH);
        }
        if self.mode == Mode::Drain && ack.in_flight <= self.inflight(1.0) {
            self.probe_bandwidth(ack.now);
        }
    }

    fn probe_bandwidth(&mut self, now: Instant) {
        self.mode = Mode::ProbeBw;
        self.window_gain = GAIN_WINDOW;
        // The kernel begins anywhere but in the phase that drains; here always behind it.
        self.cycle = 2;
        self.cycle_began = Some(now);
        self.pacing_gain = CYCLE[self.cycle];
    }

    fn learn_rtt(&mut self, ack: &Ack) {
        let expired =
            self.rtt_min.is_some_and(|(_, at)| ack.now > at + RTT_WINDOW) && !self.idle_restart;
        if let Some(rtt) = ack.rtt
            && (expired || self.rtt_min.is_none_or(|(least, _)| rtt <= least))
        {
            self.rtt_min = Some((rtt, ack.now));
        }
        if expired && self.mode != Mode::ProbeRtt {
            self.mode = Mode::ProbeRtt;
            (self.pacing_gain, self.window_gain) = (1.0, 1.0);
            self.prior_window = self.prior_window.max(self.window);
            self.probe_rtt_until = None;
        }
        if self.mode == Mode::ProbeRtt {
            match self.probe_rtt_until {
                None if ack.in_flight <= WINDOW_PROBE => {
                    self.probe_rtt_until = Some(ack.now + PROBE_RTT_TIME);
                }
                Some(until) if ack.now >= until => {
                    self.rtt_min = self.rtt_min.map(|(rtt, _)| (rtt, ack.now));
                    self.window = self.window.max(self.prior_window);
                    self.prior_window = 0;
                    self.probe_rtt_until = None;
                    if self.is_full {
                        self.probe_bandwidth(ack.now);
                    } else {
                        self.mode = Mode::Startup;
                        (self.pacing_gain, self.window_gain) = (GAIN_HIGH, GAIN_HIGH);
                    }
                }
                _ => {}
            }
        }
        self.idle_restart = false;
    }

    fn set_window(&mut self, ack: &Ack) {
        let target = self.inflight(self.window_gain);
        match self.conserving_until {
            Some(until) if ack.prior_delivered < until => {
                self.window = self.window.max(ack.in_flight + ack.bytes);
            }
            Some(_) => {
                self.conserving_until = None;
                self.restore();
            }
            None => {}
        }
        if self.conserving_until.is_none() {
            if self.is_full {
                self.window = (self.window + ack.bytes).min(target);
            } else if self.window < target || self.delivered < WINDOW_FIRST {
                self.window += ack.bytes;
            }
        }
        self.window = self.window.max(WINDOW_PROBE);
        if self.mode == Mode::ProbeRtt {
            self.window = self.window.min(WINDOW_PROBE);
        }
    }

    fn restore(&mut self) {
        self.recovering = false;
        self.window = self.window.max(self.prior_window);
        self.prior_window = 0;
    }

    fn set_pace(&mut self, ack: &Ack) {
        let rate = match (self.bandwidth(), ack.rtt) {
            (0, Some(rtt)) => WINDOW_FIRST as f64 * 8.0 / rtt.as_secs_f64().max(0.001),
            (0, None) => return,
            (bandwidth, _) => bandwidth as f64 * PACE_MARGIN,
        };
        let pace = Bitrate::from_bps((rate * self.pacing_gain) as u64);
        if self.is_full || self.pace.is_none_or(|known| pace > known) {
            self.pace = Some(pace);
        }
    }
}

impl Control for Bbr {
    fn on_ack(&mut self, ack: &Ack) {
        self.delivered = ack.delivered;
        let begins = self.learn_bandwidth(ack);
        self.check_cycle(ack);
        self.check_full(ack, begins);
        self.check_drain(ack);
        self.learn_rtt(ack);
        self.set_pace(ack);
        self.set_window(ack);
    }

    fn on_loss(&mut self, loss: &Loss) {
        self.losses_in_round += loss.bytes;
        if loss.fresh && !self.recovering {
            self.recovering = true;
            self.prior_window = match self.mode {
                Mode::ProbeRtt => self.prior_window.max(self.window),
                _ => self.window,
            };
            self.window = loss.in_flight + SEGMENT as u64;
            self.conserving_until = Some(self.delivered + loss.in_flight);
        } else if self.conserving_until.is_some() {
            self.window = self.window.saturating_sub(loss.bytes).max(SEGMENT as u64);
        }
    }

    fn on_timeout(&mut self, _now: Instant) {
        if !self.recovering {
            self.prior_window = self.window;
        }
        self.recovering = true;
        self.full_bandwidth = 0;
        self.losses_in_round += 1;
        self.window = SEGMENT as u64;
        self.conserving_until = Some(self.delivered + SEGMENT as u64);
    }

    fn on_restart(&mut self, _now: Instant, _idle: Duration) {
        self.idle_restart = true;
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn pacing(&self) -> Option<Bitrate> {
        self.pace
    }

    fn in_slow_start(&self) -> bool {
        self.mode == Mode::Startup && !self.is_full
    }
}

/// 2 / ln 2.
const GAIN_HIGH: f64 = 2.885;
const GAIN_WINDOW: f64 = 2.0;
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
const BANDWIDTH_ROUNDS: u64 = 10;
const FULL_GROWTH: f64 = 1.25;
const FULL_ROUNDS: u32 = 3;
const RTT_WINDOW: Duration = Duration::from_secs(10);
const PROBE_RTT_TIME: Duration = Duration::from_millis(200);
const WINDOW_PROBE: u64 = 4 * SEGMENT as u64;
/// The kernel paces at 99 % of the estimate.
const PACE_MARGIN: f64 = 0.99;
/// Segments of one offloaded burst.
const GOAL: u64 = 2;
