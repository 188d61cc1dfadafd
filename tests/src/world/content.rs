//! What flows carry: bytes derived from flow, direction and offset, so that a byte in the wrong
//! place is recognised.

use super::Side;

/// The content of one direction of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Content {
    seed: u64,
}

impl Content {
    /// What `writer` writes on the flow.
    pub fn of(flow: usize, writer: Side) -> Self {
        Self { seed: mix((flow as u64) << 1 | writer as u64) }
    }

    /// Appends the bytes from `offset` on.
    pub fn extend(self, out: &mut Vec<u8>, offset: u64, count: usize) {
        let mut at = offset;
        let end = offset + count as u64;
        while at < end {
            let word = self.word(at / 8);
            let from = (at % 8) as usize;
            let to = ((end - at) as usize + from).min(8);
            out.extend_from_slice(&word[from..to]);
            at += (to - from) as u64;
        }
    }

    /// The first place where `bytes`, read at `offset`, differ from the content.
    pub fn differs(self, offset: u64, bytes: &[u8]) -> Option<u64> {
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let word = self.word(at / 8);
            let from = (at % 8) as usize;
            let count = (8 - from).min(rest.len());
            if rest[..count] != word[from..from + count] {
                let wrong = (0..count).find(|&i| rest[i] != word[from + i]).unwrap_or(0);
                return Some(at + wrong as u64);
            }
            rest = &rest[count..];
            at += count as u64;
        }
        None
    }

    fn word(self, index: u64) -> [u8; 8] {
        mix(self.seed ^ index).to_le_bytes()
    }
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
    fn pieces_fit_together_and_mistakes_are_found() {
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
        whole[57] ^= 1;
        assert_eq!(content.differs(13, &whole[13..77]), Some(57));
    }
}
