//! The log lines that a gateway can cause, rate-limited for each gateway.

use std::collections::BTreeMap;
use std::time::Instant;

use polyrail_model::Identity;
use polyrail_relay::LogLimiter;
use polyrail_session::limits::SESSIONS_MAX;

/// A limiter for each gateway that caused lines lately, so that no gateway suppresses the lines of
/// another. If there are more than [`SESSIONS_MAX`], the others share the last one.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    of: BTreeMap<Identity, LogLimiter>,
    others: LogLimiter,
    /// Lines that forgotten limiters suppressed.
    forgotten: u64,
}

impl Lines {
    /// Permits a line about a gateway and returns the number of lines suppressed since the last
    /// permitted one. Lines about no gateway are limited together.
    pub(crate) fn permit(&mut self, now: Instant, gateway: Option<&Identity>) -> Option<u64> {
        let Some(gateway) = gateway else { return self.others.permit(now) };
        if !self.of.contains_key(gateway) && self.of.len() >= SESSIONS_MAX {
            self.of.retain(|_, limiter| {
                let idle = limiter.is_idle(now);
                self.forgotten += if idle { limiter.suppressed() } else { 0 };
                !idle
            });
            if self.of.len() >= SESSIONS_MAX {
                return self.others.permit(now);
            }
        }
        self.of.entry(gateway.clone()).or_default().permit(now)
    }

    /// The number of lines suppressed since the start.
    pub(crate) fn suppressed(&self) -> u64 {
        let of = self.of.values().map(LogLimiter::suppressed);
        of.sum::<u64>() + self.others.suppressed() + self.forgotten
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn gateway_that_causes_many_lines_suppresses_only_its_own() {
        let (now, mut lines) = (Instant::now(), Lines::default());
        let [loud, quiet] = ["loud", "quiet"].map(|name| Identity::new(name).unwrap());
        let passed = (0..1_000).filter(|_| lines.permit(now, Some(&loud)).is_some()).count();
        assert!(passed <= 10, "{passed}");
        assert_eq!(lines.permit(now, Some(&quiet)), Some(0));
        assert_eq!(lines.permit(now, None), Some(0));
        let later = now + Duration::from_secs(2);
        assert_eq!(lines.permit(later, Some(&loud)), Some(1_000 - passed as u64));
        assert_eq!(lines.suppressed(), 1_000 - passed as u64);
    }

    #[test]
    fn limiters_are_bounded_and_idle_ones_are_forgotten() {
        let (now, mut lines) = (Instant::now(), Lines::default());
        let name = |i: usize| Identity::new(&format!("train-{i}")).unwrap();
        for i in 0..2 * SESSIONS_MAX {
            lines.permit(now, Some(&name(i)));
        }
        assert_eq!(lines.of.len(), SESSIONS_MAX);
        let later = now + Duration::from_secs(60);
        assert_eq!(lines.permit(later, Some(&name(usize::MAX))), Some(0));
        assert_eq!(lines.of.len(), 1);
    }
}
