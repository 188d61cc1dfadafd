//! A set of sequence numbers as disjoint ranges.
//!
//! Invariant: ranges are non-empty, disjoint and not adjacent.

use std::collections::BTreeMap;
use std::ops::Range;

/// The numbers of the set, by range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet {
    /// Start to end.
    ranges: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Adds a range, merging it with those it touches.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&before, &before_end)) = self.ranges.range(..=start).next_back()
            && before_end >= start
        {
            start = before;
            end = end.max(before_end);
        }
        while let Some((&next, &next_end)) = self.ranges.range(start..=end).next() {
            self.ranges.remove(&next);
            end = end.max(next_end);
        }
        self.ranges.insert(start, end);
    }

    /// Removes all numbers up to the end of the range that contains or touches `edge`, and returns
    /// that end: the first missing number from `edge` on.
    pub fn advance(&mut self, edge: u64) -> u64 {
        let mut edge = edge;
        while let Some(entry) = self.ranges.first_entry() {
            if *entry.key() > edge {
                break;
            }
            edge = edge.max(*entry.get());
            entry.remove();
        }
        edge
    }

    /// The parts of `range` that are missing.
    pub fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = range.start;
        if let Some((_, &end)) = self.ranges.range(..=range.start).next_back() {
            at = at.max(end);
        }
        for (&start, &end) in self.ranges.range(range.start..range.end) {
            if start > at {
                gaps.push(at..start);
            }
            at = at.max(end);
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }

    /// Whether the set contains the number.
    pub fn contains(&self, number: u64) -> bool {
        self.ranges.range(..=number).next_back().is_some_and(|(_, &end)| end > number)
    }

    /// The range that contains the number.
    pub fn containing(&self, number: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.ranges.range(..=number).next_back()?;
        (end > number).then_some(start..end)
    }

    /// The first range that begins at or above the number.
    pub fn from(&self, number: u64) -> Option<Range<u64>> {
        self.ranges.range(number..).next().map(|(&start, &end)| start..end)
    }

    /// The ranges in rising order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.ranges.iter().map(|(&start, &end)| start..end)
    }

    /// The number of ranges.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// One above the highest number; 0 if the set is empty.
    pub fn end(&self) -> u64 {
        self.ranges.last_key_value().map_or(0, |(_, &end)| end)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_a_plain_set(
            inserts in prop::collection::vec((0u64..60, 0u64..12), 0..40),
            probe in (0u64..60, 0u64..20),
            edge in 0u64..70,
        ) {
            let (mut ranges, mut plain) = (RangeSet::default(), BTreeSet::new());
            for (start, length) in inserts {
                ranges.insert(start..start + length);
                plain.extend(start..start + length);
            }
            let members: BTreeSet<u64> = ranges.iter().flatten().collect();
            prop_assert_eq!(&members, &plain);
            let list: Vec<_> = ranges.iter().collect();
            prop_assert!(list.windows(2).all(|pair| pair[0].end < pair[1].start));
            let wanted = probe.0..probe.0 + probe.1;
            let gaps: Vec<u64> = ranges.missing(wanted.clone()).into_iter().flatten().collect();
            let plain_gaps: Vec<u64> = wanted.filter(|n| !plain.contains(n)).collect();
            prop_assert_eq!(gaps, plain_gaps);
            prop_assert_eq!(ranges.contains(edge), plain.contains(&edge));
            let reached = ranges.advance(edge);
            let missing = (edge..).find(|n| !plain.contains(n));
            prop_assert_eq!(Some(reached), missing);
            prop_assert!(ranges.iter().all(|range| range.start > reached));
        }
    }

    #[test]
    fn advancing_removes_the_ranges_that_it_reaches() {
        let mut ranges = RangeSet::default();
        [2..4, 6..8, 10..12].into_iter().for_each(|r| ranges.insert(r));
        assert_eq!(ranges.advance(1), 1);
        assert_eq!(ranges.advance(2), 4);
        assert_eq!(ranges.advance(6), 8);
        assert!(ranges.iter().eq(std::iter::once(10..12)));
        assert_eq!(ranges.advance(20), 20);
        assert_eq!(ranges.len(), 0);
    }
}
