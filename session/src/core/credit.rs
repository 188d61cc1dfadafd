//! Session credit: how many bytes each side may send before the peer's readers take some.
//!
//! Credit counts the sum of the flows' highest numbers, as QUIC's MAX_DATA does (RFC 9000 section
//! 4.1), so that a retransmission needs no credit. This side grants the bytes that its readers have
//! taken plus its memory. Without credit, a flow that has nothing at the peer may always send one
//! segment: its number is the cumulative one, which is always accepted.
//!
//! Invariant: `released <= received`, and `received` exceeds `released` by at most the memory, a
//! segment and two marks per flow, because numbers count only if they are within the credit.

use polyrail_scheduler::SEGMENT;

use crate::flow::Violation;
use crate::limits::POOL_SHARE;
use crate::wire::NUMBER_MAX;

#[derive(Debug, Default)]
pub(crate) struct Credit {
    /// The memory of this side.
    memory: u64,
    /// Bytes that readers have taken.
    released: u64,
    /// The sum of the highest numbers received.
    received: u64,
    /// The limit last sent to the peer.
    told: u64,
    /// The memory of the peer.
    pub peer_memory: u64,
    limit: u64,
    /// The sum of the highest numbers sent.
    used: u64,
}

impl Credit {
    /// Nothing is granted by the peer before its terms are known.
    pub fn new(memory: u64) -> Self {
        Self { memory, told: memory, ..Self::default() }
    }

    pub fn agree(&mut self, credit: u64) {
        self.peer_memory = self.peer_memory.max(credit);
        self.limit = self.limit.max(credit);
    }

    pub fn raise_limit(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    /// Bytes that may be sent before the peer grants more.
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    /// Whether more of this side's memory is taken than readers may withhold: by unread bytes, and
    /// by numbers behind gaps.
    pub fn is_half_taken(&self) -> bool {
        self.received - self.released > self.memory / POOL_SHARE
    }

    /// Bytes that the peer may have sent in total.
    fn allowed(&self) -> u64 {
        (self.released + self.memory).min(NUMBER_MAX)
    }

    /// The peer has used this many more numbers, or says so; it has `flows` open flows. Beyond the
    /// credit it may use a segment at the cumulative number and two marks per flow. Such segments
    /// need no credit, one after the other as they are drained: so released numbers count before
    /// the peer knows the new limit.
    ///
    /// # Errors
    /// The peer has exceeded its credit; the numbers are not counted.
    pub fn receive(&mut self, more: u64, flows: usize) -> Result<(), Violation> {
        let limit = self.allowed() + (flows as u64 + 1) * (SEGMENT + 2);
        let sum = self.received.checked_add(more).filter(|sum| *sum <= limit);
        self.received = sum.ok_or(Violation("more than the session's credit"))?;
        Ok(())
    }

    /// This many of them are free again.
    pub fn release(&mut self, more: u64) {
        self.released += more;
        debug_assert!(self.released <= self.received, "released numbers were received");
    }

    /// Whether to send the peer a new limit: if it rises by an eighth of the memory, or by half of
    /// the credit that the peer has left, and by some segments.
    pub fn wants_update(&self) -> bool {
        let left = self.told.saturating_sub(self.received);
        let more = (left / 2).clamp(4 * SEGMENT, (self.memory / 8).max(4 * SEGMENT));
        self.allowed() >= self.told.saturating_add(more)
    }

    /// The limit to send to the peer, and the released sum.
    pub fn advertise(&mut self) -> (u64, u64) {
        self.told = self.allowed();
        (self.told, self.released)
    }

    /// This side has used this many new numbers.
    pub fn sent(&mut self, fresh: u64) {
        self.used += fresh;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_the_credit_are_rejected_and_not_counted() {
        let mut credit = Credit::new(10_000);
        let slack = 2 * (SEGMENT + 2);
        for more in [NUMBER_MAX, u64::MAX, 10_001 + slack] {
            assert!(credit.receive(more, 1).is_err(), "{more}");
        }
        assert!(credit.receive(10_000 + slack, 1).is_ok() && credit.receive(1, 1).is_err());
        credit.release(5_000);
        assert!(credit.receive(5_001, 1).is_err() && credit.receive(5_000, 1).is_ok());
    }

    #[test]
    fn sums_end_at_the_highest_number_of_the_wire() {
        let mut credit = Credit::new(NUMBER_MAX);
        assert!(credit.receive(NUMBER_MAX, 1).is_ok());
        credit.release(NUMBER_MAX);
        assert_eq!(credit.advertise().0, NUMBER_MAX);
        assert!(credit.receive(3 * SEGMENT, 1).is_err());
    }
}
