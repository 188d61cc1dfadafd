//! Relative delays under clock offsets, drift and late echoes.

use proptest::prelude::*;

use super::*;
use crate::window::PIECES_MAX;

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

/// The relative delays at `end_us` of paths that carried these runs, with this clock of the peer.
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

#[test]
fn queue_in_this_direction_is_no_part_of_the_unqueued_round_trip() {
    let (begin, mut delay) = (base(), Delay::default());
    assert_eq!((delay.unqueued(), delay.queued()), (None, None));
    // When a run is sent (s), the delays of it and of its echo, the round trip and the queue (ms).
    for (sent_s, there, back, round, queue, why) in [
        (0, 20, 30, 50, 0, "empty"),
        (1, 220, 30, 50, 200, "a queue on the way there"),
        (2, 220, 130, 150, 200, "and one on the way back"),
        (3, 10, 30, 40, 0, "a new cell"),
        (13, 20, 30, 40, 10, "the least of the last period"),
        (25, 20, 30, 50, 0, "which is over"),
    ] {
        let sent = begin + Duration::from_secs(sent_s);
        let ms = Duration::from_millis;
        delay.sample(sent + ms(there + back), sent, there as i64 * 1_000 - 5_000_000);
        assert_eq!(delay.unqueued(), Some(ms(round)), "{why}");
        assert_eq!(delay.queued(), Some(ms(queue)), "{why}");
    }
}

fn runs() -> impl Strategy<Value = Vec<Sent>> {
    let run = (0..PATHS, 0u64..10_000_000, 500u64..400_000, 500u64..400_000);
    proptest::collection::vec(run, 1..200)
}

proptest! {
    #[test]
    fn clock_offset_changes_nothing(
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
            prop_assert_eq!(i.error, drifted_i.error);
            prop_assert!(i.error <= us(1_000) + RESOLUTION, "10 s at 100 ppm: {:?}", i);
            for (j, drifted_j) in &pairs {
                if i.owd + i.error + j.error < j.owd {
                    prop_assert!(drifted_i.owd < drifted_j.owd, "{:?} {:?}", i, j);
                }
            }
        }
    }

    #[test]
    fn no_timestamp_of_a_peer_panics(
        samples in proptest::collection::vec((0..PATHS, any::<i64>()), 1..100),
    ) {
        let base = base();
        let mut delays = vec![Delay::default(); PATHS];
        for (at, &(path, delay_us)) in samples.iter().enumerate() {
            let now = base + us(at as u64 * 50_000);
            delays[path].sample(now, now, delay_us);
            prop_assert!(delays[path].window.iter().count() <= PIECES_MAX);
            let common = Common::of(now, RTT, delays.iter()).unwrap();
            prop_assert!(common.relative(&delays[path]).unwrap().owd >= RTT / 2);
        }
    }
}

#[test]
fn delay_is_the_least_of_the_last_second() {
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
    assert_eq!(known[3], None);
}

#[test]
fn late_echoes_are_ignored_and_old_ones_expire() {
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
