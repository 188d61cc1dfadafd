//! Delay and rate of a path, also where they are not measured yet.

use std::time::Duration;

use polyrail_model::Bitrate;

use super::window::window;
use crate::PathView;

/// The delay towards the peer without queues; half the least round-trip time while it is unknown.
pub(crate) fn delay(path: &PathView) -> Duration {
    path.owd.unwrap_or(path.rtt_min / 2)
}

/// The rate; while it is unknown a window a round trip, and at least a segment. Never zero.
pub(crate) fn rate(path: &PathView) -> Bitrate {
    if let Some(rate) = path.rate.filter(|rate| rate.as_bps() > 0) {
        return rate;
    }
    let round_ns = path.srtt.max(Duration::from_millis(1)).as_nanos();
    let bits = u128::from(window(path)) * 8;
    let bps = bits.saturating_mul(1_000_000_000) / round_ns;
    Bitrate::from_bps(u64::try_from(bps).unwrap_or(u64::MAX).max(1))
}

/// Whether what is out waits somewhere: its round trip is longer than the least one.
pub(crate) fn has_queue(path: &PathView) -> bool {
    path.srtt > path.rtt_min.mul_f64(QUEUE_FACTOR) + QUEUE_MARGIN
}

/// What the path delivers now: while it has a queue, what it has just delivered; without one that is
/// only the least that it can, and what is known from before counts, less with age.
pub(crate) fn present_rate(path: &PathView) -> Bitrate {
    let halvings = path.rate_age.as_secs_f64() / HALF_LIFE.as_secs_f64();
    let before = rate(path).as_bps() as f64 * (-halvings).exp2();
    let Some(flowing) = path.flowing else { return Bitrate::from_bps((before as u64).max(1)) };
    let fresh = path.flowing_age <= FLOWING_AGE;
    if fresh && has_queue(path) {
        return Bitrate::from_bps(flowing.as_bps().max(1));
    }
    Bitrate::from_bps((before as u64).max(flowing.as_bps()).max(1))
}

const QUEUE_FACTOR: f64 = 1.25;
const QUEUE_MARGIN: Duration = Duration::from_millis(15);
const HALF_LIFE: Duration = Duration::from_secs(2);
const FLOWING_AGE: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use polyrail_model::Bytes;

    use super::*;
    use crate::view::samples::{backup, base, full, path, stalled};
    use crate::{Decision, Input, PathSet, SegmentView};

    /// What the selectors by delay and rate hold to.
    #[test]
    fn selectors_leave_out_what_is_dead_carried_or_a_backup() {
        for name in [
            "daps",
            "edpf",
            "musher",
            "musher_scaled",
            "network_adaptive",
            "otias",
            "raven",
            "stms",
        ] {
            let choice = |paths: &[PathView], carried: &[usize]| {
                let mut mask = PathSet::EMPTY;
                carried.iter().for_each(|&i| mask.insert(i));
                let segment = SegmentView { carried: mask, ..SegmentView::default() };
                let mut chain = crate::ChainSpec::named(name).unwrap().build();
                match chain.decide(&Input { paths, segment, now: base() }) {
                    Decision::Send { primary, .. } => Some(primary),
                    Decision::Wait { .. } => None,
                }
            };
            let (a, b) = (path(1, 40), path(2, 40));
            assert_eq!(choice(&[], &[]), None, "{name}: no path");
            assert_eq!(choice(&[stalled(a), b], &[]), Some(1), "{name}: dead");
            assert_eq!(choice(&[full(a), full(b)], &[]), None, "{name}: all full");
            assert_eq!(choice(&[stalled(a), stalled(b)], &[]), None, "{name}: all dead");
            assert_eq!(choice(&[a, b], &[0]), Some(1), "{name}: carried");
            assert_eq!(choice(&[a, full(b)], &[0]), None, "{name}: waits for the fresh one");
            assert!(choice(&[a, b], &[0, 1]).is_some(), "{name}: a full mask is cleared");
            assert_eq!(choice(&[backup(a), b], &[]), Some(1), "{name}: backup");
            assert_eq!(choice(&[backup(a), stalled(b)], &[]), Some(0), "{name}: only a backup");
        }
    }

    #[test]
    fn what_is_unknown_is_half_the_least_round_trip_and_a_window_a_round_trip() {
        let ms = Duration::from_millis;
        let known =
            PathView { owd: Some(ms(30)), rate: Some(Bitrate::from_mbps(3.0)), ..path(1, 100) };
        assert_eq!((delay(&known), rate(&known)), (ms(30), Bitrate::from_mbps(3.0)));
        let unknown = PathView { window: Bytes(12_500), ..path(1, 100) };
        assert_eq!((delay(&unknown), rate(&unknown)), (ms(50), Bitrate::from_mbps(1.0)));
        let nothing = PathView { window: Bytes::ZERO, ..path(1, 0) };
        assert_eq!(rate(&nothing), Bitrate::from_bps(14_000 * 8 * 1_000), "10 segments, 1 ms");
    }
}
