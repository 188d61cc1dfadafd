//! The bytes of a flow that are in order and unread.
//!
//! The buffer never allocates more than nine eighths of its bytes when it grows, and halves when
//! half of it is empty. [`Ready::pinned`] is the part that the credit of the peer must cover.

use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(super) struct Ready(VecDeque<u8>);

impl Ready {
    pub fn push(&mut self, data: &[u8]) {
        let (length, more) = (self.0.len(), data.len());
        if length + more > self.0.capacity() {
            self.0.reserve_exact(more.max(length / GROWTH_PART));
        }
        self.0.extend(data);
    }

    /// Removes at most `count` bytes; returns how many.
    pub fn consume(&mut self, count: usize) -> usize {
        let count = count.min(self.0.len());
        self.0.drain(..count);
        if self.0.capacity() > IDLE_CAPACITY && self.0.len() <= self.0.capacity() / 2 {
            // Without bytes this frees the buffer.
            self.0.shrink_to_fit();
        }
        count
    }

    pub fn clear(&mut self) {
        self.0 = VecDeque::new();
    }

    pub fn slices(&self) -> [&[u8]; 2] {
        let (front, back) = self.0.as_slices();
        [front, back]
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Numbers of credit that the allocation takes, read bytes included: more than the unread bytes
    /// until the buffer shrinks.
    pub fn pinned(&self) -> u64 {
        match self.0.capacity() {
            capacity if capacity <= IDLE_CAPACITY => 0,
            capacity => (capacity - capacity.div_ceil(GROWTH_PART + 1)) as u64,
        }
    }
}

/// A buffer that is full grows by its length divided by this.
const GROWTH_PART: usize = 8;
/// The largest allocation of an idle flow, in bytes.
const IDLE_CAPACITY: usize = 1_024;
