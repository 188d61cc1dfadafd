//! The ciphertext that the kernel has not taken, and how long it and the kernel's queue may be.
//!
//! Data handed to a path cannot be rescheduled, so the queues are short: about 2 ms at the link's
//! rate in our buffer and 5 ms in the kernel's, within bounds that keep slow links responsive and
//! fast links busy.

use std::time::{Duration, Instant};

use polyrail_model::Bitrate;

use crate::{CONTROL_EXCESS, FRAMES_MAX};

/// The length of a tunnel's queue in bytes of ciphertext, and its bound by the link's rate.
#[derive(Debug)]
pub(super) struct Queue {
    /// Bytes that the kernel has not taken.
    pub(super) pending: usize,
    rate: Option<(Bitrate, Instant)>,
    lowat: u32,
}

impl Default for Queue {
    fn default() -> Self {
        Self { pending: 0, rate: None, lowat: AMOUNT_MIN as u32 }
    }
}

impl Queue {
    /// The kernel took bytes, which may be of the handshake.
    pub(super) fn remove(&mut self, bytes: usize) {
        self.pending = self.pending.saturating_sub(bytes);
    }

    /// Bytes that the caller may still send.
    pub(super) fn room(&self) -> usize {
        self.amount(QUANTUM_TIME).saturating_sub(self.pending)
    }

    /// Whether the room is too small to be used.
    pub(super) fn is_full(&self) -> bool {
        self.room() < ROOM_MIN
    }

    /// Whether a caller that respects the room may send so much.
    pub(super) fn accepts(&self, bytes: usize) -> bool {
        self.pending + bytes <= PENDING_MAX
    }

    /// Takes a measured rate; returns the new `TCP_NOTSENT_LOWAT` if it has changed by a quarter.
    ///
    /// The rate is the maximum of the last second; an application-limited one may raise it, but
    /// never lower it.
    pub(super) fn on_rate(&mut self, at: Instant, rate: Bitrate, limited: bool) -> Option<u32> {
        let is_new = |(known, since)| {
            rate >= known || !limited && at.saturating_duration_since(since) > RATE_WINDOW
        };
        if self.rate.is_none_or(is_new) {
            self.rate = Some((rate, at));
        }
        let lowat = self.amount(LOWAT_TIME) as u32;
        (lowat.abs_diff(self.lowat) > self.lowat / 4).then(|| {
            self.lowat = lowat;
            lowat
        })
    }

    fn amount(&self, time: Duration) -> usize {
        let bytes = self.rate.map_or(0, |(rate, _)| rate.bytes_in(time).as_usize());
        bytes.clamp(AMOUNT_MIN, AMOUNT_MAX)
    }
}

const QUANTUM_TIME: Duration = Duration::from_millis(2);
const LOWAT_TIME: Duration = Duration::from_millis(5);
const RATE_WINDOW: Duration = Duration::from_secs(1);
const AMOUNT_MIN: usize = 16 * 1024;
const AMOUNT_MAX: usize = 256 * 1024;
/// The maximum of pending bytes of a caller that respects the room.
const PENDING_MAX: usize = AMOUNT_MAX + FRAMES_MAX + CONTROL_EXCESS;
/// The smallest room that is used: a segment with its header and record.
const ROOM_MIN: usize = 2_048;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_follow_the_rate() {
        let now = Instant::now();
        // Mbit/s, room, low-water mark
        let table = [(5.0, 16_384, 16_384), (200.0, 50_000, 125_000), (8e3, 262_144, 262_144)];
        for (mbps, room, lowat) in table {
            let mut queue = Queue::default();
            assert_eq!(queue.room(), AMOUNT_MIN);
            let change = queue.on_rate(now, Bitrate::from_mbps(mbps), false);
            assert_eq!((queue.room(), queue.lowat), (room, lowat), "{mbps} Mbit/s");
            assert_eq!(change, (lowat != AMOUNT_MIN as u32).then_some(lowat));
            queue.pending += room - ROOM_MIN;
            assert!(!queue.is_full());
            queue.pending += 1;
            assert_eq!((queue.room(), queue.is_full()), (ROOM_MIN - 1, true));
            queue.remove(queue.pending + 1);
            assert_eq!(queue.room(), room);
        }
    }

    #[test]
    fn rate_falls_only_after_a_second_and_never_with_application_limited_samples() {
        let (now, mut queue) = (Instant::now(), Queue::default());
        for (at_ms, mbps, limited, room) in [
            (0, 400.0, false, 100_000),
            (900, 100.0, false, 100_000),
            (3_000, 100.0, true, 100_000),
            (3_000, 100.0, false, 25_000),
            (3_000, 200.0, true, 50_000),
        ] {
            queue.on_rate(now + Duration::from_millis(at_ms), Bitrate::from_mbps(mbps), limited);
            assert_eq!(queue.room(), room, "{mbps} Mbit/s at {at_ms} ms");
        }
    }
}
