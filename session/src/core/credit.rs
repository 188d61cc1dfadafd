//! Session credit: how many bytes each side may send before the peer's readers take some.
//!
//! Credit counts the sum of the flows' highest numbers, as QUIC's MAX_DATA does (RFC 9000 section
//! 4.1), so that a retransmission needs no credit. This side grants the bytes that its readers have
//! taken plus its memory. Without credit, a flow that has nothing at the peer may always send one
//! segment: its number is the cumulative one, which is always accepted.

use polyrail_scheduler::SEGMENT;

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

    /// Bytes that the peer may have sent in total. Sums saturate, because the peer may lie.
    fn allowed(&self) -> u64 {
        self.released.saturating_add(self.memory)
    }

    /// The peer has used this many more numbers.
    pub fn receive(&mut self, more: u64) {
        self.received = self.received.saturating_add(more);
    }

    /// This many of them are free again.
    pub fn release(&mut self, more: u64) {
        self.released = self.released.saturating_add(more);
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

    /// Whether the peer has kept its credit, except for a segment at the cumulative number and two
    /// marks per flow. Such segments need no credit, one after the other as they are drained: so
    /// released numbers count before the peer knows the new limit.
    pub fn is_kept(&self, flows: usize) -> bool {
        let limit = self.told.max(self.allowed());
        self.received <= limit.saturating_add((flows as u64 + 1) * (SEGMENT + 2))
    }

    /// This side has used this many new numbers.
    pub fn sent(&mut self, fresh: u64) {
        self.used += fresh;
    }
}
