//! How long the turns of the loop take: a histogram of plain counters, without lock or allocation.

use std::time::Duration;

/// The turns of the loop since the start, by their duration. A turn is the work between two polls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnTimes {
    /// The number of turns within each of [`TURN_BOUNDS`] and above the one before; the last number
    /// is that of all longer ones.
    pub counts: [u64; TURN_BOUNDS.len() + 1],
    /// Their duration together.
    pub sum: Duration,
}

impl TurnTimes {
    /// Counts a turn.
    pub(crate) fn add(&mut self, took: Duration) {
        let place = TURN_BOUNDS.partition_point(|bound| *bound < took);
        self.counts[place] += 1;
        self.sum += took;
    }
}

/// Upper bounds of the histogram. A turn of 5 ms delays a call's packets noticeably, and the
/// service manager ends a daemon after 10 s.
pub const TURN_BOUNDS: [Duration; 12] = [
    Duration::from_micros(50),
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2_500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_millis(2_500),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turn_counts_at_the_least_bound_that_covers_it() {
        let mut times = TurnTimes::default();
        let us = Duration::from_micros;
        for took in [us(0), us(50), us(51), us(5_000), us(2_500_000), us(2_500_001)] {
            times.add(took);
        }
        assert_eq!(times.counts, [2, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1]);
        assert_eq!(times.sum, us(5_005_102));
        assert!(TURN_BOUNDS.is_sorted());
    }
}
