//! Reads numbers and choices from the fuzzer's bytes. At the end of the input all numbers are zero.

/// The unread rest of an input.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// Whether all bytes were read.
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// At most this many bytes.
    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (head, tail) = self.0.split_at(count.min(self.0.len()));
        self.0 = tail;
        head
    }

    /// All other bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }

    /// Bytes with their length in front.
    pub fn part(&mut self) -> &'a [u8] {
        let length = self.short();
        self.take(length.into())
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// The lowest bit of a byte.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// Two bytes.
    pub fn short(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    /// A number; below 2^16 in three of four cases.
    pub fn number(&mut self) -> u64 {
        match self.byte() % 8 {
            0 => u64::from_be_bytes(self.array()),
            1 => u32::from_be_bytes(self.array()).into(),
            _ => self.short().into(),
        }
    }

    /// Bytes, with zeros behind the end.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let bytes = self.take(N);
        std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0))
    }

    /// One of these values.
    pub fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[usize::from(self.byte()) % values.len()]
    }
}
