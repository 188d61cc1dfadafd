//! PROBE_BW of bbr2: every so often the bounds that losses set are lifted or raised; losses there
//! set the bound of the bytes in flight.

use std::time::{Duration, Instant};

use super::model::{BETA, Event, Model};
use super::{PACKET, Parameters};

/// Where it is, and since when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cycle {
    phase: Phase,
    began: Instant,
    phase_began: Instant,
    /// Since the cycle and the phase began.
    rounds: u64,
    phase_rounds: u64,
    /// How `inflight_high` is raised: a packet for so many bytes acknowledged, which are ever less.
    up_rounds: u32,
    up_bytes: u64,
    up_acked: u64,
    /// The bandwidth of the cycle before last is forgotten.
    advanced: bool,
    /// The acknowledged packets were sent in UP.
    is_sample_of_probe: bool,
    probed_too_high: bool,
    /// UP ended because the one before had gone too high.
    stopped_risky: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Down,
    Cruise,
    Refill,
    Up,
}

impl Cycle {
    /// The first one, after DRAIN.
    pub(super) fn new(now: Instant, model: &mut Model) -> Self {
        let mut cycle = Self {
            phase: Phase::Down,
            began: now,
            phase_began: now,
            rounds: 0,
            phase_rounds: 0,
            up_rounds: 0,
            up_bytes: PACKET,
            up_acked: 0,
            advanced: false,
            is_sample_of_probe: false,
            probed_too_high: false,
            stopped_risky: false,
        };
        cycle.enter_down(now, model);
        cycle
    }

    /// After PROBE_RTT: the wait for the next probe restarts.
    pub(super) fn resume(mut self, now: Instant, model: &mut Model) -> Self {
        self.began = now;
        match self.phase {
            Phase::Cruise => self.enter_cruise(now, model),
            Phase::Refill => self.enter_refill(self.up_rounds, now, model),
            Phase::Down | Phase::Up => {}
        }
        self
    }

    /// Of the window.
    pub(super) fn window_gain(&self, parameters: &Parameters) -> f64 {
        match self.phase {
            Phase::Up => parameters.up_window_gain,
            Phase::Down | Phase::Cruise | Phase::Refill => WINDOW,
        }
    }

    /// More than the bounds allow is tried, or about to be.
    pub(super) fn is_probing(&self) -> bool {
        matches!(self.phase, Phase::Refill | Phase::Up)
    }

    /// Between drain and probe, when others have room.
    pub(super) fn is_cruising(&self) -> bool {
        self.phase == Phase::Cruise
    }

    /// Goes on by an acknowledgement, with `target` bytes wanted in flight. True when it is time
    /// to measure the round-trip time.
    pub(super) fn advance(
        &mut self,
        event: &Event,
        model: &mut Model,
        parameters: &Parameters,
        target: u64,
    ) -> bool {
        if event.ends_round {
            self.rounds += u64::from(self.began != event.now);
            self.phase_rounds += u64::from(self.phase_began != event.now);
        }
        match self.phase {
            Phase::Down => {
                self.advance_down(event, model, parameters, target);
                return self.phase != Phase::Down && model.expire_rtt(event);
            }
            Phase::Cruise => {
                self.adapt_upper_bound(event, model, parameters, target);
                if self.is_time_to_probe(event.now, target) {
                    self.enter_refill(0, event.now, model);
                }
            }
            Phase::Refill => {
                self.adapt_upper_bound(event, model, parameters, target);
                if self.phase_rounds > 0 && event.ends_round {
                    self.enter_up(event, model);
                }
            }
            Phase::Up => self.advance_up(event, model, parameters, target),
        }
        false
    }

    fn enter_down(&mut self, now: Instant, model: &mut Model) {
        self.phase = Phase::Down;
        (self.began, self.phase_began) = (now, now);
        (self.rounds, self.phase_rounds) = (0, 0);
        self.advanced = false;
        model.restart_round();
    }

    fn enter_cruise(&mut self, now: Instant, model: &mut Model) {
        self.leave_down(model);
        if model.inflight_low != u64::MAX {
            model.inflight_low = model.inflight_low.min(model.inflight_high);
        }
        self.phase = Phase::Cruise;
        self.phase_began = now;
        self.phase_rounds = 0;
        self.is_sample_of_probe = false;
    }

    fn enter_refill(&mut self, up_rounds: u32, now: Instant, model: &mut Model) {
        self.leave_down(model);
        self.phase = Phase::Refill;
        self.phase_began = now;
        self.phase_rounds = 0;
        self.is_sample_of_probe = false;
        self.stopped_risky = false;
        model.bandwidth_low = None;
        model.inflight_low = u64::MAX;
        self.up_rounds = up_rounds;
        self.up_acked = 0;
        model.restart_round();
    }

    fn enter_up(&mut self, event: &Event, model: &mut Model) {
        self.phase = Phase::Up;
        self.phase_began = event.now;
        self.phase_rounds = 0;
        self.is_sample_of_probe = true;
        self.raise_slope(event.prior_window);
        model.restart_round();
    }

    fn leave_down(&mut self, model: &mut Model) {
        if self.phase == Phase::Down && !self.advanced {
            model.advance_bandwidth();
            self.advanced = true;
        }
    }

    fn advance_down(
        &mut self,
        event: &Event,
        model: &mut Model,
        parameters: &Parameters,
        target: u64,
    ) {
        if self.phase_rounds == 1 && event.ends_round {
            self.is_sample_of_probe = false;
            if !event.is_limited() {
                model.advance_bandwidth();
                self.advanced = true;
            }
            if self.stopped_risky && !self.probed_too_high {
                self.enter_refill(0, event.now, model);
                return;
            }
        }
        self.adapt_upper_bound(event, model, parameters, target);
        if self.is_time_to_probe(event.now, target) {
            self.enter_refill(0, event.now, model);
            return;
        }
        let lasted = event.now.saturating_duration_since(self.phase_began) > model.rtt();
        let drained = event.in_flight <= model.inflight_high_with_headroom()
            && event.in_flight < model.product_most();
        if lasted || drained {
            self.enter_cruise(event.now, model);
        }
    }

    fn advance_up(
        &mut self,
        event: &Event,
        model: &mut Model,
        parameters: &Parameters,
        target: u64,
    ) {
        if self.adapt_upper_bound(event, model, parameters, target) {
            (self.probed_too_high, self.stopped_risky) = (true, false);
            self.enter_down(event.now, model);
            return;
        }
        self.raise_upper_bound(event, model);
        let risky = self.probed_too_high && event.prior_in_flight >= model.inflight_high;
        let mut queued = false;
        if !risky && self.phase_rounds > 0 && event.ends_round {
            model.check_queue();
            queued = model.rounds_queued() >= UP_ROUNDS_QUEUED;
        }
        if risky || queued {
            (self.probed_too_high, self.stopped_risky) = (false, risky);
            self.enter_down(event.now, model);
        }
    }

    fn is_time_to_probe(&self, now: Instant, target: u64) -> bool {
        // Reno would have grown by as many packets as fit on the path.
        let rounds = (target / PACKET).min(PROBE_ROUNDS);
        now.saturating_duration_since(self.began) > PROBE_WAIT || self.rounds >= rounds
    }

    /// Lowers `inflight_high` when a probe lost too much, which is answered with true; raises it
    /// when more was in flight without.
    fn adapt_upper_bound(
        &mut self,
        event: &Event,
        model: &mut Model,
        parameters: &Parameters,
        target: u64,
    ) -> bool {
        let Some(flight) = event.flight else { return false };
        if self.is_sample_of_probe {
            if !model.is_lossy(event, PROBE_LOSSES, parameters.loss_threshold) {
                return false;
            }
            self.is_sample_of_probe = false;
            let least = (target as f64 * (1.0 - BETA)) as u64;
            model.inflight_high = flight.acked_since.max(least).max(model.delivered_in_round());
            return true;
        }
        if model.inflight_high != u64::MAX {
            model.inflight_high = model.inflight_high.max(flight.acked_since);
        }
        false
    }

    /// While it is what bounds: faster from round to round.
    fn raise_upper_bound(&mut self, event: &Event, model: &mut Model) {
        let full = event.prior_in_flight >= event.prior_window;
        if !full || event.prior_window < model.inflight_high {
            return;
        }
        self.up_acked += event.acked;
        let packets = self.up_acked / self.up_bytes;
        self.up_acked %= self.up_bytes;
        model.inflight_high = model.inflight_high.saturating_add(packets * PACKET);
        if event.ends_round {
            self.raise_slope(event.prior_window);
        }
    }

    fn raise_slope(&mut self, window: u64) {
        self.up_bytes = (window >> self.up_rounds).max(PACKET);
        self.up_rounds = (self.up_rounds + 1).min(UP_ROUNDS_MAX);
    }
}

const WINDOW: f64 = 2.0;
/// Between two probes, at most; so many rounds at most.
const PROBE_WAIT: Duration = Duration::from_micros(2_000_500);
const PROBE_ROUNDS: u64 = 63;
/// Losses in a round, each of an acknowledgement, that end a probe.
const PROBE_LOSSES: u32 = 2;
/// Rounds with a queue that end a probe.
const UP_ROUNDS_QUEUED: u32 = 2;
const UP_ROUNDS_MAX: u32 = 30;
