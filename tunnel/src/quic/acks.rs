//! Thins acknowledgements: an acknowledgement without data or control waits for further packets.
//!
//! `quiche` has no timer for acknowledgements and writes one into each packet that it is asked for,
//! so a receiver would answer each batch of datagrams with about 74 bytes. On an uplink of
//! 128 kbit/s these limit the downlink. Packets with data or control take the acknowledgement
//! along. The egress asks here before it makes a packet for which it has neither.
//!
//! Sources: a quarter of a round trip is TACK's bound (SIGCOMM 2020, section 4.1), and the first
//! 100 packets are Chromium's (`quic_received_packet_manager.cc`). The number of packets only keeps
//! a fast sender's bursts short.

use std::time::{Duration, Instant};

/// The packets of the peer that no packet of ours has answered yet.
#[derive(Debug, Default)]
pub(super) struct Acks {
    received: usize,
    answered: usize,
    /// When the first unanswered packet was received.
    since: Option<Instant>,
    hurried: bool,
}

impl Acks {
    /// So many packets were received in total.
    pub(super) fn on_received(&mut self, now: Instant, received: usize) {
        if received > self.received {
            self.since.get_or_insert(now);
        }
        self.received = received;
    }

    /// Something that cannot wait is due, or will be: the peer must learn of a gap, or `quiche` has
    /// something to retransmit.
    pub(super) fn hurry(&mut self) {
        self.hurried = true;
    }

    /// `quiche` was asked for a packet: everything received is answered, or needs no answer.
    pub(super) fn on_asked(&mut self) {
        *self = Self { received: self.received, answered: self.received, ..Self::default() };
    }

    /// Until when an acknowledgement alone waits; `None`: not at all.
    pub(super) fn wait(&self, now: Instant, srtt: Duration) -> Option<Instant> {
        let ready = self.received < FIRST || self.received - self.answered >= PACKETS;
        if self.hurried || ready {
            return None;
        }
        Some(self.since? + (srtt / 4).clamp(DELAY_MIN, DELAY_MAX)).filter(|due| *due > now)
    }
}

/// Packets that one acknowledgement answers.
const PACKETS: usize = 32;
/// The shortest wait. Over a very short path each acknowledgement would let a single packet leave,
/// which is acknowledged alone again.
const DELAY_MIN: Duration = Duration::from_millis(1);
/// The longest wait: less than the `max_ack_delay` that the peer expects (25 ms, RFC 9000 18.2).
const DELAY_MAX: Duration = Duration::from_millis(20);
/// The peer may be in slow start, which each acknowledgement drives, until so many packets have
/// arrived.
const FIRST: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acknowledgement_waits_for_packets_or_time() {
        #[allow(clippy::disallowed_methods)] // a base for the clock of this test
        let base = Instant::now();
        let at = |ms| base + Duration::from_millis(ms);
        let ms = Duration::from_millis;
        let mut acks = Acks::default();
        acks.on_received(at(0), FIRST - 1);
        assert_eq!(acks.wait(at(0), ms(40)), None, "the first packets");
        acks.on_asked();
        acks.on_received(at(0), FIRST);
        assert_eq!(acks.wait(at(0), ms(40)), Some(at(10)), "a quarter of a round trip");
        assert_eq!(acks.wait(at(0), ms(400)), Some(at(20)), "at most 20 ms");
        assert_eq!(acks.wait(at(0), ms(0)), Some(at(1)), "at least 1 ms");
        acks.on_received(at(5), FIRST + PACKETS - 2);
        assert_eq!(acks.wait(at(5), ms(40)), Some(at(10)), "since the first packet");
        assert_eq!(acks.wait(at(10), ms(40)), None, "time is over");
        acks.on_received(at(6), FIRST + PACKETS - 1);
        assert_eq!(acks.wait(at(6), ms(40)), None, "enough packets");
        acks.on_asked();
        assert_eq!(acks.wait(at(7), ms(40)), None, "nothing to acknowledge");
        acks.on_received(at(8), FIRST + PACKETS);
        acks.hurry();
        assert_eq!(acks.wait(at(8), ms(40)), None, "a gap");
        acks.on_asked();
        acks.on_received(at(9), FIRST + PACKETS + 1);
        assert_eq!(acks.wait(at(9), ms(40)), Some(at(19)));
    }
}
