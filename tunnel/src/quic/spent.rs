//! Accepted first flights with early data, so that a replay is rejected.
//!
//! A replay has the same TLS client random; with another one its early data could not be decrypted.
//! Two minutes suffice, because tickets whose age is off by more than a minute are refused early
//! data anyway.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The TLS client random of a first flight.
pub(super) type Mark = [u8; 32];

/// The marks of the last [`KEPT`], at most [`MARKS_MAX`]. Listeners of several event loops share
/// them, because a replay may arrive at another one; only first flights with early data lock them.
#[derive(Debug, Default)]
pub(super) struct Spent(Mutex<Marks>);

#[derive(Debug, Default)]
struct Marks {
    marks: HashSet<Mark>,
    order: VecDeque<(Instant, Mark)>,
}

impl Spent {
    /// Notes a first flight; false if it is a replay.
    pub(super) fn note(&self, now: Instant, mark: Mark) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).note(now, mark)
    }
}

impl Marks {
    fn note(&mut self, now: Instant, mark: Mark) -> bool {
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
/// More than 100 a second, of about 80 bytes each.
const MARKS_MAX: usize = 16_384;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replays_are_rejected_for_two_minutes_and_memory_is_bounded() {
        let (now, mut spent) = (Instant::now(), Marks::default());
        assert!(spent.note(now, [1; 32]));
        assert!(!spent.note(now + KEPT, [1; 32]));
        assert!(spent.note(now + KEPT * 2, [1; 32]));
        for number in 0..20_000u64 {
            let mut mark = [0; 32];
            mark[..8].copy_from_slice(&number.to_be_bytes());
            assert!(spent.note(now + KEPT * 2, mark));
        }
        assert!(spent.note(now + KEPT * 2, [1; 32]), "the oldest is evicted");
        assert_eq!((spent.marks.len(), spent.order.len()), (MARKS_MAX, MARKS_MAX));
    }
}
