//! Puts the datagrams of a flow in order after it has moved to a faster carrier.
//!
//! Datagrams on the new carrier overtake datagrams still on the old one, and the congestion control
//! inside the flow would take the order for loss. At all other times a datagram passes at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::UserDatagram;

/// The order of one binding's datagrams.
#[derive(Debug, Default)]
pub(crate) struct Reorder {
    /// The carrier of the newest one.
    carrier: Option<u32>,
    /// The number after the newest one that has passed.
    next: u64,
    held: BTreeMap<u64, UserDatagram>,
    /// When those held pass in any case.
    until: Option<Instant>,
}

impl Reorder {
    /// The datagram, if it passes now; else it is held. After this, those of [`Reorder::pop`] pass,
    /// too. `wait` says how long datagrams of the old carrier may be behind those of the new one.
    pub fn pass(
        &mut self,
        now: Instant,
        carrier: u32,
        (sequence, datagram): (u64, UserDatagram),
        wait: impl FnOnce(u32) -> Duration,
    ) -> Option<UserDatagram> {
        // Late or in order.
        if sequence <= self.next {
            if sequence == self.next {
                self.next += 1;
                self.carrier = Some(carrier);
            }
            return Some(datagram);
        }
        let old = self.carrier.replace(carrier);
        if self.until.is_none() {
            let wait = match old {
                // A stream has no gap of its own.
                Some(old) if carrier == STREAM || old == STREAM => STREAM_WAIT,
                Some(old) if old != carrier => wait(old).min(WAIT_MAX),
                _ => Duration::ZERO,
            };
            if wait.is_zero() {
                self.next = sequence + 1;
                return Some(datagram);
            }
            self.until = Some(now + wait);
        }
        self.held.insert(sequence, datagram);
        None
    }

    /// The next one that passes: its turn has come, or the wait is over.
    pub fn pop(&mut self, now: Instant) -> Option<UserDatagram> {
        let is_over = self.until.is_some_and(|until| until <= now) || self.held.len() > HELD_MAX;
        let first = self.held.first_entry().filter(|it| is_over || *it.key() <= self.next);
        let Some(first) = first else {
            self.until = self.until.filter(|_| !self.held.is_empty());
            return None;
        };
        self.next = first.key() + 1;
        Some(first.remove())
    }

    /// The number of those held.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// When [`Reorder::pop`] has more.
    pub fn until(&self) -> Option<Instant> {
        self.until
    }
}

/// In the place of a carrier: the binding's stream, which uses all.
pub(crate) const STREAM: u32 = u32::MAX;
/// Between a stream and single datagrams, in either direction: the slower carrier may be far
/// behind, and a download that begins must not see a loss.
const STREAM_WAIT: Duration = Duration::from_millis(100);
/// A longer wait costs a call more than the order is worth.
const WAIT_MAX: Duration = Duration::from_millis(50);
/// 50 ms at 15 Mbit/s.
const HELD_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use polyrail_model::{BindingId, Destination};

    use super::*;

    fn base() -> Instant {
        #[allow(clippy::disallowed_methods)] // a base for the clock of these tables
        Instant::now()
    }

    fn datagram(number: u64) -> UserDatagram {
        let remote = Destination::Address(([192, 0, 2, 1], 443).into());
        let payload = number.to_be_bytes().to_vec();
        UserDatagram { binding: BindingId(1), user: None, remote, payload, expedited: false }
    }

    /// The numbers that pass when these (time in ms, carrier, number) arrive; number 0 is a timer.
    fn passes(steps: &[(u64, u32, u64)]) -> Vec<u64> {
        let (begin, mut reorder, mut passed) = (base(), Reorder::default(), Vec::new());
        for &(at_ms, carrier, number) in steps {
            let now = begin + Duration::from_millis(at_ms);
            if number > 0 {
                // Carrier 2 is 30 ms faster than carrier 1, and carrier 3 is 200 ms faster.
                let wait = |old: u32| match (old, carrier) {
                    (1, 2) => Duration::from_millis(30),
                    (1, 3) => Duration::from_millis(200),
                    _ => Duration::ZERO,
                };
                passed.extend(reorder.pass(now, carrier, (number, datagram(number)), wait));
            }
            passed.extend(std::iter::from_fn(|| reorder.pop(now)));
        }
        let number = |it: UserDatagram| it.payload.first_chunk().map(|it| u64::from_be_bytes(*it));
        passed.into_iter().filter_map(number).collect()
    }

    #[test]
    fn only_a_move_to_a_faster_carrier_holds_datagrams() {
        for (what, steps, wanted) in [
            ("lost on one carrier", &[(0, 1, 5), (1, 1, 7)][..], &[5, 7][..]),
            ("overtaken", &[(0, 1, 5), (1, 2, 7), (2, 2, 8), (3, 1, 6)], &[5, 6, 7, 8]),
            ("two are missing", &[(0, 1, 5), (1, 2, 8), (2, 1, 6), (3, 1, 7)], &[5, 6, 7, 8]),
            ("lost: the wait ends", &[(0, 1, 5), (1, 2, 7), (30, 2, 0), (31, 2, 0)], &[5, 7]),
            ("not yet", &[(0, 1, 5), (1, 2, 7), (30, 2, 0)], &[5]),
            ("at most 50 ms", &[(0, 1, 5), (1, 3, 7), (50, 3, 0), (51, 3, 0)], &[5, 7]),
            ("to a slower one", &[(0, 2, 5), (1, 1, 7)], &[5, 7]),
            ("a late one passes", &[(0, 1, 5), (1, 1, 7), (9, 2, 6), (10, 1, 8)], &[5, 7, 6, 8]),
            (
                "after the wait all is as before",
                &[(0, 1, 5), (1, 2, 7), (31, 2, 0), (40, 2, 9), (41, 1, 6)],
                &[5, 7, 9, 6],
            ),
        ] {
            assert_eq!(passes(steps), wanted, "{what}");
        }
    }

    #[test]
    fn stream_and_single_datagrams_wait_for_each_other() {
        for (what, steps, wanted) in [
            ("it begins", &[(0, STREAM, 5), (1, STREAM, 6)][..], &[5, 6][..]),
            ("it waits", &[(0, 1, 5), (1, STREAM, 7), (90, 1, 6)], &[5, 6, 7]),
            ("not for long", &[(0, 1, 5), (1, STREAM, 7), (101, STREAM, 0)], &[5, 7]),
            ("behind one of its own", &[(0, STREAM, 5), (1, STREAM, 7), (9, 1, 6)], &[5, 6, 7]),
            ("a single one waits", &[(0, STREAM, 5), (1, 1, 7), (90, STREAM, 6)], &[5, 6, 7]),
        ] {
            assert_eq!(passes(steps), wanted, "{what}");
        }
    }

    #[test]
    fn held_datagrams_are_bounded() {
        let steps: Vec<_> = [(0, 1, 1)].into_iter().chain((3..100).map(|it| (1, 2, it))).collect();
        let passed = passes(&steps);
        assert!(passed.len() >= 97 - HELD_MAX && passed.is_sorted(), "{passed:?}");
    }
}
