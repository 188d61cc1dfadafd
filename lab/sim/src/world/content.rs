//! The content of flows: bytes derived from flow, direction and offset, so that a byte in the wrong
//! place is detected.

use super::Side;

/// The content of one direction of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Content {
    seed: u64,
}

impl Content {
    /// The bytes that `writer` writes on the flow.
    pub fn of(flow: usize, writer: Side) -> Self {
        Self { seed: mix((flow as u64) << 1 | writer as u64) }
    }

    /// Appends the bytes from `offset` on.
    pub fn extend(self, out: &mut Vec<u8>, offset: u64, count: usize) {
        let from = out.len();
        out.resize(from + count, 0);
        let (head, rest) = out[from..].split_at_mut(to_word(offset).min(count));
        let edge = offset + head.len() as u64;
        let (words, tail) = rest.as_chunks_mut();
        let end = edge + 8 * words.len() as u64;
        self.fill(offset, head);
        words.iter_mut().zip(edge / 8..).for_each(|(word, index)| *word = self.word(index));
        self.fill(end, tail);
    }

    /// The first place where `bytes`, read at `offset`, differ from the content.
    pub fn differs(self, offset: u64, bytes: &[u8]) -> Option<u64> {
        let (head, rest) = bytes.split_at(to_word(offset).min(bytes.len()));
        let edge = offset + head.len() as u64;
        let (words, tail) = rest.as_chunks();
        let end = edge + 8 * words.len() as u64;
        let wrong = words.iter().zip(edge / 8..).find(|(word, index)| **word != self.word(*index));
        self.differs_in(offset, head)
            .or_else(|| wrong.and_then(|(word, index)| self.differs_in(8 * index, word)))
            .or_else(|| self.differs_in(end, tail))
    }

    fn fill(self, offset: u64, out: &mut [u8]) {
        out.iter_mut().zip(offset..).for_each(|(byte, at)| *byte = self.byte(at));
    }

    fn differs_in(self, offset: u64, bytes: &[u8]) -> Option<u64> {
        bytes.iter().zip(offset..).find(|(byte, at)| **byte != self.byte(*at)).map(|(_, at)| at)
    }

    fn byte(self, at: u64) -> u8 {
        self.word(at / 8)[(at % 8) as usize]
    }

    fn word(self, index: u64) -> [u8; 8] {
        mix(self.seed ^ index).to_le_bytes()
    }
}

/// The number of bytes from `offset` to the next word boundary.
fn to_word(offset: u64) -> usize {
    (offset.wrapping_neg() % 8) as usize
}

/// The finaliser of splitmix64: each bit of the input moves half of the output's.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_fit_together_and_wrong_bytes_are_detected() {
        let content = Content::of(3, Side::Gateway);
        let mut whole = Vec::new();
        content.extend(&mut whole, 0, 100);
        let mut pieces = Vec::new();
        for (offset, count) in [(0, 3), (3, 13), (16, 1), (17, 83)] {
            content.extend(&mut pieces, offset, count);
        }
        assert_eq!(whole, pieces);
        assert_eq!(content.differs(13, &whole[13..77]), None);
        assert!(content.differs(12, &whole[13..77]).is_some(), "moved by one");
        assert!(Content::of(3, Side::Cloud).differs(0, &whole).is_some(), "other direction");
        for wrong in [13, 57, 76] {
            whole[wrong] ^= 1;
            assert_eq!(content.differs(13, &whole[13..77]), Some(wrong as u64));
            whole[wrong] ^= 1;
        }
    }
}
