//! First flights with early data that were taken, so that a copy of one is not taken again.
//!
//! A copy is known by the client's random number of TLS, which it cannot change: the early data
//! could not be read any more. The list is short because it need not be long: tickets whose age
//! tells of more than a minute on the way are refused early data anyway.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

/// What marks a first flight.
pub(super) type Mark = [u8; 32];

/// The marks of the last [`KEPT`], at most [`MARKS_MAX`].
#[derive(Debug, Default)]
pub(super) struct Spent {
    marks: HashSet<Mark>,
    order: VecDeque<(Instant, Mark)>,
}

impl Spent {
    /// Notes a first flight; false when it came before.
    pub(super) fn note(&mut self, now: Instant, mark: Mark) -> bool {
        while let Some(&(at, oldest)) = self.order.front()
            && (now.saturating_duration_since(at) > KEPT || self.order.len() >= MARKS_MAX)
        {
            self.order.pop_front();
            self.marks.remove(&oldest);
        }
        let is_new = self.marks.insert(mark);
        if is_new {
            self.order.push_back((now, mark));
        }
        is_new
    }
}

const KEPT: Duration = Duration::from_secs(120);
/// More than 100 a second; of some 80 bytes each.
const MARKS_MAX: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_known_for_two_minutes_and_bounded() {
        let (now, mut spent) = (Instant::now(), Spent::default());
        assert!(spent.note(now, [1; 32]));
        assert!(!spent.note(now + KEPT, [1; 32]));
        assert!(spent.note(now + KEPT * 2, [1; 32]));
        for number in 0..20_000u64 {
            let mut mark = [0; 32];
            mark[..8].copy_from_slice(&number.to_be_bytes());
            assert!(spent.note(now + KEPT * 2, mark));
        }
        assert!(spent.note(now + KEPT * 2, [1; 32]), "the oldest is forgotten");
        assert_eq!((spent.marks.len(), spent.order.len()), (MARKS_MAX, MARKS_MAX));
    }
}
