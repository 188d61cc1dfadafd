//! The budget of a rule that copies: bytes a second, with a burst.

use std::time::Instant;

use crate::Note;
use crate::params::{ParamError, Reader};

#[derive(Clone, Debug)]
pub(crate) struct Budget {
    rate: f64,
    burst: f64,
    /// Bytes that may be copied, as of `at`.
    left: f64,
    at: Option<Instant>,
}

impl Budget {
    /// Reads the parameters `rate` and `burst`.
    pub fn new(params: &mut Reader<'_>, rate: u64, burst: u64) -> Result<Self, ParamError> {
        let rate = params.count("rate", rate, 0..=1 << 30)? as f64;
        let burst = params.count("burst", burst, 0..=1 << 30)? as f64;
        Ok(Self { rate, burst, left: burst, at: None })
    }

    /// The bytes that may be copied now.
    pub fn left(&mut self, now: Instant) -> f64 {
        let at = self.at.replace(now).unwrap_or(now);
        let since = now.saturating_duration_since(at).as_secs_f64();
        self.left = (self.left + self.rate * since).min(self.burst);
        self.left
    }

    /// Counts copies.
    pub fn note(&mut self, note: &Note) {
        if let Note::Sent { bytes, copy: true, .. } = *note {
            self.left -= bytes as f64;
        }
    }
}
