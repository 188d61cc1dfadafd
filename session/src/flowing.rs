//! What a path delivers at present: by how much the peer's transport has acknowledged more, over a
//! short time in which there was always something out.
//!
//! The transport's own delivery rate is the most of some round trips, and stays what it is while the
//! application limits it. When the radio loses nine tenths of its rate within a second, it is this
//! figure that tells.
//!
//! Invariant: memory is bounded by [`POINTS_MAX`].

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use polyrail_model::Bitrate;

/// What one path delivers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flowing {
    /// What was delivered in all, at points of time; oldest first.
    points: VecDeque<(Instant, u64)>,
    rate: Option<(Bitrate, Instant)>,
}

impl Flowing {
    /// So much was delivered in all; `busy`: something is out.
    pub fn sample(&mut self, at: Instant, delivered: u64, busy: bool) {
        if !busy {
            self.points.clear();
            return;
        }
        let since = |point: &(Instant, u64)| at.saturating_duration_since(point.0);
        if self.points.back().is_none_or(|point| since(point) >= STEP) {
            self.points.push_back((at, delivered));
        }
        while self.points.len() > POINTS_MAX
            || self.points.get(1).is_some_and(|p| since(p) >= WINDOW)
        {
            self.points.pop_front();
        }
        let Some(first) = self.points.front() else { return };
        let span = since(first);
        if span >= SPAN_MIN {
            let bits = delivered.saturating_sub(first.1) as f64 * 8.0;
            self.rate = Some((Bitrate::from_bps((bits / span.as_secs_f64()) as u64), at));
        }
    }

    /// The rate, and its age.
    pub fn rate(&self, now: Instant) -> Option<(Bitrate, Duration)> {
        self.rate.map(|(rate, at)| (rate, now.saturating_duration_since(at)))
    }
}

/// Over so long.
const WINDOW: Duration = Duration::from_millis(250);
/// A shorter time says nothing.
const SPAN_MIN: Duration = Duration::from_millis(80);
/// Points are so far apart.
const STEP: Duration = Duration::from_millis(20);
const POINTS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Instant {
        #[allow(clippy::disallowed_methods)] // a base for the clock of these tests
        Instant::now()
    }

    /// Samples each 10 ms of a path that delivers so many bytes in each.
    fn feed(flowing: &mut Flowing, from: Instant, delivered: &mut u64, steps: u64, each: u64) {
        for step in 1..=steps {
            *delivered += each;
            flowing.sample(from + Duration::from_millis(10 * step), *delivered, true);
        }
    }

    #[test]
    fn a_rate_that_falls_shows_within_its_window() {
        let (mut flowing, mut delivered, base) = (Flowing::default(), 0, base());
        flowing.sample(base, 0, true);
        feed(&mut flowing, base, &mut delivered, 7, 10_000);
        assert_eq!(flowing.rate(base), None, "70 ms say nothing");
        feed(&mut flowing, base + Duration::from_millis(70), &mut delivered, 23, 10_000);
        let now = base + Duration::from_millis(300);
        let mbps = |flowing: &Flowing, now| flowing.rate(now).unwrap().0.as_bps() as f64 / 1e6;
        assert!((7.9..8.1).contains(&mbps(&flowing, now)), "{flowing:?}");
        feed(&mut flowing, now, &mut delivered, 30, 100);
        let later = now + Duration::from_millis(300);
        assert!((0.07..0.09).contains(&mbps(&flowing, later)), "{flowing:?}");
        assert!(flowing.points.len() <= POINTS_MAX);
    }

    #[test]
    fn an_idle_time_is_no_slow_one() {
        let (mut flowing, mut delivered, base) = (Flowing::default(), 0, base());
        feed(&mut flowing, base, &mut delivered, 30, 10_000);
        let before = flowing.rate(base).unwrap().0;
        let idle = base + Duration::from_millis(310);
        flowing.sample(idle, delivered, false);
        let again = base + Duration::from_secs(3);
        flowing.sample(again, delivered, true);
        flowing.sample(again + Duration::from_millis(50), delivered, true);
        let (rate, age) = flowing.rate(again + Duration::from_millis(50)).unwrap();
        assert_eq!(rate, before);
        assert!(age >= Duration::from_millis(2_700), "{age:?}");
    }
}
