//! Delay, rate and window of a path, with substitutes for values that are still unknown.

use std::time::Duration;

use polyrail_model::{Bitrate, Bytes};

use crate::{PathView, SEGMENT};

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

/// What the path carries now, as far as is known. One that was never full carries what it did, and
/// at least a window a round trip.
pub(crate) fn present_rate(path: &PathView) -> Bitrate {
    let unknown = || rate(&PathView { rate: None, ..*path }).max(rate(path));
    path.capacity.filter(|rate| rate.as_bps() > 0).unwrap_or_else(unknown)
}

/// The present rate, but not more than a window a round trip: one that has just collapsed, or that
/// is held low to measure the round trip, shows there first. In slow start it will be twice as
/// much. The round trip of an idle path is the least one.
pub(crate) fn attainable_rate(path: &PathView) -> Bitrate {
    let rate = present_rate(path);
    let round = if path.outstanding > Bytes::ZERO { path.srtt } else { path.rtt_min };
    if path.window == Bytes::ZERO || round.is_zero() {
        return rate;
    }
    let window = path.window.0 as f64 * if path.slow_start { 2.0 } else { 1.0 };
    let most = window * 8.0 / round.as_secs_f64();
    Bitrate::from_bps(rate.as_bps().min(most as u64).max(1))
}

/// The window in bytes, at least one segment; while it is unknown, the initial one.
pub(crate) fn window(path: &PathView) -> u64 {
    if path.window.0 == 0 { WINDOW_INITIAL } else { path.window.0.max(SEGMENT) }
}

/// RFC 6928, section 2: ten segments.
const WINDOW_INITIAL: u64 = 10 * SEGMENT;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{backup, base, chosen, full, ms, path, stalled};
    use crate::{Input, SegmentView};

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
                let mask = carried.iter().copied().collect();
                let segment = SegmentView { carried: mask, ..SegmentView::default() };
                let mut chain = crate::ChainSpec::named(name).unwrap().build();
                chosen(chain.decide(&Input { paths, segment, now: base() }))
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
        let known =
            PathView { owd: Some(ms(30)), rate: Some(Bitrate::from_mbps(3.0)), ..path(1, 100) };
        assert_eq!((delay(&known), rate(&known)), (ms(30), Bitrate::from_mbps(3.0)));
        let unknown = PathView { window: Bytes(12_500), ..path(1, 100) };
        assert_eq!((delay(&unknown), rate(&unknown)), (ms(50), Bitrate::from_mbps(1.0)));
        let nothing = PathView { window: Bytes::ZERO, ..path(1, 0) };
        assert_eq!(rate(&nothing), Bitrate::from_bps(14_000 * 8 * 1_000), "10 segments, 1 ms");
    }
}
