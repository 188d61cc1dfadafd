//! Which datagrams of a binding have arrived: the highest number, and those close below it
//! (as RFC 6479).

/// A window of [`WINDOW`] sequence numbers that ends with the highest one.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// One above the highest number.
    end: u64,
    /// The numbers of the window, by their remainder.
    seen: [u64; WORDS],
}

impl Window {
    /// Whether the datagram is new; false for a copy, and for a number below the window.
    pub fn accept(&mut self, sequence: u64) -> bool {
        if sequence >= self.end {
            // Words between the old and the new end held older numbers.
            let (from, to) = (self.end.div_ceil(64), sequence / 64 + 1);
            (from..to).take(WORDS).for_each(|word| self.seen[word as usize % WORDS] = 0);
            self.end = sequence + 1;
        } else if self.end - sequence > WINDOW {
            return false;
        }
        let (word, bit) = (&mut self.seen[(sequence / 64) as usize % WORDS], 1 << (sequence % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

const WORDS: usize = 16;
/// One word less than there are, because the newest one is not full.
const WINDOW: u64 = (WORDS as u64 - 1) * 64;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_number_is_accepted_at_most_once_and_late_ones_within_the_window_are(
            steps in prop::collection::vec((0_u64..200, 0_u64..1_100), 1..400),
        ) {
            let (mut window, mut seen, mut end) = (Window::default(), BTreeSet::new(), 0_u64);
            for (ahead, behind) in steps {
                let sequence = (end + ahead).saturating_sub(behind);
                let is_known = seen.contains(&sequence);
                end = end.max(sequence + 1);
                let wanted = !is_known && end - sequence <= WINDOW;
                prop_assert_eq!(window.accept(sequence), wanted, "{} of {}", sequence, end);
                if wanted {
                    seen.insert(sequence);
                }
            }
        }
    }

    #[test]
    fn great_leap_forgets_all() {
        let mut window = Window::default();
        assert!((0..2_000).all(|sequence| window.accept(sequence)));
        assert!(window.accept(1 << 40) && !window.accept(1 << 40));
        assert!(window.accept((1 << 40) - 1) && !window.accept(1_999));
        assert!(window.accept(u64::MAX >> 2));
    }
}
