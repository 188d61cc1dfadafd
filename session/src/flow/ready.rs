//! The bytes of a flow that are in order and unread.
//!
//! Invariant: the buffer allocates at most nine eighths of its bytes, or [`IDLE_CAPACITY`], so that
//! bytes can return as credit as soon as they are read. A buffer that changes by a twentieth of its
//! length is moved at most once, so a long queue costs about 20 copies of each byte.

use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(super) struct Ready(VecDeque<u8>);

impl Ready {
    /// Makes room for bytes that are pushed at once, in pieces, so that the buffer grows only once.
    pub fn reserve(&mut self, more: usize) {
        let length = self.0.len();
        if length + more > self.0.capacity() {
            self.0.reserve_exact(more.max(length / SPARE_PART));
        }
    }

    pub fn push(&mut self, data: &[u8]) {
        self.reserve(data.len());
        self.0.extend(data);
    }

    /// Removes at most `count` bytes; returns how many.
    pub fn consume(&mut self, count: usize) -> usize {
        let count = count.min(self.0.len());
        self.0.drain(..count);
        let (length, capacity) = (self.0.len(), self.0.capacity());
        if capacity > IDLE_CAPACITY && capacity > length + length / FREE_PART {
            // Without bytes this frees the buffer.
            self.0.shrink_to(length + length / SPARE_PART);
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
}

/// A buffer grows, and shrinks, to its length and one part in this many.
const SPARE_PART: usize = 16;
/// A buffer shrinks when more than one part in this many of its length is free.
const FREE_PART: usize = 8;
/// The largest allocation of an idle flow, in bytes.
const IDLE_CAPACITY: usize = 1_024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_with_room_reserved_do_not_move_the_buffer() {
        let mut ready = Ready::default();
        ready.push(&[7; 1_200]);
        ready.reserve(50 * 1_024);
        let capacity = ready.0.capacity();
        for _ in 0..50 {
            ready.push(&[7; 1_024]);
            assert_eq!(ready.0.capacity(), capacity);
        }
        assert!(capacity <= ready.len() + ready.len() / 8, "{capacity}");
        ready.reserve(0);
        assert_eq!(ready.0.capacity(), capacity);
    }

    #[test]
    fn buffer_allocates_at_most_nine_eighths_of_its_bytes() {
        let (mut ready, mut seed) = (Ready::default(), 1_u64);
        let (mut moved, mut passed) = (0, 0);
        for turn in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (random, before) = ((seed >> 33) as usize, ready.0.capacity());
            // It grows, then its length varies, then it shrinks.
            match turn {
                0..4_000 => ready.push(&vec![7; random % 1_400]),
                4_000..12_000 if turn % 2 == 0 => ready.push(&[7; 700]),
                4_000..12_000 => _ = ready.consume(random % 1_400),
                _ => _ = ready.consume(random % 1_000),
            }
            let (capacity, length) = (ready.0.capacity(), ready.len());
            assert!(
                capacity <= (length + length / 8).max(IDLE_CAPACITY),
                "{capacity} for {length}"
            );
            moved += if capacity == before { 0 } else { length };
            passed += 700;
        }
        assert!(ready.is_empty() && ready.0.capacity() <= IDLE_CAPACITY);
        assert!(moved < 20 * passed, "{moved} bytes moved, {passed} passed");
    }
}
