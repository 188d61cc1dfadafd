//! The kernel's Cubic (`tcp_cubic.c`, RFC 9438): fast convergence, the Reno-friendly region,
//! HyStart by ack trains and by delay. Recoveries reduce the window in proportion
//! (`tcp_cwnd_reduction`, RFC 6937). A timeout resets the state, and is undone if it was spurious.
//! A window that the application does not fill does not grow. Nothing is paced, because that needs
//! the qdisc `fq` or a socket option.

use std::time::{Duration, Instant};

use polyrail_model::Bitrate;

use super::{Ack, Control, Loss, Phase, SEGMENT, WINDOW_FIRST};

/// The kernel's default.
#[derive(Debug)]
pub struct Cubic {
    /// In segments, like all windows here.
    window: f64,
    threshold: f64,
    /// The window at the last loss.
    last_max: f64,
    epoch: Option<Epoch>,
    rtt_min: Option<Duration>,
    round: Option<Round>,
    /// HyStart has found the end of slow start.
    found: bool,
    recovery: Option<Recovery>,
    /// Window and threshold before a timeout, to undo it.
    undo: Option<(f64, f64)>,
}

/// A running reduction.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    /// The window before it.
    prior: f64,
    /// Bytes delivered and sent in total when it began.
    delivered: u64,
    sent: u64,
}

/// Growth since the last reduction.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    began: Instant,
    /// The window of the plateau, and the time from the beginning to it, in seconds.
    origin: f64,
    to_origin: f64,
    /// The window that Reno would have.
    friendly: f64,
}

/// HyStart's state in one round trip.
#[derive(Clone, Copy, Debug)]
struct Round {
    began: Instant,
    /// The last acknowledgement of its train.
    last: Instant,
    /// It ends when more than this is delivered.
    end: u64,
    samples: u32,
    least: Duration,
}

impl Default for Cubic {
    fn default() -> Self {
        Self {
            window: WINDOW_FIRST as f64 / SEGMENT as f64,
            threshold: f64::MAX,
            last_max: 0.0,
            epoch: None,
            rtt_min: None,
            round: None,
            found: false,
            recovery: None,
            undo: None,
        }
    }
}

impl Cubic {
    /// Leaves slow start when acknowledgements come in a row for half of a round-trip time, or when
    /// that rises by an eighth (4 to 16 ms).
    fn watch(&mut self, ack: &Ack) {
        let (Some(rtt), Some(rtt_min)) = (ack.rtt, self.rtt_min) else { return };
        let over = self.round.is_none_or(|round| ack.delivered > round.end);
        let fresh = Round {
            began: ack.now,
            last: ack.now,
            end: ack.delivered + ack.in_flight,
            samples: 0,
            least: Duration::MAX,
        };
        let round = match &mut self.round {
            Some(round) if !over => round,
            round => round.insert(fresh),
        };
        if ack.now.saturating_duration_since(round.last) <= HYSTART_TRAIN {
            round.last = ack.now;
            let train = ack.now.saturating_duration_since(round.began);
            self.found |= train > (rtt_min + HYSTART_ACK_DELAY) / 2;
        }
        round.least = round.least.min(rtt);
        if round.samples < HYSTART_SAMPLES {
            round.samples += 1;
        } else {
            let rise = (rtt_min / 8).clamp(HYSTART_RISE_MIN, HYSTART_RISE_MAX);
            self.found |= round.least > rtt_min + rise;
        }
        if self.found {
            self.threshold = self.window;
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
        // The target window one round trip from now.
        let ahead = self.rtt_min.unwrap_or_default();
        let at = ack.now.saturating_duration_since(epoch.began) + ahead;
        let target = epoch.origin + C * (at.as_secs_f64() - epoch.to_origin).powi(3);
        let step = match target > window {
            true => ((target - window) / window).min(0.5),
            false => 0.01 / window,
        };
        // Without a loss so far it grows by a twentieth at least.
        let step = if last_max == 0.0 { step.max(0.05) } else { step };
        epoch.friendly += FRIENDLY * acked / window;
        let friendly = (epoch.friendly - window) / window;
        self.window += step.max(friendly.max(0.0)) * acked;
    }

    fn reduce(&mut self) {
        self.epoch = None;
        let converged = self.window < self.last_max;
        self.last_max = if converged { self.window * (1.0 + BETA) / 2.0 } else { self.window };
        self.threshold = (self.window * BETA).max(2.0);
    }

    /// Sends the share of delivered bytes that the reduction allows.
    fn recover(&mut self, ack: &Ack, recovery: Recovery) {
        let segments = |bytes: u64| bytes as f64 / SEGMENT as f64;
        let delivered = segments(ack.delivered - recovery.delivered);
        let sent = segments(ack.sent - recovery.sent);
        let in_flight = segments(ack.in_flight);
        let room = self.threshold - in_flight;
        let more = if room < 0.0 {
            (self.threshold * delivered / recovery.prior).ceil() - sent
        } else {
            let bonus = if ack.lost == 0 { 1.0 } else { 0.0 };
            ((delivered - sent).max(segments(ack.bytes)) + bonus).min(room)
        };
        let least = if sent == 0.0 { 1.0 } else { 0.0 };
        self.window = (in_flight + more.max(least)).max(1.0);
    }

    fn learn_rtt(&mut self, ack: &Ack) {
        // Measurements shortly after a recovery are unreliable.
        let young = |epoch: Epoch| ack.now.saturating_duration_since(epoch.began) < SETTLING;
        if let Some(rtt) = ack.rtt
            && !self.epoch.is_some_and(young)
        {
            self.rtt_min = Some(self.rtt_min.map_or(rtt, |least| least.min(rtt)));
        }
    }
}

impl Control for Cubic {
    fn on_ack(&mut self, ack: &Ack) {
        self.learn_rtt(ack);
        if let Some(recovery) = self.recovery {
            if ack.phase == Phase::Recovery {
                return self.recover(ack, recovery);
            }
            self.recovery = None;
            if ack.phase == Phase::Open {
                self.window = self.threshold;
            }
        }
        let slow_start = self.window < self.threshold;
        let limited = ack.fills(self.window, slow_start);
        if slow_start && !self.found && self.window >= HYSTART_WINDOW_MIN {
            self.watch(ack);
        }
        if !limited {
            return;
        }
        if slow_start {
            self.window += ack.bytes as f64 / SEGMENT as f64;
            self.window = self.window.min(self.threshold.max(2.0));
        } else {
            self.grow(ack);
        }
    }

    fn on_loss(&mut self, loss: &Loss) {
        let prior = self.window;
        self.reduce();
        self.recovery = Some(Recovery { prior, delivered: loss.delivered, sent: loss.sent });
    }

    fn on_timeout(&mut self, _now: Instant, first: bool) {
        if first {
            self.undo = Some((self.window, self.threshold));
            self.reduce();
        }
        // The kernel's `bictcp_reset`.
        (self.last_max, self.epoch, self.rtt_min) = (0.0, None, None);
        (self.round, self.found, self.recovery) = (None, false, None);
        self.window = 1.0;
    }

    fn on_undo(&mut self) {
        if let Some((window, threshold)) = self.undo.take() {
            self.window = self.window.max(window);
            self.threshold = self.threshold.max(threshold);
        }
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
}

/// RFC 9438 5.
const C: f64 = 0.4;
const BETA: f64 = 0.7;
/// 3 (1 - beta) / (1 + beta).
const FRIENDLY: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Samples within this time after the begin of an epoch do not count (`cubictcp_acked`).
const SETTLING: Duration = Duration::from_secs(1);
const HYSTART_SAMPLES: u32 = 8;
const HYSTART_WINDOW_MIN: f64 = 16.0;
const HYSTART_RISE_MIN: Duration = Duration::from_millis(4);
const HYSTART_RISE_MAX: Duration = Duration::from_millis(16);
/// Acknowledgements that are no further apart make a train.
const HYSTART_TRAIN: Duration = Duration::from_millis(2);
/// The delay of aggregated acknowledgements: 4 bursts of 64 KiB, at most a millisecond.
const HYSTART_ACK_DELAY: Duration = Duration::from_millis(1);

#[cfg(test)]
impl Cubic {
    /// The slow-start threshold, in bytes.
    pub(super) fn threshold_bytes(&self) -> u64 {
        (self.threshold * SEGMENT as f64) as u64
    }
}
