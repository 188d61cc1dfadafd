//! The bytes of a flow that arrived out of order.
//!
//! They are kept in blocks of [`BLOCK`] numbers, whatever part of a block has arrived. Credit
//! counts all numbers up to the highest that arrived, so the credit of the peer covers the blocks,
//! however small its pieces are.

use std::collections::BTreeMap;
use std::ops::Range;

#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// By number divided by [`BLOCK`].
    blocks: BTreeMap<u64, Box<[u8]>>,
    /// Bytes that have arrived and were not taken.
    bytes: u64,
}

impl Ahead {
    /// Keeps bytes that have not arrived before; `start` is the number of the first.
    pub fn put(&mut self, start: u64, data: &[u8]) {
        self.bytes += data.len() as u64;
        let (mut at, mut rest) = (start, data);
        while !rest.is_empty() {
            let within = (at % BLOCK) as usize;
            let (piece, more) = rest.split_at(rest.len().min(BLOCK as usize - within));
            let empty = || vec![0; BLOCK as usize].into_boxed_slice();
            let block = self.blocks.entry(at / BLOCK).or_insert_with(empty);
            block[within..within + piece.len()].copy_from_slice(piece);
            (at, rest) = (at + piece.len() as u64, more);
        }
    }

    /// Passes the bytes of a range that has arrived, in order, and frees the blocks below its end.
    pub fn take(&mut self, range: Range<u64>, mut each: impl FnMut(&[u8])) {
        self.bytes -= range.end - range.start;
        let mut at = range.start;
        while at < range.end {
            let index = at / BLOCK;
            let (first, end) = (index * BLOCK, ((index + 1) * BLOCK).min(range.end));
            if let Some(block) = self.blocks.get(&index) {
                each(&block[(at - first) as usize..(end - first) as usize]);
            }
            at = end;
        }
        while let Some(entry) = self.blocks.first_entry()
            && (*entry.key() + 1) * BLOCK <= range.end
        {
            entry.remove();
        }
        if self.bytes == 0 {
            self.blocks.clear();
        }
    }

    /// Bytes that have arrived and were not taken.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Bytes of a block: few enough for a flow with a single piece, and enough that their number in a
/// tree costs little.
const BLOCK: u64 = 1_024;
