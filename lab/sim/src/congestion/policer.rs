//! BBR's long-term estimate (`bbr_lt_bw_sampling`): two consecutive intervals with heavy loss and
//! the same rate indicate a policer, whose rate then applies for some rounds.

use std::time::Instant;

use super::Ack;

/// The detected policer.
#[derive(Debug, Default)]
pub(super) struct Policer {
    sampling: Option<Interval>,
    /// The rate of the previous interval in bits a second, and the round since which it applies.
    rate: u64,
    used: Option<u64>,
    lost: u64,
}

/// A running interval.
#[derive(Clone, Copy, Debug)]
struct Interval {
    began: Instant,
    delivered: u64,
    lost: u64,
    rounds: u32,
}

impl Policer {
    /// The rate that applies.
    pub(super) fn bandwidth(&self) -> Option<u64> {
        self.used.map(|_| self.rate)
    }

    /// A timeout: sampling begins.
    pub(super) fn begin(&mut self, now: Instant, delivered: u64) {
        if self.used.is_none() && self.sampling.is_none() {
            self.sampling = Some(self.interval(now, delivered));
        }
    }

    fn interval(&self, began: Instant, delivered: u64) -> Interval {
        Interval { began, delivered, lost: self.lost, rounds: 0 }
    }

    /// Learns from an acknowledgement; true if a rate has applied long enough and is dropped.
    pub(super) fn look(&mut self, ack: &Ack, begins: bool, round: u64, steady: bool) -> bool {
        self.lost += ack.lost;
        if let Some(since) = self.used {
            if steady && begins && round >= since + ROUNDS_USED {
                let lost = self.lost;
                *self = Self { lost, ..Self::default() };
                return true;
            }
            return false;
        }
        let Some(mut interval) = self.sampling else {
            if ack.lost > 0 {
                self.sampling = Some(self.interval(ack.now, ack.delivered));
            }
            return false;
        };
        if ack.application_limited {
            (self.sampling, self.rate) = (None, 0);
            return false;
        }
        interval.rounds += u32::from(begins);
        self.sampling = Some(interval);
        if interval.rounds < ROUNDS_LEAST {
            return false;
        }
        if interval.rounds > 4 * ROUNDS_LEAST {
            (self.sampling, self.rate) = (None, 0);
            return false;
        }
        let delivered = ack.delivered - interval.delivered;
        let lost = self.lost - interval.lost;
        let time = ack.now.saturating_duration_since(interval.began).as_secs_f64();
        // It ends with a loss, if a fifth was lost.
        if ack.lost == 0 || delivered == 0 || lost * 256 < delivered * 50 || time < 0.001 {
            return false;
        }
        let rate = (delivered as f64 * 8.0 / time) as u64;
        let apart = rate.abs_diff(self.rate);
        if self.rate > 0 && (apart * 8 <= self.rate || apart <= APART_BPS) {
            self.rate = (rate + self.rate) / 2;
            self.used = Some(round);
            self.sampling = None;
        } else {
            self.rate = rate;
            self.sampling = Some(self.interval(ack.now, ack.delivered));
        }
        false
    }
}

const ROUNDS_LEAST: u32 = 4;
const ROUNDS_USED: u64 = 48;
/// The kernel's 4 kbit/s.
const APART_BPS: u64 = 4_000;
