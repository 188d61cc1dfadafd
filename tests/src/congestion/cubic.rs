//! Cubic as Linux has it: RFC 9438, with fast convergence, the region that is friendly to Reno, and
//! the delay part of HyStart (`tcp_cubic.c`). A window that the application does not fill does not
//! grow.

use std::time::{Duration, Instant};

use polyrail_model::Bitrate;

use super::{Ack, Control, Loss, WINDOW_FIRST};
use crate::world::transport::SEGMENT;

/// The kernel's default.
#[derive(Debug)]
pub struct Cubic {
    /// In segments, as are all windows here.
    window: f64,
    threshold: f64,
    /// Where the last loss was.
    last_max: f64,
    epoch: Option<Epoch>,
    rtt_min: Duration,
    round: Round,
    slow_start_over: bool,
}

/// Growth since the last reduction.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    began: Instant,
    /// Where the plateau is, and how long from the begin to it, in seconds.
    origin: f64,
    to_origin: f64,
    /// The window that Reno would have.
    friendly: f64,
}

/// HyStart's look at one round trip.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// It ends when so much is delivered.
    end: u64,
    samples: u32,
    least: Option<Duration>,
}

impl Default for Cubic {
    fn default() -> Self {
        Self {
            window: WINDOW_FIRST as f64 / SEGMENT as f64,
            threshold: f64::MAX,
            last_max: 0.0,
            epoch: None,
            rtt_min: Duration::MAX,
            round: Round::default(),
            slow_start_over: false,
        }
    }
}

impl Cubic {
    /// Leaves slow start when the round-trip time rises by an eighth (4 to 16 ms).
    fn watch_delay(&mut self, ack: &Ack) {
        if ack.prior_delivered >= self.round.end {
            self.round = Round { end: ack.delivered + ack.in_flight, ..Round::default() };
        }
        let Some(rtt) = ack.rtt else { return };
        let round = &mut self.round;
        if round.samples < HYSTART_SAMPLES {
            round.samples += 1;
            round.least = Some(round.least.map_or(rtt, |least| least.min(rtt)));
        } else if let Some(least) = round.least {
            let rise = (self.rtt_min / 8).clamp(HYSTART_RISE_MIN, HYSTART_RISE_MAX);
            if self.window >= HYSTART_WINDOW_MIN && least >= self.rtt_min + rise {
                self.threshold = self.window;
            }
        }
    }

    fn grow(&mut self, ack: &Ack) {
        let acked = ack.bytes as f64 / SEGMENT as f64;
        let (window, last_max) = (self.window, self.last_max);
        let epoch = self.epoch.get_or_insert_with(|| {
            let (origin, to_origin) = match window < last_max {
                true => (last_max, ((last_max - window) / C).cbrt()),
                false => (window, 0.0),
            };
            Epoch { began: ack.now, origin, to_origin, friendly: window }
        });
        // The window that is aimed at in one round trip from now.
        let ahead = if self.rtt_min == Duration::MAX { Duration::ZERO } else { self.rtt_min };
        let at = ack.now.saturating_duration_since(epoch.began) + ahead;
        let target = epoch.origin + C * (at.as_secs_f64() - epoch.to_origin).powi(3);
        let step = match target > window {
            true => ((target - window) / window).min(0.5),
            false => 0.01 / window,
        };
        epoch.friendly += FRIENDLY * acked / window;
        let friendly = (epoch.friendly - window) / window;
        self.window += step.max(friendly.max(0.0)) * acked;
    }

    fn reduce(&mut self) {
        self.epoch = None;
        let converged = self.window < self.last_max;
        self.last_max = if converged { self.window * (1.0 + BETA) / 2.0 } else { self.window };
        self.threshold = (self.window * BETA).max(2.0);
        self.slow_start_over = true;
    }
}

impl Control for Cubic {
    fn on_ack(&mut self, ack: &Ack) {
        if let Some(rtt) = ack.rtt {
            self.rtt_min = self.rtt_min.min(rtt);
        }
        let slow_start = self.window < self.threshold;
        // The kernel: half of the window in use is enough in slow start, all of it later.
        let used = ack.prior_in_flight as f64 / SEGMENT as f64;
        let limited = match slow_start {
            true => self.window < 2.0 * used + 1.0,
            false => self.window <= used + 3.0,
        };
        if slow_start {
            self.watch_delay(ack);
        }
        if !limited {
            return;
        }
        if slow_start {
            self.window += ack.bytes as f64 / SEGMENT as f64;
            self.window = self.window.min(self.threshold.max(2.0));
        } else {
            self.slow_start_over = true;
            self.grow(ack);
        }
    }

    fn on_loss(&mut self, loss: &Loss) {
        if loss.fresh {
            self.reduce();
            self.window = self.threshold;
        }
    }

    fn on_timeout(&mut self, _now: Instant) {
        self.reduce();
        self.window = 1.0;
    }

    fn on_restart(&mut self, _now: Instant, idle: Duration) {
        if let Some(epoch) = &mut self.epoch {
            epoch.began += idle;
        }
    }

    fn window(&self) -> u64 {
        (self.window * SEGMENT as f64) as u64
    }

    fn pacing(&self) -> Option<Bitrate> {
        None
    }

    fn in_slow_start(&self) -> bool {
        !self.slow_start_over && self.window < self.threshold
    }
}

/// RFC 9438 5.
const C: f64 = 0.4;
const BETA: f64 = 0.7;
/// 3 (1 - beta) / (1 + beta).
const FRIENDLY: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
const HYSTART_SAMPLES: u32 = 8;
const HYSTART_WINDOW_MIN: f64 = 16.0;
const HYSTART_RISE_MIN: Duration = Duration::from_millis(4);
const HYSTART_RISE_MAX: Duration = Duration::from_millis(16);
