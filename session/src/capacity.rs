//! What a path carries at present, from how much its peer's transport acknowledges.
//!
//! The transport's own delivery rate is the most of some round trips, and stays what it is while
//! the application limits it. On a train the radio loses nine tenths of its rate within a second.
//! So what was delivered over the last quarter of a second counts here. It is the capacity when
//! there was enough out: when what is out would need more than a round trip at the capacity that is
//! known. With less out it only shows the least that there is.
//!
//! While nothing is out the figure moves to what is usual: the mean of some seconds of work.
//!
//! Invariant: memory is bounded by [`POINTS_MAX`].

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use polyrail_model::Bitrate;

/// What one path carries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Capacity {
    /// What was delivered in all, at points of time; oldest first.
    points: VecDeque<(Instant, u64)>,
    /// What was delivered when the present busy time began, until the first of it is acknowledged.
    begun: Option<u64>,
    known: Option<Known>,
}

/// In bit/s.
#[derive(Clone, Copy, Debug)]
struct Known {
    capacity: f64,
    usual: f64,
    /// The time over which `usual` is the mean.
    weighed: Duration,
    /// When it was last measured.
    at: Instant,
}

/// What a path shows at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// When.
    pub at: Instant,
    /// What was delivered in all, in bytes.
    pub delivered: u64,
    /// The transport has something in flight.
    pub busy: bool,
    /// What is out, in bytes.
    pub out: u64,
    /// Least round-trip time.
    pub rtt_min: Duration,
}

impl Capacity {
    /// Takes in what the path shows.
    pub fn sample(&mut self, look: &Look) {
        if !look.busy {
            self.points.clear();
            self.begun = None;
            return;
        }
        // What leaves an idle path is acknowledged a round trip later: that time says nothing.
        if self.points.is_empty() && look.delivered <= *self.begun.get_or_insert(look.delivered) {
            return;
        }
        let since = |point: &(Instant, u64)| look.at.saturating_duration_since(point.0);
        if self.points.is_empty()
            && let Some(known) = &mut self.known
        {
            known.capacity = known.now(look.at);
        }
        // Two round trips have to fit into the points that there are.
        let step = STEP.max(look.rtt_min / (POINTS_MAX as u32 / 2 - 1));
        if self.points.back().is_none_or(|point| since(point) >= step) {
            self.points.push_back((look.at, look.delivered));
        }
        let window = WINDOW.max(look.rtt_min.saturating_mul(2));
        while self.points.len() > POINTS_MAX
            || self.points.get(1).is_some_and(|point| since(point) >= window)
        {
            self.points.pop_front();
        }
        let Some(first) = self.points.front() else { return };
        let span = since(first);
        // Before slow start fills the link, its bursts are apart by a round trip.
        if span >= SPAN_MIN.max(look.rtt_min) {
            let bits = look.delivered.saturating_sub(first.1) as f64 * 8.0;
            self.learn(look, bits / span.as_secs_f64());
        }
    }

    fn learn(&mut self, look: &Look, rate: f64) {
        // With next to nothing out it is the application that is seen.
        let enough = look.out >= OUT_MIN;
        if self.known.is_none() && (!enough || rate <= 0.0) {
            return;
        }
        let fresh = Known { capacity: rate, usual: rate, weighed: Duration::ZERO, at: look.at };
        let known = self.known.get_or_insert(fresh);
        let full = enough && is_full(look, known.capacity);
        let raised = rate >= known.capacity;
        if full || raised {
            known.capacity = rate;
        }
        // A path that is dark carries nothing; that is not what is usual.
        if (full && rate > 0.0) || rate > known.usual {
            let since = look.at.saturating_duration_since(known.at).min(WINDOW);
            known.weighed = (known.weighed + since).min(MEMORY);
            if known.weighed < WARM {
                // Pauses and small windows of slow start are not usual.
                known.usual = known.usual.max(rate);
            } else {
                // The mean of all at first, that of the last seconds later.
                let memory = known.weighed.as_secs_f64();
                let weight = 1.0 - (-since.as_secs_f64() / memory).exp();
                known.usual += (rate - known.usual) * weight;
            }
        }
        if enough || raised {
            known.at = look.at;
        }
    }

    /// What it carries now; `None` before anything was delivered.
    pub fn now(&self, now: Instant) -> Option<Bitrate> {
        self.known.map(|known| Bitrate::from_bps((known.now(now) as u64).max(1)))
    }
}

impl Known {
    fn now(&self, now: Instant) -> f64 {
        let idle = now.saturating_duration_since(self.at).saturating_sub(FRESH).as_secs_f64();
        let weight = (-idle / HALF_LIFE.as_secs_f64()).exp2();
        self.capacity * weight + self.usual * (1.0 - weight)
    }
}

/// Whether so much is out that at this rate it would take longer than a round trip.
fn is_full(look: &Look, capacity: f64) -> bool {
    let needed = look.out as f64 * 8.0 / capacity.max(1.0);
    let more = (look.rtt_min / 2).min(FULL_MORE) + FULL_MARGIN;
    needed > (look.rtt_min + more).as_secs_f64()
}

/// Over so long.
const WINDOW: Duration = Duration::from_millis(250);
/// A shorter time says nothing.
const SPAN_MIN: Duration = Duration::from_millis(80);
/// Points are so far apart.
const STEP: Duration = Duration::from_millis(20);
const POINTS_MAX: usize = 16;
/// Ten packets: what a connection may begin with.
const OUT_MIN: u64 = 14_480;
/// More than a round trip: it also contains what the peer takes to acknowledge. Half of one, and no
/// more than what handlers that keep queues short still let out.
const FULL_MORE: Duration = Duration::from_millis(100);
const FULL_MARGIN: Duration = Duration::from_millis(30);
/// Until then a measurement is as good as new.
const FRESH: Duration = Duration::from_millis(200);
/// Idle for so long, and half of it is what is usual.
const HALF_LIFE: Duration = Duration::from_millis(500);
/// The usual rate is the mean of about so much time of work.
const MEMORY: Duration = Duration::from_secs(4);
/// For so long of work it may be in slow start.
const WARM: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A path whose clock is a number of milliseconds.
    struct Line {
        base: Instant,
        rtt: u64,
        at: u64,
        delivered: u64,
        capacity: Capacity,
    }

    impl Line {
        fn new() -> Self {
            #[allow(clippy::disallowed_methods)] // a base for the clock of these tests
            let base = Instant::now();
            Self { base, rtt: 40, at: 0, delivered: 0, capacity: Capacity::default() }
        }

        /// Looks each 10 ms for so long, while so many bytes a millisecond are delivered and so
        /// many are out.
        fn run(&mut self, millis: u64, each: u64, out: u64) -> f64 {
            for _ in 0..millis / 10 {
                self.at += 10;
                self.delivered += each * 10;
                let (at, delivered) = (self.base + ms(self.at), self.delivered);
                let look = Look { at, delivered, busy: out > 0, out, rtt_min: ms(self.rtt) };
                self.capacity.sample(&look);
            }
            self.now()
        }

        /// In bytes a millisecond; -1 while it is unknown.
        fn now(&self) -> f64 {
            let now = self.capacity.now(self.base + ms(self.at));
            now.map_or(-1.0, |rate| rate.as_bps() as f64 / 8_000.0)
        }
    }

    #[test]
    fn the_first_round_trip_says_nothing() {
        let mut line = Line::new();
        assert_eq!(line.run(200, 0, 100_000), -1.0);
        assert_eq!(line.run(70, 1_000, 100_000), -1.0, "70 ms are too short");
        assert_eq!(line.run(100, 1_000, 100_000), 1_000.0);
    }

    #[test]
    fn a_full_path_shows_what_it_carries_and_another_what_it_carries_at_least() {
        let mut line = Line::new();
        assert_eq!(line.run(500, 1_000, 100_000), 1_000.0);
        assert_eq!(line.run(500, 100, 60_000), 1_000.0, "60 ms of work: not full");
        // 100 KB would need 100 ms.
        assert_eq!(line.run(500, 100, 100_000), 100.0);
        assert_eq!(line.run(500, 3_000, 10_000), 3_000.0, "more is always believed");
        assert!(line.capacity.points.len() <= POINTS_MAX);
    }

    #[test]
    fn pauses_between_the_bursts_of_slow_start_are_no_capacity() {
        let mut line = Line { rtt: 200, ..Line::new() };
        assert_eq!(line.run(200, 0, 14_000), -1.0);
        for window in [14_000, 28_000, 56_000] {
            // A window in 10 ms, and nothing for the rest of the round trip.
            line.run(10, window / 10, 2 * window);
            line.run(190, 0, 2 * window);
            // Two round trips are seen, and half as much came in the one before.
            let least = 0.5 * window as f64 / 200.0;
            assert!(line.now() < 0.0 || line.now() >= least, "{} of {least}", line.now());
        }
        assert!((140.0..=420.0).contains(&line.now()), "{}", line.now());
        line.run(3_000, 0, 0);
        assert!(line.now() >= 140.0, "the best of slow start: {}", line.now());
    }

    #[test]
    fn a_queue_that_a_bound_lets_out_shows_a_slower_path_on_any_round_trip() {
        let mut line = Line { rtt: 500, ..Line::new() };
        line.run(3_000, 1_000, 700_000);
        assert_eq!(line.now(), 1_000.0);
        // A round trip and 200 ms of what is known.
        line.run(2_000, 100, 700_000);
        assert_eq!(line.now(), 100.0);
        assert!(line.capacity.points.len() <= POINTS_MAX);
    }

    #[test]
    fn an_idle_path_comes_back_to_what_is_usual() {
        let mut line = Line::new();
        line.run(20_000, 1_000, 100_000);
        assert_eq!(line.run(300, 100, 100_000), 100.0);
        assert!((line.run(200, 0, 0) - 100.0).abs() < 1.0, "still fresh: {}", line.now());
        line.run(500, 0, 0);
        assert!((450.0..650.0).contains(&line.now()), "half of it: {}", line.now());
        line.run(5_000, 0, 0);
        assert!((850.0..1_000.0).contains(&line.now()), "{}", line.now());
    }
}
