//! Session credit: what each side may have the other hold.
//!
//! Credit counts the sum of the flows' highest numbers, as QUIC's MAX_DATA does (RFC 9000 section
//! 4.1), so that sending something again needs none. What this side grants is what its readers
//! have taken plus its memory. Beyond credit, a flow that has nothing at the peer may always send
//! one segment: its number is the cumulative one, which is always accepted.

use polyrail_scheduler::SEGMENT;

#[derive(Debug)]
pub(super) struct Credit {
    /// What this side may hold.
    memory: u64,
    /// The sum of what readers have taken.
    released: u64,
    /// The sum of the highest numbers that came.
    received: u64,
    /// The limit that the peer knows.
    told: u64,
    /// What the peer may hold.
    peer_memory: u64,
    limit: u64,
    /// The sum of the highest numbers sent.
    used: u64,
}

impl Credit {
    /// Nothing is granted by the peer before its terms are known.
    pub fn new(memory: u64) -> Self {
        Self { memory, released: 0, received: 0, told: memory, peer_memory: 0, limit: 0, used: 0 }
    }

    pub fn agree(&mut self, credit: u64) {
        self.peer_memory = self.peer_memory.max(credit);
        self.limit = self.limit.max(credit);
    }

    pub fn raise_limit(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }

    /// What the peer may hold.
    pub fn peer_memory(&self) -> u64 {
        self.peer_memory
    }

    /// What may be sent before the peer grants more.
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    /// What the peer may have sent in all. Sums saturate: a peer that lies may reach their end.
    fn allowed(&self) -> u64 {
        self.released.saturating_add(self.memory)
    }

    /// The peer has used so many more numbers.
    pub fn receive(&mut self, more: u64) {
        self.received = self.received.saturating_add(more);
    }

    /// So many of them are free again.
    pub fn release(&mut self, more: u64) {
        self.released = self.released.saturating_add(more);
    }

    /// Whether the peer should learn how much was released: an eighth of the memory, or half of
    /// what it has left, and some segments.
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

    /// Whether the peer has kept to its credit, `flows` segments at the cumulative numbers and two
    /// marks a flow apart. Such segments need no credit, one after the other as they are drained:
    /// so released numbers count, although the peer was not told yet.
    pub fn is_kept(&self, flows: usize) -> bool {
        let limit = self.told.max(self.allowed());
        self.received <= limit.saturating_add((flows as u64 + 1) * (SEGMENT + 2))
    }

    /// Numbers that were never used before are used now.
    pub fn sent(&mut self, fresh: u64) {
        self.used += fresh;
    }
}
