//! Slow start, one segment a round trip, half on loss (RFC 5681).

use std::time::Instant;

use polyrail_model::Bitrate;

use super::{Ack, Control, Loss, SEGMENT, WINDOW_FIRST, WINDOW_MIN};

/// The simplest control.
#[derive(Debug)]
pub struct Reno {
    window: f64,
    threshold: f64,
}

impl Default for Reno {
    fn default() -> Self {
        Self { window: WINDOW_FIRST as f64, threshold: f64::MAX }
    }
}

impl Control for Reno {
    fn on_ack(&mut self, ack: &Ack) {
        let bytes = ack.bytes as f64;
        self.window += match self.window < self.threshold {
            true => bytes,
            false => SEGMENT as f64 * bytes / self.window,
        };
    }

    fn on_loss(&mut self, _loss: &Loss) {
        self.threshold = (self.window / 2.0).max(WINDOW_MIN as f64);
        self.window = self.threshold;
    }

    fn on_timeout(&mut self, _now: Instant, _first: bool) {
        self.threshold = (self.window / 2.0).max(WINDOW_MIN as f64);
        self.window = WINDOW_MIN as f64;
    }

    fn window(&self) -> u64 {
        self.window as u64
    }

    fn pacing(&self) -> Option<Bitrate> {
        None
    }
}
