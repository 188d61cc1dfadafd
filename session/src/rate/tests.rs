//! The rate as a table, and next to a plain maximum.

use std::time::{Duration, Instant};

use polyrail_model::Bytes;
use proptest::prelude::*;

use super::*;
use crate::window::PIECES_MAX;

pub(crate) fn base() -> Instant {
    #[allow(clippy::disallowed_methods)] // a base for the clock of these tests
    Instant::now()
}

pub(crate) fn sample(at: Instant, mbps: f64, application_limited: bool) -> LinkSample {
    LinkSample {
        at,
        srtt: Duration::from_millis(40),
        rtt_min: Duration::from_millis(40),
        rtt_var: Duration::ZERO,
        window: Bytes::ZERO,
        in_flight: Bytes::ZERO,
        unsent: Bytes::ZERO,
        delivery_rate: Some(Bitrate::from_mbps(mbps)),
        application_limited,
        sent_packets: 0,
        lost_packets: 0,
        spurious_packets: 0,
        timeouts: 0,
        acked: Bytes::ZERO,
    }
}

#[test]
fn rate_is_the_maximum_of_the_last_second() {
    let (base, mut rate) = (base(), Rate::default());
    assert_eq!(rate.max(), None);
    for (at_ms, mbps, limited, known) in [
        (0, 3.0, true, 3.0),
        (100, 8.0, false, 8.0),
        (200, 5.0, false, 8.0),
        (300, 1.0, true, 8.0),
        (1_000, 6.0, false, 8.0),
        (1_200, 5.0, false, 6.0),
        (1_250, 9.0, true, 9.0),
        (9_000, 1.0, true, 9.0),
        (9_000, 4.0, false, 4.0),
    ] {
        let at = base + Duration::from_millis(at_ms);
        rate.sample(&sample(at, mbps, limited));
        assert_eq!(rate.max(), Some(Bitrate::from_mbps(known)), "at {at_ms} ms");
    }
    let later = base + Duration::from_secs(12);
    rate.sample(&sample(later, 4.0, true));
    assert_eq!(rate.max(), Some(Bitrate::from_mbps(4.0)), "it stays");
}

proptest! {
    #[test]
    fn rate_is_the_maximum_of_a_window_of_about_a_second(
        steps in proptest::collection::vec((0u64..400, 1u64..100), 1..200),
    ) {
        let (base, mut rate, mut at_ms) = (base(), Rate::default(), 0);
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for (step_ms, mbps) in steps {
            at_ms += step_ms;
            taken.push((at_ms, mbps));
            rate.sample(&sample(base + Duration::from_millis(at_ms), mbps as f64, false));
            prop_assert!(rate.window.iter().count() <= PIECES_MAX);
            let max = |window_ms: u64| {
                let within = taken.iter().filter(|(at, _)| at_ms - at <= window_ms);
                Bitrate::from_mbps(within.map(|(_, mbps)| *mbps).max().unwrap_or(0) as f64)
            };
            let known = rate.max().unwrap();
            prop_assert!((max(875)..=max(1_125)).contains(&known), "{known:?}");
        }
    }
}
