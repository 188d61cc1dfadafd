//! The delivery rate of a path: the most of the last second, from the transport's samples.
//!
//! A sample that the application limited says how much was offered, not what the path carries: it
//! counts only when it is more than what is known. The second is that before the newest sample
//! that counts: while the path is silent the figure stays, and grows old.
//!
//! Invariant: memory is bounded by [`PIECES_MAX`].

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use polyrail_model::{Bitrate, LinkSample};

/// What samples tell of one path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rate {
    /// Oldest first; never more than [`PIECES_MAX`].
    pieces: VecDeque<Piece>,
    /// When the newest sample that counts was taken.
    newest: Option<Instant>,
}

/// The samples of one piece of the window.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// When the first of them was taken.
    since: Instant,
    most: Bitrate,
}

impl Rate {
    /// Takes a sample in. Returns whether it counts.
    pub fn sample(&mut self, sample: &LinkSample) -> bool {
        let Some(rate) = sample.delivery_rate else { return false };
        if sample.application_limited && self.most().is_some_and(|known| rate <= known) {
            return false;
        }
        let at = sample.at;
        self.newest = Some(at);
        let old = |piece: &Piece| at.saturating_duration_since(piece.since) > WINDOW;
        while self.pieces.front().is_some_and(old) {
            self.pieces.pop_front();
        }
        match self.pieces.back_mut() {
            Some(piece) if at.saturating_duration_since(piece.since) < PIECE => {
                piece.most = piece.most.max(rate);
            }
            _ => {
                self.pieces.push_back(Piece { since: at, most: rate });
                if self.pieces.len() > PIECES_MAX {
                    self.pieces.pop_front();
                }
            }
        }
        true
    }

    /// The rate; `None` before the first sample that counts.
    pub fn most(&self) -> Option<Bitrate> {
        self.pieces.iter().map(|piece| piece.most).max()
    }
}

/// The window (the maximum over about 1 s).
const WINDOW: Duration = Duration::from_secs(1);
/// Samples so close together are one.
const PIECE: Duration = Duration::from_millis(125);
/// Pieces of a window; beyond, the oldest is dropped.
const PIECES_MAX: usize = 9;

#[cfg(test)]
mod tests {
    use polyrail_model::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn base() -> Instant {
        #[allow(clippy::disallowed_methods)] // a base for the clock of these tests
        Instant::now()
    }

    fn sample(at: Instant, mbps: f64, application_limited: bool) -> LinkSample {
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
            timeouts: 0,
            acked: Bytes::ZERO,
        }
    }

    #[test]
    fn the_most_of_the_last_second_counts() {
        let (base, mut rate) = (base(), Rate::default());
        assert_eq!(rate.most(), None);
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
            assert_eq!(rate.most(), Some(Bitrate::from_mbps(known)), "at {at_ms} ms");
        }
        let later = base + Duration::from_secs(12);
        assert!(!rate.sample(&sample(later, 4.0, true)));
        assert_eq!(rate.most(), Some(Bitrate::from_mbps(4.0)), "it stays");
    }

    proptest! {
        #[test]
        fn it_is_the_most_of_some_window_of_about_a_second(
            steps in proptest::collection::vec((0u64..400, 1u64..100), 1..200),
        ) {
            let (base, mut rate, mut at_ms) = (base(), Rate::default(), 0);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (step_ms, mbps) in steps {
                at_ms += step_ms;
                taken.push((at_ms, mbps));
                rate.sample(&sample(base + Duration::from_millis(at_ms), mbps as f64, false));
                prop_assert!(rate.pieces.len() <= PIECES_MAX);
                let most = |window_ms: u64| {
                    let within = taken.iter().filter(|(at, _)| at_ms - at <= window_ms);
                    Bitrate::from_mbps(within.map(|(_, mbps)| *mbps).max().unwrap_or(0) as f64)
                };
                let known = rate.most().unwrap();
                prop_assert!((most(875)..=most(1_125)).contains(&known), "{known:?}");
            }
        }
    }
}
