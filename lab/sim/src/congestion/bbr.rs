//! The kernel's BBR, version 1 (`tcp_bbr.c`): a model of bandwidth (maximum over ten rounds) and
//! round-trip time (minimum over ten seconds), STARTUP, DRAIN, PROBE_BW and PROBE_RTT. Loss has no
//! effect, except for packet conservation in the first round of a recovery. A timeout starts with
//! one segment. After both the window is restored. At heavy loss with an even rate the long-term
//! estimate (`lt_bw`) applies. Headroom for aggregated acknowledgements is learned.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use polyrail_model::Bitrate;

use super::plus::Plus;
use super::policer::Policer;
use super::{Ack, Control, Estimate, Loss, Phase, SEGMENT, WINDOW_FIRST};

/// The kernel's bbr, or BBR+.
#[derive(Debug)]
pub struct Bbr {
    mode: Mode,
    window: u64,
    /// The window before a recovery or PROBE_RTT.
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
    /// A round of PROBE_RTT ends when this is delivered; none if a round has ended.
    probe_rtt_round: Option<u64>,
    /// The window follows the acknowledged bytes until a round is over.
    conserving: bool,
    /// The sender's phase at the previous acknowledgement.
    phase: Phase,
    delivered: u64,
    pace: Option<Bitrate>,
    idle_restart: bool,
    policer: Policer,
    extra: Extra,
    /// What BBR+ changes; `None`: the kernel's bbr.
    plus: Option<Plus>,
}

/// Bytes acknowledged in excess of the bandwidth (`bbr_update_ack_aggregation`).
#[derive(Debug, Default)]
struct Extra {
    began: Option<Instant>,
    acked: u64,
    /// The most in this window of rounds and in the one before.
    most: [u64; 2],
    rounds: u32,
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
            probe_rtt_round: None,
            conserving: false,
            phase: Phase::Open,
            delivered: 0,
            pace: None,
            idle_restart: false,
            policer: Policer::default(),
            extra: Extra::default(),
            plus: None,
        }
    }
}

impl Bbr {
    /// BBR+ with this share of the deviation in its round-trip time.
    pub(super) fn plus(lambda: f64) -> Self {
        Self { plus: Some(Plus::new(lambda)), ..Self::default() }
    }

    fn bandwidth_max(&self) -> u64 {
        self.bandwidths.front().map_or(0, |(_, rate)| *rate)
    }

    fn bandwidth(&self) -> u64 {
        self.policer.bandwidth().unwrap_or_else(|| self.bandwidth_max())
    }

    /// The bandwidth-delay product, times a gain.
    fn inflight(&self, bandwidth: u64, gain: f64) -> u64 {
        let rtt = self.rtt_min.map(|(rtt, _)| rtt);
        rtt.map_or(WINDOW_FIRST, |rtt| self.product(bandwidth, rtt, gain))
    }

    fn product(&self, bandwidth: u64, rtt: Duration, gain: f64) -> u64 {
        let product = bandwidth as f64 / 8.0 * rtt.as_secs_f64() * gain;
        self.quantized((product / SEGMENT as f64).ceil() as u64)
    }

    /// With headroom for bursts, like `bbr_quantization_budget`.
    fn quantized(&self, segments: u64) -> u64 {
        let segments = segments + 3 * GOAL;
        let probing = self.mode == Mode::ProbeBw && self.cycle == 0;
        (segments + segments % 2 + if probing { 2 } else { 0 }) * SEGMENT as u64
    }

    /// The target window.
    fn target(&self) -> u64 {
        let extra = match self.is_full {
            true => self.extra.most.iter().copied().max().unwrap_or_default(),
            false => 0,
        };
        let most = self.bandwidth() / 8 / 10;
        let Some(rtt) = self.rtt_of_window() else { return WINDOW_FIRST + extra.min(most) };
        self.product(self.bandwidth(), rtt, self.window_gain) + extra.min(most)
    }

    /// BBR+ adds to the least round-trip time in the window only.
    fn rtt_of_window(&self) -> Option<Duration> {
        let (least, _) = self.rtt_min?;
        Some(self.plus.as_ref().map_or(least, |plus| plus.round_trip(least)))
    }

    fn learn_bandwidth(&mut self, ack: &Ack) -> bool {
        let begins = ack.prior_delivered >= self.round_end;
        if begins {
            self.round += 1;
            self.round_end = ack.delivered;
            self.conserving = false;
        }
        let steady = self.mode == Mode::ProbeBw;
        if self.policer.look(ack, begins, self.round, steady) {
            self.probe_bandwidth(ack.now);
        }
        if let Some(rate) = ack.rate.map(Bitrate::as_bps)
            && ((!ack.application_limited && self.mode != Mode::ProbeRtt)
                || rate >= self.bandwidth_max())
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

    fn learn_extra(&mut self, ack: &Ack, begins: bool) {
        let bandwidth = self.bandwidth();
        let extra = &mut self.extra;
        if begins {
            extra.rounds += 1;
            if extra.rounds >= EXTRA_ROUNDS {
                extra.rounds = 0;
                extra.most = [0, extra.most[0]];
            }
        }
        let began = *extra.began.get_or_insert(ack.now);
        let lasted = ack.now.saturating_duration_since(began);
        let mut expected = (bandwidth as f64 / 8.0 * lasted.as_secs_f64()) as u64;
        if extra.acked <= expected || extra.acked + ack.bytes >= EXTRA_EPOCH {
            (extra.began, extra.acked, expected) = (Some(ack.now), 0, 0);
        }
        extra.acked = (extra.acked + ack.bytes).min(EXTRA_EPOCH);
        let more = extra.acked.saturating_sub(expected).min(self.window);
        extra.most[0] = extra.most[0].max(more);
    }

    fn check_full(&mut self, ack: &Ack, begins: bool) {
        if self.is_full || !begins || ack.application_limited {
            return;
        }
        if self.bandwidth_max() as f64 >= self.full_bandwidth as f64 * FULL_GROWTH {
            self.full_bandwidth = self.bandwidth_max();
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
                let full = ack.prior_in_flight >= self.inflight(self.bandwidth_max(), gain);
                lasted && (ack.lost > 0 || full)
            }
            gain if gain < 1.0 => {
                lasted || ack.prior_in_flight <= self.inflight(self.bandwidth_max(), 1.0)
            }
            _ => lasted,
        };
        if over {
            self.cycle = (self.cycle + 1) % self.gains().len();
            self.cycle_began = Some(ack.now);
            self.pacing_gain = self.gain_of_cycle();
        }
    }

    fn gains(&self) -> &'static [f64; 8] {
        if self.plus.is_some() { &Plus::CYCLE } else { &CYCLE }
    }

    fn gain_of_cycle(&self) -> f64 {
        if self.policer.bandwidth().is_some() { 1.0 } else { self.gains()[self.cycle] }
    }

    fn check_drain(&mut self, ack: &Ack) {
        if self.mode == Mode::Startup && self.is_full {
            self.mode = Mode::Drain;
            (self.pacing_gain, self.window_gain) = (1.0 / GAIN_HIGH, GAIN_HIGH);
        }
        if self.mode == Mode::Drain && ack.in_flight <= self.inflight(self.bandwidth_max(), 1.0) {
            self.probe_bandwidth(ack.now);
        }
    }

    fn probe_bandwidth(&mut self, now: Instant) {
        self.mode = Mode::ProbeBw;
        self.window_gain = GAIN_WINDOW;
        // Any phase but a draining one; the delivered count serves as a random number.
        let dice = (self.delivered / SEGMENT as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        let gains = self.gains();
        let phases: Vec<usize> = (0..gains.len()).filter(|phase| gains[*phase] >= 1.0).collect();
        self.cycle = phases[dice as usize % phases.len()];
        self.cycle_began = Some(now);
        self.pacing_gain = self.gain_of_cycle();
    }

    fn learn_rtt(&mut self, ack: &Ack, begins: bool) {
        let expired =
            self.rtt_min.is_some_and(|(_, at)| ack.now > at + RTT_WINDOW) && !self.idle_restart;
        if let Some(rtt) = ack.rtt
            && (expired || self.rtt_min.is_none_or(|(least, _)| rtt <= least))
        {
            self.rtt_min = Some((rtt, ack.now));
        }
        if expired && self.mode != Mode::ProbeRtt {
            (self.pacing_gain, self.window_gain) = (1.0, 1.0);
            self.save_window();
            self.mode = Mode::ProbeRtt;
            self.probe_rtt_until = None;
        }
        if self.mode == Mode::ProbeRtt {
            match self.probe_rtt_until {
                None if ack.in_flight <= WINDOW_PROBE => {
                    self.probe_rtt_until = Some(ack.now + PROBE_RTT_TIME);
                    self.probe_rtt_round = Some(ack.delivered);
                    self.round_end = ack.delivered;
                }
                Some(_) if begins && self.probe_rtt_round.take().is_some() => {}
                Some(until) if ack.now >= until && self.probe_rtt_round.is_none() => {
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

    fn save_window(&mut self) {
        self.prior_window = match (self.phase, self.mode) {
            (Phase::Open, mode) if mode != Mode::ProbeRtt => self.window,
            _ => self.prior_window.max(self.window),
        };
    }

    /// Follows the sender through recoveries (`bbr_set_cwnd_to_recover_or_restore`).
    fn follow(&mut self, ack: &Ack) {
        if ack.lost > 0 {
            self.window = self.window.saturating_sub(ack.lost).max(SEGMENT as u64);
        }
        let before = std::mem::replace(&mut self.phase, ack.phase);
        if ack.phase == Phase::Recovery && before != Phase::Recovery {
            self.conserving = true;
            self.round_end = ack.delivered;
            self.window = ack.in_flight + ack.bytes;
        } else if before != Phase::Open && ack.phase == Phase::Open {
            self.window = self.window.max(self.prior_window);
            self.conserving = false;
        }
    }

    fn set_window(&mut self, ack: &Ack) {
        let target = self.target();
        self.follow(ack);
        if self.conserving {
            self.window = self.window.max(ack.in_flight + ack.bytes);
        } else if self.is_full {
            self.window = (self.window + ack.bytes).min(target);
        } else if self.window < target || self.delivered < WINDOW_FIRST {
            self.window += ack.bytes;
        }
        self.window = self.window.max(WINDOW_PROBE);
        if self.mode == Mode::ProbeRtt {
            self.window = self.window.min(WINDOW_PROBE);
        }
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
        if let (Some(plus), Some(rtt)) = (&mut self.plus, ack.rtt) {
            plus.measure(ack.now, rtt);
        }
        let begins = self.learn_bandwidth(ack);
        self.learn_extra(ack, begins);
        self.check_cycle(ack);
        self.check_full(ack, begins);
        self.check_drain(ack);
        self.learn_rtt(ack, begins);
        self.set_pace(ack);
        self.set_window(ack);
    }

    fn on_loss(&mut self, _loss: &Loss) {
        self.save_window();
    }

    fn on_timeout(&mut self, now: Instant, first: bool) {
        if first {
            self.save_window();
        }
        self.phase = Phase::Loss;
        self.full_bandwidth = 0;
        self.window = SEGMENT as u64;
        self.policer.begin(now, self.delivered);
    }

    fn on_undo(&mut self) {
        (self.full_bandwidth, self.full_rounds) = (0, 0);
        self.policer = Policer::default();
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

    fn estimate(&self) -> Option<Estimate> {
        let bandwidth = Bitrate::from_bps(self.bandwidth());
        Some(Estimate { bandwidth, round_trip: self.rtt_of_window()? })
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
/// The kernel paces at 99 % of the estimate; both count data without headers.
const PACE_MARGIN: f64 = 0.99;
const EXTRA_ROUNDS: u32 = 5;
/// The kernel counts up to 2^20 segments.
const EXTRA_EPOCH: u64 = (1 << 20) * SEGMENT as u64;
/// Segments of one offloaded burst.
const GOAL: u64 = 2;
