//! Delivery rates from totals: which state the connection had when the newest acknowledged packet
//! was sent.
//!
//! quiche reports no single packets. Packets are acknowledged or lost roughly in the order of their
//! sending, so the total of bytes sent less the bytes in flight is the place of the newest settled
//! packet in that order, and a list of marks (time and totals at some places) gives its departure.
//! The rate is that of `draft-cheng-iccrg-delivery-rate-estimation`: bytes acknowledged since then,
//! over the longer of the times of sending and acknowledging.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The marks of the bytes in flight: at most [`MARKS_MAX`].
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    marks: VecDeque<Mark>,
    sent: u64,
    acked: u64,
    acked_at: Instant,
    /// When the newest settled packet was sent.
    settled_sent_at: Instant,
    /// Until this place is settled, rates are limited by the application.
    limited_until: u64,
}

/// The state when a packet was sent.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// Bytes sent until then, with it.
    place: u64,
    at: Instant,
    acked: u64,
    acked_at: Instant,
    /// When the packet was sent whose acknowledgement was the newest then.
    settled_sent_at: Instant,
}

/// A sample of the delivery rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Delivered {
    /// In bytes per second.
    pub(crate) rate: f64,
    /// Whether the application, not the path, limited the rate.
    pub(crate) limited: bool,
}

impl Flight {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            marks: VecDeque::new(),
            sent: 0,
            acked: 0,
            acked_at: now,
            settled_sent_at: now,
            limited_until: 0,
        }
    }

    /// Bytes are sent; `in_flight` are those before it.
    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u64, in_flight: u64) {
        if in_flight == 0 {
            (self.acked_at, self.settled_sent_at) = (now, now);
            self.marks.clear();
        }
        self.sent += bytes;
        let (acked, acked_at, settled_sent_at) = (self.acked, self.acked_at, self.settled_sent_at);
        let mark = Mark { place: self.sent, at: now, acked, acked_at, settled_sent_at };
        match self.marks.back_mut() {
            // Packets of one burst count as one.
            Some(last) if now.duration_since(last.at) < GRAIN && last.acked == acked => {
                last.place = self.sent;
            }
            _ => {
                if self.marks.len() >= MARKS_MAX {
                    self.marks.pop_front();
                }
                self.marks.push_back(mark);
            }
        }
    }

    /// The application has nothing more to send now.
    pub(crate) fn on_limited(&mut self, in_flight: u64) {
        self.limited_until = self.acked + in_flight.max(1);
    }

    /// So many bytes are acknowledged in total; the rate, if it can be told.
    pub(crate) fn on_acked(
        &mut self,
        now: Instant,
        acked: u64,
        in_flight: u64,
        rtt_least: Duration,
    ) -> Option<Delivered> {
        if acked <= self.acked {
            return None;
        }
        (self.acked, self.acked_at) = (acked, now);
        let limited = self.acked <= self.limited_until;
        let place = self.sent.saturating_sub(in_flight);
        let mut settled = None;
        while let Some(mark) = self.marks.front().filter(|mark| mark.place <= place) {
            settled = Some(*mark);
            self.marks.pop_front();
        }
        let mark = settled?;
        self.settled_sent_at = mark.at;
        let sending = mark.at.saturating_duration_since(mark.settled_sent_at);
        let time = sending.max(now.duration_since(mark.acked_at));
        if time < rtt_least.max(GRAIN) {
            return None;
        }
        let rate = (self.acked - mark.acked) as f64 / time.as_secs_f64();
        Some(Delivered { rate, limited })
    }
}

/// Bursts are a millisecond apart.
const GRAIN: Duration = Duration::from_millis(1);
/// Two seconds of bursts. If there are more, the oldest is dropped, and the samples of its packets
/// are taken from the next.
const MARKS_MAX: usize = 2_048;

#[cfg(test)]
mod tests {
    use super::*;

    fn base() -> Instant {
        #[allow(clippy::disallowed_methods)] // the base of this test's clock
        Instant::now()
    }

    const RTT: Duration = Duration::from_millis(50);

    /// Sends 1,000 bytes a millisecond, which the link delivers at this rate after 50 ms.
    fn last_rate(per_ms: u64, limited_at: Option<u64>) -> Option<Delivered> {
        let (base, mut rate) = (base(), None);
        let mut flight = Flight::new(base);
        for ms in 0..1_000_u64 {
            let now = base + Duration::from_millis(ms);
            let acked = ms.saturating_sub(50) * per_ms;
            rate = flight.on_acked(now, acked, ms * 1_000 - acked, RTT).or(rate);
            flight.on_sent(now, 1_000, ms * 1_000 - acked);
            if limited_at == Some(ms) {
                flight.on_limited((ms + 1) * 1_000 - acked);
            }
        }
        rate
    }

    #[test]
    fn rate_is_that_of_the_slower_of_sender_and_link() {
        for (per_ms, wanted) in [(1_000, 1e6), (500, 0.5e6), (100, 0.1e6)] {
            let seen = last_rate(per_ms, None).unwrap();
            assert!((seen.rate / wanted - 1.0).abs() < 0.05, "{seen:?} for {per_ms}");
            assert!(!seen.limited);
        }
        // Bytes in flight at 900 ms are acknowledged by 951 ms.
        assert!(!last_rate(1_000, Some(900)).unwrap().limited);
        assert!(last_rate(1_000, Some(980)).unwrap().limited);
    }

    #[test]
    fn idle_time_does_not_lower_the_rate() {
        let base = base();
        let mut flight = Flight::new(base);
        flight.on_sent(base, 10_000, 0);
        assert!(flight.on_acked(base + RTT, 10_000, 0, RTT).is_some());
        let later = base + Duration::from_secs(10);
        flight.on_sent(later, 10_000, 0);
        let seen = flight.on_acked(later + RTT, 20_000, 0, RTT).unwrap();
        assert!((seen.rate - 200_000.0).abs() < 1.0, "{seen:?}");
    }

    #[test]
    fn number_of_marks_is_bounded() {
        let base = base();
        let mut flight = Flight::new(base);
        for ms in 0..10_000 {
            flight.on_sent(base + Duration::from_millis(ms), 1, ms);
        }
        assert_eq!(flight.marks.len(), MARKS_MAX);
        // All but the last byte arrive: that is the rate of the last two seconds at least.
        let now = base + Duration::from_millis(10_050);
        assert!(flight.on_acked(now, 9_999, 1, RTT).is_some());
    }
}
