//! Numbers that the peer has used, each once: the path counters and the flows of a session.
//!
//! A gateway counts up, but greetings get lost and OPENs are late, so there are gaps: used numbers
//! are kept as ranges. Beyond a bound the lowest range is forgotten, and all numbers up to its end
//! count as used. The gateway of such a late greeting sends a new one; such a late flow is reset.

use crate::ranges::RangeSet;

#[derive(Debug)]
pub(crate) struct Counters {
    /// All counters below count as used.
    floor: u64,
    used: RangeSet,
    /// The maximum number of ranges.
    ranges_max: usize,
}

impl Counters {
    pub fn new(ranges_max: usize) -> Self {
        Self { floor: 0, used: RangeSet::default(), ranges_max }
    }

    /// Accepts a counter, at most 2^62 - 1; false when it is used.
    pub fn accept(&mut self, counter: u64) -> bool {
        if self.is_used(counter) {
            return false;
        }
        self.used.insert(counter..counter + 1);
        if self.used.len() > self.ranges_max {
            let lowest = self.used.iter().next().map_or(self.floor, |range| range.start);
            self.floor = self.used.advance(lowest);
        }
        true
    }

    /// One above the highest number that was accepted.
    pub fn end(&self) -> u64 {
        self.used.end()
    }

    /// Whether a counter was accepted, or is below the remembered ranges.
    pub fn is_used(&self, counter: u64) -> bool {
        counter < self.floor || self.used.contains(counter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::COUNTER_RANGES_MAX;

    #[test]
    fn counter_is_accepted_once_in_any_order() {
        let mut counters = Counters::new(COUNTER_RANGES_MAX);
        for counter in [7, 5, 9, 6] {
            assert!(!counters.is_used(counter) && counters.accept(counter), "{counter}");
            assert!(counters.is_used(counter) && !counters.accept(counter), "{counter}");
        }
        assert!(counters.accept(1) && counters.accept(8));
    }

    #[test]
    fn gaps_are_remembered_up_to_a_bound() {
        let mut counters = Counters::new(COUNTER_RANGES_MAX);
        let top = 4 * COUNTER_RANGES_MAX as u64;
        // Every second one is lost.
        for counter in (0..top).step_by(2) {
            assert!(counters.accept(counter), "{counter}");
            assert!(counters.used.len() <= COUNTER_RANGES_MAX, "{counter}");
        }
        // The youngest gaps are still open, the old ones are not.
        assert!(counters.accept(top - 3) && counters.accept(top - 1));
        assert!(counters.accept(top - 2 * COUNTER_RANGES_MAX as u64 + 1));
        assert!(!counters.accept(1) && !counters.accept(top / 4 + 1));
        assert!(counters.accept((1 << 62) - 1));
    }
}
