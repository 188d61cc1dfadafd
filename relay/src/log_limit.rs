//! A rate limit for log lines that peers can trigger.

use std::time::{Duration, Instant};

/// Permits `LINES_MAX` lines per `WINDOW` and counts suppressed lines.
#[derive(Debug, Default)]
pub struct LogLimiter {
    window: Option<Instant>,
    lines: u32,
    dropped: u64,
}

impl LogLimiter {
    /// Permits a line and returns the number of lines suppressed since the last permitted one.
    pub fn permit(&mut self, now: Instant) -> Option<u64> {
        if self.window.is_none_or(|begun| now.saturating_duration_since(begun) >= WINDOW) {
            self.window = Some(now);
            self.lines = 0;
        }
        if self.lines >= LINES_MAX {
            self.dropped += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.dropped))
    }
}

/// Lines per window.
const LINES_MAX: u32 = 20;
/// The window.
const WINDOW: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suppressed_lines_are_counted_until_the_next_window() {
        let mut limiter = LogLimiter::default();
        let now = Instant::now();
        let passed = (0..100).filter(|_| limiter.permit(now).is_some()).count();
        assert_eq!(passed, LINES_MAX as usize);
        assert_eq!(limiter.permit(now + WINDOW), Some(80));
        assert_eq!(limiter.permit(now + WINDOW), Some(0));
    }
}
