//! Units that need not arrive, as QUIC DATAGRAM frames (RFC 9221).
//!
//! A unit that is longer than a packet is sent in two halves. The first byte tells: `0` a whole
//! unit; `1` and `2` the halves, followed by the unit's number (2 bytes), which both share.
//! `quiche` receives few at a time, so that the others can expire here.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use quiche::{Connection, Error};

use crate::TunnelDrops;

/// Outgoing units, and incoming halves.
#[derive(Default)]
pub(super) struct Datagrams {
    waiting: VecDeque<Waiting>,
    /// Bytes that wait.
    bytes: usize,
    /// The number of the next unit that is halved.
    next: u16,
    /// Halves whose other half has not arrived, the oldest first.
    halves: VecDeque<Half>,
    /// Whether each of the latest parts given to `quiche` ends a unit; at most [`SENT_MAX`].
    given: VecDeque<bool>,
    /// Parts taken from `quiche`.
    taken: usize,
    pub(super) drops: TunnelDrops,
    scratch: Vec<u8>,
}

struct Waiting {
    expires: Instant,
    /// When the egress first looked at it.
    since: Option<Instant>,
    unit: Vec<u8>,
}

struct Half {
    number: u16,
    kind: u8,
    bytes: Vec<u8>,
}

impl Datagrams {
    /// Queues a unit; a full queue drops its oldest one.
    pub(super) fn push(&mut self, expires: Instant, frames: &[u8]) {
        if self.waiting.len() >= WAITING_MAX {
            self.pop();
            self.drops.queue += 1;
        }
        self.bytes += frames.len();
        self.waiting.push_back(Waiting { expires, since: None, unit: frames.to_vec() });
    }

    fn pop(&mut self) -> Option<Waiting> {
        let next = self.waiting.pop_front()?;
        self.bytes -= next.unit.len();
        Some(next)
    }

    /// The connection has ended: nothing that waits is sent, here and in `quiche`.
    pub(super) fn end(&mut self, connection: &Connection) {
        self.drops.ended += self.unsent(connection.dgram_send_queue_len()) as u64;
        self.waiting.clear();
        self.bytes = 0;
    }

    /// The units that wait here, and those of which the last part, at least, waits in `quiche`.
    fn unsent(&self, parts: usize) -> usize {
        let given = self.given.iter().rev().take(parts).filter(|ends| **ends).count();
        self.waiting.len() + given
    }

    /// The units dropped so far. A full `quiche` drops the oldest part that it has received.
    pub(super) fn drops(&self, connection: &Connection) -> TunnelDrops {
        let known = self.taken + connection.dgram_recv_queue_len();
        let unread = connection.stats().dgram_recv.saturating_sub(known);
        TunnelDrops { unread: unread as u64, ..self.drops }
    }

    /// When the oldest unit has waited for so long that pacing no longer holds packets back.
    pub(super) fn overdue_at(&self) -> Option<Instant> {
        Some(self.waiting.front()?.since? + WAIT_MAX)
    }

    /// Bytes that wait for `quiche`.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Gives `quiche` the next units; returns whether it was given any.
    pub(super) fn give(
        &mut self,
        connection: &mut Connection,
        now: Instant,
        packet_max: usize,
    ) -> bool {
        let mut given = false;
        while self.waiting.front().is_some_and(|waiting| now >= waiting.expires) {
            self.pop();
            self.drops.expired += 1;
        }
        while connection.dgram_send_queue_len() < GIVEN_MAX
            && let Some(Waiting { expires, unit, .. }) = self.pop()
        {
            if now >= expires {
                self.drops.expired += 1;
                continue;
            }
            // `None`: the peer takes none.
            let longest = connection.dgram_max_writable_len().unwrap_or(0);
            // quiche forgets the MTU when the peer's address changes.
            let longest = longest.min(packet_max.saturating_sub(PACKET_OVERHEAD));
            let is_given = self.split(&unit, longest, |part| connection.dgram_send(part));
            self.drops.too_long += u64::from(!is_given);
            given |= is_given;
        }
        let new = self.waiting.iter_mut().rev().take_while(|waiting| waiting.since.is_none());
        new.for_each(|waiting| waiting.since = Some(now));
        given
    }

    fn split(
        &mut self,
        unit: &[u8],
        longest: usize,
        mut send: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> bool {
        let (part, given) = (&mut self.scratch, &mut self.given);
        let mut send = |part: &[u8]| {
            let is_given = send(part).is_ok();
            if is_given {
                given.drain(..given.len().saturating_sub(SENT_MAX - 1));
                given.push_back(part[0] != FIRST);
            }
            is_given
        };
        if unit.len() < longest {
            part.clear();
            part.push(WHOLE);
            part.extend_from_slice(unit);
            return send(part);
        }
        let (first, second) = unit.split_at(unit.len().div_ceil(2));
        if first.len() + HALF_HEADER > longest {
            return false;
        }
        let number = self.next;
        self.next = number.wrapping_add(1);
        [(FIRST, first), (SECOND, second)].into_iter().all(|(kind, half)| {
            part.clear();
            part.push(kind);
            part.extend_from_slice(&number.to_be_bytes());
            part.extend_from_slice(half);
            send(part)
        })
    }

    /// Delivers the units that have arrived whole; returns the number of bytes.
    pub(super) fn take(
        &mut self,
        connection: &mut Connection,
        sink: &mut dyn FnMut(&[u8]),
    ) -> usize {
        let mut total = 0;
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.resize(PART_MAX, 0);
        loop {
            match connection.dgram_recv(&mut scratch) {
                Ok(length) => {
                    self.taken += 1;
                    total += length;
                    self.on_part(&scratch[..length], sink);
                }
                // No packet has so long a part.
                Err(Error::BufferTooShort) => self.taken += 1,
                Err(_) => break,
            }
        }
        self.scratch = scratch;
        total
    }

    /// Parts that follow no rule are dropped.
    fn on_part(&mut self, part: &[u8], sink: &mut dyn FnMut(&[u8])) {
        match part {
            [WHOLE, unit @ ..] => sink(unit),
            [kind @ (FIRST | SECOND), high, low, bytes @ ..] => {
                let (kind, number) = (*kind, u16::from_be_bytes([*high, *low]));
                // A number is used again after 65,536 units.
                let apart = |half: &Half| {
                    half.number.wrapping_sub(number).min(number.wrapping_sub(half.number))
                };
                self.halves.retain(|half| apart(half) < HALVES_APART);
                let other = self.halves.iter().position(|half| half.number == number);
                let Some(other) = other.and_then(|place| self.halves.remove(place)) else {
                    if self.halves.len() >= HALVES_MAX {
                        self.halves.pop_front();
                    }
                    self.halves.push_back(Half { number, kind, bytes: bytes.to_vec() });
                    return;
                };
                match (other.kind, kind) {
                    (FIRST, SECOND) => sink(&[&other.bytes, bytes].concat()),
                    (SECOND, FIRST) => sink(&[bytes, &other.bytes].concat()),
                    // Its number was used again.
                    _ => self.halves.push_back(Half { number, kind, bytes: bytes.to_vec() }),
                }
            }
            _ => {}
        }
    }
}

const WHOLE: u8 = 0;
const FIRST: u8 = 1;
const SECOND: u8 = 2;
/// Short header with the longest id and packet number, tag, and the header of a DATAGRAM frame.
const PACKET_OVERHEAD: usize = 1 + 20 + 4 + 16 + 3;
/// Kind and number.
const HALF_HEADER: usize = 3;
/// Units that wait for `quiche`.
const WAITING_MAX: usize = 256;
/// DATAGRAM frames that `quiche` holds: they cannot expire there.
const GIVEN_MAX: usize = 4;
/// How long pacing may hold a unit back. A rate that was learned from a call alone is far too low
/// for a second load; within the window packets then leave at once, and the rate rises.
const WAIT_MAX: Duration = Duration::from_millis(40);
/// How far the numbers of two units may be apart for their halves to arrive interleaved.
const HALVES_APART: u16 = 1_024;
/// Halves that wait for their other half.
const HALVES_MAX: usize = 64;
/// The longest part: no packet has more.
const PART_MAX: usize = 1_500;
/// DATAGRAM frames that `quiche` keeps for us: those of one batch of packets.
pub(super) const RECEIVED_MAX: usize = 1_024;
/// And those that it takes: both halves of the last unit fit.
pub(super) const SENT_MAX: usize = GIVEN_MAX + 1;

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of a unit of this length.
    fn parts(sender: &mut Datagrams, unit: &[u8], longest: usize) -> Option<Vec<Vec<u8>>> {
        let mut parts = Vec::new();
        let send = |part: &[u8]| {
            parts.push(part.to_vec());
            Ok(())
        };
        sender.split(unit, longest, send).then_some(parts)
    }

    fn received(receiver: &mut Datagrams, parts: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut units = Vec::new();
        for part in parts {
            receiver.on_part(part, &mut |unit| units.push(unit.to_vec()));
        }
        units
    }

    #[test]
    fn unit_arrives_whole_whatever_the_order_of_its_halves() {
        let (mut sender, mut receiver) = (Datagrams::default(), Datagrams::default());
        for (length, longest, count) in
            [(100, 1_200, 1), (1_199, 1_200, 1), (1_200, 1_200, 2), (2_100, 1_200, 2)]
        {
            let unit: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
            let mut parts = parts(&mut sender, &unit, longest).unwrap();
            assert_eq!(parts.len(), count, "{length}");
            assert!(parts.iter().all(|part| part.len() <= longest));
            assert_eq!(received(&mut receiver, &parts), std::slice::from_ref(&unit), "{length}");
            parts.reverse();
            assert_eq!(received(&mut receiver, &parts), [unit], "{length}");
        }
        assert!(parts(&mut sender, &[0; 2_395], 1_200).is_none(), "longer than two parts");
        assert!(receiver.halves.is_empty());
    }

    #[test]
    fn golden_bytes_of_parts() {
        let mut sender = Datagrams { next: 0x0102, ..Datagrams::default() };
        assert_eq!(parts(&mut sender, b"abcdefg", 8).unwrap(), [b"\x00abcdefg"]);
        let halves: [&[u8]; 2] = [b"\x01\x01\x02abcd", b"\x02\x01\x02efg"];
        assert_eq!(parts(&mut sender, b"abcdefg", 7).unwrap(), halves);
        assert_eq!(parts(&mut sender, b"abcdefg", 7).unwrap()[1], b"\x02\x01\x03efg");
    }

    #[test]
    fn waiting_units_are_bounded_and_counted() {
        #[allow(clippy::disallowed_methods)] // any time will do
        let now = Instant::now();
        let mut sender = Datagrams::default();
        (0..WAITING_MAX + 10).for_each(|_| sender.push(now, &[7; 100]));
        assert_eq!((sender.waiting.len(), sender.bytes()), (WAITING_MAX, 100 * WAITING_MAX));
        while sender.pop().is_some() {}
        assert_eq!((sender.is_empty(), sender.bytes()), (true, 0));
    }

    #[test]
    fn unit_in_two_parts_counts_once_at_the_end() {
        #[allow(clippy::disallowed_methods)] // any time will do
        let now = Instant::now();
        let mut sender = Datagrams::default();
        for length in [100, 100, 2_000, 2_000] {
            parts(&mut sender, &vec![7; length], 1_200).unwrap();
        }
        // Two parts of each of the last two units, and one of the second.
        assert_eq!([0, 1, 2, 3, 4, 5].map(|parts| sender.unsent(parts)), [0, 1, 1, 2, 2, 3]);
        sender.push(now, &[7; 2_000]);
        assert_eq!((sender.unsent(4), sender.given.len()), (3, SENT_MAX));
    }

    #[test]
    fn lone_halves_are_bounded_and_never_joined_wrongly() {
        let (mut sender, mut receiver) = (Datagrams::default(), Datagrams::default());
        for _ in 0..1_000 {
            let parts = parts(&mut sender, &[7; 1_500], 1_200).unwrap();
            assert!(received(&mut receiver, &parts[..1]).is_empty());
        }
        assert_eq!(receiver.halves.len(), HALVES_MAX);
        // The same number, 65,536 units later.
        let (mut sender, mut receiver) = (Datagrams::default(), Datagrams::default());
        let mut lost = parts(&mut sender, &[1; 1_500], 1_200).unwrap();
        assert!(received(&mut receiver, &lost.split_off(1)).is_empty());
        for _ in 0..u16::MAX {
            let parts = parts(&mut sender, &[2; 1_500], 1_200).unwrap();
            assert_eq!(received(&mut receiver, &parts).len(), 1);
        }
        let parts = parts(&mut sender, &[3; 1_500], 1_200).unwrap();
        assert_eq!(received(&mut receiver, &parts), [[3; 1_500]]);
        let twice = [vec![FIRST, 0, 1, b'a'], vec![FIRST, 0, 1, b'b'], vec![SECOND, 0, 1, b'c']];
        assert_eq!(received(&mut receiver, &twice), [b"bc"]);
        for odd in [&[][..], &[3], &[1], &[2, 0]] {
            assert!(received(&mut receiver, &[odd.to_vec()]).is_empty(), "{odd:?}");
        }
    }
}
