//! Delay, rate and window of a path, with substitutes for unknown values.

use std::time::Duration;

use polyrail_model::{Bitrate, Bytes};

use crate::{PathView, SEGMENT};

/// The delay towards the peer without queues, or half the least round-trip time.
pub(crate) fn delay(path: &PathView) -> Duration {
    path.owd.unwrap_or(path.rtt_min / 2)
}

/// The delivery rate, or a window per round trip while it is unknown. Never zero.
pub(crate) fn rate(path: &PathView) -> Bitrate {
    if let Some(rate) = path.rate.filter(|rate| rate.as_bps() > 0) {
        return rate;
    }
    let round_ns = path.srtt.max(Duration::from_millis(1)).as_nanos();
    let bits = u128::from(window(path)) * 8;
    let bps = bits.saturating_mul(1_000_000_000) / round_ns;
    Bitrate::from_bps(u64::try_from(bps).unwrap_or(u64::MAX).max(1))
}

/// The present rate of the path. While it is unknown, the delivery rate, or a window per
/// round trip if that is more.
pub(crate) fn present_rate(path: &PathView) -> Bitrate {
    let unknown = || rate(&PathView { rate: None, ..*path }).max(rate(path));
    path.capacity.filter(|rate| rate.as_bps() > 0).unwrap_or_else(unknown)
}

/// The present rate, capped at a window per round trip, because a collapsed window shows a falling
/// rate first. In slow start the cap is two windows. An idle path has its least round trip.
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

    #[test]
    fn selectors_avoid_stalled_carrying_and_backup_paths() {
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
    fn unknown_delay_and_rate_have_substitutes() {
        let known =
            PathView { owd: Some(ms(30)), rate: Some(Bitrate::from_mbps(3.0)), ..path(1, 100) };
        assert_eq!((delay(&known), rate(&known)), (ms(30), Bitrate::from_mbps(3.0)));
        let unknown = PathView { window: Bytes(12_500), ..path(1, 100) };
        assert_eq!((delay(&unknown), rate(&unknown)), (ms(50), Bitrate::from_mbps(1.0)));
        let nothing = PathView { window: Bytes::ZERO, ..path(1, 0) };
        assert_eq!(rate(&nothing), Bitrate::from_bps(14_000 * 8 * 1_000), "10 segments, 1 ms");
    }
}
