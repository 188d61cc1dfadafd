//! How much more is acknowledged at once than the bandwidth explains (`MaxAckHeightTracker`): the
//! most over about ten rounds.

use std::time::{Duration, Instant};

use super::bytes_in;

/// The tracker.
#[derive(Debug, Default)]
pub(super) struct Height {
    /// The best, and those that follow it when it is too old, each with its round.
    best: Option<[(Extra, u64); 3]>,
    epoch: Option<Epoch>,
}

/// What came early. Compared in this order.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
struct Extra {
    extra: u64,
    bytes: u64,
    time: Duration,
}

/// As long as acknowledgements are early, and no longer than a round.
#[derive(Clone, Copy, Debug)]
struct Epoch {
    began: Instant,
    bytes: u64,
    /// All that had been sent when it began.
    sent: u64,
}

/// An acknowledgement, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) now: Instant,
    pub(super) bytes: u64,
    /// All that was sent so far, and when the newest of these segments had left, with it.
    pub(super) sent: u64,
    pub(super) sent_of_newest: u64,
    pub(super) round: u64,
}

impl Height {
    /// The most, in bytes.
    pub(super) fn most(&self) -> u64 {
        self.best.map_or(0, |[(best, _), ..]| best.extra)
    }

    /// Takes an acknowledgement at this bandwidth in bits a second, which may be `new`ly found.
    pub(super) fn update(&mut self, bandwidth: u64, new: bool, arrival: &Arrival) {
        if new {
            // They lose their age, so that the next round replaces them.
            for (mut known, _) in self.best.take().into_iter().flatten() {
                let least = bytes_in(bandwidth, known.time);
                if least < known.bytes {
                    known.extra = known.bytes - least;
                    self.insert(known, 0);
                }
            }
        }
        let Arrival { now, bytes, sent, .. } = *arrival;
        let fresh = Some(Epoch { began: now, bytes, sent });
        let Some(epoch) = self.epoch.as_mut().filter(|epoch| arrival.sent_of_newest <= epoch.sent)
        else {
            self.epoch = fresh;
            return;
        };
        let time = now.saturating_duration_since(epoch.began);
        let expected = bytes_in(bandwidth, time);
        if epoch.bytes <= expected {
            self.epoch = fresh;
            return;
        }
        epoch.bytes += bytes;
        let bytes = epoch.bytes;
        self.insert(Extra { extra: bytes - expected, bytes, time }, arrival.round);
    }

    /// Keeps the best three of the window, each from a later part of it (Kathleen Nichols' filter).
    fn insert(&mut self, extra: Extra, round: u64) {
        let new = (extra, round);
        let old = |at: u64, age: u64| round.saturating_sub(at) > age;
        let Some([first, second, third]) = &mut self.best else {
            self.best = Some([new; 3]);
            return;
        };
        if extra > first.0 || old(third.1, ROUNDS) {
            self.best = Some([new; 3]);
            return;
        }
        if extra > second.0 {
            (*second, *third) = (new, new);
        } else if extra > third.0 {
            *third = new;
        }
        if old(first.1, ROUNDS) {
            (*first, *second, *third) = (*second, *third, new);
            if old(first.1, ROUNDS) {
                (*first, *second) = (*second, *third);
            }
        } else if second.0 == first.0 && old(second.1, ROUNDS / 4) {
            (*second, *third) = (new, new);
        } else if third.0 == second.0 && old(third.1, ROUNDS / 2) {
            *third = new;
        }
    }
}

const ROUNDS: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_acknowledgements_are_learned_and_forgotten() {
        let (begin, mut height) = (Instant::now(), Height::default());
        let mut arrive = |at_ms: u64, bytes: u64, round: u64| {
            let now = begin + Duration::from_millis(at_ms);
            let sent = at_ms * 1_000 + 40_000;
            let arrival = Arrival { now, bytes, sent, sent_of_newest: at_ms * 1_000, round };
            // 1,000 bytes a millisecond.
            height.update(8_000_000, false, &arrival);
            height.most()
        };
        for step in 0..10 {
            assert_eq!(arrive(step * 2, 2_000, 1), 0, "even");
        }
        arrive(30, 10_000, 1);
        assert_eq!(arrive(31, 2_000, 1), 11_000, "twelve in one millisecond");
        let after = (4..40).map(|round| {
            arrive(round * 40, 2_000, round);
            arrive(round * 40 + 1, 2_000, round)
        });
        assert_eq!(after.last(), Some(3_000), "the burst is too old");
    }
}
