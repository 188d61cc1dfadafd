//! The rate of a path's link while it was busy, from echoed arrivals.
//!
//! What a path delivers is the rate of its link only if the path is full. But a run that was sent
//! before the one ahead of it arrived waited for the link, so the link was busy between the two
//! arrivals and carried that run's bytes in that time. Between echoed runs the bytes of all runs in
//! between count, and the later run must have queued at least as long as the time between both
//! arrivals.
//!
//! The estimate is the lower one of a long and a short span: it falls fast and rises slowly.
//!
//! Invariant: memory is bounded by [`SENT_MAX`] and [`GAPS_MAX`].

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use polyrail_model::Bitrate;

#[derive(Debug, Default)]
pub(crate) struct BusyRate {
    /// When runs were sent, in the session's microseconds, and the bytes of the path up to each
    /// one's end; oldest first.
    sent: VecDeque<(u64, u64)>,
    /// When the newest echoed run arrived, in the peer's microseconds, and the bytes up to its end.
    newest: Option<(u64, u64)>,
    /// Between arrivals while the link was busy; oldest first.
    gaps: VecDeque<Gap>,
    /// The estimate, and when a gap last counted.
    rate: Option<(Instant, Bitrate)>,
}

#[derive(Clone, Copy, Debug)]
struct Gap {
    until_us: u64,
    micros: u64,
    bytes: u64,
}

impl BusyRate {
    /// Notes that a run was sent; `bytes` are those of the path up to its end.
    pub fn sent(&mut self, sent_us: u64, bytes: u64) {
        if self.sent.len() >= SENT_MAX {
            self.sent.pop_front();
        }
        self.sent.push_back((sent_us, bytes));
    }

    /// Takes the echo of a run that queued for this long. Returns the new estimate, if there is one
    /// that rests on enough bytes and time.
    pub fn echo(
        &mut self,
        now: Instant,
        sent_us: u64,
        received_us: u64,
        queued: Duration,
    ) -> Option<Bitrate> {
        while self.sent.front().is_some_and(|(at, _)| *at < sent_us) {
            self.sent.pop_front();
        }
        let &(_, bytes) = self.sent.front().filter(|(at, _)| *at == sent_us)?;
        // The copy of an acknowledgement tells nothing new.
        self.sent.pop_front();
        let newest = self.newest.replace((received_us, bytes));
        let (before_us, had) = newest?;
        let micros = received_us.checked_sub(before_us)?;
        let bytes = bytes.checked_sub(had)?;
        if micros == 0 {
            // The receiver read both at once.
            let last = self.gaps.back_mut().filter(|gap| gap.until_us == received_us);
            last.into_iter().for_each(|gap| gap.bytes = gap.bytes.saturating_add(bytes));
        } else {
            let least = Duration::from_micros(micros - micros.min(TOLERANCE_US).min(micros / 4));
            // A blackout tells no rate.
            if queued < least || micros > LONG_US {
                return None;
            }
            if self.gaps.len() >= GAPS_MAX {
                self.gaps.pop_front();
            }
            self.gaps.push_back(Gap { until_us: received_us, micros, bytes });
        }
        let recent = |gap: &Gap, span| received_us.saturating_sub(gap.until_us) <= span;
        while self.gaps.front().is_some_and(|gap| !recent(gap, LONG_US)) {
            self.gaps.pop_front();
        }
        self.gaps.back().filter(|gap| gap.until_us == received_us)?;
        let over = |span| sum(self.gaps.iter().filter(|gap| recent(gap, span)));
        let (long, short) = (over(LONG_US), over(SHORT_US));
        self.rate = Some((now, rate(long).min(rate(short))));
        // One small run, or the end of a flow, is no rate of the link.
        let short = if short.1 >= LEAST_US { short } else { long };
        (long.0 >= BYTES_MIN && long.1 >= LEAST_US).then(|| rate(long).min(rate(short)))
    }

    /// The estimate; `None` before the first one, or if it is too old.
    pub fn now(&self, now: Instant) -> Option<Bitrate> {
        let (at, rate) = self.rate?;
        (now.saturating_duration_since(at) <= KNOWN_FOR).then_some(rate)
    }
}

/// The bytes and microseconds of these gaps.
fn sum<'a>(gaps: impl Iterator<Item = &'a Gap>) -> (u64, u64) {
    let add = |(bytes, micros): (u64, u64), gap: &Gap| {
        (bytes.saturating_add(gap.bytes), micros.saturating_add(gap.micros))
    };
    gaps.fold((0, 0), add)
}

fn rate((bytes, micros): (u64, u64)) -> Bitrate {
    Bitrate::from_bps((bytes as f64 * 8e6 / micros.max(LEAST_US) as f64) as u64)
}

/// By how much the queue of a run may be underestimated: a quarter of the time, and at most this.
const TOLERANCE_US: u64 = 3_000;
/// How long an estimate is known after the last gap that counted.
const KNOWN_FOR: Duration = Duration::from_secs(2);
const LONG_US: u64 = 500_000;
const SHORT_US: u64 = 50_000;
/// Shorter times count as this: receivers note arrivals some milliseconds late.
const LEAST_US: u64 = 10_000;
/// Three packets: the ends of flows and small messages tell no rate.
const BYTES_MIN: u64 = 4_344;
/// Runs in flight that are remembered. Beyond, the oldest are forgotten, and their echoes ignored.
const SENT_MAX: usize = 1_024;
const GAPS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::tests::base;

    /// Sends runs of 10,000 bytes at these milliseconds and echoes them at those, over a link that
    /// takes 50 ms without a queue; returns the rate in Mbit/s.
    fn after(runs: &[(u64, u64)]) -> Option<f64> {
        let (now, mut busy) = (base(), BusyRate::default());
        for (number, (sent, _)) in runs.iter().enumerate() {
            let number = number as u64;
            busy.sent(sent * 1_000 + number, 10_000 * (number + 1));
        }
        for (number, (sent, received)) in runs.iter().enumerate() {
            let queued = Duration::from_millis(received - sent - 50);
            busy.echo(now, sent * 1_000 + number as u64, received * 1_000, queued);
        }
        busy.now(now + KNOWN_FOR).map(|rate| rate.as_bps() as f64 / 1e6)
    }

    #[test]
    fn gaps_of_a_busy_link_count() {
        // 10,000 bytes in 10 ms are 8 Mbit/s.
        assert_eq!(after(&[(0, 60), (0, 70), (0, 80)]), Some(8.0), "a burst");
        assert_eq!(after(&[(0, 60), (0, 70), (100, 160), (100, 170)]), Some(8.0), "and a pause");
        assert_eq!(after(&[(0, 60), (100, 160), (200, 260)]), None, "the link was idle in between");
        assert_eq!(after(&[(0, 60), (0, 60)]), None, "read at once");
        let pairs = [(0, 60), (0, 70), (0, 70), (0, 80), (0, 80)];
        assert_eq!(after(&pairs), Some(16.0), "two at once, every 10 ms");
        assert_eq!(after(&[(0, 50), (2, 52), (4, 54)]), None, "the queue is empty");
        assert_eq!(after(&[(0, 60), (0, 561), (0, 571)]), Some(8.0), "a blackout");
        assert_eq!(after(&[(0, 60), (0, 61)]), Some(8.0), "a millisecond counts as ten");
        assert_eq!(after(&[(0, 60), (10, 70), (20, 80)]), Some(8.0), "each waits for the last one");
    }

    #[test]
    fn estimate_falls_within_50_ms_and_rises_within_500() {
        let mut runs: Vec<(u64, u64)> = (0..60).map(|run| (0, 60 + 10 * run)).collect();
        assert_eq!(after(&runs), Some(8.0));
        runs.extend((1..=3).map(|run| (0, 650 + 40 * run)));
        assert_eq!(after(&runs), Some(2.0), "40 ms each");
        let slow = runs.len();
        runs.extend((1..=20).map(|run| (0, 770 + 5 * run)));
        let rate = after(&runs).unwrap();
        assert!((8.0..8.5).contains(&rate), "100 ms of 16 Mbit/s: {rate}");
        runs.truncate(slow);
        runs.extend((1..=120).map(|run| (0, 770 + 5 * run)));
        assert_eq!(after(&runs), Some(16.0));
    }

    #[test]
    fn runs_between_echoed_ones_count_and_unknown_echoes_do_not() {
        let (now, mut busy) = (base(), BusyRate::default());
        (1..=6).for_each(|run| busy.sent(run, 10_000 * run));
        let queued = Duration::from_millis(60);
        busy.echo(now, 2, 60_000, queued);
        busy.echo(now, 6, 100_000, queued);
        assert_eq!(busy.now(now), Some(Bitrate::from_mbps(8.0)), "four runs in 40 ms");
        for (sent_us, received_us) in [(6, 50_000), (3, 120_000), (7, 120_000), (0, u64::MAX)] {
            busy.echo(now, sent_us, received_us, Duration::MAX);
        }
        assert_eq!(busy.now(now + KNOWN_FOR), Some(Bitrate::from_mbps(8.0)));
        assert_eq!(busy.now(now + KNOWN_FOR + Duration::from_millis(1)), None, "too old");
    }

    #[test]
    fn estimate_of_little_is_not_returned() {
        // Runs of this many bytes that arrive every `gap` milliseconds, each behind the last one.
        let last = |bytes: u64, gap: u64, runs: u64| {
            let (now, mut busy) = (base(), BusyRate::default());
            (1..=runs).for_each(|run| busy.sent(run, bytes * run));
            let echoes = (1..=runs).map(|run| {
                let received_us = 50_000 + run * gap * 1_000;
                busy.echo(now, run, received_us, Duration::from_millis(gap))
            });
            (echoes.last().unwrap(), busy.now(now))
        };
        let mbps = |rate| Some(Bitrate::from_mbps(rate));
        assert_eq!(last(4_000, 10, 2), (None, mbps(3.2)), "4,000 bytes");
        assert_eq!(last(4_000, 10, 3), (mbps(3.2), mbps(3.2)), "8,000 bytes");
        assert_eq!(last(20_000, 4, 3), (None, mbps(32.0)), "8 ms");
        assert_eq!(last(0, 10, 9), (None, mbps(0.0)), "ends of flows");

        // Four runs, one that did not queue, and the end of a flow directly behind it.
        let (now, mut busy) = (base(), BusyRate::default());
        (1..=5).for_each(|run| busy.sent(run, 10_000 * run));
        busy.sent(6, 50_000);
        let echo = |(run, ms, queued): (u64, u64, u64)| {
            busy.echo(now, run, ms * 1_000, Duration::from_millis(queued))
        };
        let runs = [(1, 50, 0), (2, 60, 10), (3, 70, 20), (4, 80, 30), (5, 200, 0), (6, 201, 1)];
        let told = runs.map(echo);
        assert_eq!((told[3], told[4], told[5]), (mbps(8.0), None, mbps(7.741935)));
        assert_eq!(busy.now(now), mbps(0.0), "next to calls");

        let (now, mut busy) = (base(), BusyRate::default());
        (1..=3).for_each(|run| busy.sent(run, 10_000 * run));
        let queued = Duration::from_millis(20);
        let echo = |run| busy.echo(now, run, 50_000 + 10_000 * run, queued);
        assert_eq!([1, 2, 3, 3].map(echo), [None, mbps(8.0), mbps(8.0), None], "a repeated echo");
    }

    #[test]
    fn memory_is_bounded_whatever_is_echoed() {
        let (now, mut busy) = (base(), BusyRate::default());
        for run in 0..2 * SENT_MAX as u64 {
            busy.sent(run, run);
        }
        assert_eq!(busy.sent.len(), SENT_MAX);
        for run in SENT_MAX as u64..2 * SENT_MAX as u64 {
            busy.echo(now, run, run, Duration::MAX);
        }
        assert!(busy.sent.len() <= 1 && busy.gaps.len() <= GAPS_MAX);
    }
}
