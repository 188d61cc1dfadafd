//! The present capacity of a path, from the bytes that the peer's transport acknowledges.
//!
//! The transport's own delivery rate is the maximum of several round trips and does not change
//! while the application limits it. On a train the radio loses nine tenths of its rate within a
//! second. So the rate of the last quarter of a second counts here. It is the capacity if the path
//! was full: if the bytes in flight need more than a round trip at the known capacity. Otherwise it
//! is only a lower bound. But of several paths hardly one is ever full. So what the link carried
//! while it was busy, from the echoed arrivals of runs, is its capacity, too.
//!
//! While the path is idle, its capacity decays to the usual rate: the mean of some seconds of work.
//!
//! Invariant: memory is bounded by [`POINTS_MAX`].

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use polyrail_model::Bitrate;

/// The capacity of one path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Capacity {
    /// Bytes delivered in total, at points of time; oldest first.
    points: VecDeque<(Instant, u64)>,
    /// Bytes delivered when the busy time began, until its first acknowledgement.
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

/// The state of a path at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// When.
    pub at: Instant,
    /// Bytes delivered in total.
    pub delivered: u64,
    /// The transport has something in flight.
    pub busy: bool,
    /// Bytes in flight and unsent.
    pub backlog: u64,
    /// Least round-trip time.
    pub rtt_min: Duration,
}

impl Capacity {
    /// Takes a sample.
    pub fn sample(&mut self, look: &Look) {
        if !look.busy {
            self.points.clear();
            self.begun = None;
            return;
        }
        // The first acknowledgement of an idle path comes a round trip later: that time is no rate.
        if self.points.is_empty() && look.delivered <= *self.begun.get_or_insert(look.delivered) {
            return;
        }
        let since = |point: &(Instant, u64)| look.at.saturating_duration_since(point.0);
        if self.points.is_empty()
            && let Some(known) = &mut self.known
        {
            known.capacity = known.now(look.at);
        }
        // The points must cover two round trips.
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
        // Before slow start fills the link, a round trip passes between its bursts.
        if span >= SPAN_MIN.max(look.rtt_min) {
            let bytes = look.delivered.saturating_sub(first.1);
            let rate = bytes as f64 * 8.0 / span.as_secs_f64();
            self.learn(look, rate);
        }
    }

    fn learn(&mut self, look: &Look, rate: f64) {
        // With a small backlog the rate is that of the application.
        let enough = look.backlog >= BACKLOG_MIN;
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
        // A dark path delivers nothing, which is not its usual rate.
        if (full && rate > 0.0) || rate > known.usual {
            known.weigh(look.at, rate);
        }
        if enough || raised {
            known.at = look.at;
        }
    }

    /// The link was busy until now, and carried so much.
    pub fn was_busy(&mut self, now: Instant, rate: Bitrate) {
        let Some(known) = &mut self.known else { return };
        known.capacity = rate.as_bps() as f64;
        known.weigh(now, known.capacity);
        known.at = now;
    }

    /// The capacity; `None` before anything was delivered.
    pub fn now(&self, now: Instant) -> Option<Bitrate> {
        self.known.map(|known| Bitrate::from_bps((known.now(now) as u64).max(1)))
    }
}

impl Known {
    /// Counts a rate as usual for the time since the last measurement.
    fn weigh(&mut self, at: Instant, rate: f64) {
        let since = at.saturating_duration_since(self.at).min(WINDOW);
        self.weighed = (self.weighed + since).min(MEMORY);
        if self.weighed < WARM {
            // The pauses and small windows of slow start are below the usual rate.
            self.usual = self.usual.max(rate);
        } else {
            // The mean of everything at first, of the last seconds later.
            let memory = self.weighed.as_secs_f64();
            let weight = 1.0 - (-since.as_secs_f64() / memory).exp();
            self.usual += (rate - self.usual) * weight;
        }
    }

    fn now(&self, now: Instant) -> f64 {
        let idle = now.saturating_duration_since(self.at).saturating_sub(FRESH).as_secs_f64();
        let weight = (-idle / HALF_LIFE.as_secs_f64()).exp2();
        self.capacity * weight + self.usual * (1.0 - weight)
    }
}

/// Whether the backlog takes longer than a round trip at this rate.
fn is_full(look: &Look, capacity: f64) -> bool {
    let needed = look.backlog as f64 * 8.0 / capacity.max(1.0);
    let more = (look.rtt_min / 2).min(FULL_MORE) + FULL_MARGIN;
    needed > (look.rtt_min + more).as_secs_f64()
}

/// The time over which the rate is measured.
const WINDOW: Duration = Duration::from_millis(250);
/// The least time over which it is measured.
const SPAN_MIN: Duration = Duration::from_millis(80);
/// The least time between two points.
const STEP: Duration = Duration::from_millis(20);
const POINTS_MAX: usize = 16;
/// Ten packets: the initial window of a connection (RFC 6928).
const BACKLOG_MIN: u64 = 14_480;
/// More than a round trip, because the peer delays acknowledgements: half of one, and at most the
/// queue that handlers with short queues still permit.
const FULL_MORE: Duration = Duration::from_millis(100);
const FULL_MARGIN: Duration = Duration::from_millis(30);
/// How long a measurement counts in full.
const FRESH: Duration = Duration::from_millis(200);
/// The idle time after which half of the capacity is the usual rate.
const HALF_LIFE: Duration = Duration::from_millis(500);
/// The usual rate is the mean of about this much busy time.
const MEMORY: Duration = Duration::from_secs(4);
/// The busy time during which the path may be in slow start.
const WARM: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A path with a clock in milliseconds.
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

        /// Takes a sample every 10 ms at a rate in bytes a millisecond, with this backlog.
        fn run(&mut self, millis: u64, rate: u64, backlog: u64) -> f64 {
            for _ in 0..millis / 10 {
                self.at += 10;
                self.delivered += rate * 10;
                let (at, delivered) = (self.base + ms(self.at), self.delivered);
                let (busy, rtt_min) = (backlog > 0, ms(self.rtt));
                let look = Look { at, delivered, busy, backlog, rtt_min };
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
    fn first_round_trip_gives_no_capacity() {
        let mut line = Line::new();
        assert_eq!(line.run(200, 0, 100_000), -1.0);
        assert_eq!(line.run(70, 1_000, 100_000), -1.0, "70 ms are too short");
        assert_eq!(line.run(100, 1_000, 100_000), 1_000.0);
    }

    #[test]
    fn full_path_shows_its_capacity_and_a_path_with_room_a_lower_bound() {
        let mut line = Line::new();
        assert_eq!(line.run(500, 1_000, 100_000), 1_000.0);
        assert_eq!(line.run(500, 100, 60_000), 1_000.0, "60 ms of work: not full");
        // 100 KB would need 100 ms.
        assert_eq!(line.run(500, 100, 100_000), 100.0);
        assert_eq!(line.run(500, 3_000, 10_000), 3_000.0, "a higher rate always counts");
        assert!(line.capacity.points.len() <= POINTS_MAX);
    }

    #[test]
    fn pauses_between_the_bursts_of_slow_start_do_not_lower_the_capacity() {
        let mut line = Line { rtt: 200, ..Line::new() };
        assert_eq!(line.run(200, 0, 14_000), -1.0);
        for window in [14_000, 28_000, 56_000] {
            // A window in 10 ms, and nothing for the rest of the round trip.
            line.run(10, window / 10, 2 * window);
            line.run(190, 0, 2 * window);
            // The points cover two round trips, and the first delivered half as much.
            let least = 0.5 * window as f64 / 200.0;
            assert!(line.now() < 0.0 || line.now() >= least, "{} of {least}", line.now());
        }
        assert!((140.0..=420.0).contains(&line.now()), "{}", line.now());
        line.run(3_000, 0, 0);
        assert!(line.now() >= 140.0, "the best of slow start: {}", line.now());
    }

    #[test]
    fn bounded_queue_shows_a_slower_path_on_any_round_trip() {
        let mut line = Line { rtt: 500, ..Line::new() };
        line.run(3_000, 1_000, 700_000);
        assert_eq!(line.now(), 1_000.0);
        // A round trip and 200 ms at the known capacity.
        line.run(2_000, 100, 700_000);
        assert_eq!(line.now(), 100.0);
        assert!(line.capacity.points.len() <= POINTS_MAX);
    }

    #[test]
    fn capacity_of_an_idle_path_decays_to_the_usual_rate() {
        let mut line = Line::new();
        line.run(20_000, 1_000, 100_000);
        assert_eq!(line.run(300, 100, 100_000), 100.0);
        assert!((line.run(200, 0, 0) - 100.0).abs() < 1.0, "still fresh: {}", line.now());
        line.run(500, 0, 0);
        assert!((450.0..650.0).contains(&line.now()), "half of it: {}", line.now());
        line.run(5_000, 0, 0);
        assert!((850.0..1_000.0).contains(&line.now()), "{}", line.now());
    }

    #[test]
    fn rate_of_a_busy_link_counts_although_the_path_has_room() {
        let mut line = Line::new();
        let busy = |line: &mut Line, rate: u64| {
            let now = line.base + ms(line.at);
            line.capacity.was_busy(now, Bitrate::from_bps(rate * 8_000));
            line.now()
        };
        assert_eq!(busy(&mut line, 300), -1.0, "nothing is known yet");
        line.run(20_000, 1_000, 100_000);
        line.run(500, 100, 15_000);
        assert_eq!(busy(&mut line, 300), 300.0);
        assert_eq!(line.run(500, 100, 15_000), 300.0, "50 ms of work: not full");
        assert_eq!(busy(&mut line, 500), 500.0);
        line.run(5_000, 0, 0);
        assert!(line.now() > 900.0, "as usual: {}", line.now());
    }
}
