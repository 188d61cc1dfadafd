//! One-way delay of paths, relative to each other, from echoed timestamps.
//!
//! An arrival that the peer echoes gives `d = received - sent`: the delay plus the unknown distance
//! of the two clocks. The distance is the same for all paths, so only differences of `d` between
//! paths are used: `owd_i = d_i - min over j of d_j + half the least minimum RTT` (DESIGN 3), where
//! `d_i` is the least `d` of the last second in which the path was heard of. While it is idle its
//! figure stays, with an age and an error that grow.
//!
//! Invariants: memory is bounded by [`PIECES_MAX`]; an offset of the clocks changes nothing; a
//! drift of at most [`DRIFT_PPM`] changes an estimate by no more than its error. No number that a
//! peer may send panics.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What echoes tell of one path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delay {
    /// Oldest first; never more than [`PIECES_MAX`].
    pieces: VecDeque<Piece>,
    /// When the newest echoed run was sent.
    newest: Option<Instant>,
}

/// The samples of one piece of the window.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// When the first of them became known.
    since: Instant,
    /// When the first of them, which is the oldest, was sent.
    sent_at: Instant,
    least_us: i64,
}

/// What all paths are measured against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Common {
    now: Instant,
    least_us: i64,
    half_rtt: Duration,
}

/// One path's one-way delay, relative to those of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Relative {
    pub owd: Duration,
    /// Since the newest echoed run was sent.
    pub age: Duration,
    /// How far the clocks' drift may have moved it.
    pub error: Duration,
}

impl Delay {
    /// Notes that a run sent at `sent_at` took `delay_us`, as the difference of the two clocks. One
    /// that was sent before another known one says nothing new: its echo was late or repeated.
    pub fn sample(&mut self, now: Instant, sent_at: Instant, delay_us: i64) {
        if sent_at > now || self.newest.is_some_and(|newest| sent_at < newest) {
            return;
        }
        self.newest = Some(sent_at);
        while self
            .pieces
            .front()
            .is_some_and(|piece| now.saturating_duration_since(piece.since) > WINDOW)
        {
            self.pieces.pop_front();
        }
        match self.pieces.back_mut() {
            Some(piece) if now.saturating_duration_since(piece.since) < PIECE => {
                piece.least_us = piece.least_us.min(delay_us);
            }
            _ => {
                self.pieces.push_back(Piece { since: now, sent_at, least_us: delay_us });
                if self.pieces.len() > PIECES_MAX {
                    self.pieces.pop_front();
                }
            }
        }
    }

    /// The least of what counts, unless that is too old.
    fn least_us(&self, now: Instant) -> Option<i64> {
        self.age(now).filter(|&age| age <= AGE_MAX)?;
        self.pieces.iter().map(|piece| piece.least_us).min()
    }

    fn age(&self, now: Instant) -> Option<Duration> {
        Some(now.saturating_duration_since(self.newest?))
    }
}

impl Common {
    /// The frame of these paths; `rtt_min` is the least minimum round-trip time among them. `None`
    /// when nothing is known of any.
    pub fn of<'a>(
        now: Instant,
        rtt_min: Duration,
        delays: impl Iterator<Item = &'a Delay>,
    ) -> Option<Self> {
        let least_us = delays.filter_map(|delay| delay.least_us(now)).min()?;
        Some(Self { now, least_us, half_rtt: rtt_min / 2 })
    }

    /// Where one of the paths stands; `None` when nothing is known of it.
    pub fn relative(&self, delay: &Delay) -> Option<Relative> {
        let above = delay.least_us(self.now)?.saturating_sub(self.least_us);
        let oldest = delay.pieces.front()?.sent_at;
        let reach = self.now.saturating_duration_since(oldest);
        let above = Duration::from_micros(u64::try_from(above).unwrap_or(0));
        Some(Relative {
            owd: self.half_rtt + above,
            age: delay.age(self.now)?,
            error: reach.mul_f64(DRIFT_PPM / 1e6) + RESOLUTION,
        })
    }
}

/// The window over which the least delay is taken (DESIGN 3: 1 s).
const WINDOW: Duration = Duration::from_secs(1);
/// Samples so close together are one.
const PIECE: Duration = Duration::from_millis(125);
/// Pieces of a window; beyond, the oldest is dropped.
const PIECES_MAX: usize = 9;
/// Nothing is known of a path that was not heard of for so long; a PING comes more often.
const AGE_MAX: Duration = Duration::from_secs(30);
/// How fast the clocks may drift apart (DESIGN 3: 100 ppm).
const DRIFT_PPM: f64 = 100.0;
/// Timestamps are whole microseconds on both sides.
const RESOLUTION: Duration = Duration::from_micros(2);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RTT: Duration = Duration::from_millis(40);

    /// The peer's clock: where it begins, and how it drifts.
    #[derive(Clone, Copy)]
    struct Clock {
        offset_us: i64,
        ppm: f64,
    }

    const TRUE: Clock = Clock { offset_us: 0, ppm: 0.0 };

    /// A run: its path, when it was sent (us), its delay and that of its echo (us).
    type Sent = (usize, u64, u64, u64);

    const PATHS: usize = 4;

    fn base() -> Instant {
        #[allow(clippy::disallowed_methods)] // a base for the clock of these tests
        Instant::now()
    }

    fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    /// What is known at `end_us` of paths that carried these runs, by this clock of the peer.
    fn known(base: Instant, runs: &[Sent], end_us: u64, clock: Clock) -> Vec<Option<Relative>> {
        let mut heard: Vec<(u64, Sent)> =
            runs.iter().map(|run| (run.1 + run.2 + run.3, *run)).collect();
        heard.sort_unstable();
        let mut delays = vec![Delay::default(); PATHS];
        for (heard_us, (path, sent, delay, _)) in heard {
            if heard_us > end_us {
                break;
            }
            let arrived = sent + delay;
            let drift = (arrived as f64 * clock.ppm / 1e6).round() as i64;
            let received = arrived as i64 + drift + clock.offset_us;
            delays[path].sample(base + us(heard_us), base + us(sent), received - sent as i64);
        }
        let now = base + us(end_us);
        let Some(common) = Common::of(now, RTT, delays.iter()) else { return vec![None; PATHS] };
        delays.iter().map(|delay| common.relative(delay)).collect()
    }

    fn runs() -> impl Strategy<Value = Vec<Sent>> {
        let run = (0..PATHS, 0u64..10_000_000, 500u64..400_000, 500u64..400_000);
        proptest::collection::vec(run, 1..200)
    }

    proptest! {
        #[test]
        fn the_offset_of_the_clocks_changes_nothing(
            runs in runs(),
            offset_us in -(1i64 << 61)..(1i64 << 61),
        ) {
            let base = base();
            let one = known(base, &runs, 10_000_000, TRUE);
            let other = known(base, &runs, 10_000_000, Clock { offset_us, ppm: 0.0 });
            prop_assert_eq!(one, other);
        }

        #[test]
        fn drift_changes_no_order_beyond_the_error(
            runs in runs(),
            offset_us in -(1i64 << 40)..(1i64 << 40),
            ppm in -100.0..100.0f64,
        ) {
            let base = base();
            let one = known(base, &runs, 10_000_000, TRUE);
            let other = known(base, &runs, 10_000_000, Clock { offset_us, ppm });
            for (a, drifted) in one.iter().zip(&other) {
                prop_assert_eq!(a.is_some(), drifted.is_some());
            }
            let pairs: Vec<_> =
                one.iter().zip(&other).filter_map(|(a, b)| Some(((*a)?, (*b)?))).collect();
            for (i, drifted_i) in &pairs {
                prop_assert_eq!((i.age, i.error), (drifted_i.age, drifted_i.error));
                prop_assert!(i.error <= i.age / 10_000 + us(250), "{:?}", i);
                for (j, drifted_j) in &pairs {
                    if i.owd + i.error + j.error < j.owd {
                        prop_assert!(drifted_i.owd < drifted_j.owd, "{:?} {:?}", i, j);
                    }
                }
            }
        }

        #[test]
        fn any_number_of_a_peer_is_borne(
            samples in proptest::collection::vec((0..PATHS, any::<i64>()), 1..100),
        ) {
            let base = base();
            let mut delays = vec![Delay::default(); PATHS];
            for (at, &(path, delay_us)) in samples.iter().enumerate() {
                let now = base + us(at as u64 * 50_000);
                delays[path].sample(now, now, delay_us);
                prop_assert!(delays[path].pieces.len() <= PIECES_MAX);
                let common = Common::of(now, RTT, delays.iter()).unwrap();
                prop_assert!(common.relative(&delays[path]).unwrap().owd >= RTT / 2);
            }
        }
    }

    #[test]
    fn the_least_of_the_last_second_counts() {
        let base = base();
        let path = |path, every_ms: u64, delay: fn(u64) -> u64| {
            (0..3_000 / every_ms).map(move |n| (path, n * every_ms * 1_000, delay(n), 10_000))
        };
        // Path 1 is 20 ms slower, path 2 has a queue that grows and ended 1.5 s ago.
        let mut runs: Vec<Sent> = path(0, 10, |n| 30_000 + n % 7 * 1_000).collect();
        runs.extend(path(1, 10, |n| 50_000 + n % 5 * 1_000));
        runs.extend(path(2, 10, |n| 30_000 + n * 100).filter(|run| run.1 < 1_500_000));
        let known = known(base, &runs, 3_000_000, Clock { offset_us: 77_000_000, ppm: 0.0 });
        let owd = |path: usize| known[path].unwrap().owd;
        assert_eq!((owd(0), owd(1)), (RTT / 2, RTT / 2 + us(20_000)));
        let queue = owd(2) - owd(0);
        assert!((us(4_000)..us(6_500)).contains(&queue), "its last second: {queue:?}");
        assert!(known[2].unwrap().error > known[1].unwrap().error);
        assert_eq!(known[2].unwrap().age, us(3_000_000 - 1_490_000));
        assert_eq!(known[3], None);
    }

    #[test]
    fn late_echoes_say_nothing_and_old_ones_are_forgotten() {
        let base = base();
        let mut delay = Delay::default();
        delay.sample(base + us(900_000), base + us(800_000), 50_000);
        delay.sample(base + us(900_000), base + us(700_000), 10_000);
        delay.sample(base + us(900_000), base + us(900_001), 20_000);
        assert_eq!(delay.least_us(base + us(900_000)), Some(50_000));
        let last = base + us(800_000) + AGE_MAX;
        assert_eq!(delay.least_us(last), Some(50_000));
        assert_eq!(delay.least_us(last + us(1)), None);
    }
}
