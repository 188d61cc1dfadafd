//! CoDel (RFC 8289): drops datagrams of a queue that stays long, so that the congestion control
//! inside the flow sees loss early.

use std::time::{Duration, Instant};

/// The parameters of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Law {
    /// The wait that the queue may keep.
    pub target: Duration,
    /// How long the wait may be longer before the first drop.
    pub interval: Duration,
}

/// The control law of one queue.
#[derive(Debug, Default)]
pub(crate) struct Codel {
    /// When the wait will have been above the target for an interval.
    above_until: Option<Instant>,
    /// When the next one is dropped, while it drops.
    next_drop: Option<Instant>,
    /// Drops of this episode, or of the last one, and when the last of them was.
    drops: u32,
    dropped_at: Option<Instant>,
}

impl Codel {
    /// Whether a datagram that has waited for so long is dropped. The last one of a queue never is.
    pub fn drops(&mut self, now: Instant, law: &Law, waited: Duration, is_last: bool) -> bool {
        let &Law { target, interval } = law;
        if waited < target || is_last {
            (self.above_until, self.next_drop) = (None, None);
            return false;
        }
        let until = *self.above_until.get_or_insert(now + interval);
        let due = self.next_drop.unwrap_or(until);
        if now < due {
            return false;
        }
        // An episode that follows closely continues with the rate of the last one (RFC 8289 5.4).
        let since = |at: Instant| now.saturating_duration_since(at);
        let is_close = self.dropped_at.is_some_and(|at| since(at) < interval * 16);
        self.drops = match self.next_drop {
            Some(_) => self.drops + 1,
            None if is_close && self.drops > 2 => self.drops - 2,
            None => 1,
        };
        self.dropped_at = Some(now);
        self.next_drop = Some(due.max(now) + interval.div_f64(f64::from(self.drops).sqrt()));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAW: Law =
        Law { target: Duration::from_millis(50), interval: Duration::from_millis(400) };

    #[test]
    fn queue_that_stays_long_drops_ever_more_and_a_burst_nothing() {
        #[allow(clippy::disallowed_methods)] // a base for the clock of these tables
        let begin = Instant::now();
        // Each millisecond one leaves. The wait, and the drops in the first and the second second.
        for (waited_ms, range, later) in [(40, 0..=0, 0..=0), (100, 1..=3, 4..=8)] {
            let mut codel = Codel::default();
            let mut drops = [0; 2];
            for ms in 0..2_000_u64 {
                let now = begin + Duration::from_millis(ms);
                let waited = Duration::from_millis(waited_ms);
                drops[ms as usize / 1_000] += i32::from(codel.drops(now, &LAW, waited, false));
            }
            assert!(range.contains(&drops[0]) && later.contains(&drops[1]), "{drops:?}");
        }
        let mut codel = Codel::default();
        let burst = (0..390).map(|ms| begin + Duration::from_millis(ms));
        let dropped = burst.filter(|&now| codel.drops(now, &LAW, Duration::from_millis(90), false));
        assert_eq!(dropped.count(), 0);
    }

    #[test]
    fn episode_is_forgotten_after_a_while() {
        #[allow(clippy::disallowed_methods)] // a base for the clock of these tables
        let begin = Instant::now();
        let mut codel = Codel::default();
        let mut drops = |from_s: u64, length_ms: u64| {
            let each = (0..length_ms).map(|ms| begin + Duration::from_millis(from_s * 1_000 + ms));
            let wait = Duration::from_millis(100);
            let count = each.filter(|&now| codel.drops(now, &LAW, wait, false)).count();
            codel.drops(begin + Duration::from_secs(from_s + 9), &LAW, Duration::ZERO, false);
            count
        };
        let (first, long) = (drops(0, 1_200), drops(10, 8_000));
        assert!(long > 10 * first, "{first}, {long}");
        assert_eq!(drops(30, 1_200), first, "as at the beginning");
    }
}
