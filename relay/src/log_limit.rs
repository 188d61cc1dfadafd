//! A rate limit for log lines that peers can trigger.

use std::time::{Duration, Instant};

/// Permits nine lines at once and one per second on average, so at most ten in any
/// second, and counts suppressed lines.
#[derive(Debug, Default)]
pub struct LogLimiter {
    /// When all lines of the burst are permitted again.
    full_at: Option<Instant>,
    dropped: u64,
    /// All suppressed lines.
    suppressed: u64,
}

impl LogLimiter {
    /// Permits a line and returns the number of lines suppressed since the last permitted one.
    pub fn permit(&mut self, now: Instant) -> Option<u64> {
        let full_at = self.full_at.map_or(now, |at| at.max(now));
        if full_at.saturating_duration_since(now) > LINE_EVERY * (LINES_BURST - 1) {
            self.dropped += 1;
            self.suppressed += 1;
            return None;
        }
        self.full_at = Some(full_at + LINE_EVERY);
        Some(std::mem::take(&mut self.dropped))
    }

    /// The number of lines suppressed since it was made.
    pub fn suppressed(&self) -> u64 {
        self.suppressed
    }

    /// Whether it has forgotten all lines: a new limiter would permit as many.
    pub fn is_idle(&self, now: Instant) -> bool {
        self.dropped == 0 && self.full_at.is_none_or(|at| at <= now)
    }
}

/// Lines at once.
const LINES_BURST: u32 = 9;
/// The time that one line takes from the burst.
const LINE_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suppressed_lines_are_counted_until_the_next_permitted_line() {
        let mut limiter = LogLimiter::default();
        let now = Instant::now();
        assert!(limiter.is_idle(now));
        let passed = (0..100).filter(|_| limiter.permit(now).is_some()).count();
        assert_eq!(passed, LINES_BURST as usize);
        assert_eq!(limiter.permit(now + LINE_EVERY), Some(91));
        assert_eq!(limiter.permit(now + LINE_EVERY), None);
        let later = now + LINE_EVERY * 20;
        assert_eq!(limiter.permit(later), Some(1));
        assert_eq!(limiter.suppressed(), 92);
        assert!(!limiter.is_idle(later) && limiter.is_idle(later + LINE_EVERY));
    }

    #[test]
    fn no_second_has_more_than_ten_lines() {
        let (mut limiter, begun) = (LogLimiter::default(), Instant::now());
        let at = |ms: u64| begun + Duration::from_millis(ms);
        let permitted: Vec<Instant> =
            (0..60_000).map(at).filter(|now| limiter.permit(*now).is_some()).collect();
        let second = Duration::from_secs(1);
        let most = permitted.iter().map(|from| {
            permitted.iter().filter(|line| *line >= from && **line < *from + second).count()
        });
        assert!(most.max().unwrap() <= 10 && permitted.len() < 70, "{}", permitted.len());
    }
}
